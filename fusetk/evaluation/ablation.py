"""How much each site of a model needs each layer: the loss of a text without the layer."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from fusetk.decoding.target_scores import IdPair, score_targets
from fusetk.fusion.base import Fusion, LayerFusion, fusions_of_stacks
from fusetk.models.attend import AttendedSources, OutputSource
from fusetk.models.connect.cross import CrossConnection
from fusetk.models.connect.last import LastConnection
from fusetk.models.coordinated import SourceContext
from fusetk.models.seq2seq import Memory, Seq2Seq
from fusetk.models.stack import Stack, stacks_of

MEAN_PAIRS = 200  # pairs from which the mean of a layer is computed

# Function (site, layer, tensor) that returns the tensor that the site reads instead of the layer's
# tensor (B, T, D). ``site`` and ``layer`` are fields of ``LayerLoss``.
Change = Callable[[str, int | str, Tensor], Tensor]


class LayerLoss(NamedTuple):
    """The loss of a target token, in nats, with the mean of a layer instead of the layer."""

    site: str  # encoder.fuse, decoder.fuse, decoder.attend, encoder.connect, ...
    # The number of the layer in its stack, which is the encoder for decoder.attend. The embedding,
    # or the last summary layer, is 0. For a connection, an added summary layer has its label
    # instead, such as summary1.
    layer: int | str
    loss: float

    @property
    def title(self) -> str:
        """The site and the layer, for the user."""
        layer = self.layer if isinstance(self.layer, str) else f"layer {self.layer}"
        side = "encoder " if self.site == "decoder.attend" else ""
        return f"{self.site}, {side}{layer}"


def layer_losses(model: Seq2Seq, pairs: Sequence[IdPair]) -> Iterator[LayerLoss]:
    """Yield the loss of the text without each layer of each site, those of the fusions first.

    The site reads the mean of the layer over all positions instead of the layer. The rest of the
    model still reads the layer itself. ``connect: cross`` reads the differences between the outputs
    and the inputs of layers, so there the mean is that of the difference. ``model`` must be in
    evaluation mode.
    """
    means = _means(model, pairs)
    for site, layer in sorted(means, key=lambda key: not key[0].endswith(".fuse")):
        with without_layer(model, site, layer, means[site, layer]):
            changed = loss(model, pairs)
        yield LayerLoss(site, layer, changed)


def loss(model: Seq2Seq, pairs: Sequence[IdPair]) -> float:
    """Return the mean loss of a target token, EOS included, in nats."""
    scores = [score for result in score_targets([model], pairs) for score in result.scores]
    return -sum(scores) / len(scores)


def sites(model: nn.Module) -> list[Fusion | AttendedSources | Stack]:
    """Return the parts that read several layers; a stack reads them by its connection."""
    others = [
        module
        for module in model.modules()
        if (isinstance(module, AttendedSources) and not isinstance(module, OutputSource))
        or (isinstance(module, Stack) and not isinstance(module.connect, LastConnection))
    ]
    return [*fusions_of_stacks(model).values(), *others]


def _means(model: Seq2Seq, pairs: Sequence[IdPair]) -> dict[tuple[str, int | str], Tensor]:
    """Return the mean (D,) of each layer of each site over the positions of some pairs.

    A site that the model does not use has no means.
    """
    sums: dict[tuple[str, int | str], Tensor] = {}
    positions: Counter[tuple[str, int | str]] = Counter()

    def add(site: str, layer: int | str, tensor: Tensor) -> Tensor:
        total = tensor.float().sum((0, 1))
        sums[site, layer] = sums.get((site, layer), 0) + total
        positions[site, layer] += tensor.shape[:2].numel()
        return tensor

    with changed_layers(model, add):
        for pair in pairs[:: -(-len(pairs) // MEAN_PAIRS)]:
            score_targets([model], [pair])  # a pair alone has no padding
    return {key: total / positions[key] for key, total in sums.items()}


@contextmanager
def without_layer(model: nn.Module, site: str, layer: int | str, mean: Tensor) -> Iterator[None]:
    """Within this context, the site reads ``mean`` (D,) instead of the layer."""

    def replace(reader: str, number: int | str, tensor: Tensor) -> Tensor:
        return mean.to(tensor).expand_as(tensor) if (reader, number) == (site, layer) else tensor

    with changed_layers(model, replace):
        yield


@contextmanager
def changed_layers(model: nn.Module, change: Change) -> Iterator[None]:
    """Within this context, each site reads the result of ``change`` instead of a layer."""
    depths = {stack.name: stack.depth for stack in stacks_of(model)}
    with ExitStack() as hooks:
        for part in sites(model):
            if isinstance(part, Fusion):
                _change_fusion(part, change, depths, hooks)
            elif isinstance(part, AttendedSources):
                _change_sources(part, change, depths, hooks)
            else:
                _change_connection(part, change, hooks)
        yield


def _changed_history(
    site: str, history: Sequence[Tensor], depth: int | None, change: Change, first: int = 0
) -> tuple[Tensor, ...]:
    """Return the changed history of a stack of ``depth`` layers; None: it has every layer.

    The tensors with a lower index than ``first`` are not changed.
    """
    # The history of a stack with summary layers has none of the layers below the last summary.
    below = 0 if depth is None else depth + 1 - len(history)
    return tuple(
        layer if i < first else change(site, i + below if i else 0, layer)
        for i, layer in enumerate(history)
    )


def _change_fusion(
    fusion: Fusion, change: Change, depths: dict[str, int], hooks: ExitStack
) -> None:
    depth = depths.get(fusion.name.partition(".")[0])
    first = fusion.first if isinstance(fusion, LayerFusion) else 0

    def before(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        history = _changed_history(fusion.name, arguments[0], depth, change, first)
        return (history, *arguments[1:])

    hooks.callback(fusion.register_forward_pre_hook(before).remove)


def _change_sources(
    attend: AttendedSources, change: Change, depths: dict[str, int], hooks: ExitStack
) -> None:
    sources = attend.sources

    def changed_sources(memory: Memory) -> Sequence[Tensor]:
        history = _changed_history(attend.name, memory.history, depths.get("encoder"), change)
        return sources(memory._replace(history=history))

    vars(attend)["sources"] = changed_sources
    hooks.callback(vars(attend).pop, "sources")


def _change_connection(stack: Stack, change: Change, hooks: ExitStack) -> None:
    connect = stack.connect
    append = connect.append
    modules = zip(stack.plan, stack.labels, strict=True)
    names = [0, *(label if planned.is_added else planned.layer + 1 for planned, label in modules)]
    site = ""
    layers = iter(names)

    def start(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        nonlocal site, layers
        # One stack of `coordinated` serves both languages.
        contexts = arguments[1] if len(arguments) > 1 else ()
        is_source = any(isinstance(context, SourceContext) for context in contexts)
        site = f"{'encoder' if is_source else stack.name}.connect"
        layers = iter(names)

    def changed_append(outputs: Any, output: Any, layer_input: Any = None) -> Any:
        layer = next(layers)
        if isinstance(connect, CrossConnection) and layer_input is not None:
            difference = output - layer_input.residual
            changed = change(site, layer, difference)
            if changed is not difference:
                output = layer_input.residual + changed
        else:
            output = change(site, layer, output)
        return append(outputs, output, layer_input)

    hooks.callback(stack.register_forward_pre_hook(start).remove)
    vars(connect)["append"] = changed_append
    hooks.callback(vars(connect).pop, "append")
