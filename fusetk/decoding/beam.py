"""Beam search, written once for every model.

Definition
----------
Each sentence has at most K live hypotheses (K is the beam size). Before the first step, only the
empty hypothesis is live. At step t = 1, 2, ... every live hypothesis is extended by every allowed
token. Each result is a candidate; its score is its log-probability. The candidates are sorted by
score, the highest first. Candidates with equal scores have the order of the hypotheses that they
extend, then the order of their token ids, the lowest first. Each step then does the following:

1. The candidates among the first K that end in EOS become finished hypotheses of length t. Finished
   hypotheses are ranked by their values (``fusetk.decoding.scores``). At equal values, the
   hypothesis that finished first has the higher rank.
2. The first K candidates that do not end in EOS become the live hypotheses of the next step. So
   finished hypotheses do not reduce the number of live ones.

``fusetk.decoding.token_mask`` defines the allowed tokens:

- PAD and BOS are never allowed. The unknown word is allowed unless the settings forbid it.
- EOS is not allowed before the minimum length.
- Within a given prefix, only the next token of the prefix is allowed.
- At the maximum length, which depends on the source length, only EOS is allowed. So every live
  hypothesis finishes there, with the probability that the model gives to EOS.

The search of a sentence is done as soon as one of the following conditions is true. It then returns
the n best finished hypotheses.

- No live hypothesis can become one of the n best: n hypotheses are finished, and the bound of the
  best live one (``scores.bound``, the best value that it can still reach) is not above the n-th
  best finished value. Further steps could not change the result. The rule ``exact`` uses only this
  condition, so it returns the best hypotheses that this beam could ever finish.
- The rule is ``beam`` and K hypotheses are finished.
- The rule is ``first`` and n hypotheses are finished.

With the rule ``exact``, the search removes a live hypothesis as soon as its bound is not above the
n-th best finished value (not with groups or constraints). This saves work and does not change the
result: extensions of this hypothesis have lower scores than all candidates that can still become
one of the n best, so they are behind these candidates in every order.

A beam of 1 is greedy search, whatever the rule: it takes the most probable token at each step until
EOS.

Constraints (``fusetk.decoding.constraints``) are phrases that a translation must contain. They
change points 1 and 2 for their sentence. Hypotheses that have met the same number of constraint
tokens form a bank. The candidates of a hypothesis are its extensions by its K + 1 best tokens and
by the next token of its phrase. Point 1 considers the first K candidates of the last bank, in which
all tokens are met; EOS is allowed only in this bank. In point 2 the banks take turns, the bank with
the most met tokens first. At its turn, a bank gives its best remaining candidate, until K are
chosen. So a beam that is not wider than the number of constraint tokens produces the phrases first.

Groups (diverse beam search, Vijayakumar et al. 2018): G groups of K / G hypotheses are searched as
defined above, one after the other within each step. The candidates are sorted by their scores minus
``diversity`` for each live hypothesis of an earlier group that was extended by the same token at
this step. Finished hypotheses are compared without this cost. A sentence is done when all of its
groups are done. Their results are merged, the best first, without duplicates.

The order of equal scores has one exception: if several tokens of a hypothesis have the same score
as its (K + 1)-th best token, ``torch.topk`` chooses which of them are among the K + 1 best.
"""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.data.vocab import BOS, EOS
from fusetk.decoding.alignment import AttentionHeads
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.scorer import Scorer, index_of
from fusetk.decoding.scores import bound, coverage_term, normalized_score
from fusetk.decoding.threads import raise_if_cancelled
from fusetk.decoding.token_mask import NEG_INF, EncodedRequest, TokenMask
from fusetk.errors import Diverged
from fusetk.models.seq2seq import Seq2Seq, State
from fusetk.nn.nested import map_tensors, select

# Sentences that are done are removed from the batch when they are at least this fraction of it.
# Each removal copies the states of the other sentences.
COMPACTION_THRESHOLD = 0.25


class Hypothesis(NamedTuple):
    """A finished translation."""

    ids: list[int]  # without BOS and EOS
    score: float  # log-probability of the tokens and EOS
    normalized: float  # the value as in fusetk.decoding.scores, with penalties and coverage


