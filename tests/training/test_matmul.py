"""Precision of float32 products: the config sets it in training, and it is restored afterwards."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fusetk import train as train_module
from fusetk import ways
from fusetk.errors import ConfigError, quantity
from fusetk.machine import ChosenWays, chosen_ways, computing, device_of, way_name
from fusetk.nn.fused import products
from fusetk.processor import processor
from fusetk.recipe import load
from fusetk.training import loop

CPU = torch.device("cpu")


def error() -> float:
    a, b = (torch.randn(512, 512, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())


@pytest.mark.parametrize("matmul", ["highest", "high", "medium"])
def test_the_setting_ends_with_its_context(matmul: str) -> None:
    defaults = {operation.name: operation.ways[0] for operation in ways.OPERATIONS}
    before = torch.get_float32_matmul_precision()
    recorded = ChosenWays(processor(), 1, defaults)
    with pytest.raises(RuntimeError), computing(CPU, matmul, recorded) as said:
        if matmul == "highest":
            assert said == f"by {way_name('MKL')}" and error() < 1e-6
        else:
            assert torch.get_float32_matmul_precision() == matmul
            assert said == f"{matmul}, in fact {'rounded' if error() > 1e-5 else 'exact'}"
        raise RuntimeError
    assert torch.get_float32_matmul_precision() == before


def test_products_are_exact_with_highest_on_every_device() -> None:
    """On a processor, torch's setting medium may be exact. On a GPU it would be tf32."""
    torch.set_float32_matmul_precision("medium")
    try:
        with computing(torch.device("cuda"), "highest") as said:
            assert said == "exact" and torch.get_float32_matmul_precision() == "highest"
        with computing(CPU, "highest"):
            assert error() < 1e-6
    finally:
        device_of("cpu")


def test_training_uses_and_logs_the_setting_and_restores_it(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, plain = set(), loop.optimizer_step

    def spied(*arguments: Any, **named: Any) -> Any:
        seen.add(torch.get_float32_matmul_precision())
        return plain(*arguments, **named)

    monkeypatch.setattr(loop, "optimizer_step", spied)
    device_of("cpu")
    before = torch.get_float32_matmul_precision()
    overrides = ["training.stages.0.end.updates=4", "training.matmul=medium"]
    train_module.train(load(toy, overrides), tmp_path / "run", "cpu", quiet=True)
    assert seen == {"medium"} and torch.get_float32_matmul_precision() == before
    assert "cpu, float32 products medium, in fact " in (tmp_path / "run" / "log.txt").read_text()
    with pytest.raises(
        ConfigError, match=r"another config.*training\.matmul: .medium. -> .highest."
    ):
        train_module.train(load(toy), tmp_path / "run", "cpu", quiet=True)
    train_module.train(load(toy, overrides[:1]), tmp_path / "other", "cpu", quiet=True)
    log = (tmp_path / "other" / "log.txt").read_text()
    kernels = " and kernels" if products.used_in_training[torch.float32] else ""
    threads = quantity(torch.get_num_threads(), "thread")
    products_way = chosen_ways().ways["float32 products"]
    assert f"cpu, float32 products by {products_way}{kernels}, {threads}, fp32\n" in log
