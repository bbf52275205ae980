"""Beam search, written once for every model.

Definition
----------
Each sentence has live hypotheses, at most K (the beam), at first the empty one. At step t = 1, 2, ... every live hypothesis
is extended by every token that is allowed; the score of a candidate is its natural-log probability. The candidates are put
in order: higher score first, at equal scores the one whose hypothesis stood first, then the lower token id. Then

1. those of the K first that end in the end mark are finished, with length t, and are compared from now on by their value
   (``fusetk.decoding.scores``); at equal values the one that finished first stands first;
2. the K first that do not end in the end mark are the live hypotheses of the next step. So what is finished takes no
   place from what is live.

Which tokens are allowed is said in ``fusetk.decoding.token_mask``: never the padding and begin marks, the unknown word only
unless forbidden, the end mark not before the minimum length, where a prefix is given only that, and at the maximum length,
which depends on the source length, only the end mark: every live hypothesis finishes there, with the probability that the
model gives to its end mark.

A sentence is done, and its n best finished hypotheses are returned, as soon as one of these holds:

- no live hypothesis can reach them: n hypotheses are finished, and the bound of the best live one (the best value that it
  could still get, ``scores.bound``) is not above the n-th best finished. Going on could not change the result. With the
  rule ``exact`` this alone ends a sentence, so what is returned is the best of all that this beam would ever finish.
- rule ``beam``: K hypotheses have finished; rule ``first``: n have.

A beam of 1 with any rule is greedy search: the likeliest token at each step until that is the end mark.

Phrases that must be there (``fusetk.decoding.constraints``) change the two steps for their sentence. Hypotheses that have met
equally many of the phrases' tokens are a bank. The candidates are, of each hypothesis, the K + 1 best tokens and the next one
of its phrase. In step 1 the K first *of the last bank*, where all is met, are looked at, and only there is the end mark
allowed. In step 2 the banks take turns, the fullest first, each giving its best candidate until K are chosen. So a beam that is
not wider than the phrases are long writes them down first.

Groups (diverse beam search, Vijayakumar et al. 2018): G groups of K / G hypotheses are searched for as said, in turns at each
step, but candidates are put in order by their scores less ``diversity`` times how often their token extends a live hypothesis
of a group before at this step; finished hypotheses are compared without that. A sentence is done when all of its groups are;
what they found is put together, the best first, what stands there twice only once.

The order of equal scores is exact but for one case: when more than K + 1 tokens of one hypothesis tie at the (K + 1)-th
place, ``torch.topk`` picks among these.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.data.vocab import BOS, EOS
from fusetk.decoding.alignment import Which
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.scorer import Scorer
from fusetk.decoding.scores import bound, covered, value
from fusetk.decoding.token_mask import DEAD, Demand, Rules
from fusetk.errors import Diverged
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.nested import map_tensors, select

LEAVE = 0.25  # sentences leave a batch when this part of it is done: selecting rows of the fixed state costs a copy


class Hypothesis(NamedTuple):
    """A translation that was found."""

    ids: list[int]  # without begin and end mark
    score: float  # natural-log probability, of the end mark too
    normalized: float  # what it is compared by: the score less the word penalty, / length penalty, + coverage


@torch.inference_mode()
def search(
    models: Sequence[Seq2Seq],
    src: Tensor,
    src_mask: Tensor,
    config: SearchConfig,
    demands: Sequence[Demand] | None = None,
) -> list[list[Hypothesis]]:
    """The n best translations of each sentence, best first; fewer if the vocabulary, the maximum length or what is asked allow fewer.

    ``models`` in evaluation mode, more than one are an ensemble; ids and mask (B, S), every row with its end mark; ``demands`` for
    each sentence, no longer than the models have positions. See the head of this file for what is found. Raises Diverged if a model
    returns NaN.
    """
    groups = config.groups
    rules = Rules(models, src_mask, config, demands, groups)
    scorer = Scorer(models, config.ensemble, Which() if config.coverage_penalty else None)
    states = scorer.start(src, src_mask)
    if groups > 1:
        states = scorer.select(
            states, torch.arange(len(src), device=src.device).repeat_interleave(groups), None
        )
    finished = _Finished(rules, config)
    live, broken = (
        _begin(src, src_mask, rules, config),
        torch.zeros((), dtype=torch.bool, device=src.device),
    )
    for length in range(1, rules.longest + 1):
        step = scorer.step(live.prefix[:, :, -1].flatten(), states)
        rules.apply(step.values, live.unit, live.prefix, length, live.met)
        if live.coverage is not None and step.attention is not None:
            live = live._replace(coverage=live.coverage + step.attention.view_as(live.coverage))
        best = (_extend if groups == 1 else _extend_groups)(
            live, step.values, step.normaliser, config, rules
        )
        broken = broken | best.score.isnan().any()
        finished.add(live, best, length)
        live, parent = _go_on(live, best)
        done = finished.done(live, length)
        live, states = _leave(live, parent, done, groups, scorer, step.states)
        if not len(live.unit):
            break
    if broken:
        raise Diverged()
    return finished.hypotheses()


# The steps -----------------------------------------------------------------------------------------------------------


class _Live(NamedTuple):
    """Hypotheses that go on: W each of A searches that are not done."""

    unit: Tensor  # (A,) which search: of a sentence, or of one of its groups
    prefix: Tensor  # (A, W, t), the begin mark first
    score: Tensor  # (A, W); DEAD where there are fewer than W
    met: Tensor | None  # (A, W) tokens of the phrases that must be there
    coverage: (
        Tensor | None
    )  # (A, W, S) attention that source tokens got; 1 where it does not matter


class _Best(NamedTuple):
    """The best candidates of a step, in order."""

    score: Tensor  # (A, C)
    parent: Tensor  # (A, C) the hypothesis that was extended, 0 .. W - 1
    token: Tensor  # (A, C)
    ends: Tensor  # (A, C) those that are finished
    chosen: Tensor  # (A, W') the places of those that go on
    met: Tensor | None = None  # (A, C)


def _begin(src: Tensor, src_mask: Tensor, rules: Rules, config: SearchConfig) -> _Live:
    """The empty hypothesis of each search."""
    unit = torch.arange(len(src) * config.groups, device=src.device)
    met = None if rules.constraints is None else src.new_zeros(len(unit), 1)
    coverage = None
    if config.coverage_penalty:
        matters = src_mask & src_mask.roll(-1, 1)  # source tokens without the end mark
        matters[:, -1] = False
        coverage = (~matters).float()[:, None].repeat_interleave(config.groups, 0)
    return _Live(
        unit,
        src.new_full((len(unit), 1, 1), BOS),
        torch.zeros(len(unit), 1, device=src.device),
        met,
        coverage,
    )


def _extend(
    live: _Live, values: Tensor, normaliser: Tensor, config: SearchConfig, rules: Rules
) -> _Best:
    """The candidates that steps 1 and 2 of the definition need, from values (A * W, V) and normalisers (A * W, 1).

    One hypothesis has at most one candidate with the end mark, so its K + 1 best tokens hold all that matters of it, and
    of all candidates the 2 K best do. In greedy search the best one does.
    """
    searches, beam, constraints = len(live.score), config.beam // config.groups, rules.constraints
    greedy = config.beam == 1 and live.met is None
    each = 1 if greedy else min(beam + 1, values.shape[1])
    if greedy:
        value, token = values.max(-1, keepdim=True)
    else:
        value, token = values.topk(each)  # (A * W, each)
        token, order = token.sort()  # so that the stable sort below puts the lower id first
        value = value.gather(1, order)
    if live.met is not None and constraints is not None:
        inside = rules.inside_word(live.prefix)
        asked = constraints.next(live.unit, live.met, inside).view(-1, 1)
        there = (token == asked).any(1, keepdim=True)
        value = torch.cat((value, values.gather(1, asked).masked_fill(there, DEAD)), 1)
        token, each = torch.cat((token, asked), 1), each + 1
    score = (live.score.reshape(-1, 1) + (value - normaliser)).view(searches, -1)  # (A, W * each)
    score, order = score.sort(dim=1, descending=True, stable=True)
    if live.met is None:
        score, order = score[:, : 2 * beam], order[:, : 2 * beam]
    parent = order.div(each, rounding_mode="floor")
    token = token.view(searches, -1).gather(1, order)
    ended = token == EOS
    if live.met is not None and constraints is not None:
        met = constraints.advance(
            live.unit, live.met.gather(1, parent), token, inside.gather(1, parent)
        )
        return _by_banks(
            _Best(score, parent, token, ended, ended, met),
            constraints.left(live.unit, met),
            constraints.banks,
            beam,
        )
    chosen = ended.to(torch.uint8).sort(dim=1, stable=True).indices[:, :beam]
    ends = ended.clone()
    ends[:, beam:] = False
    return _Best(score, parent, token, ends, chosen)


def _by_banks(best: _Best, left: Tensor, banks: int, beam: int) -> _Best:
    """Steps 1 and 2 where phrases must be there: ``left`` (A, C) of their tokens are still to come, at most ``banks`` - 1."""
    bank = F.one_hot(left, banks)  # (A, C, banks), the fullest first
    rank = ((bank.cumsum(1) - 1) * bank).sum(-1)  # among the candidates of the bank
    ends = best.ends & (left == 0) & (rank < beam)
    goes = bank * (~best.ends & (best.score > DEAD))[:, :, None]
    turn = ((goes.cumsum(1) - 1) * bank).sum(-1) * bank.shape[-1] + left
    turn = turn.masked_fill(goes.sum(-1) == 0, bank.numel())
    return best._replace(ends=ends, chosen=turn.sort(dim=1, stable=True).indices[:, :beam])


def _extend_groups(
    live: _Live, values: Tensor, normaliser: Tensor, config: SearchConfig, rules: Rules
) -> _Best:
    """The same for groups, one after the other, each less the cost of what those before it chose."""
    groups, width = config.groups, live.score.shape[1]
    values = (values - normaliser).view(-1, groups, width, values.shape[1])
    nothing = normaliser.new_zeros(len(values) * width, 1)
    cost = values.new_zeros(len(values), values.shape[-1])
    found = []
    for group in range(groups):
        mine = map_tensors(itemgetter(slice(group, None, groups)), live)
        best = _extend(
            mine, (values[:, group] - cost[:, None]).flatten(0, 1), nothing, config, rules
        )
        best = best._replace(score=best.score + cost.gather(1, best.token))
        found.append(best)
        going = best.score.masked_fill(best.token == EOS, DEAD).gather(1, best.chosen) > DEAD
        cost.scatter_add_(1, best.token.gather(1, best.chosen), going * config.diversity)
    together: Any = (
        None if parts[0] is None else torch.stack(parts, 1).flatten(0, 1)
        for parts in zip(*found, strict=True)
    )
    return _Best(*together)


def _go_on(live: _Live, best: _Best) -> tuple[_Live, Tensor]:
    """Step 2 of the definition: the next live hypotheses, and the rows (A, W') of the present ones that they extend."""
    searches, width, _ = live.prefix.shape
    chosen = best.chosen
    score = best.score.masked_fill(best.token == EOS, DEAD).gather(1, chosen)
    token = best.token.gather(1, chosen)
    rows = (
        best.parent.gather(1, chosen)
        + torch.arange(0, searches * width, width, device=chosen.device)[:, None]
    )
    prefix = torch.cat((live.prefix.flatten(0, 1)[rows], token[:, :, None]), dim=2)
    met = None if best.met is None else best.met.gather(1, chosen)
    coverage = None if live.coverage is None else live.coverage.flatten(0, 1)[rows]
    return _Live(live.unit, prefix, score, met, coverage), rows


def _leave(
    live: _Live, rows: Tensor, done: Tensor, groups: int, scorer: Scorer, states: list
) -> tuple[_Live, list]:
    """Bring the states into the order of the live hypotheses; let sentences whose searches are done (A,) leave if it pays."""
    over = done if groups == 1 else done.view(-1, groups).all(1)
    flags = over.tolist()  # the one wait for the device in a step
    count = sum(flags)
    if count == len(flags):
        return live._replace(unit=live.unit[:0]), states
    if count or groups > 1:
        live = live._replace(score=live.score.masked_fill(done[:, None], DEAD))
    if count < LEAVE * len(flags):
        unmoved = rows.shape[1] == 1  # greedy search
        return live, scorer.select(states, None if unmoved else rows.flatten(), None)
    stay = torch.tensor([i for i, flag in enumerate(flags) if not flag], device=done.device)
    units = (
        stay
        if groups == 1
        else (stay[:, None] * groups + torch.arange(groups, device=stay.device)).flatten()
    )
    states = scorer.select(states, rows[units].flatten(), stay)
    return select(live, units), states


class _Finished:
    """The n best finished hypotheses of each search, best first, and how many have finished."""

    def __init__(self, rules: Rules, config: SearchConfig):
        limit = self.limit = rules.limit
        self.longest = rules.longest
        self.beam = config.beam // config.groups
        self.n_best = min(config.n_best, self.beam)
        size = (len(limit), self.n_best)
        self.config = config
        self.score = torch.full(size, DEAD, device=limit.device)
        self.normalized = torch.full(size, DEAD, device=limit.device)
        self.length = limit.new_zeros(size)
        self.ids = limit.new_zeros(*size, rules.longest)
        self.count = limit.new_zeros(len(limit))

    def add(self, live: _Live, best: _Best, length: int) -> None:
        """Step 1 of the definition."""
        n, here = self.n_best, live.unit
        score = best.score.masked_fill(~best.ends, DEAD)
        ended = score > DEAD
        if here.device.type == "cpu" and not ended.any():  # elsewhere asking would mean waiting
            return
        self.count[here] += ended.sum(1)
        new = value(score, length, self.config)
        if live.coverage is not None:
            new = new + covered(live.coverage, self.config).gather(1, best.parent)
        new, order = new.sort(dim=1, descending=True, stable=True)
        new, order = new[:, :n], order[:, :n]
        score = score.gather(1, order)
        rows = best.parent.gather(1, order)[:, :, None].expand(-1, -1, length)
        prefix = F.pad(live.prefix.gather(1, rows)[:, :, 1:], (0, self.ids.shape[2] - length + 1))
        normalized, order = torch.cat((self.normalized[here], new), dim=1).sort(
            dim=1, descending=True, stable=True
        )
        order = order[:, :n]
        self.normalized[here] = normalized[:, :n]
        self.score[here] = torch.cat((self.score[here], score), dim=1).gather(1, order)
        self.length[here] = F.pad(self.length[here], (0, score.shape[1]), value=length).gather(
            1, order
        )
        ids = torch.cat((self.ids[here], prefix), dim=1)
        self.ids[here] = ids.gather(1, order[:, :, None].expand(-1, -1, ids.shape[2]))

    def done(self, live: _Live, length: int) -> Tensor:
        """Which of the searches that go on are done (A,) after tokens number ``length``."""
        here = live.unit
        done = (
            bound(live.score.amax(1), length, self.limit[here], self.longest, self.config)
            <= self.normalized[here, -1]
        )
        if self.config.stop == "first" or self.beam == 1:
            done |= self.count[here] >= self.n_best
        elif self.config.stop == "beam":
            done |= self.count[here] >= self.beam
        return done

    def hypotheses(self) -> list[list[Hypothesis]]:
        """What was found for each sentence, best first."""
        rows = zip(
            self.ids.tolist(),
            self.length.tolist(),
            self.score.tolist(),
            self.normalized.tolist(),
            strict=True,
        )
        found = [
            [Hypothesis(i[: n - 1], s, v) for i, n, s, v in zip(*row, strict=True) if s > DEAD]
            for row in rows
        ]
        if self.config.groups == 1:
            return found
        return [
            _merged(found[i : i + self.config.groups], self.config.n_best)
            for i in range(0, len(found), self.config.groups)
        ]


def _merged(groups: Sequence[Sequence[Hypothesis]], most: int) -> list[Hypothesis]:
    """The best of all groups, none twice."""
    best: dict[tuple[int, ...], Hypothesis] = {}
    for one in sorted((one for group in groups for one in group), key=lambda one: -one.normalized):
        best.setdefault(tuple(one.ids), one)
    return list(best.values())[:most]
