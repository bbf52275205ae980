"""All models on the device `meta`: no tensor on another device, and few waits of the host.

Tensors on `meta` have shapes but no values. They take the branches that are not those of the CPU.
An operation with tensors on two devices is an error, and so is reading a value.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fusetk.data.batch import Batch
from fusetk.decoding.beam import search
from fusetk.decoding.config import SearchConfig
from fusetk.models import Seq2Seq
from fusetk.training.update import accumulate_gradients, batch_loss, optimizer_step
from tests.contracts.systems import SEARCHED, SYSTEMS
from tests.helpers.batches import random_batch, with_lengths

Builder = Callable[[], Seq2Seq]
READS = (torch.ops.aten._local_scalar_dense, torch.ops.aten.item, torch.ops.aten.is_nonzero)
COPIES = (torch.ops.aten._to_copy, torch.ops.aten.to)
TRANSFERS = (torch.ops.aten.copy_,)


class HostReads(TorchDispatchMode):
    """Within this context reading of values on `meta` is counted, and mixing devices is an error.

    The values are zeros. Integers are ones, because a sentence has at least one token.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if function.overloadpacket in READS and args[0].is_meta:
            self.count += 1
            return False if function.overloadpacket is READS[-1] else 0.0
        to_host = function.overloadpacket in COPIES and str(options.get("device")) == "cpu"
        if to_host and args[0].is_meta:
            self.count += 1
            dtype = options.get("dtype") or args[0].dtype
            return torch.full(args[0].shape, 1 if dtype == torch.int64 else 0, dtype=dtype)
        tensors = [value for value in tree_leaves((args, options)) if isinstance(value, Tensor)]
        # torch accepts indices on another device here, and not on a GPU.
        on_host = [tensor for tensor in tensors if not tensor.is_meta and tensor.dim()]
        if on_host and len(on_host) < len(tensors) and function.overloadpacket not in TRANSFERS:
            raise RuntimeError(f"{function} has tensors on meta and on another device")
        return function(*args, **options)


def batch_on_meta() -> Batch:
    return with_lengths(random_batch()).to(torch.device("meta"))


def check_update(model: Seq2Seq) -> None:
    """Check that a training update reads one value from the device: the gradient norm."""
    model = model.to("meta").train()
    optimizer = torch.optim.Adam(model.parameters())
    with HostReads() as host:
        batches = [batch_on_meta(), batch_on_meta()]
        losses = accumulate_gradients(model, batches, 0.1, "fp32", 30)
        assert host.count == 0
        assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())
        optimizer_step(model, optimizer, losses, 0.1, 1.0)
    assert host.count == 1


def search_reads(model: Seq2Seq, steps: int, **settings: Any) -> int:
    """Return how often a search of this many steps reads values from the device."""
    batch = batch_on_meta()
    config = SearchConfig(max_length_factor=0, max_length_extra=steps, **settings)
    with HostReads() as host:
        search([model], batch.src, batch.src_mask, config)
    return host.count


@pytest.mark.parametrize("name", SEARCHED)
def test_an_update_waits_for_the_device_once(name: str) -> None:
    check_update(SYSTEMS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(SYSTEMS) - set(SEARCHED)))
def test_an_update_of_every_system_waits_for_the_device_once(name: str) -> None:
    check_update(SYSTEMS[name]())


@pytest.mark.parametrize("name", SEARCHED)
@pytest.mark.parametrize("settings", [{"beam": 3}, {"beam": 1}, {"beam": 4, "groups": 2}])
def test_a_search_step_waits_for_the_device_once(name: str, settings: dict[str, int]) -> None:
    model = SYSTEMS[name]().to("meta")
    assert search_reads(model, 4, **settings) == search_reads(model, 3, **settings) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(SYSTEMS) - set(SEARCHED)))
def test_a_search_step_of_every_system_waits_for_the_device_once(name: str) -> None:
    model = SYSTEMS[name]().to("meta")
    assert search_reads(model, 4, beam=2) == search_reads(model, 3, beam=2) + 1


def test_reading_of_values_is_counted() -> None:
    tensor = torch.zeros(3, device="meta")
    with HostReads() as host:
        assert (tensor.sum().item(), bool(tensor.any()), tensor.tolist()) == (0.0, False, [0] * 3)
    assert host.count == 3


@pytest.mark.parametrize("name", ["src", "src_mask", "tgt_in", "tgt_out", "target_index"])
def test_another_device_is_an_error(name: str) -> None:
    model = SYSTEMS["coordinated"]().to("meta")
    batch = batch_on_meta()
    tensor = torch.zeros_like(getattr(batch, name), device="cpu")
    with HostReads(), pytest.raises(RuntimeError, match="meta"):
        batch_loss(model, batch._replace(**{name: tensor}), 0.1)


def lengths_on_the_host(batch: Batch) -> tuple[Tensor, Tensor]:
    numbers = torch.arange(1, batch.tgt_in.shape[1] + 1)
    return batch.src_mask.sum(1), (numbers * (batch.tgt_in != 0)).amax(1)


@pytest.mark.parametrize("name", SEARCHED)
def test_lengths_on_the_host_change_nothing(name: str) -> None:
    model = SYSTEMS[name]()
    batch = random_batch()
    inputs = (batch.src, batch.src_mask, batch.tgt_in)
    assert torch.equal(model(*inputs, lengths=lengths_on_the_host(batch)), model(*inputs))
