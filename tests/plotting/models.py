"""Random models with fusions and connections, for the tests of plots."""

from typing import Any

import torch

from fusetk.models import MODELS
from fusetk.models.seq2seq import Seq2Seq

SIZE = 12  # tokens of each vocabulary


def transformer(encoder: dict[str, Any], decoder: dict[str, Any], **more: Any) -> Seq2Seq:
    """Return a random Transformer. Weights that are initialised equally are random, too."""
    torch.manual_seed(4)
    kind = MODELS["transformer"]
    settings = {
        "kind": "transformer",
        "width": 16,
        "heads": 4,
        "ffn": 16,
        "encoder": encoder,
        "decoder": decoder,
        **more,
    }
    model: Seq2Seq = kind(kind.Config.model_validate(settings), SIZE, SIZE)
    for name, parameter in model.named_parameters():
        if ("combine" in name and parameter.ndim == 1) or name.endswith("beta"):
            torch.nn.init.normal_(parameter)
    return model


def stack(fuse: str | dict[str, Any], layers: int = 3, **more: Any) -> dict[str, Any]:
    return {"layers": layers, "fuse": {"kind": fuse} if isinstance(fuse, str) else fuse, **more}
