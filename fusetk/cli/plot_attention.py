"""``fusetk plot-attention``."""

from pathlib import Path

import click

from fusetk.cli.common_options import inform, inform_of_warning
from fusetk.cli.picture_options import check_picture
from fusetk.cli.plot_attention_options import plot_attention_options
from fusetk.errors import DataError
from fusetk.plotting.choices import WHATS, PlotOptions, check_options
from fusetk.plotting.figure import PICTURES
from fusetk.plotting.panel import short_titles, with_top
from fusetk.plotting.save import save
from fusetk.plotting.style import STYLES, Size

EXAMPLE = (
    'Examples: fusetk plot-attention -m runs/demo -s "Der Mann, den sie sah, schlief ein." '
    "--layer 3 --head all -o heads.pdf; "
    "fusetk plot-attention -m runs/coordinated -i raw/test.de --lines 7 --what mixed --layer 1 "
    "--head all --step slept -o step.png; "
    "fusetk plot-attention -m runs/fused --what fuse -i raw/test.de -r raw/test.en --corpus "
    "-o layers.png"
)


@click.command("plot-attention", epilog=EXAMPLE)
@plot_attention_options
def command(
    model: Path,
    colors: str,
    device: str,
    top: float | None,
    title: str | None,
    size: Size | None,
    style: str,
    **options: object,
) -> None:
    """Draw attention, layer weights or the similarity of layers.

    The decoder reads the translation token by token (forced decoding). The user gives the
    translation, or beam search makes it.

    Attention: each column is a token that is attended to, each row is a token that attends, and
    each row sums to 1. Rows of cross-attention are predicted tokens. Rows of the decoder's
    self-attention are tokens that the decoder reads. Rows of mixed attention are predicted tokens;
    its columns are the source tokens, then, after a line, the target prefix, starting with <s>.

    --step draws one row: the token that is predicted at that step. With --head all it draws a row
    for each head, in one panel per layer (decoder.layer1.mixed.heads). The columns end at the last
    token that the decoder reads at that step. With `--what self`, --step draws only the decoder.

    Fusions: each column is a token that the side reads (the decoder reads <s> first), each row is
    a layer. The lowest layer is at the bottom; l0 is the word embedding. A fusion by attention has
    a panel for each hop, and each column sums to 1. For other fusions the share of each layer is
    drawn (gradient times input). It is the norm of J h divided by the sum of these norms over the
    layers: h is the layer, and J is the derivative of the fusion with respect to h, before the
    closing norm. Further panels show the mean and, if the fusion has them, the learned weight of
    each layer or the beta of each node. With --corpus, the columns are the first position, five
    equal parts of the positions between, and the last position.

    Connections: each row is a layer, a sub-layer or the output of a stack (top), and each column is
    an output that it reads; l0 is the word embedding. Learned weights need no text, and a text is
    not read. For weights that depend on the position, the mean and the standard deviation over the
    positions of a sentence are drawn, or over a text with --corpus. With --layer, each column is a
    token. The weights of `residual` with several streams are expanded to weights of the outputs of
    the sub-layers below. Layer normalisation is not included.

    Similarity: rows and columns are the layers of a stack; l0 is the word embedding. Each number is
    the cosine of the outputs of two layers: the mean over the positions of a sentence or, with
    --corpus, of a text. The cell of two layers of different widths is empty.

    An .html file holds any number of sentences and needs no network: a slider and the arrow keys
    change the sentence. The pointer shows the numbers, and so do the arrow keys after Tab has
    reached a heatmap; each heatmap has a table of its numbers. An .npz file holds each matrix under
    its name, for example decoder.layer1.cross.head2, decoder.fuse.hop1 or
    decoder.fuse.contribution. The first row of a matrix belongs to the first label. The labels have
    the name of the matrix with .x and .y. With several sentences, each name starts with the number
    of the line, for example 7.decoder.fuse.hop1. A .json file has the same names in the list
    `panels`; with several sentences their texts are in `sentences`.
    """
    choices = PlotOptions(**options)  # type: ignore[arg-type]
    check_options(choices)
    check_picture(choices.output, size, style)
    if size and size.height:
        raise DataError(
            "--size: the cells are square, so the width determines the height: give only the width"
        )

    from fusetk import system
    from fusetk.plotting.pages import make_pages, panel_columns

    loaded = system.load_model(model, device, report=inform_of_warning)
    pages, addition = make_pages(loaded.translator(), choices, inform)
    if top is not None:
        pages = with_top(pages, top)
    if title is None and (STYLES[style].title or choices.output.suffix.lower() not in PICTURES):
        content = short_titles(pages[0].panels)[0] if len(pages) == 1 else ""
        title = f"{content or WHATS[choices.what]}{addition} ({loaded.name})"
    columns = panel_columns(choices, pages[0].panels)
    save(
        pages,
        choices.output,
        title=title or "",
        colors=colors,
        columns=columns,
        style=STYLES[style],
        size=size,
    )
