//! Trains a tokenizer on a sample of sentences.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::normalizers::{Lowercase, NFKC, Sequence as NormalizerSequence};
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
use tokenizers::pre_tokenizers::unicode_scripts::UnicodeScripts;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, SplitDelimiterBehavior, Tokenizer, Trainer,
};

use super::{MASK, SPECIAL, byte_token};
use crate::data::{DataError, Result};

/// Kind of subword model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Byte-pair encoding.
    Bpe,
    /// Unigram language model.
    #[default]
    Unigram,
}

/// How a vocabulary is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerOptions {
    /// Kind of model.
    pub kind: Kind,
    /// Size of the vocabulary, with special tokens and bytes.
    pub vocab_size: usize,
    /// Unicode compatibility normalisation.
    pub nfkc: bool,
    /// Lower-casing.
    pub lowercase: bool,
    /// Punctuation marks are words of their own.
    pub split_punctuation: bool,
    /// Words end where the script changes.
    pub split_scripts: bool,
    /// Each digit is a word of its own.
    pub split_digits: bool,
    /// Share of the characters of the sample that must be in the vocabulary; rarer ones are
    /// spelled in bytes.
    pub coverage: f64,
    /// Longest piece, in characters.
    pub max_piece: usize,
    /// Occurrences that a merge of byte-pair encoding needs at least.
    pub min_frequency: u64,
    /// Texts begin with `<s>` and end with `</s>`, and there is a token `<mask>`: for transformers.
    pub boundaries: bool,
}

impl Default for TokenizerOptions {
    fn default() -> Self {
        Self {
            kind: Kind::Unigram,
            vocab_size: 32_000,
            nfkc: true,
            lowercase: false,
            split_punctuation: true,
            split_scripts: true,
            split_digits: false,
            coverage: 0.9995,
            max_piece: 16,
            min_frequency: 2,
            boundaries: false,
        }
    }
}

/// Number of tokens that are there before any is learnt.
const RESERVED: usize = SPECIAL.len() + 256;

/// Score of a byte token in a unigram model: far below any piece, so that a text that spells the
/// name of a byte token is not taken for it.
const BYTE_SCORE: f64 = -100.0;

fn failed(e: impl std::fmt::Display) -> DataError {
    DataError::Tokenizer(e.to_string())
}

struct Preparation {
    normalizer: NormalizerSequence,
    splitter: PreTokenizerSequence,
}

impl Preparation {
    fn new(options: &TokenizerOptions) -> Self {
        let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
        if options.nfkc {
            normalizers.push(NFKC.into());
        }
        if options.lowercase {
            normalizers.push(Lowercase.into());
        }
        let mut splits = vec![WhitespaceSplit.into()];
        if options.split_punctuation {
            splits.push(Punctuation::new(SplitDelimiterBehavior::Isolated).into());
        }
        if options.split_scripts {
            splits.push(UnicodeScripts::new().into());
        }
        if options.split_digits {
            splits.push(Digits::new(true).into());
        }
        splits.push(Metaspace::new('▁', PrependScheme::Always, false).into());
        Self {
            normalizer: NormalizerSequence::new(normalizers),
            splitter: PreTokenizerSequence::new(splits),
        }
    }

    /// The words of a text, as the model gets them.
    fn words(&self, text: &str) -> tokenizers::Result<Vec<String>> {
        let mut normalized = NormalizedString::from(text);
        self.normalizer.normalize(&mut normalized)?;
        let mut split = PreTokenizedString::from(normalized);
        self.splitter.pre_tokenize(&mut split)?;
        let splits = split.get_splits(OffsetReferential::Normalized, OffsetType::None);
        Ok(splits.into_iter().map(|s| s.0.to_owned()).collect())
    }
}

/// The most frequent characters that make up `coverage` of the words, and `▁`.
fn alphabet(words: &HashMap<String, u64>, coverage: f64) -> HashSet<char> {
    let mut counts: HashMap<char, u64> = HashMap::new();
    for (word, n) in words {
        for c in word.chars() {
            *counts.entry(c).or_default() += n;
        }
    }
    let mut counts: Vec<(char, u64)> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|(c, n)| (std::cmp::Reverse(*n), *c));
    let wanted = counts.iter().map(|c| c.1).sum::<u64>() as f64 * coverage;
    let mut seen = 0.0;
    let mut kept = HashSet::from(['▁']);
    for (c, n) in counts {
        if seen >= wanted {
            break;
        }
        seen += n as f64;
        kept.insert(c);
    }
    kept
}

