//! The encoder architectures, one file each.

pub(crate) mod bilstm;
pub(crate) mod bilstm_candle;
pub(crate) mod dense;
mod mean;
pub(crate) mod mean_candle;
mod on_device;
pub(crate) mod residual_bilstm;
pub(crate) mod residual_bilstm_candle;
pub(crate) mod rotary_candle;
pub(crate) mod rotary_packed;
mod shape;
pub(crate) mod transformer;
pub(crate) mod transformer_candle;
pub(crate) mod transformer_packed;

use candle_core::Device;

use crate::EncoderError;
use crate::batch::Budget;
use laser_kernels::Precision;
use laser_kernels::attention::Bias;
use laser_model::config::TransformerConfig;
use laser_model::folder::Weights;

/// From token ids to pooled states.
pub(crate) trait Model: Send + Sync {
    /// Rows of the embedding table; every id must be below it.
    fn vocabulary(&self) -> usize;

    /// Width of a pooled state.
    fn width(&self) -> usize;

    /// Pools each sequence into its row of `out` (`sequences.len()` x `width()`). Sequences are
    /// sorted by descending length; their ids have been checked. `parallel` says that the call
    /// runs on a thread of the encoder's pool and may fork there. A sequence of length zero gives
    /// zeros.
    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        parallel: bool,
    ) -> Result<(), EncoderError>;

    /// Floating point operations for each token, roughly; decides whether a pool is worth its
    /// hand-over.
    fn flops_per_token(&self) -> usize;

    /// Batches that can run at the same time on `threads` threads.
    fn lanes(&self, threads: usize) -> usize {
        threads
    }

    /// Whether a batch costs its longest sentence times its rows.
    fn padded(&self) -> bool {
        false
    }

    /// What a batch may have at most.
    fn budget(&self) -> Budget {
        Budget::PROCESSOR
    }

    /// Bytes of host memory on top of the mapped file: packed weights.
    fn bytes(&self) -> usize;
}

/// What a precision has to take longer by for another one to count as faster: the choice shall not
/// change with the noise of the clock.
const MARGIN: f64 = 1.15;
/// Measurements of each precision, in turns: whatever else the machine does disturbs all of them, and the
/// shortest is the one that it disturbed least.
const TURNS: usize = 5;

/// Does a little work and tells how many seconds of the thread it took.
type Probe = Box<dyn FnMut() -> f64>;

/// Reduced precisions that take less time than f32, fastest first; int8 first where both are alike.
fn faster_than_f32(
    mut probe: impl FnMut(Precision) -> Result<Probe, EncoderError>,
) -> Result<Vec<Precision>, EncoderError> {
    let mut probes = [
        probe(Precision::F32)?,
        probe(Precision::I8)?,
        probe(Precision::Bf16)?,
    ];
    let mut shortest = [f64::INFINITY; 3];
    for _ in 0..TURNS {
        for (probe, shortest) in probes.iter_mut().zip(&mut shortest) {
            *shortest = shortest.min(probe());
        }
    }
    let [exact, int8, bf16] = shortest;
    let ordered = match bf16 * MARGIN < int8 {
        true => [(bf16, Precision::Bf16), (int8, Precision::I8)],
        false => [(int8, Precision::I8), (bf16, Precision::Bf16)],
    };
    let faster = ordered.into_iter().filter(|(s, _)| s * MARGIN < exact);
    Ok(faster.map(|(_, precision)| precision).collect())
}

/// What is added to the tokens of a text, and to those of the second one of a pair. A model with one row, or none,
/// does not tell them apart.
fn token_types(
    config: &TransformerConfig,
    weights: &Weights,
) -> Result<[Vec<f32>; 2], EncoderError> {
    let (rows, d) = (config.type_vocab_size, config.hidden_size);
    let mut types = [vec![0f32; d], vec![0f32; d]];
    if rows > 0 {
        let table = weights.matrix("embed_types.weight", rows, d)?;
        for (row, values) in types.iter_mut().enumerate() {
            table.row_into(row.min(rows - 1), values);
        }
    }
    Ok(types)
}

/// What is added to the scores of attention, if anything is.
fn attention_bias(
    config: &TransformerConfig,
    weights: &Weights,
) -> Result<Option<Bias>, EncoderError> {
    let Some(relative) = config.relative_positions else {
        return Ok(None);
    };
    let heads = config.heads;
    let table = weights.matrix("relative_positions.weight", relative.buckets, heads)?;
    let table = table.to_f32();
    let positions = config.max_positions - config.position_offset;
    Ok(Some(Bias::new(heads, positions, |head, distance| {
        table[relative.bucket(distance) * heads + head]
    })))
}

