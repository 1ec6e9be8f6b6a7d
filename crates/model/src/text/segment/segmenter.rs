//! What segments words.

/// A segmenter with its dictionary.
pub(crate) trait Segmenter: Send + Sync {
    /// The words of a text, without white space.
    fn words<'t>(&self, text: &'t str) -> Vec<&'t str>;

    /// The text with single spaces between its words.
    fn segment(&self, text: &str) -> String {
        self.words(text).join(" ")
    }
}
