//! The dual encoder over averaged embeddings beside `torch.nn.EmbeddingBag`.

use std::time::Instant;

use laser_kernels::training::Arithmetic;
use laser_model::config::{Activation, Architecture, Dense, MeanConfig, MeanPooling};
use laser_trainer::data::Ragged;
use laser_trainer::models::Model;
use laser_trainer::objectives::contrastive::{Masks, contrastive};
use laser_trainer::ops::pool;
use laser_trainer::ops::threads::Threads;
use laser_trainer::optim::{Optimizer, OptimizerOptions};

use crate::data::{VOCABULARY, config, sentences};
use crate::peer;
use crate::step::total;
use crate::time::{Time, fastest};

const PAIRS: usize = 2048;
const WIDTH: usize = 512;

fn mean(arithmetic: Arithmetic) -> Model {
    let encoder = Architecture::Mean(MeanConfig {
        embedding_size: WIDTH,
        pooling: MeanPooling::Weighted,
    });
    let layer = Dense {
        input: WIDTH,
        output: WIDTH,
        activation: Activation::Tanh,
        residual: false,
        layer_norm: false,
    };
    let config = config(encoder, vec![layer]);
    Model::new(config, VOCABULARY, None, arithmetic, 1).expect("a valid configuration")
}

/// The fastest of several steps, and the mean milliseconds of each part, printed.
fn step(mut model: Model, threads: &Threads, batch: &Ragged, runs: usize) -> Time {
    let mut optimizer = Optimizer::new(OptimizerOptions::default(), model.parameters());
    let masks = Masks::default();
    let mut times = [0f64; 5];
    let time = fastest(runs, || {
        let mut clock = Instant::now();
        let mut lap = |i: usize| {
            times[i] += clock.elapsed().as_secs_f64();
            clock = Instant::now();
        };
        let (z, saved) = model
            .forward(threads, batch, 0..batch.len(), None)
            .expect("a pass");
        lap(0);
        let (x, y) = z.split_at(PAIRS * WIDTH);
        let outcome = contrastive(threads, (x, y), WIDTH, &masks, (20.0, 0.3));
        lap(1);
        let mut dz = outcome.dx;
        dz.extend_from_slice(&outcome.dy);
        let shards = model
            .backward(threads, batch, saved, &dz, None)
            .expect("a pass");
        lap(2);
        let (dense, occurrences) = total(&model, shards);
        let sparse = pool::gather(threads, &occurrences, model.parameters().value(0), WIDTH);
        lap(3);
        let norm = optimizer.norm(threads, model.parameters(), &dense, &sparse);
        optimizer.step(threads, model.parameters_mut(), &dense, &sparse, norm, 1.0);
        lap(4);
    });
    let names = ["forward", "loss", "backward", "gather", "update"];
    let part =
        |(name, time): (&str, f64)| format!("{name} {:.1}", 1000.0 * time / (runs + 1) as f64);
    let parts: Vec<String> = names.into_iter().zip(times).map(part).collect();
    println!("  milliseconds: {}", parts.join(", "));
    time
}

/// Prints what a step takes, and the ratio to PyTorch's.
pub fn run(count: usize) {
    let threads = Threads::new(count).expect("threads");
    let runs = 8;
    let batch = sentences(2 * PAIRS, |s| 5 + s * 7 % 40);
    println!(
        "weighted mean of {WIDTH}, vocabulary {VOCABULARY}, contrastive, {PAIRS} pairs, {} tokens, {count} \
         thread(s), seconds a step: wall, processor",
        batch.ids.len()
    );
    let ours = peer::ours(|arithmetic| step(mean(arithmetic), &threads, &batch, runs));
    peer::compare(&ours, "mean", count, runs);
}
