"""Which encoder layers each decoder layer attends to."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fusetk.config import ComponentConfig
from fusetk.models.seq2seq import Memory


class MemoryAttention(nn.Module):
    """What the decoder attends to: some sources, made once a sentence, and which of them each layer reads."""

    Config: type[ComponentConfig] = ComponentConfig
    reads_top = False  # what the encoder's stack hands on is attended to
    layer_by_layer = False  # each decoder layer attends to the encoder layer of its own height

    def __init__(self, config: ComponentConfig, widths: Sequence[int], top_width: int):
        """``widths`` of the encoder's history, the embedding's first, and of its fused top."""
        super().__init__()
        self.history_widths, self.top_width = tuple(widths), top_width

    @property
    def widths(self) -> Sequence[int]:
        """Width of each source."""
        raise NotImplementedError

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        """The sources, each (B, S, its width)."""
        raise NotImplementedError

    def of(self, layer: int) -> slice:
        """The sources that decoder layer ``layer`` (0 is the lowest) attends to, one by one; what it finds is added up."""
        return slice(None)


class Top(MemoryAttention):
    """Every decoder layer attends to what the encoder's stack hands on."""

    reads_top = True

    @property
    def widths(self) -> Sequence[int]:
        return [self.top_width]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return [memory.top]


class DenseConcat(MemoryAttention):
    """Every decoder layer attends to the concatenation of the encoder's layers (DenseNMT, DenseAtt-1)."""

    @property
    def widths(self) -> Sequence[int]:
        return [sum(self.history_widths)]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return [torch.cat(memory.history, -1)]


class DenseSum(MemoryAttention):
    """Every decoder layer attends to each of the encoder's layers (DenseNMT, DenseAtt-2)."""

    @property
    def widths(self) -> Sequence[int]:
        return self.history_widths

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return memory.history


class Layerwise(MemoryAttention):
    """Decoder layer i attends to encoder layer i (He et al. 2018, section 3; here by an attention of its own)."""

    layer_by_layer = True

    @property
    def widths(self) -> Sequence[int]:
        return self.history_widths[1:]

    def sources(self, memory: Memory) -> Sequence[Tensor]:
        return memory.history[1:]

    def of(self, layer: int) -> slice:
        return slice(layer, layer + 1)


ATTENDS: dict[str, type[MemoryAttention]] = {
    "top": Top,
    "layerwise": Layerwise,
    "dense-concat": DenseConcat,
    "dense-sum": DenseSum,
}
