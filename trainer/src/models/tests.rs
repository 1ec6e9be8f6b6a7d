//! Whole models: gradients against finite differences, and agreement with the encoder crate.

use laser_encoder::{DeviceChoice, Encoder, LoadOptions, Precision};
use laser_model::config::{
    Activation, Architecture, BilstmConfig, BilstmPooling, Config, Dense, MeanConfig, MeanPooling,
    NormPosition, RelativePositions, ResidualBilstmConfig, TransformerConfig, TransformerPooling,
};

use super::parameters::random;
use super::*;
use crate::ops::pool;

const VOCABULARY: usize = 9;

fn transformer(norm: NormPosition, pooling: TransformerPooling) -> Architecture {
    Architecture::Transformer(TransformerConfig {
        hidden_size: 8,
        layers: 2,
        heads: 2,
        intermediate_size: 12,
        max_positions: 20,
        type_vocab_size: 1,
        layer_norm_eps: 1e-5,
        activation: Activation::Gelu,
        norm,
        pooling,
        position_offset: 1,
        scale_embedding: true,
        embedding_norm: true,
        relative_positions: None,
    })
}

/// The same with relative positions.
fn relative(mut encoder: Architecture) -> Architecture {
    if let Architecture::Transformer(c) = &mut encoder {
        c.relative_positions = Some(RelativePositions {
            buckets: 4,
            max_distance: 3,
        });
    }
    encoder
}

fn architectures() -> Vec<Architecture> {
    let mean = |pooling| {
        Architecture::Mean(MeanConfig {
            embedding_size: 8,
            pooling,
        })
    };
    let lstm = |bidirectional, hidden_size, pooling| {
        Architecture::Bilstm(BilstmConfig {
            embedding_size: 6,
            hidden_size,
            layers: 2,
            pooling,
            append_eos: false,
            bidirectional,
        })
    };
    let bilstm = |pooling| lstm(true, 4, pooling);
    // As wide: the same dense layers follow.
    let forward = |pooling| lstm(false, 8, pooling);
    let residual = |pooling, state_pooling, ngrams_from| {
        Architecture::ResidualBilstm(ResidualBilstmConfig {
            embedding_size: 8,
            pooling,
            hidden_size: 4,
            layers: 1,
            state_pooling,
            ngrams_from,
        })
    };
    vec![
        residual(MeanPooling::Weighted, BilstmPooling::Max, Some(3)),
        residual(MeanPooling::Mean, BilstmPooling::Mean, None),
        mean(MeanPooling::Mean),
        mean(MeanPooling::Weighted),
        bilstm(BilstmPooling::Max),
        bilstm(BilstmPooling::Mean),
        bilstm(BilstmPooling::Last),
        forward(BilstmPooling::Max),
        forward(BilstmPooling::Mean),
        forward(BilstmPooling::Last),
        residual(MeanPooling::Mean, BilstmPooling::Last, None),
        transformer(NormPosition::Post, TransformerPooling::Mean),
        transformer(NormPosition::Pre, TransformerPooling::Max),
        transformer(NormPosition::Pre, TransformerPooling::Cls),
        relative(transformer(NormPosition::Post, TransformerPooling::Mean)),
    ]
}

fn model(encoder: Architecture) -> Model {
    let layer = |output, activation, residual, layer_norm| Dense {
        input: 8,
        output,
        activation,
        residual,
        layer_norm,
    };
    let config = Config {
        format: laser_model::config::FORMAT,
        name: "t".into(),
        dimensions: 5,
        max_tokens: 16,
        normalize: true,
        text: Default::default(),
        encoder,
        dense: vec![
            layer(8, Activation::Gelu, true, true),
            layer(8, Activation::GeluTanh, false, false),
            layer(5, Activation::Tanh, false, false),
        ],
        checks: Vec::new(),
        base: None,
        prefixes: Default::default(),
        task: Default::default(),
    };
    let mut model = Model::new(config, VOCABULARY, None, Arithmetic::F32, 5).unwrap();
    for (i, p) in model.parameters_mut().list_mut().iter_mut().enumerate() {
        if p.shape.len() == 1 {
            // Biases, gains and token weights that matter.
            let noise = random(p.value.len(), 0.3, 8, i);
            p.value.iter_mut().zip(noise).for_each(|(v, n)| *v += n);
        }
    }
    model
}

fn batch() -> Ragged {
    let mut batch = Ragged::new();
    for row in [&[1u32, 2, 3][..], &[4], &[5, 1, 8, 0, 3], &[2, 2]] {
        batch.push(row);
    }
    batch
}

