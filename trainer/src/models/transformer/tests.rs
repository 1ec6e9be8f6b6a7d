//! What the processor computes against candle's autograd, and against finite differences.

use std::ops::Range;

use laser_kernels::training::Arithmetic;
use laser_model::config::{Activation, RelativePositions, TransformerPooling};
use proptest::prelude::*;

use super::layout::{Layout, Part};
use super::*;
use crate::models::parameters::random;
use crate::models::regularization::Regularization;
use crate::ops::pool::gather;
use crate::ops::threads::Threads;

const VOCABULARY: usize = 11;

fn config() -> impl Strategy<Value = TransformerConfig> {
    let norm = prop_oneof![Just(NormPosition::Pre), Just(NormPosition::Post)];
    let pooling = prop_oneof![
        Just(TransformerPooling::Cls),
        Just(TransformerPooling::Max),
        Just(TransformerPooling::Mean)
    ];
    let activation = prop_oneof![
        Just(Activation::None),
        Just(Activation::Tanh),
        Just(Activation::Gelu),
        Just(Activation::GeluTanh),
        Just(Activation::Relu)
    ];
    let relative = proptest::option::of(Just(RelativePositions {
        buckets: 4,
        max_distance: 3,
    }));
    let flags = (any::<bool>(), any::<bool>(), 0usize..3, 0usize..3);
    let sizes = (1usize..4, 3usize..9, 1usize..3, 1usize..20);
    (norm, pooling, activation, relative, flags, sizes).prop_map(
        |(norm, pooling, activation, relative_positions, flags, (heads, size, layers, f))| {
            let (scale_embedding, embedding_norm, type_vocab_size, position_offset) = flags;
            TransformerConfig {
                hidden_size: 2 * heads * size,
                layers,
                heads,
                intermediate_size: f,
                max_positions: 10,
                type_vocab_size,
                layer_norm_eps: 1e-5,
                activation,
                norm,
                pooling,
                position_offset,
                scale_embedding,
                embedding_norm,
                relative_positions,
            }
        },
    )
}

fn parameters(c: &TransformerConfig, seed: u64) -> Parameters {
    let d = c.hidden_size;
    let mut parameters = Parameters::default();
    let table = random(VOCABULARY * d, 0.7, seed, 0);
    parameters.push_sparse("embed_tokens.weight", &[VOCABULARY, d], table);
    initialise(c, &mut parameters, seed);
    for (i, p) in parameters.list_mut().iter_mut().enumerate().skip(1) {
        // Biases, gains and tables that matter.
        let noise = random(p.value.len(), 0.2, seed ^ 8, i);
        p.value.iter_mut().zip(noise).for_each(|(v, n)| *v += n);
    }
    parameters
}

/// Sentences of those lengths.
fn batch(lengths: &[usize], seed: u64) -> Ragged {
    let mut batch = Ragged::new();
    for (s, length) in lengths.iter().enumerate() {
        let ids = random(*length, 5.49, seed, s);
        let ids: Vec<u32> = ids.iter().map(|v| (v + 5.5) as u32).collect();
        batch.push(&ids);
    }
    batch
}

fn pass<'a>(
    parameters: &'a Parameters,
    batch: &'a Ragged,
    sentences: Range<usize>,
    regularization: Regularization,
) -> Pass<'a> {
    Pass {
        parameters,
        dense: 1..parameters.len(),
        arithmetic: Arithmetic::F32,
        device: None,
        batch,
        sentences,
        regularization,
    }
}

/// Gradients of all parameters, the table of embeddings first.
fn all(
    parameters: &Parameters,
    width: usize,
    dense: Vec<Vec<f32>>,
    occurrences: Occurrences,
) -> Vec<Vec<f32>> {
    let threads = Threads::new(1).unwrap();
    let sparse = gather(&threads, &[occurrences], parameters.value(0), width);
    let mut table = vec![0f32; VOCABULARY * width];
    for (id, row) in sparse.ids.iter().zip(sparse.rows.chunks_exact(width)) {
        table[*id as usize * width..][..width].copy_from_slice(row);
    }
    std::iter::once(table)
        .chain(dense.into_iter().skip(1))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn the_processor_computes_what_candle_computes(
        c in config(),
        lengths in proptest::collection::vec(prop_oneof![0usize..3, 1usize..13], 1..8),
        first in 0usize..2,
        dropout: bool,
        at_places: bool,
        seed: u64,
    ) {
        let (parameters, batch) = (parameters(&c, seed), batch(&lengths, seed ^ 1));
        let regularization = Regularization {
            embedding: if dropout { 0.2 } else { 0.0 },
            hidden: if dropout { 0.3 } else { 0.0 },
            seed: seed ^ 2,
        };
        let sentences = first.min(lengths.len() - 1)..lengths.len();
        let pass = pass(&parameters, &batch, sentences.clone(), regularization);
        // Some places twice, some behind the end.
        let mut places = Ragged::new();
        for length in &lengths {
            places.push(&[0, *length as u32 / 2, *length as u32, *length as u32 / 2]);
        }
        let places = at_places.then_some(&places);
        let (ours, saved) = forward::forward(&pass, &c, places);
        let (theirs, graph) = graph::forward(
            &c, &parameters, pass.dense.len(), &batch, sentences, places, regularization,
        );
        prop_assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(&theirs) {
            prop_assert!((a - b).abs() < 1e-4 * (1.0 + a.abs()), "{} {}", a, b);
        }
        let dy = random(ours.len(), 1.0, seed ^ 3, 3);
        let (mut dense, mut expected) = (parameters.zeros(), parameters.zeros());
        let occurrences = backward::backward(&pass, &c, saved, &dy, &mut dense[1..]);
        let others = graph::backward(&c, graph, &dy, &mut expected[1..]);
        let ours = all(&parameters, c.hidden_size, dense, occurrences);
        let theirs = all(&parameters, c.hidden_size, expected, others);
        let largest = |x: &[f32]| x.iter().fold(0f32, |m, v| m.max(v.abs()));
        let overall = theirs.iter().map(|x| largest(x)).fold(0.0, f32::max);
        for ((p, a), b) in parameters.list().iter().zip(&ours).zip(&theirs) {
            // Some gradients are zero but for rounding, as those of the biases of keys.
            let limit = 1e-4 * largest(b) + 1e-5 * overall;
            for (a, b) in a.iter().zip(b) {
                prop_assert!((a - b).abs() <= limit, "{} {} {} {}", p.name, a, b, limit);
            }
        }
    }
}

