"""By what hypotheses of unequal length are compared: the value of a finished one, and the best that a live one may still get.

A hypothesis' score is the natural-log probability of its tokens and its end mark, so it is at most 0 and falls with every
token. |y| is the number of its tokens *with the end mark*. Its value, higher is better, is

    (score - word_penalty |y|) / penalty(|y|) + coverage

with one of the length penalties below; an exponent alpha of 0, and no other penalty, compares the scores as they are.

Bound: a live hypothesis of score s ends with a score of at most s, and the coverage term is at most 0, so the best value that
it can get is the largest of (s - word_penalty m) / penalty(m) over the lengths m that it may still reach. Without a word
penalty that is the longest, for with alpha >= 0 the penalties never fall as |y| grows and dividing a number <= 0 by the
largest divisor brings it nearest to 0. The bound is sharp only if all further tokens are certain.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from fusetk.decoding.config import SearchConfig

Length = TypeVar("Length", float, Tensor)
Score = TypeVar("Score", float, Tensor)


def power(length: Length, alpha: float) -> Length:
    """|y|^alpha: Marian's ``--normalize`` and fairseq's ``--lenpen``; alpha 1 makes the score a mean per token."""
    return length**alpha


def gnmt(length: Length, alpha: float) -> Length:
    """((5 + |y|) / 6)^alpha (Wu et al. 2016, Equation 14, without the coverage penalty): flatter on short sentences."""
    return ((5 + length) / 6) ** alpha


PENALTIES: dict[str, Callable] = {"power": power, "gnmt": gnmt}
LEAST = 1e-6  # attention that a source token has at least, so that one without any costs 13.8 beta


def value(score: Score, length: int, config: SearchConfig) -> Score:
    """Of finished hypotheses of one length, without coverage."""
    return (score - config.word_penalty * length) / PENALTIES[config.penalty](
        float(length), config.normalize
    )


def bound(score: Tensor, length: int, limit: Tensor, longest: int, config: SearchConfig) -> Tensor:
    """The best value of live hypotheses (A,) of ``length`` tokens that may grow to ``limit`` (A,), at most ``longest``, the end mark
    counted.
    """
    penalty = PENALTIES[config.penalty]
    if not config.word_penalty:
        return score / penalty(limit.float(), config.normalize)
    lengths = torch.arange(length + 1, max(length + 1, longest) + 1, device=score.device)
    values = (score[:, None] - config.word_penalty * lengths) / penalty(
        lengths.float(), config.normalize
    )
    return values.masked_fill(lengths > limit[:, None], -torch.inf).amax(1)


def covered(coverage: Tensor, config: SearchConfig) -> Tensor:
    """beta * sum_j log(min(c_j, 1)) of the attention c (..., S) that source tokens got in all (Wu et al. 2016, Equation 14)."""
    return config.coverage_penalty * coverage.clamp(LEAST, 1).log().sum(-1)
