//! pgvector's own tests, pointed at laser by `tests/pgvector/suite.pl`, once with laser's types and, those
//! of indexes, once with pgvector's own (extension `laser_pgvector`). `tests/pgvector/differences.txt` has
//! what is different on purpose.
//!
//! The source of pgvector comes from Debian, fetched once for a build folder. Skipped with a message
//! where it cannot be had, as the scripts in Perl are where PostgreSQL's test modules are missing.
//!
//! * `PGVECTOR_SOURCE=FOLDER`: the source tree to take the tests from
//! * `LASER_PGVECTOR=all`: every script (minutes); `LASER_PGVECTOR=010,hnsw_cost`: those whose names
//!   contain one of these; otherwise those that are done in a minute or two
//! * `LASER_PGVECTOR_QUANTIZATION=f32`: this quantization in every index instead of the default

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use laser_tests::pgvector::{Source, scripts};
use laser_tests::{Account, Cluster, Tree, skipped, text};
use tempfile::TempDir;

/// Scripts that take long, and of which others in the list try the same at less expense.
const LONG: &[&str] = &[
    "aggregates",
    "comparison",
    "distance_functions",
    "hnsw_halfvec_insert_recall",
    "hnsw_iterative_scan",
    "hnsw_vector_insert_recall",
    "hnsw_wal",
    "inputs",
];

/// The same for the run with pgvector's types, after that with laser's.
const LONG_AGAIN: &[&str] = &["hnsw_halfvec_build_recall", "hnsw_iterative_scan_recall"];

/// Whose types the tests are run with.
#[derive(Clone, Copy)]
enum Types {
    Laser,
    Pgvector,
}

impl Types {
    /// The name in messages and for `suite.pl`.
    fn name(self) -> &'static str {
        match self {
            Types::Laser => "laser",
            Types::Pgvector => "pgvector",
        }
    }

    /// What is skipped where these tests cannot run.
    fn what(self) -> String {
        format!("pgvector's tests with {}'s types", self.name())
    }

    fn skip(self, why: &str) {
        skipped(&self.what(), why);
    }
}

/// Scripts that were rewritten, in a folder of the account of the servers.
struct Suite {
    folder: TempDir,
    perl: PathBuf,
    /// pgvector's modules for PostgreSQL 14, whose own ones have other names.
    modules: PathBuf,
}

impl Suite {
    /// Fetches and rewrites; nothing where the source cannot be had.
    fn get(types: Types) -> Result<Option<Suite>> {
        let tree = Tree::get()?;
        let Some(source) = Source::get(&types.what())? else {
            return Ok(None);
        };
        if let Types::Pgvector = types {
            source.install()?;
        }
        let suite = Suite {
            folder: tempfile::Builder::new()
                .prefix("laser-pgvector-")
                .tempdir_in("/tmp")?,
            perl: source.perl(),
            modules: source.tree().join("test/perl"),
        };
        let mut command = Command::new(scripts().join("suite.pl"));
        command
            .arg("rewrite")
            .args([source.tree(), suite.folder.path().to_path_buf()])
            .arg(scripts().join("differences.txt"))
            .arg(types.name());
        if let Some(quantization) = std::env::var_os("LASER_PGVECTOR_QUANTIZATION") {
            command.arg(quantization);
        }
        let rewritten = command.output().context("running suite.pl")?;
        ensure!(rewritten.status.success(), "{}", text(&rewritten));
        print!("{}", text(&rewritten));
        Account::own(tree.account(), suite.folder.path())?;
        Ok(Some(suite))
    }

    /// Files below a folder of the suite with their names, without endings.
    fn files(&self, below: &str) -> Result<Vec<(String, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.folder.path().join(below))? {
            let path = entry?.path();
            let name = path.file_stem().context("a file has a name")?;
            files.push((name.to_string_lossy().into_owned(), path));
        }
        files.sort();
        ensure!(!files.is_empty(), "suite.pl wrote nothing to {below}");
        Ok(files)
    }

    /// A folder that the account of the servers can write.
    fn scratch(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::create_dir_all(&path)?;
        Account::own(Tree::get()?.account(), &path)?;
        Ok(path)
    }
}

/// `PATH` with the tests' own PostgreSQL before all others.
fn path(tree: &Tree) -> Result<std::ffi::OsString> {
    let others = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(tree.bin().to_path_buf()).chain(std::env::split_paths(&others));
    Ok(std::env::join_paths(folders)?)
}

#[test]
fn regression_scripts_give_the_same_rows() -> Result<()> {
    regression_scripts(Types::Laser)
}

#[test]
fn regression_scripts_give_the_same_rows_with_pgvectors_types() -> Result<()> {
    regression_scripts(Types::Pgvector)
}

