"""Text in, text out: sentences sorted into batches, searched, and put back in order."""

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fusetk.data.batch import pad
from fusetk.data.bpe import JOINER
from fusetk.data.pipeline import Pipeline
from fusetk.data.vocab import EOS, UNK
from fusetk.decoding.alignment import Which, hard
from fusetk.decoding.beam import Hypothesis, search
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.sample import sample
from fusetk.decoding.target_scores import Forced, force
from fusetk.decoding.token_mask import Demand
from fusetk.decoding.unknown import Replacement
from fusetk.errors import DataError
from fusetk.models.seq2seq import Seq2Seq

log = logging.getLogger(__name__)

Ids = Sequence[int] | np.ndarray


class Request(NamedTuple):
    """A line to translate, and what is asked of its translation."""

    text: str
    prefix: str = ""  # words that it begins with
    constraints: tuple[str, ...] = ()  # phrases that it contains, in this order


class Extras(NamedTuple):
    """What is found out about a translation besides its text, in a forced pass over it."""

    word_scores: bool = False
    attention: Which | None = None
    replace: Replacement | None = None  # of unknown words, by that attention, or by its mean

    @property
    def which(self) -> Which | None:
        """The attention that is needed."""
        return self.attention or (Which() if self.replace else None)


class Translation(NamedTuple):
    """A translation as its reader wants it, with T tokens from a source of S positions."""

    text: str
    tokens: list[str]  # as the model produced them
    score: float  # natural-log probability of the tokens and the end mark
    normalized: float  # what translations are compared by: score / length penalty, and what else the search is told
    word_scores: list[float] | None = None  # of the T tokens and the end mark
    attention: np.ndarray | None = None  # (T + 1, S), end marks last


