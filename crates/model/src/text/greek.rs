//! Romanisation of Greek as LASER1's pipeline does it (the Python package `transliterate`, language
//! el, reversed): accented letters first, then digraphs in order, then single letters.

/// Letters that are replaced before all others.
const FIRST: (&str, &str) = ("ςάέήίύόώϊϋΐΰωΩηΗϵϱ", "saeiiyooiyiyooiier");

/// Replaced one after the other over the whole text.
const DIGRAPHS: [(&str, &str); 22] = [
    ("θ", "th"),
    ("Θ", "Th"),
    ("χ", "ch"),
    ("Χ", "Ch"),
    ("ψ", "ps"),
    ("Ψ", "Ps"),
    ("Γκ", "Gk"),
    ("γκ", "gk"),
    ("γξ", "gch"),
    ("Μπ", "B"),
    ("Ευ", "Eu"),
    ("ευ", "eu"),
    ("μπ", "b"),
    ("Αυ", "Au"),
    ("αυ", "au"),
    ("Ου", "Oy"),
    ("ου", "oy"),
    ("Υ", "U"),
    ("υ", "u"),
    ("Οι", "Oi"),
    ("οι", "oi"),
    ("γγ", "ng"),
];

/// Single letters.
const LETTERS: (&str, &str) = (
    "αβγδεζικλμνξοπρστφΑΒΓΔΕΖΙΚΛΜΝΞΟΠΡΣΤΦ",
    "avgdeziklmnxoprstfAVGDEZIKLMNXOPRSTF",
);

fn translate(text: &str, (from, to): (&str, &str)) -> String {
    text.chars()
        .map(|c| {
            from.chars()
                .zip(to.chars())
                .find(|(f, _)| *f == c)
                .map_or(c, |(_, t)| t)
        })
        .collect()
}

/// Writes Greek letters in Latin ones; everything else stays.
pub(super) fn romanize(text: &str) -> String {
    if !text.chars().any(|c| ('\u{370}'..='\u{3ff}').contains(&c)) {
        return text.to_owned();
    }
    let mut text = translate(text, FIRST);
    for (from, to) in DIGRAPHS {
        text = text.replace(from, to);
    }
    translate(&text, LETTERS)
}
