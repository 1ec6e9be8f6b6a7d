//! A transformer beside `torch.nn.TransformerEncoder`.

use laser_kernels::training::Arithmetic;
use laser_model::config::{Activation, Architecture, NormPosition};
use laser_model::config::{TransformerConfig, TransformerPooling};
use laser_trainer::models::Model;
use laser_trainer::ops::threads::Threads;

use crate::data::{VOCABULARY, config, sentences};
use crate::{peer, step};

const SENTENCES: usize = 64;
const TOKENS: usize = 64;

fn transformer(arithmetic: Arithmetic) -> Model {
    let encoder = Architecture::Transformer(TransformerConfig {
        hidden_size: 384,
        layers: 6,
        heads: 12,
        intermediate_size: 1536,
        max_positions: 128,
        type_vocab_size: 0,
        layer_norm_eps: 1e-5,
        activation: Activation::Gelu,
        norm: NormPosition::Post,
        pooling: TransformerPooling::Mean,
        position_offset: 0,
        scale_embedding: false,
        embedding_norm: true,
        relative_positions: None,
    });
    Model::new(config(encoder, Vec::new()), VOCABULARY, None, arithmetic, 1)
        .expect("a valid configuration")
}

/// Prints what a step takes, and the ratio to PyTorch's.
pub fn run(count: usize) {
    let threads = Threads::new(count).expect("threads");
    let runs = 5;
    let batch = sentences(SENTENCES, |_| TOKENS);
    println!(
        "transformer 6x384, 12 heads, feed-forward 1,536, {SENTENCES} sentences x {TOKENS} tokens, {count} \
         thread(s), seconds a step: wall, processor"
    );
    let ours = peer::ours(|arithmetic| step::time(transformer(arithmetic), &threads, &batch, runs));
    peer::compare(&ours, "transformer", count, runs);
}
