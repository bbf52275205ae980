"""One model or an ensemble as one distribution over the next token."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk import trace
from fusetk.decoding import alignment
from fusetk.models.seq2seq import Seq2Seq, State
from fusetk.nn.nested import select


class Step(NamedTuple):
    """What models say of the next token of R hypotheses."""

    values: Tensor  # (R, V) float32; value - normaliser is a log-probability. The caller may write to it
    normaliser: Tensor  # (R, 1) apart, so that nobody has to subtract over the whole vocabulary
    states: list[State]
    attention: Tensor | None  # (R, S) to source positions, the mean over models


class Scorer:
    """Models with one target vocabulary that read the same hypotheses.

    ``mean`` is "probability" (log of the mean of probabilities) or "log" (mean of log-probabilities, not renormalised).
    ``attention`` that is wanted, if any.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        mean: str = "probability",
        attention: alignment.Which | None = None,
    ):
        self.models = list(models)
        self.mean = mean
        self.attention = attention

    def start(self, src: Tensor, src_mask: Tensor) -> list[State]:
        """Every model's state before the first token; ids and mask (B, S)."""
        self.positions = src.shape[1]
        return [model.start(model.encode(src, src_mask)) for model in self.models]

    def step(self, tokens: Tensor, states: Sequence[State]) -> Step:
        """Read one token of each hypothesis (R,)."""
        values, grown, attention = [], [], []
        for model, state in zip(self.models, states, strict=True):
            listening: AbstractContextManager[dict] = (
                nullcontext({}) if self.attention is None else trace.listen(alignment.PATTERN)
            )
            with listening as found:
                features, state = model.decode(tokens[:, None], state)
            values.append(model.output(features[:, 0]).float())
            grown.append(state)
            if self.attention is not None:
                attention.append(
                    alignment.attention(found, self.attention, len(tokens), self.positions)[:, 0]
                )
        attended = torch.stack(attention).mean(0) if attention else None
        if len(values) == 1:
            return Step(values[0], values[0].logsumexp(-1, keepdim=True), grown, attended)
        together = torch.stack([value.log_softmax(-1) for value in values])
        mean = (
            together.mean(0)
            if self.mean == "log"
            else together.logsumexp(0) - math.log(len(values))
        )
        return Step(mean, mean.new_zeros(len(mean), 1), grown, attended)

    def select(
        self, states: Sequence[State], hypotheses: Tensor | None, sentences: Tensor | None
    ) -> list[State]:
        """States with those rows of what moves with hypotheses, and those of what is fixed for a sentence; None keeps all."""
        return [
            State(
                state.per_sentence if sentences is None else select(state.per_sentence, sentences),
                state.per_hypothesis
                if hypotheses is None
                else select(state.per_hypothesis, hypotheses),
                state.step,
            )
            for state in states
        ]
