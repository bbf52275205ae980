"""Beam search, written once for every model.

Definition
----------
Each sentence has live hypotheses, at most K (the beam), at first the empty one. At step t = 1, 2, ... every live hypothesis
is extended by every token that is allowed; the score of a candidate is its natural-log probability. The candidates are put
in order: higher score first, at equal scores the one whose hypothesis stood first, then the lower token id. Then

1. those of the K first that end in the end mark are finished, with length t, and are compared from now on by score /
   penalty(t) (``fusetk.decoding.scores``); at equal values the one that finished first stands first;
2. the K first that do not end in the end mark are the live hypotheses of the next step. So what is finished takes no
   place from what is live.

The padding and begin marks are never allowed, the unknown word only unless forbidden, the end mark not before the minimum
length. At the maximum length, which depends on the source length, only the end mark is allowed: every live hypothesis
finishes there, with the probability that the model gives to its end mark.

A sentence is done, and its n best finished hypotheses are returned, as soon as one of these holds:

- no live hypothesis can reach them: n hypotheses are finished, and the bound of the best live one (its score /
  penalty(maximum length)) is not above the n-th best finished. Going on could not change the result. With the rule
  ``exact`` this alone ends a sentence, so what is returned is the best of all that this beam would ever finish.
- rule ``beam``: K hypotheses have finished; rule ``first``: n have.

A beam of 1 with any rule is greedy search: the likeliest token at each step until that is the end mark.

The order of equal scores is exact but for one case: when more than K + 1 tokens of one hypothesis tie at the (K + 1)-th
place, ``torch.topk`` picks among these.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.data.vocab import BOS, EOS, PAD, UNK
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.scorer import Scorer
from fusetk.decoding.scores import PENALTIES
from fusetk.errors import FusetkError
from fusetk.models.seq2seq import Seq2Seq

DEAD = float("-inf")  # the score of what cannot be or is over
LEAVE = 0.25  # sentences leave a batch when this part of it is done: selecting rows of the fixed state costs a copy


class Hypothesis(NamedTuple):
    """A translation that was found."""

    ids: list[int]  # without begin and end mark
    score: float  # natural-log probability, of the end mark too
    normalized: float  # score / length penalty


@torch.inference_mode()
def search(models: Sequence[Seq2Seq], src: Tensor, src_mask: Tensor, config: SearchConfig) -> list[list[Hypothesis]]:
    """The n best translations of each sentence, best first; fewer if the vocabulary or the maximum length allow fewer.

    ``models`` in evaluation mode, more than one are an ensemble; ids and mask (B, S), every row with its end mark. See the
    head of this file for what is found. Raises FusetkError if a model returns NaN.
    """
    limits = length_limits(models, src_mask, config)
    forced_at = set(limits)
    scorer = Scorer(models, config.ensemble)
    states = scorer.start(src, src_mask)
    finished = _Finished(torch.tensor(limits, device=src.device), config)
    live = _Live(
        sentence=torch.arange(len(src), device=src.device),
        prefix=src.new_full((len(src), 1, 1), BOS),
        score=torch.zeros(len(src), 1, device=src.device),
    )
    for length in range(1, max(limits, default=0) + 1):
        values, normaliser, states = scorer.step(live.prefix[:, :, -1].flatten(), states)
        _restrict(values, length, config)
        if length in forced_at:
            _force_end(values, finished.limit[live.sentence] == length)
        best = _extend(live, values, normaliser, config.beam)
        finished.add(live, best, length)
        live, parent = _go_on(live, best, config.beam)
        done = finished.done(live)
        live, states = _leave(live, parent, done, scorer, states)
        if not len(live.sentence):
            break
    return finished.hypotheses()


def length_limits(models: Sequence[Seq2Seq], src_mask: Tensor, config: SearchConfig) -> list[int]:
    """The longest translation of each sentence, the end mark counted; no longer than the models have positions."""
    positions = [limit for model in models if (limit := getattr(model, "max_positions", None)) is not None]
    lengths = (src_mask.sum(1) - 1).tolist()
    limits = [int(config.max_length_factor * length) + config.max_length_extra + 1 for length in lengths]
    limits = [max(limit, config.min_length + 1) for limit in limits]
    return [min(limit, *positions) for limit in limits] if positions else limits


# The steps -----------------------------------------------------------------------------------------------------------


class _Live(NamedTuple):
    """Hypotheses that go on: W each of A sentences that are not done; the best first."""

    sentence: Tensor  # (A,) which of the batch
    prefix: Tensor  # (A, W, t), the begin mark first
    score: Tensor  # (A, W); DEAD where a sentence has fewer than W


class _Best(NamedTuple):
    """The best candidates of a step, in order."""

    score: Tensor  # (A, C)
    parent: Tensor  # (A, C) the hypothesis that was extended, 0 .. W - 1
    token: Tensor  # (A, C)


def _restrict(values: Tensor, length: int, config: SearchConfig) -> None:
    """Forbid tokens, in place; their probability stays with them and is not given to others."""
    values[:, PAD] = DEAD
    values[:, BOS] = DEAD
    if config.forbid_unknown:
        values[:, UNK] = DEAD
    if length <= config.min_length:
        values[:, EOS] = DEAD


def _force_end(values: Tensor, forced: Tensor) -> None:
    """Allow only the end mark, in place, for the sentences that are marked in ``forced`` (A,)."""
    rows = forced.repeat_interleave(len(values) // len(forced))
    end = values[:, EOS].clone()
    values.masked_fill_(rows[:, None], DEAD)
    values[:, EOS] = end


def _extend(live: _Live, values: Tensor, normaliser: Tensor, beam: int) -> _Best:
    """The candidates that steps 1 and 2 of the definition need, from values (A * W, V) and normalisers (A * W, 1).

    One hypothesis has at most one candidate with the end mark, so its K + 1 best tokens hold all that matters of it, and
    of all candidates the 2 K best do. In greedy search the best one does.
    """
    sentences = len(live.score)
    each = min(beam + 1 if beam > 1 else 1, values.shape[1])
    if each == 1:
        value, token = values.max(-1, keepdim=True)
    else:
        value, token = values.topk(each)  # (A * W, each)
        token, order = token.sort()  # so that the stable sort below puts the lower id first
        value = value.gather(1, order)
    score = (live.score.view(-1, 1) + (value - normaliser)).view(sentences, -1)  # (A, W * each)
    score, order = score.sort(dim=1, descending=True, stable=True)
    score, order = score[:, : 2 * beam], order[:, : 2 * beam]
    parent = order.div(each, rounding_mode="floor")
    return _Best(score, parent, token.view(sentences, -1).gather(1, order))


def _go_on(live: _Live, best: _Best, beam: int) -> tuple[_Live, Tensor]:
    """Step 2 of the definition: the next live hypotheses, and the rows (A, W') of the present ones that they extend."""
    sentences, width, _ = live.prefix.shape
    ended = best.token == EOS
    chosen = ended.to(torch.uint8).sort(dim=1, stable=True).indices[:, :beam]
    score = best.score.masked_fill(ended, DEAD).gather(1, chosen)
    token = best.token.gather(1, chosen)
    rows = best.parent.gather(1, chosen) + torch.arange(0, sentences * width, width, device=chosen.device)[:, None]
    prefix = torch.cat((live.prefix.flatten(0, 1)[rows], token[:, :, None]), dim=2)
    return _Live(live.sentence, prefix, score), rows


def _leave(live: _Live, rows: Tensor, done: Tensor, scorer: Scorer, states: list) -> tuple[_Live, list]:
    """Bring the states into the order of the live hypotheses; let sentences that are done (A,) leave if it pays."""
    flags = done.tolist()  # the one wait for the device in a step
    count = sum(flags)
    if count == len(flags):
        return _Live(live.sentence[:0], live.prefix[:0], live.score[:0]), states
    if count < LEAVE * len(flags):
        if count:
            live = live._replace(score=live.score.masked_fill(done[:, None], DEAD))
        unmoved = rows.shape[1] == 1  # greedy search
        return live, scorer.select(states, None if unmoved else rows.flatten(), None)
    stay = torch.tensor([i for i, flag in enumerate(flags) if not flag], device=done.device)
    states = scorer.select(states, rows[stay].flatten(), stay)
    return _Live(live.sentence[stay], live.prefix[stay], live.score[stay]), states


class _Finished:
    """The n best finished hypotheses of each sentence of a batch, best first, and how many have finished."""

    def __init__(self, limit: Tensor, config: SearchConfig):
        """``limit`` (B,): the longest translation of each sentence, the end mark counted."""
        size = (len(limit), config.n_best)
        self.config = config
        self.limit = limit
        self.penalty = PENALTIES[config.penalty]
        self.best_penalty = self.penalty(limit.float(), config.normalize)  # (B,)
        self.score = torch.full(size, DEAD, device=limit.device)
        self.normalized = torch.full(size, DEAD, device=limit.device)
        self.length = limit.new_zeros(size)
        self.ids = limit.new_zeros(*size, int(limit.max()) if len(limit) else 0)
        self.count = limit.new_zeros(len(limit))

    def add(self, live: _Live, best: _Best, length: int) -> None:
        """Step 1 of the definition."""
        beam, n, here = self.config.beam, self.config.n_best, live.sentence
        score = best.score[:, :beam].masked_fill(best.token[:, :beam] != EOS, DEAD)
        ended = score > DEAD
        if here.device.type == "cpu" and not ended.any():  # elsewhere asking would mean waiting
            return
        self.count[here] += ended.sum(1)
        # All new ones have one length, so their scores order them.
        score, order = score.sort(dim=1, descending=True, stable=True)
        score, order = score[:, :n], order[:, :n]
        rows = best.parent.gather(1, order)[:, :, None].expand(-1, -1, length)
        prefix = F.pad(live.prefix.gather(1, rows)[:, :, 1:], (0, self.ids.shape[2] - length + 1))
        normalized = torch.cat((self.normalized[here], score / self.penalty(float(length), self.config.normalize)), dim=1)
        normalized, order = normalized.sort(dim=1, descending=True, stable=True)
        order = order[:, :n]
        self.normalized[here] = normalized[:, :n]
        self.score[here] = torch.cat((self.score[here], score), dim=1).gather(1, order)
        self.length[here] = F.pad(self.length[here], (0, score.shape[1]), value=length).gather(1, order)
        ids = torch.cat((self.ids[here], prefix), dim=1)
        self.ids[here] = ids.gather(1, order[:, :, None].expand(-1, -1, ids.shape[2]))

    def done(self, live: _Live) -> Tensor:
        """Which of the live sentences are done (A,)."""
        here = live.sentence
        done = live.score[:, 0] / self.best_penalty[here] <= self.normalized[here, -1]
        if self.config.stop == "first" or self.config.beam == 1:
            done |= self.count[here] >= self.config.n_best
        elif self.config.stop == "beam":
            done |= self.count[here] >= self.config.beam
        return done

    def hypotheses(self) -> list[list[Hypothesis]]:
        """What was found, best first."""
        rows = zip(self.ids.tolist(), self.length.tolist(), self.score.tolist(), self.normalized.tolist(), strict=True)
        found = [[Hypothesis(i[: n - 1], s, v) for i, n, s, v in zip(*row, strict=True) if s > DEAD] for row in rows]
        if not all(found):
            raise FusetkError("the model gives no probabilities (NaN): its training has diverged, take an earlier checkpoint")
        return found
