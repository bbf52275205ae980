"""``fusetk plot-attention``."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from fusetk.cli.common_options import inform
from fusetk.cli.options import device_option
from fusetk.errors import DataError
from fusetk.plotting.figure import check_output
from fusetk.plotting.panel import COLORS, Page, Panel
from fusetk.plotting.save import check_one, save
from fusetk.plotting.sentences import (
    InputPair,
    Reader,
    Sentence,
    command_line_pairs,
    file_pairs,
    line_range,
)

if TYPE_CHECKING:
    from fusetk.plotting.attention import TokenPair
    from fusetk.system import Loaded

# The values of --what, and their names in titles.
ATTENTION = {
    "cross": "cross-attention",
    "self": "self-attention",
    "encoder-self": "self-attention",
    "decoder-self": "self-attention",
    "mixed": "mixed attention",
}
FUSION = {"fuse": "layer fusion", "encoder-fuse": "layer fusion", "decoder-fuse": "layer fusion"}
WHATS = {**ATTENTION, **FUSION, "connect": "connections"}
CHUNK = 4000  # sentences that are sorted by length and read together
EXAMPLE = (
    'Examples: fusetk plot-attention -m runs/demo -s "Der Mann, den sie sah, schlief ein." '
    "--layer 3 --head all -o heads.pdf; "
    "fusetk plot-attention -m runs/coordinated -i raw/test.de --lines 7 --what mixed --layer 1 "
    "--head all --step slept -o step.png; "
    "fusetk plot-attention -m runs/fused --what fuse -i raw/test.de -r raw/test.en --corpus "
    "-o layers.png"
)


class HeadParam(click.ParamType):
    """A number from 1, ``mean`` or ``all``."""

    name = "N|mean|all"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        if value in ("mean", "all") or isinstance(value, int):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        self.fail(f"{value!r} is not a number from 1, mean or all", param, ctx)


class StepParam(click.ParamType):
    """A number from 1, or a word."""

    name = "WORD|N"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        if isinstance(value, str) and value.isascii() and value.isdigit():
            return int(value)
        return value


class LineRangeParam(click.ParamType):
    """A range of lines, counted from 1."""

    name = "A-B"

    def convert(
        self, value: str | range, param: click.Parameter | None, ctx: click.Context | None
    ) -> range:
        if isinstance(value, range):
            return value
        try:
            return line_range(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class PlotOptions(NamedTuple):
    """The values of the options that select the text and the panels."""

    what: str
    layer: int | None
    head: str | int | None
    step: str | int | None
    tokenized: bool
    corpus: bool
    output: Path
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    source_file: str | None
    target_file: str | None
    lines: range | None


@click.command("plot-attention", epilog=EXAMPLE)
@click.option(
    "-m",
    "--model",
    required=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="A run folder (its best checkpoint is used) or a checkpoint.",
)
@click.option(
    "-s",
    "--source",
    "sources",
    multiple=True,
    metavar="TEXT",
    help="A source sentence. Repeat the option for further sentences.",
)
@click.option(
    "-t",
    "--target",
    "targets",
    multiple=True,
    metavar="TEXT",
    help="Translation of the sentence; one for each -s, or none. Default: the result of beam"
    " search.",
)
@click.option(
    "-i",
    "--input",
    "source_file",
    metavar="FILE",
    help="File with source sentences, one per line, plain or .gz; - is standard input.",
)
@click.option(
    "-r", "--target-file", metavar="FILE", help="File with the translations, line by line."
)
@click.option(
    "--lines",
    type=LineRangeParam(),
    help="Draw only the lines A to B of the file, or one line A; counted from 1.",
)
@click.option(
    "--what",
    type=click.Choice(list(WHATS)),
    default="cross",
    show_default=True,
    metavar="KIND",
    help="cross: attention of the decoder to the source. self: self-attention of both sides."
    " encoder-self, decoder-self: self-attention of one side. mixed: attention of the decoder to"
    " source and target in one softmax (coordinated models). fuse, encoder-fuse, decoder-fuse:"
    " layer weights of the fusions. connect: the weights with which layers and sub-layers read"
    " the outputs below them (`connect`, `residual`, `attend: transparent`).",
)
@click.option(
    "--layer",
    type=int,
    metavar="N",
    help="Draw only this layer, counted from 1. Default: all layers. For connections: the weights"
    " at each token of this row of the picture.",
)
@click.option(
    "--head",
    type=HeadParam(),
    help="A head, counted from 1; the mean over heads (default); or all, a panel for each head."
    " For a fusion by attention: the hops, by default all.",
)
@click.option(
    "--step",
    type=StepParam(),
    help="Draw only the step at which the decoder predicts token N of the translation, counted"
    " from 1, or the first occurrence of the complete word WORD. With --head all, rows are heads.",
)
@click.option(
    "--corpus",
    is_flag=True,
    help="Fusions and connections: draw the mean over all sentences. Fusions: also the mean by part"
    " of the sentence.",
)
@click.option(
    "--tokenized",
    is_flag=True,
    help="The text is already prepared like the training text of the run, except for the split"
    " into subwords.",
)
@click.option(
    "--colors",
    type=click.Choice(list(COLORS)),
    default="blue",
    show_default=True,
    help="Colour map. grey: 1 is white and 0 is black, as in papers. If there are negative numbers,"
    " positive ones are red and negative ones are blue.",
)
@device_option
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file: a picture (.png, .pdf, .svg), an interactive page (.html), or the numbers"
    " (.npz, .json).",
)
def command(model: Path, colors: str, device: str, **options: object) -> None:
    """Draw the attention weights of a translation, or the layer weights of a fusion.

    The decoder reads the translation token by token (forced decoding). The user gives the
    translation, or beam search makes it. Attention: each column is a token that is
    attended to, each row is a token that attends, and each row sums to 1. Rows of cross-attention
    are predicted tokens. Rows of the decoder's self-attention are tokens that the decoder reads.
    Rows of mixed attention are predicted tokens; its columns are the source tokens,
    then, after a line, the target prefix, starting with <s>.

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
    an output that it reads; l0 is the word embedding. Learned weights need no text. For weights
    that depend on the position, the mean and the standard deviation over the positions of a
    sentence are drawn, or over a text with --corpus. With --layer, each column is a token. The
    weights of `residual` with several streams are expanded to weights of the outputs of the
    sub-layers below. Layer normalisation is not included.

    An .html file holds any number of sentences and needs no network: a slider and the arrow keys
    change the sentence, and the pointer shows the numbers. An .npz file holds each matrix under its
    name, for example decoder.layer1.cross.head2, decoder.fuse.hop1 or decoder.fuse.contribution.
    The first row of a matrix belongs to the first label. The labels have the name of the matrix
    with .x and .y. With several sentences, each name starts with the number of the line, for
    example 7.decoder.fuse.hop1. A .json file has the same names in the list `panels`; with several
    sentences their texts are in `sentences`.
    """
    choices = PlotOptions(**options)  # type: ignore[arg-type]
    check_options(choices)

    from fusetk import system

    loaded = system.load_model(model, device)
    checkpoint = loaded.checkpoint.resolve()
    title = f"{WHATS[choices.what]} of {checkpoint.parent.parent.name}, {checkpoint.name}"
    if choices.what == "connect" and not reads_text(choices, loaded):
        from fusetk.plotting import connect

        pages = [Page(connect.panels(loaded.model))]
    else:
        positions = loaded.model.max_positions
        strict = bool(choices.sources)
        reader = Reader(loaded.pipeline, choices.tokenized, positions, strict=strict)
        sentences = reader(input_pairs(choices))
        if choices.corpus:
            page, count = mean_page(loaded, choices, sentences, reader)
            pages = [page]
            title += f", mean over {count:,} sentence{'s' if count > 1 else ''}"
        else:
            pages = sentence_pages(loaded, choices, sentences, reader)
        for note in reader.notes():
            inform(note)
    columns = panel_columns(choices, pages[0].panels)
    save(pages, choices.output, title=title, colors=colors, columns=columns)


def check_options(choices: PlotOptions) -> None:
    """Raise DataError for options that exclude each other, before anything is loaded."""
    check_output(choices.output, pages=True)
    if choices.what == "connect":
        if choices.head is not None or choices.step is not None:
            raise DataError(
                "--head and --step select attention between tokens: omit them with --what connect"
            )
        if choices.corpus and choices.layer is not None:
            raise DataError("--layer draws the tokens of one sentence: omit it with --corpus")
        return
    _check_text(choices)
    if choices.what in FUSION and choices.layer is not None:
        raise DataError("a fusion combines all layers: omit --layer")
    if choices.what in ATTENTION and choices.corpus:
        raise DataError(
            "--corpus averages over sentences, but attention belongs to the tokens of one "
            f"sentence: use --corpus with --what {', '.join(FUSION)}"
        )
    if choices.step is not None and (choices.what in FUSION or choices.what == "encoder-self"):
        raise DataError(
            "--step selects a step of the decoder's attention: use it with --what cross, self, "
            "decoder-self, mixed"
        )
    if not choices.corpus:
        check_one(len(choices.sources), choices.output)


def reads_text(choices: PlotOptions, loaded: "Loaded") -> bool:
    """Whether the connections to draw depend on a text.

    Raises DataError if they do and there is no text, or if only a text has the selected weights.
    """
    from fusetk.plotting import connect

    if not connect.needs_text(loaded.model):
        if choices.corpus or choices.layer is not None:
            raise DataError(
                "the connections of this model have learned weights, which are the same for every "
                "sentence: omit --corpus and --layer"
            )
        return False
    _check_text(choices)
    if not choices.corpus:
        check_one(len(choices.sources), choices.output)
    return True


def _check_text(choices: PlotOptions) -> None:
    if bool(choices.sources) == (choices.source_file is not None):
        raise DataError("give sentences either on the command line (-s) or in a file (-i)")
    if choices.sources and (choices.target_file is not None or choices.lines is not None):
        raise DataError(
            "-r and --lines need a file of sentences (-i); give the translation of a sentence "
            "with -t"
        )
    if choices.source_file is not None and choices.targets:
        raise DataError("-t needs -s; give the translations of a file with -r")


def input_pairs(choices: PlotOptions) -> Iterator[InputPair] | Sequence[InputPair]:
    """Return the sentences of the command line or of the file."""
    if choices.source_file is None:
        return command_line_pairs(choices.sources, choices.targets)
    return file_pairs(choices.source_file, choices.target_file, choices.lines)


def mean_page(
    loaded: "Loaded", choices: PlotOptions, sentences: Iterator[Sentence], reader: Reader
) -> tuple[Page, int]:
    """Return one page of means over all sentences, and the number of sentences."""
    from fusetk.plotting.connect import ReadingMeans
    from fusetk.plotting.corpus import CorpusMeans
    from fusetk.plotting.fusion import find_fusions

    means: CorpusMeans | ReadingMeans
    if choices.what == "connect":
        means = ReadingMeans(loaded.model)
    else:
        means = CorpusMeans(loaded.model, find_fusions(loaded.model, choices.what))
    while chunk := list(islice(sentences, CHUNK)):
        complete = translated(loaded, chunk, reader)
        means.add([(sentence.source_ids, sentence.target_ids) for sentence in complete])
    if not means.sentences:
        raise _no_sentence(choices)
    if isinstance(means, ReadingMeans):
        return Page(means.panels()), means.sentences
    return Page(means.panels("all" if choices.head is None else choices.head)), means.sentences


def sentence_pages(
    loaded: "Loaded", choices: PlotOptions, sentences: Iterator[Sentence], reader: Reader
) -> list[Page]:
    """Return a page for each sentence."""
    from fusetk.plotting.attention import TokenPair

    draw_panels = panel_function(loaded, choices)
    first_two = list(islice(sentences, 2))
    if not first_two:
        raise _no_sentence(choices)
    check_one(len(first_two), choices.output)  # before a long input is read
    pages = []
    for sentence in translated(loaded, [*first_two, *sentences], reader):
        tokens = TokenPair(sentence.source, sentence.target or [])
        try:
            panels = draw_panels(sentence, tokens)
        except DataError as error:
            where = f"line {sentence.number}: " if choices.source_file else ""
            raise DataError(f"{where}{error}") from None
        source = loaded.pipeline.join(tokens.source)
        target = loaded.pipeline.join(tokens.target)
        pages.append(Page(panels, sentence.number, source, target))
        if choices.sources and not choices.targets:
            inform(f"translation: {target}")
    return pages


def _no_sentence(choices: PlotOptions) -> DataError:
    return DataError(
        f"{choices.source_file} has no sentence to draw: every line is blank or too long"
    )


def panel_function(
    loaded: "Loaded", choices: PlotOptions
) -> "Callable[[Sentence, TokenPair], list[Panel]]":
    """Return the function that makes the panels of a sentence."""
    from fusetk.plotting import attention, connect, fusion

    model = loaded.model
    if choices.what == "connect":
        layer = choices.layer

        def connection_panels(sentence: Sentence, tokens: "TokenPair") -> list[Panel]:
            pairs = [(sentence.source_ids, sentence.target_ids)]
            if layer is None:
                return connect.panels(model, pairs)
            return connect.position_panels(model, pairs, tokens, layer)

        return connection_panels
    if choices.what in FUSION:
        fusions = fusion.find_fusions(model, choices.what)
        hop = "all" if choices.head is None else choices.head

        def fusion_panels(sentence: Sentence, tokens: "TokenPair") -> list[Panel]:
            pair = sentence.source_ids, sentence.target_ids
            return fusion.panels(fusion.trace_fusions(model, [pair], fusions), tokens, hop)

        return fusion_panels
    head = "mean" if choices.head is None else choices.head

    def attention_panels(sentence: Sentence, tokens: "TokenPair") -> list[Panel]:
        weights = attention.record(model, sentence.source_ids, sentence.target_ids)
        return attention.panels(weights, tokens, choices.what, choices.layer, head, choices.step)

    return attention_panels


def panel_columns(choices: PlotOptions, panels: Sequence[Panel]) -> Sequence[int] | int | None:
    """Return the ``columns`` argument of ``save``: the arrangement of a picture's panels."""
    from fusetk.plotting import attention, fusion

    if choices.what in FUSION:
        return fusion.row_lengths(panels)
    if choices.head == "all" and choices.step is None:
        return attention.columns(panels)
    return None


def translated(
    loaded: "Loaded", sentences: Sequence[Sentence], reader: Reader
) -> Iterable[Sentence]:
    """Return the sentences with translations; the run's own search makes the missing ones."""
    if all(sentence.target is not None for sentence in sentences):
        return sentences
    from fusetk.data.vocab import EOS
    from fusetk.decoding.translate import Translator

    translator = Translator([loaded.model], loaded.pipeline, loaded.recipe.decoding)
    results = translator.translate_ids([[*sentence.source_ids, EOS] for sentence in sentences])
    decode = loaded.pipeline.target_vocab.decode
    return [
        reader.with_target(sentence, decode(hypotheses[0].ids))
        for sentence, hypotheses in zip(sentences, results, strict=True)
    ]