@torch.inference_mode()
def search(
    models: Sequence[Seq2Seq],
    src: Tensor,
    src_mask: Tensor,
    config: SearchConfig,
    requests: Sequence[EncodedRequest] | None = None,
    scores: bool = True,
) -> list[list[Hypothesis]]:
    """Return the n best translations of each sentence, best first.

    The docstring of this module defines the search. It finds fewer than n translations if the
    vocabulary, the maximum length or the requests allow fewer. ``models`` must be in evaluation
    mode; several models are an ensemble. ``src`` (token ids) and ``src_mask`` have the shape
    (B, S); every sentence ends with EOS. ``requests`` has one request for each sentence, which must
    fit into the positions of the models. Without ``scores``, greedy search is faster, and the
    scores of hypotheses are NaN. Raises Diverged if a probability is NaN.
    """
    groups = config.groups
    mask = TokenMask(models, src_mask, config, requests)
    heads = AttentionHeads() if config.coverage_penalty else None
    scorer = Scorer(models, config.ensemble_mean, heads)
    states = scorer.start(src, src_mask)
    if groups > 1:
        rows = torch.arange(len(src), device=src.device).repeat_interleave(groups)
        states = scorer.select(states, rows, None)
    steps = _Steps(scorer, mask, config, scores)
    finished = _Finished(mask, config)
    live = steps.initial(src, src_mask)
    has_nan = torch.zeros((), dtype=torch.bool, device=src.device)
    for length in range(1, mask.longest + 1):
        raise_if_cancelled()
        live, best, states = steps.extend(live, states, length)
        has_nan = has_nan | best.score.isnan().any()
        finished.add(live, best, length)
        live, parent_rows = _advance(live, best)
        live = finished.prune(live, length)
        done = finished.done(live, length)
        live, states = steps.prepare_next_step(live, parent_rows, done, states)
        if not len(live.search_index):
            break
    if has_nan:
        raise Diverged()
    hypotheses = finished.hypotheses()
    if scores:
        return hypotheses
    return [
        [hypothesis._replace(score=math.nan, normalized=math.nan) for hypothesis in n_best]
        for n_best in hypotheses
    ]


# The steps ----------------------------------------------------------------------------------------


class _Live(NamedTuple):
    """The live hypotheses: W for each of the A searches that are not done.

    A search belongs to a sentence, or to one group of a sentence.
    """

    search_index: Tensor  # (A,) the numbers of the searches
    prefix: Tensor  # (A, W, t), BOS first
    score: Tensor  # (A, W); NEG_INF in empty places
    num_met: Tensor | None  # (A, W) met tokens of the constraints
    coverage: Tensor | None  # (A, W, S) sum of the attention to source tokens; 1 at EOS and PAD
    # (R,) the places that have a hypothesis, as indices of the A * W places. The models' states
    # have only the rows of these places. With None they have the rows of all places.
    filled: Tensor | None = None


class _Candidates(NamedTuple):
    """The best candidates of a step, sorted."""

    score: Tensor  # (A, C)
    parent: Tensor  # (A, C) the hypothesis that the candidate extends, 0 .. W - 1
    token: Tensor  # (A, C)
    ends: Tensor  # (A, C) whether the candidate is finished
    chosen: Tensor  # (A, W') the candidates that become live hypotheses, as indices 0 .. C - 1
    num_met: Tensor | None = None  # (A, C)


