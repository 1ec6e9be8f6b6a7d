//! [`Characters`]: what has to be known of a character, asked of the tokenizer once.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, OnceLock};

use any_ascii::any_ascii_char;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Tokenizer,
};
use unicode_normalization::char::{
    canonical_combining_class, decompose_canonical, is_combining_mark,
};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfkc_quick};

use super::merges::NONE;

/// What a piece of a word begins with.
const MARK: char = '\u{2581}';

/// Characters of a block.
const BLOCK: usize = 256;

/// Blocks of the first two planes.
const BLOCKS: usize = 0x2_0000 / BLOCK;

/// Bits of a letter of [`Character::roman`].
pub(super) const LETTER_BITS: usize = 7;

/// Letters of [`Character::roman`].
const LETTERS: usize = 9;

/// The class of what is a piece of its own.
const ISOLATED: u8 = 254;

/// The class of what cannot be done here.
const UNKNOWN: u8 = 255;

const KNOWN: u8 = 1;
const COMPOSES: u8 = 2;
const PLAIN: u8 = 4;
const LETTER: u8 = 8;
const COMBINING: u8 = 16;
const CHANGES: u8 = 32;

/// What has to be known of a character of a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Character {
    pub c: char,
    /// Token of the lower-case form (16 bits), class, combining class, flags, bytes of the romanised form.
    facts: u64,
    /// The first [`LETTERS`] of the romanised form in lower case, [`LETTER_BITS`] each.
    pub roman: u64,
}

impl Character {
    fn byte(self, place: usize) -> u8 {
        (self.facts >> (8 * place)) as u8
    }

    fn has(self, flag: u8) -> bool {
        self.byte(4) & flag != 0
    }

    /// The token of its lower-case form, [`NONE`] if it becomes bytes.
    pub fn token(self) -> u16 {
        self.facts as u16
    }

    /// Equal for characters that may be in one piece.
    pub fn class(self) -> u8 {
        self.byte(2)
    }

    /// Whether it is a piece of its own.
    pub fn is_isolated(self) -> bool {
        self.class() == ISOLATED
    }

    /// Whether its word cannot be done here.
    pub fn is_unknown(self) -> bool {
        self.class() == UNKNOWN
    }

    /// Whether normalisation makes other characters of it.
    pub fn changes(self) -> bool {
        self.has(CHANGES)
    }

    /// Canonical combining class.
    pub fn combining(self) -> u8 {
        self.byte(3)
    }

    /// Whether it may compose with a character before it.
    pub fn composes(self) -> bool {
        self.has(COMPOSES)
    }

    /// Whether it is its own canonical decomposition.
    pub fn is_plain(self) -> bool {
        self.has(PLAIN)
    }

    /// Whether it belongs to a word's letters, for n-grams.
    pub fn is_letter(self) -> bool {
        self.has(LETTER)
    }

    /// Whether it modifies the letter before it.
    pub fn is_combining_mark(self) -> bool {
        self.has(COMBINING)
    }

    /// Bytes of the romanised form; 255 if there are more.
    pub fn roman_length(self) -> usize {
        usize::from(self.byte(5))
    }
}

/// What is known of a character, 0 until it is.
#[derive(Default)]
struct Slot {
    facts: AtomicU64,
    roman: AtomicU64,
}

/// The characters of the first two planes.
pub(super) struct Characters {
    blocks: Box<[OnceLock<Box<[Slot; BLOCK]>>]>,
    /// First bytes of added tokens.
    reserved: [bool; 256],
    /// One character of each class.
    classes: Mutex<Vec<char>>,
}

