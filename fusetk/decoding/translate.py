"""Text in, text out: sentences sorted into batches, searched, and put back in order."""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fusetk.data.batch import pad
from fusetk.data.pipeline import Pipeline
from fusetk.data.vocab import EOS
from fusetk.decoding.beam import Hypothesis, search
from fusetk.decoding.config import SearchConfig
from fusetk.models.seq2seq import Seq2Seq

log = logging.getLogger(__name__)

Ids = Sequence[int] | np.ndarray


class Translation(NamedTuple):
    """A translation as its reader wants it."""

    text: str
    tokens: list[str]  # as the model produced them
    score: float  # natural-log probability of the tokens and the end mark
    normalized: float  # score / length penalty


class Translator:
    """One model, or an ensemble of models with the same vocabularies, and the pipeline that their text goes through.

    Models are used as they are: on their device, in their precision, and they must be in evaluation mode. Nothing is kept
    between calls, so several threads may use one translator.
    """

    def __init__(self, models: Sequence[Seq2Seq], pipeline: Pipeline, config: SearchConfig):
        self.models = list(models)
        self.pipeline = pipeline
        self.config = config

    def translate(self, lines: Sequence[str], tokenized: bool = False) -> list[str]:
        """The best translation of each line, in order; blank for a blank line. See ``n_best``."""
        return [best[0].text if best else "" for best in self.n_best(lines, tokenized)]

    def n_best(self, lines: Sequence[str], tokenized: bool = False, first: int = 1) -> list[list[Translation]]:
        """The n best translations of each line, best first; none for a line without a word.

        ``tokenized`` lines are words as the pipeline makes them (subwords are made here), and so are the translations.
        ``first`` is the number of the first line, for warnings.
        """
        vocabulary, pipeline = self.pipeline.source_vocab, self.pipeline
        words = lines if tokenized else [pipeline.words("source", line) for line in lines]
        sources = [[*vocabulary.encode(pipeline.subwords("source", line)), EOS] for line in words]
        return [[self._text(one, tokenized) for one in found] for found in self.translate_ids(sources, first)]

    def translate_ids(self, sources: Sequence[Ids], first: int = 1) -> list[list[Hypothesis]]:
        """The n best translations of each source, ids that end with the end mark; none for a source without a token."""
        cut = [self._cut(source, first + i) for i, source in enumerate(sources)]
        found: list[list[Hypothesis]] = [[] for _ in sources]
        device = next(self.models[0].parameters()).device
        for batch in batches([len(source) for source in cut], self.config):
            rows, mask = pad([cut[i] for i in batch])
            for i, hypotheses in zip(batch, search(self.models, rows.to(device), mask.to(device), self.config), strict=True):
                found[i] = hypotheses
        return found

    def _cut(self, source: Ids, line: int) -> list[int]:
        positions = [most for model in self.models if (most := getattr(model, "max_positions", None)) is not None]
        most = min([self.config.max_source_length, *(limit - 1 for limit in positions)])
        tokens = [int(token) for token in source]
        if len(tokens) <= most + 1:
            return tokens
        reason = "decoding.max_source_length" if most == self.config.max_source_length else "the positions of the model"
        log.warning("line %d has %d tokens: only the first %d are translated (%s); split the line", line, len(tokens) - 1, most, reason)
        return [*tokens[:most], EOS]

    def _text(self, hypothesis: Hypothesis, tokenized: bool) -> Translation:
        tokens = self.pipeline.target_vocab.decode(hypothesis.ids)
        words = self.pipeline.join(tokens)
        return Translation(words if tokenized else self.pipeline.raw(words), tokens, hypothesis.score, hypothesis.normalized)


def batches(lengths: Sequence[int], config: SearchConfig) -> Iterator[list[int]]:
    """Indices of sources with the given lengths (end mark counted), longest first, in batches of at most ``batch_tokens``.

    A batch is at least one sentence. Sources that are an end mark alone are in no batch.
    """
    order = sorted((i for i, length in enumerate(lengths) if length > 1), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        size = max(1, config.batch_tokens // (config.beam * lengths[order[start]]))
        yield order[start : start + size]
        start += size
