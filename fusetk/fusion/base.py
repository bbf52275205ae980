"""The interface of every fusion phi: many layers in, one representation out, at each position."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fusetk.config import ComponentConfig


class FusionConfig(ComponentConfig):
    """Options of a fusion; each fusion has its own subclass."""

    def check(self, layers: int) -> None:
        """Raise ValueError, with a message for the user, if ``layers`` layers cannot be fused."""


class Fusion(nn.Module):
    """phi of MLRF Equation 3: makes the output of a stack from the outputs of its layers.

    A fusion combines layers, never positions: position t of its output depends on position t of the
    layers only. Therefore it needs no state in decoding and works in every backbone. To write a
    fusion, subclass ``LayerFusion``; subclass this class if the options of ``LayerFusion`` make no
    sense for it.
    """

    Config: type[FusionConfig] = FusionConfig
    reads_next_input = False
    """Whether the history is replaced by one tensor, the input that a further layer would get."""
    out_width: int
    layer_embedding: "LayerEmbedding | None"

    def __init__(self, config: FusionConfig, widths: Sequence[int], width: int, name: str):
        """``widths`` of the history, the embedding first; ``width`` of the result.

        ``name`` is the prefix of what the fusion records with ``fusetk.trace``.
        """
        super().__init__()
        self.name = name
        self.out_width = width
        self.layer_embedding = None

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        """[(..., widths[i])], the embedding first, the highest layer last -> (..., out_width)."""
        raise NotImplementedError


class LayerFusionConfig(FusionConfig):
    """Options of all fusions of several layers."""

    embedding: bool = True
    """Fuse the word embedding too, as layer 0 (MLRF Table 4). If `connect: dense` has summary
    layers, this is the output of the last summary layer instead."""
    layer_embedding: bool = False
    """Add a learned vector to each layer (MLRF Equation 4). If both sides have one, of the same
    width, they share it."""
    norm: bool = True
    """Apply layer normalisation to the result (MLRF section 3.2)."""


class LayerEmbedding(nn.Module):
    """E of MLRF Equation 4: a learned vector for each layer index; the word embedding is 0."""

    def __init__(self, first: int, layers: int, width: int):
        """``layers`` vectors, the first of them for layer ``first``."""
        super().__init__()
        self.first = first
        self.weight = nn.Parameter(torch.empty(layers, width).uniform_(-0.1, 0.1))

    def forward(self, first: int, layers: int) -> Tensor:
        """Return the vectors (layers, D) of ``layers`` layers from layer ``first`` on."""
        start = first - self.first
        return self.weight[start : start + layers]


class LayerFusion(Fusion):
    """Base of the fusions of several layers: it applies their common options.

    Subclasses write ``fuse``.
    """

    Config: type[FusionConfig] = LayerFusionConfig

    def __init__(
        self,
        config: LayerFusionConfig,
        widths: Sequence[int],
        width: int,
        name: str,
        first: int | None = None,
    ):
        """``first``: the lowest layer that is fused; by default ``config.embedding`` decides."""
        super().__init__(config, widths, width, name)
        self.first = int(not config.embedding) if first is None else first
        fused_widths = widths[self.first :]
        self.depth = len(fused_widths)
        # Layers of another width are projected to the width of the result.
        self.project = nn.ModuleList(
            nn.Identity() if layer_width == width else nn.Linear(layer_width, width)
            for layer_width in fused_widths
        )
        if config.layer_embedding:
            self.layer_embedding = LayerEmbedding(self.first, self.depth, width)
        self.norm = nn.LayerNorm(width) if config.norm else nn.Identity()

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return self.norm(self.fuse(self.layers(history)))

    def layers(self, history: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs of ``fuse``: the projected layers.

        The layer embedding, if there is one, is added to them (MLRF Equation 4).
        """
        projected = [
            project(layer)
            for project, layer in zip(self.project, history[self.first :], strict=True)
        ]
        if self.layer_embedding is None:
            return projected
        vectors = self.layer_embedding(self.first, self.depth).unbind()
        return [layer + vector for layer, vector in zip(projected, vectors, strict=True)]

    def fuse(self, layers: list[Tensor]) -> Tensor:
        """Fuse L layers (..., D), the lowest first -> (..., D)."""
        raise NotImplementedError


def share_layer_embedding(a: Fusion, b: Fusion) -> None:
    """Give two fusions one layer embedding, if both have one and their widths are the same.

    MLRF section 3.2: "a shared layer embedding".
    """
    ours = a.layer_embedding
    other = b.layer_embedding
    if ours is None or other is None or ours.weight.shape[1] != other.weight.shape[1]:
        return
    first = min(ours.first, other.first)
    end = max(ours.first + len(ours.weight), other.first + len(other.weight))
    shared = LayerEmbedding(first, end - first, ours.weight.shape[1])
    a.layer_embedding = shared
    b.layer_embedding = shared