class _Steps:
    """The steps of all searches with one scorer, one mask and one config."""

    def __init__(self, scorer: Scorer, mask: TokenMask, config: SearchConfig, scores: bool):
        self.scores = scores
        self.scorer = scorer
        self.mask = mask
        self.config = config
        self.beam = config.group_beam
        self.uses_best = config.groups == 1 and scorer.supports_best
        # Whether the models need not read the empty places of the beams.
        self.may_skip_empty = self.uses_best and mask.is_simple

    def initial(self, src: Tensor, src_mask: Tensor) -> _Live:
        """Return the empty hypothesis of each search."""
        searches = len(src) * self.config.groups
        coverage = None
        if self.config.coverage_penalty:
            is_token = src_mask & src_mask.roll(-1, 1)  # False at EOS and PAD
            is_token[:, -1] = False
            coverage = (~is_token).float()[:, None].repeat_interleave(self.config.groups, 0)
        return _Live(
            search_index=torch.arange(searches, device=src.device),
            prefix=src.new_full((searches, 1, 1), BOS),
            score=torch.zeros(searches, 1, dtype=torch.float32, device=src.device),
            num_met=None if self.mask.constraints is None else src.new_zeros(searches, 1),
            coverage=coverage,
        )

    def extend(
        self, live: _Live, states: list[State], length: int
    ) -> tuple[_Live, _Candidates, list[State]]:
        """Read the last tokens of the live hypotheses.

        Return the hypotheses with their new coverage, the candidates, and the models' states.
        """
        tokens = live.prefix[:, :, -1].flatten()
        rules = None
        if self.uses_best:
            rules = self.mask.simple_rules(live.search_index, live.prefix.shape[1], length)
        if rules is None:
            scored = self.scorer.step(tokens, states)
            live = _add_coverage(live, scored.attention)
            self.mask.apply(scored.logits, live.search_index, live.prefix, length, live.num_met)
            candidates = self._candidates if self.config.groups == 1 else self._candidates_of_groups
            return live, candidates(live, scored.logits, scored.log_z), scored.states
        if live.filled is not None:
            tokens = tokens[live.filled]
            only = None if rules.only is None else rules.only[live.filled]
            rules = rules._replace(only=only)
        count = self._tokens_needed(live)
        step = self.scorer.best(tokens, states, rules, count, self.scores or count > 1)
        if live.filled is not None:
            step = step.at_places(live.filled, live.score.numel())
        live = _add_coverage(live, step.attention)
        score = live.score.reshape(-1, 1) + (step.logits - step.log_z)
        return live, self._best_of_searches(live, score, step.token), step.states

    def _tokens_needed(self, live: _Live) -> int:
        """Return the number of best tokens of a hypothesis that points 1 and 2 need.

        A hypothesis has at most one candidate with EOS. So its K + 1 best tokens contain all of its
        relevant candidates. Greedy search without constraints needs only the best token.
        """
        is_greedy = self.config.beam == 1 and live.num_met is None
        return 1 if is_greedy else self.beam + 1

    def _candidates(self, live: _Live, logits: Tensor, log_z: Tensor) -> _Candidates:
        """Return the candidates of points 1 and 2 from logits (A * W, V) and log_z (A * W, 1)."""
        constraints = self.mask.constraints
        num_tokens = min(self._tokens_needed(live), logits.shape[1])
        if num_tokens == 1:
            top, token = logits.max(-1, keepdim=True)
        else:
            top, token = logits.topk(num_tokens)  # (A * W, num_tokens)
            # Sort by token id, so that the stable sort below puts the lower id first.
            token, order = token.sort()
            top = top.gather(1, order)
        if live.num_met is not None and constraints is not None:
            is_inside = constraints.inside_word(live.prefix)
            phrase_token = constraints.next(live.search_index, live.num_met, is_inside).view(-1, 1)
            is_in_top = (token == phrase_token).any(1, keepdim=True)
            phrase_logits = logits.gather(1, phrase_token).masked_fill(is_in_top, NEG_INF)
            top = torch.cat((top, phrase_logits), 1)
            token = torch.cat((token, phrase_token), 1)
        score = live.score.reshape(-1, 1) + (top - log_z)
        return self._best_of_searches(live, score, token)

    def _best_of_searches(self, live: _Live, score: Tensor, token: Tensor) -> _Candidates:
        """Return the candidates that points 1 and 2 need.

        ``score`` and ``token`` (A * W, n) are candidates of each hypothesis. Of equal scores, the
        lower token comes first. The 2 K best candidates of all hypotheses of a search suffice.
        """
        searches = len(live.score)
        num_tokens = token.shape[1]
        beam = self.beam
        constraints = self.mask.constraints
        score = score.view(searches, -1)  # (A, W * num_tokens)
        score, order = score.sort(dim=1, descending=True, stable=True)
        if live.num_met is None:
            score = score[:, : 2 * beam]
            order = order[:, : 2 * beam]
        parent = order.div(num_tokens, rounding_mode="floor")
        token = token.view(searches, -1).gather(1, order)
        is_eos = token == EOS
        if live.num_met is not None and constraints is not None:
            is_inside = constraints.inside_word(live.prefix).gather(1, parent)
            num_met = constraints.advance(
                live.search_index, live.num_met.gather(1, parent), token, is_inside
            )
            best = _Candidates(score, parent, token, is_eos, is_eos, num_met)
            num_left = constraints.num_left(live.search_index, num_met)
            return _choose_by_banks(best, num_left, constraints.banks, beam)
        chosen = is_eos.to(torch.uint8).sort(dim=1, stable=True).indices[:, :beam]
        ends = is_eos.clone()
        ends[:, beam:] = False
        return _Candidates(score, parent, token, ends, chosen)

    def _candidates_of_groups(self, live: _Live, logits: Tensor, log_z: Tensor) -> _Candidates:
        """Extend the groups in turn. Each token has a cost for each earlier group that chose it."""
        groups = self.config.groups
        width = live.score.shape[1]
        log_probs = (logits - log_z).view(-1, groups, width, logits.shape[1])
        zero_log_z = log_z.new_zeros(len(log_probs) * width, 1)
        cost = log_probs.new_zeros(len(log_probs), log_probs.shape[-1])
        best_of_groups = []
        for group in range(groups):
            live_of_group = map_tensors(itemgetter(slice(group, None, groups)), live)
            reduced = (log_probs[:, group] - cost[:, None]).flatten(0, 1)
            best = self._candidates(live_of_group, reduced, zero_log_z)
            # The scores do not include the cost. To add it to the reduced scores would round them.
            index = best.parent * logits.shape[1] + best.token
            score = live_of_group.score.gather(1, best.parent)
            score = score + log_probs[:, group].flatten(1).gather(1, index)
            # The next token of a phrase has a second candidate with -inf if it is a best token.
            best = best._replace(score=score.masked_fill(best.score == NEG_INF, NEG_INF))
            best_of_groups.append(best)
            score = best.score.masked_fill(best.token == EOS, NEG_INF)
            is_live = score.gather(1, best.chosen) > NEG_INF
            increase = is_live.to(cost) * self.config.diversity
            cost.scatter_add_(1, best.token.gather(1, best.chosen), increase)
        interleaved: Any = (
            None if parts[0] is None else torch.stack(parts, 1).flatten(0, 1)
            for parts in zip(*best_of_groups, strict=True)
        )
        return _Candidates(*interleaved)

    def prepare_next_step(
        self, live: _Live, rows: Tensor, done: Tensor, states: list[State]
    ) -> tuple[_Live, list[State]]:
        """Return the hypotheses and the states for the next step, without sentences that are done.

        The states get the order of the hypotheses. ``rows`` (A, W) are those of ``_advance``.
        ``done`` (A,) is True for searches that are done. The sentences that are done are removed if
        their fraction reaches ``COMPACTION_THRESHOLD``. If the models can skip empty places, all of
        them are removed, and the states have only the rows of ``live.filled``.
        """
        groups = self.config.groups
        sentence_done = done if groups == 1 else done.view(-1, groups).all(1)
        flags = sentence_done.tolist()  # the only value that the host reads in a step
        num_done = sum(flags)
        if num_done == len(flags):
            return live._replace(search_index=live.search_index[:0]), states
        if num_done or groups > 1:
            live = live._replace(score=live.score.masked_fill(done[:, None], NEG_INF))
        if self.may_skip_empty and all(state.per_sentence is None for state in states):
            if num_done:
                live, rows = select((live, rows), (~done).nonzero()[:, 0])
            filled = _filled_places(live)
            rows = rows.flatten() if filled is None else rows.flatten()[filled]
            return live._replace(filled=filled), self.scorer.select(states, rows, None)
        if num_done < COMPACTION_THRESHOLD * len(flags):
            same_order = rows.shape[1] == 1  # greedy search
            return live, self.scorer.select(states, None if same_order else rows.flatten(), None)
        sentences, searches = remaining(flags, groups, done.device)
        states = self.scorer.select(states, rows[searches].flatten(), sentences)
        return select(live, searches), states


