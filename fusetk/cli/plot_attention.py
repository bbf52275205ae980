"""``fusetk plot-attention``."""

from pathlib import Path

import click
from click.core import ParameterSource

from fusetk.cli.common_options import inform, inform_of_warning
from fusetk.cli.picture_options import check_numbers, check_picture
from fusetk.cli.plot_attention_options import SECTIONS, plot_attention_options
from fusetk.cli.sections import Sections
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


@click.command("plot-attention", cls=Sections, sections=SECTIONS, epilog=EXAMPLE)
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
    translation, or beam search makes it. In all pictures of layers, l0 is the word embedding.

    Attention: each column is a token that is attended to, each row is a token that attends, and
    each row sums to 1. Rows of cross-attention and of mixed attention are predicted tokens. Rows of
    the decoder's self-attention are tokens that the decoder reads. Columns of mixed attention are
    the source tokens, then, after a line, the target prefix, starting with <s>. With --step, the
    columns end at the last token that the decoder reads at that step. `--step WORD --head all` has
    one panel per layer (decoder.layer1.mixed.heads). `--what self --step WORD` draws only the
    decoder.

    Fusions: each column is a token that the side reads (the decoder reads <s> first), each row is
    a layer, the lowest at the bottom. A fusion by attention has a panel for each hop, and each
    column sums to 1. For other fusions, the share of each layer is drawn (gradient times input).
    Further panels show the mean and, if the fusion has them, the learned weight of each layer or
    the beta of each node. With --corpus, the columns are the first position, five equal parts of
    the positions between, and the last position.

    Connections: each row is a layer, a sub-layer or the output of a stack (top), and each column is
    an output that it reads. Learned weights need no text, and a text is not read. For weights that
    depend on the position, the mean and the standard deviation over the positions are drawn. With
    --layer, each column is a token.

    Similarity: rows and columns are the layers of a stack. Each number is the cosine of the outputs
    of two layers, as the mean over the positions. The cell of two layers of different widths is
    empty.

    docs/plots.md gives the formula of a share, and describes the .html, .npz and .json files.
    """
    choices = PlotOptions(**options)  # type: ignore[arg-type]
    check_options(choices)
    check_picture(choices.output, size, style)
    color_source = click.get_current_context().get_parameter_source("colors")
    check_numbers(
        choices.output,
        {
            "--colors": color_source is not ParameterSource.DEFAULT,
            "--vmax": top is not None,
            "--title": title is not None and choices.output.suffix.lower() != ".json",
        },
    )
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
