//! The packed corpus: tokenised groups in one file that is memory-mapped.
//!
//! Layout, all little-endian: magic, length of the JSON header (u64), header, then sections, each
//! starting at a multiple of 8 bytes:
//!
//! | section | type | length |
//! | --- | --- | --- |
//! | `group_start` | u32 | groups + 1; sentences of group g are `start[g]..start[g + 1]` |
//! | `group_source` | u16 | groups |
//! | `group_key` | u64 | groups; hash of the key |
//! | `sentence_start` | u64 | sentences + 1; token range of each sentence |
//! | `sentence_language` | u16 | sentences |
//! | `sentence_hash` | u32 | sentences; hash of the text without case and punctuation |
//! | `tokens` | u16 or u32 | token ids |
//!
//! A corpus packed with perturbed sentences ([`super::perturb`]) has four more, in which they are
//! numbered from the number of sentences on:
//!
//! | section | type | length |
//! | --- | --- | --- |
//! | `perturbed_of` | u32 | sentences + 1; those of sentence s are `of[s]..of[s + 1]` |
//! | `perturbed_start` | u64 | perturbed + 1; token range of each |
//! | `perturbed_hash` | u32 | perturbed; as `sentence_hash` |
//! | `perturbed_tokens` | u16 or u32 | token ids |
//!
//! The file may be compressed as a whole with Zstandard; it is then read into memory.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{DataError, Result};

/// First bytes of a packed corpus.
pub const MAGIC: &[u8; 8] = b"LASERPK1";

/// Position of a sentence in the corpus.
pub type SentenceId = u32;
/// Position of a language in [`Header::languages`].
pub type LanguageId = u16;
/// Position of a source in [`Header::sources`].
pub type SourceId = u16;

/// Description of a packed corpus, stored as JSON at its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Names of the sources; a [`SourceId`] is a position here.
    pub sources: Vec<String>,
    /// Language codes; a [`LanguageId`] is a position here.
    pub languages: Vec<String>,
    /// blake3 of the `tokenizer.json` that made the ids, in hexadecimal.
    pub tokenizer: String,
    /// Size of its vocabulary; all ids are below it.
    pub vocab_size: u32,
    /// Longest sentence in tokens; longer ones were cut.
    pub max_tokens: u32,
    /// Bytes of a token id: 2 or 4.
    pub token_width: u8,
    /// Groups of sentences that are translations of each other.
    pub groups: u64,
    /// Sentences of all groups, without perturbed ones.
    pub sentences: u64,
    /// Tokens of all sentences, without perturbed ones.
    pub tokens: u64,
    /// Number of perturbed sentences.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub perturbed: u64,
    /// Number of their tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub perturbed_tokens: u64,
    /// Byte range of each section, counted from the end of the header, by name.
    pub sections: BTreeMap<String, (u64, u64)>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

enum Storage {
    Mapped(memmap2::Mmap),
    /// u64 words, so that sections stay aligned.
    Owned(Vec<u64>),
}

impl Storage {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(words) => bytemuck::cast_slice(words),
        }
    }
}

/// Sentences of varying length, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ragged {
    /// Token ids of all sentences.
    pub ids: Vec<u32>,
    /// Sentence `i` is `ids[starts[i]..starts[i + 1]]`; one more entry than sentences.
    pub starts: Vec<usize>,
}

impl Ragged {
    /// No sentences.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ids: Vec::new(),
            starts: vec![0],
        }
    }

    /// Number of sentences.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there are no sentences.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Token ids of sentence `i`.
    #[must_use]
    pub fn row(&self, i: usize) -> &[u32] {
        &self.ids[self.starts[i]..self.starts[i + 1]]
    }

    /// Adds a sentence.
    pub fn push(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
        self.starts.push(self.ids.len());
    }

    /// Length of the longest sentence, 0 if there is none.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.starts
            .windows(2)
            .map(|w| w[1] - w[0])
            .max()
            .unwrap_or(0)
    }
}

/// A packed corpus, opened for reading.
pub struct PackedCorpus {
    header: Header,
    storage: Storage,
    /// Byte offset of each section in `storage`, with its length.
    sections: BTreeMap<&'static str, (usize, usize)>,
}

