//! Encoders and decoders of one language each, on four made-up languages: word `a7` means `b7`, `c7` and `d7`.

use std::path::PathBuf;

use laser_sampling::mix;

use super::config::TrainConfig;
use super::languages::{LanguageGradients, LanguageStepper, prepare};
use super::tests::{ends_alike, one, quiet, tokenizer};
use super::training_target::TrainingTarget;
use super::{Options, run};
use crate::data::PackedCorpus;
use crate::data::pack_writer::{PackWriter, PackedSentence};
use crate::data::paths::{PathBatch, Side};
use crate::models::Parameters;
use crate::ops::threads::Threads;
use laser_kernels::slices::{axpy, dot};
use laser_model::config::{Architecture, BilstmPooling, MeanConfig, MeanPooling};

const WORDS: u32 = 20;
const WIDTH: usize = 12;
const LANGUAGES: [&str; 4] = ["aa", "bb", "cc", "dd"];

/// A corpus of the same words in four languages, with its tokenizer and a dev set.
pub(crate) struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self::of(LANGUAGES, &[])
    }

    /// With these codes of the languages, and more tokens, which no text has, see [`tokenizer`].
    pub(crate) fn of(languages: [&str; 4], more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let words = ["a", "b", "c", "d"]
            .iter()
            .flat_map(|l| (0..WORDS).map(move |i| format!("{l}{i}")));
        let special = ["<unk>", "</s>"].iter().chain(more);
        let words: Vec<String> = words.chain(special.map(|s| (*s).to_owned())).collect();
        let json = tokenizer(&words);
        std::fs::write(path("tokenizer.json"), json).unwrap();
        let loaded = crate::tokenizer::load(&path("tokenizer.json")).unwrap();
        let (print, size) = (loaded.fingerprint.clone(), loaded.vocab_size);
        let mut writer = PackWriter::create(&path("corpus"), print, size, 32).unwrap();
        let mut dev = String::new();
        for key in 0..330u64 {
            let ids: Vec<u32> = (0..2 + mix(key) % 3)
                .map(|i| (mix(key << 8 | i) % u64::from(WORDS)) as u32)
                .collect();
            let sides: Vec<(Vec<u32>, String)> = (0..4)
                .map(|l: u32| {
                    let own: Vec<u32> = ids.iter().map(|i| i + l * WORDS).collect();
                    let text: Vec<&str> = own.iter().map(|i| &words[*i as usize][..]).collect();
                    (own, text.join(" "))
                })
                .collect();
            if key < 30 {
                for (language, (_, text)) in languages.iter().zip(&sides) {
                    dev += &format!("k{key:03}\t{language}\t{text}\n");
                }
                continue;
            }
            let group: Vec<_> = languages
                .iter()
                .zip(&sides)
                .map(|(language, (ids, text))| PackedSentence {
                    language,
                    text,
                    ids,
                    perturbed: &[],
                })
                .collect();
            writer.push("made", &key.to_string(), &group).unwrap();
        }
        writer.finish(None).unwrap();
        std::fs::write(path("dev.tsv"), dev).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn config(&self, output: &str, paths: &str, more: &str) -> TrainConfig {
        let text = format!(
            r#"
            name = "test"
            output = "{output}"
            tokenizer = "tokenizer.json"
            corpus = "corpus"
            threads = 2
            precision = "f32"
            [model]
            max_tokens = 32
            normalize = false
            encoder = {{ architecture = "bilstm", embedding_size = {WIDTH}, hidden_size = 8, layers = 1, pooling = "max", append_eos = true }}
            [sampling]
            batch_pairs = 24
            [objective.paths]
            languages = ["aa", "bb", "cc", "dd"]
            decoder = {{ embedding_size = 8, hidden_size = 24 }}
            path = [{paths}]
            [optimizer]
            learning_rate = 0.02
            clip_norm = 2.0
            [schedule]
            warmup_steps = 4
            {more}
            "#
        );
        let file = self.path("config.toml");
        std::fs::write(&file, text).unwrap();
        TrainConfig::load(&file).unwrap()
    }

    fn corpus(&self) -> PackedCorpus {
        PackedCorpus::open(&self.path("corpus")).unwrap()
    }

    fn stepper(&self, config: &TrainConfig) -> LanguageStepper {
        let tokenizer = crate::tokenizer::load(&config.tokenizer).unwrap();
        let threads = Threads::new(config.threads).unwrap();
        let options = config.objective.paths.as_ref().unwrap();
        prepare(config, options, &self.corpus(), &tokenizer, threads).unwrap()
    }
}

