"""Selection of the encoder layers that each decoder layer attends to."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from fusetk import trace
from fusetk.config import ComponentConfig, component, resolve
from fusetk.errors import ConfigError, class_name, quantity
from fusetk.models.seq2seq import Memory
from fusetk.nn.combine import weighted_sum
from fusetk.nn.dropout import Dropout
from fusetk.nn.projection import projection_or_identity
from fusetk.nn.shape_check import check_shape, is_outside


class AttendedSources(nn.Module):
    """The sources that the decoder attends to.

    A source is a tensor made from the encoder's layers, once for each sentence. Every decoder layer
    attends to one or more sources.
    """

    Config: type[ComponentConfig] = ComponentConfig
    config: Any
    """The options, an object of the class ``Config``."""
    name = "decoder.attend"
    """Place of the attention in the model, for errors."""
    reads_output = False
    """Whether the decoder attends to the output of the encoder's stack."""
    layer_by_layer = False
    """Whether decoder layer i attends to encoder layer i only."""

    def __init__(self, config: Any, history_widths: Sequence[int], output_width: int, layers: int):
        """``history_widths`` are the widths of the encoder's history, the embedding first.

        ``output_width`` is the width of the encoder's output, and ``layers`` is the number of
        decoder layers.
        """
        super().__init__()
        self.config = config
        self.history_widths = tuple(history_widths)
        self.output_width = output_width

    def initialise(self) -> None:
        """Change the initial weights, if the class needs others than those of the model's `init`.

        Models call it once, after `init`.
        """

    @property
    def widths(self) -> Sequence[int]:
        """Width of each source."""
        raise NotImplementedError(f"{type(self).__name__} has no property widths")

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        """Return the sources, each (B, S, its width).

        They have the positions of the layers in ``memory``. Training on a CPU packs the sentences
        of a batch: then B is 1, and S is the number of their tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method sources")

    def checked_sources(self, memory: Memory) -> Sequence[Tensor]:
        """Return ``sources``. Raises ConfigError if their number or shapes are wrong."""
        if is_outside(self):  # it may use the history as the tuple that it usually is
            memory = memory._replace(history=tuple(memory.history))
        sources = self.sources(memory)
        method = f"{class_name(self)}.sources ({self.name})"
        if not isinstance(sources, list | tuple):
            raise ConfigError(f"{method} returned a {type(sources).__name__} instead of a list")
        if len(sources) != len(self.widths):
            raise ConfigError(
                f"{method} returned {quantity(len(sources), 'tensor')}, but the property widths "
                f"has {quantity(len(self.widths), 'number')}"
            )
        for source, width in zip(sources, self.widths, strict=True):
            check_shape(source, memory.output.shape[:-1], width, self)
        return sources

    def sources_of(self, layer: int) -> slice | list[int]:
        """Return the numbers of the sources that decoder layer ``layer`` (0 is the lowest) reads.

        The layer attends to each of them separately and sums the results.
        """
        return slice(None)

    def indices_of(self, layer: int) -> list[int]:
        """Return ``sources_of`` as a list. Raises ConfigError if it selects no existing source."""
        chosen = self.sources_of(layer)
        numbers = range(len(self.widths))
        try:
            indices = [
                numbers[i] for i in (numbers[chosen] if isinstance(chosen, slice) else chosen)
            ]
        except (IndexError, TypeError):
            indices = []
        if not indices:
            raise ConfigError(
                f"{class_name(self)}.sources_of({layer}) returned {chosen!r}: return a slice "
                "or a list that selects at least one source, with numbers from 0 to "
                f"{len(numbers) - 1}"
            )
        return indices


class OutputSource(AttendedSources):
    """One source for every decoder layer: the output of the encoder's stack."""

    reads_output = True

    @property
    def widths(self) -> Sequence[int]:
        return [self.output_width]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return [memory.output]


class DenseConcatSource(AttendedSources):
    """One source for every decoder layer: the concatenated history (DenseNMT, DenseAtt-1)."""

    @property
    def widths(self) -> Sequence[int]:
        return [sum(self.history_widths)]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return [torch.cat(tuple(memory.history), -1)]


