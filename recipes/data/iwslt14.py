"""IWSLT14 German-English from its archive to raw text, and the fingerprint of what `fusetk prep` made of it.

`python iwslt14.py fetch FOLDER` downloads de-en.tgz; `... extract de-en.tgz FOLDER` writes FOLDER/{train,dev2010,...}.{de,en};
`... check PREPARED` compares the manifest of prepared data with the published figures of its split.
`... text FILE OUT` is for other languages: it writes the text of one file of their archives,
train.tags.* or *.xml.
The rules are those by which the published splits were made (Ranzato et al. 2016, MIXER, and
fairseq's variant), so they are kept even where one would do otherwise today: entities in the XML
and 72 misaligned segments of TEDX.dev2012 stay as they are.
"""

import argparse
import json
import re
import sys
import tarfile
import urllib.request
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data.filter import SUBWORDS
from fusetk.errors import DataError, FusetkError

URL = "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
LANGUAGES = ("de", "en")
# Sets for testing, in the order in which papers join them: member of the archive and its segments.
TEST_SETS = {
    "dev2010": ("IWSLT14.TED.dev2010", 887),
    "TEDX.dev2012": ("IWSLT14.TEDX.dev2012", 1165),
    "tst2010": ("IWSLT14.TED.tst2010", 1565),
    "tst2011": ("IWSLT14.TED.tst2011", 1433),
    "tst2012": ("IWSLT14.TED.tst2012", 1700),
}


class Split(NamedTuple):
    """A published way to part the training text."""

    name: str
    pairs: Mapping[str, int]  # for training and for validation
    tokens: Mapping[str, tuple[int, int]] = {}  # German and English; `test` is all five test sets


SPLITS = {  # by the most words on a side of a training pair
    50: Split("MIXER's split, at most 50 words a side", {"train": 153_326, "valid": 6_969}),
    175: Split(
        "fairseq's variant of MIXER's split, at most 175 words a side",
        {"train": 160_239, "valid": 7_283},
        {"train": (4_035_591, 3_949_114), "valid": (182_592, 178_622), "test": (161_838, 156_928)},
    ),
}
# BPE with which the tokens of a split were counted, end marks included.
MERGES = {"merges": 10_000, "joint": True}
SUPPLY = f"get it from {URL} and give it with --archive"

DROPPED = re.compile("<url>|<talkid>|<keywords>")
DROPPED_OTHERS = re.compile(
    r"</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b"
)  # as public scripts for other languages do
STRIPPED = re.compile("</?title>|</?description>")
SEGMENT = re.compile(r'<seg id="[0-9]+">\s*(.*?)\s*</seg>')


# The archive ---------------------------------------------------------------------------------------------------------


def members() -> dict[str, str]:
    """Files that are needed of the archive, by the file that is made of each."""
    found = {f"train.{language}": f"de-en/train.tags.de-en.{language}" for language in LANGUAGES}
    for name, (member, _) in TEST_SETS.items():
        found |= {
            f"{name}.{language}": f"de-en/{member}.de-en.{language}.xml" for language in LANGUAGES
        }
    return found


def fetch(path: Path, url: str = URL) -> Path:
    """Download the archive to ``path``, whole or not at all."""
    if path.exists():
        return path
    part = path.with_name(path.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as response, part.open("wb") as file:
            expected = int(response.headers.get("Content-Length") or 0)
            while block := response.read(1 << 16):
                file.write(block)
    except OSError as error:
        raise DataError(
            f"{url} cannot be downloaded ({error}): get de-en.tgz in another way and give it with --archive"
        ) from None
    if expected and part.stat().st_size != expected:
        raise DataError(
            f"the download broke off: {part} has {part.stat().st_size:,} of {expected:,} bytes; try again, or {SUPPLY}"
        )
    part.rename(path)
    return path


def read(archive: Path) -> dict[str, str]:
    """The text of every needed member. Raises DataError for an archive that is missing, damaged or lacks one."""
    if not archive.is_file():
        raise DataError(f"there is no archive {archive}: {SUPPLY}")
    wanted = {member: name for name, member in members().items()}
    found: dict[str, str] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                name = wanted.get(entry.name.removeprefix("./"))
                file = tar.extractfile(entry) if name else None
                if name and file:
                    found[name] = file.read().decode("utf-8-sig")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        size = archive.stat().st_size
        raise DataError(
            f"{archive} ({size:,} bytes) is no whole .tgz ({error}): delete it, then {SUPPLY}"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{archive}, {entry.name}: not UTF-8 ({error.reason} at byte {error.start}): {SUPPLY}"
        ) from None
    if missing := [member for member, name in wanted.items() if name not in found]:
        raise DataError(
            f"{archive} lacks {', '.join(missing)}: this is not the German-English archive of IWSLT14; {SUPPLY}"
        )
    return found


# Text ----------------------------------------------------------------------------------------------------------------


def lines(text: str) -> list[str]:
    """Lines end at a line feed and nowhere else."""
    cut = text.split("\n")
    return cut[:-1] if cut[-1] == "" else cut


def training_text(text: str, dropped: re.Pattern[str] = DROPPED) -> list[str]:
    """Lines of a ``train.tags`` file: those of talk addresses and keywords dropped, the tags of titles and descriptions stripped."""
    return [STRIPPED.sub("", line).strip(" \r") for line in lines(text) if not dropped.search(line)]


def segments(text: str, advice: str = SUPPLY) -> list[str]:
    """The text of each ``<seg id=...>`` of an XML file, typographic apostrophes made plain; raises DataError for one that is not whole."""
    found = []
    for number, line in enumerate(lines(text), 1):
        if "<seg id" in line:
            match = SEGMENT.search(line)
            if not match:
                raise DataError(
                    f"line {number} of a test set is no whole <seg> element: {line.strip()[:60]!r}; {advice}"
                )
            found.append(match[1].replace("\u2019", "'"))
    return found


def write(path: Path, text: Iterable[str]) -> None:
    """Lines to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8", newline="\n")


def plain(file: Path, out: Path) -> int:
    """Write the text of one file of an archive of other languages; returns its lines. Raises DataError for a file that has none."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} cannot be read ({error}): give a file of an unpacked archive of WIT3"
        ) from None
    advice = f"unpack {file.name} again"
    found = segments(text, advice) if file.suffix == ".xml" else training_text(text, DROPPED_OTHERS)
    if not found:
        raise DataError(f"{file} has no text: give train.tags.* or *.xml of an archive of WIT3")
    write(out, found)
    return len(found)


