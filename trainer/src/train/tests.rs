//! Runs on a language pair of forty words, small enough to train within a second.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::checkpoint::initialise_from;
use super::config::{NmtOptions, Sides, TrainConfig, TransferOptions};
use super::{Options, Summary, TrainError, run};
use crate::data::pack_writer::{PackWriter, PackedSentence};
use crate::export::{self, ExportOptions, Format};
use crate::models::Model;
use crate::objectives::nmt::DecoderSizes;
use crate::objectives::transfer::Distance;
use laser_kernels::training::Arithmetic;

const WORDS: u32 = 40;

/// A language pair in which word `a7` means `b7`, as corpus, dev set and configuration.
pub(crate) struct World {
    folder: tempfile::TempDir,
}

/// Numbers that look random.
fn dice(x: u64) -> u64 {
    laser_sampling::mix(x)
}

/// A tokenizer.json of words; where `<s>` is among them, every text begins with it.
pub(crate) fn tokenizer(words: &[String]) -> String {
    let vocabulary: Vec<String> = words
        .iter()
        .zip(0..)
        .map(|(word, id): (_, u32)| format!("\"{word}\":{id}"))
        .collect();
    let beginning = words.iter().position(|word| word == "<s>");
    let processor = beginning.map_or("null".to_owned(), |id| {
        let token = r#"{"SpecialToken":{"id":"<s>","type_id":0}}"#;
        let text = r#"{"Sequence":{"id":"A","type_id":0}}"#;
        format!(
            r#"{{"type":"TemplateProcessing","single":[{token},{text}],"pair":[{token},{text}],
               "special_tokens":{{"<s>":{{"id":"<s>","ids":[{id}],"tokens":["<s>"]}}}}}}"#
        )
    });
    format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
           "normalizer":null,"pre_tokenizer":{{"type":"WhitespaceSplit"}},
           "post_processor":{processor},"decoder":null,
           "model":{{"type":"WordLevel","vocab":{{{}}},"unk_token":"<unk>"}}}}"#,
        vocabulary.join(",")
    )
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// With more tokens, which no text has, see [`tokenizer`].
    pub(crate) fn with(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let words: Vec<String> = ["a", "b"]
            .iter()
            .flat_map(|l| (0..WORDS).map(move |i| format!("{l}{i}")))
            .chain(["<unk>", "</s>"].map(str::to_owned))
            .chain(more.iter().map(|token| (*token).to_owned()))
            .collect();
        let json = tokenizer(&words);
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("tokenizer.json"), json).unwrap();
        let loaded = crate::tokenizer::load(&path("tokenizer.json")).unwrap();
        let fingerprint = loaded.fingerprint.clone();
        let mut writer =
            PackWriter::create(&path("corpus"), fingerprint, loaded.vocab_size, 32).unwrap();
        let mut dev = String::new();
        for key in 0..400u64 {
            let length = 2 + dice(key) % 5;
            let ids: Vec<u32> = (0..length)
                .map(|i| (dice(key << 8 | i) % u64::from(WORDS)) as u32)
                .collect();
            let text = |l: &str| {
                ids.iter()
                    .map(|i| format!("{l}{i}"))
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            let (a, b) = (text("a"), text("b"));
            if key < 40 {
                dev += &format!("k{key:03}\ten\t{b}\nk{key:03}\txx\t{a}\n");
                continue;
            }
            let shifted: Vec<u32> = ids.iter().map(|i| i + WORDS).collect();
            // The same words the other way round.
            let reversed: Vec<u32> = shifted.iter().rev().copied().collect();
            let perturbed = [(format!("{b} reversed"), reversed)];
            let group = [
                PackedSentence {
                    language: "xx",
                    text: &a,
                    ids: &ids,
                    perturbed: &[],
                },
                PackedSentence {
                    language: "en",
                    text: &b,
                    ids: &shifted,
                    perturbed: &perturbed,
                },
            ];
            writer.push("made", &format!("{key}"), &group).unwrap();
        }
        writer.finish(None).unwrap();
        std::fs::write(path("dev.tsv"), dev).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A configuration that writes to `output`.
    pub(crate) fn config(&self, output: &str, encoder: &str, steps: u64) -> TrainConfig {
        let text = format!(
            r#"
            name = "test"
            output = "{output}"
            tokenizer = "tokenizer.json"
            corpus = "corpus"
            threads = 2
            [model]
            max_tokens = 32
            encoder = {{ {encoder} }}
            [sampling]
            batch_pairs = 64
            [objective.dual]
            learn_scale = true
            [dropout]
            tokens = 0.1
            embedding = 0.05
            hidden = 0.05
            [optimizer]
            learning_rate = 0.02
            clip_norm = 5.0
            average_decay = 0.9
            [schedule]
            warmup_steps = 4
            [run]
            steps = {steps}
            log_steps = 4
            [[dev]]
            path = "dev.tsv"
            "#
        );
        let file = self.path("config.toml");
        std::fs::write(&file, text).unwrap();
        TrainConfig::load(&file).unwrap()
    }
}

