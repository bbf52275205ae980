"""The interface of every fusion phi: it maps many layers to one tensor at each position."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusetk.config import ComponentConfig
from fusetk.nn.projection import projection_or_identity
from fusetk.nn.reserved import reserve
from fusetk.nn.shape_check import check_shape

# Layers (..., D), and a function that combines them.
Combination = tuple[list[Tensor], Callable[[list[Tensor]], Tensor]]


class FusionConfig(ComponentConfig):
    """Options of a fusion; each fusion has its own subclass."""

    def check(self, layers: int) -> None:
        """Raise ValueError, with a message for the user, if ``layers`` layers cannot be fused."""


class Fusion(nn.Module):
    """phi of MLRF Equation 3: the map from the outputs of a stack's layers to its output.

    A fusion combines layers, never positions: position t of its output depends only on position t
    of the layers. Therefore it needs no state in decoding and works in every backbone. A new fusion
    is a subclass of ``LayerFusion``. If the options of ``LayerFusion`` do not apply to it, it is a
    direct subclass of this class.
    """

    Config: type[FusionConfig] = FusionConfig
    reads_top_input = False
    """Whether the fusion reads only the last tensor of the history, the top input of the stack. The
    other tensors may be missing."""
    fuses_several = True
    """Whether the fusion combines several layers."""
    config: Any
    """The options, an object of the class ``Config``."""
    out_width: int
    layer_embedding: "LayerEmbedding | None"

    def __init__(self, config: FusionConfig, widths: Sequence[int], width: int, name: str):
        """``widths`` are the widths of the history, the embedding first.

        ``width`` is the width of the result. ``name`` is the prefix of the tensors that the fusion
        records with ``fusetk.trace``.
        """
        super().__init__()
        self.config = config
        self.name = name
        self.out_width = width
        self.layer_embedding = None
        reserve(self, Fusion, "name")

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        """[(..., widths[i])], the embedding first, the highest layer last -> (..., out_width)."""
        raise NotImplementedError(f"{type(self).__name__} has no method forward")

    def initialise(self) -> None:
        """Change the initial weights, if the fusion needs others than those of the model's `init`.

        Models call it once, after `init`.
        """

    def combination(self, history: Sequence[Tensor]) -> Combination:
        """Return the layers that the fusion combines, and the function that combines them.

        The share of each layer in the result is computed from these.
        """
        return list(history), self


def fusions_of_stacks(model: nn.Module) -> dict[str, Fusion]:
    """Return the fusions of several layers by name, encoder.fuse before decoder.fuse.

    A fusion inside another one is not returned.
    """
    fusions: dict[str, Fusion] = {}
    for module in model.modules():  # a fusion precedes those that it contains
        if isinstance(module, Fusion) and module.fuses_several:
            fusions.setdefault(module.name, module)
    return {name: fusions[name] for name in ("encoder.fuse", "decoder.fuse") if name in fusions}


class LayerFusionConfig(FusionConfig):
    """Options of all fusions of several layers."""

    embedding: bool = True
    """Fuse the word embedding too, as layer 0 (MLRF Table 4). If `connect: dense` has summary
    layers, this is the output of the last summary layer instead."""
    layer_embedding: bool = False
    """Add a learned vector to each layer (MLRF Equation 4). Encoder and decoder share the vectors
    if these have one width and at least one layer number is fused on both sides. If `connect:
    dense` has summary layers, the layers are counted from the last summary, which is layer 0."""
    norm_layers: bool = False
    """Normalise each layer before the fusion (Wang et al. 2019). The layers of a post-norm model,
    such as MLRF's, are normalised. With `norm: pre` they are not: higher layers have larger
    values."""
    add_top: bool = False
    """Add the highest layer to the result of the fusion, before `norm`. It is the layer as the
    fusion reads it: with its layer embedding, and normalised if `norm_layers` is set. MLRF's
    fusions replace the highest layer. None of the five papers has this option."""
    norm: bool = True
    """Apply layer normalisation to the result (MLRF section 3.2)."""

    def check_two_layers(self, layers: int) -> None:
        """Raise ValueError if fewer than two layers are fused."""
        if layers + self.embedding < 2:
            raise ValueError(
                f"fuse: {self.kind} needs two layers or more: make the stack deeper, or set "
                "embedding: true"
            )


class LayerEmbedding(nn.Module):
    """E of MLRF Equation 4: a learned vector for each layer. The word embedding is layer 0."""

    def __init__(self, first: int, layers: int, width: int):
        """Make vectors for ``layers`` layers. ``first`` is the lowest of them."""
        super().__init__()
        self.first = first
        self.weight = nn.Parameter(torch.empty(layers, width).uniform_(-0.1, 0.1))

    def forward(self, first: int, layers: int) -> Tensor:
        """Return the vectors (layers, D) of ``layers`` layers from layer ``first`` on."""
        start = first - self.first
        return self.weight[start : start + layers]


class LayerFusion(Fusion):
    """Base class of the fusions of several layers, which applies their common options.

    Subclasses implement ``fuse``.
    """

    Config: type[FusionConfig] = LayerFusionConfig
    num_fused: int
    """Number of tensors that ``fuse`` gets: the embedding counts if it is fused."""

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
        self.num_fused = len(fused_widths)
        self.fuses_several = self.num_fused > 1
        # A layer of another width is projected to the width of the result.
        self.project = nn.ModuleList(
            projection_or_identity(layer_width, width) for layer_width in fused_widths
        )
        self.norm_layers = nn.ModuleList(
            nn.LayerNorm(width) if config.norm_layers else nn.Identity() for _ in fused_widths
        )
        if config.layer_embedding:
            self.layer_embedding = LayerEmbedding(self.first, self.num_fused, width)
        self.add_top = config.add_top
        self.norm = nn.LayerNorm(width) if config.norm else nn.Identity()
        reserve(self, LayerFusion, "first", "num_fused", "project", "norm_layers")
        reserve(self, LayerFusion, "add_top", "norm")

    def forward(self, history: Sequence[Tensor]) -> Tensor:
        return self.norm(self.fuse_and_add(self.layers(history)))

    def layers(self, history: Sequence[Tensor]) -> list[Tensor]:
        """Return the layers in the width of the result. With ``norm_layers``, they are normalised.

        The layer embedding, if there is one, is added to them (MLRF Equation 4).
        """
        modules = zip(self.project, self.norm_layers, strict=True)
        projected = [
            norm(project(layer))
            for (project, norm), layer in zip(modules, history[self.first :], strict=True)
        ]
        if self.layer_embedding is None:
            return projected
        vectors = self.layer_embedding(self.first, self.num_fused).unbind()
        return [layer + vector for layer, vector in zip(projected, vectors, strict=True)]

    def combination(self, history: Sequence[Tensor]) -> Combination:
        """Return the layers, and ``fuse_and_add``. The closing norm is not included."""
        return self.layers(history), self.fuse_and_add

    def fuse_and_add(self, layers: list[Tensor]) -> Tensor:
        """Fuse L layers as ``fuse`` does. With ``add_top``, add the highest of them.

        Raises ConfigError if the result is not a tensor of the shape of the layers.
        """
        fused = self.fuse(layers)
        check_shape(fused, layers[-1].shape[:-1], self.out_width, self)
        return fused + layers[-1] if self.add_top else fused

    def fuse(self, layers: list[Tensor]) -> Tensor:
        """Fuse L layers, the lowest first: L tensors (..., D) -> (..., D)."""
        raise NotImplementedError(f"{type(self).__name__} has no method fuse")


def share_layer_embedding(a: Fusion, b: Fusion) -> None:
    """Make two fusions share one new layer embedding (MLRF section 3.2).

    This has no effect unless both have a layer embedding of the same width, and at least one layer
    number is fused by both.
    """
    vectors_a = a.layer_embedding
    vectors_b = b.layer_embedding
    if vectors_a is None or vectors_b is None:
        return
    width = vectors_a.weight.shape[1]
    firsts = (vectors_a.first, vectors_b.first)
    ends = (firsts[0] + len(vectors_a.weight), firsts[1] + len(vectors_b.weight))
    if vectors_b.weight.shape[1] != width or max(firsts) >= min(ends):
        return
    shared = LayerEmbedding(min(firsts), max(ends) - min(firsts), width)
    a.layer_embedding = shared
    b.layer_embedding = shared
