//! Draws batches of sentence pairs from a packed corpus.
//!
//! An *anchor* is a sentence that has a partner in its group: a sentence of the target language
//! (English, say), or any other language. Anchors are kept by language and source. A language is
//! drawn with probability proportional to its weighted number of anchors to the power of
//! `language_exponent` (1 = as is, 0 = all languages alike), then a source within it, then the
//! next anchor of that stratum in a random order without repetition.
//!
//! Everything is a function of the seed and of how many pairs each stratum has given, so that a
//! run resumes exactly from a [`SamplerState`].

use std::collections::{BTreeMap, HashSet};

use laser_sampling::mix;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::packed::{LanguageId, PackedCorpus, Ragged, SentenceId, SourceId};
use super::permutation::Permutation;
use super::{DataError, Result};

/// How batches are drawn. Deserialised from the `[sampling]` table of a training configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplerOptions {
    /// Seed of all draws.
    pub seed: u64,
    /// Pairs in a batch.
    pub batch_pairs: usize,
    /// A batch ends early when both sides together reach this many tokens; 0 = no limit.
    pub batch_tokens: usize,
    /// Sentences are cut at this many tokens.
    pub max_tokens: usize,
    /// Exponent of language sizes: 1 = in proportion, 0 = uniform.
    pub language_exponent: f64,
    /// Exponent of source sizes within a language.
    pub source_exponent: f64,
    /// Weight of a source, 1 if not named; 0 leaves it out.
    pub source_weights: BTreeMap<String, f64>,
    /// Weight of a language after the exponent, 1 if not named; 0 leaves it out as anchor.
    pub language_weights: BTreeMap<String, f64>,
    /// Target languages; a batch has one of them, in proportion to its number of anchors.
    pub targets: Vec<String>,
    /// Share of batches whose partners are drawn from any other language of the group, so that
    /// keys without a target language take part as well.
    pub any_pair_share: f64,
    /// Share of batches in one language pair.
    pub homogeneous_share: f64,
    /// Share of batches from one source, so that negatives are of the same kind of text. Applies
    /// on its own or together with one language pair.
    pub one_source_share: f64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            batch_pairs: 1024,
            batch_tokens: 0,
            max_tokens: 128,
            language_exponent: 0.5,
            source_exponent: 1.0,
            source_weights: BTreeMap::new(),
            language_weights: BTreeMap::new(),
            targets: vec!["en".into()],
            any_pair_share: 0.0,
            homogeneous_share: 0.0,
            one_source_share: 0.0,
        }
    }
}

/// Two sentences that are translations of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The anchor.
    pub source: SentenceId,
    /// Its translation; of the target language unless the batch draws any partner.
    pub target: SentenceId,
}

/// Pairs that are trained on together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The pairs. Targets are distinct texts wherever the strata allow it; compare
    /// [`PackedCorpus::text_hash`] to find the rest.
    pub pairs: Vec<Pair>,
    /// Language of all targets; `None` where partners are of any language.
    pub target_language: Option<LanguageId>,
    /// Language of all sources, in a homogeneous batch.
    pub source_language: Option<LanguageId>,
    /// Limit of tokens per sentence, from the options.
    pub max_tokens: usize,
}

impl Batch {
    /// Token ids of the source sides.
    #[must_use]
    pub fn sources(&self, corpus: &PackedCorpus) -> Ragged {
        corpus.gather(self.pairs.iter().map(|p| p.source), self.max_tokens)
    }

    /// Token ids of the target sides.
    #[must_use]
    pub fn targets(&self, corpus: &PackedCorpus) -> Ragged {
        corpus.gather(self.pairs.iter().map(|p| p.target), self.max_tokens)
    }

    /// Duplicate hashes of the source sides.
    #[must_use]
    pub fn source_hashes(&self, corpus: &PackedCorpus) -> Vec<u32> {
        self.pairs
            .iter()
            .map(|p| corpus.text_hash(p.source))
            .collect()
    }

    /// Duplicate hashes of the target sides.
    #[must_use]
    pub fn target_hashes(&self, corpus: &PackedCorpus) -> Vec<u32> {
        self.pairs
            .iter()
            .map(|p| corpus.text_hash(p.target))
            .collect()
    }
}