def extract(archive: Path, folder: Path, any_data: bool = False) -> dict[str, int]:
    """Write FOLDER/<set>.<language>; returns the lines of each set.

    Raises DataError when the sides of a set differ in length or, without ``any_data``, a test set has not its known length.
    """
    found = {
        name: training_text(text) if name.startswith("train.") else segments(text)
        for name, text in read(archive).items()
    }
    counts = {}
    for name in ("train", *TEST_SETS):
        german, english = (len(found[f"{name}.{language}"]) for language in LANGUAGES)
        if german != english or not german:
            raise DataError(
                f"{archive}: {name} has {german:,} German and {english:,} English lines, they should be equal: {SUPPLY}"
            )
        expected = TEST_SETS[name][1] if name in TEST_SETS else german
        if german != expected and not any_data:
            raise DataError(
                f"{archive}: {name} has {german:,} segments, the published set {expected:,}; use other data with --any-data"
            )
        counts[name] = german
    for name, text in found.items():
        write(folder / name, text)
    return counts


# The fingerprint -----------------------------------------------------------------------------------------------------


class Figure(NamedTuple):
    """One figure of the fingerprint. ``verdict``: same, close (a token count off by less than 0.5 %), DIFFERENT."""

    name: str
    expected: int
    found: int

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.expected == self.found:
            return "same"
        near = "pairs" not in self.name and abs(self.found - self.expected) < 0.005 * self.expected
        return "close" if near else "DIFFERENT"


def compare(prepared: Path) -> tuple[Split | None, list[Figure]]:
    """Return the published split of prepared data, None for another split, and its figures.

    Figures are those that were published: pairs of all parts, and tokens for MERGES of one split.
    Raises DataError when it has no readable manifest.
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
                pairs = sum(TEST_SETS[member][1] for member in sets)
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
    """Expected and found figures of a part.

    Pairs with too many subwords count as pairs, and end marks as tokens.
    """
    counts = manifest["splits"][part]
    known = {"pairs": (pairs, counts["pairs_out"] + counts["dropped"].get(SUBWORDS, 0))}
    if tokens:
        known["German tokens"] = tokens[0], counts["source"]["tokens_with_end"]
        known["English tokens"] = tokens[1], counts["target"]["tokens_with_end"]
    return [Figure(f"{part}: {what}", *figures) for what, figures in known.items()]


def table(figures: Iterable[Figure]) -> str:
    """As lines of text."""
    rows = [("", "expected", "found", "")] + [
        (f.name, f"{f.expected:,}", f"{f.found:,}", f.verdict) for f in figures
    ]
    return "\n".join(
        f"{name:<24}{expected:>12}{found:>12}  {verdict}".rstrip()
        for name, expected, found, verdict in rows
    )


# Command line --------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="IWSLT14 German-English: raw text and fingerprint")
    commands = parser.add_subparsers(dest="command", required=True)
    zero = commands.add_parser("fetch", help="download the archive into FOLDER and print its path")
    one = commands.add_parser("extract", help="the archive to raw text")
    one.add_argument("archive", type=Path)
    two = commands.add_parser("check", help="compare prepared data with the published figures")
    three = commands.add_parser(
        "text", help="one file of the archive of other languages to raw text"
    )
    three.add_argument("file", type=Path)
    three.add_argument("out", type=Path)
    for command in (zero, one, two):
        command.add_argument("folder", type=Path)
    for command in (one, two):
        command.add_argument(
            "--any-data", action="store_true", help="go on with data of another size"
        )
    given = parser.parse_args(arguments)
    try:
        if given.command == "fetch":
            print(fetch(given.folder / "de-en.tgz"))
            return 0
        if given.command == "text":
            print(f"{given.out}: {plain(given.file, given.out):,} lines", file=sys.stderr)
            return 0
        if given.command == "extract":
            for name, count in extract(given.archive, given.folder, given.any_data).items():
                print(f"{name}: {count:,} pairs", file=sys.stderr)
            return 0
        split, figures = compare(given.folder)
        if split is None:
            known = " or ".join(map(str, SPLITS))
            unknown = (
                f"{given.folder} is none of the published splits, whose training pairs have "
                f"at most {known} words a side"
            )
            if not given.any_data:
                raise DataError(f"{unknown}: change the filter in data.steps, or use --any-data")
            print(f"warning: {unknown}", file=sys.stderr)
        else:
            print(split.name, file=sys.stderr)
        print(table(figures), file=sys.stderr)
        wrong = [f.name for f in figures if f.verdict == "DIFFERENT"]
        if any("pairs" in name for name in wrong) and not given.any_data:
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