def _filled_places(live: _Live) -> Tensor | None:
    """Return the places of hypotheses as indices of A * W places; None if all are filled."""
    filled = (live.score != NEG_INF).flatten()
    return None if filled.all() else filled.nonzero()[:, 0]


def _add_coverage(live: _Live, attention: Tensor | None) -> _Live:
    """Add the attention (A * W, S) of a step to the coverage."""
    if live.coverage is None or attention is None:
        return live
    return live._replace(coverage=live.coverage + attention.view_as(live.coverage))


def _choose_by_banks(best: _Candidates, num_left: Tensor, banks: int, beam: int) -> _Candidates:
    """Choose the finished and the next live candidates: points 1 and 2 with constraints.

    ``num_left`` (A, C) is the number of constraint tokens that are not met, at most ``banks`` - 1.
    Example for a beam of 3: candidates with num_left 2, 2, 0, 2, 1 have the turns 0, 1, 0, 2, 0 in
    their banks. Sorted by (turn, num_left), they have the order 2, 4, 0, 1, 3. So the candidates 2,
    4 and 0 are chosen.
    """
    bank = F.one_hot(num_left, banks)  # (A, C, banks), the bank with the most met tokens first
    rank = ((bank.cumsum(1) - 1) * bank).sum(-1)  # (A, C), among the candidates of the bank
    ends = best.ends & (num_left == 0) & (rank < beam)
    is_live = bank * (~best.ends & (best.score > NEG_INF))[:, :, None]
    turn = ((is_live.cumsum(1) - 1) * bank).sum(-1)
    sort_key = (turn * banks + num_left).masked_fill(is_live.sum(-1) == 0, bank.numel())
    return best._replace(ends=ends, chosen=sort_key.sort(dim=1, stable=True).indices[:, :beam])


