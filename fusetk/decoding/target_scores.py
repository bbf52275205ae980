"""Scores of given translations by forced decoding."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fusetk import trace
from fusetk.data.batch import Batch, pad
from fusetk.data.vocab import BOS, EOS
from fusetk.decoding import alignment
from fusetk.decoding.alignment import AttentionHeads
from fusetk.decoding.config import FORCED_BATCH_TOKENS
from fusetk.decoding.ensemble import EQUAL_MEAN, EnsembleMean
from fusetk.decoding.token_mask import max_positions
from fusetk.errors import DataError, Diverged
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.output import OutputProjection, log_normalizer, rows_in_piece
from fusetk.nn.weightnorm import NormedLinear

IdPair = tuple[Sequence[int], Sequence[int]]
"""Source ids with EOS, and target ids without BOS and EOS."""


class TargetScores(NamedTuple):
    """The models' scores of a given translation of T tokens."""

    scores: list[float]  # natural-log probability of each token, then of EOS
    # (T + 1, S) float32; S source positions include EOS; each row sums to 1
    attention: np.ndarray | None


@torch.inference_mode()
def score_targets(
    models: Sequence[Seq2Seq],
    pairs: Sequence[IdPair],
    mean: EnsembleMean = EQUAL_MEAN,
    batch_tokens: int = FORCED_BATCH_TOKENS,
    attention: AttentionHeads | None = None,
    on_batch: Callable[[int], None] = lambda pairs: None,
) -> list[TargetScores]:
    """Score each pair.

    ``models`` must be in evaluation mode. Several models are an ensemble, which ``mean`` averages;
    the attention is the unweighted mean over the models. The sum of a pair's scores is the score of
    that translation in a search. A batch has at most ``batch_tokens`` positions, including padding,
    or one pair. ``on_batch`` is called with the number of pairs after each batch. Raises DataError
    for a pair that exceeds the positions of the models, ConfigError for attention heads that a
    model does not have, and Diverged if a probability is NaN.
    """
    check_length(models, pairs)
    device = next(models[0].parameters()).device
    results: dict[int, TargetScores] = {}
    lengths = [(len(source), len(target) + 1) for source, target in pairs]
    for indices in pair_batches(lengths, batch_tokens):
        batch = batch_of_ids([pairs[i] for i in indices]).to(device)
        passes = [_forward(model, batch, attention) for model in models]
        scores = mean(torch.stack([model_scores for model_scores, _ in passes])).cpu()  # (N,)
        if scores.isnan().any():
            raise Diverged()
        weights = [model_weights for _, model_weights in passes if model_weights is not None]
        mean_weights = torch.stack(weights).mean(0).cpu().numpy() if weights else None
        target_lengths = [lengths[i][1] for i in indices]
        split = zip(indices, scores.split(target_lengths), strict=True)
        for row, (i, token_scores) in enumerate(split):
            source_length, target_length = lengths[i]
            cut = None
            if mean_weights is not None:
                cut = mean_weights[row, :target_length, :source_length].copy()
            results[i] = TargetScores(token_scores.tolist(), cut)
        on_batch(len(indices))
    return [results[i] for i in range(len(pairs))]


def _forward(
    model: Seq2Seq, batch: Batch, heads: AttentionHeads | None
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities (N,) of the target tokens without padding, and attention (B, T, S).

    The attention is None if ``heads`` is None.
    """
    weights = None
    if heads is None:
        features = model(batch.src, batch.src_mask, batch.tgt_in, lengths=batch.lengths)
    else:
        with trace.listen(alignment.PATTERN) as recorded:
            features = model(batch.src, batch.src_mask, batch.tgt_in, lengths=batch.lengths)
        weights = alignment.attention(recorded, heads, *batch.src.shape)
    features = features.flatten(0, 1)[batch.target_index]
    tokens = batch.tgt_out.flatten()[batch.target_index]
    return log_probabilities(model.output, features, tokens), weights


def log_probabilities(
    output: OutputProjection | NormedLinear, features: Tensor, tokens: Tensor
) -> Tensor:
    """Return the natural-log probabilities (N,), float32, of tokens (N,) given features (N, D)."""
    rows = rows_in_piece(output.out_features, features.device)
    log_probs = []
    for some_features, some_tokens in zip(features.split(rows), tokens.split(rows), strict=True):
        logits = output(some_features).float()
        token_logits = logits.gather(1, some_tokens[:, None])
        log_probs.append((token_logits - log_normalizer(logits))[:, 0])
    return torch.cat(log_probs)


def batch_of_ids(pairs: Sequence[IdPair]) -> Batch:
    """Return the pairs as a batch."""
    src, src_mask = pad([source for source, _ in pairs])
    tgt_in, tgt_mask = pad([[BOS, *target] for _, target in pairs])
    tgt_out, _ = pad([[*target, EOS] for _, target in pairs])
    return Batch.of(src, src_mask, tgt_in, tgt_out, tgt_mask)


def pair_batches(lengths: Sequence[tuple[int, int]], max_positions: int) -> Iterator[list[int]]:
    """Yield batches of the indices of pairs with the given (source, target) lengths.

    Pairs of similar length share a batch. A batch has at most ``max_positions`` positions,
    including padding, or one pair.
    """
    batch: list[int] = []
    longest = (0, 0)
    for i in sorted(range(len(lengths)), key=lambda i: (max(lengths[i]), lengths[i])):
        longer = max(longest[0], lengths[i][0]), max(longest[1], lengths[i][1])
        if batch and (len(batch) + 1) * sum(longer) > max_positions:
            yield batch
            batch = []
            longer = lengths[i]
        batch.append(i)
        longest = longer
    if batch:
        yield batch


def check_length(models: Sequence[Seq2Seq], pairs: Sequence[IdPair]) -> None:
    """Raise DataError if a pair of ``score_targets`` exceeds the positions of the models."""
    positions = max_positions(models)
    if positions is None:
        return
    longest = {
        "source": max((len(source) - 1 for source, _ in pairs), default=0),
        "target": max((len(target) for _, target in pairs), default=0),
    }
    for side, length in longest.items():
        if length >= positions:
            raise DataError(
                f"a {side} sentence of {length} tokens is too long: the model has {positions} "
                "positions, one of them for EOS"
            )
