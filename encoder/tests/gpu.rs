//! Models on a GPU beside the same models on the processor. Needs the feature `cuda` and a GPU.

#[path = "../../tests/src/skipped.rs"]
mod skipped;

use std::path::{Path, PathBuf};

use laser_encoder::{DeviceChoice, Embeddings, Encoder, EncoderError, LoadOptions, Precision};
use laser_import::{Options, import};
use laser_model::config::{
    Architecture, NormPosition, Reach, RelativePositions, TransformerConfig,
};
use laser_model::folder::{self, Tensor, Tensors};
use skipped::skipped;
use tempfile::TempDir;

const GPU: DeviceChoice = DeviceChoice::Cuda(0);

fn manifest() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn load(
    folder: &Path,
    device: DeviceChoice,
    precision: Precision,
) -> Result<Encoder, EncoderError> {
    let options = LoadOptions {
        device,
        precision,
        threads: 2,
    };
    Encoder::load(folder, &options)
}

fn import_fixture(name: &str, out: &Path) {
    let fixture = manifest()
        .join("../crates/import/tests/fixtures")
        .join(name);
    import(&fixture, None, out, &Options::default()).unwrap();
}

/// Tensors of random numbers up to a scale.
fn random_tensors() -> impl FnMut(&[usize], f32) -> Tensor {
    let mut state = 1u32;
    move |dims: &[usize], scale: f32| {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale
        };
        Tensor::f32(dims, (0..dims.iter().product()).map(|_| next()).collect())
    }
}

/// A transformer of random weights with the tokenizer of a fixture, of a shape that there are kernels for.
fn random_transformer(out: &Path, edit: impl Fn(&mut TransformerConfig)) {
    let source = TempDir::new().unwrap();
    import_fixture("bert-mean", source.path());
    let mut config = folder::read_config(source.path()).unwrap();
    let Architecture::Transformer(shape) = &mut config.encoder else {
        panic!("BERT is a transformer")
    };
    let before = shape.hidden_size;
    edit(shape);
    let (shape, mut random) = (shape.clone(), random_tensors());
    let weights = folder::Weights::open(&source.path().join(folder::WEIGHTS)).unwrap();
    let (d, f) = (shape.hidden_size, shape.intermediate_size);
    assert_ne!(before, d, "a shape of its own");
    let mut tensors = Tensors::new();
    let rows = weights.rows("embed_tokens.weight").unwrap();
    tensors.insert("embed_tokens.weight".into(), random(&[rows, d], 1.0));
    let positions = random(&[shape.max_positions, d], 0.3);
    tensors.insert("embed_positions.weight".into(), positions);
    if shape.type_vocab_size > 0 {
        let types = random(&[shape.type_vocab_size, d], 0.3);
        tensors.insert("embed_types.weight".into(), types);
    }
    if let Some(relative) = &shape.relative_positions {
        let table = random(&[relative.buckets, shape.heads], 2.0);
        tensors.insert("relative_positions.weight".into(), table);
    }
    let scale = (3.0 / d as f32).sqrt();
    let mut norms: Vec<String> = Vec::new();
    for l in 0..shape.layers {
        for (name, rows, columns) in [
            ("attention.query", d, d),
            ("attention.key", d, d),
            ("attention.value", d, d),
            ("attention.output", d, d),
            ("feed_forward.up", f, d),
            ("feed_forward.down", d, f),
        ] {
            let name = format!("layers.{l}.{name}");
            tensors.insert(format!("{name}.weight"), random(&[rows, columns], scale));
            tensors.insert(format!("{name}.bias"), random(&[rows], 0.2));
        }
        norms.extend(["attention_norm", "feed_forward_norm"].map(|n| format!("layers.{l}.{n}")));
    }
    norms.extend(shape.embedding_norm.then(|| "embed_norm".to_owned()));
    norms.extend((shape.norm == NormPosition::Pre).then(|| "final_norm".to_owned()));
    for name in norms {
        tensors.insert(format!("{name}.weight"), random(&[d], 1.0));
        tensors.insert(format!("{name}.bias"), random(&[d], 0.2));
    }
    config.dimensions = d;
    config.checks.clear();
    let tokenizer = std::fs::read_to_string(source.path().join("tokenizer.json")).unwrap();
    folder::write_parts(out, &config, &tokenizer, &tensors).unwrap();
}