#[test]
fn gradients_match_finite_differences() {
    let threads = Threads::new(2).unwrap();
    let batch = batch();
    for architecture in architectures() {
        let name = format!("{architecture:?}");
        let mut model = model(architecture);
        let weights = random(20, 1.0, 6, 6);
        let loss = |model: &Model| -> f64 {
            let z = model.encode(&threads, &batch).unwrap();
            z.iter()
                .zip(&weights)
                .map(|(z, w)| f64::from(*z) * f64::from(*w))
                .sum()
        };
        let (_, saved) = model.forward(&threads, &batch, 0..4, None).unwrap();
        let shards = model
            .backward(&threads, &batch, saved, &weights, None)
            .unwrap();
        let mut gradients = model.parameters().zeros();
        let mut occurrences = Vec::new();
        for shard in shards {
            for (sum, part) in gradients.iter_mut().zip(&shard.dense) {
                laser_kernels::slices::add(part, sum);
            }
            occurrences.push(shard.embeddings);
        }
        let width = model.embedding_size();
        let sparse = pool::gather(&threads, &occurrences, model.parameters().value(0), width);
        assert_eq!(sparse.ids, [0, 1, 2, 3, 4, 5, 8]);
        gradients[0] = vec![0.0; VOCABULARY * width];
        if model.has_token_weights() {
            gradients[1] = vec![0.0; VOCABULARY];
        }
        for (i, id) in sparse.ids.iter().enumerate() {
            let id = *id as usize;
            gradients[0][id * width..(id + 1) * width]
                .copy_from_slice(&sparse.rows[i * width..(i + 1) * width]);
            if model.has_token_weights() {
                gradients[1][id] = sparse.weights[i];
            }
        }
        for (p, expected) in gradients.iter().enumerate() {
            let stride = (expected.len() / 3).max(1);
            for k in (0..expected.len()).step_by(stride) {
                let value = model.parameters().value(p)[k];
                let h = 5e-3f32;
                let mut at = |to: f32| {
                    model.parameters_mut().list_mut()[p].value[k] = to;
                    loss(&model)
                };
                let slope = (at(value + h) - at(value - h)) / f64::from((value + h) - (value - h));
                at(value);
                let gradient = f64::from(expected[k]);
                let tolerance = 4e-3 + 0.02 * slope.abs();
                let parameter = &model.parameters().list()[p].name;
                assert!(
                    (gradient - slope).abs() < tolerance,
                    "{name} {parameter}[{k}]: {gradient} {slope}"
                );
            }
        }
    }
}

#[test]
fn a_device_computes_what_the_processor_computes() {
    let threads = Threads::new(1).unwrap();
    let mut batch = batch();
    batch.push(&[]);
    let count = batch.len();
    let regularization = Some(Regularization {
        embedding: 0.2,
        hidden: 0.3,
        seed: 9,
    });
    let bilstms = architectures();
    let bilstms = bilstms
        .iter()
        .filter(|a| matches!(a, Architecture::Bilstm(_) | Architecture::ResidualBilstm(_)));
    for architecture in bilstms {
        let weights = random(count * 5, 1.0, 6, 6);
        let run = |model: &Model| {
            let (z, saved) = model
                .forward(&threads, &batch, 0..count, regularization)
                .unwrap();
            let mut shards = model
                .backward(&threads, &batch, saved, &weights, regularization)
                .unwrap();
            assert_eq!(shards.len(), 1);
            let shard = shards.remove(0);
            (z, shard.dense, shard.embeddings)
        };
        let (z, dense, embeddings) = run(&model(architecture.clone()));
        let device = LstmDevice::processor(candle_core::DType::F32);
        let there = run(&model(architecture.clone()).on_device(device).unwrap());
        assert_eq!(embeddings.ids, there.2.ids);
        let pairs = (z.iter().zip(&there.0))
            .chain(dense.iter().flatten().zip(there.1.iter().flatten()))
            .chain(embeddings.source.iter().zip(&there.2.source));
        for (a, b) in pairs {
            assert!((a - b).abs() < 1e-5 * (1.0 + a.abs()), "{a} {b}");
        }
    }
}

#[test]
fn frozen_tables_change_no_other_gradient() {
    let threads = Threads::new(2).unwrap();
    let batch = batch();
    let devices = [None, Some(LstmDevice::processor(candle_core::DType::F32))];
    for (architecture, device) in architectures().into_iter().flat_map(|a| {
        let lstm = matches!(a, Architecture::Bilstm(_) | Architecture::ResidualBilstm(_));
        let devices = devices.iter().filter(move |d| d.is_none() || lstm).cloned();
        devices.map(move |d| (a.clone(), d))
    }) {
        let weights = random(20, 1.0, 6, 6);
        let run = |frozen: bool| {
            let mut model = model(architecture.clone());
            if let Some(device) = &device {
                model = model.on_device(device.clone()).unwrap();
            }
            if frozen {
                model.parameters_mut().freeze_sparse();
            }
            let (z, saved) = model.forward(&threads, &batch, 0..4, None).unwrap();
            let shards = model.backward(&threads, &batch, saved, &weights, None);
            (z, shards.unwrap())
        };
        let ((z, trained), (same, frozen)) = (run(false), run(true));
        assert_eq!(z, same);
        for (a, b) in trained.iter().zip(&frozen) {
            assert_eq!(a.dense, b.dense);
            assert!(!a.embeddings.ids.is_empty() && b.embeddings.ids.is_empty());
        }
    }
}

#[test]
fn the_encoder_computes_what_was_trained() {
    let threads = Threads::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("source.json");
    let vocabulary: Vec<String> = (0..VOCABULARY).map(|i| format!("\"w{i}\":{i}")).collect();
    let json = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
           "normalizer":null,"pre_tokenizer":{{"type":"WhitespaceSplit"}},
           "post_processor":null,"decoder":null,
           "model":{{"type":"WordLevel","vocab":{{{}}},"unk_token":"w0"}}}}"#,
        vocabulary.join(",")
    );
    std::fs::write(&tokenizer, json).unwrap();
    let batch = batch();
    for (i, architecture) in architectures().into_iter().enumerate() {
        let model = model(architecture);
        let path = folder.path().join(format!("model-{i}"));
        crate::train::checkpoint::write_model(&path, &model, None, &tokenizer).unwrap();
        let options = LoadOptions {
            device: DeviceChoice::Cpu,
            precision: Precision::F32,
            threads: 1,
        };
        let encoder = Encoder::load(&path, &options).unwrap();
        let ids: Vec<Vec<u32>> = (0..batch.len()).map(|s| batch.row(s).to_vec()).collect();
        let theirs = encoder.encode_ids(&ids).unwrap().data;
        let ours = model.encode(&threads, &batch).unwrap();
        for (a, b) in ours.iter().zip(&theirs) {
            assert!((a - b).abs() < 1e-4, "{i}: {a} {b}");
        }
    }
}
