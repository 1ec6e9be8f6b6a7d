//! Throughput of the encoder.
//!
//! ```text
//! bench_encoder [--model FOLDER] [--threads N] [--seconds S] [--shape]
//!               [--transformer] [--gpu] [--most GFLOP] [--multilingual] [--texts FILE]
//! ```
//!
//! Measures the 5-layer LASER shape with random weights, the shipped model, transformers and text of
//! many languages (the demo's sentences, or the lines of a file), or what `--shape`, `--model`,
//! `--transformer` and `--multilingual` name. The shape and models in f32, bf16 and i8, at batch 1, 32 and 128: sentences and tokens per second of
//! wall time and of CPU time, and the smallest cosine to f32; then from text to embedding, with the
//! share of the time that tokenisation takes. With LASER_BENCH_PYTHON set to a Python that has torch,
//! PyTorch's `nn.LSTM` of the same shape runs beside it, and, with `transformers`, `onnx` and
//! `onnxruntime` installed there, their transformers beside laser's, in batches of `--most` billions of
//! floating point operations (800: PyTorch's f32 takes ten seconds and more for that).
//!
//! Built with the feature `cuda`, on a machine with a GPU, the shape is measured there as well, in
//! f32 and bf16 at batch 128, 512 and 2048, beside PyTorch's `nn.LSTM` on cuDNN, and transformers beside
//! PyTorch's (`--gpu`: these alone). Both take token ids in host memory and leave their result there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use laser_encoder::{DeviceChoice, Embeddings, Encoder, Precision};
use laser_kernels::math::cosine;
use laser_model::config::{NonPrinting, TextConfig};
use laser_model::folder;

use load::{load, load_on};
use rate::{Rate, cpu_seconds, measure};
use shape::{HIDDEN, LAYERS, TOKENS, VOCABULARY, WIDTH};

mod load;
mod multilingual;
mod rate;
mod shape;
mod transformer;

const BATCHES: [usize; 3] = [1, 32, 128];

/// The model that ships with laser.
const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/laser-mean-384");

/// On a GPU.
const GPU_BATCHES: [usize; 3] = [128, 512, 2048];

/// Sentences for models with a vocabulary of their own.
const TEXTS: [&str; 12] = [
    "Where is the railway station, and when does the next train leave?",
    "The committee will publish its report on the state of the forests in spring.",
    "Der Zug nach München fährt um halb neun vom dritten Gleis ab.",
    "Könnten Sie mir bitte sagen, wie spät es ist?",
    "Le musée est fermé le lundi, mais le jardin reste ouvert toute la semaine.",
    "El gobierno anunció ayer nuevas medidas para proteger los bosques.",
    "Она читает книгу у окна, пока за окном идёт снег.",
    "Vlak má dnes půl hodiny zpoždění kvůli opravám na trati.",
    "今天天气很好，我们去公园散步吧。",
    "كم سعر هذا القميص؟",
    "मुझे एक गिलास पानी चाहिए।",
    "駅までどのくらいかかりますか。",
];

fn smallest_cosine(a: &Embeddings, b: &Embeddings) -> f64 {
    a.rows()
        .zip(b.rows())
        .map(|(x, y)| cosine(x, y))
        .fold(1.0, f64::min)
}

fn header() {
    println!(
        "{:<24}{:>6}{:>14}{:>14}{:>16}{:>16}{:>10}",
        "", "batch", "sentences/s", "tokens/s", "sentences/CPU-s", "tokens/CPU-s", "cosine"
    );
}

fn row(name: &str, batch: usize, tokens: usize, rate: &Rate, cosine: Option<f64>) {
    let sentences = (rate.calls * batch) as f64;
    let tokens = (rate.calls * tokens) as f64;
    println!(
        "{name:<24}{batch:>6}{:>14.1}{:>14.0}{:>16.1}{:>16.0}{}",
        sentences / rate.wall,
        tokens / rate.wall,
        sentences / rate.cpu,
        tokens / rate.cpu,
        cosine.map_or_else(|| format!("{:>10}", ""), |c| format!("{c:>10.5}")),
    );
}

/// All precisions and batch sizes of one model on the token sequences given.
fn products(
    device: DeviceChoice,
    folder: &Path,
    ids: &[Vec<u32>],
    batches: [usize; 3],
    threads: usize,
    seconds: f64,
) -> Result<(), laser_encoder::EncoderError> {
    let probe = &ids[..ids.len().min(BATCHES[2])];
    let exact = load(folder, Precision::F32, threads)?.encode_ids(probe)?;
    let auto = load_on(device, folder, Precision::Auto, threads)?.precision();
    for precision in [Precision::F32, Precision::Bf16, Precision::I8] {
        let encoder = load_on(device, folder, precision, threads)?;
        if encoder.precision() != precision {
            continue;
        }
        let cosine = smallest_cosine(&exact, &encoder.encode_ids(probe)?);
        for batch in batches {
            let ids = &ids[..batch];
            let tokens = ids.iter().map(Vec::len).sum();
            let rate = measure(seconds, || {
                std::hint::black_box(encoder.encode_ids(ids).expect("it worked before"));
            });
            row(
                &format!("laser {} {}", encoder.device_name(), precision.name()),
                batch,
                tokens,
                &rate,
                Some(cosine),
            );
        }
    }
    println!("auto chooses {}", auto.name());
    Ok(())
}

