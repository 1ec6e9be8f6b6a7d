//! The tokens of a word of the tokenizers that laser trains, without the general machinery of
//! `tokenizers`, which keeps offsets and allocates for every step.
//!
//! It does the same as NFKC, lower-casing, splits at punctuation and between scripts, a leading
//! U+2581, byte-pair merges and n-grams, for words of which every character can be looked at alone:
//! nearly all. What is left to the caller is whatever normalisation would change. What a character is
//! to the tokenizer, the tokenizer is asked once.

use std::sync::{Mutex, OnceLock};

use any_ascii::any_ascii_char;
use serde::Deserialize;
use tokenizers::{
    ModelWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
};
use unicode_normalization::char::{
    canonical_combining_class, compose, decompose_canonical, is_combining_mark,
};
use unicode_normalization::{IsNormalized, is_nfkc_quick};

use crate::ngrams::{MAX_WORD_CHARS, Ngrams};

/// What a piece of a word begins with.
const MARK: char = '\u{2581}';

/// Bytes of the longest word.
const MAX_WORD_BYTES: usize = 240;

/// Bytes of a word that counts as short.
const SHORT: usize = 48;

/// No token.
const NONE: u16 = u16::MAX;

/// Stands for the rank of a merge that there is not.
const NEVER: i16 = i16::MAX;

/// What becomes of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its word cannot be done here.
    Unknown,
    /// A piece of its own.
    Isolated,
    /// A part of a piece whose characters are of one class.
    Inner(u8),
}

/// What has to be known of a character.
#[derive(Debug)]
struct Character {
    kind: Kind,
    /// Canonical combining class.
    combining: u8,
    /// Whether it may compose with a character before it.
    composes: bool,
    /// Whether it is its own canonical decomposition.
    plain: bool,
    /// Whether it belongs to a word's letters, for n-grams.
    letter: bool,
    /// The token of its lower-case form, [`NONE`] if it becomes bytes.
    token: u16,
    lower: char,
    roman: &'static str,
}

/// Numbers of 16 bits by keys of 48 bits that are not 0, in one table: 8 bytes an entry, so that it
/// stays in the second-level cache.
#[derive(Debug, Clone)]
struct Table {
    slots: Vec<u64>,
    shift: u32,
}

impl Table {
    fn new(entries: impl ExactSizeIterator<Item = (u64, u16)>) -> Self {
        let size = (entries.len() * 3 / 2 + 2).next_power_of_two();
        let mut table = Self {
            slots: vec![0; size],
            shift: u64::BITS - size.trailing_zeros(),
        };
        for (key, value) in entries {
            debug_assert!(key > 0 && key >> 48 == 0);
            let mut at = table.place(key);
            while table.slots[at] != 0 && table.slots[at] >> 16 != key {
                at = (at + 1) % size;
            }
            table.slots[at] = key << 16 | u64::from(value);
        }
        table
    }

