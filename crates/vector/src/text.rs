//! The text format `[1,2.5,-3e-7]`.
//!
//! Reading follows pgvector's `vector_in`: white space is allowed around brackets, numbers and
//! commas and nowhere else. Numbers are decimal; hexadecimal floats and anything but a finite
//! decimal number are refused.

use crate::{Element, MAX_DIMENSIONS, VectorError};

/// How much of an offending text an error message shows, in characters.
const SHOWN: usize = 64;

fn shorten(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}

/// White space as the server's array input takes it (`array_isspace`).
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while at < text.len() && is_space(text[at]) {
        at += 1;
    }
    at
}

/// Reads an embedding from text (any bytes; what is not ASCII is a syntax error).
///
/// # Errors
/// [`VectorError::Syntax`], [`VectorError::OutOfRange`] for a number too large for the element
/// type, [`VectorError::NaN`], [`VectorError::Infinite`], [`VectorError::Empty`] and
/// [`VectorError::TooMany`].
pub fn parse<E: Element>(text: &[u8]) -> Result<Vec<E>, VectorError> {
    let syntax = |detail| VectorError::Syntax {
        kind: E::KIND,
        input: shorten(text),
        detail,
    };
    let mut at = skip_space(text, 0);
    if text.get(at) != Some(&b'[') {
        return Err(syntax("Contents must start with \"[\"."));
    }
    at = skip_space(text, at + 1);
    if text.get(at) == Some(&b']') {
        return Err(VectorError::Empty { kind: E::KIND });
    }
    let commas = text.iter().filter(|&&byte| byte == b',').count();
    let mut values = Vec::with_capacity((commas + 1).min(MAX_DIMENSIONS));
    loop {
        if values.len() == MAX_DIMENSIONS {
            return Err(VectorError::TooMany { kind: E::KIND });
        }
        at = skip_space(text, at);
        let start = at;
        while at < text.len() && !is_space(text[at]) && text[at] != b',' && text[at] != b']' {
            at += 1;
        }
        values.push(number(&text[start..at], &syntax)?);
        at = skip_space(text, at);
        match text.get(at) {
            Some(b',') => at += 1,
            Some(b']') => break,
            Some(_) => return Err(syntax("Expected \",\" or \"]\" after a number.")),
            None => return Err(syntax("Unexpected end of input.")),
        }
    }
    if skip_space(text, at + 1) != text.len() {
        return Err(syntax("Junk after closing \"]\"."));
    }
    Ok(values)
}

