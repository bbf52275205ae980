"""The pages of ``fusetk plot-attention``: the panels of each sentence, or means over sentences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from fusetk.data.vocab import EOS
from fusetk.decoding.translate import Translator
from fusetk.errors import DataError
from fusetk.plotting import attention, connect, fusion
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.choices import FUSION, PlotOptions, check_connections, input_pairs
from fusetk.plotting.connect import ReadingMeans
from fusetk.plotting.corpus import CorpusMeans
from fusetk.plotting.fusion import find_fusions
from fusetk.plotting.panel import Page, Panel
from fusetk.plotting.save import check_one
from fusetk.plotting.sentences import Reader, Sentence

CHUNK = 4000  # sentences that are sorted by length and read together

Report = Callable[[str], None]  # gets a message for the user


def make_pages(
    translator: Translator, choices: PlotOptions, report: Report
) -> tuple[list[Page], str]:
    """Return the pages, and an addition to their title.

    The translator's only model is drawn; its search makes missing translations. ``report`` gets
    messages about translations, skipped lines and unknown words. Raises DataError if there is
    nothing to draw.
    """
    [model] = translator.models
    if choices.what == "connect":
        need_text = connect.needs_text(model)
        check_connections(choices, need_text)
        if not need_text:
            return [Page(connect.panels(model))], ""
    strict = bool(choices.sources)
    reader = Reader(translator.pipeline, choices.tokenized, model.max_positions, strict=strict)
    sentences = reader(input_pairs(choices))
    if choices.corpus:
        page, count = mean_page(translator, choices, sentences, reader)
        pages = [page]
        addition = f", mean over {count:,} sentence{'s' if count > 1 else ''}"
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
    means: CorpusMeans | ReadingMeans
    if choices.what == "connect":
        means = ReadingMeans(model)
    else:
        means = CorpusMeans(model, find_fusions(model, choices.what))
    while chunk := list(islice(sentences, CHUNK)):
        complete = translated(translator, chunk, reader)
        means.add([(sentence.source_ids, sentence.target_ids) for sentence in complete])
    if not means.sentences:
        raise _no_sentence(choices)
    if isinstance(means, ReadingMeans):
        return Page(means.panels()), means.sentences
    return Page(means.panels("all" if choices.head is None else choices.head)), means.sentences


def sentence_pages(
    translator: Translator,
    choices: PlotOptions,
    sentences: Iterator[Sentence],
    reader: Reader,
    report: Report,
) -> list[Page]:
    """Return a page for each sentence; ``report`` gets the translations that beam search made."""
    draw_panels = panel_function(translator, choices)
    first_two = list(islice(sentences, 2))
    if not first_two:
        raise _no_sentence(choices)
    check_one(len(first_two), choices.output)  # before a long input is read
    pages = []
    for sentence in translated(translator, [*first_two, *sentences], reader):
        tokens = TokenPair(sentence.source, sentence.target or [])
        try:
            panels = draw_panels(sentence, tokens)
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
    return DataError(
        f"{choices.source_file} has no sentence to draw: every line is blank or too long"
    )


def panel_function(
    translator: Translator, choices: PlotOptions
) -> Callable[[Sentence, TokenPair], list[Panel]]:
    """Return the function that makes the panels of a sentence."""
    [model] = translator.models
    if choices.what == "connect":

        def connection_panels(sentence: Sentence, tokens: TokenPair) -> list[Panel]:
            pairs = [(sentence.source_ids, sentence.target_ids)]
            if choices.layer is None:
                return connect.panels(model, pairs)
            return connect.position_panels(model, pairs, tokens, choices.layer)

        return connection_panels
    if choices.what in FUSION:
        fusions = fusion.find_fusions(model, choices.what)
        hop = "all" if choices.head is None else choices.head

        def fusion_panels(sentence: Sentence, tokens: TokenPair) -> list[Panel]:
            pair = sentence.source_ids, sentence.target_ids
            return fusion.panels(fusion.trace_fusions(model, [pair], fusions), tokens, hop)

        return fusion_panels
    head = "mean" if choices.head is None else choices.head

    def attention_panels(sentence: Sentence, tokens: TokenPair) -> list[Panel]:
        weights = attention.record(model, sentence.source_ids, sentence.target_ids)
        return attention.panels(weights, tokens, choices.what, choices.layer, head, choices.step)

    return attention_panels


def panel_columns(choices: PlotOptions, panels: Sequence[Panel]) -> Sequence[int] | int | None:
    """Return the ``columns`` argument of ``save``: the arrangement of a picture's panels."""
    if choices.what in FUSION:
        return fusion.row_lengths(panels)
    if choices.head == "all" and choices.step is None:
        return attention.columns(panels)
    return None


def translated(
    translator: Translator, sentences: Sequence[Sentence], reader: Reader
) -> Iterable[Sentence]:
    """Return the sentences with translations; the run's own search makes the missing ones."""
    if all(sentence.target is not None for sentence in sentences):
        return sentences
    results = translator.translate_ids([[*sentence.source_ids, EOS] for sentence in sentences])
    decode = translator.pipeline.target_vocab.decode
    return [
        reader.with_target(sentence, decode(hypotheses[0].ids))
        for sentence, hypotheses in zip(sentences, results, strict=True)
    ]
