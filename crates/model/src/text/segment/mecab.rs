//! Japanese words as `mecab -O wakati` writes them, by vibrato: the cheapest path through a lattice
//! of dictionary words and unknown ones.

use std::fs::File;
use std::io::{Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use vibrato::errors::VibratoError;
use vibrato::{Dictionary, SystemDictionaryBuilder, Tokenizer};

use super::segmenter::Segmenter;
use crate::ModelError;

/// Longest group of unknown characters, MeCab's default.
const MAX_GROUPING: usize = 24;

impl Segmenter for Tokenizer {
    fn words<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut worker = self.new_worker();
        worker.reset_sentence(text);
        worker.tokenize();
        worker
            .token_iter()
            .map(|token| &text[token.range_byte()])
            .collect()
    }
}

fn tokenizer(dictionary: Dictionary) -> Result<Tokenizer, VibratoError> {
    Ok(Tokenizer::new(dictionary)
        .ignore_space(true)?
        .max_grouping_len(MAX_GROUPING))
}

/// Opens what [`compile`] has made.
pub(super) fn open(dictionary: &[u8]) -> Result<Box<dyn Segmenter>, String> {
    let tokenizer = Dictionary::read(dictionary).and_then(tokenizer);
    Ok(Box::new(tokenizer.map_err(|e| e.to_string())?))
}

/// Compiles the sources of a MeCab dictionary.
pub(super) fn compile(source: &Path) -> Result<Vec<u8>, ModelError> {
    let mut tables: Vec<PathBuf> = std::fs::read_dir(source)
        .map_err(|e| ModelError::io(source, e))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "csv"))
        .collect();
    if tables.is_empty() {
        return Err(ModelError::import(source, "there is no \".csv\" file"));
    }
    tables.sort();
    let mut words = Vec::new();
    for path in tables.iter() {
        words.extend(read(path)?);
        if words.last().is_some_and(|byte| *byte != b'\n') {
            words.push(b'\n');
        }
    }
    let [matrix, characters, unknown] =
        ["matrix.def", "char.def", "unk.def"].map(|name| read(&source.join(name)));
    let (matrix, characters, unknown) = (matrix?, characters?, unknown?);
    if !is_complete(&matrix) {
        return Err(ModelError::import(
            source.join("matrix.def"),
            "it does not have a cost for each pair of contexts",
        ));
    }
    // Without any, text of unknown words has no path through the lattice.
    if unknown.trim_ascii().is_empty() {
        return Err(ModelError::import(
            source.join("unk.def"),
            "it has no unknown words",
        ));
    }
    let compile = || -> Result<Vec<u8>, VibratoError> {
        let dictionary = SystemDictionaryBuilder::from_readers(
            Cursor::new(words),
            Cursor::new(matrix),
            Cursor::new(characters),
            Cursor::new(unknown),
        )?;
        let mut compiled = Vec::new();
        dictionary.write(&mut compiled)?;
        tokenizer(dictionary)?;
        Ok(compiled)
    };
    // vibrato panics on some malformed files.
    match catch_unwind(AssertUnwindSafe(compile)) {
        Ok(result) => result.map_err(|e| ModelError::import(source, e.to_string())),
        Err(_) => Err(ModelError::import(source, "its files are malformed")),
    }
}

/// Whether a `matrix.def` has as many lines as its head announces. vibrato would take memory for
/// any size that stands there.
fn is_complete(matrix: &[u8]) -> bool {
    let lines = || {
        matrix
            .split(|byte| *byte == b'\n')
            .filter(|l| !l.is_empty())
    };
    let head = lines()
        .next()
        .and_then(|line| std::str::from_utf8(line).ok());
    let sizes: Option<Vec<usize>> =
        head.and_then(|head| head.split_whitespace().map(|n| n.parse().ok()).collect());
    let size = sizes.and_then(|sizes| sizes.into_iter().try_fold(1usize, usize::checked_mul));
    size.is_some_and(|size| size > 0 && size < lines().count())
}

fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    let mut text = String::new();
    match File::open(path).and_then(|mut file| file.read_to_string(&mut text)) {
        Ok(_) => Ok(text.into_bytes()),
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => Err(ModelError::import(
            path,
            "it is not UTF-8 (for EUC-JP: iconv -f EUC-JP -t UTF-8)",
        )),
        Err(e) => Err(ModelError::io(path, e)),
    }
}
