"""Forced scoring: models read given translations and say how probable each word of them is."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fusetk import trace
from fusetk.data.batch import Batch, pad
from fusetk.data.vocab import BOS, EOS
from fusetk.decoding import alignment
from fusetk.decoding.alignment import Which
from fusetk.errors import DataError, Diverged
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.output import PIECE, PIECE_GPU, OutputProjection
from fusetk.nn.weightnorm import NormedLinear

BATCH_TOKENS = 8192

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]


class Forced(NamedTuple):
    """What models make of a given translation of T tokens."""

    scores: list[float]  # natural-log probability of each token, then of the end mark
    attention: (
        np.ndarray | None
    )  # (T + 1, S) float32, S source positions, the end mark counted; each row sums to 1


@torch.inference_mode()
def force(
    models: Sequence[Seq2Seq],
    pairs: Pairs,
    ensemble: str = "probability",
    batch_tokens: int = BATCH_TOKENS,
    attention: Which | None = None,
) -> list[Forced]:
    """Read each pair of source ids, the end mark last, and target ids without marks.

    ``models`` in evaluation mode, several are an ensemble as ``decoding.scorer`` defines it by ``ensemble``; of attention the mean over
    them is taken. The sum of a pair's scores is the score of that translation in a search. A batch has at most ``batch_tokens``
    positions, padding counted, or one pair. Raises DataError for a pair that is longer than the models' positions, ConfigError for
    attention that a model does not have, and Diverged if a model returns NaN.
    """
    check_length(models, pairs)
    device = next(models[0].parameters()).device
    found: dict[int, Forced] = {}
    for indices in batches(
        [(len(source), len(target) + 1) for source, target in pairs], batch_tokens
    ):
        batch = collate([pairs[i] for i in indices]).to(device)
        each, weights = zip(*(_read(model, batch, attention) for model in models), strict=True)
        scores = torch.stack(each)  # (models, N)
        mean = (
            scores.mean(0) if ensemble == "log" else scores.logsumexp(0) - math.log(len(scores))
        ).cpu()
        if mean.isnan().any():
            raise Diverged()
        attended = None if attention is None else torch.stack(weights).mean(0).cpu().numpy()
        lengths = [len(pairs[i][1]) + 1 for i in indices]
        for row, (i, mine) in enumerate(zip(indices, mean.split(lengths), strict=True)):
            seen = (
                None if attended is None else attended[row, : len(mine), : len(pairs[i][0])].copy()
            )
            found[i] = Forced(mine.tolist(), seen)
    return [found[i] for i in range(len(pairs))]


def _read(model: Seq2Seq, batch: Batch, which: Which | None) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the real target tokens (N,), and the attention (B, T, S) if it is wanted."""
    if which is None:
        features, weights = model(batch.src, batch.src_mask, batch.tgt_in), None
    else:
        with trace.listen(alignment.PATTERN) as found:
            features = model(batch.src, batch.src_mask, batch.tgt_in)
        weights = alignment.attention(found, which, *batch.src.shape)
    return log_probabilities(
        model.output,
        features.flatten(0, 1)[batch.target_index],
        batch.tgt_out.flatten()[batch.target_index],
    ), weights


def log_probabilities(
    output: OutputProjection | NormedLinear, features: Tensor, tokens: Tensor
) -> Tensor:
    """Features (N, D) and the tokens (N,) that they are to predict -> natural-log probabilities (N,), float32."""
    rows = max(1, (PIECE if features.device.type == "cpu" else PIECE_GPU) // len(output.weight))
    found = []
    for part, wanted in zip(features.split(rows), tokens.split(rows), strict=True):
        logits = output(part).float()
        found.append(logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(1))
    return torch.cat(found)


def collate(pairs: Pairs) -> Batch:
    """Pairs of source ids, the end mark last, and target ids without marks as a batch."""
    src, src_mask = pad([source for source, _ in pairs])
    tgt_in, tgt_mask = pad([[BOS, *target] for _, target in pairs])
    tgt_out, _ = pad([[*target, EOS] for _, target in pairs])
    return Batch(src, src_mask, tgt_in, tgt_out, tgt_mask.flatten().nonzero()[:, 0])


def batches(lengths: Sequence[tuple[int, int]], most: int) -> Iterator[list[int]]:
    """Indices of pairs with such lengths of both sides, similar ones together, in batches of at most ``most`` positions, the padding
    counted, or of one pair.
    """
    batch: list[int] = []
    width = (0, 0)
    for i in sorted(range(len(lengths)), key=lambda i: (max(lengths[i]), lengths[i])):
        wider = max(width[0], lengths[i][0]), max(width[1], lengths[i][1])
        if batch and (len(batch) + 1) * sum(wider) > most:
            yield batch
            batch, wider = [], lengths[i]
        batch.append(i)
        width = wider
    if batch:
        yield batch


def check_length(models: Sequence[Seq2Seq], pairs: Pairs) -> None:
    """Raise DataError for pairs, as ``force`` reads them, of which one is longer than the models' positions."""
    limit = min(
        (limit for model in models if (limit := getattr(model, "max_positions", None)) is not None),
        default=math.inf,
    )
    longest = {
        "source": [len(source) - 1 for source, _ in pairs],
        "target": [len(target) for _, target in pairs],
    }
    for side, lengths in longest.items():
        if max(lengths, default=0) >= limit:
            raise DataError(
                f"a {side} sentence of {max(lengths)} tokens is too long: with its mark the model has {limit} positions"
            )
