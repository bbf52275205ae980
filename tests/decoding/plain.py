"""A plain implementation of the search that the head of ``fusetk.decoding.beam`` defines.

It searches one sentence, with lists, without a cache of states, so it is slow.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from fusetk.data.vocab import EOS, UNK
from fusetk.decoding.beam import Hypothesis
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.token_mask import EncodedRequest

Next = Callable[[tuple[int, ...]], list[float]]  # log-probabilities of all tokens after a prefix


@dataclass(frozen=True)
class Live:
    """A hypothesis, or a candidate."""

    ids: tuple[int, ...]
    score: float
    cost: float = 0.0  # of this step, for the choices of other groups


@dataclass
class Group:
    """The search of one group."""

    live: list[Live] = field(default_factory=lambda: [Live((), 0.0)])
    finished: list[Hypothesis] = field(default_factory=list)
    done: bool = False


class PlainSearch:
    """The search of one sentence.

    ``limit`` counts EOS; ``words`` are all tokens except EOS, BOS and PAD; ``coverage`` is the
    coverage term of a hypothesis with EOS.
    """

    def __init__(
        self,
        following: Next,
        words: Sequence[int],
        limit: int,
        least: int,
        config: SearchConfig,
        request: EncodedRequest,
        coverage: Callable[[Sequence[int]], float] = lambda ids: 0.0,
    ):
        self.following = following
        self.words = words
        self.limit = limit
        self.least = least
        self.config = config
        self.request = request
        self.coverage = coverage
        self.beam = config.beam // config.groups
        self.n_best = min(config.n_best, self.beam)
        self.met = cache(self._met)  # each step asks for the same tokens several times

    def _met(self, ids: tuple[int, ...]) -> int:
        """Return the number of met tokens: each phrase is matched at its earliest place."""
        ids, first, met = list(ids), 0, 0
        for phrase in map(list, self.request.constraints):
            starts = [
                start
                for start in range(first, len(ids))
                if not start or ids[start - 1] not in self.request.continued
            ]
            whole = [start for start in starts if ids[start : start + len(phrase)] == phrase]
            if not whole:
                return met + max(
                    (
                        len(ids) - start
                        for start in starts
                        if ids[start:] == phrase[: len(ids) - start]
                    ),
                    default=0,
                )
            met, first = met + len(phrase), whole[0] + len(phrase)
        return met

    def begun(self, ids: Sequence[int]) -> int:
        """Return the number of met tokens without the current phrase."""
        met, whole = self.met(ids), 0
        for phrase in self.request.constraints:
            if whole + len(phrase) > met:
                break
            whole += len(phrase)
        return whole

    @property
    def total(self) -> int:
        return sum(map(len, self.request.constraints))

    def asked(self, ids: Sequence[int]) -> int | None:
        """Return the next token of the current phrase, if it is allowed."""
        flat = [token for phrase in self.request.constraints for token in phrase]
        met = self.met(ids)
        if met == self.total or (
            ids and ids[-1] in self.request.continued and met == self.begun(ids)
        ):
            return None
        return flat[met]

    def allowed(self, ids: tuple[int, ...]) -> list[int]:
        length = len(ids) + 1
        if length <= len(self.request.prefix):
            return [self.request.prefix[length - 1]]
        if self.met(ids) < self.total and self.total - self.begun(ids) > self.limit - length - 1:
            return [asked] if (asked := self.asked(ids)) is not None else []
        if length == self.limit:
            return [EOS]
        tokens = [token for token in self.words if token != UNK or not self.config.forbid_unknown]
        size = self.config.no_repeat_ngram
        if size:
            runs = {ids[i : i + size] for i in range(len(ids) - size + 1)}
            tokens = [token for token in tokens if (*ids, token)[-size:] not in runs]
        if (
            self.met(ids) < self.total and self.total - self.begun(ids) > self.limit - length - 2
        ):  # the word must end here
            tokens = [token for token in tokens if token not in self.request.continued]
        asked = self.asked(ids)
        tokens += [] if asked is None or asked in tokens else [asked]
        if len(ids) >= self.least and self.met(ids) == self.total:
            tokens.append(EOS)
        return sorted(tokens)

    def step(self, group: Group, costs: Counter, length: int) -> None:
        candidates = []
        for hypothesis in group.live:
            scores = self.following(hypothesis.ids)
            new = [
                Live(
                    (*hypothesis.ids, t),
                    hypothesis.score + scores[t],
                    costs[t] * self.config.diversity,
                )
                for t in self.allowed(hypothesis.ids)
            ]
            if self.request.constraints:
                new.sort(key=lambda c: -(c.score - c.cost))
                new = new[: self.beam + 1] + [
                    c for c in new[self.beam + 1 :] if c.ids[-1] == self.asked(hypothesis.ids)
                ]
            candidates += new
        candidates.sort(key=lambda c: -(c.score - c.cost))
        full = [c for c in candidates if c.ids[-1] == EOS or self.met(c.ids) == self.total]
        ended = [c for c in full[: self.beam] if c.ids[-1] == EOS]
        for c in ended:
            ids = list(c.ids[:-1])
            divisor = (
                length**self.config.normalize
                if self.config.penalty == "power"
                else ((5 + length) / 6) ** self.config.normalize
            )
            value = (c.score - self.config.word_penalty * length) / divisor + self.coverage(ids)
            group.finished.append(Hypothesis(ids, c.score, value))
        group.finished.sort(key=lambda h: -h.normalized)
        going = [c for c in candidates if c.ids[-1] != EOS]
        banks = [[c for c in going if self.met(c.ids) == met] for met in range(self.total, -1, -1)]
        turns = [bank[turn] for turn in range(len(going)) for bank in banks if turn < len(bank)]
        group.live = turns[: self.beam]

    def over(self, group: Group, length: int) -> bool:
        if not group.live:
            return True
        if len(group.finished) < self.n_best:
            return False
        best = max(one.score for one in group.live)
        power, alpha = self.config.penalty == "power", self.config.normalize
        reachable = range(length + 1, self.limit + 1)
        bound = max(
            (best - self.config.word_penalty * m) / (m**alpha if power else ((5 + m) / 6) ** alpha)
            for m in reachable
        )
        return (
            bound <= group.finished[self.n_best - 1].normalized
            or self.config.stop == "first"
            or self.beam == 1
            or (self.config.stop == "beam" and len(group.finished) >= self.beam)
        )

    def search(self) -> list[Hypothesis]:
        groups = [Group() for _ in range(self.config.groups)]
        for length in range(1, self.limit + 1):
            costs: Counter = Counter()
            for group in groups:
                if group.done:
                    continue
                self.step(group, costs, length)
                costs.update(hypothesis.ids[-1] for hypothesis in group.live)
                group.done = self.over(group, length)
            if all(group.done for group in groups):
                break
        unique: list[Hypothesis] = []
        for hypothesis in sorted(
            (h for group in groups for h in group.finished[: self.n_best]),
            key=lambda h: -h.normalized,
        ):
            if hypothesis.ids not in [other.ids for other in unique]:
                unique.append(hypothesis)
        return unique[: self.config.n_best]


def coverage_term(attention: Sequence[Sequence[float]], beta: float) -> float:
    """Wu et al. 2016, Equation 14, for attention (T + 1, S) to the source tokens without EOS."""
    return beta * sum(
        math.log(min(max(sum(column), 1e-6), 1.0)) for column in zip(*attention, strict=True)
    )