fn number<E: Element>(
    token: &[u8],
    syntax: &impl Fn(&'static str) -> VectorError,
) -> Result<E, VectorError> {
    let parsed = std::str::from_utf8(token)
        .ok()
        .and_then(|token| token.parse::<f32>().ok());
    let Some(value) = parsed else {
        return Err(syntax("Expected a number."));
    };
    // `parse` takes the names of NaN and infinity as well, which tell themselves by their letters.
    let named = token
        .iter()
        .any(|byte| matches!(byte.to_ascii_lowercase(), b'n' | b'i'));
    if named {
        return Err(if value.is_nan() {
            VectorError::NaN { kind: E::KIND }
        } else {
            VectorError::Infinite { kind: E::KIND }
        });
    }
    let element = E::from_f32(value);
    if element.is_finite() {
        Ok(element)
    } else {
        Err(VectorError::OutOfRange {
            kind: E::KIND,
            number: shorten(token),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    fn ok(text: &str) -> Vec<f32> {
        parse::<f32>(text.as_bytes()).unwrap()
    }

    fn detail(text: &str) -> String {
        match parse::<f32>(text.as_bytes()) {
            Err(VectorError::Syntax { detail, .. }) => detail.to_owned(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn accepts() {
        assert_eq!(ok("[1,2,3]"), [1.0, 2.0, 3.0]);
        assert_eq!(
            ok(" \t[ 1 ,\n-2.5e0\r, +.5 ,5., 1E-2 ]\x0b\x0c"),
            [1.0, -2.5, 0.5, 5.0, 0.01]
        );
        assert_eq!(ok("[-0]")[0].to_bits(), (-0.0f32).to_bits());
        // Too small is zero, as in pgvector.
        assert_eq!(ok("[1e-60]"), [0.0]);
        assert_eq!(parse::<f16>(b"[65504]").unwrap(), [f16::MAX]);
    }

    #[test]
    fn refuses() {
        assert_eq!(detail(""), "Contents must start with \"[\".");
        assert_eq!(detail("1,2"), "Contents must start with \"[\".");
        assert_eq!(detail("{1,2}"), "Contents must start with \"[\".");
        assert_eq!(detail("["), "Expected a number.");
        assert_eq!(detail("[1"), "Unexpected end of input.");
        assert_eq!(detail("[1,"), "Expected a number.");
        assert_eq!(detail("[1,]"), "Expected a number.");
        assert_eq!(detail("[,1]"), "Expected a number.");
        assert_eq!(detail("[1 2]"), "Expected \",\" or \"]\" after a number.");
        assert_eq!(detail("[1,2]3"), "Junk after closing \"]\".");
        assert_eq!(detail("[1,2]]"), "Junk after closing \"]\".");
        assert_eq!(detail("[[1]]"), "Expected a number.");
        assert_eq!(detail("[0x10]"), "Expected a number.");
        assert_eq!(detail("[1f]"), "Expected a number.");
        assert_eq!(detail("[1,é]"), "Expected a number.");
        assert_eq!(detail("[- 1]"), "Expected a number.");
    }

    #[test]
    fn refuses_what_is_not_finite_or_too_large() {
        let f = |text: &str| parse::<f32>(text.as_bytes()).unwrap_err();
        assert_eq!(f("[]"), VectorError::Empty { kind: "embedding" });
        assert_eq!(f("[ ]"), VectorError::Empty { kind: "embedding" });
        assert_eq!(f("[nan]"), VectorError::NaN { kind: "embedding" });
        assert_eq!(f("[1,-NaN]"), VectorError::NaN { kind: "embedding" });
        assert_eq!(f("[Infinity]"), VectorError::Infinite { kind: "embedding" });
        assert_eq!(f("[-inf]"), VectorError::Infinite { kind: "embedding" });
        assert_eq!(
            f("[1e39]"),
            VectorError::OutOfRange {
                kind: "embedding",
                number: "1e39".into()
            }
        );
        assert_eq!(
            parse::<f16>(b"[65520]"),
            Err(VectorError::OutOfRange {
                kind: "halfembedding",
                number: "65520".into()
            })
        );
        let many = format!("[{}1]", "1,".repeat(MAX_DIMENSIONS));
        assert_eq!(f(&many), VectorError::TooMany { kind: "embedding" });
        let most = format!("[{}1]", "1,".repeat(MAX_DIMENSIONS - 1));
        assert_eq!(ok(&most).len(), MAX_DIMENSIONS);
    }

    #[test]
    fn messages_show_the_beginning_only() {
        let error = parse::<f32>("x".repeat(100_000).as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.len() < 200, "{error}");
    }

    proptest! {
        #[test]
        fn parse_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse::<f32>(&bytes);
            let _ = parse::<f16>(&bytes);
        }

        #[test]
        fn parse_never_panics_on_likely_text(text in r"[\[\],0-9eE+\-. nNaAiIfF]{0,40}") {
            let _ = parse::<f32>(text.as_bytes());
        }

        #[test]
        fn parse_inverts_display(values in prop::collection::vec(any::<f32>(), 1..100)) {
            let finite: Vec<f32> = values.iter().map(|x| if x.is_finite() { *x } else { 0.5 }).collect();
            let numbers: Vec<String> = finite.iter().map(|x| format!("{x:e}")).collect();
            let text = format!("[{}]", numbers.join(","));
            let parsed = parse::<f32>(text.as_bytes()).unwrap();
            let same = parsed.iter().zip(&finite).all(|(a, b)| a.to_bits() == b.to_bits());
            prop_assert!(same);
        }
    }
}
