//! Measures training steps. `make bench-trainer` runs it.
//!
//! `bench_trainer` compares a BiLSTM step (forward, backward, update) with `torch.nn.LSTM` in the
//! same run: BiLSTM 2×512, input 320, 256 pairs of sentences with 20 tokens, in f32 and in bf16
//! where the processor has units for it. `LASER_BENCH_PYTHON` names a Python with PyTorch; without
//! it only our own time is printed. Built with the feature `cuda`, on a machine with a GPU, the step
//! is also timed there, beside cuDNN's. `bench_trainer mean` measures the dual encoder over averaged
//! embeddings (512 wide, vocabulary 32,000, batch 2,048) instead.

use std::process::Command;
use std::time::Instant;

use laser_kernels::slices::add;
use laser_kernels::training::Arithmetic;
use laser_kernels::units;
use laser_model::config::{Activation, Architecture, BilstmConfig, BilstmPooling, Config};
use laser_model::config::{Dense, MeanConfig, MeanPooling};
use laser_trainer::data::Ragged;
use laser_trainer::models::{Model, ShardGradients};
use laser_trainer::objectives::contrastive::{Masks, contrastive};
use laser_trainer::ops::lstm_device::LstmDevice;
use laser_trainer::ops::pool;
use laser_trainer::ops::threads::Threads;
use laser_trainer::optim::{Optimizer, OptimizerOptions};

const VOCABULARY: usize = 32_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.get(1).and_then(|t| t.parse().ok()).unwrap_or(1);
    match arguments.first().map(String::as_str) {
        Some("mean") => mean(threads),
        None | Some("lstm") => lstm(threads),
        Some(other) => {
            eprintln!("unknown benchmark \"{other}\"; use \"lstm\" or \"mean\"");
            std::process::exit(2);
        }
    }
}

fn config(encoder: Architecture, dense: Vec<Dense>) -> Config {
    let dimensions = dense.last().map_or(encoder.output_size(), |d| d.output);
    Config {
        format: laser_model::config::FORMAT,
        name: "bench".into(),
        dimensions,
        max_tokens: 128,
        normalize: true,
        text: Default::default(),
        encoder,
        dense,
        checks: Vec::new(),
        base: None,
        prefixes: Default::default(),
        task: Default::default(),
    }
}

/// Sentences of random tokens; low ids are more frequent, as in text.
fn sentences(count: usize, length: impl Fn(usize) -> usize) -> Ragged {
    let mut batch = Ragged::new();
    let mut state = 1u64;
    for s in 0..count {
        let ids: Vec<u32> = (0..length(s))
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let u = (state >> 40) as f64 / (1u64 << 24) as f64;
                ((VOCABULARY as f64).powf(u) - 1.0) as u32
            })
            .collect();
        batch.push(&ids);
    }
    batch
}

/// Wall and processor seconds of a step.
#[derive(Clone, Copy)]
struct Time {
    wall: f64,
    cpu: f64,
}

const NEVER: Time = Time {
    wall: f64::INFINITY,
    cpu: f64::INFINITY,
};

impl Time {
    fn min(self, other: Self) -> Self {
        Self {
            wall: self.wall.min(other.wall),
            cpu: self.cpu.min(other.cpu),
        }
    }
}

/// Processor seconds of all threads of this process, from /proc; 0 where there is no such file.
/// On a busy machine they say more than the clock on the wall.
fn processor_seconds() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return 0.0;
    };
    let nanoseconds: u64 = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum();
    nanoseconds as f64 * 1e-9
}

/// The fastest of several runs: the least disturbed one.
fn fastest(runs: usize, mut work: impl FnMut()) -> Time {
    work();
    let time = |_| {
        let (begin, cpu) = (Instant::now(), processor_seconds());
        work();
        Time {
            wall: begin.elapsed().as_secs_f64(),
            cpu: processor_seconds() - cpu,
        }
    };
    (0..runs).map(time).fold(NEVER, Time::min)
}

fn total(model: &Model, shards: Vec<ShardGradients>) -> (Vec<Vec<f32>>, Vec<pool::Occurrences>) {
    let mut dense = model.parameters().zeros();
    let mut occurrences = Vec::new();
    for shard in shards {
        for (sum, part) in dense.iter_mut().zip(&shard.dense) {
            add(part, sum);
        }
        occurrences.push(shard.embeddings);
    }
    (dense, occurrences)
}