impl Characters {
    /// `None` if an added token is empty.
    pub fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let mut reserved = [false; 256];
        for added in tokenizer.get_added_tokens_decoder().values() {
            reserved[usize::from(*added.content.as_bytes().first()?)] = true;
        }
        Some(Self {
            blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect(),
            reserved,
            classes: Mutex::default(),
        })
    }

    /// What is known of `c`; `tokenizer` is that of [`Characters::new`]. `None` beyond the second plane.
    #[inline]
    pub fn get(&self, tokenizer: &Tokenizer, c: char) -> Option<Character> {
        let block = self.blocks.get(c as usize / BLOCK)?;
        let block = match block.get() {
            Some(block) => block,
            None => block.get_or_init(|| Box::new(std::array::from_fn(|_| Slot::default()))),
        };
        let slot = &block[c as usize % BLOCK];
        let facts = slot.facts.load(Acquire);
        if facts != 0 {
            let roman = slot.roman.load(Relaxed);
            return Some(Character { c, facts, roman });
        }
        let character = self.examine(tokenizer, c);
        // Whoever examines it finds the same, but for classes that two found at a time: the first one counts.
        slot.roman.store(character.roman, Relaxed);
        match slot
            .facts
            .compare_exchange(0, character.facts, Release, Acquire)
        {
            Ok(_) => Some(character),
            Err(facts) => Some(Character { facts, ..character }),
        }
    }

    /// Asks the tokenizer about a character.
    #[cold]
    fn examine(&self, tokenizer: &Tokenizer, c: char) -> Character {
        let quick = is_nfkc_quick(std::iter::once(c));
        let mut lower = c.to_lowercase();
        let (lower, more) = (lower.next().unwrap_or(c), lower.next());
        let reserved = c.is_ascii() && self.reserved[c as usize];
        let roman = any_ascii_char(c);
        // '~' means something else in n-grams.
        let sound = (c.is_ascii() || !self.reserved.iter().skip(128).any(|r| *r))
            && !reserved
            && !roman.contains(['\0', crate::ngrams::INSIDE])
            && agrees(tokenizer, c);
        let simple = sound
            && quick != IsNormalized::No
            && more.is_none()
            && ![c, lower].iter().any(|c| c.is_whitespace() || *c == MARK);
        let token = tokenizer.token_to_id(lower.encode_utf8(&mut [0; 4]));
        let token = token.and_then(|t| u16::try_from(t).ok()).unwrap_or(NONE);
        let mut decomposed = 0;
        let mut plain = true;
        decompose_canonical(c, |d| {
            decomposed += 1;
            plain &= d == c;
        });
        let class = match simple {
            true => self.class(tokenizer, lower),
            false => UNKNOWN,
        };
        let flags = [
            (KNOWN, true),
            (COMPOSES, quick == IsNormalized::Maybe),
            (PLAIN, plain && decomposed == 1),
            (LETTER, c.is_alphabetic() || is_combining_mark(c)),
            (COMBINING, is_combining_mark(c)),
            (CHANGES, sound && quick == IsNormalized::No),
        ];
        let flags = flags
            .iter()
            .filter(|(_, is)| *is)
            .fold(0, |all, (flag, _)| all | flag);
        let length = roman.len().min(255) as u8;
        let [low, high] = token.to_le_bytes();
        let facts = [
            low,
            high,
            class,
            canonical_combining_class(c),
            flags,
            length,
            0,
            0,
        ];
        Character {
            c,
            facts: u64::from_le_bytes(facts),
            roman: pack(roman),
        }
    }

    fn class(&self, tokenizer: &Tokenizer, c: char) -> u8 {
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
            Some(2) => return ISOLATED,
            _ => return UNKNOWN,
        }
        let Ok(mut classes) = self.classes.lock() else {
            return UNKNOWN;
        };
        // Those found last first: texts stay in a script.
        let known = classes
            .iter()
            .rposition(|other| pieces(*other, c) == Some(1));
        let class = known.unwrap_or_else(|| {
            classes.push(c);
            classes.len() - 1
        });
        u8::try_from(class).map_or(UNKNOWN, |class| match class {
            ISOLATED | UNKNOWN => UNKNOWN,
            class => class,
        })
    }
}

/// Whether the tokenizer makes of a character what this crate's tables of Unicode do: they may be of
/// another version.
fn agrees(tokenizer: &Tokenizer, c: char) -> bool {
    let mut text = NormalizedString::from(c.to_string());
    let done = tokenizer
        .get_normalizer()
        .is_some_and(|n| n.normalize(&mut text).is_ok());
    let expected = std::iter::once(c).nfkc().flat_map(char::to_lowercase);
    done && expected.eq(text.get().chars())
}

/// The first letters of an ASCII text in lower case, the first one lowest.
pub(super) fn pack(text: &str) -> u64 {
    let letters = text.bytes().take(LETTERS).enumerate();
    letters.fold(0, |packed, (i, byte)| {
        packed | u64::from(byte.to_ascii_lowercase() & 127) << (LETTER_BITS * i)
    })
}
