//! Text preparation that a `tokenizer.json` cannot express: what LASER's scripts do to a line
//! before it is tokenised.

mod fastbpe;
mod greek;
mod moses;
mod punctuation;
pub mod segment;

use std::borrow::Cow;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::ModelError;
use crate::config::{NonPrinting, TextConfig};
use fastbpe::FastBpe;
use moses::Moses;
use segment::Segmenter;

static NON_PRINTING: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\p{C}").expect("a constant pattern"));

/// The steps of a [`TextConfig`], ready to run.
pub(crate) struct Preparation {
    config: TextConfig,
    moses: Option<Moses>,
    segmenter: Option<Box<dyn Segmenter>>,
    fast_bpe: Option<FastBpe>,
}

impl Preparation {
    /// Prepares the steps; a dictionary is read from the model folder `folder`.
    pub fn new(config: &TextConfig, folder: &Path) -> Result<Self, ModelError> {
        let moses = config.moses.as_ref().map(Moses::new);
        let segmenter = config
            .segmentation
            .map(|kind| segment::open(kind, folder))
            .transpose()?;
        let fast_bpe = config.fast_bpe.as_ref().map(FastBpe::new).transpose()?;
        // The steps hold what they need of the lists.
        let config = TextConfig {
            moses: None,
            fast_bpe: None,
            ..config.clone()
        };
        Ok(Self {
            config,
            moses,
            segmenter,
            fast_bpe,
        })
    }

    /// The text as the tokenizer shall see it.
    pub fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        let replacement = match self.config.non_printing {
            NonPrinting::Keep => None,
            NonPrinting::Remove => Some(""),
            NonPrinting::Space => Some(" "),
        };
        if let Some(replacement) = replacement
            && let Cow::Owned(replaced) = NON_PRINTING.replace_all(&text, replacement)
        {
            text = Cow::Owned(replaced);
        }
        if let Some(language) = &self.config.punctuation {
            text = Cow::Owned(punctuation::normalize(&text, language));
        }
        if self.config.descape {
            text = Cow::Owned(moses::descape(&text));
        }
        if let Some(moses) = &self.moses {
            text = Cow::Owned(moses.tokenize(&text));
        }
        if let Some(segmenter) = &self.segmenter {
            text = Cow::Owned(segmenter.segment(&text));
        }
        if self.config.romanize_greek {
            text = Cow::Owned(greek::romanize(&text));
        }
        if self.config.lowercase {
            text = Cow::Owned(text.to_lowercase());
        }
        if let Some(bpe) = &self.fast_bpe {
            text = Cow::Owned(bpe.segment(&text));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config;

    fn fixture<T: serde::de::DeserializeOwned>(name: &str) -> T {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../import/tests/fixtures")
            .join(name);
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn laser2() -> TextConfig {
        TextConfig {
            non_printing: NonPrinting::Space,
            punctuation: Some("en".into()),
            lowercase: true,
            ..TextConfig::default()
        }
    }

    #[test]
    fn laser2_texts_are_prepared_as_in_python() {
        let expected: serde_json::Value = fixture("laser2/expected.json");
        let list =
            |key: &str| -> Vec<String> { serde_json::from_value(expected[key].clone()).unwrap() };
        let preparation = Preparation::new(&laser2(), Path::new("")).unwrap();
        for (text, prepared) in list("texts").iter().zip(list("prepared")) {
            assert_eq!(preparation.apply(text), prepared, "{text:?}");
        }
    }

    #[test]
    fn laser1_texts_are_prepared_as_by_moses_scripts() {
        let (prefixes, numeric_prefixes) = (vec!["Mr", "Mrs", "Dr"], vec!["No"]);
        let strings = |list: Vec<&str>| list.into_iter().map(String::from).collect();
        let mut moses = config::Moses {
            language: String::new(),
            prefixes: strings(prefixes),
            numeric_prefixes: strings(numeric_prefixes),
        };
        for [language, text, expected] in fixture::<Vec<[String; 3]>>("laser1/moses.json") {
            moses.language.clone_from(&language);
            let config = TextConfig {
                non_printing: NonPrinting::Space,
                punctuation: Some(language.clone()),
                moses: Some(moses.clone()),
                ..TextConfig::default()
            };
            let preparation = Preparation::new(&config, Path::new("")).unwrap();
            assert_eq!(preparation.apply(&text), expected, "{language}: {text:?}");
        }
    }

    #[test]
    fn greek_is_romanised_as_in_python() {
        for [text, expected] in fixture::<Vec<[String; 2]>>("laser1/greek.json") {
            assert_eq!(greek::romanize(&text), expected);
        }
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(
            moses::descape("a &amp;lt; b &#124; &quot;c&apos;"),
            "a &lt; b | \"c'"
        );
    }

    proptest! {
        #[test]
        fn any_text_can_be_prepared(text: String, language in "(en|fr|fi|ca|so|de|tdt)") {
            let everything = TextConfig {
                punctuation: Some(language.clone()),
                descape: true,
                moses: Some(config::Moses { language, ..Default::default() }),
                romanize_greek: true,
                fast_bpe: Some(config::FastBpe {
                    merges: vec!["a b</w>".into()],
                    vocabulary: vec!["a@@".into()],
                }),
                ..laser2()
            };
            let prepared = Preparation::new(&everything, Path::new("")).unwrap();
            let prepared = prepared.apply(&text);
            prop_assert!(!prepared.contains("  ") && !prepared.contains(char::is_control));
        }
    }
}