fn count_words(preparation: &Preparation, texts: &[String]) -> Result<HashMap<String, u64>> {
    texts
        .par_chunks(4096)
        .map(|chunk| {
            let mut counts: HashMap<String, u64> = HashMap::new();
            for text in chunk {
                for word in preparation.words(text).map_err(failed)? {
                    *counts.entry(word).or_default() += 1;
                }
            }
            Ok(counts)
        })
        .try_reduce(HashMap::new, |a, b| {
            let (mut large, small) = if a.len() >= b.len() { (a, b) } else { (b, a) };
            for (word, n) in small {
                *large.entry(word).or_default() += n;
            }
            Ok(large)
        })
}

/// Trains a tokenizer on `texts`.
///
/// # Errors
/// [`DataError::Config`] for a vocabulary too small for the special tokens and the alphabet,
/// [`DataError::Tokenizer`] if the training fails.
pub fn train(texts: &[String], options: &TokenizerOptions) -> Result<Tokenizer> {
    if !(0.0..=1.0).contains(&options.coverage) {
        return Err(DataError::Config(
            "coverage must lie between 0 and 1".into(),
        ));
    }
    let preparation = Preparation::new(options);
    let words = count_words(&preparation, texts)?;
    let alphabet = alphabet(&words, options.coverage);
    if options.vocab_size < RESERVED + alphabet.len() {
        return Err(DataError::Config(format!(
            "a vocabulary of {} is too small: {} tokens are reserved and the alphabet has {} \
             characters; lower the coverage or raise the size",
            options.vocab_size,
            RESERVED,
            alphabet.len()
        )));
    }
    let mut words: Vec<(String, u64)> = words
        .into_iter()
        .filter(|(w, _)| w.chars().all(|c| alphabet.contains(&c)))
        .collect();
    words.sort_unstable();
    let mut tokenizer = match options.kind {
        Kind::Bpe => Tokenizer::new(train_bpe(&words, options)?),
        Kind::Unigram => Tokenizer::new(train_unigram(&words, options)?),
    };
    tokenizer
        .with_normalizer(Some(preparation.normalizer))
        .map_err(failed)?;
    tokenizer.with_pre_tokenizer(Some(preparation.splitter));
    let decoders = vec![
        ByteFallback::default().into(),
        Metaspace::new('▁', PrependScheme::Always, false).into(),
    ];
    tokenizer.with_decoder(Some(DecoderSequence::new(decoders)));
    let special: Vec<AddedToken> = SPECIAL.iter().map(|t| AddedToken::from(*t, true)).collect();
    tokenizer.add_special_tokens(special).map_err(failed)?;
    if options.boundaries {
        let mask = vec![AddedToken::from(MASK, true)];
        tokenizer.add_special_tokens(mask).map_err(failed)?;
        let id = |token: &str| {
            let id = tokenizer.token_to_id(token);
            id.map(|id| (token.to_owned(), id))
                .ok_or_else(|| failed(format!("no token {token}")))
        };
        let (begin, end) = (id("<s>")?, id("</s>")?);
        let template = TemplateProcessing::builder()
            .try_single(format!("{} $A {}", begin.0, end.0))
            .map_err(failed)?
            .special_tokens(vec![begin, end])
            .build()
            .map_err(failed)?;
        tokenizer.with_post_processor(Some(template));
    }
    Ok(tokenizer)
}

fn train_bpe(words: &[(String, u64)], options: &TokenizerOptions) -> Result<BPE> {
    let reserved = SPECIAL
        .iter()
        .map(|t| (*t).to_owned())
        .chain((0..=255).map(byte_token));
    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(options.vocab_size)
        .min_frequency(options.min_frequency)
        .max_token_length(Some(options.max_piece))
        .special_tokens(reserved.map(|t| AddedToken::from(t, true)).collect())
        .build();
    // The trainer counts what it is fed, so that each word has to be given as often as it occurs;
    // one item stands for up to `BLOCK` occurrences.
    const BLOCK: u64 = 64;
    let items = words.iter().flat_map(|(word, n)| {
        let whole = (0..n / BLOCK).map(move |_| format!("{BLOCK} {word}"));
        let rest = (n % BLOCK > 0).then(|| format!("{} {word}", n % BLOCK));
        whole.chain(rest)
    });
    trainer
        .feed(items, |item| {
            let (n, word) = item.split_once(' ').ok_or("an item has no count")?;
            Ok(vec![word.to_owned(); n.parse()?])
        })
        .map_err(failed)?;
    let mut model = BPE::builder()
        .unk_token("<unk>".into())
        .byte_fallback(true)
        .fuse_unk(true)
        .build()
        .map_err(failed)?;
    trainer.train(&mut model).map_err(failed)?;
    Ok(model)
}

