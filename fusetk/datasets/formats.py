"""Text formats of the publishers: lines, tagged lines of WIT3, and <seg> elements."""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fusetk.data.text import read_lines
from fusetk.datasets.table import TextConfig
from fusetk.errors import DataError

# Tags that are removed from their lines in training text of WIT3. The text remains.
STRIPPED = re.compile("</?title>|</?description>")
CEDILLAS = str.maketrans("ŞşŢţ", "ȘșȚț")
# A tag of a document, of a set or of a segment. Attributes may lack quotes.
TAG = re.compile(r"<\s*(/?)\s*(doc|seg)\b([^>]*)>", re.IGNORECASE)
ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")


class Segment(NamedTuple):
    """A <seg> element."""

    document: str  # docid of its document
    system: str  # sysid of its document, which names the reference; may be empty
    number: str  # its id
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """The document and the number. The translations of a segment have the same key."""
        return self.document, self.number


def line_function(text: TextConfig) -> Callable[[str], str]:
    """Return the function that changes each sentence as the description of the text says."""

    def change(line: str) -> str:
        if text.entities:
            line = html.unescape(line).replace("\n", " ").replace("\r", " ")
        if text.apostrophes:
            line = line.replace("\u2019", "'")
        if text.commas:
            line = line.translate(CEDILLAS)
        return line

    return change


def plain_lines(path: Path, text: TextConfig) -> Iterator[str]:
    """Yield the sentences of a file in the format `lines` or `wit3`."""
    change = line_function(text)
    if text.format == "lines":
        yield from map(change, read_lines(path))
        return
    dropped = re.compile("|".join(rf"</?{tag}\b" for tag in text.dropped))
    for line in read_lines(path):
        if not (text.dropped and dropped.search(line)):
            yield change(STRIPPED.sub("", line).strip(" \r"))


def segments(path: Path, text: TextConfig) -> list[Segment]:
    """Return the <seg> elements of an XML or SGML file.

    Raises DataError with the line of a segment that is not complete.
    """
    change = line_function(text)
    content = "\n".join(read_lines(path))
    document: dict[str, str] = {}
    result: list[Segment] = []
    start: re.Match[str] | None = None
    for tag in TAG.finditer(content):
        closes, name = bool(tag[1]), tag[2].lower()
        if start is not None and not (closes and name == "seg"):
            raise _incomplete(path, content, start)
        if name == "doc":
            document = {} if closes else _attributes(tag[3])
        elif not closes:
            start = tag
        elif start is not None:
            words = " ".join(content[start.end() : tag.start()].split("\n")).strip(" \t\r")
            number = _attributes(start[3]).get("id", "")
            owner = document.get("docid", ""), document.get("sysid", "")
            result.append(Segment(*owner, number, change(words)))
            start = None
    if start is not None:
        raise _incomplete(path, content, start)
    if not result:
        raise DataError(f"{path} has no <seg> element: give a set of segments")
    return result


def _attributes(text: str) -> dict[str, str]:
    return {
        match[1].lower(): match[2] or match[3] or match[4] or ""
        for match in ATTRIBUTE.finditer(text)
    }


def _incomplete(path: Path, content: str, start: re.Match[str]) -> DataError:
    line = content.count("\n", 0, start.start()) + 1
    return DataError(f"{path}, line {line}: the <seg> element has no end; repair the file")


def references(source: list[Segment], target: list[Segment], path: Path) -> list[list[str]]:
    """Return the sentences of each reference in the order of the source segments.

    The documents of a reference have the same sysid. If each source segment has one target segment,
    the documents may have different sysids, such as names of translators. Raises DataError if a
    segment of a reference is missing or occurs twice.
    """
    keys = [segment.key for segment in source]
    if keys == [segment.key for segment in target]:
        return [[segment.text for segment in target]]
    texts: dict[str, dict[tuple[str, str], str]] = {}
    for segment in target:
        reference = texts.setdefault(segment.system, {})
        if segment.key in reference:
            raise DataError(
                f"{path}: document {segment.document}, segment {segment.number} occurs twice in "
                f"the reference {segment.system!r}; repair the file"
            )
        reference[segment.key] = segment.text
    result = []
    for system, reference in texts.items():
        missing = [key for key in keys if key not in reference]
        if missing:
            raise DataError(
                f"{path}: the reference {system!r} lacks {len(missing)} of {len(keys)} segments "
                f"(the first one is segment {missing[0][1]} of document {missing[0][0]}); complete "
                "the file"
            )
        result.append([reference[key] for key in keys])
    return result


def same_number(name: str, sides: Iterable[tuple[Path, int]]) -> int:
    """Return the number of lines of the files of a text. Raises DataError if they differ."""
    counts = list(sides)
    if len({count for _, count in counts}) != 1:
        listed = ", ".join(f"{path} {count:,}" for path, count in counts)
        raise DataError(
            f"{name}: the files have different numbers of sentences ({listed}); get them again"
        )
    return counts[0][1]
