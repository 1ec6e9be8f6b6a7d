//! A model folder: configuration and weights, loaded by both encoders.
#![no_main]

use std::fs;

use laser_encoder::{DeviceChoice, Encoder, LoadOptions, Precision};
use laser_fuzz::{HASH, TEXTS, folder, part};
use laser_model::folder::{self, CONFIG, TOKENIZER, WEIGHTS};
use laser_model::{LocalEncoder, base};
use laser_protocol::Role;
use libfuzzer_sys::fuzz_target;

// Byte 0: precision, from 128 on with a base; then tokenizer and configuration, each with its length; the
// rest are weights. The base has a configuration and weights in front of these, each with its length, and
// the tokenizer.
fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Some((&precision, mut data)) = data.split_first() else { return };
    let folder = &folder().join("model");
    let below = &laser_fuzz::folder().join("base");
    let based = precision >= 128;
    for folder in [folder, below] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir(folder).expect("a folder");
    }
    let owner = if based { below } else { folder };
    fs::write(owner.join(TOKENIZER), part(&mut data)).expect("a file");
    let mut config = part(&mut data).to_vec();
    if based {
        for name in [CONFIG, WEIGHTS] {
            fs::write(below.join(name), part(&mut data)).expect("a file");
        }
        // No input would find a hash.
        if let Ok(found) = folder::fingerprint(below) {
            let text = String::from_utf8_lossy(&config).replace(HASH, &base::hex(&found));
            config = text.into_bytes();
        }
    }
    fs::write(folder.join(CONFIG), config).expect("a file");
    fs::write(folder.join(WEIGHTS), data).expect("a file");
    let precision = [Precision::F32, Precision::Bf16, Precision::I8][usize::from(precision) % 3];
    let options = LoadOptions { device: DeviceChoice::Cpu, precision, threads: 1 };
    if let Ok(Some(local)) = LocalEncoder::load(folder) {
        let mut out = vec![0.0; local.config().dimensions];
        for text in TEXTS {
            let _ = local.encode(text, Role::Query, &mut out);
        }
    }
    if let Ok(encoder) = Encoder::load(folder, &options)
        && let Ok(embeddings) = encoder.encode(&TEXTS)
    {
        assert_eq!(embeddings.rows().count(), TEXTS.len());
    }
}));