#[test]
fn gradients_with_dropout_match_finite_differences() {
    let c = TransformerConfig {
        hidden_size: 8,
        layers: 2,
        heads: 2,
        intermediate_size: 6,
        max_positions: 12,
        type_vocab_size: 1,
        layer_norm_eps: 1e-5,
        activation: Activation::Gelu,
        norm: NormPosition::Post,
        pooling: TransformerPooling::Mean,
        position_offset: 1,
        scale_embedding: true,
        embedding_norm: true,
        relative_positions: Some(RelativePositions {
            buckets: 4,
            max_distance: 3,
        }),
    };
    let batch = batch(&[5, 1, 9, 2], 4);
    let regularization = Regularization {
        embedding: 0.2,
        hidden: 0.3,
        seed: 9,
    };
    let dy = random(4 * c.hidden_size, 1.0, 6, 6);
    let mut parameters = parameters(&c, 3);
    let run = |parameters: &Parameters| {
        let pass = pass(parameters, &batch, 0..4, regularization);
        forward::forward(&pass, &c, None)
    };
    let (first, saved) = run(&parameters);
    let (second, _) = run(&parameters);
    assert_eq!(first, second);
    let mut dense = parameters.zeros();
    let occurrences = {
        let pass = pass(&parameters, &batch, 0..4, regularization);
        backward::backward(&pass, &c, saved, &dy, &mut dense[1..])
    };
    let gradients = all(&parameters, c.hidden_size, dense, occurrences);
    for (p, gradient) in gradients.iter().enumerate() {
        for k in (0..gradient.len()).step_by((gradient.len() / 4).max(1)) {
            let (value, h) = (parameters.value(p)[k], 5e-3f32);
            let mut at = |to: f32| -> f64 {
                parameters.list_mut()[p].value[k] = to;
                let out = run(&parameters).0;
                out.iter().zip(&dy).map(|(y, d)| f64::from(y * d)).sum()
            };
            let slope = (at(value + h) - at(value - h)) / f64::from((value + h) - (value - h));
            at(value);
            let (found, name) = (f64::from(gradient[k]), &parameters.list()[p].name);
            let limit = 4e-3 + 0.02 * slope.abs();
            assert!(
                (found - slope).abs() < limit,
                "{name}[{k}]: {found} {slope}"
            );
        }
    }
}

proptest! {
    #[test]
    fn the_layout_is_that_of_the_parameters(c in config()) {
        let (parameters, layout) = (parameters(&c, 1), Layout::new(&c));
        let name = |at: usize| &parameters.list()[1 + at].name[..];
        let mut expected = vec![("embed_positions.weight".to_owned(), 0)];
        let mut one = |name: &str, at: Option<usize>| {
            expected.extend(at.map(|at| (format!("{name}.weight"), at)));
        };
        one("embed_types", layout.types);
        one("relative_positions", layout.relative);
        one("embed_norm", layout.embedding_norm);
        for l in 0..c.layers {
            let mut part = |name: &str, at: usize| one(&format!("layers.{l}.{name}"), Some(at));
            let query = layout.of(l, Part::Query);
            part("attention.query", query);
            part("attention.key", query + 2);
            part("attention.value", query + 4);
            part("attention.output", layout.of(l, Part::Output));
            part("attention_norm", layout.of(l, Part::AttentionNorm));
            part("feed_forward.up", layout.of(l, Part::Up));
            part("feed_forward.down", layout.of(l, Part::Down));
            part("feed_forward_norm", layout.of(l, Part::FeedForwardNorm));
        }
        one("final_norm", layout.final_norm);
        for (expected, at) in &expected {
            prop_assert_eq!(name(*at), expected);
        }
        let last = expected.iter().map(|(_, at)| *at).max();
        prop_assert!(last.is_some_and(|at| at + 2 == parameters.len() - 1), "all parameters");
    }
}
