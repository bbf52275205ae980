"""``fusetk decode``."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from fusetk.cli.decode_input import Asked, Shard, part, requests, without
from fusetk.cli.decode_output import Done, Form, Output, done, opened
from fusetk.cli.options import (
    Exponent,
    Sections,
    device_option,
    models_option,
    precision_option,
    quiet_option,
    raw_option,
    threads_option,
)
from fusetk.data.text import readable
from fusetk.errors import ConfigError

if TYPE_CHECKING:
    from fusetk.cli.decode_processes import Chunk, Shown, Work
    from fusetk.decoding.translate import Extras, Request, Translator
    from fusetk.system import Ensemble

CHUNK = 4000  # lines that are sorted and translated together

SECTIONS = {
    "Input and output": [
        "models",
        "source",
        "target",
        "shard",
        "resume",
        "tokenized",
        "prefix",
        "constraints",
        "chunk",
    ],
    "Search": [
        "beam",
        "normalize",
        "penalty",
        "word_penalty",
        "coverage_penalty",
        "stop",
        "min_length",
        "min_length_factor",
        "max_length_factor",
        "max_length_extra",
        "no_repeat_ngram",
        "forbid_unknown",
        "groups",
        "diversity",
        "ensemble",
    ],
    "Sampling": ["sample", "temperature", "top_k", "top_p", "seed"],
    "Form of the output": [
        "n_best",
        "as_json",
        "word_scores",
        "alignment",
        "alignment_form",
        "replace_unknown",
        "timing",
    ],
    "Running": ["batch_tokens", "precision", "raw", "device", "threads", "quiet"],
}


@click.command(
    "decode",
    cls=Sections,
    sections=SECTIONS,
    epilog="Example: fusetk decode -m runs/demo < test.de > test.en",
)
@models_option
@click.option(
    "-i",
    "--input",
    "source",
    metavar="FILE",
    default="-",
    help="Text, one sentence a line, plain or .gz; standard input by default.",
)
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    default="-",
    help="Where translations go; standard output by default.",
)
@click.option(
    "--shard",
    type=Shard(),
    help="Translate only the I-th of N parts of FILE; the outputs of all, one after the other, are that of FILE.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with an output file that broke off: whole lines stay. Without it the file is begun anew.",
)
@click.option(
    "--tokenized",
    is_flag=True,
    help="Input is words as the run's text preparation makes them, not yet subwords; so is the output.",
)
@click.option(
    "--prefix",
    metavar="FILE",
    help="A line for each line of the input: what its translation begins with; blank for nothing.",
)
@click.option(
    "--constraints",
    metavar="FILE",
    help="A line for each line of the input: phrases that its translation contains, in this order, with tabs between them; blank for none. "
    "A beam wider than they have tokens finds good places for them.",
)
@click.option(
    "--chunk",
    type=click.IntRange(1),
    default=CHUNK,
    show_default=True,
    metavar="LINES",
    help="How many lines, for each process, are read, sorted by length and translated together, if as many are there.",
)
@click.option(
    "-b", "--beam", "--beam-size", "beam", type=int, help="Hypotheses a sentence; 1 is greedy."
)
@click.option(
    "-n",
    "--normalize",
    type=Exponent("write -n alone for an exponent of 1, and -i FILE for the text"),
    is_flag=False,
    flag_value=1.0,
    metavar="[ALPHA]",
    help="Exponent of the length penalty; 1 without a value, 0 for none.",
)
@click.option(
    "--penalty",
    type=click.Choice(["power", "gnmt"]),
    help="Scores are divided by length^ALPHA, or by ((5 + length) / 6)^ALPHA.",
)
@click.option("--word-penalty", type=float, metavar="X", help="Taken from a score for each token.")
@click.option(
    "--coverage-penalty",
    type=float,
    metavar="BETA",
    help="Weight of the penalty for source words without attention.",
)
@click.option(
    "--stop",
    type=click.Choice(["exact", "beam", "first"]),
    help="When a sentence is done: no hypothesis can still win, or as many as the beam is wide have ended, or N-BEST have.",
)
@click.option("--min-length", type=int, metavar="N", help="Fewest tokens of a translation.")
@click.option(
    "--min-length-factor",
    type=float,
    metavar="X",
    help="Fewest tokens of a translation for each source token.",
)
@click.option(
    "--max-length-factor",
    type=float,
    metavar="X",
    help="A translation has at most X tokens for each source token,",
)
@click.option("--max-length-extra", type=int, metavar="N", help="and N more.")
@click.option(
    "--no-repeat-ngram",
    type=int,
    metavar="N",
    help="No run of N tokens stands twice in a translation.",
)
@click.option(
    "--forbid-unknown", is_flag=True, default=None, help="Never produce the unknown word."
)
@click.option(
    "--groups", type=int, metavar="N", help="Diverse beam search: part the beam into N groups."
)
@click.option(
    "--diversity",
    type=float,
    metavar="X",
    help="What a token costs a group that another one chose.",
)
@click.option(
    "--ensemble", type=click.Choice(["probability", "log"]), help="What is averaged over models."
)
@click.option(
    "--sample", is_flag=True, default=None, help="Draw translations from the model's distribution."
)
@click.option(
    "--temperature",
    type=float,
    metavar="X",
    help="Of samples: logarithms of probabilities are divided by it.",
)
@click.option(
    "--top-k", type=int, metavar="K", help="Of samples: draw from the K likeliest tokens only."
)
@click.option(
    "--top-p",
    type=float,
    metavar="P",
    help="Of samples: draw from the likeliest tokens only that reach this probability.",
)
@click.option(
    "--seed", type=int, metavar="N", help="Of samples: fixes them, together with a line's number."
)
@click.option(
    "--n-best",
    type=int,
    metavar="N",
    help="Print N translations a sentence: `ID ||| text ||| LogProb= score ||| normalised score`, IDs from 0.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object a line: id (from 0), text, source_tokens, and translations with text, tokens, score and normalized.",
)
@click.option(
    "--word-scores",
    is_flag=True,
    help="Add the score of each token and of the end mark: `WordScores= ...`, in JSON `word_scores`.",
)
@click.option(
    "--alignment",
    is_flag=False,
    flag_value="mean",
    metavar="[WHICH]",
    help="Add what each token is aligned to by attention: of a layer (3; -1 is the highest), of its head (3.2), or mean, that of all, "
    "which is meant without a value. As ` ||| 0-0 1-2`, source-target, tokens counted from 0; in JSON as pairs.",
)
@click.option(
    "--alignment-form",
    type=click.Choice(["hard", "soft"]),
    help="The source token with the most attention, by default, or the weights of all source positions for each token.",
)
@click.option(
    "--replace-unknown",
    is_flag=False,
    flag_value="",
    metavar="[DICTIONARY]",
    help="Put for an unknown word the source word that it is aligned to, or what the file DICTIONARY has for that: source, tab, target.",
)
@click.option(
    "--timing",
    is_flag=True,
    help="Add `seconds` to JSON: how long the lines took that were translated together, divided by their number.",
)
@click.option(
    "--batch-tokens", type=int, metavar="N", help="Sentences * beam * source tokens in a batch."
)
@precision_option
@raw_option
@device_option
@threads_option
@quiet_option
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
    timing: bool,
    precision: str,
    raw: bool,
    device: str,
    threads: int | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Translate text line by line, through the text preparation of the run: raw text in, raw text out.

    Exactly one line comes out for each line that goes in (with --n-best, up to N), in order, and a blank line for a blank
    line. Settings that are not given here are those of the run's config, section `decoding`. Scores are natural-log
    probabilities with the end mark; the length that normalises them counts the end mark too.

    Translations do not depend on the batches, on the number of threads or on other lines, but for ties within rounding. Of
    candidates with equal scores the one comes first whose hypothesis stood first, then the one with the lower token id.

    Where torchrun starts several processes, each translates a part of every chunk on a device of its own, and the first one
    reads and writes: `torchrun --nproc-per-node 8 -m fusetk decode -m RUN < IN > OUT`.
    """
    import torch

    from fusetk.cli.decode_processes import PATIENCE, agreed, work_together
    from fusetk.processes import connect, local_device
    from fusetk.system import load_ensemble

    if threads:
        torch.set_num_threads(threads)
    asked = Asked(source, prefix, constraints, shard)
    form = _form(options["n_best"], as_json, word_scores, alignment, alignment_form, timing)
    changes = {key: value for key, value in options.items() if value is not None}
    world = connect(torch.device("cpu"), PATIENCE)  # what the processes tell each other is text
    with ExitStack() as stack:

        def prepare() -> "tuple[Translator, Plan, Output | None]":
            plan = _plan(asked, target, form, resume, replace_unknown) if world.first else Plan()
            loaded = load_ensemble(models, local_device(device), precision, raw)
            translator = _translator(
                loaded,
                changes,
                _extras(word_scores, alignment, replace_unknown, bool(loaded.pipeline.bpe)),
            )
            if constraints and translator.config.sample:
                raise ConfigError(
                    "--constraints are searched for and cannot be sampled: leave out --sample, or the phrases"
                )
            return (
                translator,
                plan,
                stack.enter_context(opened(target, plan.done and plan.done.size))
                if world.first
                else None,
            )

        translator, plan, output = agreed(world, prepare)
        if output is None:
            work_together(world, iter(()), _work(translator, form, tokenized), lambda shown: None)
            return world.close()
        if slow := translator.config.slow(len(translator.pipeline.target_vocab)):
            click.echo(f"warning: {slow}", err=True)
        speed = Speed()

        def write(shown: "Shown") -> None:
            speed.add(shown)
            output.write("".join(shown.text))

        found = _chunks(asked, plan, target, chunk * world.size, quiet)
        work_together(world, speed.timed(found), _work(translator, form, tokenized), write)
    world.close()
    if not quiet:
        click.echo(speed, err=True)


