//! Tokens of texts that are longer than a model's limit, without tokenizing all of them.

/// Bytes that are tokenized first, where a text is longer.
const FIRST_PART: usize = 16 << 10;
/// Tokens beyond the limit that a part of a text must have to stand for the whole: so far from where
/// it was cut, what follows changes no token.
const SLACK: usize = 64;

/// Tokens of a beginning of `text` that is long enough to have more of them than `limit`, or of the
/// whole text. A few bytes can become many (U+FDFA becomes 18 characters), and their tokens are worth
/// nothing beyond the limit.
pub(crate) fn first_tokens<T>(
    text: &str,
    limit: usize,
    tokens: impl Fn(&str) -> tokenizers::Result<T>,
    count: impl Fn(&T) -> usize,
) -> tokenizers::Result<(T, bool)> {
    let mut bytes = FIRST_PART;
    while bytes < text.len() {
        let part = &text[..text.floor_char_boundary(bytes)];
        // Between words, if there is a gap nearby.
        let gap = part
            .rfind(' ')
            .filter(|at| part.len() - at < FIRST_PART / 4);
        let found = tokens(&part[..gap.unwrap_or(part.len())])?;
        if count(&found) > limit.saturating_add(SLACK) {
            return Ok((found, true));
        }
        bytes *= 4;
    }
    Ok((tokens(text)?, false))
}
