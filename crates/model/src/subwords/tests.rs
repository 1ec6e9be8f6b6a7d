//! [`Subwords`] beside the tokenizer itself.

use std::path::Path;
use std::sync::OnceLock;

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
    let mut scratch = Scratch::default();
    let (mut all, mut left) = (0, 0);
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let mut found = vec![7];
        all += 1;
        if subwords
            .append(tokenizer, &mut scratch, word, &mut found)
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
    assert!(all > 5000 && left * 500 < all, "{left} of {all}");
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// What NFKC replaces, with what may compose with it, and other planes.
    #[test]
    fn words_that_change_are_those_of_the_tokenizer(
        text in "[aeioﬁﬀĳǆſ½²ªº…․，！＜／ｓ＞（）：；％Ａａｱﾞｶ㍍㎏①Ⅳำຳກນໜໝ༌ཱིৡড়ড়क़שּׁﬡאלﺉﮜﷺلاևıİÅÅΩ´¨¸\u{300}\u{301}\u{307}\u{323}\u{327}\u{345}\u{3099}\u{200b}\u{fe0f}🙂𝐀𝒜𞤀𐐀ㄱㅏ각가각\u{0}~]{0,16}",
        other in "[\\PC]{0,16}",
    ) {
        compare(&text);
        compare(&other);
    }

    /// Pieces beyond those that are merged in place.
    #[test]
    fn long_words_are_those_of_the_tokenizer(
        latin in "[a-zé]{10,1100}",
        thai in "[กขคงจชดตนบปพมยรลวสหอะาิีึืุูเแโไ่้์ำ]{10,350}",
        han in "[的一是不了在人有我他这个们中来上大为和国地到以说时要就出会]{10,350}",
    ) {
        for text in [latin, thai, han] {
            compare(&text);
        }
    }
}

#[test]
fn every_character_is_that_of_the_tokenizer() {
    for c in (0..0x2_0100)
        .filter_map(char::from_u32)
        .filter(|c| *c != ' ')
    {
        compare(&format!("{c} a{c}b{c} {c}{c}\u{301} ﬁ{c}"));
    }
}

/// What is long, or becomes long, or composes all along.
#[test]
fn hostile_words_are_those_of_the_tokenizer() {
    for part in [
        "a", "ab", "\u{fdfa}", "\u{301}", "e\u{301}", "\u{f73}", "ก", "ำ", "ﬁ", "가", "🙂", "～",
        "~a",
    ] {
        for bytes in [1, 16, 17, 47, 240, 1024, 1025, 4000] {
            let word = part.repeat(bytes / part.len() + 1);
            compare(&word);
            compare(&word[..word.floor_char_boundary(bytes)]);
        }
    }
}

#[test]
fn other_tokenizers_are_left_alone() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../encoder/models/laser-mean-384");
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
