"""The tokens that may come next: lengths, special tokens, repetitions, prefixes and phrases."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.data.vocab import BOS, EOS, PAD, UNK
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.constraints import Constraints, Phrases, num_tokens_to_meet
from fusetk.models.seq2seq import Seq2Seq

NEG_INF = float("-inf")  # the score of a forbidden token, and of an empty place in a beam


class EncodedRequest(NamedTuple):
    """The requirements for the translation of one sentence, as ids without BOS and EOS."""

    prefix: Sequence[int] = ()  # the translation begins with it
    constraints: Phrases = ()  # the translation contains these phrases, in this order
    line: int = 0  # the number of the sentence, for sampling
    continued: frozenset[int] = frozenset()  # the token after one of these continues a word

    @property
    def num_required(self) -> int:
        """The number of tokens, without EOS, of the shortest translation that is allowed."""
        if not self.constraints:
            return len(self.prefix)
        left = num_tokens_to_meet(self.constraints, self.prefix, self.continued)
        return len(self.prefix) + left


def unrestricted(sentences: int) -> list[EncodedRequest]:
    """Return requests without requirements, with the numbers 1, 2, ... of the sentences."""
    return [EncodedRequest(line=line) for line in range(1, sentences + 1)]


class SimpleRules(NamedTuple):
    """The allowed next tokens of R hypotheses, if most rules are the same for all of them."""

    forbidden: Tensor  # (F,) tokens that no hypothesis may get
    only: Tensor | None  # (R,) the only token of each hypothesis, forbidden or not; -1: several


class TokenMask:
    """The tokens that U searches may produce next; each search belongs to a sentence.

    In the methods, ``search_index`` (A,) lists the searches that are not done, and ``logits`` has
    R = A * W rows, W hypotheses for each of them.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        src_mask: Tensor,
        config: SearchConfig,
        requests: Sequence[EncodedRequest] | None,
    ):
        """``src_mask`` (B, S) includes EOS. The groups of a sentence are adjacent searches."""
        requests = requests or unrestricted(len(src_mask))
        minima, limits = length_bounds(models, src_mask, config, requests)
        self.forbidden = [PAD, BOS, UNK] if config.forbid_unknown else [PAD, BOS]
        self.ngram = config.no_repeat_ngram
        self.longest = max(limits, default=0)
        self._limits = set(limits)
        self._smallest_minimum = min(minima, default=0)
        self._largest_minimum = max(minima, default=0)

        def per_search(values: Sequence[int] | Sequence[list[int]]) -> Tensor:
            tensor = torch.tensor(values, device=src_mask.device, dtype=torch.long)
            return tensor.repeat_interleave(config.groups, 0)

        self.limit = per_search(limits)  # (U,), includes EOS
        self.minimum = per_search(minima)  # (U,), excludes EOS
        self.prefix = None
        if any(request.prefix for request in requests):
            size = max(len(request.prefix) for request in requests)
            rows = [[*request.prefix, *[-1] * (size - len(request.prefix))] for request in requests]
            self.prefix = per_search(rows)  # (U, P)
        self.constraints = None
        if any(request.constraints for request in requests):
            continued = frozenset().union(*(request.continued for request in requests))
            self.constraints = Constraints(
                [request.constraints for request in requests],
                continued,
                config.groups,
                src_mask.device,
            )

    def apply(
        self,
        logits: Tensor,
        search_index: Tensor,
        prefix: Tensor,
        length: int,
        num_met: Tensor | None,
    ) -> None:
        """Set the logits (R, V) of forbidden tokens to -inf, in place.

        The hypotheses ``prefix`` (A, W, length) begin with BOS. Their next token has the number
        ``length``. ``num_met`` (A, W) is that of ``Constraints``. The allowed tokens keep their
        logits, so the probability of forbidden tokens is not redistributed. The next token of a
        phrase and a forced token are never forbidden.
        """
        phrase_token = None
        if num_met is not None and self.constraints is not None:
            is_inside = self.constraints.inside_word(prefix)
            phrase_token = self.constraints.next(search_index, num_met, is_inside)
        width = prefix.shape[1]
        forced = self._forced(search_index, length, width, num_met, phrase_token)
        if forced is not None:
            is_forced = (forced >= 0)[:, None]
            forced = forced.clamp(min=PAD)[:, None]
            # A hypothesis that cannot contain its phrases is forced to PAD: it gets no token.
            forced_logits = logits.gather(1, forced).masked_fill(forced == PAD, NEG_INF)
        if phrase_token is not None:
            phrase_token = phrase_token.flatten()[:, None]
            phrase_logits = logits.gather(1, phrase_token)
            phrase_logits = phrase_logits.masked_fill(phrase_token == PAD, NEG_INF)
        for token in self.forbidden:
            logits[:, token] = NEG_INF
        if length <= self._smallest_minimum:
            logits[:, EOS] = NEG_INF
        elif length <= self._largest_minimum:
            too_short = (self.minimum[search_index] >= length).repeat_interleave(width)
            logits[:, EOS].masked_fill_(too_short, NEG_INF)
        if num_met is not None and self.constraints is not None:
            self._leave_room(logits, search_index, length, num_met)
        if self.ngram:
            _forbid_repetition(logits, prefix.flatten(0, 1)[:, 1:], self.ngram)
        if phrase_token is not None:
            logits.scatter_(1, phrase_token, phrase_logits)
        if forced is not None:
            logits.masked_fill_(is_forced, NEG_INF).scatter_(1, forced, forced_logits)

    @property
    def is_simple(self) -> bool:
        """Whether ``simple_rules`` returns the rules of all steps."""
        one_minimum = self._smallest_minimum == self._largest_minimum
        return self.constraints is None and not self.ngram and one_minimum

    def simple_rules(self, search_index: Tensor, width: int, length: int) -> SimpleRules | None:
        """Return the rules that ``apply`` enforces for the tokens with the number ``length``.

        Each search has ``width`` hypotheses. Returns None if the rules need more than the fields of
        ``SimpleRules``.
        """
        some_are_too_short = self._smallest_minimum < length <= self._largest_minimum
        if some_are_too_short or self.constraints is not None or self.ngram:
            return None
        too_short = length <= self._smallest_minimum
        forbidden = [*self.forbidden, EOS] if too_short else self.forbidden
        only = self._forced(search_index, length, width, None, None)
        return SimpleRules(search_index.new_tensor(forbidden), only)

    def _leave_room(
        self, logits: Tensor, search_index: Tensor, length: int, num_met: Tensor
    ) -> None:
        """Reserve enough positions for the phrases that are not met.

        Forbid EOS until all phrases are met. If a phrase must begin at the next position, forbid
        the tokens that the next token would continue.
        """
        assert self.constraints is not None
        unmet = self.constraints.num_left(search_index, num_met).flatten() > 0
        logits[:, EOS].masked_fill_(unmet, NEG_INF)
        room = self.limit[search_index] - length - 1
        must_begin = self.constraints.must_continue(search_index, num_met, room).flatten()
        continued = self.constraints.continued
        logits[:, continued] = logits[:, continued].masked_fill(must_begin[:, None], NEG_INF)

    def _forced(
        self,
        search_index: Tensor,
        length: int,
        width: int,
        num_met: Tensor | None,
        phrase_token: Tensor | None,
    ) -> Tensor | None:
        """Return the only token (R,) that each hypothesis may get; -1 if it may get several tokens.

        A search has ``width`` hypotheses. ``phrase_token`` (A, W) holds the next tokens of phrases.
        PAD means that the hypothesis cannot contain its phrases, so it may get no token. Returns
        None if all hypotheses may get several tokens.
        """
        forced = None
        if length in self._limits:
            eos_or_free = torch.where(self.limit[search_index] == length, EOS, -1)
            forced = eos_or_free[:, None].expand(-1, width)
        if num_met is not None and phrase_token is not None and self.constraints is not None:
            room = self.limit[search_index] - length
            must_continue = self.constraints.must_continue(search_index, num_met, room)
            forced = torch.where(must_continue, phrase_token, -1 if forced is None else forced)
        if self.prefix is not None and length <= self.prefix.shape[1]:
            token = self.prefix[search_index, length - 1][:, None].expand(-1, width)
            forced = token if forced is None else torch.where(token >= 0, token, forced)
        return None if forced is None else forced.flatten()


