//! Moses' tokenizer (`tokenizer.perl -no-escape`), after its substitutions, and the reversal of its
//! escapes.

use std::collections::HashSet;
use std::sync::LazyLock;

use regex::Regex;

use crate::config;

struct Patterns {
    spaces: Regex,
    control: Regex,
    /// Separates what is neither letter, digit, white space nor in the list of the language.
    special: Regex,
    special_colon: Regex,
    special_middle_dot: Regex,
    colon: Regex,
    middle_dot: Regex,
    apostrophe: Regex,
    dots: Regex,
    comma_after: Regex,
    comma_before: Regex,
    comma_end: Regex,
    alpha: Regex,
    quote_end: Regex,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let regex = |p: &str| Regex::new(p).expect("a constant pattern");
    Patterns {
        spaces: regex(r"\s+"),
        control: regex(r"[\x00-\x1f]"),
        special: regex(r"([^\p{Alphabetic}\p{Nd}\s.'`,\-])"),
        special_colon: regex(r"([^\p{Alphabetic}\p{Nd}\s.:'`,\-])"),
        special_middle_dot: regex(r"([^\p{Alphabetic}\p{Nd}\s.·'`,\-])"),
        colon: regex(r":(\p{Ll})?"),
        middle_dot: regex(r"·(\p{Ll})?"),
        apostrophe: regex(r"'(\p{Ll})?"),
        dots: regex(r"\.\.+"),
        comma_after: regex(r"([^\p{N}]),"),
        comma_before: regex(r",([^\p{N}])"),
        comma_end: regex(r"(\p{N}),$"),
        alpha: regex(r"\p{Alphabetic}"),
        quote_end: regex(r"\.' ?$"),
    }
});

/// Stands for a sequence of full stops while single ones are handled. A private use character, so
/// that no text means it; followed by the number of stops in unary.
const DOT: &str = "\u{f8ff}";

/// A tokenizer for one language.
pub(super) struct Moses {
    language: String,
    prefixes: HashSet<String>,
    numeric_prefixes: HashSet<String>,
}

impl Moses {
    pub fn new(config: &config::Moses) -> Self {
        Self {
            language: config.language.clone(),
            prefixes: config.prefixes.iter().cloned().collect(),
            numeric_prefixes: config.numeric_prefixes.iter().cloned().collect(),
        }
    }

