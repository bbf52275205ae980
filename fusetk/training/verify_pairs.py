"""The sentence pairs with which ``verify`` computes, and its tolerance."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from fusetk.data.batch import pad
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.additional_loss import collect
from fusetk.special_tokens import BOS, EOS, SPECIAL

SOURCE_LENGTHS = (3, 8, 5)  # lengths of source sentences, with EOS
TARGET_LENGTHS = (6, 4, 7)  # lengths of target sentences, with BOS
# Largest difference between two computations of the same values, relative to the largest value.
# Differences of rounding are below it.
TOLERANCE = 1e-3


class Pairs:
    """Pairs of padded sentences, on the device of a model."""

    def __init__(
        self, sources: list[list[int]], targets: list[list[int]], device: torch.device
    ) -> None:
        """``sources`` end with EOS, and ``targets`` begin with BOS."""
        self.sources = sources
        self.targets = targets
        self.device = device
        self.src, self.src_mask = (tensor.to(device) for tensor in pad(sources))  # (B, S)
        self.tgt_in, tgt_mask = (tensor.to(device) for tensor in pad(targets))  # (B, T)
        self.target_index = tgt_mask.flatten().nonzero()[:, 0]
        """Indices of the N real target tokens in (B * T)."""
        self.lengths = (self.src_mask.sum(1).cpu(), tgt_mask.sum(1).cpu())
        """Lengths of the sources and of the targets (B,)."""

    def padded_logits(self, model: Seq2Seq) -> Tensor:
        """Return the logits (N, V), float32, of the padded sentences."""
        return self.logits(model, model(self.src, self.src_mask, self.tgt_in))

    def logits(self, model: Seq2Seq, features: Tensor) -> Tensor:
        """Return the logits (N, V), float32, of the real target tokens for features (B, T, D)."""
        return model.output(features.flatten(0, 1)[self.target_index]).float()

    def losses(self) -> AbstractContextManager[dict[str, Tensor]]:
        """Collect the additional losses of a pass. Its targets are its inputs, which are random."""
        return collect(self.src_mask, self.tgt_in, self.target_index)

    def training_features(self, model: Seq2Seq) -> Tensor:
        """Return the features (N, D) of a training batch, which some models pack on a CPU."""
        return model(self.src, self.src_mask, self.tgt_in, self.target_index, self.lengths)


def random_pairs(model: Seq2Seq, source_size: int, target_size: int) -> Pairs:
    """Return pairs of random words, which the model can read."""
    generator = torch.Generator().manual_seed(1)

    def words(size: int, count: int) -> list[int]:
        lowest = min(len(SPECIAL), size - 1)
        return torch.randint(lowest, size, (count,), generator=generator).tolist()

    longest = model.max_positions or max(SOURCE_LENGTHS + TARGET_LENGTHS)
    sources = [[*words(source_size, min(n, longest) - 1), EOS] for n in SOURCE_LENGTHS]
    targets = [[BOS, *words(target_size, min(n, longest) - 1)] for n in TARGET_LENGTHS]
    return Pairs(sources, targets, next(model.parameters()).device)


def with_other_ends(pairs: Pairs) -> tuple[Pairs, Tensor]:
    """Return the pairs with another last word in each target.

    The second value has the indices in (N,) of the target tokens before the last one.
    """
    targets = [
        [*target[:-1], _other_word(target[-1], pairs.targets)] if len(target) > 1 else target
        for target in pairs.targets
    ]
    is_end = [i == len(target) - 1 for target in targets for i in range(len(target))]
    return Pairs(pairs.sources, targets, pairs.device), _indices_of_others(is_end, pairs)


def with_another_sentence(pairs: Pairs) -> tuple[Pairs, Tensor]:
    """Return the pairs with other words in the last source and in the last target.

    The second value has the indices in (N,) of the target tokens of the other pairs.
    """
    *sources, source = pairs.sources
    *targets, target = pairs.targets
    sources.append([*(_other_word(word, pairs.sources) for word in source[:-1]), EOS])
    targets.append([BOS, *(_other_word(word, pairs.targets) for word in target[1:])])
    is_last = [i == len(targets) - 1 for i, each in enumerate(targets) for _ in each]
    return Pairs(sources, targets, pairs.device), _indices_of_others(is_last, pairs)


def _other_word(word: int, sentences: list[list[int]]) -> int:
    """Return another word of the sentences; the same one if they have no other."""
    words = {each for sentence in sentences for each in sentence} - {word, BOS, EOS}
    return min(words, default=word)


def _indices_of_others(changed: Sequence[bool], pairs: Pairs) -> Tensor:
    return (~torch.tensor(changed)).nonzero()[:, 0].to(pairs.device)
