"""Tokens and their ids."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from fusetk.data.text import is_line, read_lines, writer
from fusetk.errors import DataError
from fusetk.special_tokens import BOS, EOS, PAD, SPECIAL, UNK

__all__ = ["BOS", "EOS", "MANY_UNKNOWN", "PAD", "SPECIAL", "UNK", "Vocabulary"]

MAX_DIGITS = 18  # the longest count or id
MANY_UNKNOWN = 0.2  # share of unknown tokens above which there is a warning
MAPPINGS = (".yml", ".yaml", ".json")  # endings of the files that map tokens to ids
# The special tokens of Nematus' files, with the ids 0, 1 and, in newer files, 2.
NEMATUS_SPECIAL = ("eos", "UNK", "<EOS>", "<UNK>", "<GO>")
BLANK = "<blank>"  # OpenNMT's padding token, in a file with special tokens
FIRST_LINES = 4  # lines at the start of a file that can have special tokens
# Lines of a YAML file that maps tokens to ids. ``save`` writes a tab before a count.
YAML_ENTRY = re.compile(r".+: +[0-9]+ *")
YAML_SPECIAL = re.compile(
    rf"([\"']?)({'|'.join(map(re.escape, (*SPECIAL, *NEMATUS_SPECIAL)))})\1: +[0-3] *"
)


class Vocabulary:
    """Tokens in a fixed order, the four special tokens first; a token's position is its id.

    A vocabulary file has one token a line, followed by a tab and its count if counts are known.
    Raises DataError if a token occurs twice.
    """

    def __init__(self, tokens: Sequence[str], counts: Sequence[int] | None = None):
        self.tokens = [*SPECIAL, *tokens]
        # Counts of `tokens`, without the special tokens.
        self.counts = None if counts is None else list(counts)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            repeated = next(token for i, token in enumerate(self.tokens) if self.ids[token] != i)
            raise DataError(f"the vocabulary has the token {repeated!r} twice: remove one")

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], threshold: int = 1, size: int | None = None
    ) -> "Vocabulary":
        """Return a vocabulary of the most frequent tokens; ties are in code point order.

        ``threshold`` is the smallest count; ``size`` includes the special tokens.
        """
        entries = [
            (token, n) for token, n in counts.items() if n >= threshold and token not in SPECIAL
        ]
        entries.sort(key=lambda entry: (-entry[1], entry[0]))
        if size is not None:
            entries = entries[: size - len(SPECIAL)]
        return cls([token for token, _ in entries], [n for _, n in entries])

    @classmethod
    def load(cls, path: Path | str, bom: bool = False) -> "Vocabulary":
        """Read a vocabulary file.

        Reads files written by ``save``, files of fairseq, lists of tokens, .yml files of Marian and
        .json files of Nematus and Sockeye. A mapping is recognised by the ending .yml, .yaml or
        .json of its name, in any case, also before .gz. With ``bom``, a byte order mark at the
        start is dropped. Otherwise it belongs to the first token, as in a file that ``save`` wrote.
        Raises DataError with the malformed line.
        """
        path = Path(path)
        counts = None
        if mapping_ending(path):
            tokens = _read_ids(path)
        else:
            tokens, counts = _read_tokens(path, bom)
        try:
            return cls(tokens, counts)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def save(self, path: Path | str) -> None:
        """Write one token a line, followed by a tab and its count if counts are known.

        If a token has a space, a tab or a carriage return, unknown counts are written as 0. Without
        a count, a reader would split or shorten such a token.
        """
        tokens = self.tokens[len(SPECIAL) :]
        counts: Sequence[int] | None = self.counts
        if counts is None and any(set(token) & set(" \t\r") for token in tokens):
            counts = [0] * len(tokens)
        with writer(path) as file:
            for i, token in enumerate(tokens):
                count = "" if counts is None else f"\t{counts[i]}"
                file.write(f"{token}{count}\n")

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens, without EOS.

        Tokens that are not in the vocabulary or are spelled like a special token become ``UNK``.
        """
        ids = (self.ids.get(token, UNK) for token in tokens)
        return [i if i >= len(SPECIAL) else UNK for i in ids]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens before the first EOS."""
        return [self.tokens[i] for i in takewhile(lambda i: i != EOS, ids)]


def split_at_count(line: str) -> tuple[str, str, str]:
    """Split a line at its last space or tab, as ``str.rpartition``."""
    return line.rpartition("\t" if line.rfind("\t") > line.rfind(" ") else " ")


def is_number(text: str) -> bool:
    """Whether a text can be a count or an id: a number of at most ``MAX_DIGITS`` digits."""
    return text.isdecimal() and len(text) <= MAX_DIGITS


def mapping_ending(path: Path | str) -> str | None:
    """Return the ending of the name of a file that maps tokens to ids; None for other files.

    The ending is in lower case and has no `.gz`.
    """
    ending = Path(str(path).lower().removesuffix(".gz")).suffix
    return ending if ending in MAPPINGS else None


def refuse_yaml(lines: Iterable[str], path: Path, advice: str) -> Iterator[str]:
    """Yield the lines of a file of tokens and counts.

    Raises DataError with ``advice`` if they are a YAML mapping of tokens to ids: if one of the
    first lines maps a special token, or if all lines are entries of a mapping.
    """
    problem = f"this looks like a YAML mapping of tokens to ids; {advice}"
    is_mapping = False
    for number, line in enumerate(lines, 1):
        if number <= FIRST_LINES and YAML_SPECIAL.fullmatch(line):
            raise DataError(f"{path}, line {number}: {problem}")
        is_mapping = (is_mapping or number == 1) and YAML_ENTRY.fullmatch(line) is not None
        yield line
    if is_mapping:
        raise DataError(f"{path}, line 1: {problem}")


def _read_tokens(path: Path, bom: bool) -> tuple[list[str], list[int] | None]:
    """Return the tokens, and their counts if every line has a count after a tab or a space.

    Special tokens are omitted.
    """
    entries: list[tuple[str, int | None]] = []
    lines = refuse_yaml(read_lines(path, bom), path, "give it a name that ends in .yml")
    for number, line in enumerate(lines, 1):
        token, separator, count = split_at_count(line)
        if not separator:
            token = line
        elif count == "#fairseq:overwrite":
            raise DataError(
                f"{path}, line {number}: fairseq's overwrite marks are not supported; remove them"
            )
        elif not is_number(count):
            raise DataError(
                f"{path}, line {number}: {line[:40]!r} is not a vocabulary entry; write a token, "
                "or a token and its count with a tab or a space between them"
            )
        if not token:
            raise DataError(f"{path}, line {number}: the token is missing; write one on each line")
        entries.append((token, int(count) if separator else None))
    first = {token for token, _ in entries[:FIRST_LINES]}
    # A file that ``save`` wrote has no special tokens: its <blank> is an ordinary token.
    special = {*SPECIAL, BLANK} if BLANK in first and not first.isdisjoint(SPECIAL) else SPECIAL
    entries = [entry for entry in entries if entry[0] not in special]
    counts = [count for _, count in entries if count is not None]
    return [token for token, _ in entries], counts if len(counts) == len(entries) else None


def _read_ids(path: Path) -> list[str]:
    """Return the tokens of a file that maps tokens to ids, sorted by id, without special tokens."""
    text = "\n".join(read_lines(path))
    entries = _parse_mapping(path, text)
    if not isinstance(entries, dict):
        raise DataError(
            f"{path}, line 1: the file must hold a mapping of tokens to ids, "
            f"but its content has the type {type(entries).__name__}"
        )
    ids: dict[str, int] = {}
    for token, i in entries.items():
        if not token or not is_line(token):
            raise DataError(
                f"{path} has the token {token!r}, which cannot be a line of a vocabulary: remove it"
            )
        if not is_number(str(i)):
            raise DataError(
                f"{path}: the id of {token!r} is {str(i)[:20]!r}, not a number of at most "
                f"{MAX_DIGITS} digits"
            )
        ids[token] = int(str(i))
    by_id: dict[int, str] = {}
    for token, i in ids.items():
        if (other := by_id.setdefault(i, token)) is not token:
            raise DataError(f"{path}: {other!r} and {token!r} have the same id, {i}: correct one")
    return [
        token
        for token in sorted(ids, key=lambda token: ids[token])
        if token not in SPECIAL and not (ids[token] < 3 and token in NEMATUS_SPECIAL)
    ]


def _parse_mapping(path: Path, text: str) -> Any:
    try:
        if mapping_ending(path) == ".json":
            return json.loads(text, object_pairs_hook=lambda entries: _unique(path, entries))
        return yaml.load(text, Loader=_loader(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # nested lists, or a number with many digits
        raise DataError(f"{path} is not a mapping of tokens to ids: {error}") from None
    except yaml.reader.ReaderError as error:
        raise DataError(f"{path}: not valid YAML: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DataError(f"{path}{line}: not valid YAML: {error.problem}") from None


def _loader(path: Path) -> type[Any]:
    base: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

    class Loader(base):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            _unique(path, [(key, None) for key in keys])
            mapping: dict[str, Any] = super().construct_mapping(node, deep)
            return mapping

    return Loader


def _unique(path: Path, entries: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return the entries of a mapping. Raises DataError if a token occurs twice."""
    mapping = {}
    for token, i in entries:
        if token in mapping:
            raise DataError(f"{path} has {token!r} twice: remove one of the entries")
        mapping[token] = i
    return mapping
