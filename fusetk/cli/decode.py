"""``fusetk decode``."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusetk.cli.common_options import inform, print_warning
from fusetk.cli.config_options import search_fields
from fusetk.cli.decode_options import SECTIONS, DecodeOptions, decode_options
from fusetk.cli.mbr import candidate_settings, mbr_utility
from fusetk.cli.memory import memory_advice
from fusetk.cli.options import check_ensemble, use_threads
from fusetk.cli.parameters import flag_of, select
from fusetk.cli.sections import NegativeNumbers
from fusetk.decoding.formats import OutputFormat
from fusetk.decoding.output_file import OutputFile, open_output
from fusetk.decoding.requests import DecodeInputs
from fusetk.decoding.translate_lines import (
    InputRange,
    LineTranslator,
    count_remaining,
    counted,
    input_range,
    translate_input,
)
from fusetk.display import Display, Task
from fusetk.errors import ConfigError
from fusetk.runs import find_checkpoint

if TYPE_CHECKING:
    from fusetk.decoding.translate import Translator
    from fusetk.processes import World

EPILOG = "Example: fusetk decode -m runs/demo < test.de > test.en"


@click.command("decode", cls=NegativeNumbers, sections=SECTIONS, epilog=EPILOG)
@decode_options
def command(**values: Any) -> None:
    """Translate raw text line by line into raw text, with the text preparation of the run.

    Each input line gives exactly one output line (with --n-best up to N), in order; a blank line
    gives a blank line. Settings that are not given come from the section `decoding` of the run's
    config. Scores are natural-log probabilities, EOS included; the length that normalises them
    counts EOS too.

    A translation does not depend on the batches, on the number of threads or on other lines, except
    for ties within rounding. Candidates with equal scores are sorted by the rank of the hypothesis
    that they extend, then by token id, the lower first.

    If torchrun starts several processes, each translates a part of every chunk on its own device,
    and the first process reads and writes: `torchrun --nproc-per-node 8 -m fusetk decode -m RUN <
    IN > OUT`.
    """
    import torch

    from fusetk.decoding.distributed import INPUT_TIMEOUT, all_succeed, check_restart
    from fusetk.processes import connect, end_process

    options = select(DecodeOptions, values)
    search = {name: values[name] for name in search_fields()}
    source, target = options.source, options.target
    use_threads(options.threads)
    inputs = DecodeInputs(source, options.prefix, options.constraints, options.shard)
    output_format = OutputFormat.from_options(
        search["n_best"],
        options.as_json,
        options.word_scores,
        options.alignment,
        options.alignment_form,
        options.timing,
    )
    if options.candidates and not options.mbr:
        raise ConfigError("--candidates has no effect without --mbr: add --mbr")
    check_ensemble(search, options.models)
    world = connect(torch.device("cpu"), INPUT_TIMEOUT)  # the processes exchange text only
    report = inform if world.first else lambda message: None
    options = replace(options, models=_agree_on_checkpoints(world, options.models))
    with ExitStack() as stack:

        def prepare() -> tuple[LineTranslator, InputRange, OutputFile | None]:
            lines = InputRange()
            if world.first:
                check_restart(inputs.files, target)
                dictionary = options.replace_unknown
                lines = input_range(inputs, target, output_format, options.resume, dictionary)
            # A class outside fusetk may print. Standard output has only translations.
            with redirect_stdout(sys.stderr):
                translator = _translator(options, search, output_format.has_scores, report)
            translator.warns_of_unknown = world.first
            output = stack.enter_context(open_output(target, lines.keep)) if world.first else None
            return LineTranslator(translator, output_format, options.tokenized), lines, output

        line_translator, lines, output = all_succeed(world, prepare)
        if world.first and (slow := line_translator.wide_beam_warning()):
            print_warning(slow)
        translate = memory_advice("lower --batch-tokens or the beam (-b)")(line_translator)
        if world.first and source == "-" and sys.stdin.isatty():
            report("reading standard input; Ctrl-D ends it")
        # Translations on the terminal show the progress themselves.
        silent = options.quiet or not world.first or (target == "-" and sys.stdout.isatty())
        total = None if silent else count_remaining(inputs, lines)
        stack.enter_context(redirect_stdout(sys.stderr))
        with Display(silent) as display, display.show(Task("", "lines", total)) as task:
            tracked = counted(line_translator.translator, translate, task, world.size)
            speed = translate_input(world, inputs, lines, tracked, output, options.chunk, report)
    world.close()
    if speed:
        report(str(speed))
    end_process()


def _agree_on_checkpoints(world: "World", models: Sequence[str]) -> tuple[str, ...]:
    """Return the checkpoints of ``models``, which are the same in all processes.

    A model is a run or a checkpoint. A training may move a link such as ``best`` while the
    processes start. So the link is replaced by the checkpoint to which it points in rank 0. One
    process alone returns ``models``. If a model has no checkpoint, all processes end as in
    ``all_succeed``.
    """
    from fusetk.decoding.distributed import all_succeed, connected

    if world.size == 1:
        return tuple(models)
    folders = all_succeed(world, lambda: [find_checkpoint(Path(model))[1] for model in models])
    with connected(world):
        names = world.broadcast([_target_name(folder) for folder in folders])
    return tuple(
        str(folder.with_name(name) if name else folder)
        for folder, name in zip(folders, names, strict=True)
    )


def _target_name(folder: Path) -> str | None:
    """Return the name of the checkpoint to which a link beside it points; None for no such link."""
    target = folder.resolve()
    is_beside = folder.is_symlink() and target.parent == folder.parent.resolve()
    return target.name if is_beside else None


def _translator(
    options: DecodeOptions,
    search: Mapping[str, Any],
    scores: bool,
    report: Callable[[str], None],
) -> "Translator":
    """Load the models, and return their translator on the device of this process.

    ``search`` has the options of the search; those that the user did not give are None. ``scores``
    says whether the output has the scores of translations.
    """
    from fusetk.decoding.mbr import MbrTranslator
    from fusetk.decoding.translate import Extras, Translator
    from fusetk.processes import local_device
    from fusetk.system import changed, load_ensemble

    device = local_device(options.device)
    loaded = load_ensemble(options.models, device, options.precision, options.raw, report)
    pipeline = loaded.pipeline
    if not options.tokenized:
        pipeline.import_libraries()
    config = loaded.recipe.decoding
    n_best = search["n_best"] or config.n_best
    settings = {key: value for key, value in search.items() if value is not None}
    if options.mbr:
        settings = candidate_settings(config, settings, options.candidates)
    config = changed(config, settings, {key: flag_of(key) for key in search})
    extras = Extras.from_options(
        options.word_scores, options.alignment, options.replace_unknown, bool(pipeline.bpe)
    )
    if options.constraints and config.sample:
        raise ConfigError("sampling cannot enforce --constraints: omit --sample or --constraints")
    translator = Translator(loaded.models, pipeline, config, extras, options.models, scores)
    if options.mbr:
        utility = mbr_utility(options.mbr, pipeline.target_language)
        return MbrTranslator(translator, utility, n_best)
    return translator
