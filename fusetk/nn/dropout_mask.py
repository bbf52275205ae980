"""Masks of dropout, which follow from a seed and are computed again instead of stored."""

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.nn import splitmix
from fusetk.nn.fused.build import library
from fusetk.nn.fused.structs import INT, POINTER, call, fill, struct, transformed

UNIT = 2**-16  # a rate is a multiple of this number


def in_units(rate: float) -> int:
    """Return a rate below 1 as a multiple of UNIT below 1."""
    return min(round(rate / UNIT), round(1 / UNIT) - 1)


def threshold(units: int) -> int:
    """Return the lowest int16 at which an element is kept, for a rate in multiples of UNIT."""
    return units - round(0.5 / UNIT)


def scale(units: int) -> float:
    """Return the factor of the elements that are kept, for a rate in multiples of UNIT."""
    return 1 / (1 - units * UNIT)


_RandomWords = struct(
    "_RandomWords", ("threads count", INT), ("seed", ctypes.c_uint64), ("words", POINTER)
)


class DropoutMask(NamedTuple):
    """The mask of one call of dropout on CPU.

    Element i of a tensor has 16 random bits: those of the SplitMix64 generator (Steele et al. 2014)
    at ``seed``, four elements in each word of 64 bits. It is 0 if its bits, as a signed number, are
    below ``threshold(units)``, and multiplied by ``scale(units)`` otherwise.
    """

    seed: int
    """A signed integer of 64 bits."""
    units: int
    """The rate in multiples of UNIT."""

    @classmethod
    def draw(cls, units: int) -> "DropoutMask":
        """Draw a seed from PyTorch's generator."""
        seed = torch.empty((), dtype=torch.int64).random_(-(2**63), None)
        return cls(int(seed), units)

    def random_bits(self, shape: Sequence[int]) -> Tensor:
        """Return the random int16 in [-32768, 32767] of each element."""
        count = math.prod(shape)
        words = random_words(self.seed, (count + 3) // 4)
        return words.view(torch.int16)[:count].view(*shape)


def random_words(seed: int, count: int) -> Tensor:
    """Return the first ``count`` words of SplitMix64 at ``seed`` as int64."""
    if library("transformer") is None or transformed():
        return plain_random_words(seed, count)
    words = torch.empty(count, dtype=torch.int64)
    call(
        "transformer",
        "random_words",
        fill(_RandomWords(), count=count, seed=seed % 2**64, words=words),
    )
    return words


def plain_random_words(seed: int, count: int) -> Tensor:
    """Compute ``random_words`` without compiled kernels."""
    return splitmix.words(torch.arange(1, count + 1).mul_(splitmix.INCREMENT).add_(seed))
