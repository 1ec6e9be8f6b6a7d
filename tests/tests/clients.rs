//! Programs in Python: the code of each page of `docs/clients/` runs against a server, prints what the page says, and
//! is answered by a laser index. Those that are for pgvector's columns want pgvector; the others import
//! `clients/python`. `tests/clients/plans.py` has statements as clients send them, with plans as the server chooses them.
//!
//! The packages of `tests/clients/requirements.txt` are installed from PyPI into a virtual environment of the
//! build folder, once; skipped with a message where that cannot be done.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use laser_tests::pgvector::has_pgvector;
use laser_tests::{Cluster, Tree, skipped, text};

const WHAT: &str = "clients of docs/clients";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The interpreter of the virtual environment; nothing where PyPI cannot be reached or Python is too old.
fn python() -> Result<Option<PathBuf>> {
    let home = Tree::get()?.home().join("clients");
    fs::create_dir_all(&home)?;
    let lock = File::create(home.join("lock"))?;
    lock.lock()?;
    let wanted = root().join("tests/clients/requirements.txt");
    let (venv, stamp) = (home.join("venv"), home.join("stamp"));
    let python = venv.join("bin/python3");
    if fs::read(&stamp).is_ok_and(|old| fs::read(&wanted).is_ok_and(|new| old == new)) {
        return Ok(Some(python));
    }
    let _ = fs::remove_file(&stamp);
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear", "--copies", "--without-pip"])
        .arg(&venv);
    let mut install = Command::new("python3");
    install
        .args(["-m", "pip", "--python"])
        .arg(&python)
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .args(["--only-binary", ":all:", "--no-cache-dir", "--requirement"])
        .arg(&wanted);
    for command in [&mut make, &mut install] {
        let why = match command.stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => continue,
            Ok(output) => text(&output),
            Err(error) => format!("python3: {error}"),
        };
        skipped(WHAT, why.lines().last().unwrap_or("pip failed"));
        return Ok(None);
    }
    fs::copy(&wanted, &stamp)?;
    Ok(Some(python))
}

/// The only block of a language on a page.
fn block<'a>(page: &'a str, language: &str) -> Result<&'a str> {
    let open = format!("```{language}\n");
    let (_, rest) = page.split_once(&open).context(open)?;
    Ok(rest.split_once("```").context("the block ends")?.0)
}

/// Runs a program in a database.
fn execute(cluster: &Cluster, python: &Path, database: &str, program: &str) -> Result<Output> {
    let folder = tempfile::tempdir()?;
    // Not named like the package that it imports.
    let file = folder.path().join("page.py");
    fs::write(&file, program)?;
    Ok(Command::new(python)
        .arg(&file)
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .env("PYTHONPATH", root().join("clients/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PGHOST", cluster.socket())
        .env("PGPORT", cluster.port().to_string())
        .env("PGUSER", "postgres")
        .env("PGDATABASE", database)
        .stdin(Stdio::null())
        .output()?)
}

/// Runs the program of a page in a database of its own.
fn run(cluster: &Cluster, python: &Path, name: &str, page: &str) -> Result<()> {
    let database = name.replace('-', "_");
    cluster.psql("postgres", &format!("CREATE DATABASE {database}"))?;
    // Three rows are not worth an index otherwise.
    cluster.psql(
        "postgres",
        &format!("ALTER DATABASE {database} SET enable_seqscan = off"),
    )?;
    let output = execute(cluster, python, &database, block(page, "python")?)?;
    ensure!(output.status.success(), "{name}:\n{}", text(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(
        printed == block(page, "text")?,
        "{name} printed:\n{}",
        text(&output)
    );
    let scans = "SELECT coalesce(sum(pg_stat_get_numscans(c.oid)), 0) FROM pg_class c
         JOIN pg_am a ON a.oid = relam AND amname = 'laser'";
    // The statistics of a session are there once it has ended.
    laser_tests::wait_until(
        &format!("the laser index of {name} has been searched"),
        || Ok(cluster.psql(&database, scans)? != "0"),
    )
}

#[test]
fn every_page_works_as_it_says() -> Result<()> {
    let Some(python) = python()? else {
        return Ok(());
    };
    let has_pgvector = has_pgvector(WHAT)?;
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut pages = 0;
    // One after the other: where a table was updated before its index was made, the server leaves the index alone while
    // a transaction runs that is older, in whichever database.
    for entry in fs::read_dir(root().join("docs/clients"))? {
        let path = entry?.path();
        let name = path.file_stem().context("a name")?.to_string_lossy();
        if name == "README" {
            continue;
        }
        pages += 1;
        let page = fs::read_to_string(&path)?;
        if has_pgvector || !page.contains("laser_pgvector") {
            run(&cluster, &python, &name, &page)?;
        }
    }
    ensure!(pages >= 9, "{pages} pages");
    Ok(())
}

#[test]
fn what_clients_send_is_answered_by_the_index() -> Result<()> {
    let Some(python) = python()? else {
        return Ok(());
    };
    if !has_pgvector(WHAT)? {
        return Ok(());
    }
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let program = fs::read_to_string(root().join("tests/clients/plans.py"))?;
    let output = execute(&cluster, &python, "postgres", &program)?;
    ensure!(output.status.success(), "{}", text(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(printed.lines().count() == 10, "{printed}");
    Ok(())
}
