"""The random numbers of SplitMix64 (Steele et al. 2014), as tensors of signed integers."""

from torch import Tensor


def signed(value: int) -> int:
    """Return the signed integer with the same 64 bits."""
    return value - 2**64 if value >= 2**63 else value


INCREMENT = signed(0x9E3779B97F4A7C15)


def words(states: Tensor) -> Tensor:
    """Return the word of 64 random bits of each state; ``states`` is overwritten.

    Word n of a seed, from 1 on, has the state seed + n * INCREMENT.
    """
    z = states
    z.bitwise_xor_(shifted_right(z, 30)).mul_(signed(0xBF58476D1CE4E5B9))
    z.bitwise_xor_(shifted_right(z, 27)).mul_(signed(0x94D049BB133111EB))
    return z.bitwise_xor_(shifted_right(z, 31))


def shifted_right(z: Tensor, bits: int) -> Tensor:
    """Shift without copies of the sign bit."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)