pub(crate) const MEAN: &str = r#"architecture = "mean", embedding_size = 16, pooling = "weighted""#;
const BILSTM: &str = r#"architecture = "bilstm", embedding_size = 12, hidden_size = 10, layers = 2,
    pooling = "max", append_eos = true"#;

const RESIDUAL: &str = r#"architecture = "residual_bilstm", embedding_size = 16, pooling = "weighted",
    hidden_size = 16, layers = 1, state_pooling = "max""#;

pub(crate) fn quiet() -> Options {
    Options {
        quiet: true,
        ..Options::default()
    }
}

/// The bytes of the tensors at the end, of all languages one after the other.
pub(crate) fn tensors(folder: &Path) -> Vec<u8> {
    let last = folder.join("last");
    let folders = match laser_model::Languages::read(&last).unwrap() {
        Some(list) => list.codes().map(|l| last.join(l)).collect(),
        None => vec![last],
    };
    let read = |folder: &PathBuf| std::fs::read(folder.join("model.safetensors")).unwrap();
    folders.iter().flat_map(read).collect()
}

pub(crate) fn one(config: &TrainConfig) -> Summary {
    run(config, &quiet()).unwrap()
}

#[test]
fn a_mean_model_learns_the_language() {
    let world = World::new();
    let config = world.config("mean", &MEAN.replace('\n', " "), 60);
    let summary = one(&config);
    let (accuracy, _) = summary.best.unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
    for name in [
        "best/config.json",
        "best/tokenizer.json",
        "last/model.safetensors",
    ] {
        assert!(config.output.join(name).is_file(), "{name}");
    }
    let log = std::fs::read_to_string(config.output.join("train.csv")).unwrap();
    assert_eq!(log.lines().count(), 16);
    let dev = std::fs::read_to_string(config.output.join("dev.csv")).unwrap();
    assert!(
        dev.lines()
            .any(|l| l.starts_with("60,") && l.contains(",dev,xx,")),
        "{dev}"
    );
}

/// Share of sentences that are nearer to their translation than to its words the other way round.
fn order(folder: &Path) -> f64 {
    let options = laser_encoder::LoadOptions {
        threads: 1,
        precision: laser_encoder::Precision::F32,
        ..Default::default()
    };
    let encoder = laser_encoder::Encoder::load(folder, &options).unwrap();
    let (mut right, mut of) = (0, 0);
    for key in 1000..1300u64 {
        let ids: Vec<u32> = (0..3 + dice(key) % 4)
            .map(|i| (dice(key << 8 | i) % u64::from(WORDS)) as u32)
            .collect();
        let target: Vec<u32> = ids.iter().map(|id| id + WORDS).collect();
        let reversed: Vec<u32> = target.iter().rev().copied().collect();
        if reversed == target {
            continue;
        }
        let z = encoder.encode_ids(&[ids, target, reversed]).unwrap();
        let cosine = |i: usize| -> f32 { z.row(0).iter().zip(z.row(i)).map(|(a, b)| a * b).sum() };
        right += usize::from(cosine(1) > cosine(2) + 1e-6);
        of += 1;
    }
    f64::from(right as u32) / f64::from(of as u32)
}

