//! Import of small checkpoints in the layouts of published ones, against what PyTorch computed from
//! them (see `fixtures/make.py`), and of broken ones; of published weights where LASER1_DIR,
//! LASER2_DIR, LASER3_DIR or LABSE_DIR say where they are.

#[path = "../../tests/src/skipped.rs"]
mod skipped;

use std::path::{Path, PathBuf};

use laser_encoder::{DeviceChoice, Encoder, EncoderError, LoadOptions, Precision, Purpose, verify};
use laser_import::{Kind, Options, Report, Table};
use laser_model::ModelError;
use laser_model::config::{Architecture, Reach, Task};
use laser_model::tokenize::SECOND;
use laser_protocol::Role;
use proptest::prelude::*;
use serde::Deserialize;
use skipped::skipped;
use tempfile::TempDir;

#[derive(Deserialize)]
struct Expected {
    texts: Vec<String>,
    ids: Vec<Vec<u32>>,
    embeddings: Vec<Vec<f32>>,
}

/// Imports a checkpoint and loads the result.
fn import(
    source: &Path,
    kind: Option<Kind>,
    out: &Path,
    options: &Options,
) -> Result<Report, EncoderError> {
    let report = laser_import::import(source, kind, out, options)?;
    verify(out)?;
    Ok(report)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/import/tests/fixtures")
        .join(name)
}

fn load(folder: &Path) -> Encoder {
    let options = LoadOptions {
        device: DeviceChoice::Cpu,
        precision: Precision::F32,
        threads: 1,
    };
    Encoder::load(folder, &options).unwrap()
}

/// Imports a fixture and compares ids and embeddings with the original's.
fn check(name: &str, kind: Kind, options: &Options) -> (TempDir, Encoder) {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("model");
    // The kind is found without being told.
    let report = import(&fixture(name), None, &out, options).unwrap();
    assert_eq!(report.kind, kind);
    assert_eq!(report.config.name, "model");
    let expected: Expected =
        serde_json::from_slice(&std::fs::read(fixture(name).join("expected.json")).unwrap())
            .unwrap();
    let encoder = load(&out);
    let texts: Vec<&str> = expected.texts.iter().map(String::as_str).collect();
    let tokens = encoder.tokenize(&texts).unwrap();
    let embeddings = encoder.encode(&texts).unwrap();
    for (i, text) in texts.iter().enumerate() {
        // Pieces outside of the dictionary have ids of their own, with the unknown token's
        // embedding.
        let size = expected.ids.iter().flatten().max().unwrap();
        let ids: Vec<u32> = tokens[i].ids.clone();
        assert_eq!(ids.len(), expected.ids[i].len(), "{name}: {text}: {ids:?}");
        for (a, b) in ids.iter().zip(&expected.ids[i]) {
            assert!(
                a == b || (*b == 3 && a > size),
                "{name}: {text}: {ids:?} {:?}",
                expected.ids[i]
            );
        }
        for (a, b) in embeddings.row(i).iter().zip(&expected.embeddings[i]) {
            assert!((a - b).abs() < 1e-5, "{name}: {text}: {a} {b}");
        }
    }
    (dir, encoder)
}

#[test]
fn laser2_unigram_in_a_zip() {
    let (_dir, encoder) = check("laser2", Kind::Laser2, &Options::default());
    assert!(!encoder.config().normalize);
    assert_eq!(encoder.dimensions(), 16);
}

#[test]
fn laser2_bpe_in_a_zip() {
    check("laser2-bpe", Kind::Laser2, &Options::default());
}

#[test]
fn laser1_in_the_legacy_container() {
    let options = Options {
        prefixes: Some(fixture("laser1/nonbreaking_prefix.en")),
        ..Options::default()
    };
    check("laser1", Kind::Laser1, &options);
}

fn words_of(language: &str, dictionary: &str) -> Options {
    Options {
        language: Some(language.into()),
        dictionary: Some(fixture(dictionary)),
        ..Options::default()
    }
}

#[test]
fn options_that_would_be_ignored_are_errors() {
    let dir = TempDir::new().unwrap();
    let error = |source: &str, options: &Options| {
        import(&fixture(source), None, &dir.path().join("out"), options)
            .unwrap_err()
            .to_string()
    };
    let german = Options {
        language: Some("de".into()),
        ..Options::default()
    };
    for source in ["laser2", "laser3"] {
        let message = error(source, &german);
        assert!(
            message.contains("option \"language\" is for LASER1"),
            "{message}"
        );
    }
    let message = error("laser1", &words_of("de", "laser1-zh/dict.txt"));
    assert!(message.contains("uses no dictionary"), "{message}");
    assert!(!dir.path().join("out").exists());
}

