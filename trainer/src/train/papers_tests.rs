//! The configurations of papers in their own setting, but for widths, batches and data: that their options go
//! together, that they start, write checkpoints and go on from them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::config::TrainConfig;
use super::languages_tests::World;
use super::tests::{ends_alike, one};

const UPDATES: u64 = 10;

/// What is smaller here than in the papers, and what it becomes.
const SMALLER: [(&str, i64); 9] = [
    ("embedding_size", 24),
    ("hidden_size", 24),
    ("intermediate_size", 48),
    ("language_size", 4),
    ("batch_pairs", 12),
    ("chunk_sentences", 10),
    ("accumulate", 2),
    ("dev_steps", 4),
    ("log_steps", 1),
];

fn smaller(table: &mut Table) {
    for (name, value) in table.iter_mut() {
        if let Some((_, size)) = SMALLER.iter().find(|(known, _)| known == name) {
            let old = value.as_integer().unwrap();
            *value = Value::Integer(old.min(*size));
        } else if let Value::Table(inner) = value {
            smaller(inner);
        }
    }
}

/// A configuration of a paper on the data of `world`.
fn config(world: &World, path: &Path, name: &str) -> TrainConfig {
    let text = std::fs::read_to_string(path).unwrap();
    let mut config: Table = text.parse().unwrap();
    smaller(&mut config);
    for (key, value) in [
        ("output", name),
        ("tokenizer", "tokenizer.json"),
        ("corpus", "corpus"),
    ] {
        config.insert(key.into(), value.into());
    }
    config.insert("threads".into(), 2.into());
    let run = config["run"].as_table_mut().unwrap();
    run.insert("steps".into(), (UPDATES as i64).into());
    let objectives = config["objective"].as_table_mut().unwrap();
    if let Some(transfer) = objectives.get_mut("transfer") {
        transfer["teacher"] = "teacher/last".into();
    }
    if let Some(nli) = objectives.get_mut("nli") {
        nli["data"] = Value::Array(vec!["pairs.tsv".into()]);
    }
    if let Some(Value::Array(dev)) = config.get_mut("dev") {
        dev[0]["path"] = "dev.tsv".into();
    }
    let file = world.path(&format!("{name}.toml"));
    std::fs::write(&file, config.to_string()).unwrap();
    TrainConfig::load(&file).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn each_full_configuration_starts_and_resumes_exactly() {
    let world = World::of(["en", "fr", "es", "ru"], &["<mask>", "<s>"]);
    let mut pairs = String::new();
    for i in 0..40 {
        let label = ["entailment", "neutral", "contradiction"][i % 3];
        writeln!(pairs, "train\t{label}\ta{} a1\ta{} a2", i % 20, i % 7).unwrap();
    }
    std::fs::write(world.path("pairs.tsv"), pairs).unwrap();
    let papers = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/papers");
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
        paths.sort();
        paths
    };
    one(&config(
        &world,
        &papers.join("xnli/train-nli-full.toml"),
        "teacher",
    ));
    let mut found = 0;
    for path in entries(&papers).iter().flat_map(|paper| entries(paper)) {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if !(file.starts_with("train-") && file.ends_with("full.toml")) {
            continue;
        }
        found += 1;
        let name = format!("run-{found}");
        let mut config = config(&world, &path, &name);
        ends_alike(&world.path(""), &name, &mut config, UPDATES);
        assert!(config.output.join(super::checkpoint::FILE).is_file());
    }
    assert!(found >= 9, "{found}");
}
