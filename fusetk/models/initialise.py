"""How weights are drawn before training."""

from collections.abc import Callable

from torch import nn

from fusetk.nn.output import Output
from fusetk.nn.positions import Learned


def _embeddings(model: nn.Module) -> None:
    """Embeddings, learned positions and untied outputs from N(0, 1 / sqrt(D)) (standard deviation)."""
    for module in model.modules():
        if isinstance(module, nn.Embedding | Learned | Output):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)


def xavier(model: nn.Module) -> None:
    """Linear maps uniform by Glorot and Bengio (2010), biases zero: fairseq's and tensor2tensor's Transformer.

    Queries, keys and values are one matrix (3D, D) here, which gives each of them the gain 1 / sqrt(2) that fairseq sets.
    """
    _embeddings(model)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def mlrf(model: nn.Module) -> None:
    """Linear maps and their biases from U(+-1 / sqrt(fan_in)), norms 1 and 0 (MLRF section 4.2)."""
    _embeddings(model)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -bound, bound)


INITIALISERS: dict[str, Callable[[nn.Module], None]] = {"xavier": xavier, "mlrf": mlrf}
