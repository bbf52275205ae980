"""Phrases that a translation must contain, in the order in which they are given.

How many of the phrases' tokens a hypothesis has met is a number from 0 to C. The next token of the phrase that is under way makes it
one more; another one breaks the phrase off, and what counts then is the longest beginning of it that the hypothesis still ends in (Knuth,
Morris and Pratt 1977). What stands between phrases is free; at C all is met. Phrases do not overlap.

In the search hypotheses with equal numbers form a bank (Post and Vilar 2018, dynamic beam allocation): see ``fusetk.decoding.beam``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fusetk.data.vocab import PAD

Phrases = Sequence[Sequence[int]]


class Constraints:
    """Of U searches; ``unit`` (A,) below says which of them are asked about, ``met`` (A, W) how many tokens their hypotheses have met."""

    def __init__(self, wanted: Sequence[Phrases], device: torch.device):
        most = max((sum(map(len, phrases)) for phrases in wanted), default=0)
        kinds = max((len(_tokens(phrases)) for phrases in wanted), default=0)
        total, tokens = torch.zeros(len(wanted), dtype=torch.long), torch.full((len(wanted), most + 1), PAD)
        begun, seen = torch.zeros_like(tokens), torch.full((len(wanted), kinds), -1)
        after = torch.zeros(len(wanted), most + 1, kinds + 1, dtype=torch.long)  # the last column: any other token
        for unit, phrases in enumerate(wanted):
            distinct = _tokens(phrases)
            seen[unit, : len(distinct)] = torch.tensor(distinct, dtype=torch.long)
            start = 0
            for phrase in phrases:
                for met, token in enumerate(phrase):
                    tokens[unit, start + met], begun[unit, start + met] = token, start
                    row = [start + _kept([*phrase[:met], other], phrase) for other in distinct]
                    after[unit, start + met] = torch.tensor([*row, *[start] * (kinds + 1 - len(row))])
                start += len(phrase)
            total[unit], begun[unit, start], after[unit, start] = start, start, start
        self.total, self.tokens, self.begun, self.seen, self.after = (t.to(device) for t in (total, tokens, begun, seen, after))

    def next(self, unit: Tensor, met: Tensor) -> Tensor:
        """The next token (A, W) of the phrase under way; PAD where all is met."""
        return self.tokens[unit].gather(1, met)

    def advance(self, unit: Tensor, met: Tensor, token: Tensor) -> Tensor:
        """What is met (A, C) after one more ``token`` (A, C)."""
        same = token[:, :, None] == self.seen[unit][:, None]  # (A, C, kinds)
        other = ~same.any(-1, keepdim=True)
        column = torch.cat((same, other), -1).to(torch.uint8).argmax(-1)
        return self.after[unit[:, None], met, column]

    def left(self, unit: Tensor, met: Tensor) -> Tensor:
        """How many tokens (A, W) are still to come."""
        return self.total[unit][:, None] - met

    def pressing(self, unit: Tensor, met: Tensor, room: Tensor) -> Tensor:
        """Where (A, W) the next token must come now: another one would leave more to come than ``room`` (A,) - 1 places have."""
        broken_off = self.total[unit][:, None] - self.begun[unit].gather(1, met)
        return (self.left(unit, met) > 0) & (broken_off > room[:, None] - 1)


def _tokens(phrases: Phrases) -> list[int]:
    return sorted({token for phrase in phrases for token in phrase})


def _kept(tokens: Sequence[int], phrase: Sequence[int]) -> int:
    """The length of the longest beginning of ``phrase`` that ``tokens`` end in."""
    return next(k for k in range(len(tokens), -1, -1) if list(tokens[len(tokens) - k :]) == list(phrase[:k]))