/// Where a sampler stands. Written into checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    /// Batches drawn so far.
    pub batches: u64,
    /// Anchors given by each stratum so far.
    pub drawn: Vec<u64>,
}

/// Anchors of one language and source.
#[derive(Debug)]
struct Stratum {
    source: SourceId,
    anchors: Vec<SentenceId>,
}

/// Strata of one language, with the cumulative weights of its sources.
#[derive(Debug)]
struct Language {
    id: LanguageId,
    /// Indices into `Sampler::strata`.
    strata: Vec<usize>,
    cumulative: Vec<f64>,
    anchors: usize,
}

/// All anchors for one target language, or for any partner.
#[derive(Debug)]
struct Pool {
    target: Option<LanguageId>,
    languages: Vec<Language>,
    cumulative: Vec<f64>,
    /// Cumulative weights of sources over all languages, and those sources.
    sources: Vec<SourceId>,
    source_cumulative: Vec<f64>,
    size: f64,
}

/// Draws batches. The corpus is passed to [`Sampler::next_batch`] rather than kept.
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    strata: Vec<Stratum>,
    pools: Vec<Pool>,
    /// Index of the pool of any partner, if there is one.
    any: Option<usize>,
    state: SamplerState,
}

/// Draws per accepted pair before duplicates are let through.
const TRIES: usize = 8;

impl Sampler {
    /// Builds the strata of `corpus`.
    ///
    /// # Errors
    /// [`DataError::Config`] for options out of range, names that the corpus does not have, or if
    /// nothing is left to draw from.
    pub fn new(corpus: &PackedCorpus, options: SamplerOptions) -> Result<Self> {
        check(corpus, &options)?;
        let header = corpus.header();
        let source_weight: Vec<f64> = header
            .sources
            .iter()
            .map(|s| options.source_weights.get(s).copied().unwrap_or(1.0))
            .collect();
        let mut strata = Vec::new();
        let mut pools = Vec::new();
        let mut any = None;
        let share = options.any_pair_share;
        let mut wanted: Vec<Option<LanguageId>> = Vec::new();
        if share < 1.0 {
            wanted.extend(options.targets.iter().map(|t| corpus.language_id(t)));
        }
        if share > 0.0 {
            any = Some(wanted.len());
            wanted.push(None);
        }
        for target in wanted {
            let pool = build_pool(corpus, &options, &source_weight, target, &mut strata);
            if pool.languages.is_empty() {
                let of = target.map_or("any language", |t| &header.languages[usize::from(t)]);
                return Err(DataError::Config(format!(
                    "no sentence is paired with {of}"
                )));
            }
            pools.push(pool);
        }
        let drawn = vec![0; strata.len()];
        Ok(Self {
            options,
            strata,
            pools,
            any,
            state: SamplerState { batches: 0, drawn },
        })
    }

    /// The options it was made with.
    #[must_use]
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// What [`Self::restore`] needs to go on from here.
    #[must_use]
    pub fn state(&self) -> SamplerState {
        self.state.clone()
    }

    /// Goes on from `state`, which must come from a sampler of the same corpus and options.
    ///
    /// # Errors
    /// [`DataError::Config`] if the number of strata differs.
    pub fn restore(&mut self, state: SamplerState) -> Result<()> {
        if state.drawn.len() != self.strata.len() {
            return Err(DataError::Config(format!(
                "the sampler state has {} strata, the corpus {}: it belongs to another corpus or \
                 other sampling options",
                state.drawn.len(),
                self.strata.len()
            )));
        }
        self.state = state;
        Ok(())
    }

    /// Pairs with any target: anchors that one pass over the data would see.
    #[must_use]
    pub fn anchors(&self) -> u64 {
        self.strata.iter().map(|s| s.anchors.len() as u64).sum()
    }

