"""Batches of sentence pairs, drawn on the GPU, where the whole corpus lies."""
import numpy as np
import torch

from files import Packed

# As in the last runs of the first model.
SOURCE_WEIGHTS = dict(
    massive=1.5, stsb_mt=1.5, tanaka_ja=1.5, pratham_storybook=1.5, ntrex=1.5, lexmix=0.4, cboard=0.5, gatitos=0.3,
    massive_slots=0.25, osm_presets=0.25, cldr_names=0.25, omw_permissive=0.25, omw_sharealike=0.25, bible_sword=0.5,
    bible_ces=0.5, bible_ebible=0.5, python_docs=0.5, tldr=0.5, rust_course=0.5, gnome_help=0.5, android_apps=0.2,
    gnome_ui=0.2, kde_ui=0.2, mozilla=0.2, osm_messages=0.2, software_ui=0.2, wiki_messages=0.2,
)  # fmt: skip
LANGUAGE_EXPONENT = 0.8
ONE_SOURCE = 0.4  # share of batches
ANY_PAIR = 0.15  # share of batches between any two languages
PERTURBED = 2048  # of a batch, at most


class Batches:
    def __init__(self, path, size, cut, seed, device):
        corpus = Packed(path)
        self.size, self.cut, self.device, self.random = size, cut, device, np.random.default_rng(seed)
        put = lambda array: torch.as_tensor(np.array(array), device=device)  # noqa: E731
        starts, group, english = corpus.groups()
        language = corpus.section("sentence_language", np.uint16).astype(np.int64)
        source = corpus.section("group_source", np.uint16).astype(np.int64)[group]
        sentences = np.where((english[group] >= 0) & (language != corpus.header["languages"].index("en")))[0]
        sentences = sentences[np.argsort(source[sentences], kind="stable")]
        weights = np.array([SOURCE_WEIGHTS.get(name, 1.0) for name in corpus.header["sources"]])[source[sentences]]
        sizes = np.bincount(language[sentences], weights)
        weights = weights * sizes[language[sentences]] ** (LANGUAGE_EXPONENT - 1)
        sums = np.concatenate([[0.0], np.cumsum(weights / weights.sum())])
        edges = np.searchsorted(source[sentences], np.arange(len(corpus.header["sources"]) + 1))
        # Batches from one source: where not every batch would be most of it.
        large = np.diff(edges) >= 3 * size
        self.ranges = np.stack([sums[edges[:-1]], sums[edges[1:]]], 1)[large]
        self.sums, self.sentences = put(sums[1:]), put(sentences)
        self.group, self.group_starts, self.english = put(group), put(starts), put(english)
        self.hash = put(corpus.section("sentence_hash", np.uint32).astype(np.int64))
        self.starts = put(corpus.section("sentence_start", np.uint64).astype(np.int64))
        self.tokens = put(corpus.tokens())
        self.perturbed = "perturbed_of" in corpus.header["sections"]
        if self.perturbed:
            self.perturbed_of = put(corpus.section("perturbed_of", np.uint32).astype(np.int64))
            self.perturbed_starts = put(corpus.section("perturbed_start", np.uint64).astype(np.int64))
            self.perturbed_tokens = put(corpus.tokens("perturbed_tokens"))

    def draw(self):
        """Sentences, their targets, and the English sentence of the group of each."""
        at = torch.rand(self.size, device=self.device, dtype=torch.float64)
        if len(self.ranges) and self.random.random() < ONE_SOURCE:
            share = self.ranges[:, 1] - self.ranges[:, 0]
            low, high = self.ranges[self.random.choice(len(share), p=share / share.sum())]
            at = low + at * (high - low)
        sources = self.sentences[torch.searchsorted(self.sums, at).clamp_max(len(self.sentences) - 1)]
        group = self.group[sources]
        english = self.english[group]
        targets = english
        if self.random.random() < ANY_PAIR:
            first = self.group_starts[group]
            other = first + (torch.rand(self.size, device=self.device) * (self.group_starts[group + 1] - first)).long()
            targets = torch.where(other == sources, english, other)
        return sources, targets, english

    def same(self, sources, targets):
        """Pairs that are no negatives of each other, the pair itself included."""
        keys = (self.group[sources], self.hash[sources], self.hash[targets])
        return torch.stack([key[:, None] == key[None] for key in keys]).any(0)

    def ragged(self, starts, ends, tokens):
        """What [`Model.forward`] takes."""
        lengths = ends - starts
        first = torch.cumsum(lengths, 0) - lengths
        sentence = torch.repeat_interleave(torch.arange(len(starts), device=self.device), lengths)
        at = torch.arange(len(sentence), device=self.device) - first[sentence] + starts[sentence]
        return tokens[at].long(), sentence, first, len(starts)

    def texts(self, sentences):
        starts = self.starts[sentences]
        return self.ragged(starts, torch.minimum(self.starts[sentences + 1], starts + self.cut), self.tokens)

    def perturbations(self, english):
        """One perturbed sentence of each of some of these that have any."""
        first, count = self.perturbed_of[english], self.perturbed_of[english + 1] - self.perturbed_of[english]
        first, count = first[count > 0], count[count > 0]
        pick = first + (torch.rand(len(first), device=self.device) * count).long()
        pick = pick[self.perturbed_starts[pick + 1] > self.perturbed_starts[pick]]
        pick = pick[torch.randperm(len(pick), device=self.device)[:PERTURBED]]
        return self.ragged(self.perturbed_starts[pick], self.perturbed_starts[pick + 1], self.perturbed_tokens)
