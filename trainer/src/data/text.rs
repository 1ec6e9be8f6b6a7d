//! When two texts are the same.

/// 64-bit hash of a byte string; stable across versions and machines.
#[must_use]
pub fn hash64(bytes: &[u8]) -> u64 {
    let digest = blake3::hash(bytes);
    let mut word = [0u8; 8];
    word.copy_from_slice(&digest.as_bytes()[..8]);
    u64::from_le_bytes(word)
}

/// Text reduced to what makes two sentences the same: lower-case letters and digits only.
///
/// A sentence without letters or digits is kept as it is.
#[must_use]
pub fn canonical(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    out.extend(letters(text));
    if out.is_empty() { text.to_owned() } else { out }
}

/// The letters and digits of a text in lower case.
fn letters(text: &str) -> impl Iterator<Item = char> {
    text.chars()
        .filter(|c| c.is_alphanumeric() || is_mark(*c))
        .flat_map(char::to_lowercase)
}

/// Whether two texts are the same without case, punctuation and white space.
#[must_use]
pub fn same_text(a: &str, b: &str) -> bool {
    let mut left = letters(a).peekable();
    let mut right = letters(b).peekable();
    if left.peek().is_none() || right.peek().is_none() {
        return a == b;
    }
    left.eq(right)
}

/// Combining marks carry meaning in Indic and Semitic scripts, so they count as letters.
fn is_mark(c: char) -> bool {
    !c.is_ascii() && unicode_normalization::char::is_combining_mark(c)
}

/// Hash of [`canonical`] text: equal for sentences that differ in case, punctuation or spacing.
#[must_use]
pub fn text_hash(text: &str) -> u64 {
    hash64(canonical(text).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_ignores_case_punctuation_and_space() {
        assert_eq!(text_hash("Hello, World!"), text_hash("hello world"));
        assert_ne!(text_hash("hello world"), text_hash("hello word"));
        assert_ne!(text_hash("?"), text_hash("!"));
        assert_ne!(canonical("कि"), canonical("की"));
        for (a, b) in [
            ("Hello, World!", "hello world"),
            ("?", "!"),
            ("?", "a"),
            ("a", "ab"),
        ] {
            assert_eq!(same_text(a, b), canonical(a) == canonical(b), "{a} {b}");
        }
    }
}
