"""Lexical constraints: phrases that a translation must contain, in the given order.

The number of constraint tokens that a hypothesis has met is between 0 and C. The next token of the
current phrase adds 1 to it. Any other token breaks the phrase off. Then only the longest beginning
of the phrase with which the hypothesis ends is still met (Knuth, Morris and Pratt 1977). Any tokens
may come between phrases. At C all phrases are met. Phrases do not overlap.

A phrase begins at the start of a word. So its first token does not count inside a word, that is,
directly after a token in ``continued``, which the next token continues. For example, ``bobcat``
with the subword ``cat`` does not meet the phrase ``cat``.

In the search, the hypotheses with the same number of met tokens form a bank (dynamic beam
allocation, Post and Vilar 2018): see ``fusetk.decoding.beam``.
"""

from collections.abc import Collection, Container, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.data.vocab import PAD
from fusetk.nn.nested import map_tensors

Phrases = Sequence[Sequence[int]]


class _Tables(NamedTuple):
    """The transitions between the numbers of met tokens, 0 .. C, of U searches."""

    total: Tensor  # (U,) constraint tokens
    next_token: Tensor  # (U, C + 1)
    phrase_start: Tensor  # (U, C + 1) met tokens at the start of the phrase of the next token
    distinct: Tensor  # (U, N) the distinct tokens, -1 where there are fewer than N
    # (U, C + 1, N + 1) met tokens after each distinct token or (last column) any other token
    num_met_after: Tensor


class Constraints:
    """The constraints of U searches.

    In the methods, ``search_index`` (A,) lists the searches, and ``num_met`` (A, W) has the number
    of met tokens of their hypotheses.
    """

    def __init__(
        self,
        phrases: Sequence[Phrases],
        continued: Collection[int],
        groups: int,
        device: torch.device,
    ):
        """``phrases`` of each sentence; each sentence has ``groups`` adjacent searches.

        The token after a token in ``continued`` continues a word.
        """
        self.tables: _Tables = map_tensors(
            lambda table: table.to(device).repeat_interleave(groups, 0),
            _sentence_tables(phrases, continued),
        )
        self.banks = self.tables.next_token.shape[1]
        self.continued = torch.tensor(sorted(continued), device=device, dtype=torch.long)

    def inside_word(self, prefix: Tensor) -> Tensor:
        """Return whether (A, W) the token after each prefix (A, W, t) continues a word."""
        return torch.isin(prefix[:, :, -1], self.continued)

    def next(self, search_index: Tensor, num_met: Tensor, is_inside: Tensor) -> Tensor:
        """Return the next token (A, W) of the current phrase.

        It is PAD if all phrases are met, or if a phrase would begin inside a word (``is_inside``
        (A, W) is True).
        """
        at_start = num_met == self.tables.phrase_start[search_index].gather(1, num_met)
        token = self.tables.next_token[search_index].gather(1, num_met)
        return token.masked_fill(is_inside & at_start, PAD)

    def advance(
        self, search_index: Tensor, num_met: Tensor, token: Tensor, is_inside: Tensor
    ) -> Tensor:
        """Return the number of met tokens (A, C) after one more ``token`` (A, C).

        ``is_inside`` (A, C) is True where that token continues a word.
        """
        same = token[:, :, None] == self.tables.distinct[search_index][:, None]  # (A, C, N)
        other = ~same.any(-1, keepdim=True)
        column = torch.cat((same, other), -1).to(torch.uint8).argmax(-1)
        at_start = num_met == self.tables.phrase_start[search_index].gather(1, num_met)
        after = self.tables.num_met_after[search_index[:, None], num_met, column]
        return torch.where(is_inside & at_start, num_met, after)

    def num_left(self, search_index: Tensor, num_met: Tensor) -> Tensor:
        """Return the number of tokens (A, W) that are not met yet."""
        return self.tables.total[search_index][:, None] - num_met

    def must_continue(self, search_index: Tensor, num_met: Tensor, room: Tensor) -> Tensor:
        """Return for which hypotheses (A, W) the next token of the phrase must come now.

        ``room`` (A,) is the number of remaining positions. Any other token could break the phrase
        off. Then the tokens that are not met would need more than ``room`` - 1 positions.
        """
        start = self.tables.phrase_start[search_index].gather(1, num_met)
        left_if_broken_off = self.tables.total[search_index][:, None] - start
        is_left = self.num_left(search_index, num_met) > 0
        return is_left & (left_if_broken_off > room[:, None] - 1)