/// PyTorch's LSTM of the LASER shape on "cpu" or "cuda"; on the former, larger batches in bf16 only
/// where the processor has a unit.
fn pytorch(device: &str, batches: [usize; 3], python: &str, threads: usize, seconds: f64) {
    let script = format!(
        r#"
import resource, time, torch
torch.set_num_threads({threads})
torch.set_grad_enabled(False)
cuda = "{device}" == "cuda"
base = torch.nn.LSTM({WIDTH}, {HIDDEN}, {LAYERS}, bidirectional=True).eval()
table = torch.randn({VOCABULARY}, {WIDTH})
for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
    lstm, embed = base.to("{device}", dtype), table.to("{device}", dtype)
    # Without a bf16 unit PyTorch takes minutes for one larger batch.
    slow = not cuda and name == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for batch in {batches:?}[:1 if slow else None]:
        ids = torch.randint(0, {VOCABULARY}, ({TOKENS}, batch))
        # To the host as well: nothing but the copy waits for a GPU.
        f = lambda: lstm(embed[ids.to("{device}")])[0].max(0).values.cpu()
        f()
        cpu = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        start, before, calls = time.perf_counter(), cpu(), 0
        while time.perf_counter() - start < {seconds}:
            f(); calls += 1
        print(name, batch, time.perf_counter() - start, cpu() - before, calls, flush=True)
"#
    );
    let output = Command::new(python).arg("-c").arg(script).output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        Ok(output) => {
            eprintln!(
                "PyTorch failed: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            return;
        }
        Err(e) => {
            eprintln!("could not run \"{python}\": {e}");
            return;
        }
    };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| {
            fields
                .get(i)
                .and_then(|f| f.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        let rate = Rate {
            wall: number(2),
            cpu: number(3),
            calls: number(4) as usize,
        };
        let batch = number(1) as usize;
        row(
            &format!("PyTorch {device} {}", fields[0]),
            batch,
            batch * TOKENS,
            &rate,
            None,
        );
    }
}

/// The LASER shape and transformers on a GPU, if this build and this machine have one.
fn gpu(most: usize, threads: usize, seconds: f64) -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::TempDir::new()?;
    shape::write(dir.path())?;
    let (device, folder) = (DeviceChoice::Cuda(0), dir.path());
    if let Err(e) = load_on(device, folder, Precision::F32, threads) {
        println!("no GPU was measured: {e}");
        return Ok(());
    }
    println!("\nLASER shape on a GPU");
    header();
    let ids = sentences(GPU_BATCHES[2]);
    products(device, folder, &ids, GPU_BATCHES, threads, seconds)?;
    match std::env::var("LASER_BENCH_PYTHON") {
        Ok(python) => pytorch("cuda", GPU_BATCHES, &python, threads, seconds),
        Err(_) => println!("PyTorch was not measured: LASER_BENCH_PYTHON is not set"),
    }
    transformer::run_on_gpu(most, threads, seconds)
}

/// Token ids of sentences for the LASER shape.
fn sentences(count: usize) -> Vec<Vec<u32>> {
    (0..count)
        .map(|i| {
            (0..TOKENS)
                .map(|t| ((i * 131 + t * 977) % VOCABULARY) as u32)
                .collect()
        })
        .collect()
}

fn model(folder: &Path, threads: usize, seconds: f64) -> Result<(), Box<dyn std::error::Error>> {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let encoder = load(folder, Precision::Auto, threads)?;
    encoder.encode(&TEXTS[..1])?;
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!(
        "\n{} ({}), {} threads, on {}: first sentence {:.0} ms after the start of loading \
         ({:.0} ms of CPU time), {:.1} MB packed weights",
        encoder.config().name,
        encoder.config().encoder.name(),
        encoder.threads(),
        encoder.device_name(),
        wall * 1e3,
        cpu * 1e3,
        encoder.resident_bytes() as f64 / 1e6,
    );
    let (_, ids) = texts_and_ids(&encoder)?;
    header();
    products(DeviceChoice::Cpu, folder, &ids, BATCHES, threads, seconds)?;
    from_text(&encoder, &[1, 32, 128, 1024], seconds)
}

/// As many texts as the largest batch has, with their tokens.
fn texts_and_ids(
    encoder: &Encoder,
) -> Result<(Vec<&'static str>, Vec<Vec<u32>>), laser_encoder::EncoderError> {
    let texts: Vec<&str> = TEXTS.iter().copied().cycle().take(1024).collect();
    let tokenized = encoder.tokenize(&texts)?;
    Ok((texts, tokenized.into_iter().map(|t| t.ids).collect()))
}

