//! The layout is the architecture: which crate may know which, and that what the documents name exists.

#[path = "layout/uses.rs"]
mod uses;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSymbol as _};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The packages that cargo compiles for one, itself included.
fn packages(name: &str, features: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix", "none"])
        .args(["--edges", "normal", "--format", "{p}", "--package", name])
        .args(features)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {errors}");
    let names = String::from_utf8(output.stdout).expect("UTF-8");
    names
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_extension_has_neither_candle_nor_cuda() {
    let packages = packages("laser", &["--no-default-features", "--features", "pg15"]);
    assert!(packages.contains("laser-model"), "{packages:?}");
    let heavy = |name: &&String| name.starts_with("candle") || name.contains("cuda");
    let heavy: Vec<_> = packages.iter().filter(heavy).collect();
    assert!(heavy.is_empty(), "{heavy:?}");
}

#[test]
fn the_library_links_no_gpu() {
    let library = std::env::current_exe()
        .expect("a path")
        .with_file_name("../liblaser.so");
    let bytes = std::fs::read(&library).expect("the extension is built before its tests");
    let elf = object::File::parse(&*bytes).expect("a library");
    let of_gpu = |name: &str| ["cuInit", "cudaMalloc", "cublasCreate_v2"].contains(&name);
    let mut undefined = 0;
    for symbol in elf.dynamic_symbols().filter(|s| s.is_undefined()) {
        undefined += 1;
        let name = symbol.name().expect("a name");
        assert!(!of_gpu(name), "{name}");
    }
    assert!(undefined > 100, "only {undefined} symbols of the server");
}

/// Crates that several use know nothing of those that use them.
#[test]
fn arrows_point_down() {
    let above = ["laser", "laser-encoder", "laser-trainer", "laser-tests"];
    for entry in std::fs::read_dir(root().join("crates")).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = format!("laser-{}", entry.file_name().to_string_lossy());
        let packages = packages(&name, &[]);
        for other in above {
            assert!(!packages.contains(other), "{name} depends on {other}");
        }
        assert!(!packages.contains("pgrx"), "{name} knows PostgreSQL");
    }
    for name in ["laser-encoder", "laser-trainer"] {
        assert!(
            !packages(name, &[]).contains("pgrx"),
            "{name} knows PostgreSQL"
        );
    }
}

/// Whoever reads a file needs to have read only what is below it.
#[test]
fn no_file_depends_on_one_that_depends_on_it() {
    let mut folders = vec!["encoder".into(), "extension".into(), "trainer".into()];
    for entry in std::fs::read_dir(root().join("crates")).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        folders.push(format!("crates/{}", name.to_string_lossy()));
    }
    folders.push("crates/cuda/emulation".into());
    let (mut files, mut found) = (0, Vec::new());
    for folder in folders {
        let uses = uses::uses(&root().join(&folder).join("src"));
        files += uses.len();
        let edges = uses
            .iter()
            .flat_map(|(module, used)| used.iter().map(move |other| (module, other)));
        let graph = petgraph::graphmap::DiGraphMap::<_, ()>::from_edges(edges);
        for circle in petgraph::algo::tarjan_scc(&graph) {
            let mut names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            names.sort();
            if circle.len() > 1 {
                found.push(format!("{folder}: {}", names.join(", ")));
            }
        }
    }
    assert!(files > 200, "only {files} files were read");
    assert!(
        found.is_empty(),
        "files that depend on each other: {found:#?}"
    );
}

/// Files of this repository that documents name in code, and folders of the code map.
#[test]
fn what_documents_name_exists() {
    let tops = [
        "crates/",
        "encoder/",
        "extension/",
        "trainer/",
        "tests/",
        "sql/",
        "scripts/",
        "fuzz/",
        "demo/",
        "docker/",
        "docs/",
    ];
    let mut named = 0;
    for document in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/benchmarks.md",
        "docs/recall.md",
        "docs/training.md",
        "docs/mining.md",
        "docs/security-review.md",
    ] {
        let text = std::fs::read_to_string(root().join(document)).expect("a document");
        for code in text.split('`').skip(1).step_by(2) {
            let path = code.split([' ', ':', '#']).next().unwrap_or_default();
            let is_pattern = path.contains(['*', '…', '{', '<', '$'])
                || ["NAME", "OLD", "NEW"]
                    .iter()
                    .any(|word| path.contains(word));
            if is_pattern || !tops.iter().any(|top| path.starts_with(top)) {
                continue;
            }
            named += 1;
            let exists = root().join(path).exists();
            assert!(exists, "{document} names {path}, which does not exist");
        }
    }
    assert!(named > 50, "only {named} paths were found");
    // Lines of the code map: a folder, and what is in it by deeper lines.
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a document");
    let (_, map) = text.split_once("## Code map").expect("a code map");
    let map = map.split("```").nth(1).expect("a block of code");
    let mut top = String::new();
    let mut folders = 0;
    for line in map.lines().skip(1) {
        let depth = line.len() - line.trim_start().len();
        let Some(name) = line.split_whitespace().next() else {
            continue;
        };
        let name = name.trim_end_matches(',');
        if depth > 2 || !name.ends_with('/') && !name.contains('.') {
            continue;
        }
        let path = if depth == 0 {
            top = name.to_owned();
            top.clone()
        } else {
            format!("{top}{name}")
        };
        folders += 1;
        assert!(root().join(&path).exists(), "the code map has {path}");
    }
    assert!(folders > 20, "only {folders} lines of the code map");
}

/// The table of invariants names tests that exist.
#[test]
fn invariants_have_their_tests() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a document");
    let (_, table) = text
        .split_once("| invariant | tests |")
        .expect("the table of invariants");
    let (mut sources, mut found) = (String::new(), 0);
    for line in table
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with('|'))
    {
        for code in line.split('`').skip(1).step_by(2) {
            if code.ends_with(".rs") {
                let places =
                    ["tests/tests", "encoder/tests", "."].map(|f| root().join(f).join(code));
                let file = places.iter().find(|path| path.exists());
                let file = file.unwrap_or_else(|| panic!("there is no {code}"));
                sources = std::fs::read_to_string(file).expect("a source");
            } else if code.contains('_') && sources.contains("#[test]") {
                let is_there = sources.contains(&format!("fn {code}("));
                assert!(is_there || code == "unsafe_code", "there is no test {code}");
                found += 1;
            }
        }
    }
    assert!(found >= 15, "only {found} tests");
}
