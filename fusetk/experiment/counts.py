"""Comparison of prepared text with the published counts of a config."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data import manifest
from fusetk.data.filter import SUBWORDS
from fusetk.errors import DataError
from fusetk.papers import TextCountsConfig

ROUNDING = 0.05  # relative difference that a rounded count allows
CLOSE = 0.005  # relative difference of tokens that another version of a tokeniser may cause
UNITS = {"K": 1e3, "M": 1e6}


class Count(NamedTuple):
    """A published count and the count of the prepared text."""

    part: str  # train, valid or test.NAME
    what: str  # pairs, source tokens or target tokens
    published: str
    number: int
    verdict: str  # same, close or DIFFERENT


def compare(published: Mapping[str, TextCountsConfig], prepared: Path) -> list[Count]:
    """Compare the published counts with those of a prepared folder.

    Pairs that were dropped because they have too many subwords, and their tokens, are counted, as
    in the counts of public preparations. Raises DataError if the folder is not prepared.
    """
    splits: dict[str, Any] = manifest.read(prepared)["splits"]
    counts = []
    for part, expected in published.items():
        if part not in splits:
            continue
        split = splits[part]
        pairs = split["pairs_out"] + split["dropped"].get(SUBWORDS, 0)
        counts.append(_pairs(part, expected.pairs, pairs))
        dropped_tokens = split.get("dropped_tokens", {})
        for side, tokens in zip(("source", "target"), expected.tokens or (), strict=False):
            number = split[side]["tokens_with_end"] + dropped_tokens.get(side, 0)
            verdict = _verdict(tokens, number, CLOSE)
            counts.append(Count(part, f"{side} tokens", f"{tokens:,}", number, verdict))
    return counts


def _pairs(part: str, expected: int | str, number: int) -> Count:
    if isinstance(expected, int):
        verdict = _verdict(expected, number, 0)
        return Count(part, "pairs", f"{expected:,}", number, verdict)
    value = float(expected[:-1]) * UNITS[expected[-1]]
    return Count(part, "pairs", expected, number, _verdict(value, number, ROUNDING))


def _verdict(expected: float, number: int, tolerance: float) -> str:
    if number == expected:
        return "same"
    return "close" if abs(number - expected) <= tolerance * expected else "DIFFERENT"


def check(counts: Sequence[Count], any_data: bool) -> str | None:
    """Return a warning if a count differs; None if all are the same or rounded.

    Raises DataError if a number of pairs differs, unless ``any_data`` is set.
    """
    wrong = [c.part for c in counts if c.what == "pairs" and c.verdict == "DIFFERENT"]
    if wrong and not any_data:
        raise DataError(
            f"the number of pairs of {', '.join(wrong)} is not the published one: check the raw "
            "text, or use --any-data"
        )
    if wrong or any(count.what != "pairs" and count.verdict != "same" for count in counts):
        return "warning: the text is not the published one, so BLEU may differ from published BLEU"
    return None


def table(counts: Sequence[Count]) -> str:
    """Return the counts as lines."""
    rows = [("", "published", "here", "")]
    for part, what, published, number, verdict in counts:
        rows.append((f"{part}: {what}", published, f"{number:,}", verdict))
    return "\n".join(
        f"{name:<28}{published:>12}{number:>12}  {verdict}".rstrip()
        for name, published, number, verdict in rows
    )
