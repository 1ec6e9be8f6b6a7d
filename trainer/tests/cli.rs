//! The program from text to a measured model, on a small corpus of made-up languages.
//!
//! A sentence is a list of concepts. Each language spells every concept in its own letters, so
//! that nothing but training on parallel text can align them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Concepts, keys for training, keys held out.
const CONCEPTS: usize = 240;
const TRAIN: usize = 2400;
const DEV: usize = 150;

/// A small deterministic generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Languages: code, letters, whether words stand in reverse order.
const LANGUAGES: [(&str, &str, bool); 4] = [
    ("en", "abcdefghij", false),
    ("ka", "აბგდევზთიკ", false),
    ("el", "αβγδεζηθικ", true),
    ("ru", "абвгдежзик", false),
];

fn word(concept: usize, language: usize) -> String {
    let mut random = Random((concept * 7 + language * 100_003) as u64);
    let letters: Vec<char> = LANGUAGES[language].1.chars().collect();
    (0..5)
        .map(|_| letters[random.below(letters.len())])
        .collect()
}

fn sentence(concepts: &[usize], language: usize) -> String {
    let mut words: Vec<String> = concepts.iter().map(|c| word(*c, language)).collect();
    if LANGUAGES[language].2 {
        words.reverse();
    }
    words.join(" ") + "."
}

fn concepts(random: &mut Random) -> Vec<usize> {
    let length = 4 + random.below(5);
    (0..length).map(|_| random.below(CONCEPTS)).collect()
}

/// A folder with the corpus, and the program.
struct Workshop {
    folder: tempfile::TempDir,
}

impl Workshop {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path();
        std::fs::create_dir(root.join("train")).expect("folder");
        std::fs::create_dir(root.join("dev")).expect("folder");
        let mut random = Random(5);
        let mut keyed = String::new();
        let (mut moses_ru, mut moses_en) = (String::new(), String::new());
        for key in 0..TRAIN {
            let concepts = concepts(&mut random);
            if key % 4 == 3 {
                // A quarter comes as Moses files.
                writeln!(moses_ru, "{}", sentence(&concepts, 3)).expect("write");
                writeln!(moses_en, "{}", sentence(&concepts, 0)).expect("write");
                continue;
            }
            for (language, entry) in LANGUAGES.iter().enumerate() {
                let text = sentence(&concepts, language);
                writeln!(keyed, "k{key}\t{}\t{text}", entry.0).expect("write");
            }
        }
        let mut dev = String::new();
        for key in 0..DEV {
            let concepts = concepts(&mut random);
            for (language, entry) in LANGUAGES.iter().enumerate() {
                let text = sentence(&concepts, language);
                writeln!(dev, "d{key}\t{}\t{text}", entry.0).expect("write");
            }
            if key == 0 {
                // The first held-out sentence leaks into the training text.
                for (language, (code, ..)) in LANGUAGES.iter().enumerate().take(2) {
                    let text = sentence(&concepts, language);
                    writeln!(keyed, "leak\t{code}\t{}", text.to_uppercase()).expect("write");
                }
            }
        }
        keyed.push_str("this line is broken\n");
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(root.join(name), bytes).expect("write");
        };
        write(
            "train/keyed.tsv.zst",
            &zstd::encode_all(keyed.as_bytes(), 3).expect("zstd"),
        );
        write("dev/made.tsv", dev.as_bytes());
        write("moses.ru", moses_ru.as_bytes());
        write("moses.en", moses_en.as_bytes());
        write(
            "train/secret.tsv",
            b"s1\ten\tsecret text\ns1\tru\t\xd0\xb0\n",
        );
        write(
            "MANIFEST.tsv",
            b"source\trestriction\nsecret\tnon-commercial\nkeyed\tpermissive\n",
        );
        write(
            "data.toml",
            b"manifest = 'MANIFEST.tsv'\nexclude_restrictions = ['non-commercial']\n\
              held_out = ['dev']\n[[corpus]]\nformat = 'keyed'\npath = 'train'\n\
              [[corpus]]\nformat = 'lines'\nsource = 'moses'\n\
              files = { ru = 'moses.ru', en = 'moses.en' }\n",
        );
        write(
            "train.toml",
            b"name = 'small'\noutput = 'run'\ntokenizer = 'tokenizer.json'\n\
              corpus = 'corpus.pack'\nthreads = 2\n\
              [model]\nmax_tokens = 64\n\
              encoder = { architecture = 'mean', embedding_size = 64, pooling = 'weighted' }\n\
              [sampling]\nbatch_pairs = 256\n\
              [objective.dual]\nscale = 20.0\nmargin = 0.2\n\
              [optimizer]\nlearning_rate = 0.02\n\
              [schedule]\nwarmup_steps = 20\ndecay = 'linear'\n\
              [run]\nsteps = 250\nlog_steps = 25\ndev_steps = 125\n\
              [[dev]]\npath = 'dev/made.tsv'\n",
        );
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn laser(&self, arguments: &str) -> Output {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        Command::new(env!("CARGO_BIN_EXE_laser"))
            .args(&arguments)
            .current_dir(self.folder.path())
            .output()
            .expect("the program runs")
    }

    /// Runs the program, which must succeed; returns its standard output.
    fn ok(&self, arguments: &str) -> String {
        let output = self.laser(arguments);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "laser {arguments}\n{out}\n{err}");
        out
    }

    /// Runs the program, which must fail; returns its standard error.
    fn fails(&self, arguments: &str) -> String {
        let output = self.laser(arguments);
        assert!(
            !output.status.success(),
            "laser {arguments} should have failed"
        );
        text(&output.stderr)
    }

    /// Macro average of xx→en accuracy by cosine.
    fn accuracy(&self, model: &str) -> f64 {
        let json = self.ok(&format!(
            "eval similarity -m {model} dev/made.tsv --format json"
        ));
        let sets: serde_json::Value = serde_json::from_str(&json).expect("json");
        assert_eq!(sets[0]["pairs"].as_array().map(Vec::len), Some(3));
        assert_eq!(sets[0]["pairs"][0]["forward"]["queries"], DEV);
        sets[0]["macro_accuracy"]["cosine"]["forward"]
            .as_f64()
            .expect("a number")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).expect("file").len()
}