#[test]
fn perturbed_sentences_teach_order_beside_a_frozen_mean() {
    let world = World::new();
    let mut mean = world.config("mean", MEAN, 60);
    mean.objective.dual.as_mut().unwrap().learn_scale = false;
    one(&mean);
    assert!(order(&mean.output.join("last")) < 0.01);
    let mut config = world.config("residual", &RESIDUAL.replace('\n', " "), 200);
    config.model.init_from = Some(mean.output.join("last"));
    config.model.freeze_embeddings = true;
    let dual = config.objective.dual.as_mut().unwrap();
    (dual.learn_scale, dual.perturbed) = (false, 1);
    config.dropout = Default::default();
    config.optimizer.average_decay = 0.0;
    let summary = one(&config);
    assert!(summary.best.unwrap().0 > 0.9);
    let found = order(&config.output.join("last"));
    assert!(found > 0.9, "{found}");
    let table = |folder: &Path| {
        let file = folder.join("last/model.safetensors");
        let weights = laser_model::folder::Weights::open(&file).unwrap();
        let rows = weights.rows("embed_tokens.weight").unwrap();
        weights
            .matrix("embed_tokens.weight", rows, 16)
            .unwrap()
            .to_f32()
    };
    assert_eq!(table(&mean.output), table(&config.output));
    // Less of the BiLSTM, which decides about order alone; none of it; a mean has no gate.
    let scaled = |folder: &Path, factor: f32| {
        let mut model = export::read(&folder.join("last")).unwrap();
        model.scale_gate(factor)?;
        let to = world.path("scaled");
        let options = ExportOptions {
            name: None,
            table: Format::F32,
            matrices: Format::F32,
            checks: Vec::new(),
            base: None,
        };
        model.write(&to, &options)?;
        Ok::<_, export::ExportError>(order(&to))
    };
    assert!(scaled(&config.output, 0.5).unwrap() > 0.85);
    // Beside the mean it needs no table of its own, and can be read, trained and written whole again.
    let model = export::read(&config.output.join("last")).unwrap();
    let options = |base: Option<PathBuf>| ExportOptions {
        name: None,
        table: Format::F32,
        matrices: Format::F32,
        checks: Vec::new(),
        base,
    };
    let on_base = mean.output.join("on-base");
    let base = mean.output.join("last");
    model.write(&on_base, &options(Some(base.clone()))).unwrap();
    let size = |folder: &Path| {
        std::fs::metadata(folder.join("model.safetensors"))
            .unwrap()
            .len()
    };
    assert!(size(&on_base) + 4000 < size(&config.output.join("last")));
    assert_eq!(order(&on_base), found);
    let read = export::read(&on_base).unwrap();
    assert!(read.config.base.is_none());
    assert_eq!(read.tensors, model.tensors);
    let mut again = world.config("again", &RESIDUAL.replace('\n', " "), 1);
    again.model.init_from = Some(on_base);
    again.optimizer.learning_rate = 0.0;
    one(&again);
    assert_eq!(order(&again.output.join("last")), found);
    assert_eq!(table(&mean.output), table(&again.output));
    for (base, what) in [
        (config.output.join("last"), "is not beside it"),
        (mean.output.join("missing"), "missing"),
    ] {
        let to = mean.output.join("refused");
        let error = model.write(&to, &options(Some(base))).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    let mut other = export::read(&config.output.join("last")).unwrap();
    other.tensors.get_mut("embed_tokens.weight").unwrap().1[0] += 1.0;
    let to = mean.output.join("refused");
    let error = other.write(&to, &options(Some(base))).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("another tensor \"embed_tokens.weight\""),
        "{error}"
    );
    assert!(scaled(&config.output, 0.0).unwrap() < 0.01);
    assert!(scaled(&mean.output, 0.5).is_err());
    // Without them in the corpus it is an error.
    let error = {
        let fingerprint = crate::tokenizer::load(&config.tokenizer).unwrap();
        let path = world.path("plain");
        let (print, size) = (fingerprint.fingerprint.clone(), fingerprint.vocab_size);
        let mut writer = PackWriter::create(&path, print, size, 32).unwrap();
        let sentence = |language, ids| PackedSentence {
            language,
            text: language,
            ids,
            perturbed: &[],
        };
        let group = [sentence("xx", &[1]), sentence("en", &[41])];
        writer.push("made", "1", &group).unwrap();
        writer.finish(None).unwrap();
        config.corpus = path;
        run(&config, &quiet()).unwrap_err().to_string()
    };
    assert!(error.contains("--perturb"), "{error}");
}

