"""A stack of layers and its sites: what a layer reads (connect), what the stack hands on (fuse), what is attended to (attend)."""

from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fusetk.config import ComponentConfig, Config, component, resolve
from fusetk.fusion import FUSIONS
from fusetk.fusion.base import Fusion, FusionConfig, share_layer_embedding
from fusetk.fusion.last import Last
from fusetk.models.connect import CONNECTIONS, ConnectConfig, Connection
from fusetk.models.memory import ATTENDS, MemoryAttention


class StackConfig(Config):
    """One side of a model: its depth and how its layers are wired."""

    layers: int = Field(ge=1)
    """Number of layers."""
    connect: Annotated[ConnectConfig, component(CONNECTIONS, "a connection", Connection)] = (
        ConnectConfig(kind="last")
    )
    """What a layer reads from the layers below it."""
    fuse: Annotated[FusionConfig, component(FUSIONS, "a fusion", Fusion)] = FusionConfig(
        kind="last"
    )
    """What the stack hands on; with `last` what one more layer would read."""
    checkpoint: bool = False
    """Compute each layer again in the backward pass, and keep only what it read: less memory, more time."""

    @model_validator(mode="after")
    def _depth_suits_the_sites(self) -> "StackConfig":
        self.connect.check(self.layers)
        summaries = [
            i + 1 for i in range(self.layers) if self.connect.summary(i, self.layers) != "no"
        ]
        self.fuse.check(self.layers - max(summaries, default=0))
        return self


class DecoderConfig(StackConfig):
    """The decoder's side."""

    attend: Annotated[
        ComponentConfig, component(ATTENDS, "an attention to encoder layers", MemoryAttention)
    ] = ComponentConfig(kind="top")
    """Which encoder layers a decoder layer attends to."""


class Layer(nn.Module):
    """A layer of a stack, or a summary of the layers below it."""

    width: int  # of its output


class Stack(nn.Module):
    """Layers wired by a connection and closed by a fusion."""

    def __init__(
        self,
        config: StackConfig,
        widths: Sequence[int],
        name: str,
        layer: Callable[[int, str, int, int, bool], Layer],
        summary: Callable[[int, str, int], Layer],
        other: "Stack | None" = None,
        hands_on: bool = True,
    ):
        """``widths`` that the backbone gives the embedding and each layer; ``name`` is the side.

        ``layer(i, name, read, width, residual)`` makes layer i (0 is the lowest), which reads ``read`` features, is ``width``
        wide and, if ``residual``, adds what it reads; ``summary(i, name, read)`` makes a summary that is added behind layer i.
        ``other``, where it is built already, is the other side, whose layer embedding is shared. Unless it ``hands_on`` anything, only
        the history is of use.
        """
        super().__init__()
        plan = config.connect
        self.layers = nn.ModuleList()
        self.summaries: set[int] = set()  # places in ``layers`` of the summaries that were added
        self.ends: set[int] = set()  # and of all behind which the layers above do not look back
        self.connect: Connection = resolve(plan.kind, CONNECTIONS, Connection)(
            plan, f"{name}.connect"
        )
        self.plain = (
            hands_on and resolve(config.fuse.kind, FUSIONS, Fusion) is Last
        )  # what one more layer would read is handed on
        self.widths = [widths[0]]  # of the history
        self.connect.add(widths[0], first=True)
        for i in range(config.layers):
            sums = plan.summary(i, config.layers)
            residual = self.connect.residual or sums == "in-place"
            made = layer(
                i,
                f"{name}.layer{i + 1}",
                self.connect.reader(),
                plan.width(i, config.layers, widths[i + 1]),
                residual,
            )
            self._add(made, first=sums == "in-place", read=self.plain or i + 1 < config.layers)
            if sums == "added":
                self.summaries.add(len(self.layers))
                self._add(
                    summary(i, f"{name}.summary{len(self.summaries)}", self.connect.reader()),
                    first=True,
                    read=True,
                )
        fused = [self.connect.reader()] if self.plain else self.widths
        self.fuse: Fusion = resolve(config.fuse.kind, FUSIONS, Fusion)(
            config.fuse, fused, widths[-1], f"{name}.fuse"
        )
        self.out_width = self.fuse.out_width
        self.places = {
            i: n
            for n, i in enumerate(i for i in range(len(self.layers)) if i not in self.summaries)
        }  # module -> layer
        self.checkpoint = config.checkpoint
        if other is not None:
            share_layer_embedding(other.fuse, self.fuse)

    def _add(self, layer: Layer, first: bool, read: bool) -> None:
        if first:
            self.ends.add(len(self.layers))
        self.layers.append(layer)
        self.widths = [*([] if first else self.widths), layer.width]
        if read:
            self.connect.add(layer.width, first)

    @property
    def recomputes(self) -> bool:
        """Whether layers run again in the backward pass: then what else they make is not to be kept."""
        return self.checkpoint and self.training

    def forward(
        self, embedded: Tensor, run: Callable[[int, Tensor], Tensor], below_top: bool = False
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """``run(i, x)`` is the output of ``layers[i]`` for its input x. Returns the history and the fused top.

        The history begins with the embedding, or with the last summary. With ``below_top``, what the highest layer returns is
        dropped: the history and the top end below it.
        """
        history, kept = [embedded], self.connect.keep(None, embedded)
        for i in range(len(self.layers)):
            read = self.connect(kept)
            out = checkpoint(run, i, read, use_reentrant=False) if self.recomputes else run(i, read)
            if below_top and i + 1 == len(self.layers):
                return tuple(history), history[-1]
            if i in self.ends:
                history, kept = [], None
            history.append(out)
            if self.plain or i + 1 < len(self.layers):
                kept = self.connect.keep(kept, out)
        return tuple(history), self.fuse([self.connect(kept)] if self.plain else history)


def attends_to_top(encoder: StackConfig, decoder: DecoderConfig) -> bool:
    """Whether what the encoder's stack hands on is attended to; raises ValueError where the sides do not fit each other."""
    attend = resolve(decoder.attend.kind, ATTENDS, MemoryAttention)
    if attend.layer_by_layer:
        if encoder.layers != decoder.layers:
            raise ValueError(
                f"decoder.attend: {decoder.attend.kind} needs as many encoder as decoder layers, "
                f"here are {encoder.layers} and {decoder.layers}"
            )
        if any(encoder.connect.summary(i, encoder.layers) != "no" for i in range(encoder.layers)):
            raise ValueError(
                f"decoder.attend: {decoder.attend.kind} needs every encoder layer, and encoder.connect sums some of them up"
            )
    reads = bool(attend.reads_top)
    if not reads and encoder.fuse.kind != "last":
        raise ValueError(
            f"decoder.attend: {decoder.attend.kind} reads the encoder's layers themselves, so encoder.fuse: {encoder.fuse.kind} would have "
            "no reader: take one of them away"
        )
    return reads


def build_attend(config: DecoderConfig, encoder: Stack) -> MemoryAttention:
    """What the decoder attends to."""
    attend: MemoryAttention = resolve(config.attend.kind, ATTENDS, MemoryAttention)(
        config.attend, encoder.widths, encoder.out_width
    )
    return attend
