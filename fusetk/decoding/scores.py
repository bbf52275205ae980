"""Length penalties: how scores of hypotheses of unequal length are compared.

A hypothesis' score is the natural-log probability of its tokens and its end mark, so it is at most 0 and falls with every
token. It is divided by a penalty that grows with its length |y|, the number of its tokens *with the end mark*; higher is
better. An exponent alpha of 0 compares the scores as they are.

Bound: with alpha >= 0 both penalties never fall as |y| grows. A live hypothesis of score s <= 0 that may still grow to at
most m tokens ends with a score of at most s, and dividing a number <= 0 by the largest divisor brings it nearest to 0: its
normalised score can therefore never exceed s / penalty(m). The bound is sharp only if all further tokens are certain.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

Length = TypeVar("Length", float, Tensor)


def power(length: Length, alpha: float) -> Length:
    """|y|^alpha: Marian's ``--normalize`` and fairseq's ``--lenpen``; alpha 1 makes the score a mean per token."""
    return length**alpha


def gnmt(length: Length, alpha: float) -> Length:
    """((5 + |y|) / 6)^alpha (Wu et al. 2016, Equation 14, without the coverage penalty): flatter on short sentences."""
    return ((5 + length) / 6) ** alpha


PENALTIES: dict[str, Callable] = {"power": power, "gnmt": gnmt}
