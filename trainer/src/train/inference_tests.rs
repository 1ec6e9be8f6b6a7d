//! Runs with labelled pairs and with noise, on the language pair of [`super::tests`].

use std::fmt::Write as _;

use laser_sampling::mix;

use super::config::{Denoise, NliOptions, NmtOptions, Sides, TrainConfig, TransferOptions};
use super::run;
use super::tests::{MEAN, World, ends_alike, one, quiet};
use crate::objectives::nli::ClassifierSizes;
use crate::objectives::nmt::DecoderSizes;
use crate::objectives::transfer::Distance;

const BILSTM: &str = r#"architecture = "bilstm", embedding_size = 12, hidden_size = 10, layers = 1,
    pooling = "max", append_eos = true"#;

/// Pairs of two words: "same" if the hypothesis has the words of the premise in the other language.
fn labelled(world: &World) -> NliOptions {
    let mut text = String::new();
    for i in 0..600u64 {
        let word = |n: u64| mix(i << 4 | n) % 40;
        let (a, b) = (word(0), word(1));
        let (label, c, d) = match i % 2 {
            0 => ("same", a, b),
            _ => ("other", word(2), word(3)),
        };
        writeln!(text, "train\t{label}\ta{a} a{b}\tb{c} b{d}").unwrap();
    }
    let path = world.path("pairs.tsv");
    std::fs::write(&path, text).unwrap();
    NliOptions {
        weight: 1.0,
        data: vec![path],
        parallel: false,
        batch_pairs: 64,
        classifier: ClassifierSizes {
            hidden: vec![24],
            ..ClassifierSizes::default()
        },
        split: "train".into(),
    }
}

/// A configuration with labelled pairs alone.
fn inference(world: &World, output: &str, encoder: &str, steps: u64) -> TrainConfig {
    let mut config = world.config(output, &encoder.replace('\n', " "), steps);
    config.objective.dual = None;
    config.objective.nli = Some(labelled(world));
    config.dropout = Default::default();
    config.optimizer.average_decay = 0.0;
    config
}

#[test]
fn labelled_pairs_teach_what_they_ask_for() {
    let world = World::new();
    let config = inference(&world, "nli", MEAN, 252);
    let summary = one(&config);
    // Chance is ln 2 = 0.69.
    assert!(summary.loss < 0.35, "{summary:?}");
    let log = std::fs::read_to_string(config.output.join("train.csv")).unwrap();
    let last = log.lines().last().unwrap();
    assert_eq!(
        last.split(',').nth(1),
        Some(&*(252 * 64).to_string()),
        "{last}"
    );
    // Words that must be told to be the same have got near one another.
    let (found, _) = summary.best.unwrap();
    // Chance is one of forty.
    assert!(found > 0.1, "{found}");
}

#[test]
fn all_objectives_together_are_repeated_and_resumed_exactly() {
    let world = World::new();
    let teacher = world.config("teacher", &MEAN.replace("16", "20"), 20);
    one(&teacher);
    for (name, encoder) in [("m", MEAN.replace("16", "20")), ("b", BILSTM.into())] {
        let mut config = world.config(&format!("{name}-whole"), &encoder.replace('\n', " "), 12);
        config.objective.nli = Some(labelled(&world));
        config.objective.nli.as_mut().unwrap().classifier.dropout = 0.1;
        config.objective.transfer = Some(TransferOptions {
            weight: 0.5,
            teacher: teacher.output.join("last"),
            distance: Distance::Euclidean,
            sides: Sides::Sources,
            mask_similar: 0.0,
            lambda: 0.25,
        });
        config.objective.nmt = Some(NmtOptions {
            weight: 0.5,
            decoder: DecoderSizes {
                embedding_size: 8,
                language_size: 4,
                hidden_size: 12,
                softmax_samples: 8,
            },
            denoise: Denoise {
                share: 0.5,
                drop: 0.1,
                swap: 0.1,
                substitute: 0.1,
            },
        });
        config.run.accumulate = 2;
        config.run.chunk_sentences = 50;
        ends_alike(&world.path(""), name, &mut config, 12);
    }
}

