//! English sentences changed in word order, in names, in a number or in a negation alone.
//!
//! They share nearly all words with the sentence and mean something else, so that an encoder that
//! looks at words without their order cannot tell them apart: hard negatives for training, and
//! candidates for evaluation as in xsim++ (Chen et al., "xSIM++: An Improved Proxy to Bitext Mining
//! Performance for Low-Resource Languages", ACL 2023; there by entities, numbers and antonyms).
//!
//! Everything is done by rules on the words of the text, without a parser: what comes out need not
//! be good English. A rule that would often keep the meaning does not apply: words joined by
//! "and" are not swapped.

use laser_sampling::mix;

use super::hash64;

/// What distinguishes a sentence from the one it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Two content words have changed places.
    Order,
    /// Two names have changed places.
    Names,
    /// A number is replaced by another one.
    Number,
    /// A negation was put in or taken out.
    Negation,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Order, Self::Names, Self::Number, Self::Negation];

    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Names => "names",
            Self::Number => "number",
            Self::Negation => "negation",
        }
    }
}

/// The language that the rules are for.
pub const LANGUAGE: &str = "en";

/// Words without a meaning of their own: they are not swapped.
const FUNCTION_WORDS: &str = " a about above after again against all also am an and another any are \
    aren't around as at be because been before being below between both but by can can't cannot could \
    couldn't did didn't do does doesn't doing don't down during each either else even ever every few for \
    from further had hadn't has hasn't have haven't having he he'd he'll he's her here hers herself him \
    himself his how however i i'd i'll i'm i've if in into is isn't it it's its itself just let let's like \
    many may me might more most much must mustn't my myself neither never no nor not now of off on once \
    one only onto or other others our ours ourselves out over own please per quite rather same shall she \
    she'd she'll she's should shouldn't since so some such than that that's the their theirs them \
    themselves then there there's these they they'd they'll they're they've this those though through \
    thus to too toward towards under until unto up upon us very via was wasn't we we'd we'll we're we've \
    were weren't what when where whether which while who whom whose why will with within without won't \
    would wouldn't yes yet you you'd you'll you're you've your yours yourself ";

/// Words that join what may change places.
const CONJUNCTIONS: &str = " and or nor plus versus vs ";

/// Verbs behind which "not" negates a statement.
const AUXILIARIES: &str =
    " am are can could did do does is may might must shall should was were will would ";

/// Base forms that follow "do not" behind a pronoun.
const VERBS: &str = " agree believe buy come drink eat feel find get give go hate have hear help hope \
    keep know leave like live look love make mean meet mind miss need play prefer read remember run say \
    see seem sell sleep smoke speak study take talk teach think trust understand use wait walk want watch \
    wear wish work write ";

/// Subjects of base forms.
const PRONOUNS: &str = " i you we they ";

/// Numerals that become one another. "one" is a pronoun too often.
const NUMERALS: [&str; 11] = [
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
];

/// Contractions with what remains of them without the negation.
const CONTRACTIONS: [(&str, &str); 17] = [
    ("aren't", "are"),
    ("can't", "can"),
    ("cannot", "can"),
    ("couldn't", "could"),
    ("didn't", "did"),
    ("doesn't", "does"),
    ("don't", "do"),
    ("hadn't", "had"),
    ("hasn't", "has"),
    ("haven't", "have"),
    ("isn't", "is"),
    ("mustn't", "must"),
    ("shouldn't", "should"),
    ("wasn't", "was"),
    ("weren't", "were"),
    ("won't", "will"),
    ("wouldn't", "would"),
];

fn is_in(list: &str, word: &str) -> bool {
    !word.is_empty() && list.contains(&format!(" {word} "))
}

