"""Text of any size whose vocabulary grows as that of real text.

A repeated file has no new words after its first pass, so its words are all in caches and BPE is
easy to learn. Here the lines are repeated, and after the first pass some words are replaced. The
number V of distinct words follows Heaps' law V = K N^b in the number N of words; K and b are fitted
to the given text. A replaced word is either new (with the probability dV/dN), or a random earlier
replacement, so new words recur, and the frequent ones recur most. A new word joins the beginning of
a random word to the end of another, like a compound or an inflected form.
"""

from collections.abc import Iterator, Sequence

import numpy as np

REPLACED = 0.06  # share of the words that are replaced after the first pass


def heaps(words: Sequence[str]) -> tuple[float, float]:
    """Return K and b of Heaps' law, fitted to the growth of the vocabulary over the text."""
    sizes = np.unique(np.geomspace(1000, len(words), 40).astype(int))
    seen: set[str] = set()
    types = []
    start = 0
    for size in sizes:
        seen.update(words[start:size])
        types.append(len(seen))
        start = size
    b, log_k = np.polyfit(np.log(sizes), np.log(types), 1)
    return float(np.exp(log_k)), float(b)


def growing_lines(lines: Sequence[str], count: int, seed: int = 1) -> Iterator[str]:
    """Yield ``count`` lines: the given lines, then perturbed repetitions in the same order.

    Lines with the same index in several files have the same index in the result.
    """
    random = np.random.default_rng(seed)
    words = [word for line in lines for word in line.split()]
    order = random.permutation(len(words))  # related lines are neighbours, so mix the words
    k, b = heaps([words[i] for i in order])
    long_words = [word for word in words if len(word) > 4 and word.isalpha()]
    replacements: list[str] = []
    seen = len(words)
    yield from lines[:count]
    for start in range(len(lines), count, len(lines)):
        for line in lines[: count - start]:
            split = line.split()
            draws = random.random(len(split))
            new = k * b * seen ** (b - 1)
            for i in np.flatnonzero(draws < max(REPLACED, new)):
                if draws[i] < new or not replacements:
                    replacements.append(_new_word(long_words, random))
                    split[i] = replacements[-1]
                else:
                    split[i] = replacements[random.integers(len(replacements))]
                    replacements.append(split[i])
            seen += len(split)
            yield " ".join(split)


def _new_word(words: Sequence[str], random: np.random.Generator) -> str:
    first, second = (words[i] for i in random.integers(len(words), size=2))
    return first[: random.integers(2, len(first))] + second[random.integers(1, len(second) - 1) :]
