"""``fusetk rescore``."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from fusetk.cli.common_options import inform
from fusetk.cli.memory import memory_advice
from fusetk.cli.options import check_ensemble, use_threads
from fusetk.cli.rescore_checks import check_options, checked_inputs, named_files
from fusetk.cli.rescore_options import rescore_options
from fusetk.data.text import check_inputs_and_output
from fusetk.decoding.ensemble import SETTINGS
from fusetk.decoding.output_file import open_output
from fusetk.display import Display

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
    ||| score` and any further fields. A feature has a name, as in `LogProb= -1.5`. The list is
    printed with `Rescore= value` at the end of the features. IDs count from 0 and must not
    decrease. With --json-lines, each translation in the output of `fusetk decode --json` gets one
    more number. With either option, a source that is longer than decoding.max_source_length or than
    the model allows is truncated, with a warning, as the search does. Otherwise,
    decoding.max_source_length has no effect.

    A printed text may be split into other tokens than those of the search. --json-lines reads the
    tokens of the search, so the scores equal those of the search, up to rounding.

    The summary, on standard error, has the perplexity per token and per word; EOS counts in both.
    The perplexity per word can be compared between models with different subwords.
    """
    from fusetk import system
    from fusetk.data.text import standard_input
    from fusetk.decoding.translate import Translator
    from fusetk.evaluation.rescore import Rescorer, ScoreRule
    from fusetk.evaluation.rescore_files import rescore_input
    from fusetk.evaluation.rescore_rows import RescoreInputs, ScoreFormat

    files = named_files(options["files"], options["source"], options["target"])
    lists = (options["tsv"], options["n_best"], options["json_lines"])
    inputs = checked_inputs(RescoreInputs(files, *lists))
    check_options(inputs, options)
    check_ensemble(options, options["models"])
    if options["output"] != "-":
        check_inputs_and_output(inputs.names, Path(options["output"]))
    if "-" in inputs.names:
        standard_input()
    use_threads(options["threads"])
    # A class outside fusetk may print. Standard output has only scores.
    with redirect_stdout(sys.stderr):
        loaded = system.load_ensemble(
            options["models"], options["device"], options["precision"], options["raw"], inform
        )
    ensemble = {key: options[key] for key in SETTINGS if options[key]}
    config = loaded.recipe.decoding.model_copy(update=ensemble)
    translator = Translator(loaded.models, loaded.pipeline, config)
    rescorer = Rescorer(translator, options["batch_tokens"])
    penalty = options["penalty"] or config.penalty
    rule = ScoreRule(not options["no_eos"], options["normalize"], penalty)
    score_format = ScoreFormat(rule, options["feature"], options["word_scores"], options["as_json"])
    # Scores on the terminal show the progress themselves.
    on_terminal = options["output"] == "-" and not options["summary"] and sys.stdout.isatty()
    with (
        open_output(options["output"], keep=0) as output,
        redirect_stdout(sys.stderr),
        memory_advice("lower --batch-tokens"),
        Display(options["quiet"] or on_terminal),
    ):
        rescore_input(
            inputs, rescorer, score_format, options["tokenized"], options["summary"], output, inform
        )