    /// Probability of each source language in a mixed batch of the first pool, largest first.
    #[must_use]
    pub fn language_shares(&self) -> Vec<(LanguageId, f64)> {
        let pool = &self.pools[0];
        let total = pool.cumulative.last().copied().unwrap_or(1.0);
        let mut before = 0.0;
        let mut shares: Vec<_> = pool
            .languages
            .iter()
            .zip(&pool.cumulative)
            .map(|(l, c)| {
                let share = (c - before) / total;
                before = *c;
                (l.id, share)
            })
            .collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares
    }

    /// Draws the next batch; never empty.
    pub fn next_batch(&mut self, corpus: &PackedCorpus) -> Batch {
        let mut rng = ChaCha8Rng::seed_from_u64(mix(self.options.seed) ^ self.state.batches);
        self.state.batches += 1;
        let pool_index = self.choose_pool(&mut rng);
        let homogeneous = rng.random_bool(self.options.homogeneous_share);
        let one_source = rng.random_bool(self.options.one_source_share);
        let language = homogeneous.then(|| self.choose_language(pool_index, &mut rng));
        let source = one_source.then(|| self.choose_source(pool_index, language, &mut rng));
        let mut batch = Batch {
            pairs: Vec::with_capacity(self.options.batch_pairs),
            target_language: self.pools[pool_index].target,
            source_language: language.map(|l| self.pools[pool_index].languages[l].id),
            max_tokens: self.options.max_tokens,
        };
        let candidates = self.candidates(pool_index, language, source);
        // A homogeneous batch of any pair has the language of its first partner.
        let mut partner_language = None;
        let mut seen: HashSet<u32> = HashSet::new();
        let mut tokens = 0;
        let mut tries = 0;
        let limit = self.options.batch_pairs.saturating_mul(TRIES);
        while batch.pairs.len() < self.options.batch_pairs && tries < limit {
            tries += 1;
            let stratum = candidates.draw(&mut rng);
            let anchor = self.next_anchor(stratum);
            let wanted = self.pools[pool_index].target.or(partner_language);
            let Some(partner) = choose_partner(corpus, anchor, wanted, &mut rng) else {
                continue;
            };
            if homogeneous && wanted.is_none() {
                partner_language = Some(corpus.language(partner));
            }
            let (a, b) = (corpus.text_hash(anchor), corpus.text_hash(partner));
            // Repeats only where the strata have no more distinct sentences; the first pair always
            // gets in, so that a batch is never empty.
            if !batch.pairs.is_empty() && (seen.contains(&a) || seen.contains(&b)) {
                continue;
            }
            seen.extend([a, b]);
            let length = |s| corpus.token_count(s).min(self.options.max_tokens);
            tokens += length(anchor) + length(partner);
            batch.pairs.push(Pair {
                source: anchor,
                target: partner,
            });
            if self.options.batch_tokens > 0 && tokens >= self.options.batch_tokens {
                break;
            }
        }
        if partner_language.is_some() {
            batch.target_language = partner_language;
        }
        batch
    }

    fn choose_pool(&self, rng: &mut ChaCha8Rng) -> usize {
        if let Some(any) = self.any
            && rng.random_bool(self.options.any_pair_share)
        {
            return any;
        }
        let mut total = 0.0;
        let cumulative: Vec<f64> = (0..self.pools.len())
            .map(|i| {
                total += if Some(i) == self.any {
                    0.0
                } else {
                    self.pools[i].size
                };
                total
            })
            .collect();
        pick(&cumulative, rng)
    }

    /// A language with enough anchors to fill a batch, if there is any such language.
    fn choose_language(&self, pool: usize, rng: &mut ChaCha8Rng) -> usize {
        let pool = &self.pools[pool];
        let mut choice = pick(&pool.cumulative, rng);
        for _ in 0..TRIES {
            if pool.languages[choice].anchors >= self.options.batch_pairs {
                break;
            }
            choice = pick(&pool.cumulative, rng);
        }
        choice
    }

    fn choose_source(
        &self,
        pool: usize,
        language: Option<usize>,
        rng: &mut ChaCha8Rng,
    ) -> SourceId {
        let pool = &self.pools[pool];
        match language {
            Some(language) => {
                let language = &pool.languages[language];
                self.strata[language.strata[pick(&language.cumulative, rng)]].source
            }
            None => pool.sources[pick(&pool.source_cumulative, rng)],
        }
    }