# Before --------------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """What is to be read, and what was done of it before."""

    start: int = 0  # the first line of the part that is to be translated, from 0
    end: int | None = None  # the line after its last
    done: Done | None = None

    @property
    def first(self) -> int:
        """The first line that is still to be done."""
        return self.start + (self.done.kept if self.done else 0)


def _plan(asked: Asked, target: str, form: Form, resume: bool, dictionary: str | None) -> Plan:
    if target != "-":
        readable([*asked.files, *([Path(dictionary)] if dictionary else [])], Path(target))
    start, end = part(asked)
    return Plan(start, end, done(target, form, start) if resume else None)


def _form(
    n_best: int | None,
    as_json: bool,
    word_scores: bool,
    alignment: str | None,
    alignment_form: str | None,
    timing: bool,
) -> Form:
    if alignment_form and not alignment:
        raise ConfigError("--alignment-form says how alignments are printed: give --alignment, too")
    if timing and not as_json:
        raise ConfigError("--timing adds to JSON: give --json, too")
    soft = alignment_form == "soft"
    kind: Literal["json", "moses", "text"] = (
        "json" if as_json else "text" if n_best is None else "moses"
    )
    return Form(kind, n_best or 1, word_scores, alignment is not None, soft, timing)


def _extras(
    word_scores: bool, alignment: str | None, dictionary: str | None, subwords: bool
) -> "Extras":
    from fusetk.decoding.alignment import parse
    from fusetk.decoding.translate import Extras
    from fusetk.decoding.unknown import Replacement, read_dictionary

    replacement = (
        None
        if dictionary is None
        else Replacement(read_dictionary(dictionary) if dictionary else None, subwords)
    )
    return Extras(word_scores, None if alignment is None else parse(alignment), replacement)