/// The same with rotary positions, heads of `size` and tokens that see others nearby in every second layer.
fn random_rotary(out: &Path, (heads, keys, size): (usize, usize, usize)) {
    let source = TempDir::new().unwrap();
    import_fixture("embedding-gemma", source.path());
    let mut config = folder::read_config(source.path()).unwrap();
    let Architecture::RotaryTransformer(shape) = &mut config.encoder else {
        panic!("it has rotary positions")
    };
    let mut random = random_tensors();
    let (d, f) = (256, 640);
    shape.hidden_size = d;
    shape.intermediate_size = f;
    (shape.heads, shape.key_value_heads, shape.head_size) = (heads, keys, size);
    shape.score_scale = 1.0 / (size as f64).sqrt();
    shape.layers = vec![Reach::Local, Reach::Full, Reach::Local];
    let weights = folder::Weights::open(&source.path().join(folder::WEIGHTS)).unwrap();
    let mut tensors = Tensors::new();
    let rows = weights.rows("embed_tokens.weight").unwrap();
    tensors.insert("embed_tokens.weight".into(), random(&[rows, d], 1.0));
    for l in 0..shape.layers.len() {
        for (name, rows, columns) in [
            ("attention.query", heads * size, d),
            ("attention.key", keys * size, d),
            ("attention.value", keys * size, d),
            ("attention.output", d, heads * size),
            ("feed_forward.gate", f, d),
            ("feed_forward.up", f, d),
            ("feed_forward.down", d, f),
        ] {
            let scale = (3.0 / columns as f32).sqrt();
            let tensor = random(&[rows, columns], scale);
            tensors.insert(format!("layers.{l}.{name}.weight"), tensor);
        }
        for (name, width) in [
            ("attention.query_norm", size),
            ("attention.key_norm", size),
            ("attention_norm", d),
            ("attention_output_norm", d),
            ("feed_forward_norm", d),
            ("feed_forward_output_norm", d),
        ] {
            tensors.insert(format!("layers.{l}.{name}.weight"), random(&[width], 1.0));
        }
    }
    tensors.insert("final_norm.weight".into(), random(&[d], 1.0));
    config.dimensions = d;
    config.dense.clear();
    config.checks.clear();
    let tokenizer = std::fs::read_to_string(source.path().join("tokenizer.json")).unwrap();
    folder::write_parts(out, &config, &tokenizer, &tensors).unwrap();
}

/// Texts of all lengths, the empty one and one beyond what models read among them; more than one batch.
fn texts() -> Vec<String> {
    let words = [
        "the", "train", "to", "Köln", "leaves", "at", "8:30", "не", "знаю", "今天", "天气",
    ];
    let text = |n: usize| -> String {
        let words = (0..n).map(|i| words[(i * 7 + n) % words.len()]);
        words.collect::<Vec<_>>().join(" ")
    };
    (0..700)
        .map(|i| text(i * 13 % 41))
        .chain([text(1500)])
        .collect()
}

/// The smallest cosine between rows of the same number; rows of zeros have to meet rows of zeros.
fn smallest_cosine(a: &Embeddings, b: &Embeddings) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y));
        products.sum()
    };
    assert_eq!(a.rows().count(), b.rows().count());
    a.rows()
        .zip(b.rows())
        .map(|(x, y)| match (dot(x, x), dot(y, y)) {
            (0.0, 0.0) => 1.0,
            (xx, yy) => dot(x, y) / (xx * yy).sqrt(),
        })
        // Written so that NaN stays.
        .fold(
            1.0,
            |least, cosine| if cosine >= least { least } else { cosine },
        )
}

