//! The demo's files say what the demo claims, and its scripts hand statements over unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use laser_tests::Cluster;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

fn table(name: &str, columns: usize) -> Result<Vec<Vec<String>>> {
    let path = root().join("demo").join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rows: Vec<Vec<String>> = text
        .lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect();
    for row in &rows {
        assert_eq!(row.len(), columns, "{name}: {row:?}");
        assert!(
            row.iter()
                .all(|value| !value.is_empty() && value.trim() == value),
            "{row:?}"
        );
    }
    Ok(rows)
}

#[test]
fn every_sentence_is_there_in_every_language() -> Result<()> {
    let rows = table("sentences.tsv", 3)?;
    let languages: BTreeSet<&str> = rows.iter().map(|row| row[1].as_str()).collect();
    let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut texts = BTreeSet::new();
    for row in &rows {
        assert!(
            keys.entry(&row[0]).or_default().insert(&row[1]),
            "twice: {row:?}"
        );
        assert!(texts.insert(&row[2]), "twice: {row:?}");
    }
    assert!(rows.len() >= 1000, "{} sentences", rows.len());
    assert!(languages.len() >= 20, "{} languages", languages.len());
    for (key, found) in keys {
        assert_eq!(found, languages, "{key}");
    }
    for query in table("queries.tsv", 2)? {
        assert!(languages.contains(query[0].as_str()), "{query:?}");
        assert!(
            !texts.contains(&query[1]),
            "a query that is a demo sentence: {query:?}"
        );
    }
    Ok(())
}

#[test]
fn the_mining_task_has_a_gold_standard() -> Result<()> {
    let ids = |name| -> Result<BTreeSet<String>> {
        let rows = table(name, 2)?;
        let ids: BTreeSet<String> = rows.iter().map(|row| row[0].clone()).collect();
        assert_eq!(ids.len(), rows.len(), "{name}");
        Ok(ids)
    };
    let (de, en) = (ids("mining_de.tsv")?, ids("mining_en.tsv")?);
    let gold = table("mining_gold.tsv", 2)?;
    assert_eq!((de.len(), en.len(), gold.len()), (150, 150, 100));
    for pair in gold {
        assert!(de.contains(&pair[0]) && en.contains(&pair[1]), "{pair:?}");
    }
    Ok(())
}

/// `make psql SQL=…` on a stand-in for the demo's folder that points to a cluster of the test.
#[test]
fn make_psql_hands_the_statement_over_as_typed() -> Result<()> {
    let cluster = Cluster::builder().preload(false).start()?;
    let target = tempfile::tempdir()?;
    let home = target.path().join("demo");
    std::fs::create_dir(&home)?;
    std::fs::write(home.join("socket"), cluster.socket().display().to_string())?;
    std::fs::write(
        home.join("bin"),
        laser_tests::Tree::get()?.bin().display().to_string(),
    )?;
    for (typed, answer) in [
        (r#"SELECT 'a "b" $1 $x \n', 1"#, r#"a "b" $1 $x \n|1"#),
        ("SELECT $$x$$ || $q$'y'$q$", "x'y'"),
        ("SELECT 'größer (日本)' -- #", "größer (日本)"),
    ] {
        let output = Command::new("make")
            .args([
                "--silent",
                "--no-print-directory",
                "psql",
                &format!("SQL={typed}"),
            ])
            .current_dir(root())
            .env("CARGO_TARGET_DIR", target.path())
            .env("PGDATABASE", "postgres")
            .env_remove("MAKEFLAGS")
            .output()?;
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(String::from_utf8(output.stdout)?.trim_end(), answer);
    }
    Ok(())
}
