"""The most probable next tokens at each step of a given translation, by forced decoding."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.data.vocab import BOS, EOS, PAD
from fusetk.decoding.config import FORCED_BATCH_TOKENS
from fusetk.decoding.target_scores import IdPair, batch_of_ids, check_length, pair_batches
from fusetk.errors import Diverged
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.output import rows_in_piece


class Step(NamedTuple):
    """A step of decoding: the token of the translation, and the most probable tokens."""

    token: int
    score: float  # natural-log probability
    best: list[tuple[int, float]]  # ids and natural-log probabilities, the most probable first


@torch.inference_mode()
def next_tokens(model: Seq2Seq, pairs: Sequence[IdPair], count: int) -> list[list[Step]]:
    """Return the steps of each pair.

    A target of T tokens has T + 1 steps; the last token is EOS. Each step has the ``count`` most
    probable tokens, without PAD and BOS, which a search never produces. The model must be in
    evaluation mode. Raises DataError for a pair that exceeds the positions of the model, and
    Diverged if a probability is NaN.
    """
    check_length([model], pairs)
    device = next(model.parameters()).device
    lengths = [(len(source), len(target) + 1) for source, target in pairs]
    steps: dict[int, list[Step]] = {}
    for indices in pair_batches(lengths, FORCED_BATCH_TOKENS):
        batch = batch_of_ids([pairs[i] for i in indices]).to(device)
        features = model(batch.src, batch.src_mask, batch.tgt_in, lengths=batch.lengths)
        features = features.flatten(0, 1)[batch.target_index]
        tokens = [token for i in indices for token in (*pairs[i][1], EOS)]
        all_steps = iter(_steps(model, features, tokens, count))
        for i in indices:
            steps[i] = [next(all_steps) for _ in range(lengths[i][1])]
    return [steps[i] for i in range(len(pairs))]


def _steps(model: Seq2Seq, features: Tensor, tokens: Sequence[int], count: int) -> list[Step]:
    """Return the steps of N positions with features (N, D) and N tokens of the translations."""
    rows = rows_in_piece(model.output.out_features, features.device)
    steps: list[Step] = []
    for piece in features.split(rows):
        log_probs = model.output(piece).float().log_softmax(-1)
        if log_probs.isnan().any():
            raise Diverged()
        piece_tokens = tokens[len(steps) : len(steps) + len(piece)]
        index = torch.tensor(piece_tokens, device=piece.device)[:, None]
        scores = log_probs.gather(1, index)[:, 0].tolist()
        log_probs[:, [PAD, BOS]] = -torch.inf
        best = log_probs.topk(min(count, log_probs.shape[1] - 2))
        table = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        steps += [
            Step(token, score, list(zip(ids, values, strict=True)))
            for token, score, (ids, values) in zip(piece_tokens, scores, table, strict=True)
        ]
    return steps