def _translator(loaded: "Ensemble", changes: Mapping[str, Any], extras: "Extras") -> "Translator":
    from fusetk.decoding.translate import Translator
    from fusetk.system import changed

    names = {key: f"--{key.replace('_', '-')}" for key in changes}
    return Translator(
        loaded.models, loaded.pipeline, changed(loaded.recipe.decoding, changes, names), extras
    )


# Lines ---------------------------------------------------------------------------------------------------------------


def _chunks(asked: Asked, plan: Plan, target: str, size: int, quiet: bool) -> "Iterator[Chunk]":
    """The lines that are still to be done, at most so many at a time, with the number of the first."""
    from fusetk.decoding.stream import chunks

    found, ready = requests(asked, plan.start, plan.end)
    if plan.done:
        found = without(found, plan.done.lines, plan.done.again, asked, target)
        if not quiet:
            click.echo(
                f"{target} has translations of {plan.done.kept:,} lines: going on with line {plan.first + 1:,}",
                err=True,
            )
    first = plan.first
    for chunk in chunks(found, size, ready, first - plan.start):
        yield first, chunk
        first += len(chunk)


def _work(translator: "Translator", form: Form, tokenized: bool) -> "Work":
    """What translates some lines."""
    from fusetk.cli.decode_processes import Shown

    as_json = form.kind == "json"

    def work(numbers: Sequence[int], lines: "Sequence[Request]") -> "Shown":
        begun = time.perf_counter()
        found = translator.n_best(lines, tokenized, [number + 1 for number in numbers])
        seconds = (time.perf_counter() - begun) / max(len(lines), 1)
        sources = [
            translator.tokens("source", line.text, tokenized)[: translator.longest]
            if as_json
            else []
            for line in lines
        ]
        shown = [form.show(*line, seconds) for line in zip(numbers, sources, found, strict=True)]
        return Shown(
            shown,
            sum(1 for best in found if best),
            sum(len(best[0].tokens) for best in found if best),
        )

    return work


class Speed:
    """Counts and times of the work; waiting for input does not count."""

    def __init__(self) -> None:
        self.sentences = self.tokens = 0
        self.seconds = 1e-9
        self._begun = 0.0

    def timed(self, chunks: "Iterator[Chunk]") -> "Iterator[Chunk]":
        for chunk in chunks:
            self._begun = time.perf_counter()
            yield chunk

    def add(self, shown: "Shown") -> None:
        self.seconds += time.perf_counter() - self._begun
        self.sentences += shown.sentences
        self.tokens += shown.tokens

    def __str__(self) -> str:
        rates = f"{self.sentences / self.seconds:,.1f} sentences/s, {self.tokens / self.seconds:,.0f} target tokens/s"
        return f"{self.sentences:,} sentences in {self.seconds:.2f} s: {rates}"
