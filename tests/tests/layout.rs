//! The layout is the architecture: which crate may know which, and that what the documents name exists.

#[path = "layout/documents.rs"]
mod documents;
#[path = "layout/files.rs"]
mod files;
#[path = "layout/numeric.rs"]
mod numeric;
#[path = "layout/uses.rs"]
mod uses;
#[path = "layout/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use files::{files, root};
use object::elf::DT_NEEDED;
use object::read::elf::{Dyn as _, ElfFile64};
use object::{Object as _, ObjectSymbol as _};

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

/// What the library asks the loader for: the C and C++ runtime, and what the server provides.
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
    let runtime = [
        "libc",
        "libm",
        "libmvec",
        "libgcc_s",
        "libstdc++",
        "libpthread",
        "libdl",
        "librt",
    ];
    let needed = needed(&bytes);
    assert!(needed.iter().any(|name| name == "libc.so.6"), "{needed:?}");
    for name in &needed {
        let stem = name.split(".so").next().unwrap_or_default();
        let is_runtime = runtime.contains(&stem) || stem.starts_with("ld-linux");
        assert!(is_runtime, "the library needs {name}");
    }
}

/// The libraries that the loader loads with another one (`DT_NEEDED`).
fn needed(bytes: &[u8]) -> Vec<String> {
    let elf = ElfFile64::<object::Endianness>::parse(bytes).expect("a library");
    let sections = elf.elf_section_table();
    let (entries, index) = sections
        .dynamic(elf.endian(), bytes)
        .expect("a valid section")
        .expect("a dynamic section");
    let strings = sections
        .strings(elf.endian(), bytes, index)
        .expect("its strings");
    let name = |entry: &object::elf::Dyn64<_>| {
        let name = entry.string(elf.endian(), strings).expect("a name");
        String::from_utf8_lossy(name).into_owned()
    };
    entries
        .iter()
        .filter(|entry| entry.tag(elf.endian()) == DT_NEEDED)
        .map(name)
        .collect()
}

/// The folders of `crates/`.
fn crates() -> BTreeSet<String> {
    let folders = std::fs::read_dir(root().join("crates")).expect("a folder");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.expect("an entry").file_name();
        name.to_string_lossy().into_owned()
    };
    folders.map(name).collect()
}

/// The crates of this repository from the bottom up, each with those that it depends on itself.
const CRATES: [(&str, &[&str]); 16] = [
    ("laser-cpu", &[]),
    ("laser-memory", &[]),
    ("laser-protocol", &[]),
    ("laser-sampling", &[]),
    ("laser-vector", &["laser-cpu"]),
    ("laser-kernels", &["laser-cpu", "laser-memory"]),
    ("laser-cuda", &["laser-kernels"]),
    ("laser-cuda-emulation", &["laser-cuda"]),
    ("laser-model", &["laser-kernels", "laser-protocol"]),
    ("laser-import", &["laser-model"]),
    (
        "laser-index",
        &[
            "laser-cpu",
            "laser-kernels",
            "laser-memory",
            "laser-sampling",
            "laser-vector",
        ],
    ),
    (
        "laser-mining",
        &[
            "laser-cpu",
            "laser-kernels",
            "laser-memory",
            "laser-sampling",
        ],
    ),
    (
        "laser-encoder",
        &[
            "laser-cuda",
            "laser-kernels",
            "laser-memory",
            "laser-mining",
            "laser-model",
            "laser-protocol",
        ],
    ),
    (
        "laser-trainer",
        &[
            "laser-cuda",
            "laser-encoder",
            "laser-import",
            "laser-kernels",
            "laser-mining",
            "laser-model",
            "laser-sampling",
        ],
    ),
    (
        "laser",
        &[
            "laser-index",
            "laser-memory",
            "laser-mining",
            "laser-model",
            "laser-protocol",
            "laser-sampling",
            "laser-vector",
        ],
    ),
    ("laser-tests", &["laser-vector"]),
];

/// Each crate knows those that [`CRATES`] says, which are above it there, and what these know.
#[test]
fn dependencies_point_down() {
    let mut known: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, direct) in CRATES {
        let mut expected = BTreeSet::from([name.to_owned()]);
        for other in direct {
            let below = known.get(other);
            let below = below.unwrap_or_else(|| panic!("{other} is not below {name}"));
            expected.extend(below.iter().cloned());
        }
        let features: &[&str] = match name {
            "laser" => &["--no-default-features", "--features", "pg15"],
            _ => &[],
        };
        let mut packages = packages(name, features);
        let knows_postgres = packages.contains("pgrx");
        assert_eq!(knows_postgres, name == "laser", "{name} and PostgreSQL");
        packages.retain(|other| other == "laser" || other.starts_with("laser-"));
        assert_eq!(packages, expected, "what {name} depends on");
        known.insert(name, expected);
    }
    for folder in crates() {
        let name = format!("laser-{folder}");
        assert!(known.contains_key(&*name), "{name} is not in the order");
    }
}

/// Whoever reads a file needs to have read only what is below it: in a library, and in each program, benchmark and
/// test.
#[test]
fn no_file_depends_on_one_that_depends_on_it() {
    let (mut read, mut found) = (BTreeSet::new(), Vec::new());
    let files = files();
    for target in files.iter().filter(|path| uses::is_root(path)) {
        let uses = uses::uses(&root().join(target));
        read.extend(uses.keys().map(|module| (target, module.clone())));
        let edges = uses
            .iter()
            .flat_map(|(module, used)| used.iter().map(move |other| (module, other)));
        let graph = petgraph::graphmap::DiGraphMap::<_, ()>::from_edges(edges);
        for circle in petgraph::algo::tarjan_scc(&graph) {
            let mut names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            names.sort();
            if circle.len() > 1 {
                found.push(format!("{target}: {}", names.join(", ")));
            }
        }
    }
    // All sources but those of tests inside of crates, and what builds them.
    let sources = files.iter().filter(|path| path.ends_with(".rs")).count();
    assert!(
        10 * read.len() > 9 * sources,
        "{} of {sources} files were read",
        read.len()
    );
    assert!(
        found.is_empty(),
        "files that depend on each other: {found:#?}"
    );
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
