//! Runs sqllogictest files against a cluster.
//!
//! Every file has a database of its own with laser created in it. Lines at the head of a file say
//! what else it needs:
//!
//! ```text
//! # cluster: own                      a server for this file alone
//! # preload: no                       (own cluster) laser is not in shared_preload_libraries
//! # encoding: LATIN1                  (own cluster) encoding of the databases
//! # setting: work_mem = 1MB           (own cluster) a line of postgresql.conf
//! # extension: no                     the file creates the extension itself
//! # requires: vector                  skipped with a message unless this extension is available; pgvector is
//!                                     built if it can be had
//! ```
//!
//! Models named `tiny` (32 dimensions, the default model), `tiny-lstm`, `tiny-residual` and
//! `tiny-transformer` (32), with random weights, are there for every file. Results are compared value by value; NULL reads
//! `NULL`, an empty text `(empty)`, and white space within a value counts as one blank.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use postgres::{Client, SimpleQueryMessage};
use sqllogictest::{DB, DBOutput, DefaultColumnType, Runner};

use crate::cluster::{Builder, Cluster};
use crate::model::{Architecture, Model};
use crate::pgvector;

/// What the head of a file asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Directives {
    own_cluster: bool,
    no_preload: bool,
    encoding: Option<String>,
    settings: Vec<(String, String)>,
    no_extension: bool,
    requires: Vec<String>,
}

impl Directives {
    fn parse(text: &str) -> Result<Directives> {
        let mut found = Directives::default();
        for line in text
            .lines()
            .take_while(|line| line.starts_with('#') || line.trim().is_empty())
        {
            let Some((name, value)) = line.trim_start_matches('#').split_once(':') else {
                continue;
            };
            let value = value.trim();
            match (name.trim(), value) {
                ("cluster", "own") => found.own_cluster = true,
                ("preload", "no") => found.no_preload = true,
                ("encoding", encoding) => found.encoding = Some(encoding.to_owned()),
                ("extension", "no") => found.no_extension = true,
                ("requires", extension) => found.requires.push(extension.to_owned()),
                ("setting", setting) => {
                    let (name, value) =
                        setting.split_once('=').context("# setting: NAME = VALUE")?;
                    let value = value.trim().trim_matches('\'');
                    found
                        .settings
                        .push((name.trim().to_owned(), value.to_owned()));
                }
                _ => {}
            }
        }
        let needs_own = found.no_preload || found.encoding.is_some() || !found.settings.is_empty();
        if needs_own && !found.own_cluster {
            bail!("preload, encoding and setting need \"# cluster: own\"");
        }
        Ok(found)
    }
}

/// Writes the models that every file finds, below `path`.
///
/// # Errors
/// When they cannot be written.
pub fn write_models(path: &Path) -> Result<()> {
    for (name, architecture) in [
        ("tiny", Architecture::Mean),
        ("tiny-lstm", Architecture::BiLstm),
        ("tiny-residual", Architecture::ResidualBilstm),
        ("tiny-transformer", Architecture::Transformer),
    ] {
        Model {
            architecture,
            ..Model::tiny(name, 32)
        }
        .write(path)?;
    }
    Ok(())
}

/// How a file ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every record gave what the file says.
    Passed,
    /// The file was not run, for this reason.
    Skipped(String),
}