    /// Tokens separated by single spaces.
    pub fn tokenize(&self, text: &str) -> String {
        let p = &*PATTERNS;
        if text.trim().is_empty() {
            return String::new();
        }
        let text = p.spaces.replace_all(text.trim(), " ");
        let mut text = p.control.replace_all(&text, "").replace(DOT, " ");
        // A letter-like sign is separated unless a lower-case letter follows.
        let unless_lower = |pattern: &Regex, sign: &str, text: &str| {
            pattern
                .replace_all(text, |c: &regex::Captures<'_>| match c.get(1) {
                    Some(letter) => format!("{sign}{}", letter.as_str()),
                    None => format!(" {sign} "),
                })
                .into_owned()
        };
        text = match self.language.as_str() {
            "fi" | "sv" => {
                let text = p.special_colon.replace_all(&text, " ${1} ");
                unless_lower(&p.colon, ":", &text)
            }
            "tdt" => {
                let text = p.special.replace_all(&text, " ${1} ");
                unless_lower(&p.apostrophe, "'", &text)
            }
            "ca" => {
                let text = p.special_middle_dot.replace_all(&text, " ${1} ");
                unless_lower(&p.middle_dot, "·", &text)
            }
            _ => p.special.replace_all(&text, " ${1} ").into_owned(),
        };
        // Sequences of full stops stay together: set apart, but a sign after one keeps its space.
        text = p
            .dots
            .replace_all(&text, |c: &regex::Captures<'_>| {
                format!(" {} ", DOT.repeat(c[0].len()))
            })
            .into_owned();
        text = p.comma_after.replace_all(&text, "${1} , ").into_owned();
        text = p.comma_before.replace_all(&text, " , ${1}").into_owned();
        text = p.comma_end.replace_all(&text, "${1} ,").into_owned();
        text = self.apostrophes(&text);
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut out = String::with_capacity(text.len() + 8);
        for (i, word) in words.iter().enumerate() {
            if i > 0 {
                out.push(' ');
            }
            match word.strip_suffix('.').filter(|stem| !stem.is_empty()) {
                Some(stem) if !self.keeps_stop(stem, words.get(i + 1).copied()) => {
                    out.push_str(stem);
                    out.push_str(" .");
                }
                _ => out.push_str(word),
            }
        }
        p.quote_end.replace(&out, " . ' ").trim().replace(DOT, ".")
    }

    /// Whether the full stop after `stem` belongs to it.
    fn keeps_stop(&self, stem: &str, next: Option<&str>) -> bool {
        let Some(next) = next else { return false };
        (stem.contains('.') && PATTERNS.alpha.is_match(stem))
            || self.prefixes.contains(stem)
            || next.chars().next().is_some_and(char::is_lowercase)
            || (self.numeric_prefixes.contains(stem)
                && next.starts_with(|c: char| c.is_ascii_digit()))
    }

    /// Splits at apostrophes as the language does. Perl's substitutions consume the letter after
    /// an apostrophe, so each rule is one pass from left to right.
    fn apostrophes(&self, text: &str) -> String {
        #[derive(PartialEq)]
        enum Side {
            Alpha,
            NotAlpha,
            NotAlphaNumber,
            Number,
            S,
        }
        use Side::*;
        let (rules, sides): (&[&str], &[(Side, Side)]) = match self.language.as_str() {
            "en" => (
                &[" ' ", " ' ", " ' ", " '", " '"],
                &[
                    (NotAlpha, NotAlpha),
                    (NotAlphaNumber, Alpha),
                    (Alpha, NotAlpha),
                    (Alpha, Alpha),
                    (Number, S),
                ],
            ),
            "fr" | "it" | "ga" | "ca" => (
                &[" ' ", " ' ", " ' ", "' "],
                &[
                    (NotAlpha, NotAlpha),
                    (NotAlpha, Alpha),
                    (Alpha, NotAlpha),
                    (Alpha, Alpha),
                ],
            ),
            "so" | "tdt" => (
                &[" ' ", " ' ", " ' "],
                &[(NotAlpha, NotAlpha), (NotAlpha, Alpha), (Alpha, NotAlpha)],
            ),
            _ => return text.replace('\'', " ' "),
        };
        if !text.contains('\'') {
            return text.to_owned();
        }
        let is = |side: &Side, c: char| {
            // Alphabetic in Unicode's sense; numbers are category N.
            match side {
                Alpha => c.is_alphabetic(),
                NotAlpha => !c.is_alphabetic(),
                NotAlphaNumber => !c.is_alphabetic() && !c.is_numeric(),
                Number => c.is_numeric(),
                S => c == 's',
            }
        };
        let mut text: Vec<char> = text.chars().collect();
        for (replacement, (left, right)) in rules.iter().zip(sides) {
            let mut out = Vec::with_capacity(text.len() + 8);
            let mut i = 0;
            while i < text.len() {
                if i + 2 < text.len()
                    && text[i + 1] == '\''
                    && is(left, text[i])
                    && is(right, text[i + 2])
                {
                    out.push(text[i]);
                    out.extend(replacement.chars());
                    out.push(text[i + 2]);
                    i += 3;
                } else {
                    out.push(text[i]);
                    i += 1;
                }
            }
            text = out;
        }
        text.into_iter().collect()
    }
}

/// Undoes Moses' escapes (`deescape-special-chars.perl`).
pub(super) fn descape(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    let mut text = text.to_owned();
    for (from, to) in [
        ("&bar;", "|"),
        ("&#124;", "|"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&bra;", "["),
        ("&ket;", "]"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&#91;", "["),
        ("&#93;", "]"),
        ("&amp;", "&"),
    ] {
        text = text.replace(from, to);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(language: &str, text: &str) -> String {
        let config = config::Moses {
            language: language.into(),
            prefixes: vec!["Mr".into()],
            numeric_prefixes: vec!["No".into()],
        };
        Moses::new(&config).tokenize(text)
    }

    #[test]
    fn stops_commas_and_apostrophes() {
        for (language, text, expected) in [
            ("en", "Hello, world.", "Hello , world ."),
            (
                "en",
                "Mr. Smith paid 5,300.50 in the U.S. today.",
                "Mr. Smith paid 5,300.50 in the U.S. today .",
            ),
            ("en", "It's John's; don't!", "It 's John 's ; don 't !"),
            ("en", "See No. 5 and No. X.", "See No. 5 and No . X ."),
            ("en", "Well... yes", "Well ... yes"),
            ("en", "a-b (c)", "a-b ( c )"),
            ("fr", "L'eau d'été", "L' eau d' été"),
            ("de", "Das geht's", "Das geht ' s"),
            ("fi", "USA:n jäsen: kyllä", "USA:n jäsen : kyllä"),
            ("en", "   ", ""),
        ] {
            assert_eq!(tokens(language, text), expected, "{language}");
        }
    }
}
