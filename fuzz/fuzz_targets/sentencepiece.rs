//! SentencePiece models and the tokenizers that are made of them.
#![no_main]

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use laser_fuzz::TEXTS;
use laser_import::spm::SentencePiece;
use laser_model::ngrams::read_tokenizer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Ok(model) = SentencePiece::parse(data) else { return };
    assert!(!model.pieces.is_empty());
    // A dictionary as LASER's checkpoints have it, which knows half of the pieces.
    let mut dictionary: HashMap<String, usize> = HashMap::new();
    for (piece, ..) in model.pieces.iter().step_by(2) {
        let next = dictionary.len() + 4;
        dictionary.entry(piece.clone()).or_insert(next);
    }
    let size = dictionary.len() + 4;
    for (id, token) in ["<s>", "<pad>", "</s>", "<unk>"].into_iter().enumerate() {
        dictionary.insert(token.to_owned(), id);
    }
    let Ok((json, total)) = model.to_tokenizer(&dictionary, size, 3, serde_json::Value::Null) else {
        return;
    };
    assert!(total >= size);
    let Ok((tokenizer, _)) = read_tokenizer(json.to_string().as_bytes()) else { return };
    for text in TEXTS {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            tokenizer.encode_fast(text, false).map(|encoding| encoding.len())
        }));
    }
}));