#[test]
fn each_objective_alone_is_repeated_and_resumed_exactly() {
    let world = World::new();
    let teacher = world.config("teacher", &MEAN.replace("16", "20"), 4);
    one(&teacher);
    let ends = |name: &str, encoder: &str, set: &dyn Fn(&mut TrainConfig)| {
        let mut config = world.config(&format!("{name}-whole"), &encoder.replace('\n', " "), 12);
        config.objective.dual = None;
        config.run.accumulate = 2;
        config.run.chunk_sentences = 50;
        set(&mut config);
        ends_alike(&world.path(""), name, &mut config, 12);
    };
    ends("nli", BILSTM, &|config| {
        config.objective.nli = Some(labelled(&world));
    });
    for (name, share) in [("nmt", 0.0), ("joint", 0.5), ("sdae", 1.0)] {
        ends(name, BILSTM, &|config| {
            config.objective.nmt = Some(NmtOptions {
                weight: 1.0,
                decoder: DecoderSizes {
                    embedding_size: 8,
                    language_size: 4,
                    hidden_size: 12,
                    ..DecoderSizes::default()
                },
                denoise: Denoise {
                    share,
                    drop: 0.1,
                    swap: 0.1,
                    substitute: 0.1,
                },
            });
        });
    }
    for (name, distance, lambda) in [
        ("l1", Distance::L1, 0.0),
        ("l2", Distance::L2, 0.0),
        ("cosine", Distance::Cosine, 0.25),
        ("euclidean", Distance::Euclidean, 0.25),
    ] {
        ends(name, &MEAN.replace("16", "20"), &|config| {
            config.objective.transfer = Some(TransferOptions {
                weight: 1.0,
                teacher: teacher.output.join("last"),
                distance,
                sides: Sides::Both,
                mask_similar: 0.0,
                lambda,
            });
        });
    }
    let transformer = "architecture = \"transformer\", hidden_size = 8, layers = 2, heads = 2, \
                       intermediate_size = 12, max_positions = 32, type_vocab_size = 1, \
                       layer_norm_eps = 1e-5, activation = \"gelu\", norm = \"post\", pooling = \"mean\"";
    for (name, encoder) in [("dual", transformer), ("dual-bilstm", BILSTM)] {
        ends(name, encoder, &|config| {
            config.objective.dual = Some(Default::default());
        });
    }
}

#[test]
fn an_auto_encoder_restores_what_noise_has_changed() {
    let world = World::new();
    let mut config = world.config("sdae", &BILSTM.replace('\n', " "), 300);
    config.objective.dual = None;
    config.dropout = Default::default();
    config.model.normalize = false;
    let loss = |name: &str, noise: Denoise| {
        let mut config = config.clone();
        config.output = world.path(name);
        config.objective.nmt = Some(NmtOptions {
            weight: 1.0,
            decoder: DecoderSizes {
                embedding_size: 12,
                language_size: 4,
                hidden_size: 32,
                ..DecoderSizes::default()
            },
            denoise: noise,
        });
        one(&config).loss
    };
    let denoise = |rate: f32| Denoise {
        share: 1.0,
        drop: rate,
        swap: rate,
        substitute: rate,
    };
    let (copied, noisy) = (loss("copy", denoise(0.0)), loss("noise", denoise(0.3)));
    // A word is one of forty: 3.7 nats without a look at the source.
    assert!(copied < 2.5, "{copied}");
    assert!(noisy > copied + 0.1, "{noisy} {copied}");
}

#[test]
fn what_is_wrong_with_labelled_pairs_is_said() {
    let world = World::new();
    let mut config = inference(&world, "wrong", MEAN, 2);
    let path = world.path("pairs.tsv");
    std::fs::write(&path, "train\tyes\ta1\tb1\ntrain\tno\n").unwrap();
    let error = run(&config, &quiet()).unwrap_err().to_string();
    assert!(error.contains("pairs.tsv:2:"), "{error}");
    config.objective.nli.as_mut().unwrap().data = vec![world.path("missing.tsv")];
    let error = run(&config, &quiet()).unwrap_err().to_string();
    assert!(error.contains("missing.tsv"), "{error}");
}