fn update(
    model: &mut Model,
    optimizer: &mut Optimizer,
    threads: &Threads,
    shards: Vec<ShardGradients>,
) {
    let (dense, occurrences) = total(model, shards);
    let width = model.embedding_size();
    let sparse = pool::gather(threads, &occurrences, model.parameters().value(0), width);
    let norm = optimizer.norm(threads, model.parameters(), &dense, &sparse);
    optimizer.step(threads, model.parameters_mut(), &dense, &sparse, norm, 1.0);
}

fn mean(count: usize) {
    let threads = Threads::new(count).expect("threads");
    let (pairs, width) = (2048, 512);
    let encoder = Architecture::Mean(MeanConfig {
        embedding_size: width,
        pooling: MeanPooling::Weighted,
    });
    let layer = Dense {
        input: width,
        output: width,
        activation: Activation::Tanh,
        residual: false,
        layer_norm: false,
    };
    let mut model = Model::new(
        config(encoder, vec![layer]),
        VOCABULARY,
        None,
        Arithmetic::detect(),
        1,
    )
    .expect("a valid configuration");
    let mut optimizer = Optimizer::new(OptimizerOptions::default(), model.parameters());
    let batch = sentences(2 * pairs, |s| 5 + s * 7 % 40);
    let masks = Masks::default();
    let mut times = [0f64; 5];
    let runs = 8;
    let time = fastest(runs, || {
        let mut clock = Instant::now();
        let mut lap = |i: usize| {
            times[i] += clock.elapsed().as_secs_f64();
            clock = Instant::now();
        };
        let (z, saved) = model
            .forward(&threads, &batch, 0..batch.len(), None)
            .expect("a pass");
        lap(0);
        let (x, y) = z.split_at(pairs * width);
        let outcome = contrastive(&threads, (x, y), width, &masks, (20.0, 0.3));
        lap(1);
        let mut dz = outcome.dx;
        dz.extend_from_slice(&outcome.dy);
        let shards = model
            .backward(&threads, &batch, saved, &dz, None)
            .expect("a pass");
        lap(2);
        let (dense, occurrences) = total(&model, shards);
        let sparse = pool::gather(&threads, &occurrences, model.parameters().value(0), width);
        lap(3);
        let norm = optimizer.norm(&threads, model.parameters(), &dense, &sparse);
        optimizer.step(&threads, model.parameters_mut(), &dense, &sparse, norm, 1.0);
        lap(4);
    });
    println!(
        "mean 512, vocabulary {VOCABULARY}, {pairs} pairs, {} tokens, {count} thread(s): {:.0} pairs/s, \
         {:.0} a processor second",
        batch.ids.len(),
        pairs as f64 / time.wall,
        pairs as f64 / time.cpu
    );
    let names = ["forward", "loss", "backward", "gather", "update"];
    for (name, time) in names.iter().zip(times) {
        println!("  {name:9} {:6.1} ms", 1000.0 * time / (runs + 1) as f64);
    }
}

/// What the peer runs: the same step in PyTorch.
const TORCH: &str = r#"
import sys, time, torch
threads, runs, kind, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(threads)
torch.manual_seed(0)
lstm = torch.nn.LSTM(320, 512, num_layers=2, bidirectional=True, batch_first=True).to(device)
embed = torch.nn.Embedding(32000, 320).to(device)
parameters = list(lstm.parameters()) + list(embed.parameters())
optimizer = torch.optim.Adam(parameters, lr=1e-3)
ids = torch.randint(0, 32000, (512, 20))
def step():
    with torch.autocast(device, dtype=torch.bfloat16, enabled=kind == 'bf16'):
        out = lstm(embed(ids.to(device)))[0].max(1).values
    optimizer.zero_grad()
    (out.float() ** 2).mean().backward()
    optimizer.step()
    if device != 'cpu':
        torch.cuda.synchronize()
try:
    step()
except RuntimeError:
    # oneDNN has no bf16 LSTM for processors without bf16 instructions; PyTorch's own has.
    torch.backends.mkldnn.set_flags(False)
    step()
wall = cpu = 1e9
for _ in range(runs):
    begin, begin_cpu = time.perf_counter(), time.process_time()
    step()
    wall, cpu = min(wall, time.perf_counter() - begin), min(cpu, time.process_time() - begin_cpu)
print(wall, cpu)
"#;

