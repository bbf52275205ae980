"""``fusetk decode``."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusetk.cli.options import device_option, quiet_option, threads_option
from fusetk.config import Document, Origin, Place, parse
from fusetk.data.text import STANDARD_INPUT, cannot_write, decode_lines, open_text, read_lines, readable
from fusetk.errors import ConfigError

if TYPE_CHECKING:
    from fusetk.decoding.config import SearchConfig
    from fusetk.decoding.translate import Translation, Translator
    from fusetk.run import Loaded

CHUNK = 4000  # lines that are sorted and translated together

Emit = Callable[[str], None]


@click.command("decode", epilog="Example: fusetk decode -m runs/demo < test.de > test.en")
@click.option(
    "-m", "--model", "models", metavar="RUN", multiple=True, required=True,
    help="A run folder (its best checkpoint) or a checkpoint; again for each further model of an ensemble.",
)
@click.option(
    "-i", "--input", "source", metavar="FILE", default="-", help="Text, one sentence a line, plain or .gz; standard input by default."
)
@click.option("-o", "--output", "target", metavar="FILE", default="-", help="Where translations go; standard output by default.")
@click.option("-b", "--beam", "--beam-size", "beam", type=int, help="Hypotheses a sentence; 1 is greedy.")
@click.option(
    "-n", "--normalize", type=float, is_flag=False, flag_value=1.0, metavar="[ALPHA]",
    help="Exponent of the length penalty; 1 without a value, 0 for none.",
)
@click.option(
    "--penalty", type=click.Choice(["power", "gnmt"]), help="Scores are divided by length^ALPHA, or by ((5 + length) / 6)^ALPHA."
)
@click.option(
    "--stop", type=click.Choice(["exact", "beam", "first"]),
    help="When a sentence is done: no hypothesis can still win, or as many as the beam is wide have ended, or N-BEST have.",
)
@click.option(
    "--n-best", type=int, metavar="N",
    help="Print N translations a sentence: `ID ||| text ||| LogProb= score ||| normalised score`, IDs from 0.",
)
@click.option("--min-length", type=int, metavar="N", help="Fewest tokens of a translation.")
@click.option("--max-length-factor", type=float, metavar="X", help="A translation has at most X tokens for each source token,")
@click.option("--max-length-extra", type=int, metavar="N", help="and N more.")
@click.option("--forbid-unknown", is_flag=True, default=None, help="Never produce the unknown word.")
@click.option("--ensemble", type=click.Choice(["probability", "log"]), help="What is averaged over models.")
@click.option("--batch-tokens", type=int, metavar="N", help="Sentences * beam * source tokens in a batch.")
@click.option(
    "--tokenized", is_flag=True, help="Input is words as the run's text preparation makes them, not yet subwords; so is the output."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line: id, text, all translations with tokens and scores.")
@click.option(
    "--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True,
    help="Of the model; log-probabilities are always fp32.",
)
@click.option("--raw", is_flag=True, help="Take the weights themselves where training kept an exponential mean of them beside them.")
@device_option
@threads_option
@quiet_option
def command(
    models: tuple[str, ...], source: str, target: str, tokenized: bool, as_json: bool, raw: bool,
    precision: str, device: str, threads: int | None, quiet: bool, **options: Any,
) -> None:  # fmt: skip
    """Translate text line by line, through the text preparation of the run: raw text in, raw text out.

    Exactly one line comes out for each line that goes in (with --n-best, up to N), in order, and a blank line for a blank
    line. Settings that are not given here are those of the run's config, section `decoding`. Scores are natural-log
    probabilities with the end mark; the length that normalises them counts the end mark too.
    """
    import torch

    from fusetk import run
    from fusetk.decoding.translate import Translator

    if threads:
        torch.set_num_threads(threads)
    if source != "-" and target != "-":
        readable([Path(source)], Path(target))
    loaded = [run.load(Path(model), device, raw) for model in models]
    _check_vocabularies(models, loaded)
    config = _settings(loaded[0].recipe.decoding, {key: value for key, value in options.items() if value is not None})
    networks = [one.model.to(torch.bfloat16) if precision == "bf16" else one.model for one in loaded]
    translator = Translator(networks, loaded[0].pipeline, config)
    moses = options["n_best"] is not None
    with _writing(target) as emit:
        speed = _translate(translator, _reading(source), emit, tokenized, as_json, moses)
    if not quiet:
        click.echo(speed, err=True)


def _settings(config: "SearchConfig", options: dict[str, Any]) -> "SearchConfig":
    """The run's own settings, overridden by options; raises ConfigError with the option's name."""
    origins: dict[Place, Origin] = {(key,): Origin(f"--{key.replace('_', '-')}", Path()) for key in options}
    return parse(Document({**config.model_dump(), **options}, origins), type(config))


def _check_vocabularies(names: Sequence[str], loaded: "Sequence[Loaded]") -> None:
    first = loaded[0].pipeline
    for name, other in zip(names[1:], loaded[1:], strict=True):
        for side in ("source", "target"):
            mine, theirs = (getattr(pipeline, f"{side}_vocab").tokens for pipeline in (first, other.pipeline))
            if mine != theirs:
                raise ConfigError(
                    f"{names[0]} and {name} cannot be an ensemble, their {side} vocabularies differ ({len(mine)} and {len(theirs)} tokens):"
                    " train both on the same prepared data"
                )


def _reading(source: str) -> Iterator[list[str]]:
    """Chunks of lines of a file or of standard input."""
    from fusetk.decoding.stream import Arrivals, chunks

    if source != "-":
        return chunks(read_lines(source), CHUNK)
    try:
        sys.stdin.fileno()
    except OSError:  # not of the operating system: all is there
        return chunks(decode_lines(sys.stdin.buffer, STANDARD_INPUT), CHUNK)
    arrivals = Arrivals(sys.stdin.buffer)
    return chunks(decode_lines(arrivals, STANDARD_INPUT), CHUNK, arrivals.ready)


@contextmanager
def _writing(target: str) -> Iterator[Emit]:
    """A function that writes text and flushes it: what was translated stays if something breaks later."""
    if target == "-":
        out = sys.stdout.buffer

        def emit(text: str) -> None:
            out.write(text.encode())
            out.flush()

        yield emit
        return
    try:
        file = open_text(target)
    except OSError as error:
        raise cannot_write(target, error) from None
    with file:

        def emit_to_file(text: str) -> None:
            try:
                file.write(text)
                file.flush()
            except OSError as error:
                raise cannot_write(target, error) from None

        yield emit_to_file


def _translate(
    translator: "Translator", chunks: Iterator[list[str]], emit: Emit, tokenized: bool, as_json: bool, moses: bool
) -> str:  # fmt: skip
    """Translate and write all chunks; returns a line about the speed."""
    count = sentences = tokens = 0
    seconds = 1e-9
    for lines in chunks:
        start = time.perf_counter()
        found = translator.n_best(lines, tokenized, count + 1)
        seconds += time.perf_counter() - start
        emit("".join(_show(count + i, best, as_json, moses) for i, best in enumerate(found)))
        count += len(lines)
        sentences += sum(1 for best in found if best)
        tokens += sum(len(best[0].tokens) for best in found if best)
    rates = f"{sentences / seconds:,.1f} sentences/s, {tokens / seconds:,.0f} target tokens/s"
    return f"{sentences:,} sentences in {seconds:.2f} s: {rates}"


def _show(number: int, best: "Sequence[Translation]", as_json: bool, moses: bool) -> str:
    """The output for one input line."""
    text = best[0].text if best else ""
    if as_json:
        return json.dumps({"id": number, "text": text, "translations": [one._asdict() for one in best]}, ensure_ascii=False) + "\n"
    if moses:
        return "".join(f"{number} ||| {one.text} ||| LogProb= {one.score:.6f} ||| {one.normalized:.6f}\n" for one in best)
    return text + "\n"
