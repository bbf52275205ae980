"""How much a model needs each layer of its fusions: the loss of a text without the layer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from fusetk.decoding.target_scores import IdPair, score_targets
from fusetk.fusion.base import Fusion, fusions_of_stacks
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.stack import Stack

MEAN_PAIRS = 200  # pairs from which the mean of a layer is computed


class LayerLoss(NamedTuple):
    """The loss of a target token, in nats, with the mean of a layer instead of the layer."""

    fusion: str  # encoder.fuse or decoder.fuse
    layer: int  # the number in the stack; the embedding, or the last summary layer, is 0
    loss: float


def layer_losses(model: Seq2Seq, pairs: Sequence[IdPair]) -> Iterator[LayerLoss]:
    """Yield the loss of the text without each layer of each fusion.

    The fusion reads the mean of the layer over all positions instead of the layer. Layers above it
    still read the layer itself. ``model`` must be in evaluation mode.
    """
    depths = {stack.fuse: stack.depth for stack in model.modules() if isinstance(stack, Stack)}
    for fusion, means in _means(model, pairs).items():
        # The history of a stack with summary layers has none of the layers below the last summary.
        num_below = depths.get(fusion, len(means) - 1) + 1 - len(means)
        for index, mean in enumerate(means):
            with _reading(fusion, index, mean):
                without = loss(model, pairs)
            yield LayerLoss(fusion.name, index + num_below if index else 0, without)


def loss(model: Seq2Seq, pairs: Sequence[IdPair]) -> float:
    """Return the mean loss of a target token, EOS included, in nats."""
    scores = [score for result in score_targets([model], pairs) for score in result.scores]
    return -sum(scores) / len(scores)


def _means(model: Seq2Seq, pairs: Sequence[IdPair]) -> dict[Fusion, list[Tensor]]:
    """Return the mean (D,) of each layer of each fusion over the positions of some pairs.

    A fusion whose ``forward`` the model does not call has no means.
    """
    sums: dict[nn.Module, list[Tensor]] = {}
    positions: dict[nn.Module, int] = {}

    def add(fusion: nn.Module, arguments: tuple[Any, ...]) -> None:
        layers = [layer.float().sum((0, 1)) for layer in arguments[0]]
        earlier = sums.get(fusion)
        sums[fusion] = [a + b for a, b in zip(earlier, layers, strict=True)] if earlier else layers
        positions[fusion] = positions.get(fusion, 0) + arguments[0][0].shape[:2].numel()

    counted = fusions_of_stacks(model).values()
    hooks = [fusion.register_forward_pre_hook(add) for fusion in counted]
    try:
        for pair in pairs[:: -(-len(pairs) // MEAN_PAIRS)]:
            score_targets([model], [pair])  # a pair alone has no padding
    finally:
        for hook in hooks:
            hook.remove()
    return {
        fusion: [total / positions[fusion] for total in sums[fusion]]
        for fusion in counted
        if fusion in sums
    }


@contextmanager
def _reading(fusion: Fusion, layer: int, mean: Tensor) -> Iterator[None]:
    """Within this context the fusion reads ``mean`` instead of the layer."""

    def replace(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        history = list(arguments[0])
        history[layer] = mean.to(history[layer]).expand_as(history[layer])
        return (history, *arguments[1:])

    hook = fusion.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()
