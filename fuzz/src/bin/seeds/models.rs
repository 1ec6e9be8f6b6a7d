//! Seeds of the targets of the encoder.

use std::fs;
use std::path::{Path, PathBuf};

use laser_encoder::Config;
use laser_fuzz::{HASH, push_part};
use laser_model::base;
use laser_model::config::Base;
use laser_model::folder::{self, CONFIG, PER_TOKEN, TOKENIZER, Tensor, Tensors, WEIGHTS};

use crate::corpora::{Corpora, numbers};

/// A `tokenizer.json` of some pieces.
fn tokenizer(kind: &str) -> String {
    let vocabulary = [
        "<unk>", "</s>", "▁", "a", "b", "ab", "▁a", "t", "h", "e", "the", "##e",
    ];
    let ids: Vec<String> = vocabulary
        .iter()
        .enumerate()
        .map(|(id, piece)| format!("\"{piece}\":{id}"))
        .collect();
    let ids = ids.join(",");
    let scores: Vec<String> = vocabulary
        .iter()
        .map(|piece| format!("[\"{piece}\",-1.5]"))
        .collect();
    let scores = scores.join(",");
    let (normalizer, pre, post, model) = match kind {
        "bpe" => (
            r#"{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"}]}"#,
            r#"{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}]}"#,
            "null".to_owned(),
            format!(r#"{{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":false,"vocab":{{{ids}}},"merges":[["a","b"],["▁","a"]]}}"#),
        ),
        "unigram" => (
            r#"{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}"#,
            r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}"#,
            "null".to_owned(),
            format!(r#"{{"type":"Unigram","unk_id":0,"vocab":[{scores}],"byte_fallback":false}}"#),
        ),
        "wordpiece" => (
            r#"{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}"#,
            r#"{"type":"BertPreTokenizer"}"#,
            r#"{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"</s>","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"</s>":{"id":"</s>","ids":[1],"tokens":["</s>"]}}}"#.to_owned(),
            format!(r###"{{"type":"WordPiece","unk_token":"<unk>","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{{{ids}}}}}"###),
        ),
        _ => (
            r#"{"type":"NFC"}"#,
            r#"{"type":"WhitespaceSplit"}"#,
            "null".to_owned(),
            format!(r#"{{"type":"WordLevel","vocab":{{{ids}}},"unk_token":"<unk>"}}"#),
        ),
    };
    let added = r#"[{"id":1,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}]"#;
    format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":{added},"normalizer":{normalizer},"pre_tokenizer":{pre},"post_processor":{post},"decoder":null,"model":{model}}}"#
    )
}

pub fn models(corpora: &Corpora) {
    let tokens = 12;
    for kind in ["bpe", "unigram", "wordpiece", "words"] {
        corpora.put("tokenizer", kind, tokenizer(kind).as_bytes());
    }
    let ngrams = r#"{"lengths":[2,3],"vocabulary":["whe","st","th"]}"#;
    let with = |kind: &str| format!(r#"{{"ngrams":{ngrams},"tokenizer":{}}}"#, tokenizer(kind));
    corpora.put("tokenizer", "ngrams", with("words").as_bytes());
    corpora.put("tokenizer", "ngrams-bpe", with("bpe").as_bytes());

    let mean = r#"{"architecture":"mean","embedding_size":4,"pooling":"weighted"}"#;
    let bilstm = r#"{"architecture":"bilstm","embedding_size":4,"hidden_size":4,"layers":1,"pooling":"max","append_eos":true}"#;
    let residual = r#"{"architecture":"residual_bilstm","embedding_size":4,"pooling":"weighted","hidden_size":4,"layers":1,"state_pooling":"mean","ngrams_from":9}"#;
    let transformer = r#"{"architecture":"transformer","hidden_size":4,"layers":1,"heads":2,"intermediate_size":8,"max_positions":18,"type_vocab_size":1,"layer_norm_eps":1e-12,"activation":"gelu","norm":"post","pooling":"mean","position_offset":2,"scale_embedding":true}"#;
    let rotary = r#"{"architecture":"rotary_transformer","hidden_size":4,"layers":["local","full"],"heads":2,"key_value_heads":1,"head_size":4,"intermediate_size":8,"max_positions":16,"rms_norm_eps":1e-6,"activation":"gelu_tanh","score_scale":0.5,"rotary_base":1000000.0,"local":{"window":3,"rotary_base":10000.0},"pooling":"mean"}"#;
    let dense =
        r#","dense":[{"in":4,"out":4,"activation":"tanh","residual":true,"layer_norm":true}]"#;
    let text = r#","text":{"non_printing":"space","punctuation":"en","descape":true,"moses":{"language":"en","prefixes":["Mr"]},"romanize_greek":true,"lowercase":true,"fast_bpe":{"merges":["a b"],"vocabulary":["a@@","b"]}}"#;
    for (name, kind, dimensions, encoder, more) in [
        ("mean", "words", 4, mean, ""),
        ("bilstm", "unigram", 8, bilstm, r#","checks":["a","the"]"#),
        ("residual", "words", 4, residual, ""),
        ("transformer", "wordpiece", 4, transformer, dense),
        ("rotary", "bpe", 4, rotary, ""),
        ("prepared", "bpe", 4, mean, text),
    ] {
        let json = format!(
            r#"{{"format":1,"name":"{name}","dimensions":{dimensions},"max_tokens":16,"normalize":true,"encoder":{encoder}{more}}}"#
        );
        corpora.put("config", name, json.as_bytes());
        let config = Config::from_json(&json).expect("a configuration");
        let mut values = numbers(9);
        let mut tensors = Tensors::new();
        let mut add = |name: &str, shape: &[usize]| {
            let data = values.by_ref().take(shape.iter().product()).collect();
            tensors.insert(name.to_owned(), Tensor::f32(shape, data));
        };
        add("embed_tokens.weight", &[tokens, 4]);
        match name {
            "bilstm" | "residual" => {
                for suffix in ["l0", "l0_reverse"] {
                    add(&format!("lstm.weight_ih_{suffix}"), &[16, 4]);
                    add(&format!("lstm.weight_hh_{suffix}"), &[16, 4]);
                    add(&format!("lstm.bias_ih_{suffix}"), &[16]);
                    add(&format!("lstm.bias_hh_{suffix}"), &[16]);
                }
                if name == "residual" {
                    add("token_weight", &[tokens]);
                    add("gate", &[1]);
                    add("projection.weight", &[4, 8]);
                    add("projection.bias", &[4]);
                }
            }
            "transformer" => {
                add("embed_positions.weight", &[18, 4]);
                add("embed_types.weight", &[1, 4]);
                for norm in [
                    "embed_norm",
                    "layers.0.attention_norm",
                    "layers.0.feed_forward_norm",
                    "dense.0.norm",
                ] {
                    add(&format!("{norm}.weight"), &[4]);
                    add(&format!("{norm}.bias"), &[4]);
                }
                for part in ["query", "key", "value", "output"] {
                    add(&format!("layers.0.attention.{part}.weight"), &[4, 4]);
                    add(&format!("layers.0.attention.{part}.bias"), &[4]);
                }
                add("layers.0.feed_forward.up.weight", &[8, 4]);
                add("layers.0.feed_forward.up.bias", &[8]);
                add("layers.0.feed_forward.down.weight", &[4, 8]);
                add("layers.0.feed_forward.down.bias", &[4]);
                add("dense.0.weight", &[4, 4]);
                add("dense.0.bias", &[4]);
            }
            "rotary" => {
                add("final_norm.weight", &[4]);
                for layer in 0..2 {
                    for (part, rows, columns) in [
                        ("attention.query", 8, 4),
                        ("attention.key", 4, 4),
                        ("attention.value", 4, 4),
                        ("attention.output", 4, 8),
                        ("feed_forward.gate", 8, 4),
                        ("feed_forward.up", 8, 4),
                        ("feed_forward.down", 4, 8),
                    ] {
                        add(&format!("layers.{layer}.{part}.weight"), &[rows, columns]);
                    }
                    for norm in [
                        "attention_norm",
                        "attention_output_norm",
                        "feed_forward_norm",
                        "feed_forward_output_norm",
                        "attention.query_norm",
                        "attention.key_norm",
                    ] {
                        add(&format!("layers.{layer}.{norm}.weight"), &[4]);
                    }
                }
            }
            _ => add("token_weight", &[tokens]),
        }
        let tokenizer = tokenizer(kind);
        let stored = |form: &str, tensors: &Tensors| {
            let out = laser_fuzz::folder().join(format!("{name}-{form}"));
            folder::write_parts(&out, &config, &tokenizer, tensors).expect("a model");
            let mut bytes = vec![0];
            for part in [TOKENIZER, CONFIG] {
                let read = fs::read_to_string(out.join(part)).expect("a file");
                // Without white space, which is most of a printed configuration.
                let json: serde_json::Value = serde_json::from_str(&read).expect("JSON");
                push_part(&mut bytes, json.to_string().as_bytes());
            }
            bytes.extend(fs::read(out.join(WEIGHTS)).expect("a file"));
            corpora.put("model", &format!("{name}-{form}"), &bytes);
        };
        stored("f32", &tensors);
        let table = tensors["embed_tokens.weight"].clone();
        let (codes, scale) = table.to_i8();
        tensors.insert("embed_tokens.weight".into(), codes);
        tensors.insert("embed_tokens.weight.scale".into(), scale);
        stored("i8", &tensors);
        if name == "residual" {
            let mean = r#"{"format":1,"name":"m","dimensions":4,"max_tokens":16,"normalize":true,"encoder":{"architecture":"mean","embedding_size":4,"pooling":"weighted"}}"#;
            let (theirs, own): (Tensors, Tensors) = tensors
                .clone()
                .into_iter()
                .partition(|(name, _)| PER_TOKEN.contains(&name.as_str()));
            let base = laser_fuzz::folder().join("base");
            let mean_config = Config::from_json(mean).expect("a configuration");
            folder::write_parts(&base, &mean_config, &tokenizer, &theirs).expect("a model");
            let mut on_base = config.clone();
            let fingerprint = base::hex(&folder::fingerprint(&base).expect("a hash"));
            on_base.base = Some(Base {
                model: "base".into(),
                fingerprint: fingerprint.clone(),
            });
            let out = laser_fuzz::folder().join("on-base");
            folder::write_parts(&out, &on_base, "", &own).expect("a model");
            let mut bytes = vec![128];
            push_part(&mut bytes, tokenizer.as_bytes());
            let read = fs::read_to_string(out.join(CONFIG)).expect("a file");
            let read: serde_json::Value = serde_json::from_str(&read).expect("JSON");
            push_part(
                &mut bytes,
                read.to_string().replace(&fingerprint, HASH).as_bytes(),
            );
            for name in [CONFIG, WEIGHTS] {
                push_part(&mut bytes, &fs::read(base.join(name)).expect("a file"));
            }
            bytes.extend(fs::read(out.join(WEIGHTS)).expect("a file"));
            corpora.put("model", "residual-on-base", &bytes);
        }
        if name == "mean" {
            tensors.remove("embed_tokens.weight.scale");
            tensors.insert("embed_tokens.weight".into(), table.to_bf16());
            stored("bf16", &tensors);
        }
    }
}

/// Largest file of the fixtures that becomes a seed.
const LARGEST: u64 = 64 << 10;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).expect("fixtures");
    let mut entries: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

pub fn checkpoints(corpora: &Corpora, fixtures: &Path) {
    for (number, name) in [
        (1, "laser2-bpe"),
        (0, "laser1"),
        (2, "laser3"),
        (3, "labse"),
        (3, "embedding-gemma"),
        (3, "bert-mean"),
    ] {
        let folder = fixtures.join(name);
        let mut paths = Vec::new();
        files(&folder, &mut paths);
        let mut archive = vec![number, 0];
        for path in paths {
            let file = path
                .strip_prefix(&folder)
                .expect("below")
                .to_str()
                .expect("UTF-8");
            let ours = ["expected.json", "moses.json", "greek.json", ".keep"];
            let large = fs::metadata(&path).expect("a file").len() > LARGEST;
            if large || ours.iter().any(|ours| file.ends_with(ours)) {
                continue;
            }
            let bytes = fs::read(&path).expect("a file");
            push_part(&mut archive, file.as_bytes());
            push_part(&mut archive, &bytes);
            match path.extension().and_then(|e| e.to_str()) {
                Some("pt" | "bin") => corpora.put(
                    "checkpoint",
                    &format!("{name}-{}", file.replace('/', "-")),
                    &bytes,
                ),
                Some("spm") => corpora.put("sentencepiece", name, &bytes),
                _ => {}
            }
        }
        corpora.put("import", name, &archive);
    }
}
