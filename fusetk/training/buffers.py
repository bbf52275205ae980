"""The persistent buffers of a model. Only classes outside fusetk have some."""

import torch
from torch import Tensor, nn

from fusetk.weights import saved_tensors


class SavedBuffers:
    """Copies of persistent buffers, which a pass in training mode may change."""

    def __init__(self, model: nn.Module):
        tensors = saved_tensors(model).items()
        names = [name for name, tensor in tensors if not isinstance(tensor, nn.Parameter)]
        places = (name.rpartition(".") for name in names)
        self._places = [(model.get_submodule(module), name) for module, _, name in places]
        self.save()

    @torch.no_grad()
    def save(self) -> None:
        """Copy the buffers."""
        buffers = [getattr(module, name) for module, name in self._places]
        self._saved: list[tuple[Tensor, Tensor]] = [(buffer, buffer.clone()) for buffer in buffers]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the buffers to the last copies."""
        for (module, name), (buffer, copy) in zip(self._places, self._saved, strict=True):
            setattr(module, name, buffer.copy_(copy))
