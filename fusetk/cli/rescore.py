"""``fusetk rescore``."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusetk.cli.memory import memory_advice
from fusetk.cli.rescore_options import check_options, checked_inputs, rescore_options
from fusetk.data.text import readable
from fusetk.decoding.output_file import OutputFile, open_output
from fusetk.decoding.stream import chunks

if TYPE_CHECKING:
    from fusetk.evaluation.rescore import Rescorer
    from fusetk.evaluation.rescore_rows import RescoreInputs

CHUNK = 4000  # lines that are sorted and scored together
MANY_UNKNOWN = 0.2  # share of unknown target tokens above which the command warns
EXAMPLES = (
    "Examples: fusetk rescore -m runs/demo test.de test.en > scores; "
    "fusetk decode -m runs/demo --n-best 5 -i test.de | fusetk rescore -m runs/other test.de "
    "--n-best - --feature Other"
)


@click.command("rescore", epilog=EXAMPLES)
@rescore_options
def command(**options: Any) -> None:
    """Print the natural-log probability that a model gives to each line of TGT as a translation of
    SRC.

    Each pair gives exactly one output line. Both sides are raw text, and the text preparation of
    the run processes them. EOS counts. A blank source has no score: its line is blank, in JSON
    null, and it is not in the summary. The score of a blank target is the probability that the
    translation ends at once. A line that is too long for the model, and files of different lengths,
    are errors; the scores of the lines before them are printed.

    With --n-best, the input is a list of translations of SRC with lines `ID ||| text ||| features
    ||| score` and any further fields. It is printed with `Rescore= value` at the end of the
    features. IDs count from 0 and must not decrease. With --json-lines, each translation in the
    output of `fusetk decode --json` gets one more number. A printed text may be split into other
    tokens than those of the search. --json-lines reads the tokens of the search, so the scores
    equal those of the search.

    The summary, on standard error, has the perplexity per token and per word; EOS counts in both.
    The perplexity per word can be compared between models with different subwords.
    """
    import torch

    from fusetk import system
    from fusetk.decoding.translate import Translator
    from fusetk.evaluation.rescore import Rescorer
    from fusetk.evaluation.rescore_rows import RescoreInputs

    files = (options["files"], options["tsv"], options["n_best"], options["json_lines"])
    inputs = checked_inputs(RescoreInputs(*files))
    check_options(inputs, options)
    if options["output"] != "-":
        paths = [Path(name) for name in inputs.names if name != "-"]
        readable(paths, Path(options["output"]))
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    loaded = system.load_ensemble(
        options["models"], options["device"], options["precision"], options["raw"]
    )
    config = loaded.recipe.decoding
    if options["ensemble"]:
        config = config.model_copy(update={"ensemble": options["ensemble"]})
    translator = Translator(loaded.models, loaded.pipeline, config)
    rescorer = Rescorer(translator, options["batch_tokens"])
    with open_output(options["output"], keep=0) as output:
        _rescore(inputs, rescorer, output, options)


def _rescore(
    inputs: "RescoreInputs", rescorer: "Rescorer", output: OutputFile, options: dict[str, Any]
) -> None:
    """Print the scores of all rows and the summary."""
    from fusetk.evaluation.rescore import CorpusScore, ScoreRule
    from fusetk.evaluation.rescore_rows import ScoreFormat, read_rows

    penalty = options["penalty"] or rescorer.translator.config.penalty
    rule = ScoreRule(not options["no_end_mark"], options["normalize"], penalty)
    score_format = ScoreFormat(rule, options["feature"], options["word_scores"], options["as_json"])
    rows, ready = read_rows(inputs, rescorer, options["tokenized"], options["feature"])
    corpus = CorpusScore()
    seconds = 1e-9
    count = 0
    for chunk in chunks(rows, CHUNK, ready):
        begin = time.perf_counter()
        with memory_advice("lower --batch-tokens"):
            scored = rescorer([pair for row in chunk for pair in row.pairs])
        seconds += time.perf_counter() - begin
        corpus.add(scored)
        if not options["summary"]:
            output.write("".join(score_format.format(count, chunk, scored)))
        count += len(chunk)
    if options["summary"]:
        numbers = json.dumps(corpus.numbers()) if options["as_json"] else str(corpus)
        output.write(numbers + "\n")
    if not corpus.sentences:
        click.echo("warning: no sentence was scored; the source has no text", err=True)
        return
    if corpus.unknown > MANY_UNKNOWN * corpus.tokens:
        share = corpus.unknown / corpus.tokens
        click.echo(
            f"warning: {share:.0%} of the target tokens are unknown; check that SRC and TGT are "
            "not swapped, and that the text is not tokenised",
            err=True,
        )
    if options["quiet"]:
        return
    if not options["summary"]:
        click.echo(corpus, err=True)
    speed = (
        f"{corpus.sentences / seconds:,.1f} sentences/s, "
        f"{corpus.tokens / seconds:,.0f} target tokens/s"
    )
    click.echo(f"{corpus.sentences:,} sentences in {seconds:.2f} s: {speed}", err=True)
