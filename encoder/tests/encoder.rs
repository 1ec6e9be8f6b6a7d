//! Encoders with random weights against a naive implementation in f64, batch independence, and
//! hostile model folders.

use std::path::Path;

use laser_encoder::{Config, DeviceChoice, Encoder, EncoderError, LoadOptions, Precision, verify};
use laser_model::config::*;
use laser_model::folder::{self, Tensor, Tensors};
use laser_model::{LocalEncoder, ModelError, base};
use laser_protocol::Role;
use proptest::prelude::*;
use tempfile::TempDir;

const VOCABULARY: usize = 40;

/// Writes a model folder and loads it.
fn write(
    folder: &Path,
    config: &Config,
    tokenizer: &tokenizers::Tokenizer,
    tensors: &Tensors,
) -> Result<(), EncoderError> {
    folder::write(folder, config, tokenizer, tensors)?;
    verify(folder)
}

/// xorshift, uniform in [-1, 1).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    fn tensor(&mut self, shape: &[usize], scale: f32) -> Tensor {
        let n = shape.iter().product();
        Tensor::f32(shape, (0..n).map(|_| self.next() * scale).collect())
    }
}

/// Words `w0`, `w1`, … with ids from 4 on, after LASER's four special tokens.
fn tokenizer() -> tokenizers::Tokenizer {
    let mut vocabulary = serde_json::Map::new();
    for (id, token) in ["<s>", "<pad>", "</s>", "<unk>"].into_iter().enumerate() {
        vocabulary.insert(token.into(), id.into());
    }
    for id in 4..VOCABULARY {
        vocabulary.insert(format!("w{}", id - 4), id.into());
    }
    let json = serde_json::json!({
        "version": "1.0",
        "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    });
    tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap()
}

fn config(dimensions: usize, encoder: Architecture) -> Config {
    Config {
        format: FORMAT,
        name: "test".into(),
        dimensions,
        max_tokens: 64,
        normalize: false,
        text: TextConfig::default(),
        encoder,
        dense: vec![],
        checks: vec![],
        base: None,
        prefixes: Default::default(),
        task: Default::default(),
    }
}

fn load(folder: &Path, precision: Precision, threads: usize) -> Encoder {
    Encoder::load(
        folder,
        &LoadOptions {
            device: DeviceChoice::Cpu,
            precision,
            threads,
        },
    )
    .unwrap()
}

fn bilstm(
    layers: usize,
    embedding_size: usize,
    hidden_size: usize,
    pooling: BilstmPooling,
) -> (Config, Tensors) {
    lstm(layers, embedding_size, hidden_size, pooling, true)
}

/// The same, or of one direction.
fn lstm(
    layers: usize,
    embedding_size: usize,
    hidden_size: usize,
    pooling: BilstmPooling,
    bidirectional: bool,
) -> (Config, Tensors) {
    let c = BilstmConfig {
        embedding_size,
        hidden_size,
        layers,
        pooling,
        append_eos: true,
        bidirectional,
    };
    let mut random = Random(layers as u64 * 1000 + hidden_size as u64);
    let mut tensors = Tensors::new();
    tensors.insert(
        "embed_tokens.weight".into(),
        random.tensor(&[VOCABULARY, embedding_size], 1.0),
    );
    for l in 0..layers {
        for suffix in c.suffixes() {
            for (name, shape) in [
                ("weight_ih", vec![4 * hidden_size, c.input_size(l)]),
                ("weight_hh", vec![4 * hidden_size, hidden_size]),
                ("bias_ih", vec![4 * hidden_size]),
                ("bias_hh", vec![4 * hidden_size]),
            ] {
                tensors.insert(
                    format!("lstm.{name}_l{l}{suffix}"),
                    random.tensor(&shape, 0.4),
                );
            }
        }
    }
    (config(c.output_size(), Architecture::Bilstm(c)), tensors)
}

/// The mean with a gated BiLSTM over the same table.
fn residual_bilstm(
    layers: usize,
    size: usize,
    hidden: usize,
    pooling: BilstmPooling,
) -> (Config, Tensors) {
    let (_, mut tensors) = bilstm(layers, size, hidden, pooling);
    let mut random = Random(17 + size as u64);
    tensors.insert("token_weight".into(), random.tensor(&[VOCABULARY], 3.0));
    tensors.insert("gate".into(), Tensor::f32(&[1], vec![0.7]));
    tensors.insert(
        "projection.weight".into(),
        random.tensor(&[size, 2 * hidden], 0.4),
    );
    tensors.insert("projection.bias".into(), random.tensor(&[size], 0.4));
    let encoder = Architecture::ResidualBilstm(ResidualBilstmConfig {
        embedding_size: size,
        pooling: MeanPooling::Weighted,
        hidden_size: hidden,
        layers,
        state_pooling: pooling,
        ngrams_from: Some(25),
    });
    (config(size, encoder), tensors)
}

/// Sum of weighted rows of the table, and of the weights, by the definition.
fn naive_mean(tensors: &Tensors, size: usize, ids: &[u32]) -> Vec<f64> {
    let (table, weights) = (
        tensors["embed_tokens.weight"].to_vec(),
        tensors["token_weight"].to_vec(),
    );
    let (mut sum, mut total) = (vec![0f64; size], 0f64);
    for &id in ids {
        let w = f64::from(weights[id as usize]).exp();
        total += w;
        for (j, sum) in sum.iter_mut().enumerate() {
            *sum += w * f64::from(table[id as usize * size + j]);
        }
    }
    sum.iter().map(|x| x / total).collect()
}

#[test]
fn residual_bilstm_equals_formula() {
    for (layers, size, hidden) in [(1, 8, 16), (1, 5, 3), (2, 20, 32)] {
        for pooling in [BilstmPooling::Max, BilstmPooling::Last, BilstmPooling::Mean] {
            let (config, tensors) = residual_bilstm(layers, size, hidden, pooling);
            let dir = TempDir::new().unwrap();
            write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
            let Architecture::ResidualBilstm(c) = &config.encoder else {
                unreachable!()
            };
            // Ids from 25 on belong to the step before; one in front is a step all the same. The
            // sequence with most ids has not most steps.
            let ids: Vec<Vec<u32>> = vec![
                vec![4],
                vec![30],
                vec![30, 31, 5],
                vec![4, 30, 31, 26, 25, 39, 26],
                vec![6, 7, 8, 24, 9],
                vec![9, 24, 8, 7, 6],
            ];
            let get = |name: &str| tensors[name].to_vec();
            let (matrix, bias) = (get("projection.weight"), get("projection.bias"));
            for threads in [1, 3] {
                let encoder = load(dir.path(), Precision::F32, threads);
                let embeddings = encoder.encode_ids(&ids).unwrap();
                for (ids, row) in ids.iter().zip(embeddings.rows()) {
                    let mut steps: Vec<Vec<u32>> = Vec::new();
                    for &id in ids {
                        match steps.last_mut() {
                            Some(step) if id >= 25 => step.push(id),
                            _ => steps.push(vec![id]),
                        }
                    }
                    let inputs = steps.iter().map(|s| naive_mean(&tensors, size, s));
                    let states = naive_lstm(&c.bilstm(), &tensors, inputs.collect());
                    let expected: Vec<f32> = naive_mean(&tensors, size, ids)
                        .iter()
                        .enumerate()
                        .map(|(j, mean)| {
                            let row = &matrix[j * 2 * hidden..(j + 1) * 2 * hidden];
                            let product: f64 = row
                                .iter()
                                .zip(&states)
                                .map(|(w, s)| f64::from(*w) * f64::from(*s))
                                .sum();
                            (mean + f64::from(0.7f32) * (product + f64::from(bias[j]))) as f32
                        })
                        .collect();
                    let what = format!("{layers} {hidden} {pooling:?} {ids:?}");
                    assert_close(row, &expected, 4e-6, &what);
                }
                // The same words in another order.
                let (a, b) = (embeddings.row(4), embeddings.row(5));
                assert!(a.iter().zip(b).any(|(a, b)| (a - b).abs() > 0.01));
            }
        }
    }
}

#[test]
fn a_shut_gate_leaves_the_mean() {
    let (config, mut tensors) = residual_bilstm(1, 8, 16, BilstmPooling::Max);
    tensors.insert("gate".into(), Tensor::f32(&[1], vec![0.0]));
    let dir = TempDir::new().unwrap();
    write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
    let ids = vec![vec![4, 30, 5], vec![9]];
    let found = load(dir.path(), Precision::Auto, 1).encode_ids(&ids);
    for (ids, row) in ids.iter().zip(found.unwrap().rows()) {
        let mean = naive_mean(&tensors, 8, ids);
        let mean: Vec<f32> = mean.iter().map(|x| *x as f32).collect();
        assert_close(row, &mean, 1e-6, "mean");
    }
    // Sessions do not run it themselves.
    assert!(LocalEncoder::load(dir.path()).unwrap().is_none());
    for broken in [f32::NAN, f32::INFINITY] {
        tensors.insert("gate".into(), Tensor::f32(&[1], vec![broken]));
        let error = write(dir.path(), &config, &tokenizer(), &tensors).unwrap_err();
        assert!(error.to_string().contains("gate"), "{error}");
    }
    tensors.insert("gate".into(), Tensor::f32(&[2], vec![0.0; 2]));
    let error = write(dir.path(), &config, &tokenizer(), &tensors).unwrap_err();
    assert!(error.to_string().contains("gate"), "{error}");
}

/// torch.nn.LSTM by its formulas, one sentence, in f64.
fn naive_bilstm(c: &BilstmConfig, tensors: &Tensors, ids: &[u32]) -> Vec<f32> {
    let table = tensors["embed_tokens.weight"].to_vec();
    let row = |id: &u32| {
        let at = *id as usize * c.embedding_size;
        let row = &table[at..at + c.embedding_size];
        row.iter().map(|x| f64::from(*x)).collect()
    };
    naive_lstm(c, tensors, ids.iter().map(row).collect())
}

/// The same from its inputs.
fn naive_lstm(c: &BilstmConfig, tensors: &Tensors, mut x: Vec<Vec<f64>>) -> Vec<f32> {
    let get =
        |name: &str| -> Vec<f64> { tensors[name].to_vec().into_iter().map(f64::from).collect() };
    let (steps, h, width) = (x.len(), c.hidden_size, c.output_size());
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for l in 0..c.layers {
        let mut y = vec![vec![0f64; width]; steps];
        for (d, suffix) in c.suffixes().iter().enumerate() {
            let part = |what: &str| get(&format!("lstm.{what}_l{l}{suffix}"));
            let (ih, hh) = (part("weight_ih"), part("weight_hh"));
            let (bi, bh) = (part("bias_ih"), part("bias_hh"));
            let (mut state, mut cell) = (vec![0f64; h], vec![0f64; h]);
            for step in 0..steps {
                let t = if d == 0 { step } else { steps - 1 - step };
                let input = x[t].len();
                let gates: Vec<f64> = (0..4 * h)
                    .map(|j| {
                        let a: f64 = (0..input).map(|p| ih[j * input + p] * x[t][p]).sum();
                        let b: f64 = (0..h).map(|p| hh[j * h + p] * state[p]).sum();
                        a + b + bi[j] + bh[j]
                    })
                    .collect();
                for u in 0..h {
                    cell[u] = sigmoid(gates[h + u]) * cell[u]
                        + sigmoid(gates[u]) * gates[2 * h + u].tanh();
                    state[u] = sigmoid(gates[3 * h + u]) * cell[u].tanh();
                    y[t][d * h + u] = state[u];
                }
            }
        }
        x = y;
    }
    (0..width)
        .map(|j| {
            let column = x.iter().map(|row| row[j]);
            let value = match c.pooling {
                BilstmPooling::Max => column.fold(f64::NEG_INFINITY, f64::max),
                BilstmPooling::Mean => column.sum::<f64>() / steps as f64,
                BilstmPooling::Last => x[if j < h { steps - 1 } else { 0 }][j],
            };
            value as f32
        })
        .collect()
}

fn assert_close(x: &[f32], y: &[f32], tolerance: f32, what: &str) {
    assert_eq!(x.len(), y.len(), "{what}");
    for (i, (a, b)) in x.iter().zip(y).enumerate() {
        assert!(
            (a - b).abs() <= tolerance,
            "{what}, dimension {i}: {a} and {b}"
        );
    }
}

fn cosine(x: &[f32], y: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    };
    dot(x, y) / (dot(x, x) * dot(y, y)).sqrt()
}

fn sentences(random: &mut Random, n: usize, longest: usize) -> Vec<String> {
    (0..n)
        .map(|_| {
            let words = ((random.next() + 1.0) / 2.0 * (longest + 1) as f32) as usize;
            let word = |r: f32| format!("w{}", ((r + 1.0) / 2.0 * 40.0) as usize);
            (0..words)
                .map(|_| word(random.next()))
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}

#[test]
fn lstm_equals_naive_lstm() {
    // Hidden sizes that are, and are not, multiples of the vector width.
    for (layers, embedding, hidden, bidirectional) in [
        (1, 8, 16, true),
        (1, 5, 3, true),
        (2, 20, 32, true),
        (3, 7, 21, true),
        (5, 16, 8, true),
        (1, 8, 16, false),
        (3, 7, 21, false),
    ] {
        for pooling in [BilstmPooling::Max, BilstmPooling::Last, BilstmPooling::Mean] {
            let (config, tensors) = lstm(layers, embedding, hidden, pooling, bidirectional);
            let dir = TempDir::new().unwrap();
            write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
            let Architecture::Bilstm(c) = &config.encoder else {
                unreachable!()
            };
            for threads in [1, 3] {
                let encoder = load(dir.path(), Precision::F32, threads);
                let texts = sentences(&mut Random(99), 37, 12);
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let embeddings = encoder.encode(&texts).unwrap();
                let tokens = encoder.tokenize(&texts).unwrap();
                for (i, row) in embeddings.rows().enumerate() {
                    let ids = &tokens[i].ids;
                    assert_eq!(ids.last(), Some(&2), "end of sentence");
                    let expected = naive_bilstm(c, &tensors, ids);
                    assert_close(
                        row,
                        &expected,
                        2e-6,
                        &format!("{layers} {hidden} {bidirectional} {pooling:?}"),
                    );
                }
            }
        }
    }
}

#[test]
fn reduced_precision_stays_close() {
    for model in [
        bilstm(3, 64, 64, BilstmPooling::Max),
        lstm(3, 64, 64, BilstmPooling::Last, false),
    ] {
        precisions_agree(model);
    }
}

fn precisions_agree((config, tensors): (Config, Tensors)) {
    let dir = TempDir::new().unwrap();
    write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
    let texts = sentences(&mut Random(7), 64, 30);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let exact = load(dir.path(), Precision::F32, 1).encode(&texts).unwrap();
    for precision in [Precision::Bf16, Precision::I8] {
        let encoder = load(dir.path(), precision, 1);
        let rounded = encoder.encode(&texts).unwrap();
        for (x, y) in exact.rows().zip(rounded.rows()) {
            assert!(cosine(x, y) > 0.999, "{precision:?}: {}", cosine(x, y));
        }
    }
    // Automatic choice keeps its promise, whatever this machine makes it choose.
    let encoder = load(dir.path(), Precision::Auto, 1);
    assert_ne!(encoder.precision(), Precision::Auto);
    for (x, y) in exact.rows().zip(encoder.encode(&texts).unwrap().rows()) {
        assert!(cosine(x, y) > 0.999);
    }
}

fn mean(pooling: MeanPooling, size: usize) -> (Config, Tensors) {
    let mut random = Random(size as u64);
    let mut tensors = Tensors::new();
    tensors.insert(
        "embed_tokens.weight".into(),
        random.tensor(&[VOCABULARY, size], 1.0),
    );
    if pooling == MeanPooling::Weighted {
        tensors.insert("token_weight".into(), random.tensor(&[VOCABULARY], 3.0));
    }
    let encoder = Architecture::Mean(MeanConfig {
        embedding_size: size,
        pooling,
    });
    (config(size, encoder), tensors)
}

#[test]
fn mean_with_dense_layers_equals_formula() {
    for pooling in [MeanPooling::Mean, MeanPooling::Weighted] {
        let (mut config, mut tensors) = mean(pooling, 24);
        config.dense = vec![
            Dense {
                input: 24,
                output: 40,
                activation: Activation::Gelu,
                residual: false,
                layer_norm: true,
            },
            Dense {
                input: 40,
                output: 40,
                activation: Activation::Tanh,
                residual: true,
                layer_norm: false,
            },
        ];
        config.dimensions = 40;
        config.normalize = true;
        let mut random = Random(5);
        for (i, input) in [(0, 24), (1, 40)] {
            tensors.insert(
                format!("dense.{i}.weight"),
                random.tensor(&[40, input], 0.5),
            );
            tensors.insert(format!("dense.{i}.bias"), random.tensor(&[40], 0.5));
        }
        tensors.insert("dense.0.norm.weight".into(), random.tensor(&[40], 1.0));
        tensors.insert("dense.0.norm.bias".into(), random.tensor(&[40], 1.0));
        let dir = TempDir::new().unwrap();
        write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
        let encoder = load(dir.path(), Precision::F32, 2);
        let ids = vec![vec![4, 5, 5, 39], vec![7]];
        let embeddings = encoder.encode_ids(&ids).unwrap();
        let get = |name: &str| -> Vec<f64> {
            tensors[name].to_vec().into_iter().map(f64::from).collect()
        };
        for (ids, row) in ids.iter().zip(embeddings.rows()) {
            let (table, mut x, mut total) = (get("embed_tokens.weight"), vec![0f64; 24], 0.0);
            for &id in ids {
                let w = match pooling {
                    MeanPooling::Mean => 1.0,
                    MeanPooling::Weighted => get("token_weight")[id as usize].exp(),
                };
                total += w;
                for (j, x) in x.iter_mut().enumerate() {
                    *x += w * table[id as usize * 24 + j];
                }
            }
            x.iter_mut().for_each(|x| *x /= total);
            for i in 0..2 {
                let (w, b) = (
                    get(&format!("dense.{i}.weight")),
                    get(&format!("dense.{i}.bias")),
                );
                let mut y: Vec<f64> = (0..40)
                    .map(|j| {
                        let n = x.len();
                        b[j] + (0..n).map(|p| w[j * n + p] * x[p]).sum::<f64>()
                    })
                    .collect();
                if i == 0 {
                    // erf by integration: the crate's own must not vouch for itself.
                    let erf = |x: f64| {
                        let n = 4000;
                        let step = x / f64::from(n);
                        let f = |i: i32| (-(f64::from(i) * step + step / 2.0).powi(2)).exp();
                        (0..n).map(f).sum::<f64>() * step * std::f64::consts::FRAC_2_SQRT_PI
                    };
                    y.iter_mut()
                        .for_each(|y| *y *= 0.5 * (1.0 + erf(*y / 2f64.sqrt())));
                    let mean = y.iter().sum::<f64>() / 40.0;
                    let variance = y.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / 40.0;
                    let (g, b) = (get("dense.0.norm.weight"), get("dense.0.norm.bias"));
                    for (j, y) in y.iter_mut().enumerate() {
                        *y = (*y - mean) / (variance + 1e-5).sqrt() * g[j] + b[j];
                    }
                } else {
                    y.iter_mut().zip(&x).for_each(|(y, x)| *y = y.tanh() + x);
                }
                x = y;
            }
            let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let expected: Vec<f32> = x.iter().map(|x| (x / norm) as f32).collect();
            assert_close(row, &expected, 1e-6, &format!("{pooling:?}"));
        }
    }
}

#[test]
fn tables_in_every_type_agree() {
    let (config, mut tensors) = mean(MeanPooling::Mean, 33);
    let full = tensors["embed_tokens.weight"].clone();
    let (int8, scale) = full.to_i8();
    let dir = TempDir::new().unwrap();
    let embed = |table: Tensor, tensors: &mut Tensors| {
        tensors.insert("embed_tokens.weight".into(), table);
        write(dir.path(), &config, &tokenizer(), tensors).unwrap();
        load(dir.path(), Precision::Auto, 1)
            .encode(&["w0 w1 w2", "w30"])
            .unwrap()
            .data
    };
    let exact = embed(full.clone(), &mut tensors);
    assert_close(&exact, &embed(full.to_f16(), &mut tensors), 1e-3, "f16");
    assert_close(&exact, &embed(full.to_bf16(), &mut tensors), 5e-3, "bf16");
    tensors.insert("embed_tokens.weight.scale".into(), scale);
    assert_close(&exact, &embed(int8, &mut tensors), 5e-3, "int8");
}

fn transformer(
    norm: NormPosition,
    pooling: TransformerPooling,
    relative_positions: Option<RelativePositions>,
) -> (Config, Tensors) {
    let (d, f, layers) = (24, 40, 2);
    let mut random = Random(3);
    let mut tensors = Tensors::new();
    let mut put = |name: String, shape: &[usize], scale| {
        tensors.insert(name, random.tensor(shape, scale));
    };
    put("embed_tokens.weight".into(), &[VOCABULARY, d], 1.0);
    put("embed_positions.weight".into(), &[70, d], 1.0);
    put("embed_types.weight".into(), &[2, d], 1.0);
    put("relative_positions.weight".into(), &[8, 4], 2.0);
    let mut norms = vec!["embed_norm".to_owned(), "final_norm".to_owned()];
    for l in 0..layers {
        for (name, rows, columns) in [
            ("attention.query", d, d),
            ("attention.key", d, d),
            ("attention.value", d, d),
            ("attention.output", d, d),
            ("feed_forward.up", f, d),
            ("feed_forward.down", d, f),
        ] {
            put(format!("layers.{l}.{name}.weight"), &[rows, columns], 0.4);
            put(format!("layers.{l}.{name}.bias"), &[rows], 0.4);
        }
        norms.push(format!("layers.{l}.attention_norm"));
        norms.push(format!("layers.{l}.feed_forward_norm"));
    }
    for name in norms {
        put(format!("{name}.weight"), &[d], 1.0);
        put(format!("{name}.bias"), &[d], 1.0);
    }
    let encoder = Architecture::Transformer(TransformerConfig {
        hidden_size: d,
        layers,
        heads: 4,
        intermediate_size: f,
        max_positions: 70,
        type_vocab_size: 2,
        layer_norm_eps: 1e-12,
        activation: Activation::Gelu,
        norm,
        pooling,
        position_offset: 0,
        scale_embedding: false,
        embedding_norm: true,
        relative_positions,
    });
    (config(d, encoder), tensors)
}

/// With rotary positions; in one of its layers tokens see those near them alone.
fn rotary() -> (Config, Tensors) {
    let (d, f, heads, keys, size) = (24, 40, 4, 2, 10);
    let mut random = Random(5);
    let mut tensors = Tensors::new();
    let mut put = |name: String, shape: &[usize], scale| {
        tensors.insert(format!("{name}.weight"), random.tensor(shape, scale));
    };
    put("embed_tokens".into(), &[VOCABULARY, d], 1.0);
    put("final_norm".into(), &[d], 1.0);
    for l in 0..2 {
        for (name, rows, columns) in [
            ("attention.query", heads * size, d),
            ("attention.key", keys * size, d),
            ("attention.value", keys * size, d),
            ("attention.output", d, heads * size),
            ("feed_forward.gate", f, d),
            ("feed_forward.up", f, d),
            ("feed_forward.down", d, f),
        ] {
            put(format!("layers.{l}.{name}"), &[rows, columns], 0.4);
        }
        for (name, size) in [
            ("attention_norm", d),
            ("attention_output_norm", d),
            ("feed_forward_norm", d),
            ("feed_forward_output_norm", d),
            ("attention.query_norm", size),
            ("attention.key_norm", size),
        ] {
            put(format!("layers.{l}.{name}"), &[size], 1.0);
        }
    }
    let encoder = Architecture::RotaryTransformer(RotaryTransformerConfig {
        hidden_size: d,
        layers: vec![Reach::Local, Reach::Full],
        heads,
        key_value_heads: keys,
        head_size: size,
        intermediate_size: f,
        max_positions: 70,
        rms_norm_eps: 1e-6,
        activation: Activation::GeluTanh,
        score_scale: 0.3,
        rotary_base: 1e6,
        local: Some(LocalAttention {
            window: 7,
            rotary_base: 1e4,
        }),
        pooling: TransformerPooling::Mean,
    });
    (config(d, encoder), tensors)
}

/// Every architecture in a folder of its own.
fn folders() -> &'static [(TempDir, &'static str)] {
    static FOLDERS: std::sync::OnceLock<Vec<(TempDir, &'static str)>> = std::sync::OnceLock::new();
    FOLDERS.get_or_init(|| {
        let models = [
            ("mean", mean(MeanPooling::Weighted, 20)),
            ("bilstm max", bilstm(2, 12, 20, BilstmPooling::Max)),
            ("bilstm last", bilstm(2, 12, 20, BilstmPooling::Last)),
            ("bilstm mean", bilstm(2, 12, 20, BilstmPooling::Mean)),
            (
                "lstm of one direction",
                lstm(2, 12, 20, BilstmPooling::Last, false),
            ),
            (
                "residual bilstm",
                residual_bilstm(1, 12, 20, BilstmPooling::Max),
            ),
            (
                "cls",
                transformer(NormPosition::Post, TransformerPooling::Cls, None),
            ),
            (
                "max",
                transformer(NormPosition::Pre, TransformerPooling::Max, None),
            ),
            (
                "average",
                transformer(NormPosition::Post, TransformerPooling::Mean, None),
            ),
            (
                "relative",
                transformer(
                    NormPosition::Post,
                    TransformerPooling::Mean,
                    Some(RelativePositions {
                        buckets: 8,
                        max_distance: 20,
                    }),
                ),
            ),
            ("rotary", rotary()),
        ];
        models
            .into_iter()
            .map(|(name, (config, tensors))| {
                let dir = TempDir::new().unwrap();
                write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
                (dir, name)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn embedding_does_not_depend_on_batch(
        seed in 1u64.., n in 1usize..90, longest in 1usize..80, threads in 1usize..4,
    ) {
        for (dir, name) in folders() {
            for precision in [Precision::F32, Precision::Auto] {
                let encoder = load(dir.path(), precision, threads);
                let texts = sentences(&mut Random(seed), n, longest);
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let together = encoder.encode(&texts).unwrap();
                prop_assert_eq!(together.data.len(), n * encoder.dimensions());
                for i in [0, n / 3, n - 1] {
                    let alone = encoder.encode(&texts[i..=i]).unwrap();
                    prop_assert_eq!(alone.truncated[0], together.truncated[i]);
                    for (a, b) in alone.data.iter().zip(together.row(i)) {
                        prop_assert!((a - b).abs() < 1e-5, "{}: {} {}", name, a, b);
                    }
                }
            }
        }
    }
}

#[test]
fn empty_texts_are_the_end_token() {
    for (dir, name) in folders() {
        let encoder = load(dir.path(), Precision::F32, 2);
        let embeddings = encoder.encode(&["", "   \n", "w3"]).unwrap();
        let lone = encoder.encode_ids(&[vec![2]]).unwrap();
        assert_eq!(embeddings.row(0), lone.row(0), "{name}");
        assert_eq!(embeddings.row(1), lone.row(0), "{name}");
        assert_ne!(embeddings.row(2), lone.row(0), "{name}");
        assert!(embeddings.data.iter().all(|x| x.is_finite()), "{name}");
        let none = encoder.encode_ids(&[vec![4, 5], vec![]]).unwrap();
        assert!(none.row(1).iter().all(|x| *x == 0.0), "{name}");
        assert!(encoder.encode(&[]).unwrap().data.is_empty());
    }
}

#[test]
fn long_texts_are_cut_and_flagged() {
    for (dir, name) in folders() {
        let encoder = load(dir.path(), Precision::F32, 1);
        let long = vec!["w1"; 200].join(" ");
        let huge = "x".repeat(3_000_000);
        let embeddings = encoder.encode(&["w1 w2", &long, &huge]).unwrap();
        assert_eq!(embeddings.truncated, [false, true, true], "{name}");
        assert!(
            encoder.tokenize(&[&long]).unwrap()[0].ids.len() == 64,
            "{name}"
        );
        assert!(matches!(
            encoder.encode_ids(&[vec![1, VOCABULARY as u32]]),
            Err(EncoderError::Model(ModelError::TokenId {
                id: 40,
                vocabulary: 40
            }))
        ));
    }
}

#[test]
fn fingerprint_follows_the_contents() {
    let (config, tensors) = mean(MeanPooling::Mean, 8);
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for dir in [&a, &b] {
        write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
    }
    let print = |dir: &TempDir| load(dir.path(), Precision::F32, 1).fingerprint();
    assert_eq!(print(&a), print(&b));
    let before = print(&a);
    let mut changed = config.clone();
    changed.max_tokens += 1;
    write(a.path(), &changed, &tokenizer(), &tensors).unwrap();
    assert_ne!(before, print(&a));
}

/// A mean named `base`, and a BiLSTM named `model` beside it that builds on it; the table is the mean's.
fn based(path: &Path, format: i8) -> (Config, Tensors) {
    let (_, mut tensors) = residual_bilstm(1, 8, 16, BilstmPooling::Max);
    if format > 0 {
        let (values, scale) = tensors["embed_tokens.weight"].to_i8();
        tensors.insert("embed_tokens.weight".into(), values);
        tensors.insert("embed_tokens.weight.scale".into(), scale);
    }
    let (mut config, _) = residual_bilstm(1, 8, 16, BilstmPooling::Max);
    let (mean, _) = mean(MeanPooling::Weighted, 8);
    let (theirs, own): (Tensors, Tensors) = tensors
        .clone()
        .into_iter()
        .partition(|(name, _)| folder::PER_TOKEN.contains(&name.as_str()));
    folder::write(&path.join("base"), &mean, &tokenizer(), &theirs).unwrap();
    let whole = config.clone();
    config.base = Some(Base {
        model: "base".into(),
        fingerprint: base::hex(&folder::fingerprint(&path.join("base")).unwrap()),
    });
    folder::write(&path.join("model"), &config, &tokenizer(), &own).unwrap();
    folder::write(&path.join("whole"), &whole, &tokenizer(), &tensors).unwrap();
    (config, own)
}

#[test]
fn a_model_on_a_base_is_the_model_with_its_table() {
    for format in [0, 1] {
        let dir = TempDir::new().unwrap();
        based(dir.path(), format);
        let model = dir.path().join("model");
        assert!(!model.join(folder::TOKENIZER).exists());
        let texts = ["w1 w2 w3", "w3 w2 w1", "w30", ""];
        for precision in [Precision::F32, Precision::I8, Precision::Auto] {
            let found = load(&model, precision, 1);
            // What is measured to be fastest may be another one the next time, in models as small as this.
            let whole = load(&dir.path().join("whole"), found.precision(), 1);
            assert_eq!(found.encode(&texts).unwrap(), whole.encode(&texts).unwrap());
            assert_ne!(found.fingerprint(), whole.fingerprint());
            assert_eq!(found.fingerprint(), folder::fingerprint(&model).unwrap());
        }
        // Sessions hold what they run themselves in their own memory.
        assert!(LocalEncoder::load(&model).unwrap().is_none());
        // A link elsewhere stands where it is installed; a folder without a name is resolved.
        std::fs::create_dir(dir.path().join("elsewhere")).unwrap();
        let moved = dir.path().join("elsewhere/model");
        std::fs::rename(&model, &moved).unwrap();
        assert!(failure(&moved).contains("not beside it"));
        std::os::unix::fs::symlink(&moved, &model).unwrap();
        load(&model, Precision::F32, 1);
        load(&dir.path().join("base/../model"), Precision::F32, 1);
        std::fs::rename(dir.path().join("base"), dir.path().join("elsewhere/base")).unwrap();
        load(&moved.join("."), Precision::F32, 1);
        std::fs::create_dir(moved.join("sub")).unwrap();
        load(&moved.join("sub/.."), Precision::F32, 1);
    }
}

#[test]
fn what_is_wrong_with_a_base_is_said() {
    let dir = TempDir::new().unwrap();
    let (config, own) = based(dir.path(), 0);
    let (model, base) = (dir.path().join("model"), dir.path().join("base"));
    let read = |path: &Path| std::fs::read(path).unwrap();
    let expect = |what: &str| {
        let message = failure(&model);
        assert!(message.contains(what), "{what}: {message}");
    };

    // Another table, another tokenizer, another configuration.
    for name in [folder::WEIGHTS, folder::TOKENIZER, folder::CONFIG] {
        let before = read(&base.join(name));
        let mut changed = before.clone();
        match name {
            folder::WEIGHTS => *changed.last_mut().unwrap() ^= 1,
            _ => changed.push(b' '),
        }
        std::fs::write(base.join(name), &changed).unwrap();
        let found = base::hex(&folder::fingerprint(&base).unwrap());
        expect(&format!("the one beside it has {}", &found[..16]));
        std::fs::write(base.join(name), before).unwrap();
        load(&model, Precision::F32, 1);
    }
    // It is the model's fingerprint that tells one base from another.
    let before = folder::fingerprint(&model).unwrap();
    let with = |other: Config| {
        std::fs::write(model.join(folder::CONFIG), other.to_json()).unwrap();
    };
    let changed = |model: &str, fingerprint: &str| Config {
        base: Some(Base {
            model: model.into(),
            fingerprint: fingerprint.into(),
        }),
        ..config.clone()
    };
    with(changed("base", &"0".repeat(64)));
    expect("with fingerprint 0000000000000000");
    assert_ne!(before, folder::fingerprint(&model).unwrap());
    for (name, fingerprint, what) in [
        (
            "missing",
            "0".repeat(64),
            "\"missing\", which is not beside it",
        ),
        ("../base", "0".repeat(64), "base.model"),
        ("", "0".repeat(64), "base.model"),
        (".", "0".repeat(64), "base.model"),
        ("base", "0".repeat(63), "base.fingerprint"),
        ("base", "A".repeat(64), "base.fingerprint"),
        ("base", "é".repeat(32), "base.fingerprint"),
        ("model", "0".repeat(64), "builds on another one itself"),
    ] {
        with(changed(name, &fingerprint));
        expect(what);
    }
    let mut text = config.clone();
    text.text.lowercase = true;
    with(text);
    expect("prepares texts in another way");
    // A model of its own, as far as it says, lacks files.
    with(Config {
        base: None,
        ..config.clone()
    });
    expect(folder::TOKENIZER);
    let error = folder::fingerprint(&model).unwrap_err().to_string();
    assert!(error.contains(folder::TOKENIZER), "{error}");
    with(config.clone());

    std::fs::copy(base.join(folder::TOKENIZER), model.join(folder::TOKENIZER)).unwrap();
    expect("tokenizer.json\": the file must be that of model \"base\"");
    std::fs::remove_file(model.join(folder::TOKENIZER)).unwrap();

    for name in folder::PER_TOKEN {
        let mut both = own.clone();
        both.insert(name.into(), Tensor::f32(&[1], vec![0.0]));
        let error = write(&model, &config, &tokenizer(), &both).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(name) && error.contains("base model"),
            "{error}"
        );
    }
    let mut less = own.clone();
    less.remove("gate");
    let error = write(&model, &config, &tokenizer(), &less).unwrap_err();
    assert!(
        error.to_string().contains("model/model.safetensors"),
        "{error}"
    );
    write(&model, &config, &tokenizer(), &own).unwrap();

    // Tensors of the base are named with its file.
    let (mean, _) = mean(MeanPooling::Mean, 8);
    let table = Tensors::from([(
        "embed_tokens.weight".to_owned(),
        Random(3).tensor(&[VOCABULARY, 8], 1.0),
    )]);
    folder::write(&base, &mean, &tokenizer(), &table).unwrap();
    with(changed(
        "base",
        &base::hex(&folder::fingerprint(&base).unwrap()),
    ));
    expect("base/model.safetensors");
}

/// The server runs under another account than whoever makes a model.
#[test]
fn a_folder_has_the_permissions_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let (config, tensors) = mean(MeanPooling::Mean, 8);
    let dir = TempDir::new().unwrap();
    write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
    std::fs::write(dir.path().join("any"), "").unwrap();
    let mode = |name: &str| {
        let metadata = std::fs::metadata(dir.path().join(name)).unwrap();
        metadata.permissions().mode()
    };
    for name in [folder::CONFIG, folder::TOKENIZER, folder::WEIGHTS] {
        assert_eq!(mode(name), mode("any"), "{name}");
    }
}

#[test]
fn ids_that_the_table_lacks_are_errors() {
    let (config, tensors) = mean(MeanPooling::Mean, 4);
    let dir = TempDir::new().unwrap();
    write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
    // As many tokens as before, one of them with an id far beyond the rows of the table.
    let path = dir.path().join(folder::TOKENIZER);
    let json = std::fs::read_to_string(&path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let changed = json.to_string().replace("\"w0\":4,", "\"w0\":4000000000,");
    assert_ne!(changed, json.to_string());
    std::fs::write(&path, changed).unwrap();

    let encoder = load(dir.path(), Precision::F32, 1);
    let error = encoder.encode(&["w1 w0"]).unwrap_err();
    assert!(
        matches!(error, EncoderError::Model(ModelError::TokenId { .. })),
        "{error}"
    );
    let local = LocalEncoder::load(dir.path()).unwrap().expect("a mean");
    let mut out = [0.0; 4];
    let error = local.encode("w1 w0", Role::Plain, &mut out).unwrap_err();
    assert!(matches!(error, ModelError::TokenId { .. }), "{error}");
    local.encode("w1", Role::Plain, &mut out).unwrap();
    let alone = load(dir.path(), Precision::F32, 1).encode(&["w1"]).unwrap();
    assert_close(&out, alone.row(0), 1e-6, "w1");
}

fn failure(folder: &Path) -> String {
    match Encoder::load(
        folder,
        &LoadOptions {
            threads: 1,
            ..Default::default()
        },
    ) {
        Ok(_) => panic!("the folder should not load"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn broken_folders_give_errors_that_name_the_culprit() {
    let (config, tensors) = bilstm(2, 6, 4, BilstmPooling::Max);
    let dir = TempDir::new().unwrap();
    let path = dir.path();
    assert!(failure(path).contains("config.json"));
    write(path, &config, &tokenizer(), &tensors).unwrap();

    let json = std::fs::read_to_string(path.join("config.json")).unwrap();
    for (from, to, expected) in [
        ("\"format\": 1", "\"format\": 2", "format is 2"),
        ("\"dimensions\": 8", "\"dimensions\": 9", "dimensions is 9"),
        ("\"layers\": 2", "\"layers\": 3", "lstm.weight_ih_l2"),
        (
            "\"layers\": 2",
            "\"layers\": 2, \"heads\": 3",
            "unknown field `heads`",
        ),
        ("\"pooling\": \"max\"", "\"pooling\": \"median\"", "median"),
        (
            "\"embedding_size\": 6",
            "\"embedding_size\": 7",
            "expected shape [40, 7], found [40, 6]",
        ),
        (
            "\"embedding_size\": 6",
            "\"embedding_size\": 70000",
            "embedding_size",
        ),
        ("\"name\": \"test\"", "\"name\": \"../test\"", "name"),
        ("\"max_tokens\": 64", "\"max_tokens\": 0", "max_tokens"),
        ("{", "[", "config.json"),
    ] {
        assert!(json.contains(from), "{from}");
        std::fs::write(path.join("config.json"), json.replacen(from, to, 1)).unwrap();
        let message = failure(path);
        assert!(message.contains(expected), "{to}: {message}");
    }
    std::fs::write(path.join("config.json"), json).unwrap();

    let tokenizer = std::fs::read(path.join("tokenizer.json")).unwrap();
    for broken in [&b""[..], b"{}", b"null", &tokenizer[..tokenizer.len() / 2]] {
        std::fs::write(path.join("tokenizer.json"), broken).unwrap();
        assert!(failure(path).contains("tokenizer.json"));
    }
    let more = String::from_utf8(tokenizer.clone()).unwrap();
    let more = more.replacen("\"w0\"", "\"extra\": 40, \"w0\"", 1);
    std::fs::write(path.join("tokenizer.json"), more).unwrap();
    assert!(
        failure(path).contains("expected at least 41 rows"),
        "{}",
        failure(path)
    );
    std::fs::write(path.join("tokenizer.json"), tokenizer).unwrap();

    let weights = std::fs::read(path.join("model.safetensors")).unwrap();
    for length in [0, 4, 8, 100, weights.len() - 1] {
        std::fs::write(path.join("model.safetensors"), &weights[..length]).unwrap();
        assert!(
            failure(path).contains("model.safetensors"),
            "{}",
            failure(path)
        );
    }
    let mut missing = tensors.clone();
    missing.remove("lstm.bias_hh_l1_reverse");
    let error = write(path, &config, &self::tokenizer(), &missing)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("lstm.bias_hh_l1_reverse") && error.contains("missing"),
        "{error}"
    );
    let mut wrong = tensors;
    wrong.insert(
        "lstm.weight_hh_l0".into(),
        Tensor::f32(&[4, 16], vec![0.0; 64]),
    );
    let error = write(path, &config, &self::tokenizer(), &wrong)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("lstm.weight_hh_l0") && error.contains("[16, 4]"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn flipped_bytes_never_panic(
        file in 0usize..3, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        residual: bool,
    ) {
        let (config, tensors) = if residual {
            residual_bilstm(1, 3, 2, BilstmPooling::Max)
        } else {
            bilstm(1, 3, 2, BilstmPooling::Max)
        };
        let dir = TempDir::new().unwrap();
        write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
        let name = ["config.json", "tokenizer.json", "model.safetensors"][file];
        let path = dir.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        for (index, byte) in changes {
            let at = index.index(bytes.len().min(4000));
            bytes[at] = byte;
        }
        std::fs::write(&path, bytes).unwrap();
        let options = LoadOptions { threads: 1, ..Default::default() };
        if let Ok(encoder) = Encoder::load(dir.path(), &options)
            && let Ok(embeddings) = encoder.encode(&["w1 w2 unknown", ""])
        {
            prop_assert_eq!(embeddings.data.len(), 2 * encoder.dimensions());
        }
    }
}

#[test]
#[cfg(not(feature = "cuda"))]
fn cuda_without_support_is_an_error() {
    let (config, tensors) = mean(MeanPooling::Mean, 8);
    let dir = TempDir::new().unwrap();
    write(dir.path(), &config, &tokenizer(), &tensors).unwrap();
    let options = LoadOptions {
        device: DeviceChoice::Cuda(0),
        ..Default::default()
    };
    let error = Encoder::load(dir.path(), &options)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("no CUDA support"), "{error}");
}
