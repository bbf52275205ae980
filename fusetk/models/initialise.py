"""How weights are drawn before training."""

from collections.abc import Callable

from torch import nn

from fusetk.nn.attention import CrossAttention, KeysValues
from fusetk.nn.output import OutputProjection
from fusetk.nn.positions import Learned


def xavier(model: nn.Module) -> None:
    """Linear maps uniform by Glorot and Bengio (2010), biases zero, embeddings and output N(0, D^-0.5): fairseq's Transformer.

    Queries, keys and values count as one matrix (3D, D), in self-attention and, where the widths agree, in attention to
    the source: that is the gain of 1 / sqrt(2) which fairseq gives to each of the three.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding | Learned | OutputProjection):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
    for module in model.modules():
        if isinstance(module, KeysValues):
            bound = (6 / (4 * module.in_features)) ** 0.5
            nn.init.uniform_(module.weight, -bound, bound)
        if isinstance(module, CrossAttention) and all(
            m.in_features == module.query.in_features for m in module.project
        ):
            bound = (6 / (4 * module.query.in_features)) ** 0.5
            for matrix in (module.query, *module.project):
                nn.init.uniform_(matrix.weight, -bound, bound)


def mlrf(model: nn.Module) -> None:
    """Embeddings (and what is tied to them) N(0, D^-0.5), all other maps and biases U(+-1 / sqrt(fan_in)) (MLRF section 4.2)."""
    for module in model.modules():
        if isinstance(module, nn.Linear | OutputProjection):
            bound = module.weight.shape[1] ** -0.5
            nn.init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -bound, bound)
    for module in model.modules():
        if isinstance(module, nn.Embedding | Learned):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)


INITIALISERS: dict[str, Callable[[nn.Module], None]] = {"xavier": xavier, "mlrf": mlrf}