class DenseSumSources(AttendedSources):
    """A source for each item of the history (DenseNMT, DenseAtt-2).

    Every decoder layer reads all of them.
    """

    @property
    def widths(self) -> Sequence[int]:
        return self.history_widths

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return tuple(memory.history)


class LayerwiseSources(AttendedSources):
    """A source for each decoder layer: layer i reads encoder layer i (after He et al. 2018).

    The attention to the source is separate from self-attention. In the paper, a target layer i
    reads the source layer i - 1, and both attentions are mixed. The backbone ``coordinated`` does
    so.
    """

    layer_by_layer = True

    @property
    def widths(self) -> Sequence[int]:
        return self.history_widths[1:]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return tuple(memory.history[1:])

    def sources_of(self, layer: int) -> slice:
        return slice(layer, layer + 1)


class TransparentConfig(ComponentConfig):
    """A learned mean of the encoder layers for each decoder layer."""

    kind: str = "transparent"
    norm_layers: bool = False
    """Apply layer normalisation to every encoder layer before the mean. Set it with `norm: pre`,
    whose layers do not normalise their output."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the numbers from which the softmax makes the weights. The authors' code, lingvo,
    has 0.1."""


class TransparentSources(AttendedSources):
    """A source for each decoder layer j: z_j = sum_i softmax_i(W)_ij h_i (Bapna et al. 2018).

    h_i are the embedding and the encoder layers. W is 0 at first, so z_j is their mean. A layer
    that is not as wide as the embedding is projected to the width of the embedding.
    """

    Config = TransparentConfig

    def __init__(
        self,
        config: TransparentConfig,
        history_widths: Sequence[int],
        output_width: int,
        layers: int,
    ):
        super().__init__(config, history_widths, output_width, layers)
        width = self.history_widths[0]
        self.weight = nn.Parameter(torch.zeros(len(self.history_widths), layers))
        self.dropout = Dropout(config.dropout)
        self.map = nn.ModuleList(
            projection_or_identity(layer_width, width) for layer_width in self.history_widths
        )
        self.norm_layers = nn.ModuleList(
            nn.LayerNorm(width) if config.norm_layers else nn.Identity() for _ in self.map
        )

    @property
    def widths(self) -> Sequence[int]:
        return [self.history_widths[0]] * self.weight.shape[1]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        weights = self.dropout(self.weight).softmax(0)
        layers = [
            norm(project(layer))
            for norm, project, layer in zip(self.norm_layers, self.map, memory.history, strict=True)
        ]
        sources = []
        for j, column in enumerate(weights.unbind(1)):
            trace.record(f"decoder.attend.layer{j + 1}", column)
            sources.append(weighted_sum(column, layers))
        return sources

    def sources_of(self, layer: int) -> slice:
        return slice(layer, layer + 1)


ATTENDS: dict[str, type[AttendedSources]] = {
    "top": OutputSource,
    "layerwise": LayerwiseSources,
    "dense-concat": DenseConcatSource,
    "dense-sum": DenseSumSources,
    "transparent": TransparentSources,
}

AnyAttendConfig = Annotated[
    ComponentConfig, component(ATTENDS, "an attention to encoder layers", AttendedSources)
]
"""Type of a config key that chooses an attention to encoder layers."""


def attended_sources_class(config: ComponentConfig) -> type[AttendedSources]:
    """Return the class that ``config.kind`` names. Raises ValueError if no class has this name."""
    return resolve(config.kind, ATTENDS, AttendedSources)


def build_attended_sources(
    config: ComponentConfig, history_widths: Sequence[int], output_width: int, layers: int
) -> AttendedSources:
    """Build the class that ``config.kind`` names; for the arguments see ``AttendedSources``.

    Raises ValueError if no class has this name, and ConfigError if ``widths`` is not a property or
    if a layer would read no source.
    """
    attended = attended_sources_class(config)(config, history_widths, output_width, layers)
    if callable(attended.widths):
        raise ConfigError(f"{class_name(attended)}.widths is a method: make it a @property")
    for layer in range(layers):
        attended.indices_of(layer)
    return attended
