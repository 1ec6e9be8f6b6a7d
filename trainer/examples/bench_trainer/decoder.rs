//! LASER's decoder beside `torch.nn.LSTM` with a linear layer: an exact softmax over 40,000 types.

use laser_kernels::training::Arithmetic;
use laser_trainer::models::Parameters;
use laser_trainer::objectives::nmt::{Decoder, DecoderSizes, Noise, Targets};
use laser_trainer::ops::pool;
use laser_trainer::ops::threads::Threads;
use laser_trainer::optim::{Optimizer, OptimizerOptions};

use crate::data::{VOCABULARY, sentences};
use crate::peer;
use crate::time::{Time, fastest};

const SENTENCES: usize = 64;
const TOKENS: usize = 20;
const TYPES: usize = 40_000;
/// Types that a sampled softmax draws.
const SAMPLES: usize = 4096;
/// Width of the sentence embeddings.
const WIDTH: usize = 1024;
const LANGUAGES: usize = 2;

fn step(arithmetic: Arithmetic, samples: usize, threads: &Threads, runs: usize) -> Time {
    // Begin and end of a sentence; random tokens have lower ids.
    let boundaries = (TYPES as u32 - 2, TYPES as u32 - 1);
    const { assert!(VOCABULARY + 2 <= TYPES) };
    let mut parameters = Parameters::default();
    let sizes = DecoderSizes {
        hidden_size: 1024,
        softmax_samples: samples,
        ..DecoderSizes::default()
    };
    let decoder = Decoder::new(
        &mut parameters,
        &sizes,
        (WIDTH, true),
        (TYPES, LANGUAGES),
        boundaries,
        arithmetic,
        1,
    );
    let targets = sentences(SENTENCES, |_| TOKENS);
    let languages = vec![0; SENTENCES];
    let x: Vec<f32> = (0..SENTENCES * WIDTH)
        .map(|i| (i as f32).sin() / (WIDTH as f32 / 2.0).sqrt())
        .collect();
    let mut optimizer = Optimizer::new(OptimizerOptions::default(), &parameters);
    fastest(runs, || {
        let mut gradients = parameters.zeros();
        let targets = Targets {
            sentences: &targets,
            languages: &languages,
        };
        let noise = (1.0, Noise::default());
        decoder.loss(threads, &parameters, &x, targets, noise, &mut gradients);
        let sparse = pool::gather(threads, &[], &[], 1);
        let norm = optimizer.norm(threads, &parameters, &gradients, &sparse);
        optimizer.step(threads, &mut parameters, &gradients, &sparse, norm, 1.0);
    })
}

/// Prints what a step takes, and the ratio to PyTorch's.
pub fn run(count: usize) {
    let threads = Threads::new(count).expect("threads");
    let runs = 3;
    println!(
        "decoder of 1,024, softmax over {TYPES} types, {SENTENCES} sentences x {TOKENS} tokens, {count} thread(s), \
         seconds a step: wall, processor"
    );
    let ours = peer::ours(|arithmetic| step(arithmetic, 0, &threads, runs));
    peer::compare(&ours, "decoder", count, runs);
    println!("the same, softmax over the types of the targets and {SAMPLES} others:");
    peer::ours(|arithmetic| step(arithmetic, SAMPLES, &threads, runs));
}
