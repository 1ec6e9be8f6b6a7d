//! The program's methods and measures that need no training of an encoder, on word vectors of two made-up languages: a German
//! word is an English one with another ending, its vector a rotated one.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Words, and the width of their vectors.
const WORDS: usize = 120;
const WIDTH: usize = 12;

/// Finaliser of SplitMix64, as numbers from −1 to 1.
fn random(seed: u64) -> f64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as f64 / (1u64 << 63) as f64 - 1.0
}

struct Workshop {
    folder: tempfile::TempDir,
}

fn word(i: usize, language: &str) -> String {
    let letter = |n: usize| char::from(b'a' + (n % 26) as u8);
    format!("{}{}{language}", letter(i), letter(i / 26))
}

/// Vector of an English word.
fn vector(i: usize) -> Vec<f64> {
    (0..WIDTH)
        .map(|k| random((i * WIDTH + k) as u64 + 1))
        .collect()
}

/// The vector in the other language: a rotation by planes.
fn rotated(mut x: Vec<f64>) -> Vec<f64> {
    for (n, (i, j)) in [
        (0, 5),
        (1, 7),
        (2, 9),
        (3, 4),
        (0, 11),
        (6, 8),
        (5, 10),
        (1, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let (sin, cos) = (0.7 + n as f64).sin_cos();
        (x[i], x[j]) = (cos * x[i] - sin * x[j], sin * x[i] + cos * x[j]);
    }
    x
}

fn vec_file(words: &[(String, Vec<f64>)]) -> String {
    let mut out = format!("{} {WIDTH}\n", words.len());
    for (word, values) in words {
        let values: Vec<String> = values.iter().map(f64::to_string).collect();
        writeln!(out, "{word} {}", values.join(" ")).expect("write");
    }
    out
}

/// Words of sentence `key`.
fn sentence(key: usize) -> Vec<usize> {
    let any = |n: usize| (random((key * 31 + n) as u64 + 7_000) + 1.0) / 2.0;
    (0..5)
        .map(|n| ((any(n) * WORDS as f64) as usize).min(WORDS - 1))
        .collect()
}

fn text(words: &[usize], language: &str) -> String {
    let words: Vec<String> = words.iter().map(|i| word(*i, language)).collect();
    words.join(" ")
}

impl Workshop {
    fn new() -> Self {
        let this = Self {
            folder: tempfile::tempdir().expect("folder"),
        };
        let english: Vec<_> = (0..WORDS).map(|i| (word(i, "x"), vector(i))).collect();
        let german: Vec<_> = (0..WORDS)
            .map(|i| (word(i, "y"), rotated(vector(i))))
            .collect();
        this.write("en.vec", &vec_file(&english));
        this.write("de.vec", &vec_file(&german));
        let pair = |i: usize| format!("{} {}\n", word(i, "y"), word(i, "x"));
        this.write("train.txt", &(0..80).map(pair).collect::<String>());
        this.write("test.txt", &(80..WORDS).map(pair).collect::<String>());
        let keyed = |range: std::ops::Range<usize>| -> String {
            let lines = range.map(|key| {
                let words = sentence(key);
                let (en, de) = (text(&words, "x"), text(&words, "y"));
                format!("{key:04}\ten\t{en}\n{key:04}\tde\t{de}\n")
            });
            lines.collect()
        };
        this.write("parallel.tsv", &keyed(0..300));
        this.write("held-out.tsv", &keyed(300..400));
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
        std::fs::write(path, text).expect("write");
    }

    fn laser(&self, arguments: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_laser"))
            .args(arguments.split_whitespace())
            .current_dir(self.folder.path())
            .output()
            .expect("the program runs")
    }

    fn ok(&self, arguments: &str) -> String {
        let output = self.laser(arguments);
        let read = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (read(&output.stdout), read(&output.stderr));
        assert!(output.status.success(), "laser {arguments}\n{out}\n{err}");
        out
    }

    fn json(&self, arguments: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(&format!("{arguments} --format json"))).expect("json")
    }

    fn fails(&self, arguments: &str) -> String {
        let output = self.laser(arguments);
        assert!(
            !output.status.success(),
            "laser {arguments} should have failed"
        );
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!error.contains("panicked"), "{error}");
        error
    }

    /// Accuracy de→en on held-out sentences.
    fn accuracy(&self, model: &str, more: &str) -> f64 {
        let measure = format!("eval similarity -m {model} held-out.tsv --metric cosine {more}");
        let sets = self.json(&measure);
        let figure = sets[0]["macro_accuracy"]["cosine"]["forward"].as_f64();
        figure.expect("a number")
    }
}