impl std::fmt::Debug for PackedCorpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedCorpus")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

/// Sections of the perturbed sentences.
const PERTURBED: [&str; 4] = [
    "perturbed_of",
    "perturbed_start",
    "perturbed_hash",
    "perturbed_tokens",
];

const SECTIONS: [&str; 7] = [
    "group_start",
    "group_source",
    "group_key",
    "sentence_start",
    "sentence_language",
    "sentence_hash",
    "tokens",
];

impl PackedCorpus {
    /// Opens a packed corpus and checks that every offset, language, source and token id in it is
    /// in range, so that later accesses cannot fail.
    ///
    /// # Errors
    /// [`DataError::Io`] if the file cannot be read, [`DataError::Packed`] if it is damaged.
    pub fn open(path: &Path) -> Result<Self> {
        if cfg!(target_endian = "big") {
            return Err(bad(path, "packed corpora need a little-endian machine"));
        }
        let mut file = File::open(path).map_err(|e| DataError::io(path, e))?;
        let mut magic = [0u8; 4];
        let start = read_up_to(&mut file, &mut magic).map_err(|e| DataError::io(path, e))?;
        let storage = if magic[..start] == super::input::ZSTD_MAGIC {
            let file = File::open(path).map_err(|e| DataError::io(path, e))?;
            let mut decoder = zstd::Decoder::new(file).map_err(|e| DataError::io(path, e))?;
            decoder
                .window_log_max(31)
                .map_err(|e| DataError::io(path, e))?;
            let mut bytes = Vec::new();
            decoder
                .read_to_end(&mut bytes)
                .map_err(|e| DataError::io(path, e))?;
            Storage::Owned(to_words(&bytes))
        } else {
            // SAFETY: the map is read-only and lives as long as `Storage`. Another process that
            // truncates the file meanwhile would fault, as with every memory-mapped file; the
            // packer never rewrites a corpus in place but renames a new file over it.
            let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| DataError::io(path, e))?;
            Storage::Mapped(map)
        };
        Self::parse(path, storage)
    }

    fn parse(path: &Path, storage: Storage) -> Result<Self> {
        let bytes = storage.bytes();
        if bytes.len() < 16 || &bytes[..8] != MAGIC {
            return Err(bad(path, "the magic number is missing"));
        }
        let mut word = [0u8; 8];
        word.copy_from_slice(&bytes[8..16]);
        let header_len = usize::try_from(u64::from_le_bytes(word))
            .ok()
            .filter(|n| *n <= bytes.len() - 16)
            .ok_or_else(|| bad(path, "the header is cut off"))?;
        let header: Header = serde_json::from_slice(&bytes[16..16 + header_len])
            .map_err(|e| bad(path, format!("header: {e}")))?;
        let base = (16 + header_len).next_multiple_of(8);
        let mut sections = BTreeMap::new();
        let more: &[&'static str] = if header.perturbed > 0 {
            &PERTURBED
        } else {
            &[]
        };
        for &name in SECTIONS.iter().chain(more) {
            let &(at, len) = header
                .sections
                .get(name)
                .ok_or_else(|| bad(path, format!("section {name} is missing")))?;
            let end = at.checked_add(len).and_then(|e| e.checked_add(base as u64));
            if at % 8 != 0 || end.is_none_or(|e| e > bytes.len() as u64) {
                return Err(bad(path, format!("section {name} is out of bounds")));
            }
            sections.insert(name, (base + at as usize, len as usize));
        }
        let corpus = Self {
            header,
            storage,
            sections,
        };
        corpus.check().map_err(|message| bad(path, message))?;
        Ok(corpus)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let h = &self.header;
        if h.groups >= u64::from(u32::MAX) || h.sentences >= u64::from(u32::MAX) {
            return Err("too many sentences".into());
        }
        let expect = [
            ("group_start", (h.groups + 1) * 4),
            ("group_source", h.groups * 2),
            ("group_key", h.groups * 8),
            ("sentence_start", (h.sentences + 1) * 8),
            ("sentence_language", h.sentences * 2),
            ("sentence_hash", h.sentences * 4),
            ("tokens", h.tokens.saturating_mul(u64::from(h.token_width))),
        ];
        let perturbed = [
            ("perturbed_of", (h.sentences + 1) * 4),
            (
                "perturbed_start",
                h.perturbed.saturating_add(1).saturating_mul(8),
            ),
            ("perturbed_hash", h.perturbed.saturating_mul(4)),
            (
                "perturbed_tokens",
                h.perturbed_tokens.saturating_mul(u64::from(h.token_width)),
            ),
        ];
        if h.sentences.saturating_add(h.perturbed) >= u64::from(u32::MAX) {
            return Err("too many perturbed sentences".into());
        }
        let present = if h.perturbed > 0 { &perturbed[..] } else { &[] };
        for (name, bytes) in expect.iter().chain(present).copied() {
            if self.sections[name].1 as u64 != bytes {
                return Err(format!("section {name} has the wrong length"));
            }
        }
        if h.token_width != 2 && h.token_width != 4 {
            return Err(format!("token width {} is neither 2 nor 4", h.token_width));
        }
        let increasing = |values: &[u32]| values.par_windows(2).all(|w| w[0] <= w[1]);
        let starts = self.group_starts();
        if starts[0] != 0
            || u64::from(starts[starts.len() - 1]) != h.sentences
            || !increasing(starts)
        {
            return Err("group offsets are not in order".into());
        }
        let starts = self.sentence_starts();
        if starts[0] != 0
            || starts[starts.len() - 1] != h.tokens
            || !starts.par_windows(2).all(|w| w[0] <= w[1])
        {
            return Err("sentence offsets are not in order".into());
        }
        if self
            .group_sources()
            .iter()
            .any(|s| usize::from(*s) >= h.sources.len())
        {
            return Err("source out of range".into());
        }
        if self
            .sentence_languages()
            .iter()
            .any(|l| usize::from(*l) >= h.languages.len())
        {
            return Err("language out of range".into());
        }
        if h.perturbed > 0 {
            let of = self.section::<u32>("perturbed_of");
            let starts = self.section::<u64>("perturbed_start");
            if of[0] != 0
                || u64::from(of[of.len() - 1]) != h.perturbed
                || !increasing(of)
                || starts[0] != 0
                || starts[starts.len() - 1] != h.perturbed_tokens
                || !starts.par_windows(2).all(|w| w[0] <= w[1])
            {
                return Err("offsets of perturbed sentences are not in order".into());
            }
        }
        let in_range = |name: &str| {
            if h.token_width == 2 {
                self.section::<u16>(name)
                    .par_iter()
                    .all(|t| u32::from(*t) < h.vocab_size)
            } else {
                self.section::<u32>(name)
                    .par_iter()
                    .all(|t| *t < h.vocab_size)
            }
        };
        if in_range("tokens") && (h.perturbed == 0 || in_range("perturbed_tokens")) {
            Ok(())
        } else {
            Err("token id out of range".into())
        }
    }

    fn section<T: bytemuck::AnyBitPattern>(&self, name: &str) -> &[T] {
        let (at, len) = self.sections[name];
        bytemuck::cast_slice(&self.storage.bytes()[at..at + len])
    }

    fn group_starts(&self) -> &[u32] {
        self.section("group_start")
    }

    fn sentence_starts(&self) -> &[u64] {
        self.section("sentence_start")
    }

    /// Names, counts and the tokenizer's fingerprint.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Groups of translations; a group is a number below it.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.header.groups as u32
    }

    /// Sentences of all groups; [`SentenceId`]s of these are below it.
    #[must_use]
    pub fn sentences(&self) -> u32 {
        self.header.sentences as u32
    }

    /// Ids of the sentences of a group, which lie side by side; O(1).
    #[must_use]
    pub fn group(&self, group: u32) -> std::ops::Range<SentenceId> {
        let starts = self.group_starts();
        starts[group as usize]..starts[group as usize + 1]
    }

    /// Group that holds `sentence`; O(log groups).
    #[must_use]
    pub fn group_of(&self, sentence: SentenceId) -> u32 {
        (self.group_starts().partition_point(|s| *s <= sentence) - 1) as u32
    }

    /// Source of each group.
    #[must_use]
    pub fn group_sources(&self) -> &[SourceId] {
        self.section("group_source")
    }

    /// Hash of the key of each group ([`super::hash64`]).
    #[must_use]
    pub fn group_keys(&self) -> &[u64] {
        self.section("group_key")
    }

    /// Language of each sentence.
    #[must_use]
    pub fn sentence_languages(&self) -> &[LanguageId] {
        self.section("sentence_language")
    }

    /// The language of a sentence, as its position in [`Header::languages`].
    #[must_use]
    pub fn language(&self, sentence: SentenceId) -> LanguageId {
        self.sentence_languages()[sentence as usize]
    }

    /// Hash of the text of a sentence without case, punctuation and white space: sentences with
    /// equal hashes are duplicates and must not be each other's negatives.
    #[must_use]
    pub fn text_hash(&self, sentence: SentenceId) -> u32 {
        match sentence.checked_sub(self.sentences()) {
            None => self.section::<u32>("sentence_hash")[sentence as usize],
            Some(n) => self.section::<u32>("perturbed_hash")[n as usize],
        }
    }

    /// The perturbed sentences of a sentence. They have tokens and a hash, and neither language nor
    /// group.
    #[must_use]
    pub fn perturbed(&self, sentence: SentenceId) -> std::ops::Range<SentenceId> {
        if self.header.perturbed == 0 {
            return 0..0;
        }
        let of = self.section::<u32>("perturbed_of");
        let at = |i: u32| self.sentences() + of[i as usize];
        at(sentence)..at(sentence + 1)
    }

    /// Name of the section of a sentence's tokens, and their place in it.
    fn place(&self, sentence: SentenceId) -> (&'static str, std::ops::Range<usize>) {
        let (tokens, starts, at) = match sentence.checked_sub(self.sentences()) {
            None => ("tokens", self.sentence_starts(), sentence as usize),
            Some(n) => {
                let starts = self.section("perturbed_start");
                ("perturbed_tokens", starts, n as usize)
            }
        };
        (tokens, starts[at] as usize..starts[at + 1] as usize)
    }

    /// Number of tokens of a sentence.
    #[must_use]
    pub fn token_count(&self, sentence: SentenceId) -> usize {
        self.place(sentence).1.len()
    }

    /// Appends the first `limit` token ids of a sentence to `out`; returns how many there were.
    pub fn tokens_into(&self, sentence: SentenceId, limit: usize, out: &mut Vec<u32>) -> usize {
        let (name, place) = self.place(sentence);
        let at = place.start;
        let end = place.end.min(at.saturating_add(limit));
        if self.header.token_width == 2 {
            out.extend(
                self.section::<u16>(name)[at..end]
                    .iter()
                    .map(|t| u32::from(*t)),
            );
        } else {
            out.extend_from_slice(&self.section::<u32>(name)[at..end]);
        }
        end - at
    }

    /// Token ids of several sentences, each cut at `limit`.
    #[must_use]
    pub fn gather(&self, sentences: impl IntoIterator<Item = SentenceId>, limit: usize) -> Ragged {
        let mut ragged = Ragged::new();
        for sentence in sentences {
            self.tokens_into(sentence, limit, &mut ragged.ids);
            ragged.starts.push(ragged.ids.len());
        }
        ragged
    }

    /// Position of a language code.
    #[must_use]
    pub fn language_id(&self, code: &str) -> Option<LanguageId> {
        self.header
            .languages
            .iter()
            .position(|l| l == code)
            .map(|i| i as LanguageId)
    }
}

fn bad(path: &Path, message: impl Into<String>) -> DataError {
    DataError::Packed {
        path: path.display().to_string(),
        message: message.into(),
    }
}

fn read_up_to(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read(&mut buffer[done..])? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

fn to_words(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks(8)
        .map(|chunk| {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        })
        .collect()
}
