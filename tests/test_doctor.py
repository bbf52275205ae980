"""``fusetk doctor`` names what is slow and why."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fusetk import doctor, machine
from fusetk.cli.main import main
from fusetk.nn.fused import build
from fusetk.processor import UsableMemory
from fusetk.ways import Way


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    """Restore the number of threads, which the command sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure small products for a short time."""
    monkeypatch.setattr(doctor, "SIZE", 64)
    monkeypatch.setattr(doctor, "SECONDS", 0.001)
    monkeypatch.setattr(doctor, "slower_than_float32", lambda dtype: False)


def examined(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def test_the_description_has_the_choices_and_the_limits() -> None:
    description = examined()
    ways = machine.chosen_ways().ways
    assert description["choices"] == {name: machine.way_name(way) for name, way in ways.items()}
    assert description["gflops"]["float32"] > 0
    assert {"recurrence", "transformer"} <= set(description["kernels"])
    text = CliRunner().invoke(main, ["doctor"]).stdout
    for name, way in description["choices"].items():
        assert f"  {name}: {way}" in text
    assert description["processor"] in text


def test_measure_again_replaces_the_stored_ways(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    products = "float32 products"

    def measured(patch: pytest.MonkeyPatch, way: str, *arguments: str) -> Way:
        defaults = {each.name: each.ways[0] for each in machine.OPERATIONS}
        chosen = machine.ChosenWays("p", 1, {**defaults, products: way})
        patch.setattr(machine, "_measure", lambda matmul: chosen)
        result: Way = examined(*arguments)["choices"][products]
        return result

    with monkeypatch.context() as patch:
        patch.setattr(machine, "cache_folders", lambda: [tmp_path / "cache"])
        machine._chosen_ways.cache_clear()
        library = machine.way_name("MKL")
        assert measured(patch, "MKL") == library
        assert measured(patch, "oneDNN") == library, "the stored way"
        other = tmp_path / "cache" / "machine-0.json"
        other.write_text("of another machine")
        assert measured(patch, "oneDNN", "--measure-again") == "oneDNN"
        assert other.exists()
        machine._chosen_ways.cache_clear()
        assert measured(patch, "MKL") == "oneDNN", "the new way is stored"
    machine._chosen_ways.cache_clear()
    machine.chosen_ways()  # those of this machine


def test_products_without_mkl_are_those_of_pytorchs_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    names = [machine.way_name(way) for way in ("MKL", "oneDNN", "kernels", 64)]
    assert names == ["PyTorch's BLAS", "oneDNN", "kernels", 64]


def test_advice_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        patch.setattr(build.tempfile, "tempdir", str(tmp_path))
        description = examined()
    build.library.cache_clear()
    assert "no compiler no-such-compiler" in description["kernels"]["transformer"]
    assert any("install a C++ compiler" in sentence for sentence in description["advice"])


def test_cache_folders_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert doctor._cache_state(tmp_path / "home" / "cache") == "cannot be written"
    monkeypatch.undo()
    assert doctor._cache_state(tmp_path / "home" / "cache") == "does not exist"
    assert doctor._cache_state(tmp_path) == "0 files"
    (tmp_path / "kernel.so").touch()
    assert doctor._cache_state(tmp_path) == "1 file"


@pytest.mark.parametrize(
    ("of_groups", "total", "available"),
    [((math.inf, math.inf), 64.0, 32.0), ((8e9, 1.5e9), 8.0, 1.5)],
)
def test_the_memory_is_that_of_the_container(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    of_groups: tuple[float, float],
    total: float,
    available: float,
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 62500000 kB\nMemAvailable: 31250000 kB\n")
    monkeypatch.setattr(doctor, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(doctor, "control_group_memory", lambda: UsableMemory(*of_groups))
    assert doctor._memory() == {"total": total, "available": available}
    monkeypatch.setattr(doctor, "MEMINFO", tmp_path / "missing")
    assert doctor._memory() == {"total": None, "available": None}


def test_gpus_that_cuda_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may fail although it counts the GPUs."""

    def fail(index: int) -> None:
        raise RuntimeError("CUDA error: initialization error\nCompile with TORCH_USE_CUDA_DSA.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    assert doctor._gpus() == ["cannot be used (CUDA error: initialization error)"]


def test_advice_with_disabled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("FUSETK_KERNELS", "off")
        description = examined()
    build.library.cache_clear()
    assert set(description["kernels"].values()) == {"disabled by FUSETK_KERNELS"}
    assert "the compiled kernels are disabled: unset FUSETK_KERNELS" in description["advice"]


@pytest.mark.parametrize("bf16, emulated", [(100.0, True), (None, True), (190.0, False)])
def test_advice_about_bf16(
    monkeypatch: pytest.MonkeyPatch, bf16: float | None, emulated: bool
) -> None:
    rates = {"float32": 100.0, "bf16": bf16, "int8": None}
    monkeypatch.setattr(doctor, "PRODUCTS", {name: (name,) for name in rates})
    monkeypatch.setattr(doctor, "_rate", rates.__getitem__)
    description = examined()
    assert any("emulates" in sentence for sentence in description["advice"]) == emulated
    assert "int8: not supported" in CliRunner().invoke(main, ["doctor"]).stdout


@pytest.mark.parametrize("slow", [True, False])
def test_advice_about_int8(monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    """It depends on the ways in use, not on the rate of PyTorch's product."""
    monkeypatch.setattr(doctor, "slower_than_float32", lambda dtype: slow)
    advice = examined()["advice"]
    assert any("--precision int8" in sentence for sentence in advice) == slow


def test_advice_about_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusetk.cli.doctor.usable_processors", lambda: 64)
    description = examined("--threads", "1")
    assert any("uses 1 of 64 processors" in sentence for sentence in description["advice"])


@pytest.mark.parametrize(
    ("load", "threads", "processors", "is_slow"),
    [(1.2, 2, 2, True), (1.2, 1, 2, False), (0.3, 2, 2, False), (1.2, 2, 8, False)],
)
def test_advice_about_other_programs(
    monkeypatch: pytest.MonkeyPatch, load: float, threads: int, processors: int, is_slow: bool
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    description = examined("--threads", str(threads))
    assert description["load"] == load
    assert any("other programs compute now" in text for text in description["advice"]) == is_slow