#[test]
fn word_vectors_are_mapped_by_a_dictionary() {
    let w = Workshop::new();
    let measure = |source: &str| {
        let words = format!("eval words --source {source} --target en.vec --dictionary test.txt");
        let rows = w.json(&words);
        assert_eq!(rows[1]["ranking"], "csls");
        assert_eq!(rows[0]["covered"], 40.0);
        (
            rows[0]["P@1"].as_f64().expect("P@1"),
            rows[1]["P@5"].as_f64().expect("P@5"),
        )
    };
    let before = measure("de.vec");
    assert!(before.0 < 20.0 && before.1 < 50.0, "{before:?}");
    let map = "map words --source de.vec --target en.vec --dictionary train.txt -o mapped.vec";
    let out = w.ok(map);
    assert!(out.contains("120 vectors mapped by 80 pairs"), "{out}");
    assert_eq!(measure("mapped.vec"), (100.0, 100.0));
    assert!(
        w.fails(&format!("{map} --pairs 5"))
            .contains("fewer than the 12 dimensions")
    );

    // The same measure of a model, which embeds the words.
    let read = |name: &str| std::fs::read_to_string(w.path(name)).expect("vectors");
    let rows = |text: &str| text.split_once('\n').expect("a header").1.to_owned();
    let both = rows(&read("mapped.vec")) + &rows(&read("en.vec"));
    w.write("both.vec", &format!("{} {WIDTH}\n{both}", 2 * WORDS));
    w.ok("import both.vec -o both");
    w.write("more.txt", &(read("test.txt") + "unheard-of words\n"));
    let rows = w.json("eval words -m both --dictionary more.txt");
    assert_eq!(
        (&rows[0]["words"], &rows[0]["covered"]),
        (&41.0.into(), &40.0.into())
    );
    assert_eq!(
        (&rows[0]["candidates"], &rows[0]["P@1"]),
        (&40.0.into(), &100.0.into())
    );
    assert!(
        w.fails("eval words --dictionary test.txt")
            .contains("--source")
    );
}

#[test]
fn models_of_one_language_share_a_space_by_a_mapping_of_sentences() {
    let w = Workshop::new();
    w.ok("import en.vec -o en");
    w.ok("import de.vec -o de");
    let before = w.accuracy("de", "--pivot-model en");
    assert!(before < 0.2, "{before}");
    let map = "map sentences -m de --target-model en --source de parallel.tsv -o mapped";
    assert!(w.ok(map).contains("mapped by 300 pairs"));
    let after = w.accuracy("mapped", "--pivot-model en");
    assert!(after > 0.98, "{after}");
    assert!(w.fails(map).contains("--force"));
    let other = map.replace("--source de", "--source fr") + "2";
    assert!(w.fails(&other).contains("no sentence in \"fr\""));
    // The means alone, in every form; metrics by the names that JSON has, too.
    let means = "eval similarity -m mapped --pivot-model en held-out.tsv --summary \
                 --metric l2,inner_product,cosine";
    let lines = w.ok(&format!("{means} --format tsv"));
    let lines: Vec<Vec<&str>> = lines.lines().map(|l| l.split('\t').collect()).collect();
    let metrics: Vec<&str> = lines.iter().map(|l| l[2]).collect();
    assert_eq!(metrics, ["metric", "l2", "inner_product", "cosine"]);
    assert_eq!(lines[3][5], format!("{after:.6}"));
    assert!(w.json(means)[0].get("pairs").is_none());
    // Both as one model, each side by its own encoder.
    let join = "languages de=mapped en=en -o pair";
    assert!(w.ok(join).contains("pair@de, pair@en"));
    assert_eq!(w.accuracy("pair", ""), after);
    assert!(w.fails(join).contains("--force"));
    w.ok(&format!("{join} --force"));
    assert_eq!(w.accuracy("pair", ""), after);
    for (wrong, message) in [
        ("de=de=en", "config.json"),
        ("en", "is not LANG=FOLDER"),
        ("../en=en", "is no code of a language"),
        ("de=de de=en", "listed twice"),
    ] {
        let error = w.fails(&format!("languages {wrong} -o wrong"));
        assert!(error.contains(message), "{wrong}: {error}");
        assert!(!w.path("wrong").exists());
    }

    let out = w.ok("sif -m en parallel.tsv --languages en -o weighted");
    assert!(out.contains("weights of 300 sentences"), "{out}");
    // Mapping fits what it is fitted to, layers of the target included.
    w.ok("map sentences -m de --target-model weighted --source de parallel.tsv -o onto");
    let weighted = w.accuracy("onto", "--pivot-model weighted");
    assert!(weighted > 0.6, "{weighted}");
    let again = w.fails("sif -m weighted parallel.tsv -o twice");
    assert!(again.contains("dense layers"), "{again}");
}

