"""Length-normalised scores of finished hypotheses, and upper bounds for live ones.

The score of a hypothesis is the natural logarithm of the probability of its tokens and EOS. So it
is at most 0 and never rises when a token is added. The length |y| is the number of tokens
*including EOS*. The value of a hypothesis (higher is better) is

    (score - word_penalty |y|) / penalty(|y|) + coverage

with one of the length penalties below. With an exponent alpha of 0 and no other penalty, the value
is the score.

The bound of a live hypothesis is its best possible value. A live hypothesis of score s ends with a
score of at most s, and the coverage term is at most 0. So the bound is the maximum of
(s - word_penalty m) / penalty(m) over the lengths m that the hypothesis can still reach. Without a
word penalty, the largest m gives the maximum: with alpha >= 0 the penalty never falls as m grows,
and a number <= 0 is nearest to 0 when it is divided by the largest divisor. The bound is reached
only if all further tokens have probability 1.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from fusetk.decoding.config import SearchConfig

Length = TypeVar("Length", float, Tensor)
Score = TypeVar("Score", float, Tensor)


def power(length: Length, alpha: float) -> Length:
    """Return |y|^alpha, as Marian's ``--normalize`` and fairseq's ``--lenpen``.

    With an alpha of 1, the score becomes the mean per token.
    """
    return length**alpha


def gnmt(length: Length, alpha: float) -> Length:
    """Return ((5 + |y|) / 6)^alpha, which changes less between short lengths than ``power``.

    The source is Wu et al. 2016, Equation 14, without the coverage penalty.
    """
    return ((5 + length) / 6) ** alpha


# A penalty must not fall as the length grows, with alpha >= 0: ``bound`` depends on it.
PENALTIES: dict[str, Callable] = {"power": power, "gnmt": gnmt}
MIN_COVERAGE = 1e-6  # lower limit for each source token; without attention it costs 13.8 beta


def normalized_score(score: Score, length: int, config: SearchConfig) -> Score:
    """Return the values of finished hypotheses of one length, without the coverage term."""
    penalized = score - config.word_penalty * length
    return penalized / PENALTIES[config.penalty](float(length), config.normalize)


def bound(score: Tensor, length: int, limit: Tensor, longest: int, config: SearchConfig) -> Tensor:
    """Return the best possible values (...) of live hypotheses with scores (...).

    The hypotheses have ``length`` tokens and can grow to ``limit`` tokens, including EOS. The shape
    of ``limit`` broadcasts to (...). ``longest`` is the maximum of all limits.
    """
    penalty = PENALTIES[config.penalty]
    if not config.word_penalty:
        return score / penalty(limit.float(), config.normalize)
    lengths = torch.arange(length + 1, max(length + 1, longest) + 1, device=score.device)
    penalized = score[..., None] - config.word_penalty * lengths
    values = penalized / penalty(lengths.float(), config.normalize)
    return values.masked_fill(lengths > limit[..., None], -torch.inf).amax(-1)


def coverage_term(coverage: Tensor, config: SearchConfig) -> Tensor:
    """Return beta * sum_j log(min(c_j, 1)), where c (..., S) is the total attention to each token.

    The source is Wu et al. 2016, Equation 14. c_j is at least ``MIN_COVERAGE`` here, so that the
    logarithm is finite.
    """
    return config.coverage_penalty * coverage.clamp(MIN_COVERAGE, 1).log().sum(-1)
