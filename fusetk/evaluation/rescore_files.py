"""Scores of a stream of given translations, as ``fusetk rescore`` prints them."""

import json
import logging
import time
from collections.abc import Callable

from fusetk import display
from fusetk.data.vocab import MANY_UNKNOWN
from fusetk.decoding.output_file import OutputFile
from fusetk.decoding.stream import chunks
from fusetk.decoding.translate_lines import describe_speed
from fusetk.evaluation.rescore import CorpusScore, Rescorer
from fusetk.evaluation.rescore_rows import RescoreInputs, ScoreFormat, read_rows

CHUNK = 4000  # lines that are sorted and scored together

log = logging.getLogger(__name__)


def rescore_input(
    inputs: RescoreInputs,
    rescorer: Rescorer,
    score_format: ScoreFormat,
    tokenized: bool,
    summary_only: bool,
    output: OutputFile,
    report: Callable[[str], None],
) -> None:
    """Write the scores of all rows, or with ``summary_only`` the summary of the corpus.

    ``report`` gets the summary, if it is not written, and the speed. Raises DataError for a row
    that cannot be scored; the scores of the rows before it are written.
    """
    rows, ready = read_rows(inputs, rescorer, tokenized, score_format.feature)
    corpus = CorpusScore()
    seconds = 1e-9
    count = 0
    with display.task("", "pairs", inputs.count_pairs()) as done:
        rescorer.on_batch = done.advance
        for chunk in chunks(rows, CHUNK, ready):
            begin = time.perf_counter()
            scored = rescorer([pair for row in chunk for pair in row.pairs])
            seconds += time.perf_counter() - begin
            corpus.add(scored)
            done.set(corpus.sentences + corpus.blank)  # blank sources are in no batch
            if not summary_only:
                output.write("".join(score_format.format(count, chunk, scored)))
            count += len(chunk)
    if summary_only:
        numbers = json.dumps(corpus.numbers()) if score_format.as_json else str(corpus)
        output.write(numbers + "\n")
    else:
        report(str(corpus))
    if not corpus.sentences:
        return
    if corpus.unknown > MANY_UNKNOWN * corpus.tokens:
        log.warning(
            "%.0f %% of the target tokens are unknown: are source and target swapped?",
            100 * corpus.unknown / corpus.tokens,
        )
    report(describe_speed(corpus.sentences, corpus.tokens, seconds))