def num_tokens_to_meet(phrases: Phrases, prefix: Sequence[int], continued: Collection[int]) -> int:
    """Return the least number of tokens after ``prefix`` with which all phrases are met."""
    constraints = Constraints([phrases], continued, 1, torch.device("cpu"))
    search_index = torch.zeros(1, dtype=torch.long)
    num_met = torch.zeros(1, 1, dtype=torch.long)
    is_inside = torch.zeros(1, 1, dtype=torch.bool)
    for token in prefix:
        num_met = constraints.advance(search_index, num_met, torch.tensor([[token]]), is_inside)
        is_inside.fill_(token in continued)
    num_tokens = 0
    while constraints.num_left(search_index, num_met) > 0:
        next_token = int(constraints.next(search_index, num_met, is_inside))
        if next_token != PAD:  # PAD: another token must end the word first
            num_met = num_met + 1
        is_inside.fill_(next_token in continued)
        num_tokens += 1
    return num_tokens


def _sentence_tables(phrases: Sequence[Phrases], continued: Container[int]) -> _Tables:
    """Return the tables of one search for each sentence."""
    max_tokens = max((sum(map(len, sentence_phrases)) for sentence_phrases in phrases), default=0)
    max_distinct = max(
        (len(_distinct_tokens(sentence_phrases)) for sentence_phrases in phrases), default=0
    )
    sentences = len(phrases)
    total = torch.zeros(sentences, dtype=torch.long)
    next_token = torch.full((sentences, max_tokens + 1), PAD)
    phrase_start = torch.zeros_like(next_token)
    distinct = torch.full((sentences, max_distinct), -1)
    num_met_after = torch.zeros(sentences, max_tokens + 1, max_distinct + 1, dtype=torch.long)
    for sentence, sentence_phrases in enumerate(phrases):
        tokens = _distinct_tokens(sentence_phrases)
        column = {token: i for i, token in enumerate(tokens)}
        distinct[sentence, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        start = 0
        for phrase in sentence_phrases:
            num_met_after[sentence, start : start + len(phrase)] = start
            for met, after in enumerate(_automaton(phrase, continued)):
                state = (sentence, start + met)
                next_token[state] = phrase[met]
                phrase_start[state] = start
                for token, number in after.items():
                    num_met_after[(*state, column[token])] = start + number
            start += len(phrase)
        total[sentence] = start
        phrase_start[sentence, start] = start
        num_met_after[sentence, start] = start
    return _Tables(total, next_token, phrase_start, distinct, num_met_after)


def _distinct_tokens(phrases: Phrases) -> list[int]:
    return sorted({token for phrase in phrases for token in phrase})


def _automaton(phrase: Sequence[int], continued: Container[int]) -> list[dict[int, int]]:
    """Return, for each number of met tokens of a phrase, how many are met after one more token.

    Tokens after which none is met are left out. The phrase begins at the start of a word.
    """
    after: list[dict[int, int]] = []
    border = 0  # length of the longest beginning of the phrase with which phrase[1:met] ends
    for met, token in enumerate(phrase):
        # A mismatch continues with the border, which has met the last tokens as well.
        row = dict(after[border]) if met else {}
        if met and border == 0 and phrase[met - 1] in continued:
            row.pop(phrase[0], None)  # no phrase begins inside a word
        next_border = row.get(token, 0) if met else 0
        row[token] = met + 1
        after.append(row)
        border = next_border
    return after