#[test]
fn from_text_to_a_measured_model() {
    let w = Workshop::new();
    let vocabulary = "tokenizer --data data.toml --vocab-size 1200 --output tokenizer.json";
    w.ok(&format!("{vocabulary} --kind unigram --coverage 1"));

    let error = w.fails("pack --data data.toml --tokenizer tokenizer.json -o x.pack --strict");
    assert!(
        error.contains("keyed.tsv.zst:") && error.contains("three columns"),
        "{error}"
    );
    let out = w.ok(
        "pack --data data.toml --tokenizer tokenizer.json -o corpus.pack \
                    --report dropped.tsv",
    );
    assert!(out.contains("malformed lines skipped: 1"), "{out}");
    assert!(
        out.contains("secret not read: its licence is restricted (non-commercial)"),
        "{out}"
    );
    assert!(out.contains("dropped, held out: 2"), "{out}");
    let report = std::fs::read_to_string(w.path("dropped.tsv")).expect("report");
    let groups = format!("total\t{}\t{TRAIN}\t", TRAIN + 1);
    assert!(report.lines().any(|l| l.starts_with(&groups)), "{report}");
    let coverage = w.ok("coverage --data data.toml --tokenizer tokenizer.json");
    assert_eq!(coverage.lines().count(), 5, "{coverage}");

    w.ok("train train.toml --quiet");
    let trained = w.accuracy("run/best");
    assert!(trained > 0.8, "accuracy {trained} after training");
    let table = w.ok("eval similarity -m run/best dev/made.tsv --metric cosine,l2,margin");
    assert!(
        table.contains("xx→en L2") && table.contains("macro average"),
        "{table}"
    );

    let sizes = format!(
        "eval similarity -m run/best dev/made.tsv --metric cosine --format tsv --languages ka --sizes 5,20,{}",
        10 * DEV
    );
    let by_size = w.ok(&sizes);
    let row = |at: usize| {
        by_size
            .lines()
            .nth(at)
            .unwrap_or("")
            .split('\t')
            .collect::<Vec<_>>()
    };
    assert_eq!(row(1)[..3], ["made, first 5", "ka", "en"], "{by_size}");
    assert_eq!((row(1)[4], row(3)[4]), ("5", "20"), "{by_size}");
    // Two sizes, two directions.
    assert_eq!(by_size.lines().count(), 5, "{by_size}");
    let error = w.fails("eval similarity -m run/best dev/made.tsv --sizes 1000000");
    assert!(error.contains("keys"), "{error}");

    let harder = w.ok(
        "eval similarity -m run/best dev/made.tsv --metric cosine --format tsv \
         --languages ka --distractors train/keyed.tsv.zst",
    );
    let row: Vec<&str> = harder.lines().nth(1).unwrap_or("").split('\t').collect();
    assert_eq!(row[..3], ["made", "ka", "en"], "{harder}");
    assert!(
        row[5].parse::<usize>().expect("candidates") > DEV,
        "{harder}"
    );
    assert_eq!(harder.lines().count(), 3, "{harder}");

    let order = w.ok("eval order dev/made.tsv -m run/best --beside run/last");
    assert!(
        order.lines().count() >= 2 && order.contains("retrieval"),
        "{order}"
    );
    assert!(
        w.fails("eval order dev/made.tsv -m run/best --pivot ka")
            .contains("\"en\"")
    );
    assert!(
        w.fails("export run --output gated --gate 0.5")
            .contains("no gate")
    );

    w.ok("export run --output small --prune-below 1 --count corpus.pack --table i8");
    let exported = w.accuracy("small");
    assert!(
        (trained - exported).abs() < 0.03,
        "accuracy {trained} and {exported} after export"
    );
    let (full, small) = (
        w.path("run/best/model.safetensors"),
        w.path("small/model.safetensors"),
    );
    assert!(
        size(&small) * 3 < size(&full),
        "{} of {} bytes",
        size(&small),
        size(&full)
    );

    // Every second sentence of one side has its translation in the other.
    let (mut source, mut target, mut gold) = (String::new(), String::new(), String::new());
    let mut random = Random(77);
    for i in 0..120 {
        let concepts = concepts(&mut random);
        writeln!(source, "s{i}\t{}", sentence(&concepts, 3)).expect("write");
        if i % 2 == 0 {
            writeln!(target, "t{i}\t{}", sentence(&concepts, 0)).expect("write");
            writeln!(gold, "s{i}\tt{i}").expect("write");
        }
    }
    for (name, lines) in [("b.ru", &source), ("b.en", &target), ("b.gold", &gold)] {
        std::fs::write(w.path(name), lines).expect("write");
    }
    let bucc = "eval bucc -m small --source b.ru --target b.en --gold b.gold --format json";
    let found: serde_json::Value = serde_json::from_str(&w.ok(bucc)).expect("json");
    assert!(found["f1"].as_f64().expect("f1") > 0.8, "{found}");

    w.ok("curves run --output curves.svg");
    let svg = std::fs::read_to_string(w.path("curves.svg")).expect("svg");
    assert!(
        svg.contains("<svg") && svg.contains("dev accuracy"),
        "{svg}"
    );
    std::fs::write(
        w.path("CARD.md"),
        "# Card\n<!-- dev tables -->\n<!-- end of dev tables -->\n",
    )
    .expect("write");
    w.ok("card -m small dev/made.tsv --main made --into CARD.md");
    let card = std::fs::read_to_string(w.path("CARD.md")).expect("card");
    let figure = format!("xx→en {:.1} %", 100.0 * exported);
    assert!(card.contains(&figure) && card.contains("| ka "), "{card}");
}

