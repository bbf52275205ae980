"""An exponential mean of the weights, beside the weights themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fusetk.training.sharding import local, part


class Ema:
    """e = d e + (1 - d) w after update t, with d = min(decay, (1 + t) / (10 + t)), so that the first weights are soon forgotten
    (Polyak and Juditsky 1992; the decay's beginning as in TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.weights = decay, dict(model.named_parameters())
        self.mean = {name: weight.detach().clone() for name, weight in self.weights.items()}

    def update(self, updates: int) -> None:
        """Take in the weights after so many updates."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        mean, weights = (
            [local(tensor.detach()) for tensor in found.values()]
            for found in (self.mean, self.weights)
        )
        torch._foreach_lerp_(mean, weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context the model has the mean as its weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def load(self, mean: dict[str, Tensor]) -> None:
        """Go on from a mean."""
        for name, tensor in mean.items():
            self.mean[name].copy_(part(tensor, self.mean[name]))

    def _exchange(self) -> None:
        for name, weight in self.weights.items():
            here, there = local(weight.detach()), local(self.mean[name])
            kept = here.clone()
            here.copy_(there)
            there.copy_(kept)
