"""``fusetk rescore``."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from fusetk.cli.decode_output import opened
from fusetk.cli.options import (
    Exponent,
    device_option,
    models_option,
    precision_option,
    quiet_option,
    raw_option,
    threads_option,
)
from fusetk.cli.rescore_input import BAR, Input, Row, rows
from fusetk.data.text import readable
from fusetk.data.vocab import EOS, SPECIAL

if TYPE_CHECKING:
    from fusetk.evaluation.rescore import Scored, Scoring

CHUNK = 4000  # lines that are sorted and scored together
EXAMPLES = (
    "Examples: fusetk rescore -m runs/demo test.de test.en > scores; "
    "fusetk decode -m runs/demo --n-best 5 -i test.de | fusetk rescore -m runs/other test.de --n-best - --feature Other"
)


class Feature(click.ParamType):
    """What a feature may be called in an n-best list."""

    name = "NAME"

    def convert(
        self, value: str, parameter: click.Parameter | None, context: click.Context | None
    ) -> str:
        if not re.fullmatch(r"[^\s=|]+", value):
            self.fail(
                f"{value!r} is no name of a feature: it has no space, = or | in it",
                parameter,
                context,
            )
        return value


@click.command("rescore", epilog=EXAMPLES)
@click.argument("files", nargs=-1, metavar="[SRC [TGT]]")
@models_option
@click.option(
    "--tsv",
    metavar="FILE",
    help="Read lines of a source, a tab and a target; - is standard input, which is read by default.",
)
@click.option(
    "--n-best",
    metavar="FILE",
    help="Read a Moses n-best list of SRC, and print it with one more feature.",
)
@click.option(
    "--json-lines",
    metavar="FILE",
    help="Read what `fusetk decode --json` printed, and print it with one more number.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="-",
    help="Where scores go; standard output by default.",
)
@click.option(
    "--tokenized",
    is_flag=True,
    help="Text is words as the run's text preparation makes them, not yet subwords.",
)
@click.option(
    "--word-scores",
    is_flag=True,
    help="Add tokens and their scores: a tab before each, a space between token and score.",
)
@click.option(
    "--no-end-mark",
    is_flag=True,
    help="Leave out the end mark, of the score and of the length that normalises it.",
)
@click.option(
    "-n",
    "--normalize",
    type=Exponent("write -n 1 before a file, or -n behind the files"),
    is_flag=False,
    flag_value=1.0,
    default=0.0,
    metavar="[ALPHA]",
    help="Divide scores by the length penalty with this exponent; 1 without a value. Without the option they are not divided.",
)
@click.option(
    "--penalty",
    type=click.Choice(["power", "gnmt"]),
    help="The length penalty: length^ALPHA, or ((5 + length) / 6)^ALPHA; by default the one of the run's config.",
)
@click.option(
    "--ensemble", type=click.Choice(["probability", "log"]), help="What is averaged over models."
)
@click.option(
    "--feature",
    type=Feature(),
    default="Rescore",
    show_default=True,
    help="What the new feature of --n-best, or the new number of --json-lines, is called.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON objects: id (from 0), score, normalized, tokens, wanted word_scores.",
)
@click.option(
    "--summary", is_flag=True, help="Print only the summary of the corpus, on standard output."
)
@click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    metavar="N",
    default=8192,
    show_default=True,
    help="Tokens in a batch, both sides.",
)
@precision_option
@raw_option
@device_option
@threads_option
@quiet_option
def command(
    files: tuple[str, ...],
    models: tuple[str, ...],
    tsv: str | None,
    n_best: str | None,
    json_lines: str | None,
    output: str,
    tokenized: bool,
    word_scores: bool,
    no_end_mark: bool,
    normalize: float,
    penalty: str | None,
    ensemble: str | None,
    feature: str,
    as_json: bool,
    summary: bool,
    batch_tokens: int,
    precision: str,
    raw: bool,
    device: str,
    threads: int | None,
    quiet: bool,
) -> None:
    """Print how probable a model finds given translations: the natural-log probability of each line of TGT given that line of SRC.

    Exactly one line comes out for each pair. Both sides are raw text and go through the text preparation of the run. The end mark
    counts. Of a blank source nothing can be said: its line is blank, in JSON null, and no part of the summary. A blank target has the
    probability that the translation ends at once. A line that is too long for the model, and files of unequal length, are errors,
    after the scores of the lines before.

    With --n-best a list of translations of SRC, `ID ||| text ||| features ||| score` and what may follow, is printed as it is, but for
    `Rescore= value` at the end of the features. IDs count from 0 and do not fall. With --json-lines each translation has a number
    more. Text that `fusetk decode` printed may be split into other tokens than the search produced; --json-lines reads those very
    tokens, and so finds the scores of the search.

    The summary, on standard error, has the perplexity per token and per word, end marks counted in both. Per word it compares models
    with different subwords.
    """
    import torch

    from fusetk import system
    from fusetk.decoding.stream import chunks
    from fusetk.decoding.translate import Translator
    from fusetk.evaluation.rescore import Rescorer, Scoring, Summary

    asked = Input(files, tsv, n_best, json_lines).checked()
    if (word_scores or (as_json and not summary)) and (asked.n_best or asked.json_lines):
        raise click.UsageError(
            "--word-scores and --json go with pairs of lines, not with --n-best or --json-lines"
        )
    given = click.get_current_context().get_parameter_source
    idle = [
        name
        for name in ("normalize", "no_end_mark", "word_scores", "feature")
        if given(name) is not ParameterSource.DEFAULT
    ]
    if summary and idle:
        raise click.UsageError(
            f"--{idle[0].replace('_', '-')} does not change the summary: leave it or --summary out"
        )
    if penalty and not normalize:
        raise click.UsageError("--penalty is what scores are divided by: give -n, too")
    if "feature" in idle and not (asked.n_best or asked.json_lines):
        raise click.UsageError(
            "--feature names what is added to a list: give --n-best or --json-lines, too"
        )
    if output != "-":
        readable([Path(name) for name in asked.names if name != "-"], Path(output))
    if threads:
        torch.set_num_threads(threads)
    found = system.load_ensemble(models, device, precision, raw)
    config = found.recipe.decoding
    translator = Translator(
        found.models,
        found.pipeline,
        config.model_copy(update={"ensemble": ensemble or config.ensemble}),
    )
    rescorer, corpus = Rescorer(translator, batch_tokens), Summary()
    form = Form(
        Scoring(not no_end_mark, normalize, penalty or config.penalty),
        feature,
        word_scores,
        as_json,
    )
    read, ready = rows(asked, rescorer, tokenized, feature)
    with opened(output) as out:
        seconds = 1e-9
        count = 0
        for chunk in chunks(read, CHUNK, ready):
            start = time.perf_counter()
            scored = rescorer([pair for row in chunk for pair in row.pairs])
            seconds += time.perf_counter() - start
            corpus.add(scored)
            if not summary:
                out.write("".join(form.show(count, chunk, scored)))
            count += len(chunk)
        if summary:
            out.write((json.dumps(corpus.numbers()) if as_json else str(corpus)) + "\n")
    if not quiet:
        if not summary:
            click.echo(corpus, err=True)
        speed = f"{corpus.sentences / seconds:,.1f} sentences/s, {corpus.tokens / seconds:,.0f} target tokens/s"
        click.echo(f"{corpus.sentences:,} sentences in {seconds:.2f} s: {speed}", err=True)


class Form(NamedTuple):
    """How scores look."""

    scoring: "Scoring"
    feature: str
    word_scores: bool
    as_json: bool

    def show(
        self, first: int, chunk: Sequence[Row], scored: "Sequence[Scored | None]"
    ) -> Iterator[str]:
        """The output of each row, of which the first is row ``first`` of the input, from 0."""
        following = iter(scored)
        for number, row in enumerate(chunk, first):
            found = list(islice(following, len(row.pairs)))
            if isinstance(row.content, list):
                yield self._entry(row.content, found[0])
            elif row.content is not None:
                yield self._translations(row.content, found)
            elif self.as_json:
                yield self._object(number, found[0])
            else:
                yield self._line(found[0])

    def _line(self, one: "Scored | None") -> str:
        if one is None:
            return "\n"
        counted = self.scoring.counted(one.scores) if self.word_scores else ()
        words = (
            f"{word} {score:.6f}"
            for word, score in zip([*one.tokens, SPECIAL[EOS]], counted, strict=False)
        )
        return "\t".join([f"{self.scoring.normalized(one.scores):.6f}", *words]) + "\n"

    def _object(self, number: int, one: "Scored | None") -> str:
        found: dict[str, Any] = {"id": number, "score": None, "normalized": None, "tokens": []}
        if one is not None:
            found |= {
                "score": self.scoring.score(one.scores),
                "normalized": self.scoring.normalized(one.scores),
                "tokens": one.tokens,
            }
        if self.word_scores:
            found["word_scores"] = [] if one is None else list(self.scoring.counted(one.scores))
        return json.dumps(found, ensure_ascii=False) + "\n"

    def _entry(self, fields: Sequence[str], one: "Scored | None") -> str:
        """A line of an n-best list; ``fields`` are what stood between the bars, spaces and all."""
        assert one is not None
        features = f"{fields[2].rstrip()} {self.feature}= {self.scoring.normalized(one.scores):.6f}"
        return (
            BAR.join([*fields[:2], features + (" " if len(fields) > 3 else ""), *fields[3:]]) + "\n"
        )

    def _translations(self, found: dict[str, Any], several: "Sequence[Scored | None]") -> str:
        numbers = [None if one is None else self.scoring.normalized(one.scores) for one in several]
        translations = [
            {**one, self.feature: number}
            for one, number in zip(found["translations"], numbers, strict=True)
        ]
        return json.dumps({**found, "translations": translations}, ensure_ascii=False) + "\n"