#[test]
fn a_run_can_be_interrupted_and_resumed_to_the_same_loss() {
    let w = Workshop::new();
    let vocabulary = "tokenizer --data data.toml --vocab-size 1200 --output tokenizer.json";
    w.ok(&format!("{vocabulary} --kind bpe --coverage 1"));
    w.ok("pack --data data.toml --tokenizer tokenizer.json -o corpus.pack --compress");
    let config = std::fs::read_to_string(w.path("train.toml")).expect("config");
    let variant = |name: &str, steps: usize| {
        let text = config
            .replace("output = 'run'", &format!("output = '{name}'"))
            .replace("steps = 250", &format!("steps = {steps}"))
            .replace("threads = 2", "threads = 1")
            .replace("decay = 'linear'", "decay = 'constant'");
        std::fs::write(w.path(&format!("{name}.toml")), text).expect("write");
    };
    variant("whole", 60);
    variant("parts", 30);
    let whole = w.ok("train whole.toml --quiet");
    w.ok("train parts.toml --quiet");
    variant("parts", 60);
    let parts = w.ok("train parts.toml --quiet --resume");
    let loss = |out: &str| out.split(',').nth(1).map(str::to_owned);
    assert_eq!(loss(&whole), loss(&parts), "{whole}{parts}");
    assert!(loss(&whole).is_some());
    let over = w.ok("train parts.toml --quiet --resume");
    assert!(over.starts_with("60 steps, nothing left to do"), "{over}");
}