/// Of sequences, longest first, those that have tokens, and their rows of `out` [sequences, width]; the rows of
/// the others are zeroed.
fn with_tokens<'a>(
    sequences: &'a [&'a [u32]],
    out: &'a mut [f32],
    width: usize,
) -> (&'a [&'a [u32]], &'a mut [f32]) {
    let present = sequences.partition_point(|ids| !ids.is_empty());
    let (out, rest) = out.split_at_mut(present * width);
    rest.fill(0.0);
    (&sequences[..present], out)
}

/// Refuses sequences, longest first, that a transformer has no positions for.
fn check_positions(limit: usize, sequences: &[&[u32]]) -> Result<(), EncoderError> {
    match sequences.first() {
        Some(longest) if longest.len() > limit => Err(EncoderError::Compute(format!(
            "a sequence of {} tokens exceeds the {limit} positions of the model",
            longest.len()
        ))),
        _ => Ok(()),
    }
}

/// What a batch of a candle model may have.
fn budget_on(device: &Device) -> Budget {
    if device.is_cpu() {
        Budget::PROCESSOR
    } else {
        Budget::GPU
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::DType;

    use super::*;
    use laser_kernels::Isa;
    use laser_model::config::{
        Architecture, BilstmConfig, BilstmPooling, MeanPooling, ResidualBilstmConfig,
        TransformerPooling,
    };
    use laser_model::folder::{self, Tensor};
    use laser_model::tokenize::SECOND;

    /// Pooled states of sentences of several lengths, the last one empty, and of one that is empty and alone.
    fn states(model: &dyn Model) -> Vec<f32> {
        let sequences: Vec<Vec<u32>> = [9usize, 5, 5, 2, 1, 0]
            .iter()
            .map(|&n| (0..n as u32).map(|t| (t * 7 + n as u32) % 40).collect())
            .collect();
        let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let mut out = vec![9f32; sequences.len() * model.width()];
        model.encode(&sequences, &mut out, false).unwrap();
        let mut alone = vec![9f32; model.width()];
        model.encode(&[&[]], &mut alone, false).unwrap();
        out.extend(alone);
        out
    }

    fn assert_close(a: &[f32], b: &[f32], tolerance: f32) {
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() < tolerance, "{a} {b}");
        }
    }

    /// A small LASER2, imported into `folder`.
    fn laser2(folder: &Path) -> (BilstmConfig, Weights) {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/import/tests/fixtures/laser2");
        let config = laser_import::import(&source, None, folder, &laser_import::Options::default());
        let Architecture::Bilstm(config) = config.unwrap().config.encoder else {
            panic!("LASER2 is a BiLSTM")
        };
        let weights = Weights::open(&folder.join(folder::WEIGHTS)).unwrap();
        (config, weights)
    }

    /// Names and shapes of the tensors of an LSTM with a table of 40 tokens.
    fn shapes(config: &BilstmConfig) -> Vec<(String, Vec<usize>)> {
        let gates = 4 * config.hidden_size;
        let table = vec![40, config.embedding_size];
        let mut shapes = vec![("embed_tokens.weight".to_owned(), table)];
        for layer in 0..config.layers {
            for suffix in config.suffixes() {
                for (kind, shape) in [
                    ("weight_ih", vec![gates, config.input_size(layer)]),
                    ("weight_hh", vec![gates, config.hidden_size]),
                    ("bias_ih", vec![gates]),
                    ("bias_hh", vec![gates]),
                ] {
                    shapes.push((format!("lstm.{kind}_l{layer}{suffix}"), shape));
                }
            }
        }
        shapes
    }

    /// Tensors of these names and shapes, of numbers from -1 to 1.
    fn random(folder: &Path, shapes: Vec<(String, Vec<usize>)>) -> Weights {
        let mut seed = 1u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let tensors = shapes.into_iter().map(|(name, shape)| {
            let values = (0..shape.iter().product()).map(|_| next()).collect();
            (name, Tensor::f32(&shape, values))
        });
        let tensors: std::collections::BTreeMap<_, _> = tensors.collect();
        let path = folder.join(folder::WEIGHTS);
        safetensors::serialize_to_file(&tensors, None, &path).unwrap();
        Weights::open(&path).unwrap()
    }

    /// A small LASER2, and an LSTM of one direction; each with every pooling.
    fn lstms(folder: &Path) -> Vec<(BilstmConfig, Weights)> {
        let mut all = Vec::new();
        for pooling in [BilstmPooling::Max, BilstmPooling::Mean, BilstmPooling::Last] {
            let (mut config, weights) = laser2(&folder.join(format!("{pooling:?}")));
            config.pooling = pooling;
            let one = BilstmConfig {
                bidirectional: false,
                layers: 3,
                ..config.clone()
            };
            all.push((config, weights));
            let weights = random(folder, shapes(&one));
            all.push((one, weights));
        }
        all
    }

    #[test]
    fn lstm_is_the_same_with_all_instructions_and_precisions() {
        let dir = tempfile::TempDir::new().unwrap();
        for (config, weights) in lstms(dir.path()) {
            let states = |isa, precision| {
                states(&bilstm::Bilstm::load(isa, &config, &weights, precision, false).unwrap())
            };
            let exact = states(Isa::Portable, Precision::F32);
            for &isa in Isa::all() {
                for (precision, tolerance) in [
                    (Precision::F32, 1e-6),
                    (Precision::Bf16, 0.01),
                    (Precision::I8, 0.01),
                ] {
                    assert_close(&exact, &states(isa, precision), tolerance);
                }
            }
        }
    }

    #[test]
    fn lstm_in_candle_is_that_of_the_kernels() {
        let dir = tempfile::TempDir::new().unwrap();
        for (config, weights) in lstms(dir.path()) {
            let kernels =
                bilstm::Bilstm::load(Isa::detect(), &config, &weights, Precision::F32, false)
                    .unwrap();
            let exact = states(&kernels);
            for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 0.05)] {
                let device = Device::Cpu;
                let mut model =
                    bilstm_candle::BilstmCandle::load(&config, &weights, &device, dtype).unwrap();
                for fused in [true, false] {
                    model.layers.fused = fused;
                    assert_close(&exact, &states(&model), tolerance);
                }
            }
        }
    }

    #[test]
    fn mean_in_candle_is_that_of_the_kernels() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/laser-mean-384");
        let Architecture::Mean(config) = folder::read_config(&folder).unwrap().encoder else {
            panic!("the shipped model is a mean")
        };
        let weights = Weights::open(&folder.join(folder::WEIGHTS)).unwrap();
        let kernels = laser_model::mean::Mean::load(&config, &weights).unwrap();
        let candle =
            mean_candle::MeanCandle::load(&config, &weights, &Device::Cpu, DType::F32).unwrap();
        assert_close(&states(&kernels), &states(&candle), 1e-5);
    }

    /// A mean with a BiLSTM whose gate is open.
    fn residual(folder: &Path, state_pooling: BilstmPooling) -> (ResidualBilstmConfig, Weights) {
        let config = ResidualBilstmConfig {
            embedding_size: 20,
            pooling: MeanPooling::Weighted,
            hidden_size: 24,
            layers: 2,
            state_pooling,
            ngrams_from: Some(30),
        };
        let mut shapes = shapes(&config.bilstm());
        for (name, shape) in [
            ("token_weight", vec![40]),
            ("gate", vec![1]),
            ("projection.weight", vec![20, 48]),
            ("projection.bias", vec![20]),
        ] {
            shapes.push((name.to_owned(), shape));
        }
        (config, random(folder, shapes))
    }

    #[test]
    fn residual_bilstm_is_the_same_with_all_instructions_precisions_and_in_candle() {
        for pooling in [BilstmPooling::Max, BilstmPooling::Mean, BilstmPooling::Last] {
            let dir = tempfile::TempDir::new().unwrap();
            let (config, weights) = residual(dir.path(), pooling);
            let load = |isa, precision| {
                let parallel = false;
                residual_bilstm::ResidualBilstm::load(isa, &config, &weights, precision, parallel)
            };
            let exact = states(&load(Isa::Portable, Precision::F32).unwrap());
            for &isa in Isa::all() {
                for (precision, tolerance) in [
                    (Precision::F32, 2e-6),
                    (Precision::Bf16, 0.1),
                    (Precision::I8, 0.1),
                ] {
                    assert_close(&exact, &states(&load(isa, precision).unwrap()), tolerance);
                }
            }
            for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 0.15)] {
                let mut model = residual_bilstm_candle::ResidualBilstmCandle::load(
                    &config,
                    &weights,
                    &Device::Cpu,
                    dtype,
                )
                .unwrap();
                for fused in [true, false] {
                    model.layers.fused = fused;
                    assert_close(&exact, &states(&model), tolerance);
                }
            }
        }
    }

    /// A small model of the kind of BERT, with its norms before or behind the sub-layers.
    fn transformer(
        folder: &Path,
        name: &str,
        edit: impl Fn(&mut TransformerConfig),
    ) -> (TransformerConfig, Weights) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../crates/import/tests/fixtures")
            .join(name);
        let config = laser_import::import(&source, None, folder, &laser_import::Options::default());
        let Architecture::Transformer(mut config) = config.unwrap().config.encoder else {
            panic!("{name} is a transformer")
        };
        edit(&mut config);
        (
            config,
            Weights::open(&folder.join(folder::WEIGHTS)).unwrap(),
        )
    }

    #[test]
    fn transformer_is_that_of_candle_with_all_instructions_and_precisions() {
        for name in [
            "labse",
            "bert-mean",
            "distilbert",
            "mpnet",
            "laser3",
            "laser3-max",
        ] {
            for pooling in [
                TransformerPooling::Cls,
                TransformerPooling::Max,
                TransformerPooling::Mean,
            ] {
                let dir = tempfile::TempDir::new().unwrap();
                let (config, weights) = transformer(dir.path(), name, |c| c.pooling = pooling);
                let candle = transformer_candle::TransformerCandle::load(
                    &config,
                    &weights,
                    &Device::Cpu,
                    DType::F32,
                );
                let exact = states(&candle.unwrap());
                let largest = exact.iter().fold(0f32, |m, x| m.max(x.abs()));
                for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 0.03)] {
                    let packed = transformer_packed::TransformerPacked::load(
                        &config,
                        &weights,
                        &Device::Cpu,
                        dtype,
                    );
                    let found = states(&packed.unwrap());
                    assert_close(&exact, &found, tolerance * largest.max(1.0));
                }
                for &isa in Isa::all() {
                    for (precision, tolerance) in [
                        (Precision::F32, 1e-5),
                        (Precision::Bf16, 0.03),
                        (Precision::I8, 0.06),
                    ] {
                        let model = transformer::Transformer::load(
                            isa, &config, &weights, precision, false,
                        );
                        assert_close(
                            &exact,
                            &states(&model.unwrap()),
                            tolerance * largest.max(1.0),
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn rotary_transformer_is_that_of_candle_with_all_instructions_and_precisions() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../crates/import/tests/fixtures/embedding-gemma");
        for pooling in [
            TransformerPooling::Cls,
            TransformerPooling::Max,
            TransformerPooling::Mean,
        ] {
            let dir = tempfile::TempDir::new().unwrap();
            let options = laser_import::Options::default();
            let report = laser_import::import(&source, None, dir.path(), &options).unwrap();
            let Architecture::RotaryTransformer(mut config) = report.config.encoder else {
                panic!("it has rotary positions")
            };
            config.pooling = pooling;
            let weights = Weights::open(&dir.path().join(folder::WEIGHTS)).unwrap();
            let candle = |dtype| {
                rotary_candle::RotaryCandle::load(&config, &weights, &Device::Cpu, dtype).unwrap()
            };
            let exact = states(&candle(DType::F32));
            let largest = exact.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert_close(&exact, &states(&candle(DType::BF16)), 0.06 * largest);
            for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 0.06)] {
                let packed = rotary_packed::RotaryPacked::load;
                let found = states(&packed(&config, &weights, &Device::Cpu, dtype).unwrap());
                assert_close(&exact, &found, tolerance * largest.max(1.0));
            }
            for &isa in Isa::all() {
                for (precision, tolerance) in [
                    (Precision::F32, 1e-5),
                    (Precision::Bf16, 0.03),
                    (Precision::I8, 0.06),
                ] {
                    let model =
                        transformer::Transformer::load(isa, &config, &weights, precision, false);
                    let found = states(&model.unwrap());
                    assert_close(&exact, &found, tolerance * largest.max(1.0));
                }
            }
        }
    }

    #[test]
    fn the_second_text_of_a_pair_is_told_apart_in_candle_as_well() {
        for (name, tells) in [("cross-bert", true), ("cross-xlm-roberta", false)] {
            let dir = tempfile::TempDir::new().unwrap();
            let (config, weights) = transformer(dir.path(), name, |_| ());
            let states = |model: &dyn Model, second: u32| {
                let (a, b) = ([2, 7, 9, 3, 8 | second, 3 | second], [2, 5, 3, 3 | second]);
                let mut out = vec![9f32; 2 * model.width()];
                model.encode(&[&a, &b], &mut out, false).unwrap();
                out
            };
            let (device, exact) = (Device::Cpu, Precision::F32);
            let candle =
                transformer_candle::TransformerCandle::load(&config, &weights, &device, DType::F32)
                    .unwrap();
            let kernels =
                transformer::Transformer::load(Isa::detect(), &config, &weights, exact, false)
                    .unwrap();
            assert_close(&states(&kernels, 0), &states(&candle, 0), 1e-5);
            assert_close(&states(&kernels, SECOND), &states(&candle, SECOND), 1e-5);
            let packed =
                transformer_packed::TransformerPacked::load(&config, &weights, &device, DType::F32)
                    .unwrap();
            assert_close(&states(&packed, SECOND), &states(&candle, SECOND), 1e-5);
            assert_eq!(states(&kernels, 0) != states(&kernels, SECOND), tells);
        }
    }
}