    /// The strata a batch draws from, with their weights.
    fn candidates(
        &self,
        pool: usize,
        language: Option<usize>,
        source: Option<SourceId>,
    ) -> Candidates {
        let pool = &self.pools[pool];
        let mut strata = Vec::new();
        let mut cumulative = Vec::new();
        let mut total = 0.0;
        let mut before_language = 0.0;
        for (index, entry) in pool.languages.iter().enumerate() {
            let language_weight = pool.cumulative[index] - before_language;
            before_language = pool.cumulative[index];
            if language.is_some_and(|l| l != index) {
                continue;
            }
            let language_total = entry.cumulative[entry.cumulative.len() - 1];
            let mut before = 0.0;
            for (stratum, c) in entry.strata.iter().zip(&entry.cumulative) {
                let weight = language_weight * (c - before) / language_total;
                before = *c;
                if source.is_none_or(|s| s == self.strata[*stratum].source) {
                    total += weight;
                    strata.push(*stratum);
                    cumulative.push(total);
                }
            }
        }
        Candidates { strata, cumulative }
    }

    fn next_anchor(&mut self, stratum: usize) -> SentenceId {
        let anchors = &self.strata[stratum].anchors;
        let n = anchors.len() as u64;
        let drawn = self.state.drawn[stratum];
        self.state.drawn[stratum] += 1;
        let key = mix(self.options.seed ^ mix((stratum as u64) << 32 ^ (drawn / n)));
        anchors[Permutation::new(n, key).get(drawn % n) as usize]
    }
}

struct Candidates {
    strata: Vec<usize>,
    cumulative: Vec<f64>,
}

impl Candidates {
    fn draw(&self, rng: &mut ChaCha8Rng) -> usize {
        self.strata[pick(&self.cumulative, rng)]
    }
}

/// Index drawn in proportion to the steps of `cumulative`.
pub(super) fn pick(cumulative: &[f64], rng: &mut ChaCha8Rng) -> usize {
    let total = cumulative[cumulative.len() - 1];
    let x = rng.random::<f64>() * total;
    cumulative
        .partition_point(|c| *c <= x)
        .min(cumulative.len() - 1)
}

/// A sentence of the same group: of language `wanted`, or of any other than the anchor's.
fn choose_partner(
    corpus: &PackedCorpus,
    anchor: SentenceId,
    wanted: Option<LanguageId>,
    rng: &mut ChaCha8Rng,
) -> Option<SentenceId> {
    let own = corpus.language(anchor);
    let fits = |s: &SentenceId| {
        let language = corpus.language(*s);
        wanted.map_or(language != own, |w| language == w && language != own)
    };
    let group = corpus.group(corpus.group_of(anchor));
    let count = group.clone().filter(fits).count();
    if count == 0 {
        return None;
    }
    group.filter(fits).nth(rng.random_range(0..count))
}