#[test]
fn what_a_classifier_learns_in_one_language_holds_in_another() {
    let w = Workshop::new();
    let joint: Vec<_> = (0..WORDS)
        .flat_map(|i| [(word(i, "x"), vector(i)), (word(i, "y"), vector(i))])
        .collect();
    w.write("joint.vec", &vec_file(&joint));
    w.ok("import joint.vec -o joint");
    // The label tells on which side of a plane the sentence lies.
    let label = |key: usize| {
        let sum: f64 = sentence(key).iter().map(|i| vector(*i)[0]).sum();
        if sum > 0.0 { "up" } else { "down" }
    };
    let file = |language: &str| -> String {
        let part = |key: usize| match key {
            0..300 => "train",
            300..360 => "dev",
            _ => "test",
        };
        let line = |key| {
            let text = text(&sentence(key), language);
            format!("{}\t{}\t{text}\n", part(key), label(key))
        };
        (0..460).map(line).collect()
    };
    w.write("en.tsv", &file("x"));
    w.write("de.tsv", &file("y"));
    let run = "eval classify -m joint --cache cache en=en.tsv de=de.tsv --from en \
               --learning-rate 0.01 --seeds 2";
    let cells = w.json(run);
    let accuracy = |i: usize| cells[i]["accuracy"].as_f64().expect("accuracy");
    assert_eq!(
        (&cells[0]["train"], &cells[0]["test"]),
        (&"en".into(), &"de".into())
    );
    assert!(accuracy(0) > 0.8, "{cells}");
    assert_eq!(accuracy(0), accuracy(1), "the spaces are the same");
    let cached = std::fs::read_dir(w.path("cache")).expect("cache").count();
    assert_eq!(cached, 1);
    assert_eq!(w.json(run), cells);
    let table = w.ok(&run.replace("--from en", "--hidden 10"));
    assert!(
        table.contains("zero-shot mean") && table.lines().count() == 4,
        "{table}"
    );

    // MLDoc's form: the parts are files, and a test set replaces the one of another file.
    let plain: String = (400..440)
        .map(|key| format!("{}\t{}\n", label(key), text(&sentence(key), "y")))
        .collect();
    w.write("mldoc.test.de", &plain);
    let cells = w.json("eval classify -m joint en=en.tsv --test de=mldoc.test.de");
    assert_eq!(cells[0]["examples"], 40.0);
    for (arguments, wanted) in [
        ("en.tsv", "LANG=FILE"),
        (
            "en=en.tsv --train-split a --dev-split b --test-split c",
            "--train-split",
        ),
        ("--train mldoc.test.de", "which language"),
        ("en=en.tsv --from fr", "\"fr\" has no train part"),
        ("en=en.tsv --dropout 1", "--dropout"),
    ] {
        let error = w.fails(&format!("eval classify -m joint {arguments}"));
        assert!(error.contains(wanted), "{arguments}: {error}");
    }

    let all: String = (0..1000)
        .map(|key| format!("all\t{}\t{}\n", label(key), text(&sentence(key), "x")))
        .collect();
    w.write("tasks/senteval/MR.tsv", &all);
    let sts: String = (0..40)
        .map(|key| {
            let (a, b) = (sentence(key), sentence(key + 1));
            let (score, b) = if key % 2 == 0 { (5, &a) } else { (0, &b) };
            format!("test\tset\t{score}\t{}\t{}\n", text(&a, "x"), text(b, "y"))
        })
        .collect();
    w.write("tasks/sts/sts12.en.tsv", &sts);
    let rows = w.json("eval senteval -m joint tasks --folds 3 --cache cache");
    assert_eq!(
        (&rows[0]["task"], &rows[0]["examples"]),
        (&"MR".into(), &1000.0.into())
    );
    assert!(rows[0]["figure"].as_f64() > Some(60.0), "{rows}");
    let last = rows.as_array().and_then(|r| r.last()).expect("rows");
    assert_eq!(last["measure"], "all Spearman");
    assert!(last["figure"].as_f64() > Some(80.0), "{rows}");
    let error = w.fails("eval senteval -m joint tasks --tasks TREC");
    assert!(error.contains("TREC"), "{error}");
    let rows = w.json("eval sts -m joint tasks/sts/sts12.en.tsv");
    assert!(rows[0]["Spearman"].as_f64() > Some(80.0), "{rows}");
}

