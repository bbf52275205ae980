"""Options of ``fusetk score`` that name texts and metrics."""

from dataclasses import dataclass
from typing import Any

import click

from fusetk.cli.options import json_option
from fusetk.cli.parameters import Decorator
from fusetk.evaluation.comet import DEFAULT_MODEL
from fusetk.evaluation.length import DEFAULT_METRIC as LENGTH_METRIC
from fusetk.evaluation.metric import MetricOptions
from fusetk.evaluation.metrics import DEFAULT_METRICS, LEARNED_METRICS, METRICS, is_outside_metric
from fusetk.evaluation.systems import ALL


class MetricName(click.Choice[str]):
    """Names of metrics, and `package.module:Name` of a class outside fusetk."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> str:
        if is_outside_metric(value):
            return str(value)
        return super().convert(value, parameter, context)


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
    comet_model: str | None
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
        return MetricOptions(self.lowercase, self.tokenize, self.compound_split, self.comet_model)

    @property
    def length_metric(self) -> str:
        """The only metric with --by-length; raises UsageError if several are given."""
        names = list(dict.fromkeys(self.metrics)) or [LENGTH_METRIC]
        if len(names) > 1 or names == [ALL]:
            raise click.UsageError(
                f"--by-length shows one metric, not {', '.join(names)}: "
                f"give one --metric, or none for {LENGTH_METRIC}"
            )
        return names[0]


text_options: tuple[Decorator, ...] = (
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
        type=MetricName([*METRICS, *LEARNED_METRICS, ALL]),
        help=f"One of {', '.join([*METRICS, *LEARNED_METRICS])}, or all, which does not include "
        f"{', '.join(LEARNED_METRICS)}; or package.module:Name of a class of your own "
        "(docs/extending.md); repeatable. "
        f"Default: {', '.join(DEFAULT_METRICS)}; with --by-length {LENGTH_METRIC}.",
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
    click.option(
        "--comet-model",
        metavar="MODEL",
        help=f"Model of comet: the name of a model, which is downloaded once, or the file of a "
        f"checkpoint. Default: {DEFAULT_MODEL}.",
    ),
    json_option,
)
source_option: Decorator = click.option(
    "--source",
    metavar="FILE",
    help="File with the source, to warn about lines that were not translated; comet reads it. With "
    "--by-length, lengths are those of the source, or without --source those of the first "
    "reference.",
)
