"""Options of ``fusetk score``, grouped by purpose."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from fusetk import runs
from fusetk.cli.options import Decorator
from fusetk.errors import CheckpointError
from fusetk.evaluation.length import BOUNDS
from fusetk.evaluation.length import DEFAULT_METRIC as LENGTH_METRIC
from fusetk.evaluation.metric import MetricOptions
from fusetk.evaluation.metrics import DEFAULT_METRICS, METRICS
from fusetk.evaluation.significance import SAMPLES, SEED, Sampling
from fusetk.evaluation.texts import display_name
from fusetk.reporting import score_log

Options = TypeVar("Options")


def select(group: type[Options], values: Mapping[str, Any]) -> Options:
    """Build a group of options from the values of all options."""
    names = [field.name for field in fields(group)]  # type: ignore[arg-type]
    return group(**{name: values[name] for name in names})


class BoundsParam(click.ParamType):
    """Rising numbers of words, separated by commas."""

    name = "N,..."

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", value, re.ASCII):
            bounds = [int(bound) for bound in value.split(",")]
            if bounds == sorted(set(bounds)):
                return tuple(bounds)
        message = f"{value!r} is not a list of rising numbers of words, such as 0,10,20"
        self.fail(message, param, ctx)


class SystemParam(click.ParamType):
    """The name of a system and the file with its translations."""

    name = "NAME=FILE"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, _, file = value.partition("=")
        if not (name and file):
            self.fail(f"{value!r} is not NAME=FILE, a name and a file of translations", param, ctx)
        return name, file


@dataclass(frozen=True)
class TextOptions:
    """The texts, the metrics and the form of the output."""

    hypothesis: str
    more: tuple[str, ...]
    references: tuple[str, ...]
    metrics: tuple[str, ...]
    lowercase: bool
    tokenize: str | None
    compound_split: bool
    source: str | None
    as_json: bool

    @property
    def reference_files(self) -> list[str]:
        """All references; raises UsageError if there are none."""
        if not (self.references or self.more):
            raise click.UsageError("give a reference: fusetk score HYP -r REF")
        return [*self.references, *self.more]

    @property
    def metric_options(self) -> MetricOptions:
        """The options of the metrics."""
        return MetricOptions(self.lowercase, self.tokenize, self.compound_split)

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics if --by-length is not given."""
        return list(METRICS) if "all" in self.metrics else list(self.metrics or DEFAULT_METRICS)

    @property
    def length_metric(self) -> str:
        """The only metric with --by-length; raises UsageError if several are given."""
        names = list(dict.fromkeys(self.metrics)) or [LENGTH_METRIC]
        if len(names) > 1 or names == ["all"]:
            raise click.UsageError(
                f"--by-length shows one metric, not {', '.join(names)}: "
                f"give one --metric, or none for {LENGTH_METRIC}"
            )
        return names[0]


@dataclass(frozen=True)
class SystemOptions:
    """The systems that are compared with HYP, and the significance test."""

    systems: tuple[tuple[str, str], ...]
    name: str | None
    significance: str | None
    samples: int | None
    seed: int | None

    def files(self, hypothesis: str) -> dict[str, str]:
        """Map the name of each system to its file, HYP first; raise UsageError if names repeat."""
        stem = display_name("-")
        if hypothesis != "-":
            stem = Path(hypothesis.removesuffix(".gz")).stem
        pairs = [(self.name or stem, hypothesis), *self.systems]
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise click.UsageError(
                    f"two systems are called {name!r}: "
                    "give other names, with --name for HYP and with --system NAME=FILE"
                )
        return dict(pairs)

    def sampling(self, by_length: bool) -> Sampling | None:
        """Return the significance test; None without --significance.

        Raises UsageError if the test lacks systems, or if --samples or --seed lack the test.
        """
        if self.significance is None:
            if self.samples is not None or self.seed is not None:
                raise click.UsageError(
                    "--samples and --seed are options of a test: give --significance, too"
                )
            return None
        if by_length or not self.systems:
            raise click.UsageError(
                "--significance tests systems against HYP on the complete text: "
                "give --system NAME=FILE, and no --by-length"
            )
        samples = self.samples or SAMPLES[self.significance]
        return Sampling(self.significance, samples, self.seed or SEED)

    def check_name(self) -> None:
        """Raise UsageError if --name is given without --system."""
        if self.name is not None and not self.systems:
            raise click.UsageError(
                "--name has no effect without --system or --by-length: "
                "give one of them, or leave --name out"
            )


@dataclass(frozen=True)
class LengthOptions:
    """The options that need --by-length."""

    longer_than: bool
    bounds: tuple[int, ...] | None
    output: Path | None

    def check_unused(self) -> None:
        """Raise UsageError if one of the options is given; called without --by-length."""
        options = {
            "--longer-than": self.longer_than,
            "--bounds": self.bounds is not None,
            "--output": self.output is not None,
        }
        names = [name for name, present in options.items() if present]
        if names:
            raise click.UsageError(
                f"{', '.join(names)}: no effect without --by-length; give it, too, or leave "
                f"{'it' if len(names) == 1 else 'them'} out"
            )


