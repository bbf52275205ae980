"""The moving average of the weights (EMA): formula, use in validation and decoding, resume."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fusetk import runs, system
from fusetk import train as train_module
from fusetk import weights as weights_module
from fusetk.recipe import load
from fusetk.training.ema import Ema
from fusetk.training.validation import Validator
from fusetk.weights import read_state

GIVEN = ["training.ema=0.9", "training.validation.every_updates=2"]


def test_the_formula() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    ema, expected = (
        Ema(model, 0.4),
        {name: p.detach().clone() for name, p in model.named_parameters()},
    )
    for t in range(1, 8):
        for name, p in model.named_parameters():
            p.data += torch.randn_like(p)
            d = min(0.4, (1 + t) / (10 + t))
            expected[name] = d * expected[name] + (1 - d) * p.detach()
        ema.update(t)
    raw = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(RuntimeError), ema.in_place():
        torch.testing.assert_close(dict(model.named_parameters()), expected)
        raise RuntimeError
    torch.testing.assert_close(dict(model.named_parameters()), raw)
    torch.testing.assert_close(ema.mean, expected)


class NoMemory(TorchDispatchMode):
    """Context in which each operation fails that allocates memory for its result."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        memory = {each.untyped_storage().data_ptr() for each in args if isinstance(each, Tensor)}
        if result.untyped_storage().data_ptr() not in memory:
            raise RuntimeError("CUDA error: out of memory")
        return result


def test_the_weights_return_if_the_memory_is_exhausted() -> None:
    """The traceback of a failed validation may keep all of its tensors."""
    model = nn.Linear(3, 2)
    ema = Ema(model, 0.4)
    for p in model.parameters():
        p.data += 1
    raw, mean = (
        {name: p.detach().clone() for name, p in tensors}
        for tensors in (model.named_parameters(), ema.mean.items())
    )
    stack = ExitStack()
    stack.enter_context(ema.in_place())
    torch.testing.assert_close(dict(model.named_parameters()), mean)
    with NoMemory():
        stack.close()
    torch.testing.assert_close(dict(model.named_parameters()), raw)
    torch.testing.assert_close(ema.mean, mean)


def test_validation_checkpoints_and_translation_use_the_average(toy: Path, tmp_path: Path) -> None:
    train_module.train(load(toy, GIVEN), tmp_path / "run", "cpu", quiet=True)
    last = tmp_path / "run" / "checkpoints" / "last"
    raw, mean = (weights_module.read_tensors(last, file) for file in (runs.MODEL, runs.EMA))
    assert raw.keys() == mean.keys() and not any(torch.equal(raw[name], mean[name]) for name in raw)
    for given, tensors in ((False, mean), (True, raw)):
        loaded = dict(system.load_model(last, raw=given).model.named_parameters())
        assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    recipe = load(toy, GIVEN)
    validator = Validator(
        recipe.training.validation,
        recipe.decoding,
        Path(recipe.data.folder),
        system.load_model(last).pipeline,
    )
    part = validator.validate_part(system.load_model(last).model, "fp32")
    assert validator.combine([part])["loss"] == pytest.approx(
        read_state(last)["valid"]["loss"], rel=1e-5
    )


def test_resuming_is_exact(toy: Path, tmp_path: Path) -> None:
    train_module.train(load(toy, GIVEN), tmp_path / "whole", "cpu", quiet=True)
    train_module.train(
        load(toy, [*GIVEN, "training.stages.0.end.updates=3"]),
        tmp_path / "parts",
        "cpu",
        quiet=True,
    )
    train_module.train(load(toy, GIVEN), tmp_path / "parts", "cpu", quiet=True)
    for file in (runs.MODEL, runs.TRAINING, runs.EMA):
        whole, parts = (
            (tmp_path / name / "checkpoints" / runs.checkpoint_name(8) / file).read_bytes()
            for name in ("whole", "parts")
        )
        assert whole == parts, file