def rounded_down(product: float) -> int:
    """Round the product of a factor and a length down.

    Factors such as 0.29 have no exact binary number: 0.29 * 100 is a little less than 29.
    """
    return math.floor(product + 1e-9)


def length_bounds(
    models: Sequence[Seq2Seq],
    src_mask: Tensor,
    config: SearchConfig,
    requests: Sequence[EncodedRequest],
) -> tuple[list[int], list[int]]:
    """Return the minimum length of each translation, without EOS, and the maximum, with EOS.

    The settings give both; ``src_mask`` (B, S) includes EOS. The minimum, a prefix and phrases may
    raise the maximum. The maximum never exceeds the number of positions of the models.
    """
    positions = max_positions(models)
    minima = []
    limits = []
    for length, request in zip((src_mask.sum(1) - 1).tolist(), requests, strict=True):
        minimum = max(config.min_length, rounded_down(config.min_length_factor * length))
        maximum = rounded_down(config.max_length_factor * length) + config.max_length_extra
        limit = max(maximum, minimum, request.num_required) + 1
        minima.append(minimum)
        limits.append(limit if positions is None else min(limit, positions))
    return minima, limits


def max_positions(models: Sequence[Seq2Seq]) -> int | None:
    """Return the number of positions that all models have; None if no model has a limit."""
    positions = [model.max_positions for model in models if model.max_positions is not None]
    return min(positions, default=None)


def _forbid_repetition(logits: Tensor, tokens: Tensor, size: int) -> None:
    """Forbid tokens that would complete an n-gram of ``size`` that ``tokens`` (R, t) contains."""
    if tokens.shape[1] < size:
        return
    ngrams = tokens.unfold(1, size, 1)  # (R, t - size + 1, size)
    last = tokens[:, tokens.shape[1] - size + 1 :]
    repeats = (ngrams[:, :, : size - 1] == last[:, None]).all(-1)
    # PAD is always forbidden, so it is the token for n-grams that are not repeated.
    logits.scatter_(1, torch.where(repeats, ngrams[:, :, -1], PAD), NEG_INF)