#[test]
fn a_gpu_gives_the_embeddings_of_the_processor() {
    let dir = TempDir::new().unwrap();
    let mut folders: Vec<PathBuf> = vec![manifest().join("models/laser-mean-384")];
    folders.push(manifest().join("models/laser-bilstm-384"));
    for name in [
        "bert-mean",
        "distilbert",
        "embedding-gemma",
        "labse",
        "laser2",
        "laser2-bpe",
        "laser3",
        "laser3-max",
        "mpnet",
    ] {
        let out = dir.path().join(name);
        import_fixture(name, &out);
        folders.push(out);
    }
    for (heads, size, norm) in [
        (12, 32, NormPosition::Post),
        (4, 64, NormPosition::Pre),
        (2, 128, NormPosition::Post),
    ] {
        let out = dir.path().join(format!("heads-of-{size}"));
        random_transformer(&out, |shape| {
            shape.hidden_size = heads * size;
            shape.heads = heads;
            shape.intermediate_size = 1024;
            shape.layers = 3;
            shape.norm = norm;
            shape.relative_positions = (size == 64).then_some(RelativePositions {
                buckets: 32,
                max_distance: 128,
            });
        });
        folders.push(out);
    }
    for (heads, keys, size) in [(4, 2, 64), (3, 1, 256)] {
        let out = dir.path().join(format!("rotary-heads-of-{size}"));
        random_rotary(&out, (heads, keys, size));
        folders.push(out);
    }
    if let Err(error) = load(&folders[0], GPU, Precision::F32) {
        skipped("models on a GPU", &error.to_string());
        return;
    }
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for folder in &folders {
        let exact = load(folder, DeviceChoice::Cpu, Precision::F32).unwrap();
        let exact = exact.encode(&texts).unwrap();
        for precision in [Precision::F32, Precision::Bf16, Precision::Auto] {
            let encoder = load(folder, GPU, precision).unwrap();
            assert!(encoder.device_name().starts_with("cuda"));
            let least = match encoder.precision() {
                Precision::F32 => 0.99999,
                _ => 0.999,
            };
            let found = encoder.encode(&texts).unwrap();
            let cosine = smallest_cosine(&exact, &found);
            let (folder, runs) = (folder.display(), encoder.precision().name());
            println!("{folder}: {precision:?} is {runs}, smallest cosine {cosine:.6}");
            assert!(cosine >= least, "{folder}, {precision:?}: {cosine}");
            // One text alone is what it is among others.
            let alone = encoder.encode(&texts[23..24]).unwrap();
            let row = found.rows().nth(23).unwrap();
            for (a, b) in alone.rows().next().unwrap().iter().zip(row) {
                assert!((a - b).abs() < 0.02, "{folder}, {precision:?}: {a} {b}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_encoded_in_halves() {
    let dir = TempDir::new().unwrap();
    random_transformer(dir.path(), |shape| {
        shape.hidden_size = 1024;
        shape.heads = 16;
        shape.intermediate_size = 4096;
        shape.layers = 2;
    });
    let encoder = match load(dir.path(), GPU, Precision::Bf16) {
        Ok(encoder) => encoder,
        Err(error) => {
            skipped("a GPU without memory", &error.to_string());
            return;
        }
    };
    let vocabulary: Vec<u32> = encoder.tokenize(&["a b c d e f g h"]).unwrap()[0]
        .ids
        .clone();
    let sequences: Vec<Vec<u32>> = (0..600)
        .map(|i| {
            let length = encoder.config().max_tokens.min(60) - i % 7;
            let ids = vocabulary.iter().cycle().skip(i % 5).take(length);
            ids.copied().collect()
        })
        .collect();
    let expected = encoder.encode_ids(&sequences).unwrap();
    // Somebody else takes what there is, but for a little.
    let device = candle_core::Device::new_cuda(0).unwrap();
    let take = |megabytes: usize| {
        candle_core::Tensor::zeros(megabytes << 20, candle_core::DType::U8, &device)
    };
    let mut taken = Vec::new();
    for megabytes in [1024, 64] {
        while let Ok(tensor) = take(megabytes) {
            taken.push(tensor);
        }
    }
    taken.pop();
    device.synchronize().unwrap();
    let found = encoder.encode_ids(&sequences).unwrap();
    assert!(!encoder.device_is_lost());
    assert!(smallest_cosine(&expected, &found) > 0.999);
}
