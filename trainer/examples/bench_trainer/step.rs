//! A training step with a made-up loss: forward, backward, update.

use laser_kernels::slices::add;
use laser_trainer::data::Ragged;
use laser_trainer::models::{Model, ShardGradients};
use laser_trainer::ops::pool;
use laser_trainer::ops::threads::Threads;
use laser_trainer::optim::{Optimizer, OptimizerOptions};

use crate::time::{Time, fastest};

/// Gradients of all shards together.
pub fn total(
    model: &Model,
    shards: Vec<ShardGradients>,
) -> (Vec<Vec<f32>>, Vec<pool::Occurrences>) {
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

/// The fastest of several steps whose loss is the mean square of the embeddings.
pub fn time(mut model: Model, threads: &Threads, batch: &Ragged, runs: usize) -> Time {
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
