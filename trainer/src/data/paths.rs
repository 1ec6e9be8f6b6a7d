//! Draws batches along training paths (Schwenk and Douze, RepL4NLP 2017, section 3): from the sentences that a
//! key has in one or several source languages to those in its target languages.
//!
//! A *way* is a choice of languages that a path allows: 2:1 from English, French and Spanish into Russian has
//! three, one for each pair of sources. A batch is of one way, so that it passes the same encoders and decoders.
//! A way is drawn with probability proportional to the path's coefficient times the number of keys that have all
//! its languages, to the power of `language_exponent`.
//!
//! As in [`super::sampler`], everything is a function of the seed and of how many keys each way has given.

use std::collections::BTreeMap;

use laser_sampling::mix;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::packed::{LanguageId, PackedCorpus, SentenceId, SourceId};
use super::permutation::Permutation;
use super::sampler::{SamplerOptions, SamplerState, pick};
use super::{DataError, Result};

/// A training path: M sources, N targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingPath {
    /// Languages of a key whose embeddings are averaged.
    pub sources: usize,
    /// Languages that the sources are taken from; all if empty.
    pub from: Vec<String>,
    /// Languages that are decoded, of those that a key has; without the sources. All if empty.
    pub to: Vec<String>,
    /// Resampling coefficient: how often the path is taken, by its size.
    pub coefficient: f64,
}

impl Default for TrainingPath {
    fn default() -> Self {
        Self {
            sources: 1,
            from: Vec::new(),
            to: Vec::new(),
            coefficient: 1.0,
        }
    }
}

/// Sentences of some keys in one language, as its position in the list of languages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Position in the list of languages.
    pub language: usize,
    /// A sentence of each key.
    pub sentences: Vec<SentenceId>,
}

/// Keys in all languages of one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathBatch {
    /// The languages that are encoded.
    pub sources: Vec<Side>,
    /// The languages that are decoded; none of them is a source.
    pub targets: Vec<Side>,
}

/// Groups of one source that have the same languages.
#[derive(Debug)]
struct Stratum {
    source: SourceId,
    /// Bit l: they have language l.
    languages: u64,
    groups: Vec<u32>,
}

/// A choice of languages.
#[derive(Debug)]
struct Way {
    sources: Vec<usize>,
    targets: Vec<usize>,
    /// Strata that have all of these languages, with their cumulative weights.
    strata: Vec<usize>,
    cumulative: Vec<f64>,
    /// Place of the first of them in [`SamplerState::drawn`].
    drawn: usize,
}

/// Draws batches along paths.
#[derive(Debug)]
pub struct PathSampler {
    options: SamplerOptions,
    languages: Vec<LanguageId>,
    strata: Vec<Stratum>,
    ways: Vec<Way>,
    cumulative: Vec<f64>,
    state: SamplerState,
}

/// Most languages, which are bits of a number.
pub const MOST_LANGUAGES: usize = 64;
/// Most ways: twelve languages have 2,640 of 3:1.
const MOST_WAYS: usize = 1 << 16;