/// Three keys along a way.
fn batch(corpus: &PackedCorpus, sources: &[usize], targets: &[usize]) -> PathBatch {
    let side = |language: &usize| Side {
        language: *language,
        sentences: (5..8)
            .map(|g| corpus.group(g).start + *language as u32)
            .collect(),
    };
    PathBatch {
        sources: sources.iter().map(side).collect(),
        targets: targets.iter().map(side).collect(),
    }
}

/// The parameters of a language's encoder or decoder.
fn parameters(stepper: &mut LanguageStepper, language: usize, encoder: bool) -> &mut Parameters {
    let own = &mut stepper.languages[language];
    if encoder {
        own.encoder.as_mut().unwrap().model.parameters_mut()
    } else {
        &mut own.decoder.as_mut().unwrap().parameters
    }
}

/// Gradients of all of them, that of the table of tokens summed up.
fn buffers(gradients: &LanguageGradients, encoder: bool, table: usize) -> Vec<Vec<f32>> {
    if !encoder {
        return gradients.decoder.clone().unwrap();
    }
    let (dense, occurrences) = gradients.encoder.as_ref().unwrap();
    let mut all = dense.clone();
    all[0] = vec![0.0; table];
    for part in occurrences {
        for ((id, row), factor) in part.ids.iter().zip(&part.rows).zip(&part.factors) {
            let (id, row) = (*id as usize * WIDTH, *row as usize * WIDTH);
            let from = &part.source[row..row + WIDTH];
            axpy(*factor, from, &mut all[0][id..id + WIDTH]);
        }
    }
    all
}

#[test]
fn gradients_through_the_mean_of_several_sources_match_finite_differences() {
    let world = World::new();
    let corpus = world.corpus();
    for normalize in [false, true] {
        let mut config = world.config("g", "{ sources = 2 }", "[run]\nsteps = 1\naccumulate = 2");
        config.model.normalize = normalize;
        // A maximum has kinks.
        if let Architecture::Bilstm(c) = &mut config.model.encoder {
            c.pooling = BilstmPooling::Mean;
        }
        let mut stepper = world.stepper(&config);
        let batch = batch(&corpus, &[0, 2], &[1, 3]);
        let loss = |stepper: &LanguageStepper| {
            let found = stepper.gradients(&config, &corpus, &batch, (0, 0), &mut stepper.zeros());
            found.unwrap().0
        };
        let parts = [(0, true), (2, true), (1, false), (3, false)];
        for (language, encoder) in parts {
            // Larger values than at the start, so that differences show.
            let list = parameters(&mut stepper, language, encoder).list_mut();
            let values = list.iter_mut().flat_map(|p| &mut p.value);
            values.for_each(|v| *v *= 2.0);
        }
        let mut gradients = stepper.zeros();
        let found = stepper.gradients(&config, &corpus, &batch, (0, 0), &mut gradients);
        assert_eq!(found.unwrap().0, loss(&stepper));
        // What the batch has not passed has no gradient.
        for (language, own) in gradients.iter().enumerate() {
            assert_eq!(own.encoder.is_some(), parts.contains(&(language, true)));
            assert_eq!(own.decoder.is_some(), parts.contains(&(language, false)));
        }
        for (language, encoder) in parts {
            let table = parameters(&mut stepper, language, encoder).value(0).len();
            let buffers = buffers(&gradients[language], encoder, table);
            let mut large = 0;
            for (i, buffer) in buffers.iter().enumerate() {
                let norm = dot(buffer, buffer).sqrt();
                if norm == 0.0 {
                    continue;
                }
                // Along the gradient of a tensor the loss rises by the gradient's length.
                let mut at = |delta: f32| {
                    let list = parameters(&mut stepper, language, encoder).list_mut();
                    axpy(delta / norm, buffer, &mut list[i].value);
                    loss(&stepper)
                };
                let h = 1e-2;
                let (up, down) = (at(h), at(-2.0 * h));
                at(h);
                // A batch of two that are accumulated.
                let slope = 0.5 * (up - down) / (2.0 * f64::from(h));
                let difference = (f64::from(norm) - slope).abs();
                assert!(
                    difference < 1e-4 + 0.03 * slope,
                    "{language} {encoder} {i}: {norm} {slope}"
                );
                large += usize::from(norm > 1e-3);
            }
            assert!(large >= 3, "{language} {encoder}: {large}");
        }
    }
}

