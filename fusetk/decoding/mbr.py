"""Minimum Bayes risk decoding: the translation that is most similar to all others.

The sources are Kumar and Byrne 2004, and Eikema and Aziz 2022 for samples.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

from fusetk.decoding.requests import Request
from fusetk.decoding.sentence_utility import TranslationPair, Utility
from fusetk.decoding.translate import Translation, Translator

CANDIDATES = 16  # translations of a sentence that are compared, by default


def expected_utilities(
    source: str, texts: Sequence[str], weights: Sequence[float], similarity: Utility
) -> list[float]:
    """Return the mean similarity of each translation to all translations, weighted by ``weights``.

    Equal texts are compared once.
    """
    mass: defaultdict[str, float] = defaultdict(float)
    for text, weight in zip(texts, weights, strict=True):
        mass[text] += weight
    total = math.fsum(mass.values())
    pairs = [TranslationPair(source, text, other) for text in mass for other in mass]
    similarities = dict(zip(pairs, similarity(pairs), strict=True))
    expected = {
        text: math.fsum(
            weight * similarities[TranslationPair(source, text, other)]
            for other, weight in mass.items()
        )
        / total
        for text in mass
    }
    return [expected[text] for text in texts]


def by_utility(
    source: str, candidates: Sequence[Translation], similarity: Utility, sampled: bool
) -> list[Translation]:
    """Return the candidates with their expected utilities, the highest first.

    Samples have equal weights. Translations of a search are weighted by their probabilities. Equal
    texts are returned once. Ties remain in the order of the candidates.
    """
    if not candidates:
        return []
    best = max(candidate.score for candidate in candidates)
    weights = [1.0 if sampled else math.exp(candidate.score - best) for candidate in candidates]
    texts = [candidate.text for candidate in candidates]
    expected = expected_utilities(source, texts, weights, similarity)
    unique: dict[str, Translation] = {}
    for candidate, value in zip(candidates, expected, strict=True):
        unique.setdefault(candidate.text, candidate._replace(utility=value))
    return sorted(unique.values(), key=lambda translation: -(translation.utility or 0.0))


class MbrTranslator(Translator):
    """A translator whose best translations have the highest expected utility."""

    def __init__(self, translator: Translator, similarity: Utility, n_best: int = 1):
        """The translations of ``translator`` are the candidates. They always have scores.

        ``n_best`` is the number of translations that are returned.
        """
        super().__init__(
            translator.models, translator.pipeline, translator.config, translator.extras
        )
        self.similarity = similarity
        self.returned = n_best

    def n_best(
        self,
        lines: Sequence[str | Request],
        tokenized: bool = False,
        first: int | Sequence[int] = 1,
    ) -> list[list[Translation]]:
        """Return the translations of each line with the highest expected utility, best first.

        The arguments and errors are those of ``Translator.n_best``. ``on_batch`` gets one half for
        a sentence after its search, and one half after the comparison of its candidates.
        """
        report = self.on_batch
        self.on_batch = lambda sentences: report(sentences / 2)
        try:
            all_candidates = super().n_best(lines, tokenized, first)
        finally:
            self.on_batch = report
        results = []
        for line, candidates in zip(lines, all_candidates, strict=True):
            source = line.text if isinstance(line, Request) else line
            ranked = by_utility(source, candidates, self.similarity, self.config.sample)
            results.append(ranked[: self.returned])
            if candidates:
                report(1 / 2)
        return results