/// Runs one file, in a database of `shared` named after the file, or in a cluster of its own.
///
/// # Errors
/// With the record that failed and the difference.
pub fn run_file(file: &Path, shared: &Cluster, models: &Path) -> Result<Outcome> {
    let text = std::fs::read_to_string(file)?;
    let directives = Directives::parse(&text).with_context(|| file.display().to_string())?;
    let own = directives
        .own_cluster
        .then(|| builder(&directives, models).start())
        .transpose()?;
    let cluster = own.as_ref().unwrap_or(shared);

    for extension in &directives.requires {
        if extension == "vector" {
            pgvector::has_pgvector(&file.display().to_string())?;
        }
        let sql =
            format!("SELECT count(*) FROM pg_available_extensions WHERE name = '{extension}'");
        if cluster.psql("postgres", &sql)? == "0" {
            return Ok(Outcome::Skipped(format!(
                "extension {extension} is not installed"
            )));
        }
    }
    let name = file
        .file_stem()
        .context("a file has a name")?
        .to_string_lossy()
        .into_owned();
    let database = format!("slt_{name}");
    cluster.psql("postgres", &format!("CREATE DATABASE \"{database}\""))?;
    if !directives.no_extension {
        cluster.psql(&database, "CREATE EXTENSION laser")?;
    }
    let config = cluster.config(&database);
    let mut runner = Runner::new(|| {
        let config = config.clone();
        async move {
            // The client drives its own event loop, which must not be nested in another one.
            std::thread::spawn(move || config.connect(postgres::NoTls))
                .join()
                .expect("connecting does not panic")
                .map(|client| Session {
                    client: Some(client),
                })
                .map_err(Error)
        }
    });
    runner
        .run_file(file)
        .map_err(|error| anyhow::anyhow!("{}", error.display(false)))?;
    runner.shutdown();
    Ok(Outcome::Passed)
}

fn builder(directives: &Directives, models: &Path) -> Builder {
    let mut builder = Cluster::builder()
        .preload(!directives.no_preload)
        .models(models, "tiny");
    if let Some(encoding) = &directives.encoding {
        builder = builder.encoding(encoding);
    }
    for (name, value) in &directives.settings {
        builder = builder.setting(name, value);
    }
    builder
}

/// One connection of a file.
struct Session {
    client: Option<Client>,
}

/// An error of the server, as the message and the SQLSTATE.
#[derive(Debug)]
struct Error(postgres::Error);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(error) = self.0.as_db_error() else {
            return self.0.fmt(f);
        };
        write!(f, "{}: {}", error.severity(), error.message())?;
        if let Some(detail) = error.detail() {
            write!(f, "\nDETAIL: {detail}")?;
        }
        if let Some(hint) = error.hint() {
            write!(f, "\nHINT: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl DB for Session {
    type Error = Error;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Error> {
        let client = self.client.as_mut().expect("no statement follows shutdown");
        let messages = client.simple_query(sql).map_err(Error)?;
        let mut columns = None;
        let mut rows = Vec::new();
        let mut count = 0;
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(description) => {
                    columns = Some(description.len());
                }
                SimpleQueryMessage::Row(row) => {
                    columns = Some(row.len());
                    rows.push(
                        (0..row.len())
                            .map(|column| shown(row.get(column)))
                            .collect(),
                    );
                }
                SimpleQueryMessage::CommandComplete(affected) => count = affected,
                _ => {}
            }
        }
        Ok(match columns {
            Some(columns) => DBOutput::Rows {
                types: vec![DefaultColumnType::Any; columns],
                rows,
            },
            None => DBOutput::StatementComplete(count),
        })
    }

    fn shutdown(&mut self) {
        self.client.take();
    }

    fn engine_name(&self) -> &str {
        "postgresql"
    }

    fn error_sql_state(error: &Error) -> Option<String> {
        error.0.code().map(|state| state.code().to_owned())
    }
}

fn shown(value: Option<&str>) -> String {
    match value {
        None => "NULL".to_owned(),
        Some("") => "(empty)".to_owned(),
        Some(value) => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_read_from_the_head() {
        let text = "# cluster: own\n# preload: no\n# setting: work_mem = '1MB'\n\nstatement ok\n\
                    SELECT 1\n\n# extension: no\n";
        let found = Directives::parse(text).unwrap();
        assert!(found.own_cluster && found.no_preload && !found.no_extension);
        assert_eq!(found.settings, [("work_mem".to_owned(), "1MB".to_owned())]);
        assert!(Directives::parse("# encoding: LATIN1\n").is_err());
    }
}
