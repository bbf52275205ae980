"""A stack of layers and its sites: what a layer reads (connect), what the stack hands on (fuse), what is attended to (attend)."""

from collections.abc import Callable, Sequence

from pydantic import Field, model_validator
from torch import Tensor, nn

from fusetk.config import Config, Kind, choice, find_kind
from fusetk.fusion import FUSIONS
from fusetk.fusion.base import Fusion, FusionConfig, share_layer_embedding
from fusetk.models.connect import CONNECTIONS, Connection
from fusetk.models.seq2seq import Memory


class Attend(nn.Module):
    """What each decoder layer attends to."""

    Config: type[Kind] = Kind

    def __init__(self, config: Kind, widths: Sequence[int], top_width: int):
        """``widths`` of the encoder's history, the embedding's first, and of its fused top."""
        super().__init__()
        self.widths, self.top_width = tuple(widths), top_width

    def width(self, layer: int) -> int:
        """Width of what decoder layer ``layer`` (0 is the lowest) attends to."""
        raise NotImplementedError

    def forward(self, memory: Memory, layer: int) -> Tensor:
        """(B, S, self.width(layer))."""
        raise NotImplementedError


class AttendTop(Attend):
    """Every decoder layer attends to what the encoder's stack hands on."""

    def width(self, layer: int) -> int:
        return self.top_width

    def forward(self, memory: Memory, layer: int) -> Tensor:
        return memory.top


ATTENDS: dict[str, type[Attend]] = {"top": AttendTop}


class StackConfig(Config):
    """One side of a model: its depth and how its layers are wired."""

    layers: int = Field(ge=1)
    """Number of layers."""
    connect: choice(CONNECTIONS, "a connection") = Kind(kind="last")  # type: ignore[valid-type]
    """What a layer reads from the layers below it."""
    fuse: choice(FUSIONS, "a fusion") = FusionConfig(kind="last")  # type: ignore[valid-type]
    """What the stack hands on."""

    @model_validator(mode="after")
    def _depth_suits_the_fusion(self) -> "StackConfig":
        if isinstance(self.fuse, FusionConfig):
            self.fuse.check(self.layers)
        return self


class DecoderConfig(StackConfig):
    """The decoder's side."""

    attend: choice(ATTENDS, "an attention to encoder layers") = Kind(kind="top")  # type: ignore[valid-type]
    """Which encoder layers a decoder layer attends to."""


class Stack(nn.Module):
    """Layers wired by a connection and closed by a fusion."""

    def __init__(self, layers: Sequence[nn.Module], connect: Connection, fuse: Fusion):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.connect = connect
        self.fuse = fuse

    def forward(self, embedded: Tensor, run: Callable[[int, Tensor], Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
        """``run(i, x)`` is layer i's output for its input x. Returns the history, the embedding first, and the fused top."""
        history, kept = [embedded], [self.connect.keep(embedded, 0)]
        for i in range(len(self.layers)):
            history.append(run(i, self.connect(kept)))
            if i + 1 < len(self.layers):
                kept.append(self.connect.keep(history[-1], i + 1))
        return tuple(history), self.fuse(history)


def build_stack(
    config: StackConfig, width: int, name: str, layer: Callable[[int, str], nn.Module], other: Stack | None = None
) -> Stack:
    """The layers ``layer(i, name)``, lowest first, all of one ``width``, wired as ``config`` says.

    ``name`` is the side; ``other``, where it is built already, the other side, whose layer embedding is shared.
    """
    layers = [layer(i, f"{name}.layer{i + 1}") for i in range(config.layers)]
    connect = find_kind(config.connect.kind, CONNECTIONS)(config.connect, config.layers, width, f"{name}.connect")
    fuse = find_kind(config.fuse.kind, FUSIONS)(config.fuse, [width] * (config.layers + 1), width, f"{name}.fuse")
    if other is not None:
        share_layer_embedding(other.fuse, fuse)
    return Stack(layers, connect, fuse)


def build_attend(config: DecoderConfig, widths: Sequence[int], top_width: int) -> Attend:
    """What the decoder attends to, given the widths of the encoder's history and of its fused top."""
    return find_kind(config.attend.kind, ATTENDS)(config.attend, widths, top_width)