/// A text as gaps and words: gap 0, word 0, gap 1, …, the last gap.
struct Words<'a> {
    gaps: Vec<&'a str>,
    words: Vec<&'a str>,
    /// Lower-cased, with a plain apostrophe.
    folded: Vec<String>,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        let inner = |c: char| matches!(c, '\'' | '’' | '-' | '.' | ',' | ':');
        let mut gaps = Vec::new();
        let mut words = Vec::new();
        let mut begin = 0;
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            if !c.is_alphanumeric() {
                continue;
            }
            let mut end = at + c.len_utf8();
            let mut digits = c.is_numeric();
            while let Some(&(next, c)) = chars.peek() {
                let after = text[next + c.len_utf8()..].chars().next();
                let joins = match c {
                    // Inside of a number alone: "3.5", "12:30".
                    '.' | ',' | ':' => digits && after.is_some_and(char::is_numeric),
                    c => inner(c) && after.is_some_and(char::is_alphanumeric),
                };
                if !(c.is_alphanumeric() || joins) {
                    break;
                }
                digits &= c.is_numeric() || joins;
                end = next + c.len_utf8();
                chars.next();
            }
            gaps.push(&text[begin..at]);
            words.push(&text[at..end]);
            begin = end;
        }
        gaps.push(&text[begin..]);
        let fold = |word: &&str| word.to_lowercase().replace('’', "'");
        let folded = words.iter().map(fold).collect();
        Self {
            gaps,
            words,
            folded,
        }
    }

    fn len(&self) -> usize {
        self.words.len()
    }

    fn is_capitalised(&self, i: usize) -> bool {
        self.words[i].chars().next().is_some_and(char::is_uppercase)
    }

    /// Whether a sentence begins with word `i`, so that its capital means nothing.
    fn begins_sentence(&self, i: usize) -> bool {
        i == 0 || self.gaps[i].contains(['.', '!', '?', ':', '"', '“', '•'])
    }

    /// The text with other words; an empty one goes with the gap before it.
    fn join(&self, word: impl Fn(usize) -> String) -> String {
        let mut out = String::new();
        for i in 0..self.len() {
            let word = word(i);
            if word.is_empty() {
                continue;
            }
            out.push_str(self.gaps[i]);
            out.push_str(&word);
        }
        out.push_str(self.gaps[self.len()]);
        out.trim().to_owned()
    }

    /// The words `a` and `b`, ranges in this order, in each other's place.
    fn swapped(&self, a: std::ops::Range<usize>, b: std::ops::Range<usize>) -> String {
        let text = |r: &std::ops::Range<usize>| -> String {
            let mut text = self.words[r.start].to_owned();
            for i in r.start + 1..r.end {
                text.push_str(self.gaps[i]);
                text.push_str(self.words[i]);
            }
            text
        };
        let (first, second) = (text(&a), text(&b));
        let (first, second) = if self.begins_sentence(a.start) && !self.is_capitalised(b.start) {
            let to = capitalised(&second);
            (
                lowered(&first),
                if self.is_capitalised(a.start) {
                    to
                } else {
                    second
                },
            )
        } else {
            (first, second)
        };
        self.join(|i| {
            if i == a.start {
                second.clone()
            } else if i == b.start {
                first.clone()
            } else if a.contains(&i) || b.contains(&i) {
                String::new()
            } else {
                self.words[i].to_owned()
            }
        })
    }

    /// Whether only conjunctions and commas stand between words `a` and `b`.
    fn coordinated(&self, a: usize, b: usize) -> bool {
        (a + 1..b).all(|i| is_in(CONJUNCTIONS, &self.folded[i]))
    }

    fn order(&self, random: &mut Random) -> Option<String> {
        let content = |i: &usize| {
            let word = &self.folded[*i];
            word.chars().count() > 2
                && word.chars().all(|c| c.is_alphabetic() || c == '-')
                && !is_in(FUNCTION_WORDS, word)
                // Names have a kind of their own.
                && (!self.is_capitalised(*i) || self.begins_sentence(*i))
        };
        let words: Vec<usize> = (0..self.len()).filter(content).collect();
        let mut pairs = Vec::new();
        for (n, &a) in words.iter().enumerate() {
            for &b in &words[n + 1..] {
                // Neighbours make no other sentence but none at all.
                if b > a + 1 && self.folded[a] != self.folded[b] && !self.coordinated(a, b) {
                    pairs.push((a, b));
                }
            }
        }
        let (a, b) = random.pick(&pairs)?;
        Some(self.swapped(a..a + 1, b..b + 1))
    }

    fn names(&self, random: &mut Random) -> Option<String> {
        // Neighbouring capitalised words are one name.
        let mut names: Vec<std::ops::Range<usize>> = Vec::new();
        for i in 0..self.len() {
            let name = self.is_capitalised(i)
                && self.words[i].chars().count() > 1
                && !is_in(FUNCTION_WORDS, &self.folded[i])
                && !self.begins_sentence(i);
            match names.last_mut() {
                Some(last) if name && last.end == i && self.gaps[i] == " " => last.end = i + 1,
                _ if name => names.push(i..i + 1),
                _ => {}
            }
        }
        let mut pairs = Vec::new();
        for (n, a) in names.iter().enumerate() {
            for b in &names[n + 1..] {
                let differ = self.folded[a.clone()] != self.folded[b.clone()];
                if differ && !self.coordinated(a.end - 1, b.start) {
                    pairs.push((a.clone(), b.clone()));
                }
            }
        }
        let (a, b) = random.pick(&pairs)?;
        Some(self.swapped(a, b))
    }

    fn number(&self, random: &mut Random) -> Option<String> {
        let numeral = |i: usize| NUMERALS.iter().position(|n| *n == self.folded[i]);
        let numbers: Vec<usize> = (0..self.len())
            .filter(|&i| {
                let digits = self.words[i].bytes().any(|b| b.is_ascii_digit());
                digits || numeral(i).is_some()
            })
            .collect();
        let at = random.pick(&numbers)?;
        let word = match numeral(at) {
            Some(old) => {
                let new = (old + 1 + random.below(NUMERALS.len() - 1)) % NUMERALS.len();
                if self.is_capitalised(at) {
                    capitalised(NUMERALS[new])
                } else {
                    NUMERALS[new].to_owned()
                }
            }
            None => {
                let word = self.words[at];
                let digits: Vec<usize> = word
                    .bytes()
                    .enumerate()
                    .filter(|(_, b)| b.is_ascii_digit())
                    .map(|(i, _)| i)
                    .collect();
                let place = random.pick(&digits)?;
                let old = word.as_bytes()[place] - b'0';
                // No zero in front.
                let first = digits[0] == place && digits.len() > 1;
                let (lowest, choices) = if first { (1, 9) } else { (0, 10) };
                let shift = 1 + random.below(choices - 1) as u8;
                let new = lowest + (old.max(lowest) - lowest + shift) % choices as u8;
                format!("{}{new}{}", &word[..place], &word[place + 1..])
            }
        };
        Some(self.join(|i| {
            if i == at {
                word.clone()
            } else {
                self.words[i].to_owned()
            }
        }))
    }

    fn negation(&self, random: &mut Random) -> Option<String> {
        let replaced = |at: usize, word: String| {
            self.join(|i| {
                if i == at {
                    word.clone()
                } else {
                    self.words[i].to_owned()
                }
            })
        };
        let alike = |at: usize, word: &str| {
            if self.is_capitalised(at) {
                capitalised(word)
            } else {
                word.to_owned()
            }
        };
        for (i, word) in self.folded.iter().enumerate() {
            if let Some((_, rest)) = CONTRACTIONS.iter().find(|(c, _)| c == word) {
                return Some(replaced(i, alike(i, rest)));
            }
            match word.as_str() {
                // "not only … but" affirms.
                "not" if self.folded.get(i + 1).is_none_or(|w| w != "only") => {
                    return Some(replaced(i, String::new()));
                }
                "never" => return Some(replaced(i, alike(i, "always"))),
                _ => {}
            }
        }
        // A sentence that begins with an auxiliary is a question.
        let negatable =
            |i: usize| i > 0 && is_in(AUXILIARIES, &self.folded[i]) && !self.begins_sentence(i);
        let places: Vec<usize> = (0..self.len()).filter(|&i| negatable(i)).collect();
        if let Some(at) = random.pick(&places) {
            let word = self.words[at];
            let negated = match &*self.folded[at] {
                "can" => format!("{word}not"),
                _ => format!("{word} not"),
            };
            return Some(replaced(at, negated));
        }
        let places: Vec<usize> = (1..self.len())
            .filter(|&i| {
                is_in(PRONOUNS, &self.folded[i - 1])
                    && self.begins_sentence(i - 1)
                    && is_in(VERBS, &self.folded[i])
            })
            .collect();
        let at = random.pick(&places)?;
        Some(replaced(at, format!("do not {}", self.words[at])))
    }
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

