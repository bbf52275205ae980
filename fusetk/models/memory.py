"""Selection of the encoder layers that each decoder layer attends to."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fusetk.config import ComponentConfig, resolve
from fusetk.models.seq2seq import Memory


class MemoryAttention(nn.Module):
    """Selection of the sources that the decoder attends to.

    A source is a tensor made from the encoder's layers, once for each sentence. Every decoder layer
    attends to one or more sources.
    """

    Config: type[ComponentConfig] = ComponentConfig
    reads_output = False
    """Whether the decoder attends to the output of the encoder's stack."""
    layer_by_layer = False
    """Whether decoder layer i attends to encoder layer i only."""

    def __init__(self, config: ComponentConfig, history_widths: Sequence[int], output_width: int):
        """``history_widths`` are the widths of the encoder's history, the embedding first.

        ``output_width`` is the width of the encoder's output.
        """
        super().__init__()
        self.history_widths = tuple(history_widths)
        self.output_width = output_width

    @property
    def widths(self) -> Sequence[int]:
        """Width of each source."""
        raise NotImplementedError

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        """Return the sources, each (B, S, its width)."""
        raise NotImplementedError

    def sources_of(self, layer: int) -> slice:
        """Return the slice of sources that decoder layer ``layer`` (0 is the lowest) attends to.

        The layer attends to each of them separately and sums the results.
        """
        return slice(None)


class OutputAttention(MemoryAttention):
    """Attention of every decoder layer to the output of the encoder's stack."""

    reads_output = True

    @property
    def widths(self) -> Sequence[int]:
        return [self.output_width]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return [memory.output]


class DenseConcatAttention(MemoryAttention):
    """Attention of every decoder layer to the concatenated history (DenseNMT, DenseAtt-1)."""

    @property
    def widths(self) -> Sequence[int]:
        return [sum(self.history_widths)]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return [torch.cat(memory.history, -1)]


class DenseSumAttention(MemoryAttention):
    """Attention of every decoder layer to each item of the history (DenseNMT, DenseAtt-2)."""

    @property
    def widths(self) -> Sequence[int]:
        return self.history_widths

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return memory.history


class LayerwiseAttention(MemoryAttention):
    """Attention of decoder layer i to encoder layer i (He et al. 2018, section 3).

    The attention to the source is separate from self-attention. The mixed attention of the paper is
    in the backbone ``coordinated``.
    """

    layer_by_layer = True

    @property
    def widths(self) -> Sequence[int]:
        return self.history_widths[1:]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return memory.history[1:]

    def sources_of(self, layer: int) -> slice:
        return slice(layer, layer + 1)


ATTENDS: dict[str, type[MemoryAttention]] = {
    "top": OutputAttention,
    "layerwise": LayerwiseAttention,
    "dense-concat": DenseConcatAttention,
    "dense-sum": DenseSumAttention,
}


def memory_attention_class(config: ComponentConfig) -> type[MemoryAttention]:
    """Return the class that ``config.kind`` names. Raises ValueError if there is none."""
    cls: type[MemoryAttention] = resolve(config.kind, ATTENDS, MemoryAttention)
    return cls


def build_memory_attention(
    config: ComponentConfig, history_widths: Sequence[int], output_width: int
) -> MemoryAttention:
    """Build the class that ``config.kind`` names; for the arguments see ``MemoryAttention``.

    Raises ValueError if there is none.
    """
    return memory_attention_class(config)(config, history_widths, output_width)