fn regression_scripts(types: Types) -> Result<()> {
    let Some(suite) = Suite::get(types)? else {
        return Ok(());
    };
    let cluster = Cluster::new()?;
    let work = suite.scratch("work")?;
    suite.scratch("work/results")?;
    let mut wrong = Vec::new();
    for (name, sql) in suite.files("sql")? {
        let mut client = cluster.database(&name)?;
        if let Types::Pgvector = types {
            client.batch_execute("CREATE EXTENSION laser_pgvector CASCADE")?;
        }
        drop(client);
        let result = suite.folder.path().join(format!("{name}.result"));
        let out = File::create(&result)?;
        cluster
            .command("psql")
            .args(["-X", "-a", "-q", "-d", &name])
            .current_dir(&work)
            .stdin(File::open(&sql)?)
            .stdout(out.try_clone()?)
            .stderr(out)
            .status()?;
        let expected = suite.folder.path().join(format!("expected/{name}.out"));
        let compared = Command::new(scripts().join("suite.pl"))
            .arg("compare")
            .args([sql, expected, result])
            .output()?;
        println!("{name}: {}", text(&compared));
        if !compared.status.success() {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "other rows than expected: {wrong:?}");
    Ok(())
}

/// Scripts of this run.
fn chosen(suite: &Suite, types: Types) -> Result<VecDeque<(String, PathBuf)>> {
    let wanted = std::env::var("LASER_PGVECTOR").unwrap_or_default();
    let mut files = suite.files("t")?;
    files.retain(|(name, _)| match wanted.as_str() {
        "all" => true,
        "" => {
            let again = match types {
                Types::Laser => &[],
                Types::Pgvector => LONG_AGAIN,
            };
            !LONG.iter().chain(again).any(|long| name.ends_with(long))
        }
        parts => parts.split(',').any(|part| name.contains(part)),
    });
    if let Types::Laser = types {
        ensure!(!files.is_empty(), "LASER_PGVECTOR={wanted} names no script");
    }
    Ok(files.into())
}

#[test]
fn tap_scripts_pass() -> Result<()> {
    tap_scripts(Types::Laser)
}

#[test]
fn tap_scripts_pass_with_pgvectors_types() -> Result<()> {
    tap_scripts(Types::Pgvector)
}

fn tap_scripts(types: Types) -> Result<()> {
    let Some(suite) = Suite::get(types)? else {
        return Ok(());
    };
    let tree = Tree::get()?;
    let output = tree.command("pg_config").arg("--pgxs").output();
    let pgxs = output.map(|output| PathBuf::from(text(&output).trim()));
    let test = pgxs.ok().and_then(|pgxs| {
        let test = pgxs.parent()?.parent()?.join("test");
        test.join("perl").is_dir().then_some(test)
    });
    let Some(test) = test else {
        types.skip("this PostgreSQL has no test modules for Perl (Debian: postgresql-server-dev)");
        return Ok(());
    };
    let library =
        std::env::join_paths([test.join("perl"), suite.perl.clone(), suite.modules.clone()])?;

    // The scripts make data of random numbers: the same ones each time. (011_hnsw_vacuum compares sizes, which
    // differ where few of the vectors do.)
    let seed = tempfile::tempdir()?;
    std::fs::write(seed.path().join("Seed.pm"), "package Seed; srand(7); 1;\n")?;
    Account::own(tree.account(), seed.path())?;
    let library =
        std::env::join_paths(std::env::split_paths(&library).chain([seed.path().to_owned()]))?;
    let queue = Mutex::new(chosen(&suite, types)?);
    let failures = Mutex::new(Vec::new());
    let run = |name: &str, script: &Path| -> Result<bool> {
        let start = Instant::now();
        let work = suite.scratch(&format!("tap-{name}"))?;
        let output = Account::command(tree.account(), "perl")
            .arg(script)
            .current_dir(&work)
            .env("PATH", path(tree)?)
            .env("PERL5LIB", &library)
            .env("PERL5OPT", "-MSeed")
            .env("PG_REGRESS", test.join("regress/pg_regress"))
            .env("TESTDIR", &work)
            .env("TESTDATADIR", work.join("tmp_check"))
            .env("TESTLOGDIR", work.join("tmp_check/log"))
            .env("PG_TEST_PORT_DIR", suite.folder.path())
            .env_remove("PGDATA")
            .stdin(Stdio::null())
            .output()?;
        let seconds = start.elapsed().as_secs();
        let all = text(&output);
        let good = output.status.success();
        let (passed, failed): (Vec<&str>, Vec<&str>) = all
            .lines()
            .filter(|line| line.starts_with("ok ") || line.starts_with("not ok "))
            .partition(|line| line.starts_with("ok "));
        println!(
            "{name}: {} in {seconds} s, {} passed, {} failed",
            if good { "ok" } else { "FAILED" },
            passed.len(),
            failed.len()
        );
        if !good {
            // Names of tests may hold what a program printed.
            let lines = all.lines().filter(|line| {
                !line.is_empty()
                    && !["ok ", "# psql:", "# Running"]
                        .iter()
                        .any(|start| line.starts_with(start))
            });
            lines.for_each(|line| println!("    {line}"));
        }
        fs::remove_dir_all(&work)?;
        Ok(good)
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        for _ in 0..threads.min(4) {
            scope.spawn(|| {
                loop {
                    let Some((name, script)) = queue.lock().unwrap().pop_front() else {
                        return;
                    };
                    match run(&name, &script) {
                        Ok(true) => {}
                        Ok(false) => failures.lock().unwrap().push(name),
                        Err(error) => {
                            println!("{name}: FAILED: {error:#}");
                            failures.lock().unwrap().push(name);
                        }
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    assert!(failures.is_empty(), "failed: {failures:?}");
    Ok(())
}
