//! The tables of papers, each of them from text to the document in a few updates on made-up data.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Languages that tables name.
const LANGUAGES: [&str; 24] = [
    "af", "ar", "ca", "da", "de", "el", "en", "es", "fr", "hi", "hu", "id", "it", "ja", "ko", "mn",
    "nl", "pl", "pt", "ru", "sv", "sw", "tr", "zh",
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

#[test]
fn every_table_runs_in_a_miniature() {
    let folder = tempfile::tempdir().expect("folder");
    let data = folder.path().join("data");
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
    for language in ["en", "sw", "ur"] {
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
    write(
        &folder.path().join("papers.md"),
        "<!-- tables -->\n<!-- end of tables -->\n",
    );
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/papers");
    let output = Command::new(env!("CARGO_BIN_EXE_laser"))
        .args([
            "reproduce",
            "all",
            "--data",
            "data",
            "-o",
            "runs",
            "--into",
            "papers.md",
        ])
        .args([
            "--set",
            "steps=2",
            "--set",
            "vocabulary=300",
            "--threads",
            "2",
            "--configs",
        ])
        .arg(&configs)
        .current_dir(folder.path())
        .output()
        .expect("the program runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let document = std::fs::read_to_string(folder.path().join("papers.md")).expect("document");
    assert!(!document.contains("not run yet"), "{document}");
    // Every table, with rows that have a figure or a reason.
    let tables = std::fs::read_dir(&configs)
        .expect("papers")
        .flat_map(|paper| {
            let files = std::fs::read_dir(paper.expect("paper").path()).expect("tables");
            files.map(|file| {
                file.expect("file")
                    .file_name()
                    .into_string()
                    .expect("a name")
            })
        });
    let tables = tables
        .filter(|name| name.ends_with(".toml") && !name.starts_with("train-"))
        .count();
    assert_eq!(document.matches("\n### ").count(), tables, "{document}");
}
