//! What the files of a crate use of each other, as their paths tell.
//!
//! A crate is a root, of a library, a program, an example or a test, and the files that `mod` adds to it.
//! A file is a module; its inline modules belong to it. A name that a module has from another one by `use`
//! is the other's. What `#[cfg(test)]` holds does not count. Sources are read as tokens, so that bodies of
//! macros count as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A module by its names, the crate's root by none.
pub type Module = Vec<String>;

/// The files of a crate, and the files that each of them uses.
pub type Uses = BTreeMap<Module, BTreeSet<Module>>;

/// Whether a file of this repository is the root of a crate.
pub fn is_root(path: &str) -> bool {
    const TARGETS: [&str; 5] = ["benches", "bin", "examples", "fuzz_targets", "tests"];
    let Some((folder, name)) = path.rsplit_once('/') else {
        return false;
    };
    let last = |folder: &str| {
        folder
            .rsplit('/')
            .next()
            .is_some_and(|last| TARGETS.contains(&last))
    };
    let (above, folder_name) = folder.rsplit_once('/').unwrap_or(("", folder));
    match name {
        "lib.rs" => folder_name == "src",
        "main.rs" => folder_name == "src" || last(above),
        name => name.ends_with(".rs") && last(folder),
    }
}

/// Reads the crate with this root.
pub fn uses(root: &Path) -> Uses {
    let mut files = BTreeMap::new();
    let folder = root.parent().expect("a file lies in a folder");
    collect(root, folder, Vec::new(), &mut files);
    of_readers(&files)
}

/// Reads a file and those of its modules, which are in `folder`; modules that are only for tests are not read.
fn collect(file: &Path, folder: &Path, module: Module, files: &mut BTreeMap<Module, Reader>) {
    let text = std::fs::read_to_string(file);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let reader = Reader::read(&text, module.clone());
    for (child, path) in &reader.modules {
        let (name, inline) = child[module.len()..].split_last().expect("it is below");
        let beside: PathBuf = std::iter::once(folder)
            .chain(inline.iter().map(Path::new))
            .collect();
        let (file, folder) = match path {
            Some(path) => {
                let file = file.with_file_name("").join(path);
                (file.clone(), file.with_file_name(""))
            }
            None => {
                let (plain, folder) = (beside.join(format!("{name}.rs")), beside.join(name));
                match plain.exists() {
                    true => (plain, folder),
                    false => (folder.join("mod.rs"), folder),
                }
            }
        };
        collect(&file, &folder, child.clone(), files);
    }
    files.insert(module, reader);
}

fn of_readers(files: &BTreeMap<Module, Reader>) -> Uses {
    let used = |(module, reader): (&Module, &Reader)| {
        let paths = reader.paths.iter();
        let mut used: BTreeSet<Module> = paths
            .filter_map(|(place, path)| lead(files, place, path, 0))
            .collect();
        used.remove(module);
        (module.clone(), used)
    };
    files.iter().map(used).collect()
}

/// The file that a path leads to from a place.
fn lead(
    files: &BTreeMap<Module, Reader>,
    place: &Module,
    path: &[String],
    depth: usize,
) -> Option<Module> {
    let mut module = place.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            module.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                module.pop();
                rest = &rest[1..];
            }
        }
        name => {
            // Else it is the name of a crate, or one that another `use` has brought.
            module.push(name.to_owned());
            if !files.contains_key(&module) {
                return None;
            }
            module.pop();
        }
    }
    while let Some((name, others)) = rest.split_first() {
        module.push(name.clone());
        if !files.contains_key(&module) {
            module.pop();
            break;
        }
        rest = others;
    }
    // An inline module is a part of its file.
    while !files.contains_key(&module) {
        module.pop();
    }
    if let Some(name) = rest.first()
        && let Some((place, path)) = files[&module].names.get(name)
        && depth < 8
        && let Some(other) = lead(files, place, path, depth + 1)
    {
        return Some(other);
    }
    Some(module)
}

/// What a file says.
struct Reader {
    /// The module that is read, inline ones included.
    place: Module,
    /// The paths in it, and where they stand.
    paths: Vec<(Module, Vec<String>)>,
    /// The modules that are other files, and the paths that attributes give them.
    modules: Vec<(Module, Option<String>)>,
    /// The names that `use` brings into the file's own module.
    names: BTreeMap<String, (Module, Vec<String>)>,
    /// How many names `place` has outside of inline modules.
    depth: usize,
}

