"""Compare prepared data of IWSLT14 German-English with the counts of its published split.

`python iwslt14.py PREPARED` reads the manifest of the folder. The raw text is that of `fusetk
dataset iwslt14-de-en`.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data.filter import SUBWORDS
from fusetk.datasets.table import read
from fusetk.errors import DataError, FusetkError

DATASET = read("iwslt14-de-en")
# Segments of the test sets, in the order in which papers join them.
TEST_SETS = {text.name: text.pairs for text in DATASET.texts if text.pairs}


class Split(NamedTuple):
    """A published split of the training text."""

    name: str
    pairs: Mapping[str, int]  # for training and for validation
    tokens: Mapping[str, tuple[int, int]] = {}  # German and English; `test` is all five test sets


SPLITS = {  # by the greatest number of words on a side of a training pair
    50: Split("MIXER's split, at most 50 words a side", {"train": 153_326, "valid": 6_969}),
    175: Split(
        "fairseq's variant of MIXER's split, at most 175 words a side",
        {"train": 160_239, "valid": 7_283},
        {"train": (4_035_591, 3_949_114), "valid": (182_592, 178_622), "test": (161_838, 156_928)},
    ),
}
# The BPE settings of the published token counts, which include EOS.
MERGES = {"merges": 10_000, "joint": True}


# Published counts


class Figure(NamedTuple):
    """A published count and the count of the data."""

    name: str
    expected: int
    found: int

    @property
    def verdict(self) -> str:
        """``same``, ``close`` (a token count differs by less than 0.5 %) or ``DIFFERENT``."""
        if self.expected == self.found:
            return "same"
        near = "pairs" not in self.name and abs(self.found - self.expected) < 0.005 * self.expected
        return "close" if near else "DIFFERENT"


def compare(prepared: Path) -> tuple[Split | None, list[Figure]]:
    """Return the published split of prepared data, None for another split, and its counts.

    Counts are the pairs of each part. With the BPE settings of MERGES they include tokens, if these
    are published. Raises DataError if the manifest cannot be read.
    """
    path = prepared / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        settings = manifest["settings"]
        limits = [
            step["max_length"]
            for step in settings["steps"]
            if step["step"] == "filter" and step["max_length"]
        ]
        split = SPLITS.get(min(limits, default=0))
        tokens = split.tokens if split and MERGES.items() <= (settings["bpe"] or {}).items() else {}
        figures = []
        for part, pairs in (split.pairs if split else {}).items():
            figures += _figures(manifest, part, pairs, tokens.get(part))
        for name, prefixes in settings["test"].items():
            sets = [Path(prefix).name for prefix in prefixes]
            if TEST_SETS.keys() >= set(sets):
                pairs = sum(TEST_SETS[member] for member in sets)
                counted = tokens.get("test") if sets == [*TEST_SETS] else None
                figures += _figures(manifest, f"test.{name}", pairs, counted)
        return split, figures
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}: {error}): run `fusetk prep` first"
        ) from None


def _figures(
    manifest: Mapping[str, Any], part: str, pairs: int, tokens: tuple[int, int] | None
) -> list[Figure]:
    """Return the expected counts of a part, and the counts of the data.

    Pairs that were dropped for too many subwords are counted, and EOS counts as a token.
    """
    counts = manifest["splits"][part]
    known = {"pairs": (pairs, counts["pairs_out"] + counts["dropped"].get(SUBWORDS, 0))}
    if tokens:
        known["German tokens"] = tokens[0], counts["source"]["tokens_with_end"]
        known["English tokens"] = tokens[1], counts["target"]["tokens_with_end"]
    return [Figure(f"{part}: {what}", *figures) for what, figures in known.items()]


def table(figures: Iterable[Figure]) -> str:
    """Format counts as lines of text."""
    rows = [("", "expected", "found", "")] + [
        (f.name, f"{f.expected:,}", f"{f.found:,}", f.verdict) for f in figures
    ]
    return "\n".join(
        f"{name:<24}{expected:>12}{found:>12}  {verdict}".rstrip()
        for name, expected, found, verdict in rows
    )


# Command line


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description="Counts of IWSLT14 German-English")
    parser.add_argument("folder", type=Path, help="folder of prepared data")
    parser.add_argument(
        "--any-data", action="store_true", help="continue with data of another size"
    )
    options = parser.parse_args(arguments)
    try:
        split, figures = compare(options.folder)
        if split is None:
            known = " or ".join(map(str, SPLITS))
            unknown = (
                f"{options.folder} is none of the published splits, whose training pairs have "
                f"at most {known} words a side"
            )
            if not options.any_data:
                raise DataError(f"{unknown}: change the filter in data.steps, or use --any-data")
            print(f"warning: {unknown}", file=sys.stderr)
        else:
            print(split.name, file=sys.stderr)
        print(table(figures), file=sys.stderr)
        wrong = [f.name for f in figures if f.verdict == "DIFFERENT"]
        if any("pairs" in name for name in wrong) and not options.any_data:
            name = split.name if split else "the published sets"
            raise DataError(
                f"the data differ from {name}, in {', '.join(wrong)}: check the archive, "
                "or use --any-data"
            )
        if any(f.verdict != "same" for f in figures):
            print(
                "warning: these are not the published figures, so BLEU may differ a little from "
                "published BLEU",
                file=sys.stderr,
            )
        return 0
    except FusetkError as error:
        print(f"iwslt14.py: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
