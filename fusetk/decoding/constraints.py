"""Phrases that a translation must contain, in the order in which they are given.

How many of the phrases' tokens a hypothesis has met is a number from 0 to C. The next token of the phrase that is under way makes it
one more; another one breaks the phrase off, and what counts then is the longest beginning of it that the hypothesis still ends in (Knuth,
Morris and Pratt 1977). What stands between phrases is free; at C all is met. Phrases do not overlap.

A phrase begins where a word does: its first token does not count behind a token that the next one continues (``inside``), so that of
``a cat`` nothing is met in ``a bobcat``, of which ``cat`` is a subword.

In the search hypotheses with equal numbers form a bank (Post and Vilar 2018, dynamic beam allocation): see ``fusetk.decoding.beam``.
"""

from collections.abc import Container, Sequence

import torch
from torch import Tensor

from fusetk.data.vocab import PAD

Phrases = Sequence[Sequence[int]]


class Constraints:
    """Of U searches; ``unit`` (A,) below says which of them are asked about, ``met`` (A, W) how many tokens their hypotheses have met."""

    def __init__(
        self, wanted: Sequence[Phrases], inside: Container[int], groups: int, device: torch.device
    ):
        """``wanted`` in each sentence; ``groups`` searches stand together for one. Behind tokens ``inside`` a word goes on."""
        most = max((sum(map(len, phrases)) for phrases in wanted), default=0)
        kinds = max((len(_tokens(phrases)) for phrases in wanted), default=0)
        total, tokens = (
            torch.zeros(len(wanted), dtype=torch.long),
            torch.full((len(wanted), most + 1), PAD),
        )
        begun, seen = torch.zeros_like(tokens), torch.full((len(wanted), kinds), -1)
        after = torch.zeros(
            len(wanted), most + 1, kinds + 1, dtype=torch.long
        )  # the last column: any other token
        for unit, phrases in enumerate(wanted):
            distinct = _tokens(phrases)
            seen[unit, : len(distinct)] = torch.tensor(distinct, dtype=torch.long)
            start = 0
            for phrase in phrases:
                for met, token in enumerate(phrase):
                    tokens[unit, start + met], begun[unit, start + met] = token, start
                    row = [
                        start + _kept([*phrase[:met], other], phrase, inside) for other in distinct
                    ]
                    after[unit, start + met] = torch.tensor(
                        [*row, *[start] * (kinds + 1 - len(row))]
                    )
                start += len(phrase)
            total[unit], begun[unit, start], after[unit, start] = start, start, start
        found = (
            tensor.to(device).repeat_interleave(groups, 0)
            for tensor in (total, tokens, begun, seen, after)
        )
        self.total, self.tokens, self.begun, self.seen, self.after = found
        self.banks = most + 1

    def next(self, unit: Tensor, met: Tensor, inside: Tensor) -> Tensor:
        """The next token (A, W) of the phrase under way; PAD where all is met, and where a phrase would begin ``inside`` (A, W) a word."""
        begins = met == self.begun[unit].gather(1, met)
        return self.tokens[unit].gather(1, met).masked_fill(inside & begins, PAD)

    def advance(self, unit: Tensor, met: Tensor, token: Tensor, inside: Tensor) -> Tensor:
        """What is met (A, C) after one more ``token`` (A, C), where it goes on with a word if ``inside`` (A, C)."""
        same = token[:, :, None] == self.seen[unit][:, None]  # (A, C, kinds)
        other = ~same.any(-1, keepdim=True)
        column = torch.cat((same, other), -1).to(torch.uint8).argmax(-1)
        begun = self.begun[unit].gather(1, met)
        return torch.where(inside & (met == begun), met, self.after[unit[:, None], met, column])

    def left(self, unit: Tensor, met: Tensor) -> Tensor:
        """How many tokens (A, W) are still to come."""
        return self.total[unit][:, None] - met

    def pressing(self, unit: Tensor, met: Tensor, room: Tensor) -> Tensor:
        """Where (A, W) the next token must come now: another one, if it breaks the phrase off, would leave more to come than ``room``
        (A,) - 1 places have.
        """
        broken_off = self.total[unit][:, None] - self.begun[unit].gather(1, met)
        return (self.left(unit, met) > 0) & (broken_off > room[:, None] - 1)


def _tokens(phrases: Phrases) -> list[int]:
    return sorted({token for phrase in phrases for token in phrase})


def _kept(tokens: Sequence[int], phrase: Sequence[int], inside: Container[int]) -> int:
    """The length of the longest beginning of ``phrase`` that ``tokens``, the first of which begins a word, end in."""
    starts = (i for i in range(len(tokens)) if i == 0 or tokens[i - 1] not in inside)
    return next(
        (len(tokens) - i for i in starts if list(tokens[i:]) == list(phrase[: len(tokens) - i])), 0
    )