#[test]
fn every_measure_takes_each_side_by_the_encoder_of_its_language() {
    let w = Workshop::new();
    w.ok("import en.vec -o en");
    w.ok("import de.vec -o de");
    w.ok("map sentences -m de --target-model en --source de parallel.tsv -o mapped");
    w.ok("languages de=mapped en=en -o pair");

    // A classifier that is trained on the English encoder's embeddings, tested on the German one's.
    let side = |i: usize| vector(i)[0];
    let label = |key: usize| {
        let sum: f64 = sentence(key).into_iter().map(side).sum();
        if sum > 0.0 { "up" } else { "down" }
    };
    let lines = |language: &str, pairs: bool| -> String {
        let part = |key: usize| ["train", "train", "train", "dev", "test"][key % 5];
        let line = |key| {
            let text = |key| text(&sentence(key), language);
            let second = if pairs {
                format!("\t{}", text(key + 1))
            } else {
                String::new()
            };
            format!("{}\t{}\t{}{second}\n", part(key), label(key), text(key))
        };
        (0..500).map(line).collect()
    };
    for (code, language) in [("en", "x"), ("de", "y")] {
        w.write(&format!("{code}.tsv"), &lines(language, false));
        w.write(&format!("pairs.{code}.tsv"), &lines(language, true));
    }
    let accuracies = |arguments: &str| -> Vec<(String, f64)> {
        let cells = w.json(&format!(
            "eval classify {arguments} --from en --learning-rate 0.01"
        ));
        let cells = cells.as_array().expect("cells").iter();
        let cell = |c: &serde_json::Value| {
            let (name, value) = (c["test"].as_str(), c["accuracy"].as_f64());
            (name.expect("a name").to_owned(), value.expect("accuracy"))
        };
        cells.map(cell).collect()
    };
    let found = accuracies("-m pair en=en.tsv de=de.tsv");
    assert_eq!((&found[0].0[..], &found[1].0[..]), ("de", "en"));
    assert!(found[0].1 > 0.8 && found[1].1 > 0.8, "{found:?}");
    let wrong = accuracies("-m en en=en.tsv de=de.tsv");
    assert!(wrong[0].1 < found[0].1 - 0.1, "{wrong:?}");
    let mixed = accuracies("-m pair en=pairs.en.tsv de=pairs.de.tsv --mixed");
    assert_eq!(mixed[1].0, "de/en");
    assert!(mixed.iter().all(|c| c.1 > 0.75), "{mixed:?}");

    let column = |language: &str, id: &str| -> String {
        let line = |key: usize| format!("{id}{key}\t{}\n", text(&sentence(key), language));
        (300..360).map(line).collect()
    };
    w.write("source.txt", &column("y", "s"));
    w.write("target.txt", &column("x", "t"));
    let gold: String = (300..360).map(|k| format!("s{k}\tt{k}\n")).collect();
    w.write("gold.txt", &gold);
    let bucc = "eval bucc -m pair --source source.txt --target target.txt --gold gold.txt";
    let score = w.json(&format!("{bucc} --source-language de --target-language en"));
    assert!(score["f1"].as_f64() > Some(0.95), "{score}");

    let table = w.ok("eval mixed -m pair held-out.tsv --summary");
    let last = table.split_whitespace().last().expect("a figure");
    assert!(last.parse::<f64>().expect("a number") > 95.0, "{table}");

    let scored: String = (0..40)
        .map(|key| {
            let (a, b) = (sentence(key), sentence(key + 1));
            let (score, b) = if key % 2 == 0 { (5, &a) } else { (0, &b) };
            format!("{score}\t{}\t{}\n", text(&a, "x"), text(b, "y"))
        })
        .collect();
    w.write("scored.tsv", &scored);
    let sts = "eval sts -m pair scored.tsv";
    let rows = w.json(&format!("{sts} --first-language en --second-language de"));
    assert!(rows[0]["Spearman"].as_f64() > Some(80.0), "{rows}");

    let all: String = (0..300)
        .map(|key| format!("all\t{}\t{}\n", label(key), text(&sentence(key), "x")))
        .collect();
    w.write("tasks/MR.tsv", &all);
    let figure = |more: &str| {
        let rows = w.json(&format!("eval senteval -m {more} tasks --folds 3"));
        rows[0]["figure"].as_f64().expect("a figure")
    };
    assert_eq!(figure("pair"), figure("en"));
    assert_eq!(figure("pair --language de"), figure("mapped"));

    let embed = |arguments: &str| {
        let lines = std::fs::File::open(w.path("target.txt")).expect("lines");
        let output = Command::new(env!("CARGO_BIN_EXE_laser"))
            .arg("embed")
            .args(arguments.split_whitespace())
            .current_dir(w.folder.path())
            .stdin(lines)
            .output()
            .expect("the program runs");
        assert!(output.status.success(), "{arguments}");
        output.stdout
    };
    assert_eq!(embed("-m pair --language de"), embed("-m mapped"));

    let half = format!("{sts} --first-language en");
    for (arguments, wanted) in [
        (bucc, "--source-language"),
        (sts, "--first-language"),
        (&half[..], "--second-language"),
        ("embed -m pair", "(de, en): name one with --language"),
        ("embed -m en --language de", "leave out --language"),
        (
            "embed -m pair --language fr",
            "no encoder of \"fr\", only of de, en",
        ),
        (
            "eval classify -m pair en=en.tsv --test fr=de.tsv",
            "no encoder of \"fr\"",
        ),
    ] {
        let error = w.fails(arguments);
        assert!(error.contains(wanted), "{arguments}: {error}");
    }
}

