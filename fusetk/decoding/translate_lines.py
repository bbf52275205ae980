"""Translation of a stream of lines to formatted output, as ``fusetk decode`` does it."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fusetk.data.text import check_inputs_and_output
from fusetk.decoding.formats import OutputFormat, ResumePoint, find_resume_point
from fusetk.decoding.output_file import OutputFile
from fusetk.decoding.requests import (
    DecodeInputs,
    Request,
    count_file_lines,
    line_range,
    read_requests,
    skip_done,
)
from fusetk.decoding.stream import chunks
from fusetk.display import Task
from fusetk.errors import quantity

if TYPE_CHECKING:
    from fusetk.decoding.distributed import Chunk, ChunkOutput, Translate
    from fusetk.decoding.translate import Translator
    from fusetk.processes import World


class InputRange(NamedTuple):
    """The input lines to translate, and the point at which an earlier run was interrupted."""

    start: int = 0  # the first line of the part, from 0
    end: int | None = None  # the line after the last line of the part
    resume: ResumePoint | None = None

    @property
    def first(self) -> int:
        """The first line that is not translated yet."""
        return self.start + (self.resume.num_complete if self.resume else 0)

    @property
    def keep(self) -> int:
        """The number of bytes of the output file that stay."""
        return self.resume.size if self.resume else 0


def input_range(
    inputs: DecodeInputs,
    target: str,
    output_format: OutputFormat,
    resume: bool,
    dictionary: str | None,
) -> InputRange:
    """Find the lines to translate; with ``resume``, continue the file ``target``.

    Raises DataError if an input file or the ``dictionary`` cannot be read or is the target. Raises
    the errors of ``line_range`` and ``find_resume_point``.
    """
    if target != "-":
        dictionaries = [dictionary] if dictionary else []
        check_inputs_and_output([*inputs.files, *dictionaries], Path(target))
    start, end = line_range(inputs)
    point = find_resume_point(target, output_format, start) if resume else None
    return InputRange(start, end, point)


def count_remaining(inputs: DecodeInputs, lines: InputRange) -> int | None:
    """Return the number of lines to translate.

    Returns None if the input can be read only once, or if a line is not UTF-8: the lines before it
    are translated.
    """
    if lines.end is not None:
        return lines.end - lines.first
    num_lines = count_file_lines(inputs.source)
    return None if num_lines is None else num_lines - lines.first


def read_chunks(
    inputs: DecodeInputs,
    lines: InputRange,
    target: str,
    size: int,
    report: Callable[[str], None],
) -> "Iterator[Chunk]":
    """Yield the lines that are not translated yet, at most ``size`` at a time.

    If earlier output is continued, ``report`` gets a sentence about it.
    """
    requests, ready = read_requests(inputs, lines.start, lines.end)
    if lines.resume:
        point = lines.resume
        requests = skip_done(requests, point.lines, point.redo_last, inputs, target)
        report(
            f"{target} has translations of {quantity(point.num_complete, 'line')}: continuing "
            f"with line {lines.first + 1:,}"
        )
    first = lines.first
    for chunk in chunks(requests, size, ready, first - lines.start):
        yield first, chunk
        first += len(chunk)


class LineTranslator:
    """Function that translates lines and formats their translations."""

    def __init__(self, translator: "Translator", output_format: OutputFormat, tokenized: bool):
        self.translator = translator
        self.format = output_format
        self.tokenized = tokenized

    def wide_beam_warning(self) -> str | None:
        """Return a sentence on the cost of a wide beam, or None."""
        vocabulary = len(self.translator.pipeline.target_vocab)
        return self.translator.config.wide_beam_warning(vocabulary)

    def __call__(self, numbers: Sequence[int], lines: Sequence[Request]) -> "ChunkOutput":
        """Translate lines with these numbers, from 0."""
        from fusetk.decoding.distributed import ChunkOutput

        begin = time.perf_counter()
        translations = self.translator.n_best(
            lines, self.tokenized, [number + 1 for number in numbers]
        )
        seconds = (time.perf_counter() - begin) / max(len(lines), 1)
        text = [
            self.format.format(number, self._source_tokens(line), n_best, seconds)
            for number, line, n_best in zip(numbers, lines, translations, strict=True)
        ]
        best = [n_best[0] for n_best in translations if n_best]
        return ChunkOutput(text, len(best), sum(len(translation.tokens) for translation in best))

    def _source_tokens(self, line: Request) -> list[str]:
        """Return the tokens that the models read. Only the JSON format needs them."""
        if self.format.kind != "json":
            return []
        tokens = self.translator.tokens("source", line.text, self.tokenized)
        return tokens[: self.translator.max_source_length]


def counted(
    translator: "Translator", translate: "Translate", task: Task, processes: int = 1
) -> "Translate":
    """Return ``translate``, which uses the ``translator``, with ``task`` counting the lines.

    Each of the ``processes`` translates an equal part of the lines. Blank lines are in no batch;
    they are counted at the end of their chunk.
    """
    complete = 0  # lines of complete chunks
    translator.on_batch = lambda sentences: task.advance(sentences * processes)

    def run(numbers: Sequence[int], lines: Sequence[Request]) -> "ChunkOutput":
        nonlocal complete
        output = translate(numbers, lines)
        complete += len(lines) * processes
        task.set(complete)
        return output

    return run


class Speed:
    """Counts and times of translated chunks; the time that the input takes does not count."""

    def __init__(self) -> None:
        self.sentences = 0
        self.tokens = 0
        self.seconds = 1e-9
        self._begin = 0.0

    def timed(self, stream: "Iterator[Chunk]") -> "Iterator[Chunk]":
        """Start the clock after each chunk is read."""
        for chunk in stream:
            self._begin = time.perf_counter()
            yield chunk

    def add(self, output: "ChunkOutput") -> None:
        self.seconds += time.perf_counter() - self._begin
        self.sentences += output.sentences
        self.tokens += output.tokens

    def __str__(self) -> str:
        return describe_speed(self.sentences, self.tokens, self.seconds)


def describe_speed(sentences: int, tokens: int, seconds: float) -> str:
    """Return a sentence about the speed of a computation."""
    return (
        f"{quantity(sentences, 'sentence')} in {seconds:.2f} s: {sentences / seconds:,.1f} "
        f"sentences/s, {tokens / seconds:,.0f} target tokens/s"
    )


def translate_input(
    world: "World",
    inputs: DecodeInputs,
    lines: InputRange,
    translate: "Translate",
    output: OutputFile | None,
    chunk_size: int,
    report: Callable[[str], None],
) -> Speed | None:
    """Translate the lines in all processes; rank 0, which has ``output``, reads and writes.

    ``chunk_size`` is the number of lines for each process that are translated together. Returns
    the speed in rank 0, and None in the other processes.
    """
    from fusetk.decoding.distributed import translate_chunks

    if output is None:
        translate_chunks(world, iter(()), translate, lambda translated: None)
        return None
    speed = Speed()

    def write(translated: "ChunkOutput") -> None:
        speed.add(translated)
        output.write("".join(translated.text))

    stream = read_chunks(inputs, lines, output.name, chunk_size * world.size, report)
    translate_chunks(world, speed.timed(stream), translate, write)
    return speed