impl Reader {
    fn read(text: &str, module: Module) -> Self {
        let mut reader = Self {
            depth: module.len(),
            place: module,
            paths: Vec::new(),
            modules: Vec::new(),
            names: BTreeMap::new(),
        };
        reader.read_tokens(text.parse().expect("a source that compiles"));
        reader
    }

    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        let mut path: Vec<String> = Vec::new();
        let (mut colons, mut of_tests, mut file) = (0, false, None);
        while let Some(token) = tokens.next() {
            if let TokenTree::Punct(mark) = &token
                && mark.as_char() == ':'
            {
                colons += 1;
                continue;
            }
            let goes_on = std::mem::take(&mut colons) == 2;
            if !goes_on || !matches!(token, TokenTree::Ident(_)) {
                self.note(&std::mem::take(&mut path));
            }
            match token {
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    let inner =
                        |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == '!');
                    tokens.next_if(inner);
                    let attribute = tokens.next().map(|t| t.to_string().replace(' ', ""));
                    let attribute = attribute.unwrap_or_default();
                    of_tests |= attribute == "[cfg(test)]";
                    let path = attribute.strip_prefix("[path=\"");
                    let path = path.and_then(|path| path.strip_suffix("\"]"));
                    file = path.map(str::to_owned).or(file);
                }
                TokenTree::Ident(_) if of_tests => {
                    (of_tests, file) = (false, None);
                    skip_item(token, &mut tokens);
                }
                TokenTree::Ident(name) if name == "pub" => {
                    // What may see an item is not what it uses.
                    tokens.next_if(|next| delimited(next, Delimiter::Parenthesis));
                }
                TokenTree::Ident(name) if name == "use" => {
                    let tree = tokens.by_ref().take_while(|next| !is_end(next));
                    let tree: Vec<TokenTree> = tree.collect();
                    self.read_use(&tree, &mut Vec::new());
                }
                TokenTree::Ident(keyword) if keyword == "mod" => {
                    // In a macro the name may be one of its variables.
                    let mut name = String::new();
                    for next in tokens.by_ref() {
                        match next {
                            TokenTree::Group(body) => {
                                self.place.push(std::mem::take(&mut name));
                                self.read_tokens(body.stream());
                                self.place.pop();
                                break;
                            }
                            next if is_end(&next) => {
                                let mut module = self.place.clone();
                                module.push(std::mem::take(&mut name));
                                self.modules.push((module, file.take()));
                                break;
                            }
                            next => name.push_str(&next.to_string()),
                        }
                    }
                }
                TokenTree::Ident(name) => path.push(name.to_string()),
                TokenTree::Group(group) => self.read_tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        self.note(&path);
    }

    /// A tree of `use`: `a::b`, `a::{b, c::d}`, `a::*` or `a as b`.
    fn read_use(&mut self, tree: &[TokenTree], before: &mut Vec<String>) {
        let length = before.len();
        let mut alias = None;
        for (at, token) in tree.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    let members: Vec<TokenTree> = group.stream().into_iter().collect();
                    for member in members.split(is_comma) {
                        self.read_use(member, before);
                    }
                    before.truncate(length);
                    return;
                }
                TokenTree::Ident(name) if name == "as" => {
                    alias = tree.get(at + 1).map(ToString::to_string);
                    break;
                }
                TokenTree::Ident(name) if name == "self" && length > 0 => {}
                TokenTree::Ident(name) => before.push(name.to_string()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        if before.len() > length || !tree.is_empty() {
            self.paths.push((self.place.clone(), before.clone()));
            if self.place.len() == self.depth
                && let Some(name) = alias.or_else(|| before.last().cloned())
            {
                self.names
                    .insert(name, (self.place.clone(), before.clone()));
            }
        }
        before.truncate(length);
    }

    /// Notes a path. A name alone is no module.
    fn note(&mut self, path: &[String]) {
        if path.len() > 1 {
            self.paths.push((self.place.clone(), path.to_owned()));
        }
    }
}

fn delimited(token: &TokenTree, delimiter: Delimiter) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == delimiter)
}

