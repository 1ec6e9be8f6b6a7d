//! The SQL of README.md, docs/mining.md, docs/hybrid.md, docs/models.md and docs/switching.md runs as it stands there.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use laser_tests::Cluster;
use laser_tests::model::Model;
use laser_tests::pgvector::has_pgvector;

/// The fenced blocks of one language.
fn blocks(markdown: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}\n");
    markdown
        .split(&open)
        .skip(1)
        .filter_map(|rest| rest.split_once("```").map(|(block, _)| block.to_owned()))
        .collect()
}

/// Runs the SQL blocks of a file in its order, after `setup`. `before` may return a statement that
/// goes before a block.
fn every_statement_works(
    file: &str,
    setup: impl FnOnce(&Cluster, &str) -> Result<()>,
    before: impl Fn(&str) -> Option<&'static str>,
) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("a parent")?;
    let text = std::fs::read_to_string(root.join(file))?;
    let models = tempfile::tempdir()?;
    Model::tiny("tiny", 384).write(models.path())?;
    Model {
        seed: 2,
        ..Model::tiny("another-model", 384)
    }
    .write(models.path())?;
    let cluster = Cluster::builder().models(models.path(), "tiny").start()?;

    // Copied, because the server's account need not be able to read the repository.
    let demo = cluster.scratch()?.join("demo");
    std::fs::create_dir(&demo)?;
    std::fs::set_permissions(&demo, std::fs::Permissions::from_mode(0o755))?;
    for entry in std::fs::read_dir(root.join("demo"))? {
        let entry = entry?;
        let copy = demo.join(entry.file_name());
        std::fs::copy(entry.path(), &copy)?;
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o644))?;
    }
    let demo = demo.display().to_string();
    setup(&cluster, &demo)?;

    let blocks = blocks(&text, "sql");
    assert!(blocks.len() >= 2, "{} blocks", blocks.len());
    for block in blocks {
        if let Some(statement) = before(&block) {
            cluster.psql("postgres", statement)?;
        }
        let script = cluster.scratch()?.join("block.sql");
        std::fs::write(&script, block.replace("'demo/", &format!("'{demo}/")))?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644))?;
        let path = script.display().to_string();
        let options = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-f"];
        cluster
            .run("psql", &[&options[..], &[&path]].concat())
            .with_context(|| block.clone())?;
    }
    Ok(())
}

/// The same in a database that has the extension and nothing else.
fn every_statement_of_a_guide_works(file: &str) -> Result<()> {
    every_statement_works(
        file,
        |cluster, _| {
            cluster.psql("postgres", "CREATE EXTENSION laser")?;
            Ok(())
        },
        |_| None,
    )
}

#[test]
fn every_statement_of_the_readme_works() -> Result<()> {
    every_statement_works(
        "README.md",
        |cluster, demo| {
            cluster.psql(
                "postgres",
                "CREATE TABLE sentences (id int GENERATED ALWAYS AS IDENTITY, key text, lang text, body text);
                 CREATE TABLE de (id bigint, body text); INSERT INTO de VALUES (1, 'Haus');
                 CREATE TABLE en (id bigint, body text); INSERT INTO en VALUES (1, 'house')",
            )?;
            let copy = format!("\\copy sentences (key, lang, body) FROM '{demo}/sentences.tsv'");
            cluster.psql("postgres", &copy)?;
            Ok(())
        },
        |block| {
            block
                .contains("CREATE TABLE de")
                .then_some("DROP TABLE de, en")
        },
    )
}

#[test]
fn every_statement_of_the_mining_guide_works() -> Result<()> {
    every_statement_of_a_guide_works("docs/mining.md")
}

#[test]
fn every_statement_of_the_hybrid_guide_works() -> Result<()> {
    every_statement_of_a_guide_works("docs/hybrid.md")
}

#[test]
fn every_statement_of_the_guide_to_models_works() -> Result<()> {
    every_statement_of_a_guide_works("docs/models.md")
}

#[test]
fn every_statement_of_the_switching_guide_works() -> Result<()> {
    if !has_pgvector("docs/switching.md")? {
        return Ok(());
    }
    every_statement_works(
        "docs/switching.md",
        |cluster, _| {
            cluster.psql(
                "postgres",
                "CREATE EXTENSION vector;
                 CREATE TABLE items (id int, embedding vector(3));
                 INSERT INTO items VALUES (1, '[1,2,3]'), (2, NULL), (3, '[0,0,0]');
                 CREATE INDEX items_embedding_idx ON items USING hnsw (embedding vector_cosine_ops)",
            )?;
            Ok(())
        },
        |_| None,
    )
}