    fn place(&self, key: u64) -> usize {
        // Fibonacci hashing (Knuth, volume 3, section 6.4).
        ((key ^ key >> 24).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline]
    fn get(&self, key: u64) -> Option<u16> {
        let mask = self.slots.len() - 1;
        let mut at = self.place(key) & mask;
        loop {
            let slot = self.slots[at];
            if slot >> 16 == key {
                return Some(slot as u16);
            }
            if slot == 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
    }
}

/// Tokens of words, see the module's text.
#[derive(Debug)]
pub(crate) struct Subwords {
    mark: u16,
    bytes: [u16; 256],
    /// Rank of the merge of two tokens.
    merges: Table,
    /// Result of each merge.
    results: Vec<u16>,
    ngrams: Option<Beginnings>,
    /// First bytes of added tokens.
    reserved: [bool; 256],
    /// The characters of the basic plane, by blocks of 256.
    characters: Vec<OnceLock<Box<[OnceLock<Character>]>>>,
    /// One character of each class.
    classes: Mutex<Vec<char>>,
}

/// The n-grams by their letters.
#[derive(Debug)]
struct Beginnings {
    lengths: Vec<usize>,
    table: Table,
    /// Id of the first one.
    first: u32,
}

/// The parts of a `tokenizer.json` that `tokenizers` does not show.
#[derive(Deserialize)]
struct File {
    model: ModelFile,
}

/// The other form, see [`crate::ngrams`].
#[derive(Deserialize)]
struct WithNgrams {
    tokenizer: File,
}

#[derive(Deserialize)]
struct ModelFile {
    merges: Vec<(String, String)>,
}

impl Subwords {
    /// For a tokenizer and its file's text; `None` if it does anything else.
    pub fn new(tokenizer: &Tokenizer, json: &[u8], ngrams: Option<&Ngrams>) -> Option<Self> {
        let value = |v: Result<serde_json::Value, _>| v.ok();
        let normalizer = value(serde_json::to_value(tokenizer.get_normalizer()))?;
        let pre_tokenizer = value(serde_json::to_value(tokenizer.get_pre_tokenizer()))?;
        let known = normalizer
            == serde_json::json!({"type": "Sequence", "normalizers": [
                {"type": "NFKC"}, {"type": "Lowercase"},
            ]})
            && pre_tokenizer
                == serde_json::json!({"type": "Sequence", "pretokenizers": [
                    {"type": "WhitespaceSplit"},
                    {"type": "Punctuation", "behavior": "Isolated"},
                    {"type": "UnicodeScripts"},
                    {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always",
                     "split": false},
                ]});
        let ModelWrapper::BPE(model) = tokenizer.get_model() else {
            return None;
        };
        if !known
            || model.dropout.is_some()
            || model.ignore_merges
            || !model.byte_fallback
            || model.continuing_subword_prefix.is_some()
            || model.end_of_word_suffix.is_some()
        {
            return None;
        }
        let token = |text: &str| -> Option<u16> {
            let id = u16::try_from(tokenizer.token_to_id(text)?).ok()?;
            (id != NONE).then_some(id)
        };
        let file: File = match ngrams {
            Some(_) => serde_json::from_slice::<WithNgrams>(json).ok()?.tokenizer,
            None => serde_json::from_slice(json).ok()?,
        };
        let merges = file.model.merges;
        if merges.len() >= usize::from(NONE) {
            return None;
        }
        let mut entries = Vec::with_capacity(merges.len());
        let mut results = Vec::with_capacity(merges.len());
        let mut made = std::collections::HashSet::new();
        for (rank, (left, right)) in merges.iter().enumerate() {
            let result = token(&format!("{left}{right}"))?;
            // `tokenizers` may follow an outdated merge if another one has the same result.
            if !made.insert(result) {
                return None;
            }
            entries.push((pair(token(left)?, token(right)?), rank as u16));
            results.push(result);
        }
        let mut bytes = [NONE; 256];
        for (byte, id) in bytes.iter_mut().enumerate() {
            *id = token(&format!("<0x{byte:02X}>"))?;
        }
        let ngrams = match ngrams {
            Some(ngrams) => Some(Beginnings::new(ngrams)?),
            None => None,
        };
        let mut reserved = [false; 256];
        for added in tokenizer.get_added_tokens_decoder().values() {
            reserved[usize::from(*added.content.as_bytes().first()?)] = true;
        }
        Some(Self {
            mark: token("\u{2581}")?,
            bytes,
            merges: Table::new(entries.into_iter()),
            results,
            ngrams,
            reserved,
            characters: (0..256).map(|_| OnceLock::new()).collect(),
            classes: Mutex::default(),
        })
    }

    /// Appends the tokens and n-grams of a word; `None`, and nothing is appended, if it has to be
    /// left to the tokenizer.
    ///
    /// `ngrams` are those of [`Subwords::new`].
    pub fn append(
        &self,
        tokenizer: &Tokenizer,
        ngrams: Option<&Ngrams>,
        word: &str,
        ids: &mut Vec<u32>,
    ) -> Option<()> {
        if word.len() > MAX_WORD_BYTES {
            return None;
        }
        // Most words are short, and clearing room for others would take longer than they do.
        if word.len() <= SHORT {
            self.append_up_to::<SHORT>(tokenizer, ngrams, word, ids)
        } else {
            self.append_up_to::<MAX_WORD_BYTES>(tokenizer, ngrams, word, ids)
        }
    }

    /// The same of a word of N bytes at most.
    fn append_up_to<const N: usize>(
        &self,
        tokenizer: &Tokenizer,
        ngrams: Option<&Ngrams>,
        word: &str,
        ids: &mut Vec<u32>,
    ) -> Option<()> {
        let mut characters: [&Character; N] = [&NOBODY; N];
        let mut count = 0;
        let (mut last, mut combining) = (None::<(char, bool)>, 0);
        for c in word.chars() {
            let character = self.character(tokenizer, c)?;
            if character.kind == Kind::Unknown {
                return None;
            }
            if character.composes {
                match last {
                    Some((starter, plain)) if !plain || compose(starter, c).is_some() => {
                        return None;
                    }
                    _ => {}
                }
            }
            if character.combining == 0 {
                last = Some((c, character.plain));
            } else if combining > character.combining {
                return None;
            }
            combining = character.combining;
            characters[count] = character;
            count += 1;
        }
        let characters = &characters[..count];
        let mut start = 0;
        while start < count {
            let kind = characters[start].kind;
            let mut end = start + 1;
            if let Kind::Inner(_) = kind {
                while end < count && characters[end].kind == kind {
                    end += 1;
                }
            }
            let piece = &characters[start..end];
            if 4 * piece.len() < SHORT {
                self.piece::<SHORT>(piece, ids);
            } else {
                self.piece::<{ 4 * MAX_WORD_BYTES }>(piece, ids);
            }
            start = end;
        }
        match (&self.ngrams, ngrams) {
            (_, Some(ngrams)) if ngrams.look_inside(word) => ngrams.append(word, ids),
            (Some(beginnings), _) => beginnings.append(characters, ids),
            (None, _) => {}
        }
        Some(())
    }

    /// The tokens of a piece of fewer than a quarter of N characters (of three bytes at most, and the
    /// mark).
    fn piece<const N: usize>(&self, characters: &[&Character], ids: &mut Vec<u32>) {
        let mut tokens = [NONE; N];
        tokens[0] = self.mark;
        let mut n = 1;
        for c in characters {
            if c.token != NONE {
                tokens[n] = c.token;
                n += 1;
            } else {
                let mut buffer = [0; 4];
                for byte in c.lower.encode_utf8(&mut buffer).bytes() {
                    tokens[n] = self.bytes[usize::from(byte)];
                    n += 1;
                }
            }
        }
        // The rank of the merge of each token with its neighbour.
        let mut ranks = [NEVER; N];
        for i in 0..n - 1 {
            ranks[i] = self.rank(tokens[i], tokens[i + 1]);
        }
        while n > 1 {
            let best = ranks[..n - 1].iter().copied().min().unwrap_or(NEVER);
            if best == NEVER {
                break;
            }
            let at = ranks[..n - 1].iter().position(|r| *r == best).unwrap_or(0);
            tokens[at] = self.results[(i32::from(best) - i32::from(i16::MIN)) as usize];
            for i in at + 1..n - 1 {
                tokens[i] = tokens[i + 1];
                ranks[i - 1] = ranks[i];
            }
            n -= 1;
            if at > 0 {
                ranks[at - 1] = self.rank(tokens[at - 1], tokens[at]);
            }
            if at + 1 < n {
                ranks[at] = self.rank(tokens[at], tokens[at + 1]);
            }
        }
        ids.extend(tokens[..n].iter().map(|id| u32::from(*id)));
    }

    /// The rank of a merge, in the order of signed numbers, of which processors without newer
    /// instructions find the least faster.
    #[inline]
    fn rank(&self, left: u16, right: u16) -> i16 {
        match self.merges.get(pair(left, right)) {
            Some(rank) => (rank ^ 0x8000) as i16,
            None => NEVER,
        }
    }

    #[inline]
    fn character(&self, tokenizer: &Tokenizer, c: char) -> Option<&Character> {
        let (block, place) = (c as usize >> 8, c as usize & 255);
        let block = self.characters.get(block)?;
        let block = match block.get() {
            Some(block) => block,
            None => block.get_or_init(|| (0..256).map(|_| OnceLock::new()).collect()),
        };
        match block[place].get() {
            Some(character) => Some(character),
            None => Some(block[place].get_or_init(|| self.examine(tokenizer, c))),
        }
    }

    /// Asks the tokenizer about a character.
    fn examine(&self, tokenizer: &Tokenizer, c: char) -> Character {
        let quick = is_nfkc_quick(std::iter::once(c));
        let mut lower = c.to_lowercase();
        let (lower, more) = (lower.next().unwrap_or(c), lower.next());
        let reserved = c.is_ascii() && self.reserved[c as usize];
        let simple = quick != IsNormalized::No
            && more.is_none()
            && ![c, lower].iter().any(|c| c.is_whitespace() || *c == MARK)
            && !reserved
            && (c.is_ascii() || !self.reserved.iter().skip(128).any(|r| *r));
        let token = tokenizer.token_to_id(lower.encode_utf8(&mut [0; 4]));
        let mut decomposed = 0;
        let mut plain = true;
        decompose_canonical(c, |d| {
            decomposed += 1;
            plain &= d == c;
        });
        Character {
            kind: if simple {
                self.kind(tokenizer, lower)
            } else {
                Kind::Unknown
            },
            combining: canonical_combining_class(c),
            composes: quick == IsNormalized::Maybe,
            plain: plain && decomposed == 1,
            letter: c.is_alphabetic() || is_combining_mark(c),
            token: token.and_then(|t| u16::try_from(t).ok()).unwrap_or(NONE),
            lower,
            roman: any_ascii_char(c),
        }
    }

    fn kind(&self, tokenizer: &Tokenizer, c: char) -> Kind {
        let pieces = |first: char, second: char| -> Option<usize> {
            let mut text = PreTokenizedString::from(String::from_iter([first, second]));
            tokenizer
                .get_pre_tokenizer()?
                .pre_tokenize(&mut text)
                .ok()?;
            let splits = text.get_splits(OffsetReferential::Normalized, OffsetType::None);
            Some(splits.iter().filter(|(text, ..)| !text.is_empty()).count())
        };
        match pieces(c, c) {
            Some(1) => {}
            Some(2) => return Kind::Isolated,
            _ => return Kind::Unknown,
        }
        let Ok(mut classes) = self.classes.lock() else {
            return Kind::Unknown;
        };
        // Those found last first: texts stay in a script.
        let known = classes
            .iter()
            .rposition(|other| pieces(*other, c) == Some(1));
        let class = known.unwrap_or_else(|| {
            classes.push(c);
            classes.len() - 1
        });
        u8::try_from(class).map_or(Kind::Unknown, Kind::Inner)
    }
}

/// Stands where there is no character.
static NOBODY: Character = Character {
    kind: Kind::Unknown,
    combining: 0,
    composes: false,
    plain: true,
    letter: false,
    token: NONE,
    lower: ' ',
    roman: "",
};

/// A key for two tokens; never 0.
#[inline]
fn pair(left: u16, right: u16) -> u64 {
    1 << 32 | u64::from(left) << 16 | u64::from(right)
}

/// Up to six bytes as a number; not 0 if none of them is.
fn key(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(whole)
}

impl Beginnings {
    /// If no n-gram is too long, and there are not too many.
    fn new(ngrams: &Ngrams) -> Option<Self> {
        let lengths = ngrams.lengths().to_vec();
        let first = ngrams.iter().map(|(_, id)| id).min().unwrap_or(0);
        let mut entries = Vec::new();
        for (text, id) in ngrams.iter() {
            // Others are never found.
            let found = text.is_ascii() && !text.contains('\0') && lengths.contains(&text.len());
            if found && text.len() <= 6 {
                let place = u16::try_from(id - first).ok()?;
                entries.push((key(text.as_bytes()), place));
            }
        }
        lengths.iter().all(|n| (1..=6).contains(n)).then(|| Self {
            lengths,
            table: Table::new(entries.into_iter()),
            first,
        })
    }

    /// As [`Ngrams::append`], of characters that normalisation leaves alone.
    fn append(&self, characters: &[&Character], ids: &mut Vec<u32>) {
        for run in characters.split(|c| !c.letter) {
            let mut bytes = [0u8; 8];
            let mut length = 0;
            for c in run {
                for byte in c.roman.bytes() {
                    if let Some(to) = bytes.get_mut(length) {
                        *to = byte.to_ascii_lowercase();
                    }
                    length += 1;
                }
            }
            if length > MAX_WORD_CHARS {
                continue;
            }
            let whole = u64::from_le_bytes(bytes);
            for &n in self.lengths.iter().filter(|n| **n <= length) {
                let key = whole & (u64::MAX >> (64 - 8 * n));
                if let Some(place) = self.table.get(key) {
                    ids.push(self.first + u32::from(place));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::ngrams::read_tokenizer;
    use crate::words::Words;

    /// The shipped tokenizer, its n-grams, and what is tested.
    struct Shipped {
        tokenizer: Tokenizer,
        ngrams: Ngrams,
        subwords: Subwords,
    }

    fn shipped() -> &'static Shipped {
        static SHIPPED: OnceLock<Shipped> = OnceLock::new();
        SHIPPED.get_or_init(|| {
            let folder =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../encoder/models/laser-mean-384");
            let json = std::fs::read(folder.join(crate::folder::TOKENIZER)).unwrap();
            let (tokenizer, config) = read_tokenizer(&json).unwrap();
            let first = tokenizer.get_vocab_size(true) as u32;
            let ngrams = Ngrams::new(config.unwrap(), first).unwrap();
            let subwords = Subwords::new(&tokenizer, &json, Some(&ngrams)).unwrap();
            Shipped {
                tokenizer,
                ngrams,
                subwords,
            }
        })
    }

    /// Compares the words of a text with what the tokenizer makes of them; returns how many there are,
    /// and how many were left to it.
    fn compare(text: &str) -> (usize, usize) {
        let Shipped {
            tokenizer,
            ngrams,
            subwords,
        } = shipped();
        let (mut all, mut left) = (0, 0);
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            let mut found = vec![7];
            all += 1;
            if subwords
                .append(tokenizer, Some(ngrams), word, &mut found)
                .is_none()
            {
                assert_eq!(found, [7]);
                left += 1;
                continue;
            }
            let mut plain = vec![7];
            plain.extend_from_slice(tokenizer.encode_fast(word, false).unwrap().get_ids());
            ngrams.append(word, &mut plain);
            assert_eq!(found, plain, "{word:?}");
        }
        (all, left)
    }

    #[test]
    fn tokens_of_the_demo_are_those_of_the_tokenizer() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/sentences.tsv");
        let text = std::fs::read_to_string(demo).unwrap();
        let (mut all, mut left) = (0, 0);
        for line in text.lines().filter_map(|line| line.rsplit('\t').next()) {
            let counts = compare(line);
            (all, left) = (all + counts.0, left + counts.1);
        }
        assert!(all > 5000 && left * 25 < all, "{left} of {all}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn tokens_of_anything_are_those_of_the_tokenizer(
            text in "[ابوالكتشבהושלכתไทยບ້ານကြဖខ្ញུabcABEeé\u{301}\u{308}\u{323}ßüﬁİǅ²½…a-z0-9.,'\u{a0}\u{3000}\u{200d}\u{2581}дЁはガアー\u{3099}한\u{1100}\u{1161}क्ষো\u{9c7}\u{9be}\u{bbe}กำ你好<🙂/s>]{0,24}",
            other: String,
        ) {
            compare(&text);
            compare(&other);
        }
    }

    #[test]
    fn every_character_of_the_basic_plane_is_that_of_the_tokenizer() {
        for c in (0..0x1_0000)
            .filter_map(char::from_u32)
            .filter(|c| *c != ' ')
        {
            compare(&format!("{c} a{c}b{c} {c}{c}\u{301}"));
        }
    }

    #[test]
    fn other_tokenizers_are_left_alone() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../encoder/models/laser-mean-384");
        let json = std::fs::read_to_string(folder.join(crate::folder::TOKENIZER)).unwrap();
        for (from, to) in [
            ("{\"type\":\"Lowercase\"}", "{\"type\":\"StripAccents\"}"),
            ("\"UnicodeScripts\"", "\"WhitespaceSplit\""),
            ("\"byte_fallback\":true", "\"byte_fallback\":false"),
        ] {
            assert!(json.contains(from), "{from}");
            let changed = json.replacen(from, to, 1);
            let (tokenizer, config) = read_tokenizer(changed.as_bytes()).unwrap();
            let first = tokenizer.get_vocab_size(true) as u32;
            let ngrams = Ngrams::new(config.unwrap(), first).unwrap();
            let subwords = Subwords::new(&tokenizer, changed.as_bytes(), Some(&ngrams));
            assert!(subwords.is_none(), "{to}");
            assert!(Words::new(&tokenizer, None, Some(b"{")).is_ok());
        }
    }
}
