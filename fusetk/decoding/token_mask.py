"""Which tokens may come next: lengths, marks, repetitions, and what is asked of a single sentence."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.data.vocab import BOS, EOS, PAD, UNK
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.constraints import Constraints, Phrases
from fusetk.models.seq2seq import Seq2Seq

DEAD = float("-inf")  # the score of what cannot be or is over


class Demand(NamedTuple):
    """What is asked of one sentence's translation; ids without marks."""

    prefix: Sequence[int] = ()  # what it begins with
    constraints: Phrases = ()  # what it contains, in this order
    line: int = 0  # the sentence's number, for samples
    inside: frozenset[int] = (
        frozenset()
    )  # tokens that the next one continues: no phrase begins behind them


class Rules:
    """Of U searches, each for a sentence; the R rows of ``values`` below are W hypotheses of each of those in ``unit`` (A,)."""

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        src_mask: Tensor,
        config: SearchConfig,
        demands: Sequence[Demand] | None,
        groups: int = 1,
    ):
        """``src_mask`` (B, S) with end marks; each sentence is searched for by ``groups`` units that stand together."""
        demands = demands or [Demand()] * len(src_mask)
        minima = length_minima(src_mask, config)
        limits = length_limits(models, src_mask, config, demands)
        self.forbidden = [PAD, BOS, UNK] if config.forbid_unknown else [PAD, BOS]
        self.ngram = config.no_repeat_ngram
        self.longest, self.shortest = max(limits, default=0), min(minima, default=0)
        self._last, self._least = {*limits}, max(minima, default=0)

        def of_units(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, device=src_mask.device, dtype=torch.long).repeat_interleave(
                groups
            )

        self.limit, self.minimum = (
            of_units(limits),
            of_units(minima),
        )  # (U,), the end mark counted in the limit only
        self.prefix = None
        if any(demand.prefix for demand in demands):
            most = max(len(demand.prefix) for demand in demands)
            rows = torch.tensor(
                [[*demand.prefix, *[-1] * (most - len(demand.prefix))] for demand in demands],
                device=src_mask.device,
            )
            self.prefix = rows.repeat_interleave(groups, 0)  # (U, P)
        self.constraints = None
        if any(demand.constraints for demand in demands):
            inside = frozenset().union(*(demand.inside for demand in demands))
            self.constraints = Constraints(
                [demand.constraints for demand in demands], inside, groups, src_mask.device
            )
            self._inside = torch.tensor(sorted(inside), device=src_mask.device, dtype=torch.long)

    def apply(
        self, values: Tensor, unit: Tensor, prefix: Tensor, length: int, met: Tensor | None
    ) -> None:
        """Forbid tokens of values (R, V), in place, for hypotheses (A, W, length) that begin with the begin mark and are to get their
        token number ``length``; what is forbidden keeps its probability. ``met`` (A, W) as in ``Constraints``. The next token of a
        phrase, and one that must come, are never forbidden.
        """
        asked = None
        if met is not None and self.constraints is not None:
            asked = self.constraints.next(unit, met, self.inside_word(prefix))
        forced = self._forced(unit, length, prefix.shape[1], met, asked)
        if forced is not None:
            only = (forced >= 0)[:, None]
            forced = forced.clamp(min=PAD)[:, None]
            kept = values.gather(1, forced).masked_fill(~only, DEAD)
        if asked is not None:
            asked = asked.flatten()[:, None]
            wanted = values.gather(1, asked).masked_fill(asked == PAD, DEAD)
        for token in self.forbidden:
            values[:, token] = DEAD
        width = prefix.shape[1]
        if length <= self.shortest:
            values[:, EOS] = DEAD
        elif length <= self._least:
            values[:, EOS].masked_fill_(
                (self.minimum[unit] >= length).repeat_interleave(width), DEAD
            )
        if met is not None and self.constraints is not None:
            self._leave_room(values, unit, length, met)
        if self.ngram:
            _forbid_repetition(values, prefix.flatten(0, 1)[:, 1:], self.ngram)
        if asked is not None:
            values.scatter_(1, asked, wanted)
        if forced is not None:
            values.masked_fill_(only, DEAD).scatter_(1, forced, kept)

    def inside_word(self, prefix: Tensor) -> Tensor:
        """Where (A, W) the next token goes on with a word, after prefixes (A, W, t)."""
        return torch.isin(prefix[:, :, -1], self._inside)

    def _leave_room(self, values: Tensor, unit: Tensor, length: int, met: Tensor) -> None:
        """Forbid the end mark until all phrases are met, and what a word would have to go on from where a phrase must begin next."""
        assert self.constraints is not None
        rows = self.constraints.left(unit, met).flatten() > 0
        values[:, EOS].masked_fill_(rows, DEAD)
        next_pressing = self.constraints.pressing(
            unit, met, self.limit[unit] - length - 1
        ).flatten()
        values[:, self._inside] = values[:, self._inside].masked_fill(next_pressing[:, None], DEAD)

    def _forced(
        self, unit: Tensor, length: int, width: int, met: Tensor | None, asked: Tensor | None
    ) -> Tensor | None:
        """The one token (R,) that each of ``width`` hypotheses may get, -1 where it is free; None where all are. ``asked`` (A, W) are the
        next tokens of phrases.
        """
        forced = None
        if length in self._last:
            forced = torch.where(self.limit[unit] == length, EOS, -1)[:, None].expand(-1, width)
        if met is not None and asked is not None and self.constraints is not None:
            pressing = self.constraints.pressing(unit, met, self.limit[unit] - length)
            forced = torch.where(pressing, asked, -1 if forced is None else forced)
        if self.prefix is not None and length <= self.prefix.shape[1]:
            given = self.prefix[unit, length - 1][:, None].expand(-1, width)
            forced = given if forced is None else torch.where(given >= 0, given, forced)
        return None if forced is None else forced.flatten()


