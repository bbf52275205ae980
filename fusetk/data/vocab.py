"""Tokens and their ids."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fusetk.data.text import read_lines, writer
from fusetk.errors import DataError

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
NEMATUS_SPECIAL = ("eos", "UNK", "<EOS>", "<UNK>", "<GO>")  # with the ids 0, 1 in Nematus' files


class Vocabulary:
    """Tokens in a fixed order, the four special ones first. On disk: one token a line, a tab and its count.

    Raises DataError for a token that stands twice.
    """

    def __init__(self, tokens: Sequence[str], counts: Sequence[int] | None = None):
        self.tokens = [*SPECIAL, *tokens]
        self.counts = (
            None if counts is None else list(counts)
        )  # of `tokens`, without the special ones
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for i, token in enumerate(self.tokens) if self.ids[token] != i)
            raise DataError(f"the vocabulary has the token {twice!r} twice")

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], threshold: int = 1, size: int | None = None
    ) -> "Vocabulary":
        """The most frequent tokens, ties in code point order; `size` has the special tokens in it."""
        entries = [
            (token, n) for token, n in counts.items() if n >= threshold and token not in SPECIAL
        ]
        entries.sort(key=lambda entry: (-entry[1], entry[0]))
        if size is not None:
            entries = entries[: size - len(SPECIAL)]
        return cls([token for token, _ in entries], [n for _, n in entries])

    @classmethod
    def load(cls, path: Path | str) -> "Vocabulary":
        """Read a vocabulary file: this class' own, fairseq's, plain tokens, Marian's .yml, Nematus' or Sockeye's .json.

        Raises DataError with the line of what is malformed.
        """
        path = Path(path)
        if path.suffix in (".yml", ".yaml", ".json"):
            tokens, counts = _by_ids(path), None
        else:
            tokens, counts = _by_lines(path)
        try:
            return cls(tokens, counts)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def save(self, path: Path | str) -> None:
        """Write one token a line, with a tab and its count when counts are known."""
        with writer(path) as file:
            for i, token in enumerate(self.tokens[len(SPECIAL) :]):
                file.write(
                    f"{token}\t{self.counts[i]}\n" if self.counts is not None else f"{token}\n"
                )

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids, ``UNK`` for what is not known; no end mark is added. A token spelled like a special one is unknown."""
        ids = (self.ids.get(token, UNK) for token in tokens)
        return [i if i >= len(SPECIAL) else UNK for i in ids]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Tokens up to the first end mark."""
        tokens = []
        for i in ids:
            if i == EOS:
                break
            tokens.append(self.tokens[i])
        return tokens


def _by_lines(path: Path) -> tuple[list[str], list[int] | None]:
    """Tokens, and their counts when every line has one after a tab or a space."""
    tokens: list[str] = []
    counts: list[int] = []
    for number, line in enumerate(read_lines(path, bom=False), 1):
        token, separator, count = line.rpartition("\t" if "\t" in line else " ")
        if not separator:
            token = line
        elif line.startswith("#fairseq:") or token.endswith(" #fairseq:overwrite"):
            raise DataError(
                f"{path}, line {number}: fairseq's overwrite marks are not read; remove them"
            )
        elif not count.isdecimal():
            raise DataError(
                f"{path}, line {number}: {line[:40]!r} is neither a token nor a token, a tab or space and its count"
            )
        if not token:
            raise DataError(
                f"{path}, line {number}: there is no token; a vocabulary file has one token a line"
            )
        if token in SPECIAL:
            continue
        tokens.append(token)
        if separator:
            counts.append(int(count))
    return tokens, counts if len(counts) == len(tokens) else None


def _by_ids(path: Path) -> list[str]:
    """The tokens of a file that gives each its id, in their order and without the special ones."""
    text = "\n".join(read_lines(path))
    try:
        found: Any = (
            json.loads(text)
            if path.suffix == ".json"
            else yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        )
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DataError(f"{path}{line}: not valid YAML: {error.problem}") from None
    if not isinstance(found, dict):
        raise DataError(
            f"{path}, line 1: a mapping of tokens to ids is expected, this is a {type(found).__name__}"
        )
    ids: dict[str, int] = {}
    for token, i in found.items():
        if not str(i).isdecimal():
            raise DataError(
                f"{path}{_line_of(text, token)}: the id of {token!r} is {str(i)[:20]!r}, no number"
            )
        ids[token] = int(str(i))
    tokens = sorted(ids, key=lambda token: ids[token])
    return [
        token
        for token in tokens
        if token not in SPECIAL and not (ids[token] < 2 and token in NEMATUS_SPECIAL)
    ]


def _line_of(text: str, token: str) -> str:
    for number, line in enumerate(text.split("\n"), 1):
        if token in line:
            return f", line {number}"
    return ""
