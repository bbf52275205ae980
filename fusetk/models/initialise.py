"""Initial weights."""

from collections.abc import Callable

from torch import nn

from fusetk.nn.attention import CrossAttention, KeysValues
from fusetk.nn.output import OutputProjection
from fusetk.nn.positions import Learned


def xavier(model: nn.Module) -> None:
    """Initialise the weights like fairseq's Transformer.

    Matrices are uniform (Glorot and Bengio 2010) and biases are zero. Embeddings and the output
    projection are normal with standard deviation D^-0.5. The projections to queries, keys and
    values are initialised as one matrix (3D, D), in self-attention and, if the widths are equal, in
    attention to the source. This is equal to the gain of 1 / sqrt(2) that fairseq gives to each of
    the three.
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
            project.in_features == module.query.in_features for project in module.project
        ):
            bound = (6 / (4 * module.query.in_features)) ** 0.5
            for matrix in (module.query, *module.project):
                nn.init.uniform_(matrix.weight, -bound, bound)


def mlrf(model: nn.Module) -> None:
    """Initialise the weights as in MLRF section 4.2.

    Embeddings, and matrices tied to them, are normal with standard deviation D^-0.5. All other
    matrices and biases are uniform in +-1 / sqrt(fan_in).
    """
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