#[test]
fn an_update_changes_what_its_batch_has_passed_and_nothing_else() {
    let world = World::new();
    let paths =
        r#"{ from = ["aa"], to = ["bb"] }, { from = ["cc"], to = ["dd"], coefficient = 1e-9 }"#;
    let config = world.config("u", paths, "[run]\nsteps = 1");
    let corpus = world.corpus();
    let mut stepper = world.stepper(&config);
    let roles: Vec<_> = stepper
        .languages
        .iter()
        .map(|l| (l.encoder.is_some(), l.decoder.is_some()))
        .collect();
    let (source, target) = ((true, false), (false, true));
    assert_eq!(roles, [source, target, source, target]);
    let parts = [(0, true), (1, false), (2, true), (3, false)];
    let all = |stepper: &mut LanguageStepper| -> Vec<Parameters> {
        let part = |(language, encoder)| parameters(stepper, language, encoder).clone();
        parts.map(part).into()
    };
    let before = all(&mut stepper);
    let outcome = stepper.step(&config, &corpus, 10, 1.0).unwrap();
    assert_eq!(outcome.pairs, 24);
    // At the start a token costs nearly ln(82).
    assert!((outcome.loss - 82f64.ln()).abs() < 0.3, "{}", outcome.loss);
    let after = all(&mut stepper);
    let changed: Vec<bool> = before.iter().zip(&after).map(|(a, b)| a != b).collect();
    assert_eq!(changed, [true, true, false, false]);
    // Encoder and decoder have one norm, by which both are clipped.
    let mut gradients = stepper.zeros();
    let mut twin = world.stepper(&config);
    let batch = twin.sampler.next_batch(&corpus);
    twin.gradients(&config, &corpus, &batch, (10, 0), &mut gradients)
        .unwrap();
    let squares = parts[..2].iter().map(|(language, encoder)| {
        let table = parameters(&mut twin, *language, *encoder).value(0).len();
        let buffers = buffers(&gradients[*language], *encoder, table);
        let all = buffers.iter().flatten();
        all.map(|g| f64::from(*g).powi(2)).sum::<f64>()
    });
    let norm = squares.sum::<f64>().sqrt();
    assert!(
        (outcome.norm - norm).abs() < 1e-4 * norm,
        "{norm} {}",
        outcome.norm
    );
}

#[test]
fn encoders_of_one_language_each_learn_one_space() {
    let world = World::new();
    let more = "[run]\nsteps = 400\n[[dev]]\npath = \"dev.tsv\"\npivot = \"aa\"";
    let mean = |output: &str, paths: &str| {
        let mut config = world.config(output, paths, more);
        config.model.encoder = Architecture::Mean(MeanConfig {
            embedding_size: 24,
            pooling: MeanPooling::Mean,
        });
        config
    };
    let config = mean(
        "learn",
        "{ sources = 1 }, { sources = 2, coefficient = 0.1 }",
    );
    let (accuracy, _) = one(&config).best.unwrap();
    assert!(accuracy > 0.8, "{accuracy}");
    let log = std::fs::read_to_string(config.output.join("dev.csv")).unwrap();
    for language in ["bb", "cc", "dd"] {
        assert!(log.contains(&format!(",dev,{language},")), "{log}");
    }
    // What is written is a model folder for each language.
    let best = config.output.join("best");
    let list = laser_model::Languages::read(&best).unwrap().unwrap();
    assert_eq!((&list.name[..], list.codes().count()), ("test", 4));
    for language in LANGUAGES {
        let folder = list.folder(&best, language).unwrap();
        let read = laser_model::folder::read_config(&folder).unwrap();
        assert_eq!(read.name, format!("test@{language}"));
        let encoder = laser_encoder::Encoder::load(&folder, &Default::default()).unwrap();
        assert_eq!(encoder.dimensions(), 24);
    }
    let left: Vec<_> = std::fs::read_dir(&config.output).unwrap().collect();
    let left = left.into_iter().map(|e| e.unwrap().file_name());
    let mut left: Vec<_> = left.map(|n| n.into_string().unwrap()).collect();
    left.sort();
    assert!(
        !left.iter().any(|n| n.contains("new") || n.contains("old")),
        "{left:?}"
    );

    // Encoders begin with those of their languages.
    let mut again = mean("again", "{ sources = 1 }");
    again.model.init_from = Some(config.output.clone());
    (again.run.steps, again.optimizer.learning_rate) = (1, 0.0);
    assert!((one(&again).best.unwrap().0 - accuracy).abs() < 1e-9);
}