#[cfg(feature = "jieba")]
#[test]
fn laser1_with_chinese_words() {
    let options = words_of("zh", "laser1-zh/dict.txt");
    let (dir, encoder) = check("laser1-zh", Kind::Laser1, &options);
    // The dictionary takes part in the fingerprint, and a damaged one is refused.
    let path = dir.path().join("model/dictionary.bin");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = Encoder::load(&dir.path().join("model"), &LoadOptions::default());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("dictionary.bin"), "{error}");
    let changed = laser_model::folder::fingerprint(&dir.path().join("model")).unwrap();
    assert_ne!(changed, encoder.fingerprint());
}

#[cfg(feature = "mecab")]
#[test]
fn laser1_with_japanese_words() {
    let options = words_of("ja", "laser1-ja/mecab");
    check("laser1-ja", Kind::Laser1, &options);
}

#[cfg(all(feature = "jieba", feature = "mecab"))]
#[test]
fn dictionaries_of_words_are_checked() {
    let dir = TempDir::new().unwrap();
    let error = |options: &Options| {
        import(
            &fixture("laser1-zh"),
            None,
            &dir.path().join("out"),
            options,
        )
        .unwrap_err()
        .to_string()
    };
    let without = Options {
        language: Some("yue".into()),
        ..Options::default()
    };
    let message = error(&without);
    assert!(message.contains("needs a dictionary"), "{message}");
    let foreign = words_of("zh", "laser1-ja/mecab/char.def");
    let message = error(&foreign);
    assert!(message.contains("char.def"), "{message}");
    let message = error(&words_of("ja", "laser1-zh"));
    assert!(message.contains("\".csv\""), "{message}");
    let mecab = dir.path().join("mecab");
    std::fs::create_dir(&mecab).unwrap();
    for file in ["words.csv", "matrix.def", "char.def", "unk.def"] {
        std::fs::copy(fixture("laser1-ja/mecab").join(file), mecab.join(file)).unwrap();
    }
    for (file, content, expected) in [
        ("words.csv", &b"\xa4\xa2,1,1,5,x\n"[..], "UTF-8"),
        ("words.csv", b"a,9,9,5,x\n", "mecab"),
        ("matrix.def", b"60000 60000\n", "matrix.def"),
        ("unk.def", b"\n", "unk.def"),
        ("char.def", b"DEFAULT 0 1 0\n", "mecab"),
    ] {
        let kept = std::fs::read(mecab.join(file)).unwrap();
        std::fs::write(mecab.join(file), content).unwrap();
        let options = Options {
            dictionary: Some(mecab.clone()),
            ..words_of("ja", "")
        };
        let message = error(&options);
        assert!(message.contains(expected), "{file}: {message}");
        std::fs::write(mecab.join(file), kept).unwrap();
    }
}

#[test]
fn labse_with_dense_layer() {
    let (_dir, encoder) = check("labse", Kind::SentenceTransformer, &Options::default());
    assert!(encoder.config().normalize);
    assert_eq!(encoder.config().max_tokens, 36);
}

#[test]
fn bert_with_mean_pooling_from_bin() {
    check("bert-mean", Kind::SentenceTransformer, &Options::default());
}

#[test]
fn distilbert_has_no_token_types() {
    let (_dir, encoder) = check("distilbert", Kind::SentenceTransformer, &Options::default());
    assert_eq!(encoder.config().max_tokens, 36);
}

/// One of its texts has tokens in all buckets of distances.
#[test]
fn mpnet_has_relative_positions() {
    check("mpnet", Kind::SentenceTransformer, &Options::default());
    let error = broken("mpnet", "config.json", |b| {
        replace(b, b"num_buckets\": 32", b"num_buckets\": 64")
    });
    assert!(error.contains("num_buckets\" is 64, not 32"), "{error}");
    let error = broken("mpnet", "config.json", |b| {
        replace(b, b"\"mpnet\"", b"\"gpnet\"")
    });
    assert!(
        error.contains("\"gpnet\" is not supported") && error.contains("distilbert"),
        "{error}"
    );
}

