"""One model or an ensemble as one distribution over the next token."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fusetk.models.seq2seq import Seq2Seq, State
from fusetk.nn.tree import select


class Scorer:
    """Models with one target vocabulary that read the same hypotheses.

    ``mean`` is "probability" (log of the mean of probabilities) or "log" (mean of log-probabilities, not renormalised).
    """

    def __init__(self, models: Sequence[Seq2Seq], mean: str = "probability"):
        self.models = list(models)
        self.mean = mean

    def start(self, src: Tensor, src_mask: Tensor) -> list[State]:
        """Every model's state before the first token; ids and mask (B, S)."""
        return [model.start(model.encode(src, src_mask)) for model in self.models]

    def step(self, tokens: Tensor, states: Sequence[State]) -> tuple[Tensor, Tensor, list[State]]:
        """Read one token of each hypothesis (R,).

        Returns values (R, V) and their normalisers (R, 1), both float32: value - normaliser is a log-probability. The two are
        apart so that nobody has to subtract over the whole vocabulary. The caller may write to the values.
        """
        values, grown = [], []
        for model, state in zip(self.models, states, strict=True):
            features, state = model.decode(tokens[:, None], state)
            values.append(model.output(features[:, 0]).float())
            grown.append(state)
        if len(values) == 1:
            return values[0], values[0].logsumexp(-1, keepdim=True), grown
        together = torch.stack([value.log_softmax(-1) for value in values])
        mean = together.mean(0) if self.mean == "log" else together.logsumexp(0) - math.log(len(values))
        return mean, mean.new_zeros(len(mean), 1), grown

    def select(self, states: Sequence[State], hypotheses: Tensor | None, sentences: Tensor | None) -> list[State]:
        """States with those rows of what moves with hypotheses, and those of what is fixed for a sentence; None keeps all."""
        return [
            State(
                state.fixed if sentences is None else select(state.fixed, sentences),
                state.moving if hypotheses is None else select(state.moving, hypotheses),
                state.step,
            )
            for state in states
        ]
