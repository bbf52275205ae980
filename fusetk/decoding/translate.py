"""Translation of lines of text.

The sentences are sorted by length and searched in batches. The translations are returned in the
order of the lines.
"""

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from fusetk.data.batch import pad
from fusetk.data.bpe import JOINER
from fusetk.data.pipeline import Pipeline
from fusetk.data.vocab import EOS, MANY_UNKNOWN, UNK
from fusetk.decoding.alignment import AttentionHeads, hard, parse
from fusetk.decoding.beam import Hypothesis, search
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.requests import Request
from fusetk.decoding.sample import sample
from fusetk.decoding.target_scores import TargetScores, score_targets
from fusetk.decoding.threads import map_in_threads, max_workers
from fusetk.decoding.token_mask import EncodedRequest, max_positions
from fusetk.decoding.unknown import Replacement, read_dictionary
from fusetk.errors import ConfigError, DataError
from fusetk.models.seq2seq import Seq2Seq

log = logging.getLogger(__name__)

MIN_TOKENS_TO_WARN = 200  # in a shorter text, a few names make a large share
# The time of a search step is estimated as the number of its hypotheses plus this constant, and the
# number of steps as the number of source tokens of the longest sentence.
STEP_COST = 50

Ids = Sequence[int] | np.ndarray


class Extras(NamedTuple):
    """Further results for each translation. They need forced decoding of the translation."""

    word_scores: bool = False
    attention: AttentionHeads | None = None
    # Replaces unknown words; ``attention``, or the mean over all layers and heads, aligns them.
    replace: Replacement | None = None

    @classmethod
    def from_options(
        cls, word_scores: bool, alignment: str | None, dictionary: str | None, subwords: bool
    ) -> "Extras":
        """Return the results that the options of ``fusetk decode`` select.

        ``dictionary`` is None without --replace-unknown, and "" if the option has no file. Raises
        ConfigError for an unknown alignment, and DataError for a dictionary that cannot be read.
        """
        replacement = None
        if dictionary is not None:
            entries = read_dictionary(dictionary) if dictionary else None
            replacement = Replacement(entries, subwords)
        return cls(word_scores, None if alignment is None else parse(alignment), replacement)

    @property
    def heads(self) -> AttentionHeads | None:
        """The heads whose attention forced decoding must return."""
        return self.attention or (AttentionHeads() if self.replace else None)


class Translation(NamedTuple):
    """A translation of T tokens of a source of S positions, with its text."""

    text: str
    tokens: list[str]  # as the model produced them
    score: float  # natural logarithm of the probability of the tokens and EOS
    normalized: float  # the value that ranks translations, see ``decoding.scores``
    word_scores: list[float] | None = None  # log-probabilities of the T tokens and EOS
    attention: np.ndarray | None = None  # (T + 1, S), EOS last
    utility: float | None = None  # expected similarity to the other translations, with MBR


