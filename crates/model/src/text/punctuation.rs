//! Moses' punctuation normalisation (`normalize-punctuation.perl`): substitutions one after another
//! over the whole text. For English, which LASER2 and LASER3 use for all languages, in the form of
//! their Python code.

use std::sync::LazyLock;

use regex::Regex;

/// Pattern and replacement.
type Rule = (Regex, &'static str);

fn rules(list: &[(&str, &'static str)]) -> Vec<Rule> {
    list.iter()
        .map(|(p, r)| (Regex::new(p).expect("a constant pattern"), *r))
        .collect()
}

static COMMON: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    rules(&[
        // Spaces around brackets and before punctuation.
        (r"\r", ""),
        (r"\(", " ("),
        (r"\)", ") "),
        (r" +", " "),
        (r"\) ([.!:?;,])", ")${1}"),
        (r"\( ", "("),
        (r" \)", ")"),
        (r"(\d) %", "${1}%"),
        (r" :", ":"),
        (r" ;", ";"),
        // Quotation marks and dashes.
        (r"`", "'"),
        (r"''", " \" "),
        (r"[„“”]", "\""),
        (r"–", "-"),
        (r"—", " - "),
        (r" +", " "),
        (r"´", "'"),
        (r"([a-zA-Z])‘([a-zA-Z])", "${1}'${2}"),
        (r"([a-zA-Z])’([a-zA-Z])", "${1}'${2}"),
        (r"[‘‚’]", "\""),
        (r"''", "\""),
        (r"´´", "\""),
        (r"…", "..."),
        // French quotes; \u{a0} is the no-break space.
        ("\u{a0}«\u{a0}", " \""),
        ("«\u{a0}", "\""),
        ("«", "\""),
        ("\u{a0}»\u{a0}", "\" "),
        ("\u{a0}»", "\""),
        ("»", "\""),
        // No-break spaces.
        ("\u{a0}%", "%"),
        ("nº\u{a0}", "nº "),
        ("\u{a0}:", ":"),
        ("\u{a0}ºC", " ºC"),
        ("\u{a0}cm", " cm"),
        ("\u{a0}\\?", "?"),
        ("\u{a0}!", "!"),
        ("\u{a0};", ";"),
        (",\u{a0}", ", "),
        (r" +", " "),
    ])
});

static ENGLISH_QUOTES: LazyLock<Vec<Rule>> = LazyLock::new(|| rules(&[("\"([,.]+)", "${1}\"")]));

static OTHER_QUOTES: LazyLock<Vec<Rule>> =
    // The script sees the end of the line as one more character.
    LazyLock::new(|| rules(&[(",\"", "\","), (r#"(\.+)"(\s*[^<]|$)"#, "\"${1}${2}")]));

static DECIMAL_COMMA: LazyLock<Vec<Rule>> =
    LazyLock::new(|| rules(&[("(\\d)\u{a0}(\\d)", "${1},${2}")]));

static DECIMAL_POINT: LazyLock<Vec<Rule>> =
    LazyLock::new(|| rules(&[("(\\d)\u{a0}(\\d)", "${1}.${2}")]));

/// Normalises punctuation and trims white space at both ends.
pub(super) fn normalize(text: &str, language: &str) -> String {
    let mut text = text.to_owned();
    let mut apply = |rules: &[Rule]| {
        for (pattern, replacement) in rules {
            if let std::borrow::Cow::Owned(new) = pattern.replace_all(&text, *replacement) {
                text = new;
            }
        }
    };
    apply(&COMMON);
    match language {
        "en" => apply(&ENGLISH_QUOTES),
        "cs" | "cz" => {}
        _ => apply(&OTHER_QUOTES),
    }
    match language {
        "de" | "es" | "cz" | "cs" | "fr" => apply(&DECIMAL_COMMA),
        _ => apply(&DECIMAL_POINT),
    }
    text.trim().to_owned()
}