def length_minima(src_mask: Tensor, config: SearchConfig) -> list[int]:
    """The fewest tokens of each sentence's translation, the end mark not counted; ``src_mask`` (B, S) with end marks."""
    return [
        max(config.min_length, int(config.min_length_factor * length))
        for length in (src_mask.sum(1) - 1).tolist()
    ]


def length_limits(
    models: Sequence[Seq2Seq],
    src_mask: Tensor,
    config: SearchConfig,
    demands: Sequence[Demand] | None = None,
) -> list[int]:
    """The longest translation of each sentence, the end mark counted: as the settings say, but as long as the minimum or what is asked
    needs, and no longer than the models have positions.
    """
    positions = [
        limit for model in models if (limit := getattr(model, "max_positions", None)) is not None
    ]
    lengths = (src_mask.sum(1) - 1).tolist()
    limits = [
        int(config.max_length_factor * length) + config.max_length_extra for length in lengths
    ]
    least = length_minima(src_mask, config)
    asked = [
        len(demand.prefix) + sum(map(len, demand.constraints))
        for demand in demands or [Demand()] * len(lengths)
    ]
    limits = [max(several) + 1 for several in zip(limits, least, asked, strict=True)]
    return [min(limit, *positions) for limit in limits] if positions else limits


def _forbid_repetition(values: Tensor, tokens: Tensor, size: int) -> None:
    """Forbid what would end a run of ``size`` tokens that stands in ``tokens`` (R, t) already."""
    if tokens.shape[1] < size:
        return
    runs = tokens.unfold(1, size, 1)  # (R, t - size + 1, size)
    last = tokens[:, tokens.shape[1] - size + 1 :]
    again = (runs[:, :, : size - 1] == last[:, None]).all(-1)
    # What is no repetition forbids the padding once more.
    values.scatter_(1, torch.where(again, runs[:, :, -1], PAD), DEAD)
