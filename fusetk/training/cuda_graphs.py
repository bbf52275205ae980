"""CUDA graphs of forward and backward passes: all kernels of a pass are started with one call.

Without graphs, the processor starts each kernel. For a small model this takes longer than the
computation on the GPU.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fusetk.data.batch import Batch
from fusetk.errors import ConfigError, class_name, first_line, out_of_memory
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.stack import stacks_of
from fusetk.training.config import TrainingConfig
from fusetk.training.loss import Loss
from fusetk.training.update import add_gradients, autocast, batch_loss

MAX_GRAPHS = 512  # shapes that are recorded; batches of other shapes are computed without a graph
MAX_SEEN = 1 << 16  # shapes that are known to have occurred

Shape = tuple[torch.Size, ...]
Replay = Callable[[], None]


class _Graph(NamedTuple):
    """The recorded passes of batches of one shape."""

    batch: Batch  # the tensors that the kernels read
    factor: Tensor  # ()
    sums: Tensor  # (3 + additional losses,), to which the kernels write the values of the loss
    names: list[str]  # of the additional losses
    gradients: list[tuple[nn.Parameter, Tensor]]  # the tensors to which the kernels add
    buffers: list[Tensor]  # a module may replace a buffer, and the kernels read the old one
    replay: Replay


class CudaGraphs:
    """The CUDA graphs of a training. The passes of a shape are recorded when it occurs again.

    The first pass of a shape runs without a graph, so that all kernels are loaded and each
    parameter that gets a gradient has a tensor for it. The kernels of a graph add to these tensors.
    """

    def __init__(self, model: Seq2Seq, smoothing: float, precision: str):
        self.model = model
        self.smoothing = smoothing
        self.precision = precision
        self.parameters = [*model.parameters()]
        self.device = self.parameters[0].device
        self.limit = MAX_GRAPHS
        self.clear()

    @classmethod
    def of(cls, model: Seq2Seq, config: TrainingConfig) -> "CudaGraphs | None":
        """Return the graphs of a training; None if it has none or the model is on the CPU."""
        if not config.cuda_graphs or next(model.parameters()).device.type != "cuda":
            return None
        return cls(model, config.label_smoothing, config.precision)

    def clear(self) -> None:
        """Delete all graphs, for example because dropout rates or tensors of gradients change."""
        self.seen: set[Shape] = set()
        self.graphs: dict[Shape, _Graph] = {}
        self.recording = False  # whether a recording has begun and has not succeeded
        self.pool: Any = None  # the handle of the memory that all graphs share

    def halve_limit(self) -> None:
        """Record at most half as many graphs as there are now, after ``clear``."""
        self.limit = len(self.graphs) // 2

    def add_gradients(self, batch: Batch, factor: float) -> Loss:
        """Add the gradients of a batch's loss times ``factor``, and return the loss.

        The batch may be in the memory of the host. Raises ConfigError if the passes cannot be
        recorded.
        """
        shape = tuple(tensor.shape for tensor in batch.tensors)
        if shape not in self.graphs:
            if shape not in self.seen or len(self.graphs) >= self.limit:
                if len(self.seen) < MAX_SEEN:
                    self.seen.add(shape)
                # Without lengths, as in a graph, so that both passes compute the same.
                moved = batch._replace(lengths=None).to(self.device)
                return add_gradients(self.model, moved, self.smoothing, self.precision, factor)
            self.recording = True
            self.graphs[shape] = self._record(batch)
            self.recording = False
        graph = self.graphs[shape]
        if any(parameter.grad is not gradient for parameter, gradient in graph.gradients):
            raise ConfigError(
                "training.cuda_graphs: the optimiser has replaced the tensor of a gradient, to "
                "which a CUDA graph adds: let it change gradients in place, or set "
                "training.cuda_graphs: false"
            )
        for tensor, new in zip(graph.batch.tensors, batch.tensors, strict=True):
            tensor.copy_(new, non_blocking=True)
        graph.factor.fill_(factor)
        graph.replay()
        smoothed, nll, correct, *additional = graph.sums.clone()
        return Loss(smoothed, nll, correct, dict(zip(graph.names, additional, strict=True)))

    def _record(self, batch: Batch) -> _Graph:
        # Copies: a batch that is on the device belongs to the caller.
        inputs = Batch._make(
            [*(tensor.to(self.device, copy=True) for tensor in batch.tensors), None]
        )
        factor = torch.zeros((), device=self.device)
        used: list[nn.Parameter] = []
        names: list[str] = []  # of the additional losses

        def passes() -> Tensor:
            nonlocal used
            with autocast(self.device, self.precision):
                loss = batch_loss(self.model, inputs, self.smoothing)
            trainable = [p for p in self.parameters if p.requires_grad]
            new = torch.autograd.grad(loss.objective * factor, trainable, allow_unused=True)
            used = [p for p, g in zip(trainable, new, strict=True) if g is not None]
            totals = [p.grad for p in used if p.grad is not None]
            if len(totals) < len(used):
                raise RuntimeError("a parameter gets a gradient in some passes only")
            # Few kernels add all gradients; `backward` starts one for each parameter.
            torch._foreach_add_(totals, [g for g in new if g is not None])
            names[:] = loss.additional
            return torch.stack([value.detach() for value in (*loss[:3], *loss.additional.values())])

        before = dict(self.model.named_buffers())
        try:
            replay, sums = self._capture(passes)
        except RuntimeError as error:
            # The end of a failed capture raises an error of its own after the first one. No local
            # variable may refer to an error: it refers to this frame by its traceback, and such a
            # cycle would keep the tensors of the passes in memory.
            if any(map(out_of_memory, _chain(error))):
                raise next(filter(out_of_memory, _chain(error))) from None
            raise ConfigError(
                f"training.cuda_graphs: the passes of {class_name(self.model)} cannot be recorded "
                f"as a CUDA graph ({first_line(_chain(error)[-1])}): their operations must depend "
                "only on the shapes of a batch; set training.cuda_graphs: false"
            ) from error
        for name, buffer in self.model.named_buffers():
            if buffer is not before.get(name):
                raise ConfigError(
                    f"training.cuda_graphs: a pass replaces the buffer {name}, and the passes of a "
                    "CUDA graph would always read the old one: let the class change it in place "
                    "(copy_, add_), or set training.cuda_graphs: false"
                )
        gradients = [(p, p.grad) for p in used if p.grad is not None]
        return _Graph(inputs, factor, sums, names, gradients, [*self.model.buffers()], replay)

    def _capture(self, passes: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        """Record the kernels of ``passes`` without running them.

        Return a function that runs them, and the tensor to which they write the result.
        """
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self.device),
            torch.cuda.stream(torch.cuda.current_stream(self.device)),  # restored after an error
            torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"),
        ):
            sums = passes()
        return graph.replay, sums


def _chain(error: BaseException | None) -> list[RuntimeError]:
    """Return an error and those during whose handling it was raised, the first one at the end."""
    errors = []
    while error is not None:
        if isinstance(error, RuntimeError):
            errors.append(error)
        error = error.__context__
    return errors


def check_recordable(model: Seq2Seq) -> None:
    """Raise ConfigError if the passes of a model of fusetk cannot be recorded."""
    if model.operations_depend_on_lengths:
        raise ConfigError(
            f"training.cuda_graphs: the passes of {class_name(model)} depend on the lengths of the "
            "sentences, so they cannot be recorded: set training.cuda_graphs: false"
        )
    if any(stack.gradient_checkpointing for stack in stacks_of(model)):
        raise ConfigError(
            "training.cuda_graphs: recomputed layers cannot be recorded: set training.cuda_graphs: "
            "false, or remove `checkpoint: true` from the model"
        )
