//! Text preparation that a `tokenizer.json` cannot express: what LASER's scripts do to a line
//! before it is tokenised.

mod fastbpe;
mod greek;
mod moses;
mod punctuation;

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use crate::EncoderError;
use crate::config::{NonPrinting, TextConfig};
use fastbpe::FastBpe;
use moses::Moses;

static NON_PRINTING: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\p{C}").expect("a constant pattern"));

/// The steps of a [`TextConfig`], ready to run.
pub(crate) struct Preparation {
    config: TextConfig,
    moses: Option<Moses>,
    fast_bpe: Option<FastBpe>,
}

impl Preparation {
    pub fn new(config: &TextConfig) -> Result<Self, EncoderError> {
        let moses = config.moses.as_ref().map(Moses::new);
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
