"""The options of ``fusetk plot-attention``, and their headings in the help."""

from pathlib import Path

import click

from fusetk.cli.options import device_option, run_argument, tokenized_option
from fusetk.cli.parameters import Decorator, FilePath, Parsed, all_of
from fusetk.cli.picture_options import size_option, style_option
from fusetk.plotting.choices import WHATS, parse_head, parse_step
from fusetk.plotting.panel import COLORS, DEFAULT_COLORS
from fusetk.plotting.sentences import line_range
from fusetk.plotting.style import parse_top

SECTIONS = {
    "Model, text and output": [
        *("model_option", "output", "sources", "targets", "source_file", "target_file"),
        *("lines", "tokenized", "device"),
    ],
    "What is drawn": ["what", "layer", "head", "step", "corpus"],
    "Form of the picture": ["title", "colors", "top", "size", "style"],
}

OPTIONS: tuple[Decorator, ...] = (
    run_argument("model"),
    click.option(
        "-s",
        "--source",
        "sources",
        multiple=True,
        metavar="TEXT",
        help="A source sentence. Repeat the option for further sentences.",
    ),
    click.option(
        "-t",
        "--target",
        "targets",
        multiple=True,
        metavar="TEXT",
        help="Translation of the sentence; one for each -s, or none. Default: the result of beam"
        " search.",
    ),
    click.option(
        "-i",
        "--input",
        "source_file",
        metavar="FILE",
        help="File with source sentences, one per line, plain or .gz; - is standard input.",
    ),
    click.option(
        "-r", "--target-file", metavar="FILE", help="File with the translations, line by line."
    ),
    click.option(
        "--lines",
        type=Parsed("A-B", line_range),
        help="Draw only the lines A to B of the file, or one line A; counted from 1.",
    ),
    click.option(
        "--what",
        type=click.Choice(list(WHATS)),
        default="cross",
        show_default=True,
        metavar="KIND",
        help="cross: attention of the decoder to the source. self: self-attention of both sides."
        " encoder-self, decoder-self: self-attention of one side. mixed: attention of the decoder"
        " to source and target in one softmax (coordinated models). fuse, encoder-fuse,"
        " decoder-fuse: layer weights of the fusions. connect, encoder-connect, decoder-connect:"
        " the weights with which layers and sub-layers read the outputs below them (`connect`,"
        " `residual`, `attend: transparent`)."
        " similarity: cosine of the outputs of each pair of layers of a stack.",
    ),
    click.option(
        "--layer",
        type=int,
        metavar="N",
        help="Draw only this layer, counted from 1. Default: all layers. For connections: the"
        " weights at each token of this row of the picture.",
    ),
    click.option(
        "--head",
        type=Parsed("N|mean|all", parse_head),
        help="A head, counted from 1; the mean over heads (default); or all, a panel for each head."
        " For a fusion by attention: the hops, by default all.",
    ),
    click.option(
        "--step",
        type=Parsed("WORD|N", parse_step),
        help="Draw only the step at which the decoder predicts token N of the translation, counted"
        " from 1, or the first occurrence of the complete word WORD. With --head all, rows are"
        " heads.",
    ),
    click.option(
        "--corpus",
        is_flag=True,
        help="Fusions, connections and similarity: draw the mean over all sentences. Fusions: also"
        " the mean by part of the sentence.",
    ),
    tokenized_option("The text is"),
    click.option(
        "--colors",
        type=click.Choice(list(COLORS)),
        default=DEFAULT_COLORS,
        show_default=True,
        help="Colour map. viridis: 0 is dark, and large numbers are yellow. grey: 1 is white and 0"
        " is black, as in papers. If there are negative numbers, positive ones are red and negative"
        " ones are blue.",
    ),
    click.option(
        "--vmax",
        "top",
        type=Parsed("NUMBER|max", parse_top),
        help="Number at the end of the colour scale; larger numbers have the same colour. max: the"
        " largest number that is drawn, rounded up. Pictures with the same scale can be compared."
        " Default: 1 for attention weights, shares and cosines, max for other numbers.",
    ),
    click.option(
        "--title",
        metavar="TEXT",
        help="Title of the picture; '' for none. Default: what is drawn, and the checkpoint.",
    ),
    size_option("The height of a heatmap follows from its width, because its cells are square."),
    style_option,
    device_option,
    click.option(
        "-o",
        "--output",
        required=True,
        type=FilePath(path_type=Path),
        metavar="FILE",
        help="Output file: a picture (.png, .pdf, .svg), an interactive page (.html), or the"
        " numbers (.npz, .json).",
    ),
)
plot_attention_options = all_of(OPTIONS)