#[test]
fn a_table_of_a_paper_is_run_once_and_shown() {
    let w = Workshop::new();
    w.write(
        "papers/made/mapping.toml",
        r#"
        title = "Mapping"
        source = "Made up"
        paper_measure = "accuracy"
        measure = "accuracy de→en, %"
        data = "made up"
        figure = { args = ["eval", "similarity", "-m", "{model}", "--pivot-model", "{shared}/en", "{data}/held-out.tsv", "--metric", "cosine", "--format", "json"], pointers = ["/0/macro_accuracy/cosine/forward"], factor = 100.0 }
        steps = [["map", "sentences", "-m", "{shared}/de", "--target-model", "{shared}/en", "--source", "de", "--keys", "{keys}", "{data}/parallel.tsv", "-o", "{out}/{row}", "--force"]]
        [[prepare]]
        makes = "{shared}/en/config.json"
        args = ["import", "{data}/en.vec", "-o", "{shared}/en"]
        [[prepare]]
        makes = "{shared}/de/config.json"
        args = ["import", "{data}/de.vec", "-o", "{shared}/de"]
        [[row]]
        name = "300 pairs"
        paper = 90.0
        vars = { keys = "300", model = "{out}/{row}" }
        [[row]]
        name = "no pairs"
        paper = 20.0
        figure = { args = ["eval", "similarity", "-m", "{shared}/de", "--pivot-model", "{shared}/en", "{data}/held-out.tsv", "--format", "json"], pointers = ["/0/macro_accuracy/margin/forward"], factor = 100.0 }
        steps = []
        [[row]]
        name = "a million pairs"
        paper = 95.0
        not_run = "there are no more"
        "#,
    );
    w.write(
        "papers.md",
        "# Papers\n<!-- tables -->\n<!-- end of tables -->\nEnd\n",
    );
    let run = "reproduce made --configs papers --data . -o runs";
    let out = w.ok(&format!("{run} --into papers.md"));
    assert_eq!(out, "");
    let document = std::fs::read_to_string(w.path("papers.md")).expect("document");
    assert!(document.contains("order: 1 of 1"), "{document}");
    assert!(
        document.contains("not run: there are no more"),
        "{document}"
    );
    assert!(
        document.ends_with("<!-- end of tables -->\nEnd\n"),
        "{document}"
    );
    // What has an outcome is not run again.
    std::fs::remove_dir_all(w.path("runs/small/de")).expect("remove");
    let shown = w.ok(run);
    assert!(document.contains(shown.trim()), "{shown}");
    // A row that fails says why in its place, the others are run, and the command fails at its end.
    let path = w.path("papers/made/mapping.toml");
    let table = std::fs::read_to_string(&path).expect("table");
    let table = table
        .replace("\"300\"", "\"5\"")
        .replace("300 pairs", "5 pairs")
        .replace("no pairs", "none at all");
    std::fs::write(&path, table).expect("write");
    let failed = w.laser(run);
    assert!(!failed.status.success());
    let read = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (shown, error) = (read(&failed.stdout), read(&failed.stderr));
    assert!(error.contains("fewer than the 12 dimensions"), "{error}");
    // Steps are told whole paths: configurations take others as their own.
    let whole = format!("-o {}", w.path("runs/small/made/mapping").display());
    assert!(error.contains(&whole), "{error}");
    let row = |name: &str| {
        let rows = shown
            .lines()
            .filter(|l| l.starts_with(&format!("| {name} ")));
        rows.collect::<Vec<_>>().join("\n")
    };
    assert!(
        row("5 pairs").contains("failed: 5 pairs are fewer"),
        "{shown}"
    );
    assert!(row("none at all").contains(" 20 |"), "{shown}");
    assert!(!row("none at all").contains("not run"), "{shown}");
    assert_eq!(w.ok(&format!("{run} --show")), shown);
    // What steps say while they run is passed on.
    assert!(error.contains("words, 12 dimensions, in "), "{error}");
    assert!(
        w.fails("reproduce none --configs papers --data . -o runs")
            .contains("none")
    );
}

