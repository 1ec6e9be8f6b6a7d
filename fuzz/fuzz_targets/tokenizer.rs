//! `tokenizer.json`, plain and with n-grams, and words tokenised with it.
#![no_main]

use std::panic::{AssertUnwindSafe, catch_unwind};

use laser_fuzz::TEXTS;
use laser_model::ngrams::read_tokenizer;
use laser_model::words::Words;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Ok((tokenizer, ngrams)) = read_tokenizer(data) else { return };
    let words = Words::new(&tokenizer, ngrams, Some(data));
    for text in TEXTS {
        // As laser calls it: assertions of the library are caught.
        let _ = catch_unwind(AssertUnwindSafe(|| match &words {
            Ok(Some(words)) => words.encode(&tokenizer, text, 64).map(|(ids, _)| ids.len()),
            _ => tokenizer.encode_fast(text, false).map(|encoding| encoding.len()),
        }));
    }
}));
