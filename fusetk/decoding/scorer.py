"""One model or an ensemble as one distribution over the next token."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusetk import trace
from fusetk.decoding import alignment
from fusetk.decoding.ensemble import EQUAL_MEAN, EnsembleMean
from fusetk.decoding.token_mask import SimpleRules
from fusetk.models.seq2seq import Seq2Seq, State
from fusetk.nn.best_tokens import best_tokens_of_output
from fusetk.nn.exact import is_patched
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.inference_linear import KernelLinear
from fusetk.nn.int8 import Int8Linear, ScreenedLinear
from fusetk.nn.nested import select
from fusetk.nn.output import log_normalizer, rows_in_piece


class NextToken(NamedTuple):
    """The models' scores of the next token of R hypotheses, and the models' states."""

    logits: Tensor  # (R, V) float32; logits - log_z are log-probabilities. The caller may change it
    # (R, 1). Its subtraction from all logits would take time, and searches do not need it.
    log_z: Tensor
    states: list[State]
    attention: Tensor | None  # (R, S), attention to source positions, mean over models


class BestTokens(NamedTuple):
    """The n best next tokens of R hypotheses, and the models' states."""

    logits: Tensor  # (R, n) float32, best first, or -inf; logits - log_z are log-probabilities
    token: Tensor  # (R, n)
    log_z: Tensor  # (R, 1)
    states: list[State]
    attention: Tensor | None  # as in ``NextToken``

    def at_places(self, places: Tensor, count: int) -> "BestTokens":
        """Return ``count`` rows, with the rows of this object at ``places`` (R,).

        The tokens of the other rows have the logit -inf.
        """
        rows = index_of(places, count)
        is_empty = torch.ones(count, 1, dtype=torch.bool).index_fill(0, places, False)
        logits, token, log_z = (tensor[rows] for tensor in (self.logits, self.token, self.log_z))
        attention = None if self.attention is None else self.attention[rows]
        return BestTokens(
            logits.masked_fill(is_empty, -math.inf), token, log_z, self.states, attention
        )


def index_of(places: Tensor, count: int) -> Tensor:
    """Return the inverse (count,) of ``places`` (R,): each place's index; 0 for other places."""
    return places.new_zeros(count).index_copy(0, places, torch.arange(len(places)))


class Scorer:
    """Models with one target vocabulary that read the same hypotheses.

    ``mean`` averages several models. ``attention`` selects the heads whose attention is returned;
    with None no attention is returned.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        mean: EnsembleMean = EQUAL_MEAN,
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
        features, next_states, mean_attention = self._read(tokens, states)
        logits = [
            model.output(output).float()
            for model, output in zip(self.models, features, strict=True)
        ]
        if len(logits) == 1:
            return NextToken(logits[0], log_normalizer(logits[0]), next_states, mean_attention)
        mean = self.mean(torch.stack([model_logits.log_softmax(-1) for model_logits in logits]))
        return NextToken(mean, mean.new_zeros(len(mean), 1), next_states, mean_attention)

    @property
    def supports_best(self) -> bool:
        """Whether ``best`` is usable: with one model, float32 logits, on CPU."""
        output: Any = self.models[0].output
        rounded = isinstance(output, (KernelLinear, Int8Linear))
        probe = torch.empty(0, dtype=torch.float32) if rounded else output.weight
        return len(self.models) == 1 and fused_decoding.usable(probe)

    def best(
        self,
        tokens: Tensor,
        states: Sequence[State],
        rules: SimpleRules,
        count: int,
        scores: bool = True,
    ) -> BestTokens:
        """Read one token of each hypothesis (R,) and return the ``count`` best next tokens.

        If the vocabulary has fewer than ``count`` tokens, all are returned. Only the tokens that
        ``rules`` allows are among the best. The property ``supports_best`` must be True. Without
        ``scores``, ``count`` must be 1, and the logits of tokens and log_z may be 0.
        """
        [features], next_states, attention = self._read(tokens, states)
        output: Any = self.models[0].output
        count = min(count, output.out_features)
        can_screen = isinstance(output, ScreenedLinear) and not is_patched(output)
        if can_screen and not scores and output.screens(features):
            score, token = output.best(features.float(), rules.forbidden, rules.only)
            return BestTokens(score, token, torch.zeros_like(score), next_states, attention)
        rows = rows_in_piece(output.out_features, features.device)
        if isinstance(output, KernelLinear):
            rows = max(1, len(features))  # the kernel divides them
        pieces = features.split(rows)
        only: Sequence[Tensor | None] = [None] * len(pieces)
        if rules.only is not None:
            only = rules.only.split(rows)
        parts = [
            best_tokens_of_output(output, piece, rules.forbidden, piece_only, count)
            for piece, piece_only in zip(pieces, only, strict=True)
        ]
        logits, token, log_z = (
            torch.cat(column) if len(column) > 1 else column[0]
            for column in zip(*parts, strict=True)
        )
        return BestTokens(logits, token, log_z, next_states, attention)

    def _read(
        self, tokens: Tensor, states: Sequence[State]
    ) -> tuple[list[Tensor], list[State], Tensor | None]:
        """Read one token of each hypothesis (R,).

        Return the features (R, D) and the state of each model, and the mean attention (R, S).
        """
        features = []
        next_states = []
        attention = []
        for model, state in zip(self.models, states, strict=True):
            listening: AbstractContextManager[dict] = nullcontext({})
            if self.attention is not None:
                listening = trace.listen(alignment.PATTERN)
            with listening as recorded:
                model_features, state = model.decode(tokens[:, None], state)
            features.append(model_features[:, 0])
            next_states.append(state)
            if self.attention is not None:
                weights = alignment.attention(recorded, self.attention, len(tokens), self.positions)
                attention.append(weights[:, 0])
        return features, next_states, torch.stack(attention).mean(0) if attention else None

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