class Translator:
    """One model, or an ensemble of models with the same vocabularies, and the pipeline that their text goes through.

    Models are used as they are: on their device, in their precision, and they must be in evaluation mode. Nothing is kept
    between calls, so several threads may use one translator.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        pipeline: Pipeline,
        config: SearchConfig,
        extras: Extras | None = None,
    ):
        self.models = list(models)
        self.pipeline = pipeline
        self.config = config
        self.extras = extras or Extras()

    def translate(self, lines: Sequence[str | Request], tokenized: bool = False) -> list[str]:
        """The best translation of each line, in order; blank for a blank line. See ``n_best``."""
        return [best[0].text if best else "" for best in self.n_best(lines, tokenized)]

    def n_best(
        self,
        lines: Sequence[str | Request],
        tokenized: bool = False,
        first: int | Sequence[int] = 1,
    ) -> list[list[Translation]]:
        """The n best translations of each line, best first; none for a line without a word.

        ``tokenized`` lines are words as the pipeline makes them (subwords are made here), and so are the translations.
        ``first`` is the number of the first line, or those of all, for warnings and samples. Raises DataError where what is asked of a
        line does not fit into the positions of the models.
        """
        requests = [line if isinstance(line, Request) else Request(line) for line in lines]
        numbers = range(first, first + len(lines)) if isinstance(first, int) else first
        tokens = [self.tokens("source", request.text, tokenized) for request in requests]
        sources = [[*self.pipeline.source_vocab.encode(line), EOS] for line in tokens]
        demands = [
            self._demand(request, tokenized, number)
            for request, number in zip(requests, numbers, strict=True)
        ]
        cut = [self.cut(source, number) for source, number in zip(sources, numbers, strict=True)]
        found = self._find(cut, demands)
        for number, source, several in zip(numbers, cut, found, strict=True):
            if not several and len(source) > 1:
                log.warning(
                    "line %d has no translation: what is asked and forbidden leaves none of that length",
                    number,
                )
        extras = self._extras(cut, found)
        return [
            [self._translation(line, one, next(extras), tokenized) for one in several]
            for line, several in zip(tokens, found, strict=True)
        ]

    def translate_ids(self, sources: Sequence[Ids], first: int = 1) -> list[list[Hypothesis]]:
        """The n best translations of each source, ids that end with the end mark; none for a source without a token."""
        cut = [self.cut(source, first + i) for i, source in enumerate(sources)]
        return self._find(cut, [Demand(line=first + i) for i in range(len(cut))])

    def encode(self, side: str, text: str, tokenized: bool = False) -> list[int]:
        """Ids of a line, without marks. ``side`` is "source" or "target"."""
        vocabulary = self.pipeline.source_vocab if side == "source" else self.pipeline.target_vocab
        return vocabulary.encode(self.tokens(side, text, tokenized))

    def tokens(self, side: str, text: str, tokenized: bool = False) -> list[str]:
        """Tokens of a line, also those that the vocabulary does not know. ``side`` is "source" or "target"."""
        return self.pipeline.subwords(side, text if tokenized else self.pipeline.words(side, text))

    @property
    def longest(self) -> int:
        """The most tokens of a source that are read, the end mark not counted."""
        positions = self._positions()
        return (
            self.config.max_source_length
            if positions is None
            else min(self.config.max_source_length, positions - 1)
        )

    def _find(
        self, sources: Sequence[list[int]], demands: Sequence[Demand]
    ) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in sources]
        device = next(self.models[0].parameters()).device
        find = sample if self.config.sample else search
        for batch in batches([len(source) for source in sources], self.config):
            rows, mask = pad([sources[i] for i in batch])
            asked = [demands[i] for i in batch]
            for i, hypotheses in zip(
                batch,
                find(self.models, rows.to(device), mask.to(device), self.config, asked),
                strict=True,
            ):
                found[i] = hypotheses
        return found

    def _demand(self, request: Request, tokenized: bool, line: int) -> Demand:
        prefix = self.encode("target", request.prefix, tokenized)
        constraints = [
            ids
            for phrase in request.constraints
            if (ids := self.encode("target", phrase, tokenized))
        ]
        size, most = len(prefix) + sum(map(len, constraints)), self._positions()
        if most is not None and size > most - 1:
            raise DataError(
                f"line {line}: what its translation must begin with and contain has {size} tokens, and the models only {most} positions, "
                "one of them for the end mark"
            )
        if UNK in prefix or any(UNK in phrase for phrase in constraints):
            log.warning(
                "line %d: what its translation must begin with or contain has words that the target vocabulary does not know",
                line,
            )
        return Demand(prefix, constraints, line, self._inside)

    @cached_property
    def _inside(self) -> frozenset[int]:
        """The target's tokens that the next one continues."""
        if not self.pipeline.bpe:
            return frozenset()
        return frozenset(
            i for i, token in enumerate(self.pipeline.target_vocab.tokens) if token.endswith(JOINER)
        )

    def _positions(self) -> int | None:
        return min(
            (
                most
                for model in self.models
                if (most := getattr(model, "max_positions", None)) is not None
            ),
            default=None,
        )

    def _extras(
        self, sources: Sequence[list[int]], found: Sequence[Sequence[Hypothesis]]
    ) -> Iterator[Forced | None]:
        """What a forced pass says of each hypothesis, if anybody wants to know."""
        pairs = [
            (source, one.ids)
            for source, several in zip(sources, found, strict=True)
            for one in several
        ]
        which = self.extras.which
        if not pairs or not (self.extras.word_scores or which):
            return iter([None] * len(pairs))
        return iter(force(self.models, pairs, self.config.ensemble, attention=which))

    def cut(self, source: Ids, line: int) -> list[int]:
        """What is read of a source, the end mark last; that not all of it is is said."""
        most = self.longest
        tokens = [int(token) for token in source]
        if len(tokens) <= most + 1:
            return tokens
        reason = (
            "decoding.max_source_length"
            if most == self.config.max_source_length
            else "the positions of the model"
        )
        log.warning(
            "line %d has %d tokens: only the first %d are translated (%s); split the line",
            line,
            len(tokens) - 1,
            most,
            reason,
        )
        return [*tokens[:most], EOS]

    def _translation(
        self, source: list[str], hypothesis: Hypothesis, forced: Forced | None, tokenized: bool
    ) -> Translation:
        tokens = self.pipeline.target_vocab.decode(hypothesis.ids)
        shown, attention = tokens, None if forced is None else forced.attention
        if self.extras.replace and attention is not None and UNK in hypothesis.ids:
            shown = self.extras.replace(source, tokens, hard(attention))
        words = self.pipeline.join(shown)
        return Translation(
            words if tokenized else self.pipeline.raw(words),
            tokens,
            hypothesis.score,
            hypothesis.normalized,
            forced.scores if forced and self.extras.word_scores else None,
            attention if self.extras.attention else None,
        )


def batches(lengths: Sequence[int], config: SearchConfig) -> Iterator[list[int]]:
    """Indices of sources with the given lengths (end mark counted), longest first, in batches of at most ``batch_tokens``.

    A batch is at least one sentence. Sources that are an end mark alone are in no batch.
    """
    order = sorted((i for i, length in enumerate(lengths) if length > 1), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        size = max(
            1,
            config.batch_tokens
            // ((config.n_best if config.sample else config.beam) * lengths[order[start]]),
        )
        yield order[start : start + size]
        start += size
