"""Log-probabilities of given translations, for each sentence and for a corpus."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fusetk.data.vocab import UNK
from fusetk.decoding.scores import PENALTIES
from fusetk.decoding.target_scores import IdPair, check_length, score_targets
from fusetk.decoding.translate import Translator
from fusetk.errors import quantity


class ScoreRule(NamedTuple):
    """Rule that turns the scores of tokens into the score of a sentence."""

    count_eos: bool = True  # whether EOS counts, in the score and in the length
    normalize: float = 0.0  # exponent of the length penalty
    penalty: str = "power"

    def counted(self, scores: Sequence[float]) -> Sequence[float]:
        """Return the scores that the rule uses; ``scores`` are those of the tokens and of EOS."""
        return scores if self.count_eos else scores[:-1]

    def score(self, scores: Sequence[float]) -> float:
        """Return the natural-log probability of a sentence; 0 if no score is used."""
        return math.fsum(self.counted(scores))

    def normalized(self, scores: Sequence[float]) -> float:
        """Return the score divided by the length penalty."""
        length = max(1, len(self.counted(scores)))
        return self.score(scores) / PENALTIES[self.penalty](length, self.normalize)


class RescorePair(NamedTuple):
    """A source and a target that is scored."""

    ids: IdPair
    words: int  # of the target, before the split into subwords


class ScoredTarget(NamedTuple):
    """The models' scores of a target sentence."""

    tokens: list[str]  # `<unk>` for each unknown token
    scores: list[float]  # natural-log probabilities of the tokens, then of EOS
    words: int  # before the split into subwords
    unknown: int  # unknown tokens


class Rescorer:
    """Scores given translations with the models, the pipeline and the ensemble of a translator."""

    def __init__(self, translator: Translator, batch_tokens: int):
        self.translator = translator
        self.batch_tokens = batch_tokens
        # Called with the number of pairs after each batch.
        self.on_batch: Callable[[int], None] = lambda pairs: None

    def pair(self, source: list[int], target: Sequence[str]) -> RescorePair | None:
        """Return the pair to score, from source ids with EOS and the tokens of the target.

        Return None if the source has only EOS. Raises DataError if the source or the target exceeds
        the positions of the models.
        """
        pipeline = self.translator.pipeline
        ids = source, pipeline.target_vocab.encode(target)
        check_length(self.translator.models, [ids])
        # Words are counted before unknown tokens become `<unk>`, which may end a word or not.
        return RescorePair(ids, pipeline.num_words(target)) if len(source) > 1 else None

    def __call__(self, pairs: Sequence[RescorePair | None]) -> list[ScoredTarget | None]:
        """Return the scores of each pair, in order; None for a pair that is None."""
        results = iter(
            score_targets(
                self.translator.models,
                [pair.ids for pair in pairs if pair is not None],
                self.translator.config.ensemble_mean,
                self.batch_tokens,
                on_batch=self.on_batch,
            )
        )
        return [
            None if pair is None else self._scored(pair, next(results).scores) for pair in pairs
        ]

    def _scored(self, pair: RescorePair, scores: list[float]) -> ScoredTarget:
        _, target = pair.ids
        tokens = self.translator.pipeline.target_vocab.decode(target)
        return ScoredTarget(tokens, scores, pair.words, target.count(UNK))


class CorpusScore:
    """Sums over the sentences of a corpus; EOS counts as a token and as a word."""

    def __init__(self) -> None:
        self.sentences = 0
        self.blank = 0
        self.tokens = 0
        self.words = 0
        self.unknown = 0
        self.score = 0.0

    def add(self, targets: Sequence[ScoredTarget | None]) -> None:
        """Add sentences; None is a sentence with a blank source."""
        for target in targets:
            if target is None:
                self.blank += 1
                continue
            self.sentences += 1
            self.tokens += len(target.scores)
            self.words += target.words + 1
            self.unknown += target.unknown
            self.score += math.fsum(target.scores)

    def numbers(self) -> dict[str, float | None]:
        """Return counts, the natural-log probability, and perplexities per token and per word."""
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
        numbers = self.numbers()
        blank = f", {self.blank:,} without a source" if self.blank else ""
        return (
            f"{quantity(self.sentences, 'sentence')}{blank}, {quantity(self.tokens, 'token')} "
            f"({self.unknown:,} unknown), {quantity(self.words, 'word')}: "
            f"log-probability {self.score:.4f}, "
            f"perplexity {numbers['perplexity']:.4f} per token, "
            f"{numbers['word_perplexity']:.4f} per word"
        )


def _perplexity(score: float, count: int) -> float | None:
    return math.exp(min(700.0, -score / count)) if count else None
