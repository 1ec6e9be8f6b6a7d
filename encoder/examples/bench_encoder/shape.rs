//! The shape of LASER's encoder (Artetxe & Schwenk, TACL 2019, section 3.1) with random weights: as
//! fast as a trained one.

use std::path::Path;

use laser_encoder::EncoderError;
use laser_model::config::{Architecture, BilstmConfig, BilstmPooling, Config, FORMAT, TextConfig};
use laser_model::folder::{self, Tensor, Tensors};

/// Tokens of the shape's vocabulary.
pub const VOCABULARY: usize = 8000;
/// Width of the embedding table.
pub const WIDTH: usize = 320;
/// Width of one direction of a layer.
pub const HIDDEN: usize = 512;
/// Number of layers.
pub const LAYERS: usize = 5;
/// Tokens of the sentences that are measured.
pub const TOKENS: usize = 20;

/// Random numbers, always the same ones.
pub struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(88_172_645_463_325_252)
    }
}

impl Random {
    /// Between `-scale` and `scale`.
    pub fn tensor(&mut self, shape: &[usize], scale: f32) -> Tensor {
        let n = shape.iter().product();
        let values = (0..n).map(|_| {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * scale
        });
        Tensor::f32(shape, values.collect())
    }
}

/// A tokenizer of words `w0`, `w1`, …; `w2` is missing, its place is that of `</s>`.
pub fn words(count: usize) -> serde_json::Value {
    let name = |id| match id {
        2 => "</s>".into(),
        _ => format!("w{id}"),
    };
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        (0..count).map(|id| (name(id), id.into())).collect();
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    })
}

/// Writes a model folder of the shape, without normalisation.
///
/// # Errors
/// As [`folder::write_parts`].
pub fn write(folder: &Path) -> Result<(), EncoderError> {
    write_with(
        folder,
        &words(VOCABULARY),
        VOCABULARY,
        TextConfig::default(),
    )
}

/// The same with a tokenizer of `vocabulary` tokens and with text preparation.
///
/// # Errors
/// As [`folder::write_parts`].
pub fn write_with(
    folder: &Path,
    tokenizer: &serde_json::Value,
    vocabulary: usize,
    text: TextConfig,
) -> Result<(), EncoderError> {
    let mut random = Random::default();
    let mut random = |shape: &[usize], scale| random.tensor(shape, scale);
    let mut tensors = Tensors::new();
    tensors.insert(
        "embed_tokens.weight".into(),
        random(&[vocabulary, WIDTH], 0.5),
    );
    for l in 0..LAYERS {
        let input = if l == 0 { WIDTH } else { 2 * HIDDEN };
        for suffix in ["", "_reverse"] {
            // PyTorch's initialisation: 1 / sqrt(hidden).
            let scale = 1.0 / (HIDDEN as f32).sqrt();
            for (name, shape) in [
                ("weight_ih", vec![4 * HIDDEN, input]),
                ("weight_hh", vec![4 * HIDDEN, HIDDEN]),
                ("bias_ih", vec![4 * HIDDEN]),
                ("bias_hh", vec![4 * HIDDEN]),
            ] {
                tensors.insert(format!("lstm.{name}_l{l}{suffix}"), random(&shape, scale));
            }
        }
    }
    let config = Config {
        format: FORMAT,
        name: "laser-shape".into(),
        dimensions: 2 * HIDDEN,
        max_tokens: 512,
        normalize: false,
        text,
        encoder: Architecture::Bilstm(BilstmConfig {
            embedding_size: WIDTH,
            hidden_size: HIDDEN,
            layers: LAYERS,
            pooling: BilstmPooling::Max,
            append_eos: true,
            bidirectional: true,
        }),
        dense: vec![],
        checks: vec![],
        base: None,
        prefixes: Default::default(),
        task: Default::default(),
    };
    Ok(folder::write_parts(
        folder,
        &config,
        &tokenizer.to_string(),
        &tensors,
    )?)
}