#[test]
fn figures_of_one_scale_and_one_choice_of_variables_are_not_those_of_another() {
    let w = Workshop::new();
    w.write(
        "papers/made/mapping.toml",
        r#"
        title = "Mapping"
        source = "Made up"
        paper_measure = "accuracy"
        measure = "accuracy de→en, %"
        data = "made up"
        figure = { args = ["eval", "similarity", "-m", "{measured}", "--pivot-model", "{shared}/en", "{data}/held-out.tsv", "--metric", "cosine", "{summary}", "--format", "json"], pointers = ["/0/macro_accuracy/cosine/forward"], factor = 100.0 }
        steps = [["map", "sentences", "-m", "{shared}/de", "--target-model", "{shared}/en", "--source", "de", "--keys", "{keys}", "{data}/parallel.tsv", "-o", "{out}/{row}"]]
        small = { keys = "300", measured = "{shared}/de", summary = "" }
        full = { keys = "300", measured = "{out}/{row}", summary = "--summary" }
        [[prepare]]
        makes = "{shared}/en/config.json"
        args = ["import", "{data}/en.vec", "-o", "{shared}/en"]
        [[prepare]]
        makes = "{shared}/de/config.json"
        args = ["import", "{data}/de.vec", "-o", "{shared}/de"]
        [[row]]
        name = "{keys} pairs"
        "#,
    );
    let run = "reproduce made --configs papers --data . -o runs";
    let figure = |more: &str, row: &str| {
        let shown = w.ok(&format!("{run} {more}"));
        let line = shown.lines().find(|l| l.starts_with(&format!("| {row} ")));
        let cell = line.and_then(|l| l.split('|').nth(3)).expect(&shown);
        cell.trim().parse::<f64>().expect("a figure")
    };
    let full = figure("--scale full", "300 pairs");
    assert!(full > 98.0, "{full}");
    let small = figure("", "300 pairs");
    assert!(small < 20.0, "{small}");
    let mapped = "--set measured={out}/{row}";
    assert_eq!(figure(mapped, "300 pairs"), full);
    assert!(figure("--set keys=200", "200 pairs") < 20.0);
    assert_eq!(figure("--scale full --show", "300 pairs"), full);
    assert_eq!(figure("--show", "300 pairs"), small);
    let error = w.fails(&format!("{run} --set steps=1"));
    assert!(error.contains("\"steps\""), "{error}");
    for folder in ["small", "full", "small,keys=200"] {
        assert!(w.path(&format!("runs/{folder}/made/mapping")).is_dir());
    }
}