fn is_end(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(mark) if mark.as_char() == ';')
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',')
}

/// Passes over the rest of an item: to its semicolon, or its body.
fn skip_item(first: TokenTree, tokens: &mut impl Iterator<Item = TokenTree>) {
    let mut is_use = first.to_string() == "use";
    for token in tokens {
        is_use |= token.to_string() == "use";
        if is_end(&token) || !is_use && delimited(&token, Delimiter::Brace) {
            return;
        }
    }
}

#[test]
fn paths_lead_to_files() {
    let module = |name: &str| -> Module {
        let names = name.split("::").filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    };
    let used = |text: &str| -> Vec<String> {
        let files = [
            ("", "pub use d::Shown; mod a; mod d;"),
            ("a", "mod b; mod e; pub use e::Kind as Named;"),
            ("a::b", text),
            ("a::b::c", ""),
            ("a::e", ""),
            ("d", ""),
        ];
        let files = files.map(|(name, text)| (module(name), Reader::read(text, module(name))));
        let uses = of_readers(&files.into());
        let used = &uses[&module("a::b")];
        used.iter().map(|module| module.join("::")).collect()
    };
    assert_eq!(
        used("use super::{Kind, b::c::deep}; use crate::d;"),
        ["a", "a::b::c", "d"]
    );
    assert_eq!(
        used("fn f() { c::call(crate::Kind::One) }"),
        ["", "a::b::c"]
    );
    assert_eq!(used("use super::Named; use crate::Shown;"), ["a::e", "d"]);
    assert_eq!(used("fn f() { g!(x, [crate::d::call()], y: u8) }"), ["d"]);
    assert_eq!(
        used("mod inner { use super::Kind; use super::super::super::d; }"),
        ["d"]
    );
    let none: [&str; 0] = [];
    assert_eq!(used("#[cfg(test)] mod checks { use crate::d; }"), none);
    assert_eq!(
        used("#[cfg(test)] use crate::d::{x, y}; fn f() { 'a: loop {} }"),
        none
    );
    assert_eq!(
        used("pub(in crate::a) fn f() { std::process::exit(1) } // crate::d::x"),
        none
    );
}

#[test]
fn roots_are_found() {
    for root in [
        "encoder/src/lib.rs",
        "encoder/src/main.rs",
        "encoder/examples/bench_encoder/main.rs",
        "fuzz/fuzz_targets/index.rs",
        "fuzz/src/bin/seeds/main.rs",
        "tests/src/lib.rs",
        "tests/tests/layout.rs",
    ] {
        assert!(is_root(root), "{root}");
    }
    for other in [
        "crates/cuda/build.rs",
        "encoder/examples/bench_encoder/rate.rs",
        "encoder/src/encoder.rs",
        "tests/tests/layout/uses.rs",
        "trainer/src/train/tests.rs",
    ] {
        assert!(!is_root(other), "{other}");
    }
}

/// A program that gives its parts what it has itself, in files as they lie on a disk.
#[test]
fn a_root_is_a_file_as_others() {
    let folder = std::env::temp_dir().join(format!("laser-layout-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("parts/deep")).expect("a folder");
    for (file, text) in [
        (
            "main.rs",
            "mod parts; #[path = \"other.rs\"] mod named; const SIZE: u8 = 1; fn main() { parts::run() }",
        ),
        ("parts/mod.rs", "mod deep; use crate::SIZE;"),
        (
            "parts/deep.rs",
            "#[cfg(test)] mod tests; use crate::named::call;",
        ),
        ("other.rs", ""),
    ] {
        std::fs::write(folder.join(file), text).expect("a file");
    }
    let uses = uses(&folder.join("main.rs"));
    std::fs::remove_dir_all(&folder).expect("the folder");
    let name = |module: &Module| module.join("::");
    let uses: Vec<(String, Vec<String>)> = uses
        .iter()
        .map(|(module, used)| (name(module), used.iter().map(name).collect()))
        .collect();
    let expected: [(&str, &[&str]); 4] = [
        ("", &["parts"]),
        ("named", &[]),
        ("parts", &[""]),
        ("parts::deep", &["named"]),
    ];
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, used)| ((*name).to_owned(), owned(used)))
        .collect();
    assert_eq!(uses, expected);
}
