"""The input and output of ``fusetk rescore``: pairs of lines, n-best lists, and JSON."""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from fusetk.data.text import STANDARD_INPUT, display_name
from fusetk.data.vocab import EOS, SPECIAL
from fusetk.decoding.requests import (
    Ready,
    count_file_lines,
    open_texts,
    parallel_lines,
)
from fusetk.decoding.translate import Translator
from fusetk.errors import DataError, join_names, quantity
from fusetk.evaluation.rescore import RescorePair, Rescorer, ScoredTarget, ScoreRule

log = logging.getLogger(__name__)

BAR = "|||"
FEATURE = re.compile(r"(?:^|\s)\S+=\s+[-+.0-9]")  # a name and the start of its number


class RescoreInputs(NamedTuple):
    """The files to read; - is standard input."""

    files: tuple[str, ...] = ()  # source and target, or the source of an n-best list
    tsv: str | None = None
    n_best: str | None = None
    json_lines: str | None = None

    @property
    def names(self) -> list[str]:
        names = (*self.files, self.tsv, self.n_best, self.json_lines)
        return [name for name in names if name is not None]

    def count_pairs(self) -> int | None:
        """Return the number of pairs; None if it is not the number of lines of a regular file."""
        file = self.tsv or self.n_best or (self.files[0] if self.files else "-")
        return None if self.json_lines else count_file_lines(file)


class RescoreRow(NamedTuple):
    """A line of the input, and its pairs of source and target."""

    # None for a pair of lines, the fields of a line of an n-best list, or a JSON object
    content: list[str] | dict[str, Any] | None
    pairs: list[RescorePair | None]


# Reading ------------------------------------------------------------------------------------------


def read_rows(
    inputs: RescoreInputs, rescorer: Rescorer, tokenized: bool, feature: str
) -> tuple[Iterator[RescoreRow], Ready]:
    """Return the rows of the input, and whether the next row comes without a long wait.

    ``feature`` is the name of the new score in n-best lists and JSON objects. The iterator raises
    DataError, with the line number, for a line that cannot be scored.
    """
    texts, ready = open_texts(inputs.names)
    names = [display_name(name) for name in inputs.names]
    if inputs.json_lines is not None:
        return _read_objects(names[0], texts[0], rescorer, feature), ready
    if inputs.n_best is not None:
        return _read_n_best(names, texts, rescorer, tokenized, feature), ready
    if inputs.tsv is not None:
        pairs = _split_at_tabs(names[0], texts[0])
    else:
        pairs = _parallel_pairs(names, texts)
    return _encode_pairs(join_names(names), pairs, rescorer, tokenized), ready