/// A run that is done again, and one that is stopped after 5 and after 9 of its `updates` and goes on, end in the
/// same tensors and loss, bit for bit. Returns the tensors.
pub(crate) fn ends_alike(
    folder: &Path,
    name: &str,
    config: &mut TrainConfig,
    updates: u64,
) -> Vec<u8> {
    let whole = one(config);
    let expected = tensors(&config.output);
    config.output = folder.join(format!("{name}-again"));
    assert_eq!(one(config).loss.to_bits(), whole.loss.to_bits());
    assert_eq!(tensors(&config.output), expected);
    config.output = folder.join(format!("{name}-parts"));
    for (more, step) in [(Some(5), 5), (Some(4), 9), (None, updates)] {
        let options = Options {
            resume: true,
            updates: more,
            ..quiet()
        };
        let summary = run(config, &options).unwrap();
        assert_eq!(summary.step, step);
        if step == updates {
            assert_eq!(summary.loss.to_bits(), whole.loss.to_bits());
        }
    }
    assert_eq!(tensors(&config.output), expected);
    expected
}

#[test]
fn a_run_is_repeated_exactly_and_resumes_exactly() {
    let world = World::new();
    let mean = world.config("start", MEAN, 5);
    one(&mean);
    for (name, encoder) in [
        ("m", MEAN.to_string()),
        ("b", BILSTM.replace('\n', " ")),
        (
            "l",
            format!("{}, bidirectional = false", BILSTM.replace('\n', " ")),
        ),
        ("f", RESIDUAL.replace('\n', " ")),
    ] {
        let mut config = world.config(&format!("{name}-whole"), &encoder, 14);
        if name == "f" {
            config.model.init_from = Some(mean.output.join("last"));
            config.model.freeze_embeddings = true;
        }
        let dual = config.objective.dual.as_mut().unwrap();
        dual.perturbed = 1;
        (dual.mega_batch, dual.mega_from_step, dual.mega_share) = (3, 2, 0.7);
        config.run.accumulate = 2;
        let expected = ends_alike(&world.path(""), name, &mut config, 14);
        config.output = world.path(&format!("{name}-seed"));
        config.seed = 2;
        one(&config);
        assert_ne!(tensors(&config.output), expected);
    }
}

#[test]
fn an_interrupted_run_saves_a_checkpoint_and_goes_on() {
    let world = World::new();
    let mut config = world.config("stopped", MEAN, 8);
    let options = Options {
        resume: true,
        stop: Some(Arc::new(AtomicBool::new(true))),
        ..quiet()
    };
    let summary = run(&config, &options).unwrap();
    assert!(summary.interrupted);
    assert_eq!(summary.step, 0);
    assert!(config.output.join(super::checkpoint::FILE).is_file());
    assert!(
        run(
            &config,
            &Options {
                stop: None,
                ..options.clone()
            }
        )
        .unwrap()
        .best
        .is_some()
    );
    // Another model does not fit the checkpoint.
    config = world.config("stopped", &MEAN.replace("16", "20"), 8);
    let error = run(
        &config,
        &Options {
            stop: None,
            ..options
        },
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("embed_tokens.weight"), "{error}");
}

