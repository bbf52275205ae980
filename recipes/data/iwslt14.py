"""Extract the text of IWSLT14 German-English, and compare prepared data with its published split.

`python iwslt14.py fetch FOLDER` downloads de-en.tgz. `... extract de-en.tgz FOLDER` writes
FOLDER/{train,dev2010,...}.{de,en}. `... check PREPARED` compares the manifest of prepared data with
the published counts of its split. `... text FILE OUT` writes the text of one file, train.tags.* or
*.xml, of the archive of another language.

The rules are those of the published splits (Ranzato et al. 2016, MIXER, and fairseq's variant). So
entities in the XML and 72 misaligned segments of TEDX.dev2012 are kept.
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
# Test sets, in the order in which papers join them: member of the archive and number of segments.
TEST_SETS = {
    "dev2010": ("IWSLT14.TED.dev2010", 887),
    "TEDX.dev2012": ("IWSLT14.TEDX.dev2012", 1165),
    "tst2010": ("IWSLT14.TED.tst2010", 1565),
    "tst2011": ("IWSLT14.TED.tst2011", 1433),
    "tst2012": ("IWSLT14.TED.tst2012", 1700),
}


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
SUPPLY = f"get it from {URL} and give it with --archive"

DROPPED = re.compile("<url>|<talkid>|<keywords>")
# The lines that public scripts for other languages drop.
DROPPED_OTHERS = re.compile(r"</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b")
STRIPPED = re.compile("</?title>|</?description>")
SEGMENT = re.compile(r'<seg id="[0-9]+">\s*(.*?)\s*</seg>')


# The archive


def members() -> dict[str, str]:
    """Return the members of the archive that are read, by output file."""
    names = {}
    for language in LANGUAGES:
        names[f"train.{language}"] = f"de-en/train.tags.de-en.{language}"
    for name, (member, _) in TEST_SETS.items():
        for language in LANGUAGES:
            names[f"{name}.{language}"] = f"de-en/{member}.de-en.{language}.xml"
    return names


def fetch(path: Path, url: str = URL) -> Path:
    """Download the archive to ``path``, unless it exists.

    Raises DataError for an incomplete download.
    """
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
            f"{url} cannot be downloaded ({error}): "
            "get de-en.tgz in another way and give it with --archive"
        ) from None
    if expected and part.stat().st_size != expected:
        raise DataError(
            f"the download is incomplete: {part} has {part.stat().st_size:,} of {expected:,} "
            f"bytes; try again, or {SUPPLY}"
        )
    part.rename(path)
    return path


def read(archive: Path) -> dict[str, str]:
    """Return the text of each member by output file.

    Raises DataError if the archive or a member is missing, or the archive is damaged.
    """
    if not archive.is_file():
        raise DataError(f"there is no archive {archive}: {SUPPLY}")
    names = {member: name for name, member in members().items()}
    texts: dict[str, str] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                name = names.get(entry.name.removeprefix("./"))
                file = tar.extractfile(entry) if name else None
                if name and file:
                    texts[name] = file.read().decode("utf-8-sig")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        size = archive.stat().st_size
        raise DataError(
            f"{archive} ({size:,} bytes) is not a complete .tgz ({error}): delete it, then {SUPPLY}"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{archive}, {entry.name}: not UTF-8 ({error.reason} at byte {error.start}): {SUPPLY}"
        ) from None
    if missing := [member for member, name in names.items() if name not in texts]:
        raise DataError(
            f"{archive} lacks {', '.join(missing)}: "
            f"this is not the German-English archive of IWSLT14; {SUPPLY}"
        )
    return texts


# Text


def lines(text: str) -> list[str]:
    """Split text at line feeds only."""
    parts = text.split("\n")
    return parts[:-1] if parts[-1] == "" else parts


def training_text(text: str, dropped: re.Pattern[str] = DROPPED) -> list[str]:
    """Return the lines of a ``train.tags`` file.

    Lines with talk addresses and keywords are dropped. Tags of titles and descriptions are removed
    from their lines.
    """
    return [STRIPPED.sub("", line).strip(" \r") for line in lines(text) if not dropped.search(line)]


def segments(text: str, advice: str = SUPPLY) -> list[str]:
    """Return the text of each ``<seg id=...>`` of an XML file, with plain apostrophes.

    Raises DataError for an incomplete element.
    """
    texts = []
    for number, line in enumerate(lines(text), 1):
        if "<seg id" in line:
            match = SEGMENT.search(line)
            if not match:
                raise DataError(
                    f"line {number} of a test set is not a complete <seg> element: "
                    f"{line.strip()[:60]!r}; {advice}"
                )
            texts.append(match[1].replace("\u2019", "'"))
    return texts


def write(path: Path, text: Iterable[str]) -> None:
    """Write lines to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8", newline="\n")


def plain(file: Path, out: Path) -> int:
    """Write the text of a file of another language's archive and return its number of lines.

    Raises DataError for a file without text.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} cannot be read ({error}): give a file of an unpacked archive of WIT3"
        ) from None
    advice = f"unpack {file.name} again"
    if file.suffix == ".xml":
        output = segments(text, advice)
    else:
        output = training_text(text, DROPPED_OTHERS)
    if not output:
        raise DataError(f"{file} has no text: give train.tags.* or *.xml of an archive of WIT3")
    write(out, output)
    return len(output)


def extract(archive: Path, folder: Path, any_data: bool = False) -> dict[str, int]:
    """Write FOLDER/<set>.<language> and return the number of lines of each set.

    Raises DataError if the sides of a set differ in length, or if a test set does not have its
    published length and ``any_data`` is not set.
    """
    texts = {
        name: training_text(text) if name.startswith("train.") else segments(text)
        for name, text in read(archive).items()
    }
    counts = {}
    for name in ("train", *TEST_SETS):
        german, english = (len(texts[f"{name}.{language}"]) for language in LANGUAGES)
        if german != english or not german:
            raise DataError(
                f"{archive}: {name} has {german:,} German and {english:,} English lines, "
                f"they should be equal: {SUPPLY}"
            )
        expected = TEST_SETS[name][1] if name in TEST_SETS else german
        if german != expected and not any_data:
            raise DataError(
                f"{archive}: {name} has {german:,} segments, the published set {expected:,}; "
                "use other data with --any-data"
            )
        counts[name] = german
    for name, text in texts.items():
        write(folder / name, text)
    return counts


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
    parser = argparse.ArgumentParser(
        description="IWSLT14 German-English: text and published counts"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="download the archive to FOLDER, print its path")
    extracting = commands.add_parser("extract", help="write the archive's raw text")
    extracting.add_argument("archive", type=Path)
    checking = commands.add_parser("check", help="compare prepared data with the published counts")
    converting = commands.add_parser("text", help="write the text of a file of another language")
    converting.add_argument("file", type=Path)
    converting.add_argument("out", type=Path)
    for command in (fetching, extracting, checking):
        command.add_argument("folder", type=Path)
    for command in (extracting, checking):
        command.add_argument(
            "--any-data", action="store_true", help="continue with data of another size"
        )
    options = parser.parse_args(arguments)
    try:
        if options.command == "fetch":
            print(fetch(options.folder / "de-en.tgz"))
            return 0
        if options.command == "text":
            print(f"{options.out}: {plain(options.file, options.out):,} lines", file=sys.stderr)
            return 0
        if options.command == "extract":
            for name, count in extract(options.archive, options.folder, options.any_data).items():
                print(f"{name}: {count:,} pairs", file=sys.stderr)
            return 0
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