@contextmanager
def _located(name: str, number: int) -> Iterator[None]:
    """Add the file and the line number to errors."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{name}, line {number}: {error}") from None


def _encode_pairs(
    name: str, pairs: Iterator[Sequence[str]], rescorer: Rescorer, tokenized: bool
) -> Iterator[RescoreRow]:
    translator = rescorer.translator
    for number, (source, target) in enumerate(pairs, 1):
        with _located(name, number):
            source_ids = [*translator.encode("source", source, tokenized), EOS]
            pair = rescorer.pair(source_ids, translator.tokens("target", target, tokenized))
        yield RescoreRow(None, [pair])


def _split_at_tabs(name: str, lines: Iterator[str]) -> Iterator[Sequence[str]]:
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if len(fields) != 2 and line.strip():
            raise DataError(
                f"{name}, line {number}: this line has {len(fields) - 1} tabs; give a source, one "
                "tab and a target"
            )
        yield fields if len(fields) == 2 else ("", "")


def _parallel_pairs(
    names: Sequence[str], texts: Sequence[Iterator[str]]
) -> Iterator[Sequence[str]]:
    """Yield the lines of two files. Raises DataError if one file is longer."""
    # Standard input may be endless, so it must be the first text of parallel_lines.
    step = -1 if names[1] == STANDARD_INPUT else 1
    for pair in parallel_lines(names[::step], texts[::step]):
        yield pair[::step]


def _read_n_best(
    names: Sequence[str],
    texts: Sequence[Iterator[str]],
    rescorer: Rescorer,
    tokenized: bool,
    feature: str,
) -> Iterator[RescoreRow]:
    """Read a Moses n-best list, the second text, and its source, the first text.

    A source line is read when the list reaches its first translation.
    """
    source_name, name = names
    source_lines, entries = texts
    translator = rescorer.translator
    source = _SourceLines(source_name, source_lines, translator, tokenized)
    for number, entry in enumerate(entries, 1):
        with _located(name, number):
            fields = _n_best_fields(entry)
            match = re.fullmatch(r"\s*([0-9]{1,12})\s*", fields[0])
            if len(fields) < 3 or not match:
                raise DataError(f"{entry[:40]!r} is not `ID ||| text ||| features ||| score`")
            source_ids = source.ids_of(int(match[1]))
            target = translator.tokens("target", fields[1].strip(), tokenized)
            pair = rescorer.pair(source_ids, target)
            if pair is None:
                raise DataError(
                    f"its source, line {source.num_read} of {source_name}, is blank, so it has no "
                    "score: remove the entry"
                )
            if f"{feature}=" in fields[2].split():
                raise _feature_exists(feature)
        yield RescoreRow(fields, [pair])
    # Standard input may be endless.
    if source_name != STANDARD_INPUT and (missing := source.count_missing()):
        log.warning(
            "%s has no translation of %s of %s: if the list should have all lines, make it again",
            name,
            quantity(missing, "line"),
            source_name,
        )


def _n_best_fields(entry: str) -> list[str]:
    """Return the fields of a line of an n-best list, with the features as the third field.

    A text may contain bars: the features are the first field after it that has a `Name= value`, or
    a blank third field. Raises DataError if there are no such features.
    """
    fields = entry.split(BAR)
    for i in range(2, len(fields)):
        if FEATURE.search(fields[i]):
            return [fields[0], BAR.join(fields[1:i]), *fields[i:]]
    if len(fields) > 2 and fields[2].strip():
        raise DataError(
            f"{entry[:40]!r} has no field with features, such as `LogProb= -1.5`, after the text"
        )
    return fields


class _SourceLines:
    """The source of an n-best list, read as far as the list needs it."""

    def __init__(self, name: str, lines: Iterator[str], translator: Translator, tokenized: bool):
        self.name = name
        self.lines = lines
        self.translator = translator
        self.tokenized = tokenized
        self.num_read = 0
        self.missing = 0  # source lines with words and without a translation in the list
        self.ids: list[int] = []  # of the last line that was read

    def ids_of(self, line_id: int) -> list[int]:
        """Return the ids of a line, with EOS.

        Raises DataError if the line precedes the last one or is missing.
        """
        number = line_id + 1
        if number < self.num_read:
            raise DataError(
                f"ID {line_id} comes after ID {self.num_read - 1}; sort the list by its IDs"
            )
        if number > self.num_read:
            skipped = list(islice(self.lines, number - self.num_read))
            self.num_read += len(skipped)
            self.missing += _count_with_words(skipped[:-1])
            if self.num_read < number:
                raise DataError(
                    f"{self.name} has {quantity(self.num_read, 'line')}, so it has no line for ID "
                    f"{line_id}, counted from 0: give the source of the list"
                )
            ids = self.translator.encode("source", skipped[-1], self.tokenized)
            self.ids = self.translator.truncate([*ids, EOS], self.num_read)
        return self.ids

    def count_missing(self) -> int:
        """Read all lines; return the number of those that have words and no translation."""
        return self.missing + _count_with_words(self.lines)


def _count_with_words(lines: Iterable[str]) -> int:
    return sum(1 for line in lines if line.strip())


def _read_objects(
    name: str, lines: Iterator[str], rescorer: Rescorer, feature: str
) -> Iterator[RescoreRow]:
    """Read the output of ``fusetk decode --json``; truncate long sources, with a warning."""
    translator = rescorer.translator
    for number, line in enumerate(lines, 1):
        with _located(name, number):
            try:
                content = json.loads(line)
                json.dumps(content, ensure_ascii=False).encode()  # refuse half of a surrogate pair
                vocabulary = translator.pipeline.source_vocab
                source = vocabulary.encode(_tokens(content["source_tokens"]))
                targets = [
                    _tokens(translation["tokens"]) for translation in content["translations"]
                ]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                raise DataError(
                    f"this is not a line of `fusetk decode --json` ({reason})"
                ) from None
            if any(feature in translation for translation in content["translations"]):
                raise _feature_exists(feature)
            source = translator.truncate([*source, EOS], number)
            pairs = [rescorer.pair(source, target) for target in targets]
        yield RescoreRow(content, pairs)


def _tokens(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
        raise TypeError(f"{json.dumps(value)[:40]} is not a list of tokens")
    return value


def _feature_exists(feature: str) -> DataError:
    return DataError(f"this line already has {feature}; choose another name with --feature")


# Writing ------------------------------------------------------------------------------------------


class ScoreFormat(NamedTuple):
    """The format of scores."""

    rule: ScoreRule
    feature: str
    word_scores: bool
    as_json: bool

    def format(
        self, first: int, rows: Sequence[RescoreRow], scored: Sequence[ScoredTarget | None]
    ) -> Iterator[str]:
        """Format each row; ``first`` is the number of the first row, from 0."""
        remaining = iter(scored)
        for number, row in enumerate(rows, first):
            targets = list(islice(remaining, len(row.pairs)))
            if isinstance(row.content, list):
                yield self._n_best_entry(row.content, targets[0])
            elif row.content is not None:
                yield self._json_translations(row.content, targets)
            elif self.as_json:
                yield self._json_pair(number, targets[0])
            else:
                yield self._line(targets[0])

    def _line(self, target: ScoredTarget | None) -> str:
        if target is None:
            return "\n"
        fields = [f"{self.rule.normalized(target.scores):.6f}"]
        if self.word_scores:
            scores = self.rule.counted(target.scores)
            tokens = [*target.tokens, SPECIAL[EOS]]
            fields += [f"{token} {score:.6f}" for token, score in zip(tokens, scores, strict=False)]
        return "\t".join(fields) + "\n"

    def _json_pair(self, number: int, target: ScoredTarget | None) -> str:
        line: dict[str, Any] = {"id": number, "score": None, "normalized": None, "tokens": []}
        if target is not None:
            line["score"] = self.rule.score(target.scores)
            line["normalized"] = self.rule.normalized(target.scores)
            line["tokens"] = target.tokens
        if self.word_scores:
            line["word_scores"] = [] if target is None else list(self.rule.counted(target.scores))
        return json.dumps(line, ensure_ascii=False) + "\n"

    def _n_best_entry(self, fields: Sequence[str], target: ScoredTarget | None) -> str:
        """Return a line of an n-best list; ``fields`` are the texts between bars, with spaces."""
        assert target is not None
        score = f"{self.feature}= {self.rule.normalized(target.scores):.6f}"
        features = f"{fields[2].rstrip()} {score}"
        if len(fields) > 3:
            features += " "
        return BAR.join([*fields[:2], features, *fields[3:]]) + "\n"

    def _json_translations(
        self, content: dict[str, Any], targets: Sequence[ScoredTarget | None]
    ) -> str:
        translations = []
        for translation, target in zip(content["translations"], targets, strict=True):
            score = None if target is None else self.rule.normalized(target.scores)
            translations.append({**translation, self.feature: score})
        return json.dumps({**content, "translations": translations}, ensure_ascii=False) + "\n"