class Translator:
    """One model, or an ensemble of models with the same vocabularies, and their text pipeline.

    The models must be in evaluation mode; the translator uses them on their device and in their
    precision. No call changes the result of another one, so several threads may use one translator.
    ``names`` are the names of the models, for errors. Without ``scores``, greedy search is faster,
    and the scores of translations are NaN, except those of samples. Raises ConfigError if a model
    is in training mode, or does not have the attention heads of ``extras``.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        pipeline: Pipeline,
        config: SearchConfig,
        extras: Extras | None = None,
        names: Sequence[str] = (),
        scores: bool = True,
    ):
        self.models = list(models)
        self.pipeline = pipeline
        self.config = config
        self.extras = extras or Extras()
        self.scores = scores
        if any(model.training for model in self.models):
            raise ConfigError(
                "a model in training mode cannot translate, because dropout would change its "
                "results: call the method eval of the model first"
            )
        if self.extras.heads:
            self._check_heads(names)
        # Called with the number of sentences that were translated since the last call.
        self.on_batch: Callable[[float], None] = lambda sentences: None
        self.warns_of_unknown = True  # whether a warning of unknown source tokens may still come

    def translate(self, lines: Sequence[str | Request], tokenized: bool = False) -> list[str]:
        """Return the best translation of each line; an empty string for a blank line.

        The arguments and errors are those of ``n_best``.
        """
        return [best[0].text if best else "" for best in self.n_best(lines, tokenized)]

    def n_best(
        self,
        lines: Sequence[str | Request],
        tokenized: bool = False,
        first: int | Sequence[int] = 1,
    ) -> list[list[Translation]]:
        """Return the n best translations of each line, best first.

        A line without a word has no translations. With ``tokenized``, the lines are words as the
        pipeline makes them, before the split into subwords, and so are the translations. ``first``
        is the number of the first line, or the numbers of all lines, for warnings and samples.
        Raises DataError if a prefix and phrases exceed the positions of the models.
        """
        requests = [line if isinstance(line, Request) else Request(line) for line in lines]
        numbers = range(first, first + len(lines)) if isinstance(first, int) else first
        tokens = [self.tokens("source", request.text, tokenized) for request in requests]
        sources = []
        encoded = []
        for request, number, line in zip(requests, numbers, tokens, strict=True):
            source = [*self.pipeline.source_vocab.encode(line), EOS]
            sources.append(self.truncate(source, number))
            encoded.append(self._encode_request(request, tokenized, number))
        self._warn_of_unknown(sources, numbers)
        hypotheses = self._search(sources, encoded)
        for number, source, n_best in zip(numbers, sources, hypotheses, strict=True):
            if not n_best and len(source) > 1:
                log.warning(
                    "line %d has no translation: its prefix, its phrases and the forbidden tokens "
                    "exclude every translation of the allowed lengths",
                    number,
                )
        scores = self._score(sources, hypotheses)
        return [
            [self._translation(line, hypothesis, next(scores), tokenized) for hypothesis in n_best]
            for line, n_best in zip(tokens, hypotheses, strict=True)
        ]

    def translate_ids(
        self,
        sources: Sequence[Ids],
        numbers: Sequence[int] | None = None,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the n best translations of each source (ids with EOS).

        ``numbers`` are those of the sources, for warnings and samples; by default 1, 2, and so on.
        ``prefixes`` has the ids with which the translations of each source begin. A source that
        consists of EOS alone has no translations. Raises DataError if a prefix exceeds the
        positions of the models.
        """
        if numbers is None:
            numbers = range(1, len(sources) + 1)
        truncated = [self.truncate(source, i) for i, source in zip(numbers, sources, strict=True)]
        requests = []
        for number, prefix in zip(numbers, prefixes or [()] * len(sources), strict=True):
            requests.append(EncodedRequest(prefix, line=number))
            self._check_length(requests[-1])
        return self._search(truncated, requests)

    def encode(self, side: str, text: str, tokenized: bool = False) -> list[int]:
        """Return the ids of a line, without BOS and EOS. ``side`` is "source" or "target"."""
        vocabulary = self.pipeline.vocabulary(side)
        return vocabulary.encode(self.tokens(side, text, tokenized))

    def tokens(self, side: str, text: str, tokenized: bool = False) -> list[str]:
        """Return the tokens of a line, including unknown ones. A line of white space has none.

        ``side`` is "source" or "target".
        """
        if not text.strip():
            return []
        return self.pipeline.subwords(side, text if tokenized else self.pipeline.words(side, text))

    @property
    def max_source_length(self) -> int:
        """The maximum number of source tokens, without EOS."""
        positions = max_positions(self.models)
        if positions is None:
            return self.config.max_source_length
        return min(self.config.max_source_length, positions - 1)

    def _check_heads(self, names: Sequence[str]) -> None:
        """Raise ConfigError if a model does not have the attention heads of ``extras``."""
        for model, name in zip(self.models, names or [""] * len(self.models), strict=True):
            try:
                score_targets([model], [([EOS], [])], attention=self.extras.heads)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}" if name else str(error)) from None

    def _search(
        self, sources: Sequence[list[int]], requests: Sequence[EncodedRequest]
    ) -> list[list[Hypothesis]]:
        hypotheses: list[list[Hypothesis]] = [[] for _ in sources]
        device = next(self.models[0].parameters()).device
        search_or_sample = sample if self.config.sample else partial(search, scores=self.scores)

        def translations(batch: list[int]) -> list[list[Hypothesis]]:
            src, src_mask = pad([sources[i] for i in batch])
            return search_or_sample(
                self.models,
                src.to(device),
                src_mask.to(device),
                self.config,
                [requests[i] for i in batch],
            )

        lengths = [len(source) for source in sources]
        workers = max_workers(device)
        all_batches = source_batches(lengths, self.config, workers)
        with closing(map_in_threads(translations, all_batches, workers)) as results:
            for batch, batch_results in zip(all_batches, results, strict=True):
                for i, n_best in zip(batch, batch_results, strict=True):
                    hypotheses[i] = n_best
                self.on_batch(len(batch))
        return hypotheses

    def _encode_request(self, request: Request, tokenized: bool, line: int) -> EncodedRequest:
        texts = [request.prefix, *request.constraints]
        tokens = [self.tokens("target", text, tokenized) if text else [] for text in texts]
        vocabulary = self.pipeline.target_vocab
        unknown = dict.fromkeys(
            token for part in tokens for token in part if vocabulary.encode([token]) == [UNK]
        )
        prefix, *phrases = map(vocabulary.encode, tokens)
        phrases = [phrase for phrase in phrases if phrase]
        encoded = EncodedRequest(prefix, phrases, line, self._continued)
        self._check_length(encoded)
        if unknown:
            log.warning(
                "line %d: tokens of the prefix or the phrases of its translation are not in the "
                "target vocabulary and become %s: %s",
                line,
                vocabulary.tokens[UNK],
                " ".join(unknown),
            )
        return encoded

    def _warn_of_unknown(self, sources: Sequence[Sequence[int]], numbers: Sequence[int]) -> None:
        """Log a warning if many tokens of these sources are unknown, at most once."""
        if not self.warns_of_unknown:
            return
        tokens = sum(len(source) - 1 for source in sources)
        unknown = sum(source.count(UNK) for source in sources)
        if tokens < MIN_TOKENS_TO_WARN or unknown <= MANY_UNKNOWN * tokens:
            return
        self.warns_of_unknown = False
        first, last = min(numbers), max(numbers)
        log.warning(
            "%s: %.0f %% of the source tokens are not in the source vocabulary; check "
            "the language of the text and its tokenisation",
            f"line {first}" if first == last else f"lines {first} to {last}",
            100 * unknown / tokens,
        )

    def _check_length(self, request: EncodedRequest) -> None:
        """Raise DataError if the prefix and the phrases need too many positions."""
        positions = max_positions(self.models)
        if positions is not None and request.num_required > positions - 1:
            raise DataError(
                f"line {request.line}: the prefix and the phrases of its translation need "
                f"{request.num_required} tokens, but the models have only {positions} positions, "
                "one of them for EOS; shorten them"
            )

    @cached_property
    def _continued(self) -> frozenset[int]:
        """The target tokens that the next token continues."""
        if not self.pipeline.bpe:
            return frozenset()
        return frozenset(
            i for i, token in enumerate(self.pipeline.target_vocab.tokens) if token.endswith(JOINER)
        )

    def _score(
        self, sources: Sequence[list[int]], hypotheses: Sequence[Sequence[Hypothesis]]
    ) -> Iterator[TargetScores | None]:
        """Yield the scores of each hypothesis by forced decoding; None if no extra needs them."""
        pairs = [
            (source, hypothesis.ids)
            for source, n_best in zip(sources, hypotheses, strict=True)
            for hypothesis in n_best
        ]
        heads = self.extras.heads
        if not pairs or not (self.extras.word_scores or heads):
            return iter([None] * len(pairs))
        return iter(score_targets(self.models, pairs, self.config.ensemble_mean, attention=heads))

    def truncate(self, source: Ids, line: int) -> list[int]:
        """Truncate an over-long source, keep EOS, and log a warning with the line number."""
        limit = self.max_source_length
        tokens = [int(token) for token in source]
        if len(tokens) <= limit + 1:
            return tokens
        reason = "the positions of the model"
        if limit == self.config.max_source_length:
            reason = "decoding.max_source_length"
        log.warning(
            "line %d has %d tokens: only the first %d are read (%s); shorten the line",
            line,
            len(tokens) - 1,
            limit,
            reason,
        )
        return [*tokens[:limit], EOS]

    def _translation(
        self,
        source: list[str],
        hypothesis: Hypothesis,
        scores: TargetScores | None,
        tokenized: bool,
    ) -> Translation:
        tokens = self.pipeline.target_vocab.decode(hypothesis.ids)
        attention = None if scores is None else scores.attention
        replaced = tokens
        if self.extras.replace and attention is not None and UNK in hypothesis.ids:
            replaced = self.extras.replace(source, tokens, hard(attention))
        words = self.pipeline.join(replaced)
        return Translation(
            words if tokenized else self.pipeline.raw(words),
            tokens,
            hypothesis.score,
            hypothesis.normalized,
            scores.scores if scores and self.extras.word_scores else None,
            attention if self.extras.attention else None,
        )


