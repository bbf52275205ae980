"""Fusions: how the outputs of a stack's layers become one representation.

To add a fusion, write its file and add it to ``FUSIONS``. A class outside fusetk is named in the
config as ``package.module:Name``.
"""

from collections.abc import Sequence
from typing import Annotated

from fusetk.config import component, resolve
from fusetk.fusion.attention import AttentionFusion
from fusetk.fusion.average import AverageFusion
from fusetk.fusion.base import Fusion, FusionConfig
from fusetk.fusion.ffn import FFNFusion
from fusetk.fusion.groups import GroupFusion
from fusetk.fusion.iterative import IterativeFusion
from fusetk.fusion.last import LastFusion
from fusetk.fusion.linear import LinearFusion
from fusetk.fusion.tree import TreeFusion

FUSIONS: dict[str, type[Fusion]] = {
    "last": LastFusion,
    "average": AverageFusion,
    "ffn": FFNFusion,
    "attention": AttentionFusion,
    "linear": LinearFusion,
    "iterative": IterativeFusion,
    "tree": TreeFusion,
    "groups": GroupFusion,
}

AnyFusionConfig = Annotated[FusionConfig, component(FUSIONS, "a fusion", Fusion)]
"""Type of a config key that chooses a fusion."""


def fusion_class(config: FusionConfig) -> type[Fusion]:
    """Return the class that ``config.kind`` names. Raises ValueError if no class has this name."""
    return resolve(config.kind, FUSIONS, Fusion)


def build_fusion(config: FusionConfig, widths: Sequence[int], width: int, name: str) -> Fusion:
    """Build the fusion that ``config.kind`` names; for the arguments see ``Fusion``.

    Raises ValueError if no class has this name.
    """
    return fusion_class(config)(config, widths, width, name)