#[test]
fn chunks_change_memory_and_nothing_else() {
    let world = World::new();
    let mut config = world.config("whole", MEAN, 3);
    config.dropout = Default::default();
    config.threads = 1;
    let whole = one(&config).loss;
    config.output = world.path("chunks");
    config.run.chunk_sentences = 50;
    let chunks = one(&config).loss;
    assert!((whole - chunks).abs() < 1e-5, "{whole} {chunks}");
}

#[test]
fn a_bilstm_starts_from_a_mean_model_and_learns() {
    let world = World::new();
    let first = world.config("first", &MEAN.replace("16", "12"), 40);
    one(&first);
    let mut second = world.config("second", &BILSTM.replace('\n', " "), 60);
    second.model.init_from = Some(first.output.clone());
    second.dropout = Default::default();
    let (accuracy, _) = one(&second).best.unwrap();
    assert!(accuracy > 0.7, "{accuracy}");
}

#[test]
fn a_run_starts_from_an_exported_int8_table() {
    let world = World::new();
    let first = world.config("first", &MEAN.replace('\n', " "), 60);
    let (trained, _) = one(&first).best.unwrap();
    let small = world.path("small");
    let options = ExportOptions {
        name: None,
        table: Format::I8,
        matrices: Format::F32,
        checks: Vec::new(),
        base: None,
    };
    let model = export::read(&first.output.join("best")).unwrap();
    model.write(&small, &options).unwrap();
    let mut second = world.config("second", &MEAN.replace('\n', " "), 1);
    second.model.init_from = Some(small);
    second.optimizer.learning_rate = 0.0;
    let (start, _) = one(&second).best.unwrap();
    assert!((trained - start).abs() < 0.02, "{trained} {start}");
}

#[test]
fn rows_follow_their_tokens_into_another_tokenizer() {
    let world = World::new();
    let config = world.config("first", &MEAN.replace('\n', " "), 5);
    one(&config);
    let folder = config.output.join("best");
    // The same tokens the other way round, and one more.
    let text = std::fs::read_to_string(&config.tokenizer).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
    let last = vocabulary.len() as u64;
    for id in vocabulary.values_mut() {
        *id = (last - id.as_u64().unwrap()).into();
    }
    vocabulary.insert("new".into(), 0.into());
    let other = world.path("other.json");
    std::fs::write(&other, json.to_string()).unwrap();
    let model = |rows: u64| {
        let config = config.model_config().unwrap();
        Model::new(config, rows as usize, None, Arithmetic::F32, 9).unwrap()
    };
    let (mut same, mut turned) = (model(last), model(last + 1));
    let fresh = turned.clone();
    initialise_from(&folder, &mut same, &config.tokenizer, false).unwrap();
    initialise_from(&folder, &mut turned, &other, false).unwrap();
    for i in 0..same.parameters().sparse() {
        let (a, b) = (same.parameters().value(i), turned.parameters().value(i));
        let width = a.len() / last as usize;
        let rows = a.chunks_exact(width).zip(b.chunks_exact(width).rev());
        rows.for_each(|(a, b)| assert_eq!(a, b));
        assert_eq!(b[..width], fresh.parameters().value(i)[..width]);
    }
}

#[test]
fn a_deeper_transformer_starts_from_the_layers_of_a_shallow_one() {
    let world = World::new();
    let transformer = |layers: usize| {
        format!(
            "architecture = \"transformer\", hidden_size = 8, layers = {layers}, heads = 2, \
             intermediate_size = 12, max_positions = 32, type_vocab_size = 1, layer_norm_eps = 1e-5, \
             activation = \"gelu\", norm = \"post\", pooling = \"mean\""
        )
    };
    let shallow = world.config("shallow", &transformer(2), 2);
    one(&shallow);
    let mut deep = world.config("deep", &transformer(4), 1);
    deep.optimizer.learning_rate = 0.0;
    deep.optimizer.average_decay = 0.0;
    deep.model.init_from = Some(shallow.output.join("last"));
    deep.model.stack_layers = true;
    one(&deep);
    let (from, to) = (
        export::read(&shallow.output.join("last")).unwrap(),
        export::read(&deep.output.join("last")).unwrap(),
    );
    let mut layers = 0;
    for (name, tensor) in &to.tensors {
        let source = name
            .replace("layers.2.", "layers.0.")
            .replace("layers.3.", "layers.1.");
        assert_eq!(tensor, &from.tensors[&source], "{name}");
        layers += usize::from(source != *name);
    }
    assert!(layers > 10, "{layers}");
    let mut mean = world.config("mean", MEAN, 1);
    mean.model.stack_layers = true;
    assert!(
        run(&mean, &quiet())
            .unwrap_err()
            .to_string()
            .contains("stack_layers")
    );
}

