"""The exponential moving average (EMA) of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fusetk.training.sharding import local, shard_like


class Ema:
    """Exponential moving average e of the weights w of a model.

    After update t, e = d e + (1 - d) w with d = min(decay, (1 + t) / (10 + t)). The smaller decay
    at the start is that of TensorFlow's ExponentialMovingAverage; with it the initial weights soon
    lose their influence.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = dict(model.named_parameters())
        self.mean = {name: weight.detach().clone() for name, weight in self.weights.items()}

    def update(self, update: int) -> None:
        """Include the weights after update number ``update``."""
        decay = min(self.decay, (1 + update) / (10 + update))
        weights, means = zip(*self._pairs(), strict=True)
        torch._foreach_lerp_(means, weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context the average replaces the weights of the model."""
        # At the end of the context the memory may be exhausted. If the second exchange failed, the
        # next checkpoint would contain averages as weights. So the buffer is allocated here.
        size = max(weight.nbytes for weight, _ in self._pairs())
        device = next(iter(self.weights.values())).device
        buffer = torch.empty(size, dtype=torch.uint8, device=device)
        self._exchange(buffer)
        try:
            yield
        finally:
            self._exchange(buffer)

    def load(self, mean: dict[str, Tensor]) -> None:
        """Replace the average by the one of a checkpoint, given as full tensors by name."""
        for name, tensor in mean.items():
            self.mean[name].copy_(shard_like(tensor, self.mean[name]))

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each weight, or this process' shard of it, and its average."""
        for name, parameter in self.weights.items():
            yield local(parameter.detach()), local(self.mean[name])

    def _exchange(self, buffer: Tensor) -> None:
        """Exchange weights and averages without allocating memory."""
        for weight, mean in self._pairs():
            previous = buffer[: weight.nbytes].view(weight.dtype).view(weight.shape)
            previous.copy_(weight)
            weight.copy_(mean)
            mean.copy_(previous)