fn lowered(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(chars).collect()
    })
}

/// Draws that are a function of the text.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 % n.max(1) as u64) as usize
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        let at = self.below(from.len());
        Some(from[at].clone())
    }
}

/// Sentences that differ from the English `text` in one thing and mean something else, at most one
/// of each kind. The same text and seed give the same sentences.
#[must_use]
pub fn perturb(text: &str, seed: u64) -> Vec<(Kind, String)> {
    let words = Words::new(text);
    let hash = hash64(text.as_bytes()) ^ mix(seed);
    let mut found: Vec<(Kind, String)> = Vec::new();
    for kind in Kind::ALL {
        let random = &mut Random(hash ^ mix(1 + kind as u64));
        let other = match kind {
            Kind::Order => words.order(random),
            Kind::Names => words.names(random),
            Kind::Number => words.number(random),
            Kind::Negation => words.negation(random),
        };
        if let Some(other) = other
            && !super::same_text(&other, text)
        {
            found.push((kind, other));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(kind: Kind, text: &str) -> Option<String> {
        let found = perturb(text, 0).into_iter();
        found.filter(|(k, _)| *k == kind).map(|(_, t)| t).next()
    }

    #[test]
    fn content_words_change_places() {
        let swapped = of(Kind::Order, "Dogs rarely bite men.");
        let possible = [
            "Bite rarely dogs men.",
            "Men rarely bite dogs.",
            "Dogs men bite rarely.",
        ];
        assert!(
            possible.contains(&swapped.as_deref().unwrap()),
            "{swapped:?}"
        );
        assert_eq!(of(Kind::Order, "The dog bites the man.").unwrap().len(), 22);
        assert_eq!(
            of(Kind::Order, "the dog of the man").as_deref(),
            Some("the man of the dog")
        );
        // What is joined may change places, function words and neighbours do not.
        for same in [
            "cats and dogs",
            "cats, dogs",
            "he is in the car",
            "red car",
            "I am",
            "",
        ] {
            assert_eq!(of(Kind::Order, same), None, "{same}");
        }
    }

    #[test]
    fn names_change_places_as_wholes() {
        assert_eq!(
            of(Kind::Names, "A train from New York to Boston.").as_deref(),
            Some("A train from Boston to New York.")
        );
        for none in [
            "Mary saw him.",
            "We met Ann and Bob.",
            "a train to Boston",
            "I think I know",
        ] {
            assert_eq!(of(Kind::Names, none), None, "{none}");
        }
    }

    #[test]
    fn numbers_become_others() {
        for text in [
            "It costs 25 euros.",
            "at 12:30",
            "in 1999",
            "7",
            "3.50",
            "a 4x4",
        ] {
            let other = of(Kind::Number, text).unwrap();
            assert_eq!(other.len(), text.len(), "{other}");
            assert_ne!(other, text);
            let pairs = other.bytes().zip(text.bytes());
            let differ: Vec<_> = pairs.filter(|(a, b)| a != b).collect();
            assert!(differ.len() == 1 && differ[0].0.is_ascii_digit(), "{other}");
        }
        let other = of(Kind::Number, "Three men came.").unwrap();
        let numeral = other.split(' ').next().unwrap().to_lowercase();
        assert!(
            NUMERALS.contains(&&*numeral) && numeral != "three",
            "{other}"
        );
        assert_eq!(of(Kind::Number, "one must go"), None);
    }

    #[test]
    fn negations_come_and_go() {
        for (text, wanted) in [
            ("She is here.", "She is not here."),
            ("She is not here.", "She is here."),
            ("You can go now.", "You cannot go now."),
            ("You can’t go now.", "You can go now."),
            ("Don't smoke!", "Do smoke!"),
            ("I never drink.", "I always drink."),
            ("We like tea.", "We do not like tea."),
            (
                "“I want to go,” she said.",
                "“I do not want to go,” she said.",
            ),
        ] {
            assert_eq!(of(Kind::Negation, text).as_deref(), Some(wanted), "{text}");
        }
        for none in [
            "Is it far?",
            "the red car",
            "Not only cats",
            "He went home.",
        ] {
            assert_eq!(of(Kind::Negation, none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_other_texts_of_different_kinds(text in "\\PC{0,60}", seed: u64) {
            let found = perturb(&text, seed);
            prop_assert!(found.windows(2).all(|w| w[0].0 < w[1].0));
            prop_assert!(found.iter().all(|(_, t)| *t != text));
            prop_assert_eq!(found, perturb(&text, seed));
        }

        #[test]
        fn swaps_keep_all_words(words in proptest::collection::vec("(the|of|is|[a-z]{3,6})", 0..9)) {
            let text = words.join(" ");
            if let Some(other) = of(Kind::Order, &text) {
                let sorted = |t: &str| {
                    let mut words: Vec<String> = t.split(' ').map(str::to_owned).collect();
                    words.sort();
                    words
                };
                prop_assert_eq!(sorted(&other), sorted(&text));
            }
        }
    }
}