/// Bytes have tokens: none is unknown.
#[test]
fn roberta_has_a_tokenizer_of_bytes() {
    let (_dir, encoder) = check("roberta", Kind::SentenceTransformer, &Options::default());
    assert_eq!(encoder.config().max_tokens, 50);
    assert!(encoder.config().normalize);
}

/// What stands before a text by its role becomes a part of it, as where the prompt is written out.
fn check_roles(name: &str, encoder: &Encoder, query: &str, passage: &str) {
    let expected: Expected =
        serde_json::from_slice(&std::fs::read(fixture(name).join("expected.json")).unwrap())
            .unwrap();
    let text = &expected.texts[1];
    for (role, prefix) in [(Role::Query, query), (Role::Passage, passage)] {
        let with = expected
            .texts
            .iter()
            .position(|other| *other == format!("{prefix}{text}"));
        let tokens = encoder.tokenize_for(&Purpose::Embed(role), text).unwrap();
        assert_eq!(tokens.ids, expected.ids[with.unwrap()], "{name}: {role:?}");
    }
    assert!(matches!(
        encoder.check(&Purpose::Embed(Role::Undecided)),
        Err(ModelError::Undecided)
    ));
}

#[test]
fn e5_is_an_xlm_roberta_with_prompts() {
    let (_dir, encoder) = check("e5", Kind::SentenceTransformer, &Options::default());
    assert!(encoder.config().normalize);
    check_roles("e5", &encoder, "query: ", "passage: ");
}

/// One of its texts is longer than what a token of a local layer sees.
#[test]
fn embedding_gemma_has_rotary_positions() {
    let name = "embedding-gemma";
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("model");
    let report = import(&fixture(name), None, &out, &Options::default()).unwrap();
    assert!(report.notes[0].contains("<image_soft_token>"), "{report:?}");
    let (_dir, encoder) = check(name, Kind::SentenceTransformer, &Options::default());
    let Architecture::RotaryTransformer(c) = &encoder.config().encoder else {
        panic!("{:?}", encoder.config().encoder)
    };
    assert_eq!(c.layers, [Reach::Local, Reach::Full, Reach::Local]);
    assert_eq!(c.local.unwrap().window, 5);
    assert_eq!(encoder.config().dense.len(), 2);
    check_roles(
        name,
        &encoder,
        "task: search result | query: ",
        "title: none | text: ",
    );
    let expected: Expected =
        serde_json::from_slice(&std::fs::read(fixture(name).join("expected.json")).unwrap())
            .unwrap();
    let exact = encoder.encode_ids(&expected.ids).unwrap();
    let differences = exact.data.iter().zip(expected.embeddings.iter().flatten());
    let largest = differences.map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    println!("{name}: f32 differs by {largest:e}");
    for (precision, least) in [
        (Precision::Auto, 0.9995),
        (Precision::Bf16, 0.999),
        (Precision::I8, 0.995),
    ] {
        let options = LoadOptions {
            device: DeviceChoice::Cpu,
            precision,
            threads: 1,
        };
        let rounded = Encoder::load(&out, &options).unwrap();
        let found = rounded.encode_ids(&expected.ids).unwrap();
        let cosines = found.rows().zip(&expected.embeddings);
        let smallest = cosines.map(|(a, b)| cosine(a, b)).fold(1.0, f64::min);
        println!(
            "{name}: {precision:?} is {:?}, cosine {smallest}",
            rounded.precision()
        );
        assert!(smallest >= least, "{precision:?}: {smallest}");
    }
}

/// A JSON file with other fields.
fn edited(
    bytes: &[u8],
    edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
) -> Vec<u8> {
    let mut json: serde_json::Value = serde_json::from_slice(bytes).unwrap();
    edit(json.as_object_mut().unwrap());
    serde_json::to_vec(&json).unwrap()
}