#[test]
fn encoders_of_one_language_each_are_measured_over_all_pairs() {
    let w = Workshop::new();
    w.ok("tokenizer --data data.toml --vocab-size 1200 --coverage 1 --output tokenizer.json");
    w.ok("pack --data data.toml --tokenizer tokenizer.json -o corpus.pack");
    let config = "name = 'apart'\noutput = 'run'\ntokenizer = 'tokenizer.json'\n\
        corpus = 'corpus.pack'\nthreads = 2\n\
        [model]\nmax_tokens = 64\nnormalize = false\n\
        encoder = { architecture = 'mean', embedding_size = 24, pooling = 'mean' }\n\
        [sampling]\nbatch_pairs = 32\n\
        [objective.paths]\nlanguages = ['en', 'ka', 'ru', 'el']\n\
        decoder = { embedding_size = 16, hidden_size = 24 }\n\
        [[objective.paths.path]]\nfrom = ['en', 'ka', 'ru']\nto = ['el']\n\
        [[objective.paths.path]]\nsources = 2\nfrom = ['en', 'ka', 'ru']\nto = ['el']\n\
        [optimizer]\nlearning_rate = 0.01\nclip_norm = 2.0\n\
        [run]\nsteps = 20\nlog_steps = 5\ndev_steps = 10\n\
        [schedule]\nstall_factor = 0.5\n\
        [[dev]]\npath = 'dev/made.tsv'\n";
    std::fs::write(w.path("paths.toml"), config).expect("write");
    let out = w.ok("train paths.toml --quiet");
    assert!(
        out.starts_with("20 steps, loss") && out.contains("best dev"),
        "{out}"
    );
    let log = std::fs::read_to_string(w.path("run/dev.csv")).expect("log");
    assert!(log.contains(",ka,") && !log.contains(",el,"), "{log}");
    // Greek is only a target and has no encoder.
    let json = w.ok("eval similarity -m run/last dev/made.tsv --pivot none --format json");
    let sets: serde_json::Value = serde_json::from_str(&json).expect("json");
    let pairs = sets[0]["pairs"].as_array().expect("pairs");
    let names: Vec<_> = pairs.iter().map(|p| (&p["source"], &p["target"])).collect();
    let name = |l: &str| serde_json::Value::from(l);
    let (en, ka, ru) = (name("en"), name("ka"), name("ru"));
    assert_eq!(names, [(&en, &ka), (&en, &ru), (&ka, &ru)]);
    assert_eq!(pairs[0]["forward"]["queries"], DEV);
    // Its parts are models like others.
    let pair = "eval similarity -m run/last/ka --pivot-model run/last/en dev/made.tsv \
                --languages ka --metric cosine --format json";
    let apart: serde_json::Value = serde_json::from_str(&w.ok(pair)).expect("json");
    let there = &apart[0]["pairs"][0]["forward"]["correct"]["cosine"];
    assert_eq!(*there, pairs[0]["backward"]["correct"]["cosine"], "{json}");
    for (arguments, wanted) in [
        (
            "eval sts -m run/last dev/made.tsv",
            "an encoder for each language",
        ),
        (
            "eval similarity -m run/last --pivot-model run/last/en dev/made.tsv",
            "--pivot-model",
        ),
    ] {
        let error = w.fails(arguments);
        assert!(error.contains(wanted), "laser {arguments}: {error}");
    }
}

#[test]
fn mistakes_are_explained() {
    let w = Workshop::new();
    for (arguments, expected) in [
        ("pack --tokenizer t.json -o x", "no text is named"),
        (
            "tokenizer --keyed nosuch.tsv -o t.json",
            "could not access \"nosuch.tsv\"",
        ),
        (
            "tokenizer --keyed dev --exclude nosuch -o t.json",
            "there is no source \"nosuch\"",
        ),
        (
            "tokenizer --keyed dev --vocab-size 100 -o t.json",
            "a vocabulary of 100 is too small",
        ),
        ("eval similarity -m nosuch dev/made.tsv", "nosuch"),
        (
            "export dev -o x",
            "neither a model folder nor the output of a training run",
        ),
        (
            "pack --tsv en -o x --tokenizer t",
            "is not of the form de,en=FILE",
        ),
    ] {
        let error = w.fails(arguments);
        assert!(error.contains(expected), "laser {arguments}: {error}");
        assert!(!error.contains("panicked"), "{error}");
    }
}
