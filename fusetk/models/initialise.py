"""Initial weights."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fusetk.fusion.base import Fusion
from fusetk.fusion.linear import MatrixMix
from fusetk.models.attend import AttendedSources
from fusetk.models.connect import Connection
from fusetk.models.self_attention import CustomSelfAttention
from fusetk.models.stack import Layer
from fusetk.nn.attention import CrossAttention, KeysValues, SelfAttention
from fusetk.nn.output import OutputProjection
from fusetk.nn.positions import Learned


def xavier(model: nn.Module) -> None:
    """Initialise the weights like fairseq's Transformer.

    Matrices are uniform (Glorot and Bengio 2010) and biases are zero. Embeddings and the output
    projection are normal with standard deviation D^-0.5. The projections to queries, keys and
    values are initialised as one matrix (3D, D), in self-attention and, if the widths are equal, in
    attention to the source. This is equal to the gain of 1 / sqrt(2) that fairseq gives to each of
    the three. If a source has another width, the queries are one matrix, and the keys and values of
    each source are another. Each matrix of ``MatrixMix`` is initialised by itself.
    """
    _glorot(model)
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


def tensor2tensor(model: nn.Module) -> None:
    """Initialise the weights like tensor2tensor's Transformer.

    This is ``xavier``, but the projections to queries, keys and values are three matrices. So their
    standard deviation is larger, by a factor of sqrt(2) in self-attention.
    """
    _glorot(model)
    for module in model.modules():
        for matrix in _attention_matrices(module):
            nn.init.xavier_uniform_(matrix)


def _glorot(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding | Learned | OutputProjection):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
    for module in model.modules():
        if isinstance(module, MatrixMix):
            for matrix in module.matrices():
                nn.init.xavier_uniform_(matrix)


def _attention_matrices(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parts of an attention's weights that are one projection each: (D, D_in)."""
    if isinstance(module, SelfAttention):
        weight = module.project.weight.detach()
        yield from torch.split(weight, module.projection_widths)
    elif isinstance(module, KeysValues):
        yield from module.weight.detach().chunk(2)
    elif isinstance(module, CrossAttention):
        for project in module.project:
            yield from project.get_parameter("weight").detach().chunk(2)


def mlrf(model: nn.Module) -> None:
    """Initialise the weights as in MLRF section 4.2.

    Embeddings, and matrices tied to them, are normal with standard deviation D^-0.5. The paper
    prints N(0, D^-0.5); our reading is that D^-0.5 is the standard deviation, not the variance. All
    other matrices and biases are uniform in +-1 / sqrt(fan_in).
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
        elif isinstance(module, MatrixMix):
            for matrix in module.matrices():
                bound = matrix.shape[1] ** -0.5
                nn.init.uniform_(matrix, -bound, bound)


def initialise_parts(model: nn.Module) -> None:
    """Call ``initialise`` of the fusions, connections, attentions and residual connections.

    A residual connection may scale the weights that a self-attention sets.
    """
    for module in model.modules():
        if isinstance(module, Fusion | Connection | AttendedSources):
            module.initialise()
        elif isinstance(module, Layer):
            for residual, sublayer in module.sublayers():
                if isinstance(sublayer, CustomSelfAttention):
                    sublayer.initialise()
                residual.initialise(sublayer)


INITIALISERS: dict[str, Callable[[nn.Module], None]] = {
    "xavier": xavier,
    "tensor2tensor": tensor2tensor,
    "mlrf": mlrf,
}
