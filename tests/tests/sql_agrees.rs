//! The SQL written by hand and the compiled library agree: every C function that is declared
//! exists, every one that exists is declared.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSymbol};

/// The parts of the extensions' scripts, in the order of `scripts/install.sh`.
const PARTS: [&str; 7] = [
    "types",
    "encode",
    "index",
    "mining",
    "hybrid",
    "keep",
    "laser_pgvector",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Symbols that the SQL binds to: of `AS 'MODULE_PATHNAME', 'symbol'`, or the function's name
/// where no symbol is given.
fn declared(sql: &str) -> Result<BTreeSet<String>> {
    let without_comments: String = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n");
    let mut symbols = BTreeSet::new();
    for (at, marker) in without_comments.match_indices("'MODULE_PATHNAME'") {
        let rest = without_comments[at + marker.len()..].trim_start();
        let symbol = match rest.strip_prefix(',') {
            Some(rest) => {
                let rest = rest
                    .trim_start()
                    .strip_prefix('\'')
                    .context("a quoted symbol")?;
                rest.split('\'').next().unwrap_or_default()
            }
            None => {
                let before = &without_comments[..at].to_ascii_lowercase();
                let start = before
                    .rfind("function")
                    .context("CREATE FUNCTION before AS")?
                    + 8;
                let name = without_comments[start..].trim_start();
                name.split(|c: char| c == '(' || c.is_whitespace())
                    .next()
                    .unwrap_or_default()
            }
        };
        ensure!(!symbol.is_empty(), "no symbol in {:?}", rest.lines().next());
        symbols.insert(symbol.to_owned());
    }
    Ok(symbols)
}

/// The library that cargo has built beside this test.
fn library() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let release = program
        .ancestors()
        .nth(2)
        .context("tests lie in <target>/release/deps")?;
    let library = release.join("liblaser.so");
    ensure!(
        library.exists(),
        "{} is missing: cargo build --release -p laser",
        library.display()
    );
    Ok(library)
}

#[test]
fn sql_and_library_agree() -> Result<()> {
    let mut wanted = BTreeSet::new();
    for part in PARTS {
        let path = root().join("sql").join(format!("{part}.sql"));
        let sql = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        wanted.extend(declared(&sql)?);
    }
    ensure!(
        wanted.len() > 50,
        "only {} functions were found in sql/",
        wanted.len()
    );

    let data = std::fs::read(library()?)?;
    let file = object::File::parse(&*data)?;
    let exported: BTreeSet<String> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| Some(symbol.name().ok()?.to_owned()))
        .collect();

    let missing: Vec<_> = wanted
        .iter()
        .filter(|name| !exported.contains(*name) || !exported.contains(&format!("pg_finfo_{name}")))
        .collect();
    ensure!(
        missing.is_empty(),
        "declared in sql/, not in the library: {missing:?}"
    );

    let unused: Vec<_> = exported
        .iter()
        .filter_map(|name| name.strip_prefix("pg_finfo_"))
        .filter(|name| !wanted.contains(*name))
        .collect();
    ensure!(
        unused.is_empty(),
        "in the library, not declared in sql/: {unused:?}"
    );
    Ok(())
}

#[test]
fn declarations_are_found() -> Result<()> {
    let sql = "CREATE FUNCTION a(int) RETURNS int\nAS 'MODULE_PATHNAME', 'b' LANGUAGE c;
        -- AS 'MODULE_PATHNAME', 'comment'
        create function c (int) RETURNS int AS 'MODULE_PATHNAME' LANGUAGE c;
        CREATE FUNCTION d() RETURNS int LANGUAGE sql AS 'SELECT 1';";
    let symbols: Vec<String> = declared(sql)?.into_iter().collect();
    ensure!(symbols == ["b", "c"], "{symbols:?}");
    Ok(())
}
