"""The similarity of two translations of a sentence."""

from collections.abc import Callable
from typing import Any

Utility = Callable[[str, str], float]
"""Similarity of a translation to another one, from 0 to 100."""


def utility(name: str, tokenize: str | None = None) -> Utility:
    """Return the utility `chrf` or `bleu`: a score of one sentence by sacrebleu.

    ``tokenize`` is the tokeniser of BLEU, by default that of sacrebleu.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scorer: Any = CHRF() if name == "chrf" else BLEU(effective_order=True, tokenize=tokenize)

    def score(translation: str, other: str) -> float:
        return float(scorer.sentence_score(translation, [other]).score)

    return score