#[test]
fn a_loss_that_is_no_number_is_an_error_with_step_and_rate() {
    let world = World::new();
    let mut config = world.config("nan", MEAN, 50);
    config.optimizer.learning_rate = 1e40;
    config.optimizer.clip_norm = 0.0;
    match run(&config, &quiet()) {
        Err(TrainError::Diverged {
            what: "loss",
            step: 1..,
            rate,
            ..
        }) => assert!(rate > 1e37),
        other => panic!("{other:?}"),
    }
}

#[test]
fn translation_and_transfer_teach_as_well() {
    let world = World::new();
    let mut teacher = world.config("teacher", MEAN, 60);
    teacher.dropout = Default::default();
    one(&teacher);
    // A student of another architecture learns the teacher's space from translations alone.
    let encoder = r#"architecture = "mean", embedding_size = 16, pooling = "mean""#;
    let mut student = world.config("student", encoder, 80);
    student.seed = 9;
    student.objective.dual = None;
    student.objective.transfer = Some(TransferOptions {
        weight: 1.0,
        teacher: teacher.output.join("best"),
        distance: Distance::Cosine,
        sides: Sides::Sources,
        mask_similar: 0.0,
        lambda: 0.0,
    });
    let summary = one(&student);
    assert!(summary.loss < 0.2, "{}", summary.loss);
    // What the teacher finds similar is not told apart.
    let masked = |threshold: f32, output: &str| {
        let mut config = world.config(output, encoder, 10);
        config.objective.transfer = Some(TransferOptions {
            weight: 0.0,
            teacher: teacher.output.join("best"),
            distance: Distance::Cosine,
            sides: Sides::Sources,
            mask_similar: threshold,
            lambda: 0.0,
        });
        one(&config).loss
    };
    let (all, none, off) = (masked(1e-6, "a"), masked(1.1, "b"), masked(0.0, "c"));
    assert_eq!(none, off);
    assert!(all < off, "{all} {off}");
    // The sum of two objectives; the translation loss alone starts at ln(82) = 4.4.
    let mut nmt = world.config("nmt", encoder, 60);
    nmt.objective.dual.as_mut().unwrap().weight = 0.1;
    nmt.objective.nmt = Some(NmtOptions {
        weight: 1.0,
        decoder: DecoderSizes {
            embedding_size: 8,
            language_size: 2,
            hidden_size: 24,
            ..DecoderSizes::default()
        },
        denoise: Default::default(),
    });
    nmt.run.log_steps = 1;
    one(&nmt);
    let log = std::fs::read_to_string(nmt.output.join("train.csv")).unwrap();
    let losses: Vec<f64> = log
        .lines()
        .skip(1)
        .map(|l| l.split(',').nth(5).unwrap().parse().unwrap())
        .collect();
    assert!(losses[59] < losses[0] - 1.0, "{losses:?}");
    assert!(!tensors(&nmt.output).windows(8).any(|w| w == b"decoder."));
    // The decoder is part of the checkpoint: a run in two parts ends in the same loss.
    let whole = losses[59];
    nmt.output = world.path("nmt-parts");
    let options = Options {
        updates: Some(30),
        ..quiet()
    };
    run(&nmt, &options).unwrap();
    let second = run(
        &nmt,
        &Options {
            resume: true,
            ..quiet()
        },
    )
    .unwrap();
    assert!(
        (second.loss - whole).abs() < 1e-4,
        "{} {whole}",
        second.loss
    );
}
