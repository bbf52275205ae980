"""The output formats of ``fusetk decode``, and the point where an output file is continued."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from fusetk.data.text import open_bytes
from fusetk.errors import ConfigError, DataError
from fusetk.files import is_stream

if TYPE_CHECKING:
    from fusetk.decoding.translate import Translation

SEPARATOR = " ||| "
_ID = re.compile(rb"(\d{1,18}) \|\|\| ")
_N_BEST_LINE = re.compile(_ID.pattern + rb".*\|\|\| LogProb= ")


# Formats ------------------------------------------------------------------------------------------


class OutputFormat(NamedTuple):
    """The format of translations."""

    kind: Literal["text", "moses", "json"] = "text"
    n_best: int = 1
    word_scores: bool = False
    alignment: bool = False
    soft: bool = False  # whether an alignment consists of all attention weights
    timing: bool = False

    @property
    def has_scores(self) -> bool:
        """Whether the format contains the scores of translations."""
        return self.kind != "text"

    @classmethod
    def from_options(
        cls,
        n_best: int | None,
        as_json: bool,
        word_scores: bool,
        alignment: str | None,
        alignment_form: str | None,
        timing: bool,
    ) -> "OutputFormat":
        """Return the format that the options of ``fusetk decode`` select.

        Raises ConfigError for options that have no effect.
        """
        if alignment_form and not alignment:
            raise ConfigError("--alignment-form has no effect without --alignment: add --alignment")
        if timing and not as_json:
            raise ConfigError("--timing has no effect without --json: add --json")
        kind: Literal["json", "moses", "text"] = "text" if n_best is None else "moses"
        if as_json:
            kind = "json"
        soft = alignment_form == "soft"
        return cls(kind, n_best or 1, word_scores, alignment is not None, soft, timing)

    def format(
        self, number: int, source: Sequence[str], n_best: "Sequence[Translation]", seconds: float
    ) -> str:
        """Format the translations of input line ``number``, from 0.

        ``source`` holds the tokens of the line, for JSON. ``seconds`` is the duration of the
        translation.
        """
        if self.kind == "json":
            return self._json(number, source, n_best, seconds)
        if self.kind == "moses":
            return "".join(
                f"{number}{SEPARATOR}{self._moses(translation)}\n" for translation in n_best
            )
        if not n_best:
            return "\n"
        best = n_best[0]
        fields = [best.text, *self._alignment(best), *self._word_scores(best)]
        return SEPARATOR.join(fields) + "\n"

    def _json(
        self, number: int, source: Sequence[str], n_best: "Sequence[Translation]", seconds: float
    ) -> str:
        line: dict[str, Any] = {
            "id": number,
            "text": n_best[0].text if n_best else "",
            "source_tokens": list(source),
            "translations": [self._json_translation(translation) for translation in n_best],
        }
        if self.timing:
            line["seconds"] = round(seconds, 6)
        return json.dumps(line, ensure_ascii=False) + "\n"

    def _json_translation(self, translation: "Translation") -> dict[str, Any]:
        from fusetk.decoding.alignment import hard

        content: dict[str, Any] = {
            "text": translation.text,
            "tokens": translation.tokens,
            "score": translation.score,
            "normalized": translation.normalized,
        }
        if translation.utility is not None:
            content["utility"] = translation.utility
        if self.word_scores:
            content["word_scores"] = translation.word_scores
        if self.alignment and translation.attention is not None:
            if self.soft:
                weights = translation.attention.tolist()
                content["alignment"] = [[round(weight, 6) for weight in row] for row in weights]
            else:
                content["alignment"] = hard(translation.attention)
        return content

    def _moses(self, translation: "Translation") -> str:
        features = [f"LogProb= {translation.score:.6f}", *self._word_scores(translation)]
        if translation.utility is not None:
            features.append(f"Utility= {translation.utility:.4f}")
        value = f"{translation.normalized:.6f}"
        fields = [translation.text, " ".join(features), value, *self._alignment(translation)]
        return SEPARATOR.join(fields)

    def _word_scores(self, translation: "Translation") -> list[str]:
        if not self.word_scores or translation.word_scores is None:
            return []
        return ["WordScores= " + " ".join(f"{score:.6f}" for score in translation.word_scores)]

    def _alignment(self, translation: "Translation") -> list[str]:
        from fusetk.decoding.alignment import hard, pharaoh, soft

        weights = translation.attention
        if not self.alignment or weights is None:
            return []
        return [soft(weights) if self.soft else pharaoh(hard(weights))]


# Interrupted outputs ------------------------------------------------------------------------------


class ResumePoint(NamedTuple):
    """The point at which an interrupted output is continued."""

    lines: int = 0  # input lines that have output, completely or partly
    redo_last: bool = False  # whether the last of them must be translated again
    size: int = 0  # bytes of the file that stay

    @property
    def num_complete(self) -> int:
        """The number of input lines that need not be translated again."""
        return self.lines - self.redo_last


def find_resume_point(target: str, form: OutputFormat, start: int) -> ResumePoint | None:
    """Find the point where a file of this format is continued; None if the file does not exist.

    The first line of the file belongs to input line ``start``, from 0. A last line without a line
    end does not count. Raises ConfigError or DataError if the file cannot be continued.
    """
    if target == "-":
        raise ConfigError("--resume continues an output file: name it with -o")
    if Path(target).suffix == ".gz":
        raise ConfigError(
            "--resume continues a file that is not compressed: give -o with a name that does not "
            "end in .gz"
        )
    if not Path(target).exists():
        return None
    if is_stream(target):
        raise ConfigError(f"{target}: --resume continues a file, and this is a pipe or a device")
    with open_bytes(target) as file:
        if form.kind == "moses":
            return _resume_moses(file, target, form, start)
        return _resume_lines(file, target, form, start)


def _resume_lines(file: BinaryIO, target: str, form: OutputFormat, start: int) -> ResumePoint:
    """Find the resume point of a format with one output line for each input line."""
    lines = 0
    size = 0
    last = b""
    for line in file:
        if line.endswith(b"\n"):
            lines += 1
            size += len(line)
            last = line
    if form.kind == "json" and lines and _json_id(last) != start + lines - 1:
        raise _cannot_resume(target, lines, f"the JSON object of input line {start + lines}")
    if form.kind == "text" and (_N_BEST_LINE.match(last) or _json_id(last) is not None):
        raise _cannot_resume(
            target, lines, "a line of plain text (was it made by --n-best or --json?)"
        )
    return ResumePoint(lines, False, size)


def _resume_moses(file: BinaryIO, target: str, form: OutputFormat, start: int) -> ResumePoint:
    """Find the resume point of a format with up to N output lines for each input line.

    Each output line begins with the number of its input line. If the last input line has fewer than
    N output lines, some may be missing, so it must be translated again. If an input line has more,
    the file was made with a larger N, and it cannot be continued.
    """
    last = start - 1  # the number of the last input line
    last_begin = 0  # the byte of the file where its output begins
    last_rows = 0
    size = 0
    for row, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            break
        match = _ID.match(line)
        if not match or int(match[1]) < max(last, start):
            expected = f"a translation of input line {max(last, start) + 1} or a later one"
            raise _cannot_resume(target, row, expected)
        if int(match[1]) > last:
            last = int(match[1])
            last_begin = size
            last_rows = 0
        size += len(line)
        last_rows += 1
        if last_rows > form.n_best:
            expected = (
                f"one of the {form.n_best} best translations of input line {last + 1} (was it made "
                "with a larger --n-best?)"
            )
            raise _cannot_resume(target, row, expected)
    redo_last = 0 < last_rows < form.n_best
    return ResumePoint(last - start + 1, redo_last, last_begin if redo_last else size)


def _json_id(line: bytes) -> int | None:
    try:
        number = json.loads(line)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return number if isinstance(number, int) else None


def _cannot_resume(target: str, row: int, expected: str) -> DataError:
    return DataError(
        f"{target}, line {row}: this is not {expected}, so --resume cannot continue the file: name "
        "another output"
    )
