"""``fusetk plot-attention``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusetk.cli.options import device_option
from fusetk.data.vocab import UNK
from fusetk.errors import DataError
from fusetk.plotting.figure import check_output
from fusetk.plotting.heatmap import COLORS, heatmap

if TYPE_CHECKING:
    from fusetk.data.pipeline import Pipeline
    from fusetk.run import Loaded

WHATS = {"cross": "cross-attention", "self": "self-attention", "encoder-self": "self-attention", "decoder-self": "self-attention"}
EXAMPLE = 'Example: fusetk plot-attention -m runs/demo -s "Der Mann, den sie sah, schlief ein." --layer 3 --head all -o heads.pdf'


class Head(click.ParamType):
    """A number from 1, ``mean`` or ``all``."""

    name = "N|mean|all"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if value in ("mean", "all") or isinstance(value, int):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        self.fail(f"{value!r} is neither a number nor mean nor all", param, ctx)


@click.command("plot-attention", epilog=EXAMPLE)
@click.option(
    "-m", "--model", required=True, type=click.Path(path_type=Path), metavar="RUN",
    help="A run folder, of which the best checkpoint is taken, or a checkpoint.",
)
@click.option("-s", "--source", required=True, metavar="TEXT", help="The sentence to translate.")
@click.option("-t", "--target", metavar="TEXT", help="Its translation. Without it, the one that beam search finds.")
@click.option(
    "--what", type=click.Choice(list(WHATS)), default="cross", show_default=True,
    help="Attention of the decoder to the source, or of a side to itself; self is both sides.",
)
@click.option("--layer", type=int, metavar="N", help="One layer, counted from 1. Without it, all.")
@click.option(
    "--head", type=Head(), default="mean", show_default=True, help="One head, counted from 1; the mean over heads; or a panel for each.",
)
@click.option("--tokenized", is_flag=True, help="The text is prepared as the training text was, but for subwords.")
@click.option(
    "--colors", type=click.Choice(list(COLORS)), default="blue", show_default=True,
    help="Colours; grey is as in papers, white for 1 and black for 0.",
)
@device_option
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE",
    help="A picture, .png, .pdf or .svg, or the numbers, .npz or .json.",
)
def command(
    model: Path, source: str, target: str | None, what: str, layer: int | None, head: str | int,
    tokenized: bool, colors: str, device: str, output: Path,
) -> None:  # fmt: skip
    """Draw the attention weights of one sentence and its translation.

    The model reads the translation word by word (forced decoding), whether it was given or found. Columns are the words
    that are looked at, rows those that look; each row sums to 1. In cross-attention a row is the word that the decoder
    predicts there; in the decoder's self-attention it is the word that it has just read.

    An .npz file holds each matrix under its name, such as decoder.layer1.cross or decoder.layer1.cross.head2, and its
    words under that name with .x and .y.
    """
    check_output(output)

    from fusetk import run
    from fusetk.plotting import attention

    loaded = run.load(model, device)
    pipeline = loaded.pipeline
    words = tokens(pipeline, "source", source, tokenized)
    found = search(loaded, words) if target is None else tokens(pipeline, "target", target, tokenized)
    if target is None:
        click.echo(f"found: {pipeline.join(found)}", err=True)
    ids = pipeline.source_vocab.encode(words), pipeline.target_vocab.encode(found)
    _warn("source", words, ids[0])
    _warn("target", found, ids[1])
    shown = attention.panels(attention.record(loaded.model, *ids), attention.Words(words, found), what, layer, head)
    checkpoint = loaded.checkpoint.resolve()
    x_label, y_label = ("source", "target") if what == "cross" else ("looked at", "looking")
    heatmap(
        shown, output, title=f"{WHATS[what]} of {checkpoint.parent.parent.name}, {checkpoint.name}",
        x_label=x_label, y_label=y_label, bar_label="attention weight (a row sums to 1)", colors=colors,
        columns=attention.columns(shown) if head == "all" else None,
    )  # fmt: skip


def tokens(pipeline: "Pipeline", side: str, text: str, tokenized: bool) -> list[str]:
    """A sentence as the model's tokens; raises DataError for one that is empty or more than one."""
    text = text.rstrip("\n")
    if "\n" in text:
        raise DataError(f"the {side} text has more than one line; give one sentence")
    found = pipeline.subwords(side, text if tokenized else pipeline.words(side, text))
    if not found:
        raise DataError(f"the {side} sentence is empty; give one with words")
    return found


def search(loaded: "Loaded", source: Sequence[str]) -> list[str]:
    """The tokens of the translation that the run's own search finds."""
    import torch

    from fusetk.data.vocab import EOS
    from fusetk.decoding import beam

    device = next(loaded.model.parameters()).device
    src = torch.tensor([[*loaded.pipeline.source_vocab.encode(source), EOS]], device=device)
    best = beam.search([loaded.model], src, torch.ones_like(src, dtype=torch.bool), loaded.recipe.decoding)[0][0]
    return loaded.pipeline.target_vocab.decode(best.ids)


def _warn(side: str, words: Sequence[str], ids: Sequence[int]) -> None:
    unknown = dict.fromkeys(word for word, i in zip(words, ids, strict=True) if i == UNK)
    if unknown:
        click.echo(f"warning: the model reads <unk> for what it does not know on the {side} side: {' '.join(unknown)}", err=True)