/// From texts to embeddings, and the part of the time that their tokenisation takes.
fn from_text(
    encoder: &Encoder,
    batches: &[usize],
    seconds: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let (texts, ids) = texts_and_ids(encoder)?;
    for &batch in batches {
        let texts = &texts[..batch];
        let tokens: usize = ids[..batch].iter().map(Vec::len).sum();
        let whole = measure(seconds, || {
            std::hint::black_box(encoder.encode(texts).expect("it worked before"));
        });
        row("laser, text to embedding", batch, tokens, &whole, None);
        let part = measure(seconds, || {
            std::hint::black_box(encoder.tokenize(texts).expect("it worked before"));
        });
        let share = (part.cpu / part.calls as f64) / (whole.cpu / whole.calls as f64);
        println!(
            "{:<24}{batch:>6}{:>13.1}%",
            "  tokenisation's share",
            share * 100.0
        );
    }
    Ok(())
}

/// The shape behind LASER2's text preparation and a unigram model with the pieces of the shipped
/// model (40,000; LASER2 has 50,000).
fn share_of_laser2(threads: usize, seconds: f64) -> Result<(), Box<dyn std::error::Error>> {
    let json = std::fs::read(Path::new(SHIPPED).join(folder::TOKENIZER))?;
    let json: serde_json::Value = serde_json::from_slice(&json)?;
    let pieces = json["tokenizer"]["model"]["vocab"]
        .as_object()
        .ok_or("the shipped model's tokenizer has no vocabulary")?;
    let mut vocabulary = vec![serde_json::Value::Null; pieces.len()];
    for (piece, id) in pieces {
        let id = id.as_u64().ok_or("an id is no number")? as usize;
        // Merges are in the order of their frequency: the likelier, the sooner.
        vocabulary[id] = serde_json::json!([piece, -((id + 1) as f64).ln()]);
    }
    let metaspace = serde_json::json!({
        "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true,
    });
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "NFKC"}, "pre_tokenizer": metaspace, "post_processor": null,
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 1, "vocab": vocabulary, "byte_fallback": false},
    });
    let text = TextConfig {
        non_printing: NonPrinting::Space,
        punctuation: Some("en".into()),
        lowercase: true,
        ..TextConfig::default()
    };
    let dir = tempfile::TempDir::new()?;
    shape::write_with(dir.path(), &tokenizer, vocabulary.len(), text)?;
    let encoder = load(dir.path(), Precision::Auto, threads)?;
    println!("\nLASER shape with LASER2's text preparation");
    header();
    from_text(&encoder, &BATCHES, seconds)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let (mut threads, mut seconds, mut shape) = (1usize, 2.0f64, false);
    let (mut transformers, mut languages, mut file) = (false, false, None);
    let mut on_gpu = false;
    let mut most = 800usize;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--model" => folders.push(value()?.into()),
            "--threads" => threads = value()?.parse()?,
            "--seconds" => seconds = value()?.parse()?,
            "--shape" => shape = true,
            "--transformer" => transformers = true,
            "--gpu" => on_gpu = true,
            "--most" => most = value()?.parse()?,
            "--multilingual" => languages = true,
            "--texts" => file = Some(PathBuf::from(value()?)),
            _ => return Err(format!("unknown argument \"{argument}\"").into()),
        }
    }
    if !shape && !transformers && !languages && !on_gpu && folders.is_empty() {
        (shape, transformers, languages, on_gpu) = (true, true, true, true);
        folders.push(SHIPPED.into());
    }
    if shape {
        let dir = tempfile::TempDir::new()?;
        shape::write(dir.path())?;
        let ids = sentences(BATCHES[2]);
        println!(
            "LASER shape: {LAYERS} layers of 2 x {HIDDEN}, embeddings {WIDTH}, random weights, \
             {TOKENS} tokens a sentence, {threads} threads, on {}",
            load(dir.path(), Precision::F32, threads)?.device_name()
        );
        header();
        products(
            DeviceChoice::Cpu,
            dir.path(),
            &ids,
            BATCHES,
            threads,
            seconds,
        )?;
        match std::env::var("LASER_BENCH_PYTHON") {
            Ok(python) => pytorch("cpu", BATCHES, &python, threads, seconds),
            Err(_) => println!("PyTorch was not measured: LASER_BENCH_PYTHON is not set"),
        }
        share_of_laser2(threads, seconds)?;
    }
    let (texts, most) = (multilingual::texts(file.as_deref())?, most * 1_000_000_000);
    if transformers {
        transformer::run(&texts, most, threads, seconds)?;
    }
    if on_gpu {
        gpu(most, threads, seconds)?;
    }
    if languages {
        multilingual::run(Path::new(SHIPPED), &texts, seconds)?;
    }
    for folder in folders {
        model(&folder, threads, seconds)?;
    }
    Ok(())
}
