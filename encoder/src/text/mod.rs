//! Text preparation that a `tokenizer.json` cannot express: what LASER's scripts do to a line
//! before it is tokenised.

use std::borrow::Cow;

use crate::EncoderError;
use crate::config::TextConfig;

/// The steps of a [`TextConfig`], ready to run.
pub(crate) struct Preparation {
    config: TextConfig,
}

impl Preparation {
    pub fn new(config: &TextConfig) -> Result<Self, EncoderError> {
        if !config.is_default() {
            return Err(EncoderError::Config(
                "this version does not know these text preparation steps".into(),
            ));
        }
        Ok(Self {
            config: config.clone(),
        })
    }

    /// The text as the tokenizer shall see it.
    pub fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        debug_assert!(self.config.is_default());
        Cow::Borrowed(text)
    }
}