def _advance(live: _Live, best: _Candidates) -> tuple[_Live, Tensor]:
    """Return the next live hypotheses (point 2), and the rows (A, W') of their parents' states."""
    searches, width, _ = live.prefix.shape
    chosen = best.chosen
    score = best.score.masked_fill(best.token == EOS, NEG_INF).gather(1, chosen)
    token = best.token.gather(1, chosen)
    first_row = torch.arange(0, searches * width, width, device=chosen.device)[:, None]
    rows = first_row + best.parent.gather(1, chosen)
    prefix = torch.cat((live.prefix.flatten(0, 1)[rows], token[:, :, None]), dim=2)
    num_met = None if best.num_met is None else best.num_met.gather(1, chosen)
    coverage = None if live.coverage is None else live.coverage.flatten(0, 1)[rows]
    if live.filled is not None:
        rows = index_of(live.filled, live.score.numel())[rows]
    return _Live(live.search_index, prefix, score, num_met, coverage), rows


def remaining(
    done: Sequence[bool], per_sentence: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the indices of the sentences that are not done, and those of their rows.

    Each sentence has ``per_sentence`` consecutive rows.
    """
    sentences = torch.tensor([i for i, flag in enumerate(done) if not flag], device=device)
    if per_sentence == 1:
        return sentences, sentences
    rows = sentences[:, None] * per_sentence + torch.arange(per_sentence, device=device)
    return sentences, rows.flatten()


class _Finished:
    """The n best finished hypotheses of each search, and the number of finished ones."""

    def __init__(self, mask: TokenMask, config: SearchConfig):
        self.limit = mask.limit
        self.longest = mask.longest
        self.beam = config.group_beam
        self.n_best = min(config.n_best, self.beam)
        self.config = config
        size = (len(self.limit), self.n_best)
        self.score = torch.full(size, NEG_INF, dtype=torch.float32, device=self.limit.device)
        self.normalized = self.score.clone()
        self.length = self.limit.new_zeros(size)
        self.ids = self.limit.new_zeros(*size, mask.longest)
        self.count = self.limit.new_zeros(len(self.limit))

    def add(self, live: _Live, best: _Candidates, length: int) -> None:
        """Add the candidates that end at this step (point 1 of the definition)."""
        n = self.n_best
        searches = live.search_index
        score = best.score.masked_fill(~best.ends, NEG_INF)
        ended = score > NEG_INF
        if searches.device.type == "cpu" and not ended.any():  # on a GPU, the host would wait
            return
        self.count[searches] += ended.sum(1)
        values = normalized_score(score, length, self.config)
        if live.coverage is not None:
            values = values + coverage_term(live.coverage, self.config).gather(1, best.parent)
        values, order = values.sort(dim=1, descending=True, stable=True)
        values = values[:, :n]
        order = order[:, :n]
        score = score.gather(1, order)
        parent = best.parent.gather(1, order)[:, :, None].expand(-1, -1, length)
        prefix = live.prefix.gather(1, parent)[:, :, 1:]
        prefix = F.pad(prefix, (0, self.ids.shape[2] - length + 1))
        lengths = F.pad(self.length[searches], (0, score.shape[1]), value=length)
        ids = torch.cat((self.ids[searches], prefix), dim=1)
        # At equal values, the stable sort puts the hypotheses that finished earlier first.
        normalized = torch.cat((self.normalized[searches], values), dim=1)
        normalized, order = normalized.sort(dim=1, descending=True, stable=True)
        order = order[:, :n]
        self.normalized[searches] = normalized[:, :n]
        self.score[searches] = torch.cat((self.score[searches], score), dim=1).gather(1, order)
        self.length[searches] = lengths.gather(1, order)
        self.ids[searches] = ids.gather(1, order[:, :, None].expand(-1, -1, ids.shape[2]))

    def prune(self, live: _Live, length: int) -> _Live:
        """Remove the live hypotheses that cannot change the result: set their scores to -inf.

        See "exact" in the definition. All candidates of such a hypothesis have lower scores than
        those of the others that matter. So the hypothesis does not change the order of the others.
        """
        if self.config.stop != "exact" or self.config.groups > 1 or live.num_met is not None:
            return live
        limit = self.limit[live.search_index][:, None]
        reachable = bound(live.score, length, limit, self.longest, self.config)
        worst_result = self.normalized[live.search_index, -1:]
        score = live.score.masked_fill(reachable <= worst_result, NEG_INF)
        return live._replace(score=score)

    def done(self, live: _Live, length: int) -> Tensor:
        """Return which of the live searches are done (A,) after step ``length``."""
        searches = live.search_index
        best_live = live.score.amax(1)
        best_reachable = bound(best_live, length, self.limit[searches], self.longest, self.config)
        done = best_reachable <= self.normalized[searches, -1]
        if self.config.stop == "first" or self.beam == 1:
            done |= self.count[searches] >= self.n_best
        elif self.config.stop == "beam":
            done |= self.count[searches] >= self.beam
        return done

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of each sentence, best first."""
        searches = zip(
            self.ids.tolist(),
            self.length.tolist(),
            self.score.tolist(),
            self.normalized.tolist(),
            strict=True,
        )
        hypotheses = [
            [
                Hypothesis(ids[: length - 1], score, normalized)
                for ids, length, score, normalized in zip(*rows, strict=True)
                if score > NEG_INF
            ]
            for rows in searches
        ]
        groups = self.config.groups
        if groups == 1:
            return hypotheses
        return [
            _merged(hypotheses[i : i + groups], self.config.n_best)
            for i in range(0, len(hypotheses), groups)
        ]


def _merged(groups: Sequence[Sequence[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Return the best hypotheses of all groups, without duplicates."""
    unique: dict[tuple[int, ...], Hypothesis] = {}
    hypotheses = [hypothesis for group in groups for hypothesis in group]
    for hypothesis in sorted(hypotheses, key=lambda hypothesis: -hypothesis.normalized):
        unique.setdefault(tuple(hypothesis.ids), hypothesis)
    return list(unique.values())[:n_best]
