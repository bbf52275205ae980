"""A tiny model, its probabilities, and an exhaustive search.

Each distribution of the model depends on the complete source and the complete prefix.
"""

import itertools
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from fusetk.data.vocab import BOS, EOS
from fusetk.decoding.beam import Hypothesis
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.scores import PENALTIES
from fusetk.models.seq2seq import Memory, Seq2Seq, State
from fusetk.nn.output import OutputProjection


class Echo(Seq2Seq):
    """An untrained recurrent network: h' = tanh(A h + E[token] + M[sentence])."""

    def __init__(
        self,
        vocabulary: int = 6,
        source: int = 8,
        width: int = 12,
        seed: int = 0,
        scale: float = 2.0,
    ):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(torch.randn(vocabulary, width, generator=draw))
        self.source = nn.Parameter(torch.randn(source, width, generator=draw))
        self.recurrent = nn.Parameter(torch.randn(width, width, generator=draw) / width**0.5)
        self.output = OutputProjection(width, vocabulary)
        self.output.weight = nn.Parameter(
            torch.randn(vocabulary, width, generator=draw) * scale / width**0.5
        )
        self.rows: list[
            tuple[int, int]
        ] = []  # rows of fixed and moving state, at every call of decode

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        embedded = self.source[src] * src_mask[:, :, None]
        weights = torch.linspace(1, 2, 64)[: src.shape[1], None]
        return Memory((embedded,), (embedded * weights).sum(1, keepdim=True).tanh(), src_mask)

    def start(self, memory: Memory) -> State:
        top = memory.output[:, 0]
        return State({"top": top}, (torch.zeros_like(top),), 0)

    def decode(self, tgt_in: Tensor, state: State) -> tuple[Tensor, State]:
        top, (hidden,) = state.per_sentence["top"], state.per_hypothesis
        self.rows.append((len(top), len(hidden)))
        top = top.repeat_interleave(len(tgt_in) // len(top), 0)
        features = []
        for token in tgt_in.unbind(1):
            hidden = torch.tanh(hidden @ self.recurrent + self.embedding[token] + top)
            features.append(hidden)
        return torch.stack(features, 1), State(
            state.per_sentence, (hidden,), state.step + tgt_in.shape[1]
        )


def batch(sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return ids padded at the right, and their mask. Each sentence ends with EOS."""
    longest = max(map(len, sentences))
    src = torch.tensor([[*s, *[0] * (longest - len(s))] for s in sentences])
    mask = torch.tensor([[i < len(s) for i in range(longest)] for s in sentences])
    return src, mask


@torch.inference_mode()
def log_probabilities(
    model: Seq2Seq, source: Sequence[int], targets: Sequence[Sequence[int]]
) -> Tensor:
    """Return the scores of targets of the same length, with EOS, by teacher forcing."""
    src, mask = batch([source] * len(targets))
    tgt_in = torch.tensor([[BOS, *t] for t in targets])
    tgt_out = torch.tensor([[*t, EOS] for t in targets])
    logits = model.output(model(src, mask, tgt_in)).double()
    return logits.log_softmax(-1).gather(2, tgt_out[:, :, None])[:, :, 0].sum(1)


def next_scores(model: Seq2Seq, source: Sequence[int], prefix: Sequence[int]) -> list[float]:
    """Return the log-probabilities of all tokens after a prefix.

    They are computed once, so the model must not change.
    """
    return list(_next_scores(model, tuple(source), tuple(prefix)))


@cache
@torch.inference_mode()
def _next_scores(model: Seq2Seq, source: tuple[int, ...], prefix: tuple[int, ...]) -> list[float]:
    features = model(*batch([source]), torch.tensor([[BOS, *prefix]]))
    return model.output(features[0, -1]).double().log_softmax(-1).tolist()


def assert_same(hypotheses: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> None:
    assert [h.ids for h in hypotheses] == [h.ids for h in expected]
    for a, b in zip(hypotheses, expected, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-4)
        assert a.normalized == pytest.approx(b.normalized, abs=1e-4)


def exhaustive(
    model: Seq2Seq, source: Sequence[int], tokens: Sequence[int], limit: int, config: SearchConfig
) -> list[Hypothesis]:
    """Return all sequences of ``min_length`` to ``limit`` - 1 ``tokens``, best first."""
    hypotheses = []
    for length in range(config.min_length, limit):
        targets = list(itertools.product(tokens, repeat=length))
        divisor = PENALTIES[config.penalty](length + 1, config.normalize)
        for target, score in zip(
            targets, log_probabilities(model, source, targets).tolist(), strict=True
        ):
            hypotheses.append(Hypothesis(list(target), score, score / divisor))
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.normalized)
