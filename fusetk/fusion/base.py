"""The contract of every fusion: phi, many layers in, one representation out, position by position."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fusetk.config import ComponentConfig


class FusionConfig(ComponentConfig):
    """Options of a fusion; each fusion has a subclass of its own."""

    def check(self, layers: int) -> None:
        """Raise ValueError, in a sentence for the user, when a stack of ``layers`` layers cannot be fused so."""


class Fusion(nn.Module):
    """phi of MLRF Equation 3: what a stack of layers hands on, made from the outputs of all of them.

    A fusion acts on the layer axis alone: position t of what comes out depends on position t of what goes in and on
    nothing else. So it needs no state in decoding and works in every backbone. To write one, subclass ``LayerFusion``,
    or this class where its options make no sense.
    """

    Config: type[FusionConfig] = FusionConfig
    out_width: int
    layer_embedding: "LayerEmbedding | None"

    def __init__(self, config: FusionConfig, widths: Sequence[int], width: int, name: str):
        """``widths`` of the history, the embedding's first; ``width`` wanted; ``name`` for ``fusetk.trace``."""
        super().__init__()
        self.name = name
        self.out_width = width
        self.layer_embedding = None

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        """[(..., widths[i])], the embedding first and the highest layer last -> (..., out_width)."""
        raise NotImplementedError


class LayerFusionConfig(FusionConfig):
    """What all fusions of several layers can be told."""

    embedding: bool = True
    """The word embedding is fused too, as layer 0 (MLRF Table 4); behind summaries of `connect: dense`, the last summary is."""
    layer_embedding: bool = False
    """Add a learned vector of its index to every layer (MLRF Equation 4). Sides of one width that both have it share it."""
    norm: bool = True
    """Layer normalisation of the result (MLRF section 3.2)."""


class LayerEmbedding(nn.Module):
    """E of MLRF Equation 4: a vector for each layer's index, 0 being the word embedding's."""

    def __init__(self, first: int, layers: int, width: int):
        super().__init__()
        self.first = first
        self.weight = nn.Parameter(torch.empty(layers, width).uniform_(-0.1, 0.1))

    def forward(self, first: int, layers: int) -> Tensor:
        """Vectors (layers, D) of the layers ``first``, ``first`` + 1, ..."""
        return self.weight[first - self.first : first - self.first + layers]


class LayerFusion(Fusion):
    """A fusion of several layers: subclasses write ``fuse``, the options that all have in common are kept here."""

    Config: type[FusionConfig] = LayerFusionConfig

    def __init__(
        self,
        config: LayerFusionConfig,
        widths: Sequence[int],
        width: int,
        name: str,
        first: int | None = None,
    ):
        """``first``: the lowest layer that ``fuse`` wants to see, where ``config.embedding`` does not decide it alone."""
        super().__init__(config, widths, width, name)
        self.first = int(not config.embedding) if first is None else first
        fused = widths[self.first :]
        self.depth = len(fused)
        # Layers of another width are mapped to the one that is wanted.
        self.project = nn.ModuleList(
            nn.Identity() if found == width else nn.Linear(found, width) for found in fused
        )
        if config.layer_embedding:
            self.layer_embedding = LayerEmbedding(self.first, self.depth, width)
        self.norm = nn.LayerNorm(width) if config.norm else nn.Identity()

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return self.norm(self.fuse(self.layers(history)))

    def layers(self, history: Sequence[Tensor]) -> list[Tensor]:
        """What is fused: L layers (..., D), with the embedding of their index where there is one (MLRF Equation 4)."""
        found = [
            project(layer)
            for project, layer in zip(self.project, history[self.first :], strict=True)
        ]
        if self.layer_embedding is None:
            return found
        indices = self.layer_embedding(self.first, self.depth).unbind()
        return [layer + index for layer, index in zip(found, indices, strict=True)]

    def fuse(self, layers: list[Tensor]) -> Tensor:
        """L layers (..., D), the lowest first -> (..., D)."""
        raise NotImplementedError


def share_layer_embedding(one: Fusion, other: Fusion) -> None:
    """Let two fusions that both have a layer embedding of one width use the same ("a shared layer embedding", MLRF section 3.2)."""
    a, b = one.layer_embedding, other.layer_embedding
    if a is None or b is None or a.weight.shape[1] != b.weight.shape[1]:
        return
    first = min(a.first, b.first)
    end = max(a.first + len(a.weight), b.first + len(b.weight))
    one.layer_embedding = other.layer_embedding = LayerEmbedding(
        first, end - first, a.weight.shape[1]
    )
