//! A model folder: configuration and weights, loaded by both encoders.
#![no_main]

use std::fs;

use laser_encoder::{DeviceChoice, Encoder, LoadOptions, Precision};
use laser_fuzz::{TEXTS, folder, part};
use laser_model::LocalEncoder;
use laser_model::folder::{CONFIG, TOKENIZER, WEIGHTS};
use libfuzzer_sys::fuzz_target;

// Byte 0: precision; then tokenizer and configuration, each with its length; the rest are weights.
fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Some((&precision, mut data)) = data.split_first() else { return };
    let folder = folder();
    for name in [TOKENIZER, CONFIG] {
        fs::write(folder.join(name), part(&mut data)).expect("a file");
    }
    fs::write(folder.join(WEIGHTS), data).expect("a file");
    let precision = [Precision::F32, Precision::Bf16, Precision::I8][usize::from(precision) % 3];
    let options = LoadOptions { device: DeviceChoice::Cpu, precision, threads: 1 };
    if let Ok(Some(local)) = LocalEncoder::load(folder) {
        let mut out = vec![0.0; local.config().dimensions];
        for text in TEXTS {
            let _ = local.encode(text, &mut out);
        }
    }
    if let Ok(encoder) = Encoder::load(folder, &options)
        && let Ok(embeddings) = encoder.encode(&TEXTS)
    {
        assert_eq!(embeddings.rows().count(), TEXTS.len());
    }
}));
