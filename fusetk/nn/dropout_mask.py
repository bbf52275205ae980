"""Masks of dropout, which follow from a seed and are computed again instead of stored."""

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.nn.fused.build import library
from fusetk.nn.fused.structs import INT, POINTER, address, struct

STEPS = 1 << 16  # a rate is a multiple of 1 / STEPS

_RandomWords = struct(
    "_RandomWords", ("threads count", INT), ("seed", ctypes.c_uint64), ("words", POINTER)
)


class DropoutMask(NamedTuple):
    """The mask of one call of dropout on CPU.

    Element i of a tensor has 16 random bits: those of the SplitMix64 generator (Steele et al. 2014)
    at ``seed``, four elements in each word of 64 bits. It is 0 if its bits, as a signed number, are
    below ``threshold``, and multiplied by ``scale`` otherwise.
    """

    seed: int
    """A signed integer of 64 bits."""
    steps: int
    """The rate in multiples of 1 / STEPS."""

    @classmethod
    def draw(cls, steps: int) -> "DropoutMask":
        """Draw a seed from PyTorch's generator."""
        seed = torch.empty((), dtype=torch.int64).random_(-(2**63), None)
        return cls(int(seed), steps)

    @property
    def threshold(self) -> int:
        return self.steps - STEPS // 2

    @property
    def scale(self) -> float:
        return STEPS / (STEPS - self.steps)

    def random_bits(self, shape: Sequence[int]) -> Tensor:
        """Return the random int16 in [-32768, 32767] of each element."""
        count = math.prod(shape)
        words = random_words(self.seed, (count + 3) // 4)
        return words.view(torch.int16)[:count].view(*shape)


def random_words(seed: int, count: int) -> Tensor:
    """Return the first ``count`` words of SplitMix64 at ``seed`` as int64."""
    kernels = library("transformer")
    if kernels is None:
        return plain_random_words(seed, count)
    words = torch.empty(count, dtype=torch.int64)
    arguments = _RandomWords(torch.get_num_threads(), count, seed % 2**64, address(words))
    kernels.random_words(ctypes.byref(arguments))
    return words


def plain_random_words(seed: int, count: int) -> Tensor:
    """Compute ``random_words`` without compiled kernels."""
    z = torch.arange(1, count + 1)
    z.mul_(_signed(0x9E3779B97F4A7C15)).add_(seed)
    z.bitwise_xor_(_shifted_right(z, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    z.bitwise_xor_(_shifted_right(z, 27)).mul_(_signed(0x94D049BB133111EB))
    return z.bitwise_xor_(_shifted_right(z, 31))


def _signed(value: int) -> int:
    """Return the signed integer with the same 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def _shifted_right(z: Tensor, bits: int) -> Tensor:
    """Shift without copies of the sign bit."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)
