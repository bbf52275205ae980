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


class NextToken(NamedTuple):
    """The models' scores of the next token of R hypotheses, and the models' states."""

    logits: Tensor  # (R, V) float32; logits - log_z are log-probabilities. The caller may change it
    log_z: Tensor  # (R, 1); separate, which saves a subtraction over the vocabulary
    states: list[State]
    attention: Tensor | None  # (R, S), attention to source positions, mean over models


class Scorer:
    """Models with one target vocabulary that read the same hypotheses.

    ``mean`` is "probability" (log of the mean probability) or "log" (mean log-probability, not
    renormalised). ``attention`` selects the heads whose attention is returned; with None no
    attention is returned.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        mean: str = "probability",
        attention: alignment.AttentionHeads | None = None,
    ):
        self.models = list(models)
        self.mean = mean
        self.attention = attention

    def start(self, src: Tensor, src_mask: Tensor) -> list[State]:
        """Return every model's state before the first token, for ids and mask (B, S)."""
        self.positions = src.shape[1]
        return [model.start(model.encode(src, src_mask)) for model in self.models]

    def step(self, tokens: Tensor, states: Sequence[State]) -> NextToken:
        """Read one token of each hypothesis (R,) and return the scores of the next token."""
        logits = []
        next_states = []
        attention = []
        for model, state in zip(self.models, states, strict=True):
            listening: AbstractContextManager[dict] = nullcontext({})
            if self.attention is not None:
                listening = trace.listen(alignment.PATTERN)
            with listening as recorded:
                features, state = model.decode(tokens[:, None], state)
            logits.append(model.output(features[:, 0]).float())
            next_states.append(state)
            if self.attention is not None:
                weights = alignment.attention(recorded, self.attention, len(tokens), self.positions)
                attention.append(weights[:, 0])
        mean_attention = torch.stack(attention).mean(0) if attention else None
        if len(logits) == 1:
            log_z = logits[0].logsumexp(-1, keepdim=True)
            return NextToken(logits[0], log_z, next_states, mean_attention)
        log_probs = torch.stack([model_logits.log_softmax(-1) for model_logits in logits])
        if self.mean == "log":
            mean = log_probs.mean(0)
        else:
            mean = log_probs.logsumexp(0) - math.log(len(logits))
        return NextToken(mean, mean.new_zeros(len(mean), 1), next_states, mean_attention)

    def select(
        self, states: Sequence[State], hypotheses: Tensor | None, sentences: Tensor | None
    ) -> list[State]:
        """Select the rows of hypotheses and of sentences in all states; None keeps all rows."""
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
