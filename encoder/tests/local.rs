//! [`LocalEncoder`]: the same embeddings as [`Encoder`], without threads. One test alone in its
//! program, so that nobody else starts threads meanwhile.

use std::path::{Path, PathBuf};

use laser_encoder::{Encoder, LoadOptions};
use laser_model::{LocalEncoder, folder};
use laser_protocol::Role;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn the_shipped_model_runs_on_one_thread_with_the_same_result() {
    let model = repository().join("encoder/models/laser-mean-384");
    let sentences = std::fs::read_to_string(repository().join("demo/sentences.tsv")).unwrap();
    let long = "a long text ".repeat(2000);
    let texts: Vec<&str> = sentences
        .lines()
        .filter_map(|line| line.rsplit('\t').next())
        .chain(["", " ", "\u{0}", &long])
        .collect();
    assert!(texts.len() > 1000);

    let before = threads();
    let local = LocalEncoder::load(&model).unwrap().expect("it is a mean");
    let dimensions = local.config().dimensions;
    let mut rows = vec![0f32; texts.len() * dimensions];
    let mut truncated = Vec::new();
    for _ in 0..2 {
        // The second time from the cache of words.
        truncated.clear();
        for (text, row) in texts.iter().zip(rows.chunks_exact_mut(dimensions)) {
            truncated.push(local.encode(text, Role::Plain, row).unwrap());
        }
    }
    assert_eq!(threads(), before, "threads were started");

    let encoder = Encoder::load(&model, &LoadOptions::default()).unwrap();
    let expected = encoder.encode(&texts).unwrap();
    assert_eq!(truncated, expected.truncated);
    assert!(rows == expected.data, "embeddings differ");
    assert_eq!(local.fingerprint(), encoder.fingerprint());
    assert_eq!(local.fingerprint(), folder::fingerprint(&model).unwrap());

    // A broken folder is an error, a model that is no mean is none for this encoder.
    let scratch = tempfile::tempdir().unwrap();
    let copy = |name: &str| std::fs::copy(model.join(name), scratch.path().join(name)).unwrap();
    copy(folder::CONFIG);
    copy(folder::TOKENIZER);
    std::fs::write(scratch.path().join(folder::WEIGHTS), b"").unwrap();
    let error = LocalEncoder::load(scratch.path())
        .err()
        .expect("damage")
        .to_string();
    assert!(error.contains(folder::WEIGHTS), "{error}");
    let mut long = local.config().clone();
    long.max_tokens = 4096;
    std::fs::write(scratch.path().join(folder::CONFIG), long.to_json()).unwrap();
    assert!(LocalEncoder::load(scratch.path()).unwrap().is_none());
}
