"""``fusetk plot-attention``."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from fusetk.cli.options import device_option
from fusetk.errors import DataError
from fusetk.plotting.figure import check_output
from fusetk.plotting.panel import COLORS, Page, Panel
from fusetk.plotting.save import check_one, save
from fusetk.plotting.sentences import Reader, Sentence, Text, given, line_range, read

if TYPE_CHECKING:
    from fusetk.plotting.attention import Words
    from fusetk.system import Loaded

ATTENTION = {
    "cross": "cross-attention",
    "self": "self-attention",
    "encoder-self": "self-attention",
    "decoder-self": "self-attention",
    "mixed": "mixed attention",
}
FUSION = {"fuse": "layer fusion", "encoder-fuse": "layer fusion", "decoder-fuse": "layer fusion"}
WHATS = {**ATTENTION, **FUSION, "connect": "connections"}
CHUNK = 4000  # lines that are sorted and read together
EXAMPLE = (
    'Examples: fusetk plot-attention -m runs/demo -s "Der Mann, den sie sah, schlief ein." --layer 3 --head all -o heads.pdf; '
    "fusetk plot-attention -m runs/coordinated -i raw/test.de --lines 7 --what mixed --layer 1 --head all --step slept -o step.png; "
    "fusetk plot-attention -m runs/fused --what fuse -i raw/test.de -r raw/test.en --corpus -o layers.png"
)


class Head(click.ParamType):
    """A number from 1, ``mean`` or ``all``."""

    name = "N|mean|all"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        if value in ("mean", "all") or isinstance(value, int):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        self.fail(f"{value!r} is neither a number nor mean nor all", param, ctx)


class Step(click.ParamType):
    """A number from 1, or a word."""

    name = "WORD|N"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        return (
            int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        )


class Lines(click.ParamType):
    """A range of lines."""

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


class Asked(NamedTuple):
    """What to draw of which text."""

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
    help="A run folder, of which the best checkpoint is taken, or a checkpoint.",
)
@click.option(
    "-s",
    "--source",
    "sources",
    multiple=True,
    metavar="TEXT",
    help="A sentence to translate; again for another.",
)
@click.option(
    "-t",
    "--target",
    "targets",
    multiple=True,
    metavar="TEXT",
    help="Its translation; one for each sentence, or none. Without it, the one that beam search finds.",
)
@click.option(
    "-i",
    "--input",
    "source_file",
    metavar="FILE",
    help="Instead: sentences, one a line, plain or .gz; - is standard input.",
)
@click.option("-r", "--target-file", metavar="FILE", help="Their translations, line by line.")
@click.option(
    "--lines", type=Lines(), help="Only these lines of the file, or one line N; counted from 1."
)
@click.option(
    "--what",
    type=click.Choice(list(WHATS)),
    default="cross",
    show_default=True,
    metavar="KIND",
    help="cross: attention of the decoder to the source; self, encoder-self, decoder-self: of both sides or one side to itself; mixed: of"
    " the decoder to source and target in one softmax, in coordinated models; fuse, encoder-fuse, decoder-fuse: the layers that a fusion"
    " takes; connect: the weights of `connect: linear`.",
)
@click.option(
    "--layer",
    type=int,
    metavar="N",
    help="One layer with attention, counted from 1. Without it, all.",
)
@click.option(
    "--head",
    type=Head(),
    help="One head, counted from 1; the mean over heads (the default); or a panel for each (all)."
    " In a fusion by attention, hops: by default all.",
)
@click.option(
    "--step",
    type=Step(),
    help="Only the step at which the decoder predicts token N of the translation, counted from 1, or WORD, a whole"
    " word, for the first time. With --head all, rows are the heads.",
)
@click.option(
    "--corpus",
    is_flag=True,
    help="For fusions: the mean over all sentences, and by part of the sentence.",
)
@click.option(
    "--tokenized",
    is_flag=True,
    help="The text is prepared as the training text was, but for subwords.",
)
@click.option(
    "--colors",
    type=click.Choice(list(COLORS)),
    default="blue",
    show_default=True,
    help="Colours; grey is as in papers, white for 1 and black for 0. Where there are numbers below 0: red above, blue below.",
)
@device_option
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A picture, .png, .pdf or .svg; a page to look around in, .html; or the numbers, .npz or .json.",
)
def command(model: Path, colors: str, device: str, **options: object) -> None:
    """Draw the attention weights of a sentence and its translation, or what a layer fusion makes of its layers.

    The model reads the translation word by word (forced decoding), whether it was given or found. Columns are the words
    that are looked at, rows those that look; each row sums to 1. In cross-attention a row is the word that the decoder
    predicts there; in the decoder's self-attention it is the word that it has just read. In mixed attention a row is the
    word that is predicted; columns are the source and, behind a line, the words of the target that the decoder reads, the
    begin mark first.

    With --step there is one row, the word that is predicted at that step, or with --head all a row for each head, in one
    panel a layer (decoder.layer1.mixed.heads). Columns end at the last word that the decoder has read there. Of
    `--what self` only the decoder is drawn.

    Of a fusion, columns are the words that a side reads, in the decoder the begin mark first, and rows the layers, l0 the
    word embedding, at the bottom. A fusion by attention has a panel for each hop, each column of which sums to 1. Of other
    fusions the share of each layer is drawn: the length of the derivative by that layer times the layer (gradient times
    input, before the closing norm), divided by the sum over layers; beside it its mean, and the learned weight of each
    layer or the beta of each node, if the fusion has them. With --corpus the columns are the first position, the fifths of
    what is between, and the last.

    An .html file holds any number of sentences and needs no network: a slider and the arrow keys move between them, and
    numbers show under the pointer. An .npz file holds each matrix under its name, such as decoder.layer1.cross.head2,
    decoder.fuse.hop1 or decoder.fuse.contribution, its first row for the first label, and its labels under that name
    with .x and .y; of several sentences, names begin with the number of the line, as in 7.decoder.fuse.hop1. A .json file
    has the same names in a list, `panels`, and with several sentences their texts in `sentences`.
    """
    asked = Asked(**options)  # type: ignore[arg-type]
    check(asked)

    from fusetk import system

    loaded = system.load_model(model, device)
    checkpoint = loaded.checkpoint.resolve()
    title = f"{WHATS[asked.what]} of {checkpoint.parent.parent.name}, {checkpoint.name}"
    if asked.what == "connect":
        from fusetk.plotting import connect

        pages = [Page(connect.panels(loaded.model))]
    else:
        reader = Reader(
            loaded.pipeline, asked.tokenized, loaded.model.max_positions, strict=bool(asked.sources)
        )
        sentences = reader(given(asked.sources, asked.targets) if asked.sources else texts(asked))
        pages, more = (
            means(loaded, asked, sentences, reader)
            if asked.corpus
            else each(loaded, asked, sentences, reader)
        )
        title += more
        for note in reader.notes():
            click.echo(note, err=True)
    save(pages, asked.output, title=title, colors=colors, columns=columns(asked, pages[0].panels))


def check(asked: Asked) -> None:
    """Raise DataError for options that do not go together, before anything is loaded."""
    check_output(asked.output, pages=True)
    if asked.what == "connect":
        if (
            asked.corpus
            or asked.layer is not None
            or asked.head is not None
            or asked.step is not None
        ):
            raise DataError(
                "learned weights are the same for every sentence: leave out --corpus, --layer, --head and --step"
            )
        return
    if bool(asked.sources) == (asked.source_file is not None):
        raise DataError("give sentences either on the command line (-s) or in a file (-i)")
    if asked.sources and (asked.target_file is not None or asked.lines is not None):
        raise DataError(
            "-r and --lines go with a file of sentences (-i); give translations of single sentences with -t"
        )
    if asked.source_file is not None and asked.targets:
        raise DataError("-t goes with -s; give the translations of a file with -r")
    if asked.what in FUSION and asked.layer is not None:
        raise DataError("a fusion is of all layers: leave out --layer")
    if asked.what in ATTENTION and asked.corpus:
        raise DataError(
            f"--corpus averages over words, and attention is to words of one sentence: it goes with --what {', '.join(FUSION)}"
        )
    if asked.step is not None and (asked.what in FUSION or asked.what == "encoder-self"):
        raise DataError(
            "--step is a step of the decoder's attention: it goes with --what cross, self, decoder-self, mixed"
        )
    if not asked.corpus:
        check_one(len(asked.sources), asked.output)


def texts(asked: Asked) -> Iterator[Text]:
    """The lines of the file that was named."""
    assert asked.source_file is not None
    return read(asked.source_file, asked.target_file, asked.lines)


def means(
    loaded: "Loaded", asked: Asked, sentences: Iterator[Sentence], reader: Reader
) -> tuple[list[Page], str]:
    """One page for all sentences, and what the title says of them."""
    from fusetk.plotting.corpus import Means
    from fusetk.plotting.fusion import fusions

    found = Means(loaded.model, fusions(loaded.model, asked.what))
    while chunk := list(islice(sentences, CHUNK)):
        found.add([(one.source_ids, one.target_ids) for one in translated(loaded, chunk, reader)])
    if not found.sentences:
        raise DataError(
            f"{asked.source_file} has no sentence to draw: every line is blank or too long"
        )
    count = f"{found.sentences:,} sentence{'s' if found.sentences > 1 else ''}"
    return [Page(found.panels("all" if asked.head is None else asked.head))], f", mean over {count}"


def each(
    loaded: "Loaded", asked: Asked, sentences: Iterator[Sentence], reader: Reader
) -> tuple[list[Page], str]:
    """A page for each sentence."""
    from fusetk.plotting.attention import Words

    panels = painter(loaded, asked)
    chosen = list(islice(sentences, 2))
    if not chosen:
        raise DataError(
            f"{asked.source_file} has no sentence to draw: every line is blank or too long"
        )
    check_one(len(chosen), asked.output)  # before all are read
    pages = []
    for one in translated(loaded, [*chosen, *sentences], reader):
        words = Words(one.source, one.target or [])
        try:
            shown = panels(one, words)
        except DataError as error:
            raise DataError(
                f"line {one.number}: {error}" if asked.source_file else str(error)
            ) from None
        pages.append(
            Page(
                shown,
                one.number,
                loaded.pipeline.join(words.source),
                loaded.pipeline.join(words.target),
            )
        )
        if asked.sources and not asked.targets:
            click.echo(f"found: {pages[-1].target}", err=True)
    return pages, ""


def painter(loaded: "Loaded", asked: Asked) -> "Callable[[Sentence, Words], list[Panel]]":
    """What makes the panels of a sentence."""
    from fusetk.plotting import attention, fusion

    model = loaded.model
    if asked.what in FUSION:
        chosen = fusion.fusions(model, asked.what)
        hop = "all" if asked.head is None else asked.head
        return lambda one, words: fusion.panels(
            fusion.fused(model, [(one.source_ids, one.target_ids)], chosen), words, hop
        )
    head = "mean" if asked.head is None else asked.head
    return lambda one, words: attention.panels(
        attention.record(model, one.source_ids, one.target_ids),
        words,
        asked.what,
        asked.layer,
        head,
        asked.step,
    )


def columns(asked: Asked, panels: Sequence[Panel]) -> Sequence[int] | int | None:
    """How the panels of a picture stand."""
    from fusetk.plotting import attention, fusion

    if asked.what in FUSION:
        return fusion.rows(panels)
    return attention.columns(panels) if asked.head == "all" and asked.step is None else None


def translated(
    loaded: "Loaded", sentences: Sequence[Sentence], reader: Reader
) -> Iterable[Sentence]:
    """The sentences with the translations that the run's own search finds, where they have none."""
    if all(one.target is not None for one in sentences):
        return sentences
    from fusetk.data.vocab import EOS
    from fusetk.decoding.translate import Translator

    translator = Translator([loaded.model], loaded.pipeline, loaded.recipe.decoding)
    best = translator.translate_ids([[*one.source_ids, EOS] for one in sentences])
    decode = loaded.pipeline.target_vocab.decode
    return [
        reader.found(one, decode(hypotheses[0].ids))
        for one, hypotheses in zip(sentences, best, strict=True)
    ]
