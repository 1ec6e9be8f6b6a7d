//! The tables of papers, each of them from text to the document in a few updates on made-up data.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Languages that tables name.
const LANGUAGES: [&str; 26] = [
    "af", "ar", "ca", "da", "de", "el", "en", "es", "fr", "hi", "hu", "id", "it", "ja", "ko", "mn",
    "nl", "pl", "pt", "ru", "sv", "sw", "tr", "zh", "my", "ur",
];
const TRAIN: usize = 600;
const DEV: usize = 60;

fn dice(x: usize) -> usize {
    (x as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(23)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9) as usize
        >> 7
}

/// Sentence `key` in a language: the same concepts in other letters.
fn sentence(key: usize, language: usize) -> String {
    let word = |i: usize| {
        let concept = dice(key * 31 + i) % 150;
        let letter =
            |n: usize| char::from(b'a' + (dice(concept * 97 + language * 13 + n) % 26) as u8);
        (0..4 + concept % 3).map(letter).collect::<String>()
    };
    let words: Vec<String> = (0..4 + key % 4).map(word).collect();
    words.join(" ")
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
    let bytes = match path.extension().is_some_and(|e| e == "zst") {
        true => zstd::encode_all(text.as_bytes(), 1).expect("zstd"),
        false => text.as_bytes().to_vec(),
    };
    std::fs::write(path, bytes).expect("write");
}

fn keyed(keys: std::ops::Range<usize>) -> String {
    let mut text = String::new();
    for key in keys {
        for (language, code) in LANGUAGES.iter().enumerate() {
            writeln!(text, "k{key:05}\t{code}\t{}", sentence(key, language)).expect("write");
        }
    }
    text
}

/// Lines `split, label, sentence[, sentence]`.
fn labelled(
    split: impl Fn(usize) -> &'static str,
    labels: &[&str],
    count: usize,
    pair: bool,
) -> String {
    let mut text = String::new();
    for i in 0..count {
        let (label, first) = (labels[i % labels.len()], sentence(i, 2));
        write!(text, "{}\t{label}\t{first} {label}", split(i)).expect("write");
        if pair {
            write!(text, "\t{}", sentence(i + i % 3, 2)).expect("write");
        }
        text.push('\n');
    }
    text
}

/// Text, labelled text and text to be mined, of all that tables name.
fn make(data: &Path) {
    for source in [
        "massive",
        "stsb_mt",
        "multi30k",
        "ntrex",
        "omw_sharealike",
        "tico19",
        "wiki_messages",
        "wmt_general",
    ] {
        let file = format!("{source}.tsv.zst");
        write(&data.join("train").join(&file), &keyed(0..TRAIN));
        write(&data.join("dev").join(&file), &keyed(TRAIN..TRAIN + DEV));
    }
    // Every tenth sentence is on both sides.
    for (language, code) in LANGUAGES.iter().enumerate() {
        if !["de", "fr", "ru", "zh"].contains(code) {
            continue;
        }
        let (mut source, mut target, mut gold) = (String::new(), String::new(), String::new());
        for key in 0..200 {
            let hidden = key % 10 == 0;
            if hidden || key % 2 == 1 {
                writeln!(source, "s{key}\t{}", sentence(key, language)).expect("write");
            }
            if hidden || key % 2 == 0 {
                writeln!(target, "t{key}\t{}", sentence(key, 6)).expect("write");
            }
            if hidden {
                writeln!(gold, "s{key}\tt{key}").expect("write");
            }
        }
        let mining = data.join("mining");
        write(&mining.join(format!("{code}.txt")), &source);
        write(&mining.join(format!("en-{code}.txt")), &target);
        write(&mining.join(format!("{code}.gold")), &gold);
    }
    let parts = |i: usize| ["train", "dev", "test", "train"][i / 3 % 4];
    let tasks = data.join("tasks");
    let inference = ["entailment", "neutral", "contradiction"];
    write(
        &tasks.join("nli/sick.en.tsv"),
        &labelled(parts, &inference, 120, true),
    );
    for language in ["en", "ko", "my", "sw", "ur"] {
        let file = tasks.join(format!("nli/xnli-dev.{language}.tsv"));
        write(&file, &labelled(|_| "dev", &inference, 30, true));
    }
    let topics = |i: usize| ["train50", "dev", "test", "train50"][i / 4 % 4];
    for language in ["eng", "fra", "hau", "swa", "xho"] {
        let file = tasks.join(format!("topics/masakhanews.{language}.tsv"));
        let labels = ["business", "health", "politics", "sports"];
        write(&file, &labelled(topics, &labels, 96, true));
    }
    for (task, pair) in [
        ("MR", false),
        ("CR", false),
        ("SUBJ", false),
        ("MPQA", false),
        ("SST2", false),
        ("TREC", false),
        ("MRPC", true),
    ] {
        let all = ["MR", "CR", "SUBJ", "MPQA"].contains(&task);
        let split = |i: usize| if all { "all" } else { parts(i) };
        let file = tasks.join(format!("senteval/{task}.tsv"));
        write(&file, &labelled(split, &["0", "1"], 96, pair));
    }
}

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/papers")
}