@dataclass(frozen=True)
class RecordOptions:
    """The options that record scores in a run folder."""

    run: Path | None
    set_name: str | None
    checkpoint: str | None

    def check_single(self, reason: str) -> None:
        """Raise UsageError if one of the options is given, because ``reason`` excludes them."""
        if any(value is not None for value in (self.run, self.set_name, self.checkpoint)):
            raise click.UsageError(
                "--run, --set-name and --checkpoint record the scores of HYP on a complete "
                f"test set: record them without {reason}"
            )

    def destination(self) -> score_log.ScoreDestination | None:
        """Return the place of the record; None without --run.

        Raises UsageError, CheckpointError or DataError if the scores cannot be recorded there.
        """
        if self.run is None:
            if self.set_name is not None or self.checkpoint is not None:
                raise click.UsageError(
                    "--set-name and --checkpoint label a recorded score: give --run, too"
                )
            return None
        if not self.set_name:
            raise click.UsageError(
                "--run records the scores of a test set: give its name with --set-name"
            )
        folder, name = runs.find(self.run)
        score_log.read(folder)
        if not (self.checkpoint or name):
            raise CheckpointError(
                f"{self.run} has no checkpoints/best or checkpoints/last: "
                "name the decoded checkpoint with --checkpoint"
            )
        return score_log.ScoreDestination(folder, self.set_name, self.checkpoint or name)


# Declarations -------------------------------------------------------------------------------------

_SAMPLE_DEFAULTS = ", ".join(f"{number} ({kind})" for kind, number in SAMPLES.items())

DECLARATIONS: tuple[Decorator, ...] = (
    click.argument("hypothesis", metavar="[HYP]", default="-"),
    click.argument("more", metavar="[REF]...", nargs=-1),
    click.option(
        "-r",
        "--reference",
        "references",
        metavar="REF",
        multiple=True,
        help="File with a reference for each line; repeatable.",
    ),
    click.option(
        "--metric",
        "metrics",
        metavar="NAME",
        multiple=True,
        type=click.Choice([*METRICS, "all"]),
        help=f"One of {', '.join(METRICS)}, or all; repeatable. Default: "
        f"{', '.join(DEFAULT_METRICS)}; with --by-length {LENGTH_METRIC}.",
    ),
    click.option(
        "--lowercase",
        is_flag=True,
        help="Ignore case in every metric (multi-bleu-lc, mteval-v13a and TER always do).",
    ),
    click.option(
        "--tokenize",
        metavar="NAME",
        help="sacreBLEU's tokeniser: 13a (the default), intl, zh, char, none, ...",
    ),
    click.option(
        "--compound-split",
        is_flag=True,
        help="In multi-bleu, split words at hyphens first, as is usual for WMT English-German: "
        "rich-text becomes rich ##AT##-##AT## text.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    click.option(
        "--system",
        "systems",
        type=SystemParam(),
        multiple=True,
        help="Name of another system, and file with its translations, shown in a table with HYP; "
        "repeatable.",
    ),
    click.option(
        "--name",
        metavar="NAME",
        help="Name of HYP in a table. Default: the name of the file without its suffix.",
    ),
    click.option(
        "--significance",
        type=click.Choice([*SAMPLES]),
        help="Test whether each --system differs from HYP by more than chance, with paired "
        "bootstrap or approximate randomisation.",
    ),
    click.option(
        "--samples",
        type=click.IntRange(1),
        metavar="N",
        help="With --significance: the number of samples. "
        f"Default: {_SAMPLE_DEFAULTS}, as in sacreBLEU.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(1),
        metavar="N",
        help=f"With --significance: the random seed. Default: {SEED}, as in sacreBLEU.",
    ),
    click.option(
        "--run",
        metavar="RUN",
        type=click.Path(path_type=Path),
        help="Record the scores in scores.json of this run folder, or of the run folder of this "
        "checkpoint. `fusetk report` reads them.",
    ),
    click.option("--set-name", metavar="NAME", help="With --run: the name of the test set."),
    click.option(
        "--checkpoint",
        metavar="LABEL",
        help="With --run: the decoded checkpoint, such as average-5. "
        "Default: RUN's name if RUN is a checkpoint, else best or last.",
    ),
    click.option(
        "--source",
        metavar="FILE",
        help="File with the source, to warn about lines that were not translated. With "
        "--by-length, lengths are those of the source, or without --source those of the first "
        "reference.",
    ),
    click.option(
        "--by-length",
        is_flag=True,
        help="Print a table of one metric on the sentences of each range of lengths.",
    ),
    click.option(
        "--longer-than",
        is_flag=True,
        help="With --by-length: a row for all sentences longer than each bound.",
    ),
    click.option(
        "--bounds",
        type=BoundsParam(),
        help="With --by-length: rising lengths at which the rows are divided. "
        f"Default: {','.join(map(str, BOUNDS))}.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        metavar="PICTURE",
        help="With --by-length: also draw the table, as .png, .pdf or .svg.",
    ),
)


def declare_options(function: Any) -> Any:
    """Declare all arguments and options of ``fusetk score`` on a function."""
    for declaration in reversed(DECLARATIONS):
        function = declaration(function)
    return function