#[test]
fn a_run_along_paths_is_repeated_exactly_and_resumes_exactly() {
    let world = World::new();
    let paths = r#"{ sources = 1 }, { sources = 2, from = ["aa", "bb", "cc"], to = ["dd"], coefficient = 2.0 }"#;
    let more = "[dropout]\ntokens = 0.1\nembedding = 0.1\nhidden = 0.1\n[run]\nsteps = 14\n\
                accumulate = 2\ndev_steps = 2\n[[dev]]\npath = \"dev.tsv\"\npivot = \"aa\"";
    let mut config = world.config("r-whole", paths, more);
    config.optimizer.average_decay = 0.9;
    // The dev figure of so short a run goes up and down.
    (
        config.schedule.stall_factor,
        config.schedule.stall_evaluations,
    ) = (0.5, 1);
    let expected = ends_alike(&world.path(""), "r", &mut config, 14);
    config.output = world.path("r-seed");
    config.seed = 2;
    one(&config);
    assert_ne!(super::tests::tensors(&config.output), expected);
}

#[test]
fn the_learning_rate_falls_where_the_dev_figure_stalls() {
    let world = World::new();
    let more = "decay = \"constant\"\nstall_factor = 0.5\nstall_evaluations = 2\n[run]\nsteps = 20\nlog_steps = 2\n\
                dev_steps = 2\n[[dev]]\npath = \"dev.tsv\"\npivot = \"aa\"";
    let mut config = world.config("stall", "{ sources = 1 }", more);
    // Nothing changes, so that no evaluation is better than the first.
    config.optimizer.learning_rate = 1e-30;
    one(&config);
    let log = std::fs::read_to_string(config.output.join("train.csv")).unwrap();
    let rates: Vec<f64> = log
        .lines()
        .skip(1)
        .map(|l| l.split(',').nth(4).unwrap().parse::<f64>().unwrap() / 1e-30)
        .map(|rate| (rate * 1e4).round() / 1e4)
        .collect();
    assert_eq!(
        rates,
        [0.5, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625]
    );
}

#[test]
fn what_does_not_go_together_is_refused() {
    let world = World::new();
    let any = "{ sources = 1 }";
    let error = |paths: &str, change: &dyn Fn(&mut TrainConfig)| {
        let mut config = world.config("no", paths, "[run]\nsteps = 1");
        change(&mut config);
        run(&config, &quiet()).unwrap_err().to_string()
    };
    type Change<'a> = &'a dyn Fn(&mut TrainConfig);
    let cases: [(&str, &str, Change<'_>); 8] = [
        ("no other objective", any, &|c| {
            c.objective.dual = Some(Default::default())
        }),
        ("sampling.targets", any, &|c| {
            c.sampling.targets = vec!["aa".into()]
        }),
        ("no chunks", any, &|c| c.run.chunk_sentences = 8),
        ("at least 1", any, &|c| {
            c.objective.paths.as_mut().unwrap().decoder.hidden_size = 0
        }),
        ("no code", any, &|c| {
            c.objective.paths.as_mut().unwrap().languages[0] = "../x".into()
        }),
        ("stall_factor", any, &|c| c.schedule.stall_factor = 0.5),
        (
            "uses the language \"cc\"",
            r#"{ from = ["aa"], to = ["bb", "dd"] }"#,
            &|_| (),
        ),
        (
            "pivot \"dd\"",
            r#"{ from = ["aa", "bb", "cc"], to = ["dd"] }"#,
            &|c| {
                c.dev = vec![super::config::DevSet {
                    path: world.path("dev.tsv"),
                    pivot: "dd".into(),
                    keys: 0,
                    weight: 1.0,
                }];
            },
        ),
    ];
    for (wanted, paths, change) in cases {
        let error = error(paths, change);
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    // A checkpoint of other paths is no start.
    let config = world.config("other", any, "[run]\nsteps = 2");
    let options = Options {
        updates: Some(1),
        ..quiet()
    };
    run(&config, &options).unwrap();
    let config = world.config("other", "{ sources = 2 }", "[run]\nsteps = 2");
    let options = Options {
        resume: true,
        ..quiet()
    };
    let error = run(&config, &options).unwrap_err().to_string();
    assert!(error.contains("other paths"), "{error}");
}
