//! A BiLSTM beside `torch.nn.LSTM`.

use laser_kernels::training::Arithmetic;
use laser_model::config::{Architecture, BilstmConfig, BilstmPooling};
use laser_trainer::data::Ragged;
use laser_trainer::models::Model;
use laser_trainer::ops::lstm_device::LstmDevice;
use laser_trainer::ops::threads::Threads;

use crate::data::{VOCABULARY, config, sentences};
use crate::{peer, step};

const LAYERS: BilstmConfig = BilstmConfig {
    embedding_size: 320,
    hidden_size: 512,
    layers: 2,
    pooling: BilstmPooling::Max,
    append_eos: false,
    bidirectional: true,
};

fn bilstm(arithmetic: Arithmetic) -> Model {
    let encoder = Architecture::Bilstm(LAYERS);
    Model::new(config(encoder, Vec::new()), VOCABULARY, None, arithmetic, 1)
        .expect("a valid configuration")
}

/// The same step with the BiLSTM on a GPU, if this build and this machine have one.
fn gpu(threads: &Threads, batch: &Ragged, runs: usize, python: Option<&str>) {
    let device = match LstmDevice::cuda(0, &LAYERS) {
        Ok(device) => device,
        Err(e) => {
            println!("  no GPU was measured: {e}");
            return;
        }
    };
    let model = bilstm(Arithmetic::detect()).on_device(device);
    let ours = step::time(model.expect("a BiLSTM"), threads, batch, runs);
    println!("  laser   gpu   {:8.4} {:8.4}", ours.wall, ours.cpu);
    let peer =
        python.and_then(|python| peer::time(python, "lstm", threads.count(), runs, "bf16", "cuda"));
    if let Some(theirs) = peer {
        println!("  PyTorch gpu   {:8.4} {:8.4}", theirs.wall, theirs.cpu);
        println!(
            "  speed relative to PyTorch on the GPU: {:.2}",
            theirs.wall / ours.wall
        );
    }
}

/// Prints what a step takes, and the ratio to PyTorch's.
pub fn run(count: usize) {
    let threads = Threads::new(count).expect("threads");
    let runs = 3;
    let batch = sentences(512, |_| 20);
    println!(
        "BiLSTM 2x512, input 320, 256 pairs x 20 tokens, {count} thread(s), seconds a step: wall, processor"
    );
    let ours = peer::ours(|arithmetic| step::time(bilstm(arithmetic), &threads, &batch, runs));
    gpu(&threads, &batch, runs, peer::python().as_deref());
    peer::compare(&ours, "lstm", count, runs);
}
