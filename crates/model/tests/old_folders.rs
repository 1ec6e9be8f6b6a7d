//! Model folders of earlier versions load, and are the models that they were: an index knows its model by the
//! fingerprint, so it must not change either.

use std::path::Path;

use laser_model::{LocalEncoder, base, folder};
use laser_protocol::Role;

/// As the trainer of 0.1.0 wrote the model that shipped, with 21 tokens of four dimensions: a table of eight bits, logarithms of
/// weights, n-grams in the tokenizer's file.
#[test]
fn a_mean_of_0_1_0_embeds_as_it_did() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mean-0.1.0");
    // BLAKE3 of the files with their lengths in front, as 0.1.0 computed it.
    let fingerprint = "3bfb3724546a5532ca48ea67d0a425ff0bcb8f960b30e4cd4e76a111c29520fd";
    assert_eq!(base::hex(&folder::fingerprint(&path).unwrap()), fingerprint);
    let model = LocalEncoder::load(&path).unwrap().unwrap();
    assert_eq!(base::hex(&model.fingerprint()), fingerprint);
    let config = model.config();
    assert_eq!(
        (config.format, &*config.name, config.dimensions),
        (1, "mean-0.1.0", 4)
    );
    assert_eq!((config.max_tokens, config.normalize), (2048, true));
    // By the definition, in Python: Σ exp(w) · scale · code of "▁the", "▁dog" and the n-grams "th", "do" and "dog", and
    // of "s" in the first text, at unit length.
    for (text, expected) in [
        ("The dogs", [-0.402_586, -0.433_191, -0.391_842, -0.704_791]),
        ("the dog", [-0.425_957, -0.440_185, -0.377_106, -0.694_686]),
    ] {
        let mut out = [0f32; 4];
        let truncated = model.encode(text, Role::Plain, &mut out).unwrap();
        assert!(!truncated);
        let near = |(x, y): (&f32, &f32)| (x - y).abs() < 2e-6;
        assert!(out.iter().zip(&expected).all(near), "{text}: {out:?}");
    }
}
