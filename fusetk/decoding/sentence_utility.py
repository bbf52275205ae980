"""The similarity of two translations of a sentence."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class TranslationPair(NamedTuple):
    """Two translations of a source."""

    source: str
    translation: str
    other: str


Utility = Callable[[Sequence[TranslationPair]], Sequence[float]]
"""Returns the similarity of each translation to the other one, from 0 to 100. COMET may exceed
these limits."""


def utility(name: str, tokenize: str | None = None) -> Utility:
    """Return the utility `chrf` or `bleu`: a score of one sentence by sacrebleu.

    ``tokenize`` is the tokeniser of BLEU, by default that of sacrebleu.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scorer: Any = CHRF() if name == "chrf" else BLEU(effective_order=True, tokenize=tokenize)

    def score(comparisons: Sequence[TranslationPair]) -> list[float]:
        return [
            float(scorer.sentence_score(translation, [other]).score)
            for _, translation, other in comparisons
        ]

    return score
