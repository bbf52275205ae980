"""A trained model that explains its translations: hypotheses, next tokens, layers and attention."""

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fusetk.data import bpe
from fusetk.data.vocab import EOS, UNK
from fusetk.decoding.config import SearchConfig, multiple_of_groups
from fusetk.decoding.next_tokens import Step, next_tokens
from fusetk.decoding.scores import normalized_score
from fusetk.decoding.translate import Translator
from fusetk.errors import DataError
from fusetk.evaluation import connection_weights
from fusetk.evaluation.forward_trace import UNKNOWN_WORDS, trace_forward
from fusetk.evaluation.layer_shares import find_fusions
from fusetk.models.description import summary
from fusetk.models.seq2seq import Seq2Seq
from fusetk.plotting import attention
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.choices import WHATS
from fusetk.plotting.html import panel_data, scales_data
from fusetk.plotting.pages import panel_function
from fusetk.system import Loaded, changed

NEXT_TOKENS = 8  # probable tokens of a step
# Kinds of attention; `self` is the two others together.
ATTENTION = ("cross", "mixed", "encoder-self", "decoder-self")


class Search(NamedTuple):
    """A request for translations of a sentence."""

    beam: int | None = None  # None: that of the run
    prefix: str | tuple[str, ...] = ""  # text or tokens that the translation begins with
    target: str = ""  # a translation to compare with; empty: none


class Heatmap(NamedTuple):
    """A request for heatmaps of a sentence and its translation."""

    tokens: tuple[str, ...]  # the translation
    what: str  # a key of ``View.what``
    layer: int | None = None  # a layer, or a reading of connections; from 1; None: all
    head: str | int | None = None  # a number from 1, "mean" or "all"; None: the default


class View(NamedTuple):
    """A kind of heatmap that a model has."""

    what: str
    title: str
    layers: list[int]  # that have this kind of attention
    heads: int  # of a layer
    readers: list[str]  # readings of connections whose weights depend on the position


