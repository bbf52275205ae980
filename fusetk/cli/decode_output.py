"""What ``fusetk decode`` writes: its forms, files that are written chunk by chunk, and what a file that broke off holds."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from fusetk.data.text import cannot_write, open_bytes
from fusetk.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fusetk.decoding.translate import Translation

STANDARD_OUTPUT = "standard output"
FIELD = " ||| "
_ID = re.compile(rb"(\d+) \|\|\| ")


# Forms ---------------------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """How translations look."""

    kind: Literal["text", "moses", "json"] = "text"
    n_best: int = 1
    word_scores: bool = False
    alignment: bool = False
    soft: bool = False  # alignments are all weights
    timing: bool = False

    def show(
        self, number: int, source: Sequence[str], best: "Sequence[Translation]", seconds: float
    ) -> str:
        """The output for input line ``number``, from 0, of these source tokens, translated in so many seconds."""
        if self.kind == "json":
            found = {
                "id": number,
                "text": best[0].text if best else "",
                "source_tokens": list(source),
            }
            found |= {"translations": [self._object(one) for one in best]}
            return (
                json.dumps(
                    found | ({"seconds": round(seconds, 6)} if self.timing else {}),
                    ensure_ascii=False,
                )
                + "\n"
            )
        if self.kind == "moses":
            return "".join(f"{number}{FIELD}{self._moses(one)}\n" for one in best)
        return (
            FIELD.join([best[0].text, *self._alignment(best[0]), *self._word_scores(best[0])])
            if best
            else ""
        ) + "\n"

    def _object(self, one: "Translation") -> dict[str, Any]:
        from fusetk.decoding.alignment import hard

        found: dict[str, Any] = {
            "text": one.text,
            "tokens": one.tokens,
            "score": one.score,
            "normalized": one.normalized,
        }
        if self.word_scores:
            found["word_scores"] = one.word_scores
        if self.alignment and one.attention is not None:
            weights = one.attention.tolist()
            found["alignment"] = (
                [[round(weight, 6) for weight in row] for row in weights]
                if self.soft
                else hard(one.attention)
            )
        return found

    def _moses(self, one: "Translation") -> str:
        scores = " ".join([f"LogProb= {one.score:.6f}", *self._word_scores(one)])
        return FIELD.join([one.text, scores, f"{one.normalized:.6f}", *self._alignment(one)])

    def _word_scores(self, one: "Translation") -> list[str]:
        if not self.word_scores or one.word_scores is None:
            return []
        return ["WordScores= " + " ".join(f"{score:.6f}" for score in one.word_scores)]

    def _alignment(self, one: "Translation") -> list[str]:
        from fusetk.decoding.alignment import hard, pharaoh, soft

        if not self.alignment or one.attention is None:
            return []
        return [soft(one.attention) if self.soft else pharaoh(hard(one.attention))]


# Files ---------------------------------------------------------------------------------------------------------------


class Output:
    """A file or standard output. What is written is there at once, so that it stays if something breaks later."""

    def __init__(self, file: Any, name: str, keep: int | None = None):
        """Of what is in the file ``keep`` bytes stay; the others go with the first writing, or at the end."""
        self.file, self.name, self.keep = file, name, keep

    def write(self, text: str) -> None:
        """Raises DataError when the system refuses, BrokenPipeError when nobody reads any more."""
        rest = memoryview(text.encode())
        try:
            if self.keep is not None:
                self.file.truncate(self.keep)
                self.keep = None
            while rest:
                rest = rest[self.file.write(rest) :]
            self.file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise cannot_write(self.name, error) from None


@contextmanager
def opened(target: str, keep: int | None = None) -> Iterator[Output]:
    """A file to write to, or standard output for -; ``keep`` bytes of what is there stay, none without it.

    Where an error comes before anything is written, all stays that ``keep`` is a part of.
    """
    try:
        file = _open(target, keep)
    except OSError as error:
        raise cannot_write(target, error) from None
    try:
        output = Output(file, STANDARD_OUTPUT if target == "-" else target, keep)
        yield output
        output.write("")
    finally:
        if target != "-":
            try:
                file.close()
            except OSError as error:  # what gzip still had to write
                raise cannot_write(target, error) from None


def _open(target: str, keep: int | None) -> Any:
    """Without a buffer of its own: what a full disk refuses is said once, and not again when the file is closed."""
    if target == "-":
        try:
            return open(sys.stdout.fileno(), "wb", buffering=0, closefd=False)
        except OSError:  # not of the operating system
            return sys.stdout.buffer
    if Path(target).suffix == ".gz":
        import gzip

        return gzip.open(target, "wb")
    return open(target, "wb" if keep is None else "ab", buffering=0)


# What broke off ------------------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """What a file that broke off holds."""

    lines: int = 0  # input lines that have all or some of their output
    again: bool = False  # whether the last of them is to be done again
    size: int = 0  # bytes of the file that stay

    @property
    def kept(self) -> int:
        """Input lines that need not be done again."""
        return self.lines - self.again


def done(target: str, form: Form, start: int) -> Done | None:
    """What a file of this form holds, whose first line came from input line ``start`` (from 0); None where there is no file.

    A last line that has no end does not count. Raises DataError where the file cannot be gone on with.
    """
    if target == "-" or Path(target).suffix == ".gz":
        raise ConfigError(
            "--resume goes on with a file that is not packed: name one by -o, and not .gz"
        )
    if not Path(target).exists():
        return None
    with open_bytes(target) as file:
        return (_groups if form.kind == "moses" else _rows)(file, target, form, start)


def _rows(file: BinaryIO, target: str, form: Form, start: int) -> Done:
    """A line for each line of the input."""
    found, last = Done(), b""
    for line in file:
        if line.endswith(b"\n"):
            found, last = Done(found.lines + 1, False, found.size + len(line)), line
    if form.kind == "json" and found.lines and _number(last) != start + found.lines - 1:
        raise _foreign(target, found.lines, f"the JSON object of input line {start + found.lines}")
    return found


def _groups(file: BinaryIO, target: str, form: Form, start: int) -> Done:
    """Lines that begin with the number of the input line, the same for up to N; where the last has not N, some may be lost."""
    last, begin, size, rows = start - 1, 0, 0, 0
    for row, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            break
        match = _ID.match(line)
        if not match or int(match[1]) < max(last, start):
            raise _foreign(
                target,
                row,
                f"a translation of input line {max(last, start) + 1} or of one behind it",
            )
        if int(match[1]) > last:
            last, begin, rows = int(match[1]), size, 0
        size += len(line)
        rows += 1
    again = 0 < rows < form.n_best
    return Done(last - start + 1, again, begin if again else size)


def _number(line: bytes) -> int | None:
    try:
        found = json.loads(line)["id"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _foreign(target: str, row: int, wanted: str) -> DataError:
    return DataError(
        f"{target}, line {row}: this is not {wanted}, so --resume cannot go on with the file: name another output"
    )