/// Files of tables, and of configurations that they name.
fn files(configs: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut all = Vec::new();
    for paper in std::fs::read_dir(configs).expect("papers") {
        for file in std::fs::read_dir(paper.expect("paper").path()).expect("tables") {
            all.push(file.expect("file").path());
        }
    }
    all.retain(|path| path.extension().is_some_and(|e| e == "toml"));
    let of_training = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with("train-")
    };
    let (training, tables) = all.into_iter().partition(of_training);
    (tables, training)
}

/// The command that runs all tables of a folder.
fn command(folder: &Path, configs: &Path, scale: &str, set: &[&str]) -> Command {
    write(
        &folder.join("papers.md"),
        "<!-- tables -->\n<!-- end of tables -->\n",
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_laser"));
    command
        .args([
            "reproduce",
            "all",
            "--scale",
            scale,
            "--data",
            "data",
            "-o",
            "runs",
        ])
        .args(["--into", "papers.md", "--threads", "2", "--configs"])
        .arg(configs);
    for pair in set {
        command.args(["--set", pair]);
    }
    command.current_dir(folder);
    command
}

/// Runs all tables of a folder, each of which must have figures or reasons.
fn reproduce(folder: &Path, configs: &Path, scale: &str, set: &[&str]) {
    let output = command(folder, configs, scale, set).output();
    let output = output.expect("the program runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let document = std::fs::read_to_string(folder.join("papers.md")).expect("document");
    assert!(!document.contains("not run yet"), "{document}");
    let tables = files(configs).0.len();
    assert_eq!(document.matches("\n### ").count(), tables, "{document}");
}

#[test]
fn every_table_runs_in_a_miniature() {
    let folder = tempfile::tempdir().expect("folder");
    make(&folder.path().join("data"));
    let set = ["steps=2", "updates=2", "vocabulary=300"];
    reproduce(folder.path(), &configs(), "small", &set);
}

/// The command that a process runs, without its program; `None` if it has ended.
#[cfg(target_os = "linux")]
fn arguments(process: u32) -> Option<String> {
    let line = std::fs::read_to_string(format!("/proc/{process}/cmdline")).ok()?;
    let (_, arguments) = line.split_once('\0')?;
    Some(arguments.replace('\0', " "))
}

#[cfg(target_os = "linux")]
#[test]
fn a_training_ends_with_the_command_that_runs_it() {
    let folder = tempfile::tempdir().expect("folder");
    make(&folder.path().join("data"));
    let set = ["steps=1000000", "vocabulary=300"];
    let mut command = command(folder.path(), &configs(), "small", &set);
    let mut reproduce = command
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the program runs");
    let id = reproduce.id();
    let until = |done: &mut dyn FnMut() -> bool| {
        let begin = std::time::Instant::now();
        while !done() {
            assert!(begin.elapsed().as_secs() < 120, "waited in vain");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let mut training = 0;
    until(&mut || {
        let is_training = |child: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{child}/status"));
            let is_child = status.is_ok_and(|s| s.contains(&format!("PPid:\t{id}\n")));
            is_child && arguments(*child).is_some_and(|a| a.contains(" train "))
        };
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        let numbers = processes.flat_map(|p| p.file_name().to_string_lossy().parse());
        let found = numbers.into_iter().find(is_training);
        training = found.unwrap_or_default();
        found.is_some()
    });
    reproduce.kill().expect("a signal");
    reproduce.wait().expect("it has ended");
    until(&mut || arguments(training).is_none());
}

/// The table of this name in another one.
fn inner<'a>(table: &'a mut toml::Table, name: &str) -> Option<&'a mut toml::Table> {
    table.get_mut(name).and_then(toml::Value::as_table_mut)
}

/// A configuration in the paper's setting with widths divided by 32, one layer and batches of 12.
fn shrink(text: &str) -> String {
    let mut config: toml::Table = text.parse().expect("TOML");
    let number = |n: i64| toml::Value::Integer(n);
    if let Some(sampling) = inner(&mut config, "sampling") {
        sampling.remove("batch_tokens");
        sampling.insert("batch_pairs".into(), number(12));
    }
    if let Some(run) = inner(&mut config, "run") {
        run.remove("accumulate");
    }
    let encoder = inner(&mut config, "model").and_then(|m| inner(m, "encoder"));
    let encoder = encoder.expect("an encoder");
    for name in ["hidden_size", "intermediate_size"] {
        if let Some(width) = encoder.get(name).and_then(toml::Value::as_integer) {
            encoder.insert(name.into(), number(width / 32));
        }
    }
    if encoder.contains_key("layers") {
        encoder.insert("layers".into(), number(1));
    }
    let objectives = inner(&mut config, "objective").expect("an objective");
    for name in ["nmt", "paths"] {
        let decoder = inner(objectives, name).and_then(|o| inner(o, "decoder"));
        if let Some(decoder) = decoder {
            decoder.insert("embedding_size".into(), number(8));
            decoder.insert("hidden_size".into(), number(16));
        }
    }
    config.to_string()
}

/// What only runs of days would tell otherwise: that the paper's setting of every table starts, and that what its steps
/// make fits together.
#[test]
fn the_papers_setting_of_every_table_starts() {
    let folder = tempfile::tempdir().expect("folder");
    make(&folder.path().join("data"));
    let small = folder.path().join("configs");
    let copy = |path: &Path, text: &str| {
        let place = path.strip_prefix(configs()).expect("a file of the folder");
        write(&small.join(place), text);
    };
    let (tables, training) = files(&configs());
    for path in training {
        let text = std::fs::read_to_string(&path).expect("a configuration");
        let full = path.to_string_lossy().ends_with("-full.toml");
        copy(&path, &if full { shrink(&text) } else { text });
    }
    for path in tables {
        let mut text = std::fs::read_to_string(&path).expect("a table");
        // The others are the same at both scales.
        if !text.contains("\nfull = ") {
            continue;
        }
        for (from, to) in [
            ("hidden_size = 512", "hidden_size = 16"),
            ("hidden_size = 1024", "hidden_size = 16"),
            ("embedding_size = 1024", "embedding_size = 32"),
            ("batch = \"4096\"", "batch = \"24\""),
            ("batch = \"1024\"", "batch = \"18\""),
            ("batch = \"256\"", "batch = \"12\""),
            ("\"--epochs\", \"40\"", "\"--epochs\", \"2\""),
        ] {
            text = text.replace(from, to);
        }
        copy(&path, &text);
    }
    let set = [
        "steps=1",
        "steps2=1",
        "steps3=1",
        "teacher_steps=1",
        "updates=1",
        "short=1",
        "medium=2",
        "long=3",
        "vocabulary=300",
        "narrow=8",
        "middle=16",
        "wide=32",
        "word=12",
        "state=16",
        "hidden=24",
        "inner=48",
        "all=4",
        "half=2",
        "quarter=1",
        "batch=12",
        "folds=2",
        "few=40",
        "some=80",
        "many=160",
    ];
    reproduce(folder.path(), &small, "full", &set);
}
