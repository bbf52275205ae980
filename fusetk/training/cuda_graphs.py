"""CUDA graphs of forward and backward passes: their kernels are recorded once and started together.

Without graphs, the processor starts each kernel. For a small model this takes longer than the
computation on the GPU.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusetk.data.batch import Batch
from fusetk.errors import ConfigError, out_of_memory
from fusetk.models.seq2seq import Seq2Seq
from fusetk.training.config import TrainingConfig
from fusetk.training.loss import Loss
from fusetk.training.step import add_gradients, autocast, batch_loss

MAX_GRAPHS = 512  # recorded shapes; batches of other shapes are computed without a graph

Shape = tuple[torch.Size, ...]


class _Graph(NamedTuple):
    """The recorded passes of batches of one shape."""

    batch: Batch  # the tensors that the kernels read
    factor: Tensor  # ()
    sums: Tensor  # (3,), the tensor to which the kernels write the fields of the loss
    replay: Callable[[], None]


class CudaGraphs:
    """Adds the gradients of batches. Passes are recorded when a shape occurs for the second time.

    The first pass of a shape runs without a graph, so that all kernels are loaded and each
    parameter that gets a gradient has a tensor for it. The kernels of a graph add to these tensors,
    so they must not be replaced before ``clear``.
    """

    def __init__(self, model: Seq2Seq, smoothing: float, precision: str):
        self.model = model
        self.smoothing = smoothing
        self.precision = precision
        self.device = next(model.parameters()).device
        self.clear()

    @classmethod
    def of(cls, model: Seq2Seq, config: TrainingConfig) -> "CudaGraphs | None":
        """Return the graphs of a training; None if it has none or the model is on the CPU."""
        if not config.cuda_graphs or next(model.parameters()).device.type != "cuda":
            return None
        return cls(model, config.label_smoothing, config.precision)

    def clear(self) -> None:
        """Forget all graphs, for example because dropout rates or tensors of gradients change."""
        self.seen: set[Shape] = set()
        self.graphs: dict[Shape, _Graph] = {}
        self.pool: Any = None  # the handle of the memory that all graphs share

    def add_gradients(self, batch: Batch, factor: float) -> Loss:
        """Add the gradients of a batch's loss times ``factor``, and return the loss.

        The batch may be in the memory of the host. Raises ConfigError if the passes cannot be
        recorded.
        """
        shape = tuple(tensor.shape for tensor in batch[:5])
        if shape not in self.graphs:
            if shape not in self.seen or len(self.graphs) >= MAX_GRAPHS:
                self.seen.add(shape)
                moved = batch._replace(lengths=None).to(self.device)
                return add_gradients(self.model, moved, self.smoothing, self.precision, factor)
            self.graphs[shape] = self._record(batch)
        graph = self.graphs[shape]
        for tensor, new in zip(graph.batch[:5], batch[:5], strict=True):
            tensor.copy_(new, non_blocking=True)
        graph.factor.fill_(factor)
        graph.replay()
        return Loss(*graph.sums.clone())

    def _record(self, batch: Batch) -> _Graph:
        # Copies: a batch that is on the device belongs to the caller.
        inputs = Batch._make([*(tensor.to(self.device, copy=True) for tensor in batch[:5]), None])
        factor = torch.zeros((), device=self.device)

        parameters = [p for p in self.model.parameters() if p.grad is not None]

        def passes() -> Tensor:
            with autocast(self.device, self.precision):
                loss = batch_loss(self.model, inputs, self.smoothing)
            outputs = loss.smoothed * factor
            gradients = torch.autograd.grad(outputs, parameters, allow_unused=True)
            used = [
                (p.grad, g) for p, g in zip(parameters, gradients, strict=True) if g is not None
            ]
            # Few kernels add all gradients; `backward` starts one for each parameter.
            torch._foreach_add_(*map(list, zip(*used, strict=True)))
            return torch.stack([value.detach() for value in loss])

        try:
            replay, sums = self._capture(passes)
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            raise ConfigError(
                "training.cuda_graphs: the passes of this model cannot be recorded as a CUDA graph "
                f"({str(error).splitlines()[0]}): its computation must depend only on the shapes "
                "of the batch, not on lengths or values; remove training.cuda_graphs"
            ) from error
        return _Graph(inputs, factor, sums, replay)

    def _capture(self, passes: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Record the kernels of ``passes`` without running them.

        Return a function that runs them, and the tensor to which they write the result.
        """
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self.device),
            torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"),
        ):
            sums = passes()
        return graph.replay, sums