fn peer(python: &str, threads: usize, runs: usize, kind: &str, device: &str) -> Option<Time> {
    let (count, runs) = (threads.to_string(), runs.to_string());
    let output = Command::new(python)
        .args(["-c", TORCH, &count, &runs, kind, device])
        .env("OMP_NUM_THREADS", threads.to_string())
        .output();
    match output {
        Ok(o) if o.status.success() => {
            let text = String::from_utf8_lossy(&o.stdout);
            let mut numbers = text.split_whitespace().filter_map(|n| n.parse().ok());
            Some(Time {
                wall: numbers.next()?,
                cpu: numbers.next()?,
            })
        }
        Ok(o) => {
            eprintln!("PyTorch failed: {}", String::from_utf8_lossy(&o.stderr));
            None
        }
        Err(e) => {
            eprintln!("could not run {python}: {e}");
            None
        }
    }
}

fn bilstm(arithmetic: Arithmetic) -> Model {
    let encoder = Architecture::Bilstm(BilstmConfig {
        embedding_size: 320,
        hidden_size: 512,
        layers: 2,
        pooling: BilstmPooling::Max,
        append_eos: false,
    });
    Model::new(config(encoder, Vec::new()), VOCABULARY, None, arithmetic, 1)
        .expect("a valid configuration")
}

/// Forward, backward and update.
fn bilstm_step(mut model: Model, threads: &Threads, batch: &Ragged, runs: usize) -> Time {
    let mut optimizer = Optimizer::new(OptimizerOptions::default(), model.parameters());
    fastest(runs, || {
        let (z, saved) = model
            .forward(threads, batch, 0..batch.len(), None)
            .expect("a pass");
        let dz: Vec<f32> = z.iter().map(|v| 2.0 * v / z.len() as f32).collect();
        let shards = model
            .backward(threads, batch, saved, &dz, None)
            .expect("a pass");
        update(&mut model, &mut optimizer, threads, shards);
    })
}

/// The same step with the BiLSTM on a GPU, if this build and this machine have one.
fn gpu(threads: &Threads, batch: &Ragged, runs: usize, python: Option<&str>) {
    let device = match LstmDevice::cuda(0, 512) {
        Ok(device) => device,
        Err(e) => {
            println!("  no GPU was measured: {e}");
            return;
        }
    };
    let model = bilstm(Arithmetic::detect()).on_device(device);
    let ours = bilstm_step(model.expect("a BiLSTM"), threads, batch, runs);
    println!("  laser   gpu   {:8.4} {:8.4}", ours.wall, ours.cpu);
    let peer = python.and_then(|python| peer(python, threads.count(), runs, "bf16", "cuda"));
    if let Some(theirs) = peer {
        println!("  PyTorch gpu   {:8.4} {:8.4}", theirs.wall, theirs.cpu);
        println!(
            "  speed relative to PyTorch on the GPU: {:.2}",
            theirs.wall / ours.wall
        );
    }
}

fn lstm(count: usize) {
    let threads = Threads::new(count).expect("threads");
    let runs = 3;
    let python = std::env::var("LASER_BENCH_PYTHON").ok();
    let batch = sentences(512, |_| 20);
    println!(
        "BiLSTM 2x512, input 320, 256 pairs x 20 tokens, {count} thread(s), seconds a step: wall, processor"
    );
    let mut kinds = vec![(Arithmetic::F32, "f32")];
    if units::has_bf16_unit() {
        kinds.push((Arithmetic::Bf16, "bf16"));
    } else {
        println!("  this processor has no bf16 units: our bf16 products are not timed");
    }
    let mut ours = NEVER;
    for (arithmetic, name) in kinds {
        let time = bilstm_step(bilstm(arithmetic), &threads, &batch, runs);
        ours = ours.min(time);
        println!("  laser   {name:5} {:8.3} {:8.3}", time.wall, time.cpu);
    }
    gpu(&threads, &batch, runs, python.as_deref());
    let Some(python) = python else {
        println!("  set LASER_BENCH_PYTHON to a Python with PyTorch to compare with torch.nn.LSTM");
        return;
    };
    let mut theirs = NEVER;
    for kind in ["f32", "bf16"] {
        if let Some(time) = peer(&python, count, runs, kind, "cpu") {
            theirs = theirs.min(time);
            println!("  PyTorch {kind:5} {:8.3} {:8.3}", time.wall, time.cpu);
        }
    }
    if theirs.wall.is_finite() {
        println!(
            "  speed relative to PyTorch, the faster kind of each: {:.2} by wall time, {:.2} by \
             processor time",
            theirs.wall / ours.wall,
            theirs.cpu / ours.cpu
        );
    }
}
