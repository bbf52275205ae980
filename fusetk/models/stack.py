"""A stack of layers and its sites: what a layer reads (connect), what the stack hands on (fuse), what is attended to (attend)."""

from collections.abc import Callable, Sequence

from pydantic import Field
from torch import Tensor, nn

from fusetk.config import Config, Kind, choice, find_kind
from fusetk.fusion import FUSIONS, Fusion
from fusetk.models.seq2seq import Memory


class Connection(nn.Module):
    """What each layer of a stack reads from the layers below it."""

    Config: type[Kind] = Kind

    def __init__(self, config: Kind, layers: int, width: int, name: str):
        """``layers`` in the stack, each (and the embedding) of the same ``width``; ``name`` for ``fusetk.trace``."""
        super().__init__()

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        """Outputs so far, the embedding first, each (B, T, D) -> what the next layer reads (B, T, D)."""
        raise NotImplementedError


class ConnectLast(Connection):
    """The residual stack: a layer reads the one below it."""

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return history[-1]


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


CONNECTIONS: dict[str, type[Connection]] = {"last": ConnectLast}
ATTENDS: dict[str, type[Attend]] = {"top": AttendTop}


class StackConfig(Config):
    """One side of a model: its depth and how its layers are wired."""

    layers: int = Field(ge=1)
    """Number of layers."""
    connect: choice(CONNECTIONS, "a connection") = Kind(kind="last")  # type: ignore[valid-type]
    """What a layer reads from the layers below it."""
    fuse: choice(FUSIONS, "a fusion") = Kind(kind="last")  # type: ignore[valid-type]
    """What the stack hands on."""


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
        history = [embedded]
        for layer in range(len(self.layers)):
            history.append(run(layer, self.connect(history)))
        return tuple(history), self.fuse(history)


def build_stack(config: StackConfig, width: int, name: str, layer: Callable[[int, str], nn.Module]) -> Stack:
    """The layers ``layer(i, name)``, lowest first, all of one ``width``, wired as ``config`` says; ``name`` is the side."""
    layers = [layer(i, f"{name}.layer{i + 1}") for i in range(config.layers)]
    connect = find_kind(config.connect.kind, CONNECTIONS)(config.connect, config.layers, width, f"{name}.connect")
    fuse = find_kind(config.fuse.kind, FUSIONS)(config.fuse, [width] * (config.layers + 1), width, f"{name}.fuse")
    return Stack(layers, connect, fuse)


def build_attend(config: DecoderConfig, widths: Sequence[int], top_width: int) -> Attend:
    """What the decoder attends to, given the widths of the encoder's history and of its fused top."""
    return find_kind(config.attend.kind, ATTENDS)(config.attend, widths, top_width)
