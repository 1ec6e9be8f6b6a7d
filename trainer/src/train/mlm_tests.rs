//! Masked language modelling of small transformers.

use super::config::{MlmOptions, TrainConfig};
use super::progress::Pending;
use super::run;
use super::shared::prepare;
use super::tests::{World, ends_alike, one, quiet};
use crate::data::PackedCorpus;
use crate::ops::pool;
use crate::ops::threads::Threads;

const TRANSFORMER: &str = "architecture = \"transformer\", hidden_size = 16, layers = 2, heads = 2, \
    intermediate_size = 32, max_positions = 32, type_vocab_size = 1, layer_norm_eps = 1e-5, \
    activation = \"gelu\", norm = \"pre\", pooling = \"mean\"";

fn world() -> World {
    World::with(&["<mask>"])
}

/// The masked language model alone.
fn config(world: &World, output: &str, steps: u64) -> TrainConfig {
    let mut config = world.config(output, TRANSFORMER, steps);
    config.objective.dual = None;
    config.objective.mlm = Some(MlmOptions::default());
    config.dropout = Default::default();
    config.optimizer.average_decay = 0.0;
    config.optimizer.learning_rate = 0.01;
    config
}

fn losses(config: &TrainConfig) -> Vec<f64> {
    let log = std::fs::read_to_string(config.output.join("train.csv")).unwrap();
    let lines = log.lines().skip(1);
    lines
        .map(|l| l.split(',').nth(5).unwrap().parse().unwrap())
        .collect()
}

#[test]
fn translations_tell_what_is_hidden_and_the_encoder_goes_on_from_there() {
    let world = world();
    let mut first = config(&world, "pairs", 260);
    first.objective.mlm = Some(MlmOptions {
        share: 0.3,
        translations: 1.0,
        ..MlmOptions::default()
    });
    first.optimizer.learning_rate = 0.02;
    one(&first);
    let found = losses(&first);
    // Nothing but the translation tells a word from the 39 others of its language.
    let (begin, end) = (found[0], found[found.len() - 1]);
    let guess = 40f64.ln();
    assert!(begin > guess && end < guess - 0.4, "{begin} {end}");
    // The dual encoder begins with its tensors, and without what has predicted tokens.
    let folder = first.output.join("last");
    let weights = laser_model::folder::Weights::open(&folder.join("model.safetensors")).unwrap();
    assert!(weights.shapes().all(|(name, _)| !name.contains("mlm")));
    let mut dual = world.config("dual", TRANSFORMER, 1);
    dual.model.init_from = Some(folder.clone());
    dual.optimizer.learning_rate = 0.0;
    dual.optimizer.average_decay = 0.0;
    one(&dual);
    let read = |folder: &std::path::Path| crate::export::read(folder).unwrap().tensors;
    assert_eq!(read(&folder), read(&dual.output.join("last")));
}

#[test]
fn the_first_word_of_a_text_does_not_stand_for_the_text() {
    let world = world();
    let config = world.config("first", &TRANSFORMER.replace("mean", "cls"), 1);
    let error = run(&config, &quiet()).unwrap_err().to_string();
    assert!(error.contains("laser tokenizer --transformer"), "{error}");
}

#[test]
fn gradients_match_finite_differences() {
    let world = world();
    for (translations, chunk) in [(0.0, 0), (1.0, 0), (0.0, 3)] {
        let mut config = config(&world, "gradients", 1);
        config.precision = super::config::Precision::F32;
        config.objective.mlm = Some(MlmOptions {
            weight: 0.7,
            share: 0.4,
            translations,
            ..MlmOptions::default()
        });
        config.run.chunk_sentences = chunk;
        let corpus = PackedCorpus::open(&config.corpus).unwrap();
        let tokenizer = crate::tokenizer::load(&config.tokenizer).unwrap();
        let threads = Threads::new(2).unwrap();
        let mut stepper = prepare(&config, &corpus, &tokenizer, threads).unwrap();
        let pairs = (20..24).map(|g| {
            let own = corpus.group(g);
            (own.start, own.start + 1)
        });
        let batch = Pending {
            pairs: pairs.collect(),
            negatives: Vec::new(),
        };
        let run = |stepper: &super::step::Stepper| {
            let mut dense = stepper.model.parameters().zeros();
            let mut occurrences = Vec::new();
            let found = stepper.gradients(
                &config,
                &corpus,
                &batch,
                (3, 0),
                &mut dense,
                &mut occurrences,
            );
            let (loss, _) = found.unwrap();
            let table = stepper.model.parameters().value(0);
            let sparse = pool::gather(&stepper.threads, &occurrences, table, 16);
            dense[0] = sparse.rows;
            (loss, sparse.ids.len(), dense)
        };
        let (_, rows, gradients) = run(&stepper);
        assert_eq!(rows, 83, "every token is predicted");
        let mut moved = 0;
        for (i, buffer) in gradients.iter().enumerate() {
            let stride = (buffer.len() / 6).max(1);
            for (k, gradient) in buffer.iter().enumerate().step_by(stride) {
                let value = stepper.model.parameters().value(i)[k];
                let h = 1e-2f32;
                let mut at = |to: f32| {
                    stepper.model.parameters_mut().list_mut()[i].value[k] = to;
                    run(&stepper).0
                };
                let slope = (at(value + h) - at(value - h)) / f64::from((value + h) - (value - h));
                at(value);
                let difference = (f64::from(*gradient) - slope).abs();
                let name = &stepper.model.parameters().list()[i].name;
                assert!(
                    difference < 1e-3 + 0.03 * slope.abs(),
                    "{name}[{k}]: {gradient} {slope}"
                );
                moved += usize::from(slope.abs() > 1e-3);
            }
        }
        assert!(moved > 40, "{moved}");
    }
}

#[test]
fn a_run_is_repeated_exactly_and_resumes_exactly() {
    let world = world();
    let mut alone = config(&world, "alone", 12);
    alone.dropout.hidden = 0.1;
    ends_alike(&world.path(""), "alone", &mut alone, 12);
    let mut beside = config(&world, "beside", 12);
    beside.objective.dual = Some(Default::default());
    beside.run.accumulate = 2;
    ends_alike(&world.path(""), "beside", &mut beside, 12);
}

#[test]
fn what_cannot_be_masked_is_refused() {
    let error = |config: &TrainConfig| run(config, &quiet()).unwrap_err().to_string();
    let plain = World::new();
    let without = error(&config(&plain, "no-mask", 1));
    assert!(
        without.contains("<mask>") && without.contains("--transformer"),
        "{without}"
    );
    let world = world();
    let mut mean = world.config("mean", super::tests::MEAN, 1);
    mean.objective.mlm = Some(MlmOptions::default());
    assert!(error(&mean).contains("for a transformer"));
    let mut none = config(&world, "none", 1);
    none.objective.mlm.as_mut().unwrap().share = 1.5;
    assert!(error(&none).contains("between 0 and 1"));
}