impl PathSampler {
    /// Collects the keys of `corpus` that have at least two of the `languages`.
    ///
    /// # Errors
    /// [`DataError::Config`] for options out of range, languages that the corpus does not have, and a path that
    /// no key of the corpus has the languages for.
    pub fn new(
        corpus: &PackedCorpus,
        options: SamplerOptions,
        languages: &[String],
        paths: &[TrainingPath],
    ) -> Result<Self> {
        check(&options, languages, paths)?;
        let ids = languages
            .iter()
            .map(|l| {
                let unknown = || DataError::Config(format!("the corpus has no language \"{l}\""));
                corpus.language_id(l).ok_or_else(unknown)
            })
            .collect::<Result<Vec<_>>>()?;
        let sources = &corpus.header().sources;
        let weights: Vec<f64> = sources
            .iter()
            .map(|s| options.source_weights.get(s).copied().unwrap_or(1.0))
            .collect();
        let strata = strata(corpus, &ids, &weights);
        let mut ways = Vec::new();
        let (mut cumulative, mut total, mut drawn) = (Vec::new(), 0.0, 0);
        for (number, path) in paths.iter().enumerate() {
            let before = ways.len();
            for ((sources, targets), members) in ways_of(path, languages, &strata)? {
                let mut way = Way {
                    sources,
                    targets,
                    strata: Vec::new(),
                    cumulative: Vec::new(),
                    drawn,
                };
                let (mut within, mut keys) = (0.0, 0.0);
                for stratum in members {
                    let Stratum { source, groups, .. } = &strata[stratum];
                    let (weight, n) = (weights[usize::from(*source)], groups.len() as f64);
                    within += weight * n.powf(options.source_exponent);
                    keys += weight * n;
                    way.strata.push(stratum);
                    way.cumulative.push(within);
                }
                drawn += way.strata.len();
                total += path.coefficient * keys.powf(options.language_exponent);
                cumulative.push(total);
                ways.push(way);
            }
            if ways.len() == before {
                return Err(DataError::Config(format!(
                    "no key of the corpus has {} source languages and a target language of path {}",
                    path.sources,
                    number + 1
                )));
            }
        }
        Ok(Self {
            options,
            languages: ids,
            strata,
            ways,
            cumulative,
            state: SamplerState {
                batches: 0,
                drawn: vec![0; drawn],
            },
        })
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> SamplerState {
        self.state.clone()
    }

    /// Goes on from `state`, which must come from a sampler of the same corpus, options and paths.
    ///
    /// # Errors
    /// [`DataError::Config`] if the number of ways differs.
    pub fn restore(&mut self, state: SamplerState) -> Result<()> {
        if state.drawn.len() != self.state.drawn.len() {
            return Err(DataError::Config(format!(
                "the sampler state has {} strata, the paths {}: it belongs to another corpus or other paths",
                state.drawn.len(),
                self.state.drawn.len()
            )));
        }
        self.state = state;
        Ok(())
    }

    /// Keys that take part.
    #[must_use]
    pub fn keys(&self) -> u64 {
        let mut used = vec![false; self.strata.len()];
        let ways = self.ways.iter().flat_map(|w| &w.strata);
        ways.for_each(|s| used[*s] = true);
        let sizes = self.strata.iter().zip(used).filter(|(_, used)| *used);
        sizes.map(|(s, _)| s.groups.len() as u64).sum()
    }

    /// Whether each language is a source of any way, and whether it is a target.
    #[must_use]
    pub fn roles(&self) -> Vec<(bool, bool)> {
        let mut roles = vec![(false, false); self.languages.len()];
        for way in &self.ways {
            way.sources.iter().for_each(|l| roles[*l].0 = true);
            way.targets.iter().for_each(|l| roles[*l].1 = true);
        }
        roles
    }

    /// Draws the next batch; never empty.
    pub fn next_batch(&mut self, corpus: &PackedCorpus) -> PathBatch {
        let mut rng = ChaCha8Rng::seed_from_u64(mix(self.options.seed) ^ self.state.batches);
        self.state.batches += 1;
        let way = &self.ways[pick(&self.cumulative, &mut rng)];
        let side = |language: &usize| Side {
            language: *language,
            sentences: Vec::with_capacity(self.options.batch_pairs),
        };
        let mut batch = PathBatch {
            sources: way.sources.iter().map(side).collect(),
            targets: way.targets.iter().map(side).collect(),
        };
        let mut tokens = 0;
        for _ in 0..self.options.batch_pairs {
            let at = pick(&way.cumulative, &mut rng);
            let groups = &self.strata[way.strata[at]].groups;
            let (n, place) = (groups.len() as u64, way.drawn + at);
            let drawn = self.state.drawn[place];
            self.state.drawn[place] += 1;
            let key = mix(self.options.seed ^ mix((place as u64) << 32 ^ (drawn / n)));
            let group = groups[Permutation::new(n, key).get(drawn % n) as usize];
            for side in batch.sources.iter_mut().chain(&mut batch.targets) {
                let language = self.languages[side.language];
                let sentence = choose(corpus, group, language, &mut rng);
                tokens += corpus.token_count(sentence).min(self.options.max_tokens);
                side.sentences.push(sentence);
            }
            if self.options.batch_tokens > 0 && tokens >= self.options.batch_tokens {
                break;
            }
        }
        batch
    }
}

/// A sentence of a group in a language, which the group has.
fn choose(
    corpus: &PackedCorpus,
    group: u32,
    language: LanguageId,
    rng: &mut ChaCha8Rng,
) -> SentenceId {
    let fits = |s: &SentenceId| corpus.language(*s) == language && corpus.token_count(*s) > 0;
    let count = corpus.group(group).filter(fits).count();
    let at = rng.random_range(0..count);
    let chosen = corpus.group(group).filter(fits).nth(at);
    chosen.expect("strata have the languages of their groups")
}

/// Groups by source and by which of the languages they have.
fn strata(corpus: &PackedCorpus, languages: &[LanguageId], weights: &[f64]) -> Vec<Stratum> {
    let mut bits = vec![0u64; corpus.header().languages.len()];
    for (bit, language) in languages.iter().enumerate() {
        bits[usize::from(*language)] = 1 << bit;
    }
    let mut found: BTreeMap<(SourceId, u64), Vec<u32>> = BTreeMap::new();
    for group in 0..corpus.groups() {
        let source = corpus.group_sources()[group as usize];
        if weights[usize::from(source)] == 0.0 {
            continue;
        }
        let present = corpus
            .group(group)
            .filter(|s| corpus.token_count(*s) > 0)
            .fold(0, |all, s| all | bits[usize::from(corpus.language(s))]);
        if present.count_ones() > 1 {
            found.entry((source, present)).or_default().push(group);
        }
    }
    let strata = found.into_iter();
    strata
        .map(|((source, languages), groups)| Stratum {
            source,
            languages,
            groups,
        })
        .collect()
}

/// Positions of the bits of a number.
fn bits(of: u64) -> Vec<usize> {
    (0..MOST_LANGUAGES).filter(|b| of >> b & 1 == 1).collect()
}

/// Sources and targets of the ways of a path.
type Languages = (Vec<usize>, Vec<usize>);

/// The ways of a path, each with the strata that have its languages.
fn ways_of(
    path: &TrainingPath,
    languages: &[String],
    strata: &[Stratum],
) -> Result<BTreeMap<Languages, Vec<usize>>> {
    let listed = |names: &[String]| -> u64 {
        let all = languages.iter().enumerate();
        all.filter(|(_, l)| names.is_empty() || names.contains(l))
            .fold(0, |bits, (at, _)| bits | 1 << at)
    };
    let (from, to) = (listed(&path.from), listed(&path.to));
    let mut ways: BTreeMap<Languages, Vec<usize>> = BTreeMap::new();
    for (number, stratum) in strata.iter().enumerate() {
        let (mut chosen, mut seen) = (Vec::new(), 0);
        choices(
            &bits(stratum.languages & from),
            path.sources,
            &mut |sources| {
                seen += 1;
                let bits_of = sources.iter().fold(0u64, |bits, l| bits | 1 << l);
                let targets = bits(stratum.languages & to & !bits_of);
                if !targets.is_empty() {
                    chosen.push((sources.to_vec(), targets));
                }
                seen <= MOST_WAYS
            },
        );
        for way in chosen {
            ways.entry(way).or_default().push(number);
        }
        if seen > MOST_WAYS || ways.len() > MOST_WAYS {
            let message = format!("a path with {} sources has too many ways", path.sources);
            return Err(DataError::Config(message));
        }
    }
    Ok(ways)
}

/// Calls `found` with every choice of `count` of `all`, in order, until it says no.
fn choices(all: &[usize], count: usize, found: &mut dyn FnMut(&[usize]) -> bool) {
    fn further(
        all: &[usize],
        count: usize,
        chosen: &mut Vec<usize>,
        found: &mut dyn FnMut(&[usize]) -> bool,
    ) -> bool {
        if count == 0 {
            return found(chosen);
        }
        for at in 0..(all.len() + 1).saturating_sub(count) {
            chosen.push(all[at]);
            let go_on = further(&all[at + 1..], count - 1, chosen, found);
            chosen.pop();
            if !go_on {
                return false;
            }
        }
        true
    }
    further(all, count, &mut Vec::new(), found);
}

fn check(options: &SamplerOptions, languages: &[String], paths: &[TrainingPath]) -> Result<()> {
    let fail = |message: String| Err(DataError::Config(message));
    if options.batch_pairs == 0 || options.max_tokens == 0 {
        return fail("batch_pairs and max_tokens must be at least 1".into());
    }
    let numbers = options.source_weights.values();
    let exponents = [&options.language_exponent, &options.source_exponent];
    let numbers = numbers.chain(exponents);
    if numbers.into_iter().any(|x| !(x.is_finite() && *x >= 0.0)) {
        return fail("weights and exponents must be numbers of at least 0".into());
    }
    if !(2..=MOST_LANGUAGES).contains(&languages.len()) {
        return fail(format!("name 2 to {MOST_LANGUAGES} languages"));
    }
    for (i, language) in languages.iter().enumerate() {
        if languages[..i].contains(language) {
            return fail(format!("language \"{language}\" is named twice"));
        }
    }
    if paths.is_empty() {
        return fail("name at least one training path".into());
    }
    for path in paths {
        if !(path.coefficient > 0.0 && path.coefficient.is_finite()) {
            return fail(format!(
                "a coefficient must be a number above 0, not {}",
                path.coefficient
            ));
        }
        if path.sources == 0 {
            return fail("a path needs at least 1 source".into());
        }
        let named = path.from.iter().chain(&path.to);
        if let Some(other) = named.into_iter().find(|l| !languages.contains(l)) {
            return fail(format!(
                "a path names \"{other}\", which is not among the languages"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::super::pack_writer::{PackWriter, PackedSentence};
    use super::*;

    /// 30 keys in en, fr, es and ru, 100 in en and fr alone (of another source), 10 in de alone.
    fn corpus() -> PackedCorpus {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.pack");
        let mut writer = PackWriter::create(&path, "t".into(), 1000, 8).unwrap();
        for (source, keys, languages) in [
            ("un", 30, &["en", "fr", "es", "ru"][..]),
            ("bitext", 100, &["en", "fr"][..]),
            ("alone", 10, &["de"][..]),
        ] {
            for key in 0..keys {
                let group: Vec<_> = languages
                    .iter()
                    .map(|language| PackedSentence {
                        language,
                        text: language,
                        ids: &[1, 2, 3],
                        perturbed: &[],
                    })
                    .collect();
                writer.push(source, &key.to_string(), &group).unwrap();
            }
        }
        writer.finish(None).unwrap();
        PackedCorpus::open(&path).unwrap()
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|l| (*l).to_owned()).collect()
    }

    fn options() -> SamplerOptions {
        SamplerOptions {
            batch_pairs: 8,
            language_exponent: 1.0,
            ..SamplerOptions::default()
        }
    }

    fn path(sources: usize, from: &[&str], to: &[&str]) -> TrainingPath {
        TrainingPath {
            sources,
            from: names(from),
            to: names(to),
            coefficient: 1.0,
        }
    }

    const ALL: [&str; 4] = ["en", "fr", "es", "ru"];

    fn sampler(paths: &[TrainingPath]) -> PathSampler {
        PathSampler::new(&corpus(), options(), &names(&ALL), paths).unwrap()
    }

    /// How often each way was taken in `batches` batches, as `en+fr>ru`.
    fn taken(sampler: &mut PathSampler, batches: usize) -> HashMap<String, usize> {
        let corpus = corpus();
        let mut taken = HashMap::new();
        for _ in 0..batches {
            let batch = sampler.next_batch(&corpus);
            let sides = batch.sources.iter().chain(&batch.targets);
            let mut groups = BTreeSet::new();
            for side in sides {
                assert_eq!(side.sentences.len(), 8);
                let language = corpus.language_id(ALL[side.language]).unwrap();
                let own: Vec<u32> = side.sentences.iter().map(|s| corpus.group_of(*s)).collect();
                assert!(
                    side.sentences
                        .iter()
                        .all(|s| corpus.language(*s) == language)
                );
                groups.insert(own);
            }
            assert_eq!(groups.len(), 1, "all sides are of the same keys");
            let name = |sides: &[Side]| -> String {
                let names: Vec<_> = sides.iter().map(|s| ALL[s.language]).collect();
                names.join("+")
            };
            let way = format!("{}>{}", name(&batch.sources), name(&batch.targets));
            *taken.entry(way).or_default() += 1;
        }
        taken
    }

    fn ways(taken: &HashMap<String, usize>) -> Vec<&str> {
        let mut ways: Vec<&str> = taken.keys().map(String::as_str).collect();
        ways.sort_unstable();
        ways
    }

    #[test]
    fn paths_have_the_ways_of_the_paper() {
        let three = &ALL[..3];
        let one = taken(&mut sampler(&[path(1, three, &["ru"])]), 100);
        assert_eq!(ways(&one), ["en>ru", "es>ru", "fr>ru"]);
        let two = taken(&mut sampler(&[path(2, three, &["ru"])]), 100);
        assert_eq!(ways(&two), ["en+es>ru", "en+fr>ru", "fr+es>ru"]);
        let three = taken(&mut sampler(&[path(3, three, &["ru"])]), 20);
        assert_eq!(ways(&three), ["en+fr+es>ru"]);
        // 1:N is all but the source; keys of two languages have one other.
        let all = taken(&mut sampler(&[path(1, &[], &[])]), 400);
        let wanted = [
            "en>fr",
            "en>fr+es+ru",
            "es>en+fr+ru",
            "fr>en",
            "fr>en+es+ru",
            "ru>en+fr+es",
        ];
        assert_eq!(ways(&all), wanted);
        // 100 keys of one of them, 30 of the other.
        let share = all["en>fr"] as f64 / all["en>fr+es+ru"] as f64;
        assert!((2.2..4.8).contains(&share), "{share}");
        // A fixed target that a way has as a source is none of its targets.
        let fixed = taken(&mut sampler(&[path(1, &[], &["en", "ru"])]), 200);
        assert_eq!(
            ways(&fixed),
            ["en>ru", "es>en+ru", "fr>en", "fr>en+ru", "ru>en"]
        );
    }

    #[test]
    fn coefficients_resample_paths_and_each_key_comes_once_an_epoch() {
        let mixture = |coefficient| {
            let second = TrainingPath {
                coefficient,
                ..path(3, &ALL[..3], &["ru"])
            };
            let mut sampler = sampler(&[path(1, &["es"], &["ru"]), second]);
            let taken = taken(&mut sampler, 800);
            taken["en+fr+es>ru"] as f64 / 800.0
        };
        let (even, more) = (mixture(1.0), mixture(3.0));
        assert!(
            (even - 0.5).abs() < 0.06 && (more - 0.75).abs() < 0.06,
            "{even} {more}"
        );

        let corpus = corpus();
        let options = SamplerOptions {
            batch_pairs: 10,
            ..options()
        };
        let paths = [path(1, &["es"], &["ru"])];
        let mut sampler = PathSampler::new(&corpus, options, &names(&ALL), &paths).unwrap();
        assert_eq!(sampler.keys(), 30);
        assert_eq!(
            sampler.roles(),
            [(false, false), (false, false), (true, false), (false, true)]
        );
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            let batch = sampler.next_batch(&corpus);
            seen.extend(batch.sources[0].sentences.iter().copied());
        }
        assert_eq!(seen.len(), 30);
    }

    #[test]
    fn a_run_resumes_exactly() {
        let corpus = corpus();
        let paths = [path(1, &[], &[]), path(2, &[], &["ru"])];
        let mut whole = sampler(&paths);
        let all: Vec<_> = (0..40).map(|_| whole.next_batch(&corpus)).collect();
        let mut first = sampler(&paths);
        all[..15]
            .iter()
            .for_each(|b| assert_eq!(first.next_batch(&corpus), *b));
        let mut second = sampler(&paths);
        second.restore(first.state()).unwrap();
        all[15..]
            .iter()
            .for_each(|b| assert_eq!(second.next_batch(&corpus), *b));
        assert!(sampler(&paths[..1]).restore(first.state()).is_err());
    }

    #[test]
    fn wrong_options_are_refused() {
        let corpus = corpus();
        let error = |languages: &[&str], paths: &[TrainingPath]| {
            let made = PathSampler::new(&corpus, options(), &names(languages), paths);
            made.unwrap_err().to_string()
        };
        let any = [path(1, &[], &[])];
        assert!(error(&["en", "xx"], &any).contains("\"xx\""));
        assert!(error(&["en"], &any).contains("2 to 64"));
        assert!(error(&["en", "fr", "en"], &any).contains("twice"));
        assert!(error(&ALL, &[]).contains("at least one"));
        assert!(error(&ALL, &[path(0, &[], &[])]).contains("at least 1"));
        assert!(error(&ALL, &[path(1, &["de"], &[])]).contains("\"de\""));
        assert!(error(&ALL, &[path(4, &[], &[])]).contains("4 source languages"));
        assert!(error(&["en", "de"], &any).contains("no key"));
        let negative = TrainingPath {
            coefficient: -1.0,
            ..path(1, &[], &[])
        };
        assert!(error(&ALL, &[negative]).contains("coefficient"));
    }
}