/// What cannot be computed is refused, by the name of the key.
#[test]
fn other_gemmas_are_refused() {
    for (key, value, expected) in [
        (
            "use_bidirectional_attention",
            "false",
            "use_bidirectional_attention\" is not true",
        ),
        ("use_bidirectional_attention", "null", "is not true"),
        (
            "layer_types",
            r#"["sliding_attention", "chunked_attention", "full_attention"]"#,
            "layer type \"chunked_attention\" is not supported",
        ),
        (
            "layer_types",
            r#"["full_attention"]"#,
            "no list of 3 layers",
        ),
        (
            "rope_scaling",
            r#"{"rope_type": "linear", "factor": 8.0}"#,
            "rotary positions that are scaled",
        ),
        (
            "rope_parameters",
            r#"{"full_attention": {"rope_type": "yarn", "rope_theta": 1e6}}"#,
            "rotary positions that are scaled",
        ),
        (
            "rope_parameters",
            r#"{"rope_type": "default", "rope_theta": 1e6}"#,
            "\"rope_parameters\" has no \"full_attention\"",
        ),
        ("attn_logit_softcapping", "50.0", "attn_logit_softcapping"),
        ("attention_bias", "true", "attention_bias"),
        ("hidden_activation", "\"silu\"", "activation \"silu\""),
        (
            "query_pre_attn_scalar",
            "-1",
            "score_scale must be positive",
        ),
        ("num_key_value_heads", "3", "self_attn.k_proj.weight"),
        ("head_dim", "9", "self_attn.q_proj.weight"),
    ] {
        let value: serde_json::Value = serde_json::from_str(value).unwrap();
        let error = broken("embedding-gemma", "config.json", |bytes| {
            edited(&bytes, |fields| {
                fields.insert(key.to_owned(), value.clone());
            })
        });
        assert!(error.contains(expected), "{key}: {value}: {error}");
    }
}

/// Files of transformers before version 5 have other keys for positions, and may have no list of layers.
#[test]
fn older_gemma_configurations_mean_the_same() {
    let dir = changed("embedding-gemma", "config.json", |bytes| {
        edited(&bytes, |fields| {
            fields.remove("rope_parameters").expect("of version 5");
            fields.insert("rope_theta".into(), 1e6.into());
            fields.insert("rope_local_base_freq".into(), 1e4.into());
            fields.insert("rope_scaling".into(), serde_json::Value::Null);
        })
    });
    let import = |source: &Path| {
        let out = dir.path().join("out");
        laser_import::import(source, None, &out, &Options::default())
    };
    let source = dir.path().join("source");
    let new = import(&fixture("embedding-gemma")).unwrap().config;
    assert_eq!(import(&source).unwrap().config, new);
    let path = source.join("config.json");
    let without_list = edited(&std::fs::read(&path).unwrap(), |fields| {
        fields.remove("layer_types").expect("a list");
        fields.insert("sliding_window_pattern".into(), 2.into());
    });
    std::fs::write(&path, without_list).unwrap();
    assert_eq!(import(&source).unwrap().config, new);
}

#[derive(Deserialize)]
struct Scored {
    pairs: Vec<(String, String)>,
    ids: Vec<Vec<u32>>,
    scores: Vec<f32>,
}

/// Pairs get the logits of the original, in all instructions alike; nothing else is asked of such a model.
#[test]
fn cross_encoders_score_pairs() {
    for name in [
        "cross-bert",
        "cross-distilbert",
        "cross-mpnet",
        "cross-xlm-roberta",
    ] {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("model");
        let report = import(&fixture(name), None, &out, &Options::default()).unwrap();
        assert_eq!(report.kind, Kind::CrossEncoder);
        assert_eq!(report.config.task, Task::Rerank);
        assert_eq!(report.config.max_tokens, 40, "{name}");
        let expected: Scored =
            serde_json::from_slice(&std::fs::read(fixture(name).join("expected.json")).unwrap())
                .unwrap();
        let encoder = load(&out);
        let mut ids = Vec::new();
        for ((query, text), expected) in expected.pairs.iter().zip(&expected.ids) {
            let purpose = Purpose::Rerank(query.as_str().into());
            let tokens = encoder.tokenize_for(&purpose, text).unwrap();
            let plain: Vec<u32> = tokens.ids.iter().map(|id| id & !SECOND).collect();
            assert_eq!(plain, *expected, "{name}: {query}: {text}");
            assert_eq!(
                tokens.truncated,
                query.len() + text.len() > 150,
                "{query}: {text}"
            );
            ids.push(tokens.ids);
        }
        let found = encoder.encode_ids(&ids).unwrap();
        assert_eq!(found.dimensions, 1);
        for (i, (a, b)) in found.data.iter().zip(&expected.scores).enumerate() {
            assert!(
                (a - b).abs() < 1e-5,
                "{name}: {:?}: {a} {b}",
                expected.pairs[i]
            );
        }
        let purpose = Purpose::Embed(Role::Plain);
        assert!(matches!(encoder.check(&purpose), Err(ModelError::Reranker)));
        let error = encoder.encode(&["a text"]).err().unwrap();
        assert!(matches!(error, EncoderError::Model(ModelError::Reranker)));
        for precision in [Precision::Auto, Precision::I8, Precision::Bf16] {
            let options = LoadOptions {
                device: DeviceChoice::Cpu,
                precision,
                threads: 1,
            };
            let rounded = Encoder::load(&out, &options)
                .unwrap()
                .encode_ids(&ids)
                .unwrap();
            for (a, b) in rounded.data.iter().zip(&expected.scores) {
                assert!((a - b).abs() < 0.1, "{name}: {precision:?}: {a} {b}");
            }
        }
    }
    let error = broken("cross-bert", "config.json", |b| {
        let text = String::from_utf8(b).unwrap();
        let labels = text.replace(
            "\"0\": \"LABEL_0\"",
            "\"0\": \"LABEL_0\", \"1\": \"LABEL_1\"",
        );
        assert_ne!(labels, text);
        labels.into_bytes()
    });
    assert!(error.contains("2 labels"), "{error}");
}

