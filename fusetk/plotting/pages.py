"""The pages of ``fusetk plot-attention``: the panels of each sentence, or means over sentences."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from fusetk.decoding.target_scores import IdPair
from fusetk.decoding.translate import Translator
from fusetk.errors import DataError, quantity
from fusetk.evaluation import connection_weights
from fusetk.evaluation.layer_shares import find_fusions, trace_fusions
from fusetk.plotting import attention, connect, fusion
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.choices import (
    CONNECTION_SIDES,
    FUSION_SIDES,
    PlotOptions,
    check_connections,
    input_pairs,
)
from fusetk.plotting.connect import ReadingMeans
from fusetk.plotting.corpus import CorpusMeans
from fusetk.plotting.panel import Page, Panel
from fusetk.plotting.save import check_one
from fusetk.plotting.sentences import UNTRANSLATED, Reader, Sentence
from fusetk.plotting.similarity import SimilarityMeans, find_stacks

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

CHUNK = 4000  # sentences that are sorted by length and read together

Report = Callable[[str], None]  # gets a message for the user
PanelFunction = Callable[[IdPair, TokenPair], list[Panel]]


def make_pages(
    translator: Translator, choices: PlotOptions, report: Report
) -> tuple[list[Page], str]:
    """Return the pages, and an addition to their title.

    The translator's only model is drawn; its search makes missing translations. ``report`` gets
    messages about translations, skipped lines and unknown words. Raises DataError if there is
    nothing to draw.
    """
    [model] = translator.models
    if choices.what in CONNECTION_SIDES:
        sides = CONNECTION_SIDES[choices.what]
        need_text = connection_weights.needs_text(model, sides)
        note = check_connections(choices, need_text)
        for message in connection_weights.undrawn(model, sides):
            report(f"warning: {message}")
        if not need_text:
            if note:
                report(note)
            return [Page(connect.panels(model, sides=sides))], ""
    strict = bool(choices.sources)
    reader = Reader(translator.pipeline, choices.tokenized, model.max_positions, strict=strict)
    sentences = reader(input_pairs(choices))
    if choices.corpus:
        page, count = mean_page(translator, choices, sentences, reader)
        pages = [page]
        addition = f", mean over {quantity(count, 'sentence')}"
    else:
        pages = sentence_pages(translator, choices, sentences, reader, report)
        addition = ""
    for note in reader.notes():
        report(note)
    return pages, addition


def mean_page(
    translator: Translator, choices: PlotOptions, sentences: Iterator[Sentence], reader: Reader
) -> tuple[Page, int]:
    """Return one page of means over all sentences, and the number of sentences."""
    [model] = translator.models
    means: CorpusMeans | ReadingMeans | SimilarityMeans
    if choices.what in CONNECTION_SIDES:
        means = ReadingMeans(model, CONNECTION_SIDES[choices.what])
    elif choices.what == "similarity":
        means = SimilarityMeans(model, find_stacks(model))
    else:
        means = CorpusMeans(model, find_fusions(model, FUSION_SIDES[choices.what]))
    while chunk := list(islice(sentences, CHUNK)):
        complete = list(translated(translator, chunk, reader))
        means.add([sentence.ids for sentence in complete])
    if not means.sentences:
        raise _no_sentence(choices)
    if isinstance(means, CorpusMeans):
        return Page(means.panels("all" if choices.head is None else choices.head)), means.sentences
    return Page(means.panels()), means.sentences


def sentence_pages(
    translator: Translator,
    choices: PlotOptions,
    sentences: Iterator[Sentence],
    reader: Reader,
    report: Report,
) -> list[Page]:
    """Return a page for each sentence; ``report`` gets the translations that beam search made."""
    [model] = translator.models
    draw_panels = panel_function(model, choices.what, choices.layer, choices.head, choices.step)
    first_two = list(islice(sentences, 2))
    if not first_two:
        raise _no_sentence(choices)
    check_one(len(first_two), choices.output)  # before a long input is read
    pages = []
    every = [*first_two, *sentences]
    complete = list(translated(translator, every, reader))
    if len(complete) < len(every):
        number = reader.skipped[UNTRANSLATED][0]
        where, option = (
            (f"line {number}", "-r") if choices.source_file else (f"sentence {number}", "-t")
        )
        raise DataError(
            f"{where} has no translation with the search settings of the run: give one with "
            f"{option}"
        )
    for sentence in complete:
        target_tokens = sentence.target or []
        words = translator.pipeline.target_words(target_tokens)
        tokens = TokenPair(sentence.source, target_tokens, words)
        try:
            panels = draw_panels(sentence.ids, tokens)
        except DataError as error:
            where = f"line {sentence.number}: " if choices.source_file else ""
            raise DataError(f"{where}{error}") from None
        source = translator.pipeline.join(tokens.source)
        target = translator.pipeline.join(tokens.target)
        pages.append(Page(panels, sentence.number, source, target))
        if choices.sources and not choices.targets:
            report(f"translation: {target}")
    return pages


def _no_sentence(choices: PlotOptions) -> DataError:
    where = choices.source_file or "the command line"
    return DataError(
        f"{where} has no sentence to draw: every line is blank, too long, or without a translation"
    )


def panel_function(
    model: "Seq2Seq",
    what: str,
    layer: int | None = None,
    head: str | int | None = None,
    step: str | int | None = None,
) -> PanelFunction:
    """Return the function that makes the panels of a sentence pair.

    ``what`` is a key of ``choices.WHATS``. The other arguments are the options of
    ``fusetk plot-attention``; None is the default of an option. Raises DataError if the model has
    nothing of this kind, or later for a layer, head or step that is out of range.
    """
    if what in CONNECTION_SIDES:
        sides = CONNECTION_SIDES[what]

        def connection_panels(pair: IdPair, tokens: TokenPair) -> list[Panel]:
            if layer is None:
                return connect.panels(model, [pair], sides)
            return connect.position_panels(model, [pair], tokens, layer, sides)

        return connection_panels
    if what == "similarity":
        stacks = find_stacks(model)

        def similarity_panels(pair: IdPair, tokens: TokenPair) -> list[Panel]:
            means = SimilarityMeans(model, stacks)
            means.add([pair])
            return means.panels()

        return similarity_panels
    if what in FUSION_SIDES:
        fusions = find_fusions(model, FUSION_SIDES[what])
        hop = "all" if head is None else head

        def fusion_panels(pair: IdPair, tokens: TokenPair) -> list[Panel]:
            traces = trace_fusions(model, [pair], fusions)
            return fusion.panels(traces, tokens, hop)

        return fusion_panels
    drawn_head = "mean" if head is None else head

    def attention_panels(pair: IdPair, tokens: TokenPair) -> list[Panel]:
        weights = attention.record(model, pair)
        return attention.panels(weights, tokens, what, layer, drawn_head, step)

    return attention_panels


def panel_columns(choices: PlotOptions, panels: Sequence[Panel]) -> Sequence[int] | int | None:
    """Return the ``columns`` argument of ``save``: the arrangement of a picture's panels."""
    if choices.what in FUSION_SIDES:
        return fusion.row_lengths(panels)
    if choices.what in CONNECTION_SIDES:
        return connect.row_lengths(panels)
    if choices.head == "all" and choices.step is None:
        return attention.columns(panels)
    return None


def translated(
    translator: Translator, sentences: Sequence[Sentence], reader: Reader
) -> Iterator[Sentence]:
    """Yield the sentences with translations; the run's own search makes the missing ones.

    The search truncates sources as it does in decoding. If the settings of the search exclude every
    translation of a sentence, the reader counts the sentence as skipped.
    """
    if all(sentence.target is not None for sentence in sentences):
        yield from sentences
        return
    read = [
        sentence._replace(source=sentence.source[: len(ids) - 1], ids=(ids, sentence.ids[1]))
        for sentence in sentences
        for ids in [translator.truncate(sentence.ids[0], sentence.number)]
    ]
    numbers = [sentence.number for sentence in read]
    results = translator.translate_ids([sentence.ids[0] for sentence in read], numbers)
    decode = translator.pipeline.target_vocab.decode
    for sentence, hypotheses in zip(read, results, strict=True):
        if hypotheses:
            yield reader.with_target(sentence, decode(hypotheses[0].ids))
        else:
            reader.skipped[UNTRANSLATED].append(sentence.number)