fn build_pool(
    corpus: &PackedCorpus,
    options: &SamplerOptions,
    source_weight: &[f64],
    target: Option<LanguageId>,
    strata: &mut Vec<Stratum>,
) -> Pool {
    let language_of = corpus.sentence_languages();
    let mut by_stratum: BTreeMap<(LanguageId, SourceId), Vec<SentenceId>> = BTreeMap::new();
    for group in 0..corpus.groups() {
        let source = corpus.group_sources()[group as usize];
        if source_weight[usize::from(source)] == 0.0 {
            continue;
        }
        let range = corpus.group(group);
        let languages = &language_of[range.start as usize..range.end as usize];
        let usable = match target {
            Some(t) => languages.contains(&t),
            None => languages.iter().any(|l| *l != languages[0]),
        };
        if !usable {
            continue;
        }
        for (sentence, language) in range.zip(languages) {
            if Some(*language) != target && corpus.token_count(sentence) > 0 {
                by_stratum
                    .entry((*language, source))
                    .or_default()
                    .push(sentence);
            }
        }
    }
    let mut grouped: BTreeMap<LanguageId, Vec<Stratum>> = BTreeMap::new();
    for ((language, source), anchors) in by_stratum {
        grouped
            .entry(language)
            .or_default()
            .push(Stratum { source, anchors });
    }
    let mut languages = Vec::new();
    let mut cumulative = Vec::new();
    let mut by_source: BTreeMap<SourceId, f64> = BTreeMap::new();
    let (mut total, mut size) = (0.0, 0.0);
    for (id, parts) in grouped {
        let code = &corpus.header().languages[usize::from(id)];
        let factor = options.language_weights.get(code).copied().unwrap_or(1.0);
        if factor == 0.0 {
            continue;
        }
        let (mut within, mut anchors, mut weighted) = (0.0, 0, 0.0);
        let mut entry = Language {
            id,
            strata: Vec::new(),
            cumulative: Vec::new(),
            anchors: 0,
        };
        for part in parts {
            let n = part.anchors.len() as f64;
            let weight = source_weight[usize::from(part.source)];
            within += weight * n.powf(options.source_exponent);
            weighted += weight * n;
            anchors += part.anchors.len();
            *by_source.entry(part.source).or_default() += weight * n;
            entry.cumulative.push(within);
            entry.strata.push(strata.len());
            strata.push(part);
        }
        entry.anchors = anchors;
        total += factor * weighted.powf(options.language_exponent);
        size += weighted;
        cumulative.push(total);
        languages.push(entry);
    }
    let mut source_total = 0.0;
    let sources: Vec<SourceId> = by_source.keys().copied().collect();
    let source_cumulative = by_source
        .values()
        .map(|w| {
            source_total += w.powf(options.source_exponent);
            source_total
        })
        .collect();
    Pool {
        target,
        languages,
        cumulative,
        sources,
        source_cumulative,
        size,
    }
}