fn train_unigram(words: &[(String, u64)], options: &TokenizerOptions) -> Result<Unigram> {
    let learnt = options.vocab_size - RESERVED;
    let trainer = UnigramTrainer::builder()
        .show_progress(false)
        .vocab_size(u32::try_from(learnt).map_err(failed)?)
        .max_piece_length(options.max_piece)
        .build()
        .map_err(failed)?;
    let sentences = words
        .iter()
        .map(|(w, n)| (w.clone(), u32::try_from(*n).unwrap_or(u32::MAX)))
        .collect();
    let mut model = Unigram::default();
    trainer.do_train(sentences, &mut model).map_err(failed)?;
    let mut pieces: Vec<(String, f64)> = SPECIAL
        .iter()
        .map(|t| ((*t).to_owned(), 0.0))
        .chain((0..=255).map(|b| (byte_token(b), BYTE_SCORE)))
        .collect();
    let reserved: HashSet<String> = pieces.iter().map(|p| p.0.clone()).collect();
    pieces.extend(
        model
            .iter()
            .filter(|(piece, _)| !reserved.contains(piece) && piece != "<UNK>")
            .take(learnt)
            .cloned(),
    );
    Unigram::from(pieces, Some(1), true).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> Vec<String> {
        let words = [
            "lower",
            "newest",
            "widest",
            "Wörter",
            "слово",
            "слова",
            "単語",
            "คำ",
        ];
        (0..400)
            .map(|i| {
                format!(
                    "{} {}, {}!",
                    words[i % 8],
                    words[(i / 8) % 8],
                    words[(i / 3) % 8]
                )
            })
            .collect()
    }

    #[test]
    fn nothing_is_unknown_and_text_comes_back() {
        for kind in [Kind::Bpe, Kind::Unigram] {
            let options = TokenizerOptions {
                kind,
                vocab_size: 330,
                coverage: 1.0,
                ..Default::default()
            };
            let tokenizer = train(&texts(), &options).expect("trained");
            assert!(tokenizer.get_vocab_size(true) <= 330);
            for text in ["lower newest", "🦀 новый", "単語 words", "a\u{301}"] {
                let encoding = tokenizer.encode(text, true).expect("encode");
                assert!(
                    !encoding.get_ids().contains(&1),
                    "{kind:?} {text}: {:?}",
                    encoding.get_tokens()
                );
                assert!(!encoding.get_ids().is_empty());
            }
            for (id, token) in SPECIAL.iter().enumerate() {
                assert_eq!(tokenizer.token_to_id(token), Some(id as u32));
            }
            assert_eq!(tokenizer.token_to_id("<0x00>"), Some(4));
            assert_eq!(tokenizer.token_to_id("<0xFF>"), Some(259));
            let ids = tokenizer.encode("lower widest 🦀", true).expect("encode");
            let back = tokenizer.decode(ids.get_ids(), false).expect("decode");
            assert_eq!(back, "lower widest 🦀", "{kind:?}");
        }
    }

    #[test]
    fn options_change_the_text() {
        let options = TokenizerOptions {
            kind: Kind::Bpe,
            vocab_size: 330,
            lowercase: true,
            coverage: 1.0,
            ..Default::default()
        };
        let tokenizer = train(&texts(), &options).expect("trained");
        let ids = |t: &str| {
            tokenizer
                .encode(t, true)
                .expect("encode")
                .get_ids()
                .to_vec()
        };
        assert_eq!(ids("LOWER"), ids("lower"));
        assert_eq!(ids("ｌｏｗｅｒ"), ids("lower"));
        let small = TokenizerOptions {
            vocab_size: 262,
            ..options
        };
        assert!(matches!(train(&texts(), &small), Err(DataError::Config(_))));
    }

    #[test]
    fn file_round_trip() {
        let options = TokenizerOptions {
            vocab_size: 330,
            coverage: 1.0,
            ..Default::default()
        };
        let tokenizer = train(&texts(), &options).expect("trained");
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("tokenizer.json");
        tokenizer.save(&path, false).expect("save");
        let loaded = super::super::load(&path).expect("load");
        let direct = tokenizer.encode("newest слово 🦀", true).expect("encode");
        let again = loaded.encode(&["newest слово 🦀"]).expect("encode");
        assert_eq!(again[0], direct.get_ids());
        assert!(loaded.vocab_size <= 330);
    }
}
