"""``fusetk decode``."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusetk.cli.decode_options import SECTIONS, decode_options, extras_of, output_format_of
from fusetk.cli.mbr import mbr_translator
from fusetk.cli.memory import memory_advice
from fusetk.cli.options import Sections
from fusetk.data.text import readable
from fusetk.decoding.formats import OutputFormat
from fusetk.decoding.output_file import OutputFile, open_output
from fusetk.decoding.requests import DecodeInputs
from fusetk.decoding.translate_lines import (
    InputRange,
    LineTranslator,
    Speed,
    input_range,
    read_chunks,
)
from fusetk.errors import ConfigError

if TYPE_CHECKING:
    from fusetk.decoding.distributed import ChunkOutput
    from fusetk.processes import World

EPILOG = "Example: fusetk decode -m runs/demo < test.de > test.en"


@click.command("decode", cls=Sections, sections=SECTIONS, epilog=EPILOG)
@decode_options
def command(
    models: tuple[str, ...],
    source: str,
    target: str,
    shard: tuple[int, int] | None,
    resume: bool,
    tokenized: bool,
    prefix: str | None,
    constraints: str | None,
    chunk: int,
    as_json: bool,
    word_scores: bool,
    alignment: str | None,
    alignment_form: str | None,
    replace_unknown: str | None,
    mbr: str | None,
    candidates: int | None,
    timing: bool,
    precision: str,
    raw: bool,
    device: str,
    threads: int | None,
    quiet: bool,
    **search: Any,
) -> None:
    """Translate raw text line by line into raw text, with the text preparation of the run.

    Each input line gives exactly one output line (with --n-best up to N), in order; a blank line
    gives a blank line. Settings that are not given come from the section `decoding` of the run's
    config. Scores are natural-log probabilities, EOS included; the length that normalises them
    counts EOS too.

    A translation does not depend on the batches, on the number of threads or on other lines, except
    for ties within rounding. Candidates with equal scores are sorted by the rank of
    the hypothesis that they extend, then by token id, the lower first.

    If torchrun starts several processes, each translates a part of every chunk on its own device,
    and the first process reads and writes: `torchrun --nproc-per-node 8 -m fusetk decode -m RUN <
    IN > OUT`.
    """
    import torch

    from fusetk.decoding.distributed import TIMEOUT, all_succeed
    from fusetk.decoding.translate import Translator
    from fusetk.processes import connect, local_device
    from fusetk.system import changed, load_ensemble

    if threads:
        torch.set_num_threads(threads)
    inputs = DecodeInputs(source, prefix, constraints, shard)
    output_format = output_format_of(
        search["n_best"], as_json, word_scores, alignment, alignment_form, timing
    )
    if candidates and not mbr:
        raise ConfigError("--candidates has no effect without --mbr: give it, too")
    settings = {key: value for key, value in search.items() if value is not None}
    flags = {key: f"--{key.replace('_', '-')}" for key in search}
    world = connect(torch.device("cpu"), TIMEOUT)  # the processes exchange text only
    with ExitStack() as stack:

        def prepare() -> tuple[LineTranslator, InputRange, OutputFile | None]:
            lines = InputRange()
            if world.first:
                lines = _input_range(inputs, target, output_format, resume, replace_unknown)
            loaded = load_ensemble(models, local_device(device), precision, raw)
            config = changed(loaded.recipe.decoding, settings, flags)
            extras = extras_of(word_scores, alignment, replace_unknown, bool(loaded.pipeline.bpe))
            if constraints and config.sample:
                raise ConfigError(
                    "sampling cannot enforce --constraints: leave out --sample or --constraints"
                )
            translator = Translator(loaded.models, loaded.pipeline, config, extras)
            if mbr:
                translator = mbr_translator(translator, mbr, candidates)
            output = stack.enter_context(open_output(target, lines.keep)) if world.first else None
            return LineTranslator(translator, output_format, tokenized), lines, output

        line_translator, lines, output = all_succeed(world, prepare)
        speed = _translate(world, inputs, line_translator, lines, output, chunk, quiet)
    world.close()
    if speed and not quiet:
        click.echo(speed, err=True)


def _translate(
    world: "World",
    inputs: DecodeInputs,
    line_translator: LineTranslator,
    lines: InputRange,
    output: OutputFile | None,
    chunk_size: int,
    quiet: bool,
) -> Speed | None:
    """Translate the lines in all processes; rank 0, which has ``output``, reads and writes.

    Return the speed in rank 0, and None in the other processes.
    """
    from fusetk.decoding.distributed import translate_chunks

    def translate(*chunk: Any) -> "ChunkOutput":
        with memory_advice("lower --batch-tokens or the beam (-b)"):
            return line_translator(*chunk)

    def report(message: str) -> None:
        if not quiet:
            click.echo(message, err=True)

    if output is None:
        translate_chunks(world, iter(()), translate, lambda translated: None)
        return None
    translator = line_translator.translator
    if slow := translator.config.wide_beam_warning(len(translator.pipeline.target_vocab)):
        click.echo(f"warning: {slow}", err=True)
    speed = Speed()

    def write(translated: "ChunkOutput") -> None:
        speed.add(translated)
        output.write("".join(translated.text))

    stream = read_chunks(inputs, lines, output.name, chunk_size * world.size, report)
    translate_chunks(world, speed.timed(stream), translate, write)
    return speed


def _input_range(
    inputs: DecodeInputs,
    target: str,
    output_format: OutputFormat,
    resume: bool,
    dictionary: str | None,
) -> InputRange:
    if target != "-":
        dictionaries = [Path(dictionary)] if dictionary else []
        readable([*inputs.regular_files, *dictionaries], Path(target))
    return input_range(inputs, target, output_format, resume)
