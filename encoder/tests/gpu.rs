//! Models on a GPU beside the same models on the processor. Needs the feature `cuda` and a GPU.

#[path = "../../tests/src/skipped.rs"]
mod skipped;

use std::path::{Path, PathBuf};

use laser_encoder::{DeviceChoice, Embeddings, Encoder, EncoderError, LoadOptions, Precision};
use laser_import::{Options, import};
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
    for name in [
        "bert-mean",
        "embedding-gemma",
        "labse",
        "laser2",
        "laser2-bpe",
        "laser3",
        "laser3-max",
    ] {
        let out = dir.path().join(name);
        let fixture = manifest()
            .join("../crates/import/tests/fixtures")
            .join(name);
        import(&fixture, None, &out, &Options::default()).unwrap();
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