class Explorer:
    """The model of one run.

    ``translate`` and ``heatmaps`` return JSON objects, which ``docs/explore.md`` describes. One
    thread at a time may use an explorer.
    """

    def __init__(self, name: str, loaded: Loaded, max_cells: int):
        """``name`` is the name that the user gave to the run.

        The heatmaps of attention of one view have at most ``max_cells`` cells.
        """
        self.name = name
        self.max_cells = max_cells
        self.checkpoint = loaded.checkpoint
        self.recipe = loaded.recipe
        self.model: Seq2Seq = loaded.model
        self.translator = loaded.translator()
        self.views = views(self.model)
        # The tokens of a prefix have the same meaning in two runs only if the steps are equal, too.
        steps = [step.model_dump_json() for step in loaded.pipeline.steps]
        target = "\n".join([*steps, *loaded.pipeline.target_vocab.tokens])
        self._vocabulary = hashlib.sha256(target.encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return the names, the model and the views of the run."""
        pipeline = self.translator.pipeline
        return {
            "name": self.name,
            "checkpoint": self.checkpoint.name,
            "model": summary(self.recipe.model),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "source": pipeline.source_language,
            "target": pipeline.target_language,
            "vocabulary": self._vocabulary,
            "beam": self.recipe.decoding.beam,
            "views": [view._asdict() for view in self.views],
        }

    def translate(self, search: Search, text: str) -> dict[str, Any]:
        """Return the translations of a text with their scores and the probable tokens.

        Raises DataError for a text without words, for a text or prefix that is too long, and if the
        search does not find a translation.
        """
        begin = time.perf_counter()
        source = self._source(text)
        source_ids = [*self._ids("source", source), EOS]
        prefix = self._prefix(search.prefix)
        prefix_ids = self._ids("target", prefix)
        translator = Translator([self.model], self.translator.pipeline, self._config(search.beam))
        [hypotheses] = translator.translate_ids([source_ids], prefixes=[prefix_ids])
        if not hypotheses:
            raise DataError(
                "there is no translation with this prefix: the forbidden tokens and the lengths "
                "exclude all; shorten the prefix"
            )
        targets = [hypothesis.ids for hypothesis in hypotheses]
        if search.target.strip():
            targets.append(self._ids("target", self._tokens("target", search.target)))
        steps = next_tokens(self.model, [(source_ids, ids) for ids in targets], NEXT_TOKENS)
        rows = [
            self._translation(target_steps, hypothesis.score, hypothesis.normalized)
            for target_steps, hypothesis in zip(steps, hypotheses, strict=False)
        ]
        comparison = None
        if len(targets) > len(hypotheses):
            comparison = self._given(search.target, steps[-1], translator.config)
        pipeline = self.translator.pipeline
        return {
            "source": source,
            "unknown": self._unknown("source", source),
            "prefix": {
                "text": pipeline.raw(pipeline.join(self._complete_words(prefix))),
                "tokens": prefix,
                "unknown": self._unknown("target", prefix),
            },
            "translations": rows,
            "given": comparison,
            "seconds": round(time.perf_counter() - begin, 3),
        }

    def heatmaps(self, request: Heatmap, text: str) -> dict[str, Any]:
        """Return the panels of one view, and their colour scales.

        Raises DataError for a view, layer or head that the model does not have, for heatmaps with
        too many cells, and the errors of ``translate``.
        """
        view = self._view(request)
        source = self._source(text)
        pair = ([*self._ids("source", source), EOS], self._ids("target", request.tokens))
        tokens = TokenPair(source, list(request.tokens))
        self._check_size(request, view, tokens)
        draw = panel_function(self.model, view.what, request.layer, request.head)
        panels = draw(pair, tokens)
        return {
            "scales": scales_data(panels),
            "panels": [panel_data(panel) for panel in panels],
        }

    def _config(self, beam: int | None) -> SearchConfig:
        """Return the search of the run with this beam (None: its own) and as many results.

        If the run samples, this is the number of samples.
        """
        config = self.recipe.decoding
        width = beam or config.beam
        if config.sample:
            return changed(config, {"n_best": width})
        width = multiple_of_groups(width, config.groups)
        return changed(config, {"beam": width, "n_best": width})

    def _tokens(self, side: str, text: str) -> list[str]:
        return self.translator.tokens(side, text)

    def _ids(self, side: str, tokens: Sequence[str]) -> list[int]:
        pipeline = self.translator.pipeline
        vocabulary = pipeline.vocabulary(side)
        return vocabulary.encode(tokens)

    def _unknown(self, side: str, tokens: Sequence[str]) -> list[str]:
        """Return the tokens that the model reads as <unk>, without repetitions."""
        ids = self._ids(side, tokens)
        return list(dict.fromkeys(t for t, i in zip(tokens, ids, strict=True) if i == UNK))

    def _source(self, text: str) -> list[str]:
        tokens = self._tokens("source", text)
        if not tokens:
            raise DataError("the sentence is empty: type a sentence with words")
        most = self.translator.max_source_length
        if len(tokens) > most:
            raise DataError(
                f"the sentence has {len(tokens)} tokens, but the model reads at most {most}: "
                "shorten it"
            )
        return tokens

    def _prefix(self, prefix: str | tuple[str, ...]) -> list[str]:
        """Return the tokens of a prefix. Raises DataError if it leaves no place for more."""
        tokens = self._tokens("target", prefix) if isinstance(prefix, str) else list(prefix)
        positions = self.model.max_positions
        if positions is not None and len(tokens) >= positions:
            raise DataError(
                f"the prefix has {len(tokens)} tokens, but the model has {positions} positions: "
                "shorten it"
            )
        return tokens

    def _complete_words(self, tokens: list[str]) -> list[str]:
        """Return target tokens without the last word if BPE continues it."""
        if not (self.translator.pipeline.bpe and tokens and tokens[-1].endswith(bpe.JOINER)):
            return tokens
        return tokens[: bpe.word_starts(tokens)[-1]]

    def _translation(
        self, steps: Sequence[Step], score: float, normalized: float | None
    ) -> dict[str, Any]:
        pipeline = self.translator.pipeline
        words = pipeline.target_vocab.tokens
        tokens = [words[step.token] for step in steps[:-1]]
        return {
            "text": pipeline.raw(pipeline.join(tokens)),
            "tokens": tokens,
            "score": score,
            "normalized": normalized,
            "steps": [
                {
                    "token": words[step.token],
                    "score": step.score,
                    "best": [{"token": words[i], "score": best} for i, best in step.best],
                }
                for step in steps
            ],
        }

    def _given(self, text: str, steps: Sequence[Step], config: SearchConfig) -> dict[str, Any]:
        """Return a translation that the user gave.

        It has no normalised score if the search has a coverage penalty, because forced decoding
        does not record the coverage.
        """
        score = sum(step.score for step in steps)
        normalized = (
            None if config.coverage_penalty else normalized_score(score, len(steps), config)
        )
        return {**self._translation(steps, score, normalized), "text": text.strip()}

    def _view(self, request: Heatmap) -> View:
        view = next((view for view in self.views if view.what == request.what), None)
        if view is None:
            known = ", ".join(view.what for view in self.views)
            raise DataError(f"this model has no heatmaps {request.what!r}; it has {known}")
        numbers = view.layers or list(range(1, len(view.readers) + 1))
        if request.layer is not None and request.layer not in numbers:
            known = f"choose {', '.join(map(str, numbers))}" if numbers else "omit it"
            raise DataError(f"{view.title} has no layer {request.layer}: {known}")
        if isinstance(request.head, int) and not 1 <= request.head <= view.heads:
            known = f"choose 1 to {view.heads}" if view.heads else "omit it"
            raise DataError(f"{view.title} has no head {request.head}: {known}")
        return view

    def _check_size(self, request: Heatmap, view: View, tokens: TokenPair) -> None:
        """Raise DataError if the heatmaps of attention would have too many cells."""
        if view.what not in ATTENTION:
            return
        side = "encoder" if view.what == "encoder-self" else "decoder"
        columns, rows = tokens.labels(side, attention.SIDES_AND_KINDS[view.what][1])
        layers = 1 if request.layer else len(view.layers)
        heads = view.heads if request.head == "all" else 1
        cells = layers * heads * len(columns) * len(rows)
        if cells > self.max_cells:
            raise DataError(
                f"these heatmaps have {cells:,} cells, but at most {self.max_cells:,} are drawn: "
                "choose one layer or one head, or a shorter sentence"
            )


def views(model: Seq2Seq) -> list[View]:
    """Return the kinds of heatmap that a model has: of its layers, then of its attention."""
    all_views = []
    with suppress(DataError):  # no side of the model fuses several layers
        find_fusions(model)
        recorded = trace_forward(model, [UNKNOWN_WORDS], "*.fuse.hops").recorded
        # Drawing reports a record with another number of dimensions as an error.
        hops = [weights.shape[2] for weights in recorded.values() if weights.ndim == 4]
        all_views.append(View("fuse", WHATS["fuse"], [], max(hops, default=0), []))
    with suppress(DataError):  # no connection has weights
        all_views.append(
            View("connect", WHATS["connect"], [], 0, connection_weights.position_readers(model))
        )
    weights = attention.record(model, UNKNOWN_WORDS)
    for what in ATTENTION:
        heads = attention.heads_of_layers(weights, what)
        if heads:
            side = what.split("-")[0] + " " if "-" in what else ""
            all_views.append(View(what, side + WHATS[what], list(heads), max(heads.values()), []))
    return all_views
