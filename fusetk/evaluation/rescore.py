"""How probable given translations are: of each sentence and of a corpus."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fusetk.data.vocab import EOS, UNK
from fusetk.decoding.scores import PENALTIES
from fusetk.decoding.target_scores import check_length, force
from fusetk.decoding.translate import Translator

Pair = tuple[list[int], list[int]]  # source ids with the end mark, target ids without marks


class Scoring(NamedTuple):
    """Which number stands for a sentence."""

    end_mark: bool = True  # its probability counts, and it counts in the length
    normalize: float = 0.0  # exponent of the length penalty
    penalty: str = "power"

    def counted(self, scores: Sequence[float]) -> Sequence[float]:
        """The scores that count, of those of all tokens and the end mark."""
        return scores if self.end_mark else scores[:-1]

    def score(self, scores: Sequence[float]) -> float:
        """Natural-log probability; 0 for a sentence without a token whose end mark does not count."""
        return math.fsum(self.counted(scores))

    def normalized(self, scores: Sequence[float]) -> float:
        """The score divided by the length penalty."""
        return self.score(scores) / PENALTIES[self.penalty](
            max(1, len(self.counted(scores))), self.normalize
        )


class Scored(NamedTuple):
    """What models make of a target sentence."""

    tokens: list[str]
    scores: list[float]  # natural-log probabilities of the tokens and the end mark
    words: int  # before they were split into subwords
    unknown: int  # tokens


class Rescorer:
    """Scores given translations with the models, the text preparation and the ensemble that a translator has."""

    def __init__(self, translator: Translator, batch_tokens: int):
        self.translator, self.batch_tokens = translator, batch_tokens

    def pair(self, source: list[int], target: list[int]) -> Pair | None:
        """Ids of a sentence and its translation as a pair; None for a source without a token, of which nothing can be said.

        Raises DataError for what is longer than the models' positions.
        """
        pair = [*source, EOS], target
        check_length(self.translator.models, [pair])
        return pair if source else None

    def __call__(self, pairs: Sequence[Pair | None]) -> list[Scored | None]:
        """The scores of each pair, in order; None for None."""
        there = [pair for pair in pairs if pair is not None]
        found = iter(
            force(self.translator.models, there, self.translator.config.ensemble, self.batch_tokens)
        )
        return [
            None if pair is None else self._scored(pair[1], next(found).scores) for pair in pairs
        ]

    def _scored(self, target: list[int], scores: list[float]) -> Scored:
        pipeline = self.translator.pipeline
        tokens = pipeline.target_vocab.decode(target)
        return Scored(
            tokens,
            scores,
            len(pipeline.join(tokens).split(" ")) if tokens else 0,
            target.count(UNK),
        )


class Summary:
    """Sums over a corpus; end marks count."""

    def __init__(self) -> None:
        self.sentences = self.blank = self.tokens = self.words = self.unknown = 0
        self.score = 0.0

    def add(self, scored: Sequence[Scored | None]) -> None:
        """Count sentences in; None is a blank one."""
        for one in scored:
            if one is None:
                self.blank += 1
                continue
            self.sentences += 1
            self.tokens += len(one.scores)
            self.words += one.words + 1
            self.unknown += one.unknown
            self.score += math.fsum(one.scores)

    def numbers(self) -> dict[str, float | None]:
        """Counts, the natural-log probability, and the perplexities per token and per word, the end mark being one of either."""
        return {
            "sentences": self.sentences,
            "blank": self.blank,
            "tokens": self.tokens,
            "words": self.words,
            "unknown": self.unknown,
            "score": self.score,
            "perplexity": _perplexity(self.score, self.tokens),
            "word_perplexity": _perplexity(self.score, self.words),
        }

    def __str__(self) -> str:
        if not self.sentences:
            return "no sentence was scored"
        found = self.numbers()
        blank = f", {self.blank:,} without a source" if self.blank else ""
        return (
            f"{self.sentences:,} sentences{blank}, {self.tokens:,} tokens ({self.unknown:,} unknown), {self.words:,} words: "
            f"log-probability {self.score:.4f}, perplexity {found['perplexity']:.4f} a token, {found['word_perplexity']:.4f} a word"
        )


def _perplexity(score: float, count: int) -> float | None:
    return math.exp(min(700.0, -score / count)) if count else None