#[test]
fn laser3_transformers() {
    check("laser3", Kind::Laser3, &Options::default());
    check("laser3-max", Kind::Laser3, &Options::default());
}

#[test]
fn tables_can_be_made_smaller() {
    let dir = TempDir::new().unwrap();
    let mut embeddings = Vec::new();
    for (i, table) in [Table::F32, Table::F16, Table::I8].into_iter().enumerate() {
        let out = dir.path().join(i.to_string());
        let options = Options {
            table,
            normalize: Some(true),
            ..Options::default()
        };
        import(&fixture("laser2"), Some(Kind::Laser2), &out, &options).unwrap();
        embeddings.push(load(&out).encode(&["to be or not to be"]).unwrap().data);
    }
    for other in &embeddings[1..] {
        let cosine: f32 = embeddings[0].iter().zip(other).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.999 && cosine < 1.001, "{cosine}");
    }
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let copy = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_tree(&path, &copy);
        } else {
            std::fs::copy(&path, copy).unwrap();
        }
    }
}

/// Copies a fixture to `source` below a folder and changes one of its files, or adds one.
fn changed(name: &str, file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> TempDir {
    let dir = TempDir::new().unwrap();
    let source = dir.path().join("source");
    copy_tree(&fixture(name), &source);
    let path = source.join(file);
    let changed = change(std::fs::read(&path).unwrap_or_default());
    std::fs::write(&path, changed).unwrap();
    dir
}

/// What the import of such a copy says.
fn broken(name: &str, file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> String {
    let dir = changed(name, file, change);
    let (source, out) = (dir.path().join("source"), dir.path().join("out"));
    let error = import(&source, None, &out, &Options::default())
        .unwrap_err()
        .to_string();
    assert!(!out.exists(), "nothing is left behind");
    error
}

fn replace(bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes
        .windows(from.len())
        .position(|w| w == from)
        .expect("the bytes are there");
    let mut bytes = bytes;
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[test]
fn a_checkpoint_of_one_direction() {
    // Of its first layer alone the fixture can be read as either.
    let one_layer = |b| replace(b, b"num_layersq\x07K\x02", b"num_layersq\x07K\x01");
    let forward = |b| replace(b, b"bidirectionalq\x08\x88", b"bidirectionalq\x08\x89");
    let embeddings = |dir: TempDir| {
        let (source, out) = (dir.path().join("source"), dir.path().join("out"));
        import(&source, None, &out, &Options::default()).unwrap();
        load(&out).encode(&["to be or not to be"]).unwrap().data
    };
    let both = embeddings(changed("laser2", "laser2.pt", one_layer));
    let one = embeddings(changed("laser2", "laser2.pt", |b| forward(one_layer(b))));
    assert_eq!(one, both[..both.len() / 2]);
    let error = broken("laser2", "laser2.pt", forward);
    assert!(error.contains("lstm.weight_ih_l1"), "{error}");
}

#[test]
fn errors_name_the_key_or_tensor() {
    for (name, file) in [("laser2", "laser2.pt"), ("laser1", "laser1.pt")] {
        let error = broken(name, file, |b| b[..b.len() / 2].to_vec());
        assert!(
            error.contains(file) && error.contains("truncated") && error.contains("download"),
            "{error}"
        );
        let error = broken(name, file, |b| replace(b, b"weight_hh_l1", b"weight_xx_l1"));
        assert!(
            error.contains("lstm.weight_hh_l1") && error.contains("missing"),
            "{error}"
        );
        let error = broken(name, file, |b| replace(b, b"hidden_size", b"hidden_sise"));
        assert!(error.contains("hidden_size"), "{error}");
        let error = broken(name, file, |_| b"not a checkpoint".to_vec());
        assert!(error.contains("PyTorch"), "{error}");
        let error = broken(name, file, |b| replace(b, b"dictionary", b"dictionarx"));
        assert!(error.contains("dictionary"), "{error}");
    }
    let error = broken("laser1", "laser1.pt", |b| b[..b.len() - 1].to_vec());
    assert!(error.contains("tensor \""), "{error}");
    let error = broken("laser2", "laser2.spm", |b| b[..b.len() - 3].to_vec());
    assert!(error.contains("laser2.spm"), "{error}");
    let error = broken("laser3", "laser3.pt", |b| {
        replace(b, b"layers.1.fc2.bias", b"layers.1.fc3.bias")
    });
    assert!(error.contains("layers.1.fc2.bias"), "{error}");
    let labse = |file, from: &str, to: &str| {
        broken("labse", file, |b| {
            let text = String::from_utf8(b).unwrap();
            assert!(text.contains(from), "{file}: {from}");
            text.replace(from, to).into_bytes()
        })
    };
    for (file, from, to, expected) in [
        (
            "config.json",
            "hidden_size\": 16",
            "hidden_size\": 4294967295",
            "word_embeddings",
        ),
        (
            "config.json",
            "hidden_size\": 16",
            "hidden_size\": 18446744073709551615",
            "hidden_size",
        ),
        (
            "config.json",
            "hidden_size\": 16",
            "hidden_size\": 0",
            "word_embeddings",
        ),
        (
            "config.json",
            "num_attention_heads\": 2",
            "num_attention_heads\": 3",
            "heads",
        ),
        ("config.json", "{", "", "config.json"),
        (
            "sentence_bert_config.json",
            "{",
            "",
            "sentence_bert_config.json",
        ),
        (
            "sentence_bert_config.json",
            "36",
            "\"36\"",
            "max_seq_length",
        ),
        (
            "2_Dense/config.json",
            "in_features",
            "in_feature",
            "in_features",
        ),
        (
            "1_Pooling/config.json",
            "cls_token\": true",
            "lasttoken\": true",
            "lasttoken",
        ),
        ("vocab.txt", "[CLS]", "[CLS]\n[NEW]", "embed_tokens.weight"),
        ("vocab.txt", "[SEP]", "[SEQ]", "[SEP]"),
    ] {
        let error = labse(file, from, to);
        assert!(error.contains(expected), "{file}: {from}: {error}");
    }
    let error = broken("labse", "model.safetensors", |b| b[..b.len() - 1].to_vec());
    assert!(error.contains("model.safetensors"), "{error}");
    let error = broken("labse", "2_Dense/pytorch_model.bin", |b| {
        b[..b.len() / 2].to_vec()
    });
    assert!(error.contains("pytorch_model.bin"), "{error}");
    let error = broken("labse", "tokenizer.json", |_| b"{\"model\": 3}".to_vec());
    assert!(error.contains("tokenizer"), "{error}");
    let error = import(&fixture(""), None, Path::new("never"), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("no known checkpoint"), "{error}");
}

/// LASER's scripts download everything into one folder.
#[test]
fn one_of_several_checkpoints_is_named() {
    let dir = TempDir::new().unwrap();
    for (fixed, copy) in [
        ("laser1/laser1.pt", "bilstm.93langs.2018-12-26.pt"),
        ("laser1/codes.fcodes", "93langs.fcodes"),
        ("laser1/vocab.fvocab", "93langs.fvocab"),
        ("laser1/laser1.pt", "bilstm.eparl21.2018-11-19.pt"),
        ("laser1/codes.fcodes", "eparl21.fcodes"),
        ("laser1/vocab.fvocab", "eparl21.fvocab"),
        ("laser2/laser2.pt", "laser2.pt"),
        ("laser2/laser2.spm", "laser2.spm"),
        ("laser3/laser3.pt", "laser3-wol_Latn.v1.pt"),
        ("laser3/laser3.spm", "laser3-wol_Latn.v1.spm"),
        ("laser3/laser3.cvocab", "laser3-wol_Latn.v1.cvocab"),
    ] {
        std::fs::copy(fixture(fixed), dir.path().join(copy)).unwrap();
    }
    for (file, kind, name) in [
        ("bilstm.93langs.2018-12-26.pt", Kind::Laser1, "laser1"),
        ("laser2.pt", Kind::Laser2, "laser2"),
        ("laser3-wol_Latn.v1.pt", Kind::Laser3, "laser3"),
    ] {
        let out = dir.path().join(name);
        let report = import(&dir.path().join(file), None, &out, &Options::default()).unwrap();
        assert_eq!(report.kind, kind, "{file}");
    }
    let error = import(
        dir.path(),
        None,
        &dir.path().join("all"),
        &Options::default(),
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("one \".pt\" file") && error.contains("laser2.pt"),
        "{error}"
    );
    let error = import(
        dir.path(),
        Some(Kind::Laser2),
        &dir.path().join("all"),
        &Options::default(),
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("name the checkpoint's \".pt\" file"),
        "{error}"
    );
}

#[test]
fn sentence_transformers_may_lower_texts() {
    let dir = TempDir::new().unwrap();
    let source = dir.path().join("source");
    copy_tree(&fixture("labse"), &source);
    std::fs::write(
        source.join("sentence_bert_config.json"),
        r#"{"max_seq_length": null, "do_lower_case": true}"#,
    )
    .unwrap();
    let out = dir.path().join("model");
    import(&source, None, &out, &Options::default()).unwrap();
    let encoder = load(&out);
    assert_eq!(encoder.config().max_tokens, 40);
    let tokens = encoder.tokenize(&["The Dog", "the dog"]).unwrap();
    assert_eq!(tokens[0], tokens[1]);
}

#[test]
fn prompts_become_prefixes() {
    let dir = TempDir::new().unwrap();
    let source = dir.path().join("source");
    copy_tree(&fixture("labse"), &source);
    let out = dir.path().join("model");
    let prefixes = |prompts: &str, options: &Options| {
        std::fs::write(source.join("config_sentence_transformers.json"), prompts).unwrap();
        let report = import(&source, None, &out, options)?;
        let written = load(&out).config().prefixes.clone();
        assert_eq!(written, report.config.prefixes);
        Ok::<_, EncoderError>((written.query, written.passage, report.notes.len()))
    };
    let none = Options::default();
    let e5 =
        r#"{"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": null}"#;
    let found = prefixes(e5, &none).unwrap();
    assert_eq!(found, ("query: ".into(), "passage: ".into(), 0));
    let before = laser_model::folder::fingerprint(&out).unwrap();
    let document = r#"{"prompts": {"query": "q: ", "document": "title: none | text: ", "STS": "x"},
        "default_prompt_name": "document"}"#;
    let found = prefixes(document, &none).unwrap();
    assert_eq!(found, ("q: ".into(), "title: none | text: ".into(), 1));
    assert_ne!(before, laser_model::folder::fingerprint(&out).unwrap());
    let options = Options {
        query_prefix: Some(String::new()),
        passage_prefix: Some("p: ".into()),
        ..Options::default()
    };
    assert_eq!(
        prefixes(e5, &options).unwrap(),
        (String::new(), "p: ".into(), 0)
    );
    assert_eq!(
        prefixes("{}", &none).unwrap(),
        (String::new(), String::new(), 0)
    );
    let error = prefixes(r#"{"prompts": {"query": 3}}"#, &none).unwrap_err();
    assert!(
        error.to_string().contains("\"query\" is no string"),
        "{error}"
    );
    let long = Options {
        query_prefix: Some("x".repeat(5000)),
        ..Options::default()
    };
    let error = prefixes("{}", &long).unwrap_err();
    assert!(
        error.to_string().contains("prefixes.query is 5000"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn damaged_checkpoints_never_panic(
        which in 0usize..2,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(), cut_it: bool,
    ) {
        let (name, file) = [("laser1", "laser1.pt"), ("laser2-bpe", "laser2.pt")][which];
        let mut bytes = std::fs::read(fixture(name).join(file)).unwrap();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if cut_it {
            bytes.truncate(cut.index(bytes.len()));
        }
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("x.pt");
        std::fs::write(&path, bytes).unwrap();
        if let Ok(checkpoint) = laser_import::torch::Checkpoint::open(&path) {
            let root = checkpoint.pickle.root();
            if let Some(model) = checkpoint.pickle.get(root, "model")
                && let Ok(tensors) = checkpoint.tensors(model)
            {
                for (name, id) in tensors {
                    let _ = checkpoint.tensor(&name, id);
                }
            }
        }
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The published weights give the published cosines. Runs when LASER2_DIR names the folder with
/// `laser2.pt` and `laser2.spm`.
#[test]
fn laser2_reference_cosines() {
    let Some(source) = std::env::var_os("LASER2_DIR") else {
        skipped("LASER2's published cosines", "LASER2_DIR is not set");
        return;
    };
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("laser2");
    import(
        Path::new(&source),
        Some(Kind::Laser2),
        &out,
        &Options::default(),
    )
    .unwrap();
    let e = load(&out)
        .encode(&[
            "to be or not to be",
            "être ou ne pas être",
            "i want to go biking",
            "je veux faire du vélo",
        ])
        .unwrap();
    for (i, j, expected) in [
        (0, 1, 0.9614),
        (0, 2, 0.4412),
        (0, 3, 0.3923),
        (1, 2, 0.4110),
        (1, 3, 0.3935),
        (2, 3, 0.6960),
    ] {
        let actual = cosine(e.row(i), e.row(j));
        assert!(
            (actual - expected).abs() < 1e-4,
            "{i} {j}: {actual}, published {expected}"
        );
    }
}

/// LaBSE puts translations close. Runs when LABSE_DIR names the sentence-transformers folder.
#[test]
fn labse_finds_translations() {
    let Some(source) = std::env::var_os("LABSE_DIR") else {
        skipped("LaBSE's published weights", "LABSE_DIR is not set");
        return;
    };
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("labse");
    import(Path::new(&source), None, &out, &Options::default()).unwrap();
    let e = load(&out)
        .encode(&["dog", "Hund", "The weather is nice."])
        .unwrap();
    assert_eq!(e.dimensions, 768);
    assert!(cosine(e.row(0), e.row(1)) > 0.8);
    assert!(cosine(e.row(0), e.row(2)) < 0.5);
}

/// A model with the weights of the folder that the variable names, if it is set.
fn published(variable: &str, kind: Kind, options: &Options) -> Option<(TempDir, Encoder)> {
    let Some(source) = std::env::var_os(variable) else {
        skipped(
            &format!("{kind:?}'s published weights"),
            &format!("{variable} is not set"),
        );
        return None;
    };
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("model");
    import(Path::new(&source), Some(kind), &out, options).unwrap();
    let encoder = load(&out);
    Some((dir, encoder))
}

/// LASER1 puts translations close. Runs when LASER1_DIR names the folder, or the `.pt` file in it,
/// with the codes and the vocabulary beside it.
#[test]
fn laser1_finds_translations() {
    let Some((_dir, encoder)) = published("LASER1_DIR", Kind::Laser1, &Options::default()) else {
        return;
    };
    let e = encoder
        .encode(&[
            "The weather is nice today.",
            "Das Wetter ist heute schön.",
            "I want to go biking.",
        ])
        .unwrap();
    assert_eq!(e.dimensions, 1024);
    let (near, far) = (cosine(e.row(0), e.row(1)), cosine(e.row(0), e.row(2)));
    assert!(near > 0.7 && near > far + 0.1, "{near} {far}");
}

/// LASER3's students live in LASER2's space. Runs when LASER3_DIR names the folder, or the `.pt` file
/// in it, of the model for Swahili (`laser3-swh_Latn`), and LASER2_DIR that of its teacher.
#[test]
fn laser3_finds_translations() {
    let teacher = published("LASER2_DIR", Kind::Laser2, &Options::default());
    let student = published("LASER3_DIR", Kind::Laser3, &Options::default());
    let (Some((_dir, teacher)), Some((_other, student))) = (teacher, student) else {
        return;
    };
    let english = ["The weather is nice today.", "I want to go biking."];
    let english = teacher.encode(&english).unwrap();
    let swahili = student.encode(&["Hali ya hewa ni nzuri leo."]).unwrap();
    assert_eq!(swahili.dimensions, 1024);
    let (near, far) = (
        cosine(swahili.row(0), english.row(0)),
        cosine(swahili.row(0), english.row(1)),
    );
    assert!(near > far + 0.1, "{near} {far}");
}
