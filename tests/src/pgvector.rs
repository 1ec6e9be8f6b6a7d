//! pgvector, built from the source that `tests/pgvector/fetch.sh` gets, once for a build folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::output::text;
use crate::skipped::skipped;
use crate::tree::Tree;

/// The scripts that fetch, build and rewrite.
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pgvector")
}

/// pgvector's source, and Perl's module IPC::Run.
#[derive(Debug)]
pub struct Source {
    home: PathBuf,
    _lock: File,
}

impl Source {
    /// Fetches it; `None`, with a message that says what is skipped, where it cannot be had.
    ///
    /// # Errors
    /// When the build folder cannot be written.
    pub fn get(what: &str) -> Result<Option<Source>> {
        let home = Tree::get()?.home().join("pgvector");
        fs::create_dir_all(&home)?;
        let lock = File::create(home.join("lock"))?;
        lock.lock()?;
        let fetched = Command::new(scripts().join("fetch.sh"))
            .arg(&home)
            .stdin(Stdio::null())
            .output()
            .context("running tests/pgvector/fetch.sh")?;
        if !fetched.status.success() {
            skipped(what, &text(&fetched));
            return Ok(None);
        }
        Ok(Some(Source { home, _lock: lock }))
    }

    /// The source tree.
    pub fn tree(&self) -> PathBuf {
        self.home.join("pgvector")
    }

    /// Where Perl finds IPC::Run if it is not installed.
    pub fn perl(&self) -> PathBuf {
        self.home.join("perl5")
    }

    /// Gives the tests' servers the extension `vector`, if their PostgreSQL came without.
    ///
    /// # Errors
    /// When it does not compile.
    pub fn install(&self) -> Result<()> {
        let tree = Tree::get()?;
        let installed = Command::new(scripts().join("install.sh"))
            .arg(&self.home)
            .arg(tree.home().join("tree"))
            .stdin(Stdio::null())
            .output()
            .context("running tests/pgvector/install.sh")?;
        ensure!(installed.status.success(), "{}", text(&installed));
        Ok(())
    }
}

/// Sees to it that the tests' servers have the extension `vector`; false, with a message that says what
/// is skipped, where it cannot be had.
///
/// # Errors
/// As [`Source::get`] and [`Source::install`].
pub fn has_pgvector(what: &str) -> Result<bool> {
    let share = Tree::get()?
        .command("pg_config")
        .arg("--sharedir")
        .output()?;
    if Path::new(text(&share).trim())
        .join("extension/vector.control")
        .exists()
    {
        return Ok(true);
    }
    let source = Source::get(what)?;
    source.as_ref().map(Source::install).transpose()?;
    Ok(source.is_some())
}