fn check(corpus: &PackedCorpus, options: &SamplerOptions) -> Result<()> {
    let fail = |message: String| Err(DataError::Config(message));
    if options.batch_pairs == 0 || options.max_tokens == 0 {
        return fail("batch_pairs and max_tokens must be at least 1".into());
    }
    for (name, share) in [
        ("any_pair_share", options.any_pair_share),
        ("homogeneous_share", options.homogeneous_share),
        ("one_source_share", options.one_source_share),
    ] {
        if !(0.0..=1.0).contains(&share) {
            return fail(format!("{name} must lie between 0 and 1, not {share}"));
        }
    }
    for (name, exponent) in [
        ("language_exponent", options.language_exponent),
        ("source_exponent", options.source_exponent),
    ] {
        if !(0.0..=10.0).contains(&exponent) {
            return fail(format!("{name} must lie between 0 and 10, not {exponent}"));
        }
    }
    for weight in options
        .source_weights
        .values()
        .chain(options.language_weights.values())
    {
        if !(weight.is_finite() && *weight >= 0.0) {
            return fail(format!(
                "a weight must be a number of at least 0, not {weight}"
            ));
        }
    }
    if options.targets.is_empty() && options.any_pair_share < 1.0 {
        return fail("name at least one target language, or set any_pair_share to 1".into());
    }
    let header = corpus.header();
    if let Some(name) = options
        .targets
        .iter()
        .find(|t| corpus.language_id(t).is_none())
    {
        return fail(format!("the corpus has no language \"{name}\""));
    }
    // A corpus may have been packed without a source or language that a shared configuration
    // weights, so these are not errors; a weight for nothing at all most likely is a typing error.
    let known = |names: &[String], wanted: &BTreeMap<String, f64>| {
        wanted.is_empty() || wanted.keys().any(|k| names.contains(k))
    };
    if !known(&header.sources, &options.source_weights) {
        return fail("none of the sources in source_weights is in the corpus".into());
    }
    if !known(&header.languages, &options.language_weights) {
        return fail("none of the languages in language_weights is in the corpus".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::pack_writer::{PackWriter, PackedSentence};
    use super::*;

    /// 40 keys in en, de, fr (source "news"), 400 in en and de ("bible"), 30 in de and fr without
    /// English ("other"). The text of key k in a language is `language k`.
    fn corpus() -> PackedCorpus {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("c.pack");
        let mut writer = PackWriter::create(&path, "t".into(), 1000, 8).expect("create");
        for (source, keys, languages) in [
            ("news", 40, &["en", "de", "fr"][..]),
            ("bible", 400, &["en", "de"][..]),
            ("other", 30, &["de", "fr"][..]),
        ] {
            for key in 0..keys {
                let texts: Vec<String> = languages
                    .iter()
                    .map(|l| format!("{source} {l} {key}"))
                    .collect();
                let ids = [1, 2, 3, key as u32];
                let group: Vec<_> = languages
                    .iter()
                    .zip(&texts)
                    .map(|(language, text)| PackedSentence {
                        language,
                        text,
                        ids: &ids,
                        perturbed: &[],
                    })
                    .collect();
                writer.push(source, &key.to_string(), &group).expect("push");
            }
        }
        writer.finish(None).expect("finish");
        PackedCorpus::open(&path).expect("open")
    }

    fn options() -> SamplerOptions {
        SamplerOptions {
            batch_pairs: 16,
            ..SamplerOptions::default()
        }
    }

    fn name(corpus: &PackedCorpus, sentence: SentenceId) -> &str {
        &corpus.header().languages[usize::from(corpus.language(sentence))]
    }

    #[test]
    fn pairs_are_translations_without_repeats() {
        let corpus = corpus();
        let mut sampler = Sampler::new(&corpus, options()).expect("sampler");
        assert_eq!(sampler.anchors(), 40 * 2 + 400);
        for _ in 0..50 {
            let batch = sampler.next_batch(&corpus);
            assert_eq!(batch.pairs.len(), 16);
            let mut seen = HashSet::new();
            for pair in &batch.pairs {
                assert_eq!(corpus.group_of(pair.source), corpus.group_of(pair.target));
                assert_eq!(name(&corpus, pair.target), "en");
                assert_ne!(name(&corpus, pair.source), "en");
                assert!(seen.insert(corpus.text_hash(pair.target)));
            }
            assert_eq!(batch.sources(&corpus).len(), 16);
            assert_eq!(batch.targets(&corpus).row(3).len(), 4);
        }
    }

    #[test]
    fn a_run_resumes_exactly() {
        let corpus = corpus();
        let options = SamplerOptions {
            homogeneous_share: 0.5,
            any_pair_share: 0.3,
            ..options()
        };
        let mut whole = Sampler::new(&corpus, options.clone()).expect("sampler");
        let all: Vec<Batch> = (0..60).map(|_| whole.next_batch(&corpus)).collect();
        let mut first = Sampler::new(&corpus, options.clone()).expect("sampler");
        for batch in &all[..25] {
            assert_eq!(first.next_batch(&corpus), *batch);
        }
        let state = serde_json::to_string(&first.state()).expect("json");
        let mut second = Sampler::new(&corpus, options.clone()).expect("sampler");
        second
            .restore(serde_json::from_str(&state).expect("json"))
            .expect("state");
        for batch in &all[25..] {
            assert_eq!(second.next_batch(&corpus), *batch);
        }
        let other = SamplerOptions { seed: 2, ..options };
        let mut other = Sampler::new(&corpus, other).expect("sampler");
        assert_ne!(other.next_batch(&corpus), all[0]);
        let fewer = SamplerOptions {
            targets: vec!["en".into()],
            ..SamplerOptions::default()
        };
        let mut fewer = Sampler::new(&corpus, fewer).expect("sampler");
        assert!(fewer.restore(first.state()).is_err());
    }

    #[test]
    fn every_anchor_comes_once_before_any_comes_twice() {
        let corpus = corpus();
        let options = SamplerOptions {
            source_weights: BTreeMap::from([("bible".into(), 0.0), ("other".into(), 0.0)]),
            language_weights: BTreeMap::from([("fr".into(), 0.0)]),
            batch_pairs: 10,
            ..SamplerOptions::default()
        };
        let mut sampler = Sampler::new(&corpus, options).expect("sampler");
        let mut seen = HashSet::new();
        for _ in 0..4 {
            for pair in sampler.next_batch(&corpus).pairs {
                assert!(seen.insert(pair.source));
            }
        }
        assert_eq!(seen.len(), 40);
    }

    #[test]
    fn the_exponent_moves_languages_together() {
        let corpus = corpus();
        let share = |exponent: f64| {
            let options = SamplerOptions {
                language_exponent: exponent,
                ..options()
            };
            let sampler = Sampler::new(&corpus, options).expect("sampler");
            let fr = corpus.language_id("fr").expect("fr");
            let shares = sampler.language_shares();
            assert!((shares.iter().map(|s| s.1).sum::<f64>() - 1.0).abs() < 1e-9);
            shares.into_iter().find(|s| s.0 == fr).expect("fr").1
        };
        assert!((share(1.0) - 40.0 / 480.0).abs() < 1e-9);
        assert!((share(0.0) - 0.5).abs() < 1e-9);
        let options = SamplerOptions {
            language_exponent: 0.0,
            ..options()
        };
        let mut sampler = Sampler::new(&corpus, options).expect("sampler");
        let french = (0..200)
            .flat_map(|_| sampler.next_batch(&corpus).pairs)
            .filter(|p| name(&corpus, p.source) == "fr")
            .count();
        assert!((1400..1800).contains(&french), "{french} of 3200");
    }

    #[test]
    fn batches_of_one_kind() {
        let corpus = corpus();
        let one = SamplerOptions {
            homogeneous_share: 1.0,
            one_source_share: 1.0,
            language_exponent: 0.0,
            ..options()
        };
        let mut sampler = Sampler::new(&corpus, one.clone()).expect("sampler");
        for _ in 0..40 {
            let batch = sampler.next_batch(&corpus);
            let source = |s| corpus.group_sources()[corpus.group_of(s) as usize];
            let first = batch.pairs[0].source;
            assert!(batch.source_language.is_some());
            for pair in &batch.pairs {
                assert_eq!(Some(corpus.language(pair.source)), batch.source_language);
                assert_eq!(source(pair.source), source(first));
            }
        }
        let any = SamplerOptions {
            any_pair_share: 1.0,
            targets: Vec::new(),
            ..one
        };
        let mut sampler = Sampler::new(&corpus, any).expect("sampler");
        let mut without_english = 0;
        for _ in 0..200 {
            let batch = sampler.next_batch(&corpus);
            for pair in &batch.pairs {
                assert_ne!(corpus.language(pair.source), corpus.language(pair.target));
                assert_eq!(Some(corpus.language(pair.target)), batch.target_language);
                assert_eq!(Some(corpus.language(pair.source)), batch.source_language);
            }
            let names: HashSet<_> = batch
                .pairs
                .iter()
                .map(|p| name(&corpus, p.target))
                .collect();
            without_english += usize::from(!names.contains("en"));
        }
        assert!(without_english > 20);
        let limited = SamplerOptions {
            batch_tokens: 20,
            ..options()
        };
        let mut sampler = Sampler::new(&corpus, limited).expect("sampler");
        assert_eq!(sampler.next_batch(&corpus).pairs.len(), 3);
    }

    #[test]
    fn wrong_options_are_refused() {
        let corpus = corpus();
        for wrong in [
            SamplerOptions {
                targets: vec!["xx".into()],
                ..options()
            },
            SamplerOptions {
                targets: Vec::new(),
                ..options()
            },
            SamplerOptions {
                any_pair_share: 1.5,
                ..options()
            },
            SamplerOptions {
                language_exponent: f64::NAN,
                ..options()
            },
            SamplerOptions {
                batch_pairs: 0,
                ..options()
            },
            SamplerOptions {
                source_weights: BTreeMap::from([("nwes".into(), 2.0)]),
                ..options()
            },
            SamplerOptions {
                source_weights: BTreeMap::from([("news".into(), f64::INFINITY)]),
                ..options()
            },
        ] {
            assert!(matches!(
                Sampler::new(&corpus, wrong),
                Err(DataError::Config(_))
            ));
        }
    }
}