def source_batches(
    lengths: Sequence[int], config: SearchConfig, max_workers: int = 1
) -> list[list[int]]:
    """Return batches of the indices of sources with the given lengths (EOS included).

    The longest sources come first. The size of a batch is sentences * hypotheses * source tokens of
    the longest sentence. It is at most ``batch_tokens``, unless the batch is a single sentence.
    Sources that consist of EOS alone are in no batch. If up to ``max_workers`` workers search
    several batches, the estimated times of the searches are similar, and each worker usually gets
    the same number of batches. The batches that the workers search at the same time have together
    at most twice the size ``batch_tokens``.
    """
    order = sorted((i for i, length in enumerate(lengths) if length > 1), key=lambda i: -lengths[i])
    hypotheses = config.n_best if config.sample else config.beam

    def cut(size: int, cost: float = math.inf) -> list[list[int]]:
        """Return batches of at most this size and estimated cost, or of a single sentence."""
        batches: list[list[int]] = []
        max_sentences = batch_cost = 0
        for i in order:
            batch_cost += hypotheses * lengths[i]
            if not batches or len(batches[-1]) >= max_sentences or batch_cost > cost:
                batches.append([])
                max_sentences = size // (hypotheses * lengths[i])
                batch_cost = (hypotheses + STEP_COST) * lengths[i]
            batches[-1].append(i)
        return batches

    batches = cut(config.batch_tokens)
    workers = min(max_workers, len(batches))
    if workers <= 1:
        return batches
    size = min(config.batch_tokens, max(1, 2 * config.batch_tokens // workers))
    count = math.ceil(len(cut(size)) / workers) * workers
    # A higher limit never gives more batches. The lowest limit that gives at most ``count`` makes
    # their costs similar.
    costs = range((hypotheses + STEP_COST) * sum(lengths) + 1)
    lowest = bisect_left(costs, -count, key=lambda cost: -len(cut(size, cost)))
    return cut(size, lowest)
