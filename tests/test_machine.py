"""The choices of fast computation: measured once, recorded by a run, without effect on results."""

import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn import functional as F

from fusetk import machine, runs, ways
from fusetk import train as train_module
from fusetk import weights as weights_module
from fusetk.errors import ConfigError
from fusetk.machine import (
    ChosenWays,
    chosen_ways,
    computing,
    device_of,
    read_chosen_ways,
    write_chosen_ways,
)
from fusetk.nn import attention
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.fused import products
from fusetk.nn.inference_linear import kernels_are_faster
from fusetk.processor import processor
from fusetk.recipe import Recipe, load
from fusetk.training.update import length_multiple

CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder; the process has no measured choices."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the parent of the second folder
    machine._chosen_ways.cache_clear()
    yield tmp_path / "fusetk"
    machine._chosen_ways.cache_clear()


def uniform(limit: int) -> ChosenWays:
    """Choose plain products for up to ``limit`` keys in each kind of attention."""
    defaults = {each.name: each.ways[0] for each in machine.OPERATIONS}
    limits = {ways.attention_name(kind): limit for kind in ways.ATTENTION_KINDS}
    return ChosenWays(processor(), 1, {**defaults, **limits})


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_products_and_the_fused_kernel_are_equal(dtype: torch.dtype, gradients: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    inputs = [
        torch.randn(2, 3, n, 8, generator=generator, dtype=dtype).requires_grad_(gradients)
        for n in (5, 7, 7)
    ]
    mask = torch.arange(7) < torch.tensor([7, 4])[:, None, None, None]
    results = []
    for limit in (0, 7):
        with computing(CPU, "highest", uniform(limit)):
            output = attention.scaled_dot_product(*inputs, mask, 0.0, "")
            gradient = torch.autograd.grad(output.square().sum(), inputs) if gradients else ()
            results.append((output.detach(), *gradient))
    torch.testing.assert_close(
        *results, **({"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {})
    )


def test_the_limit_decides_by_the_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs),
    )
    q = torch.randn(1, 1, 9, 4)
    with computing(CPU, "highest", uniform(6)):
        for keys, expected in ((6, 0), (7, 1)):
            k = torch.randn(1, 1, keys, 4)
            attention.scaled_dot_product(q, k, k, None, 0.0, "")
            assert len(calls) == expected


def test_choices_are_measured_once_and_stored(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = chosen_ways()
    [file] = cache.glob("machine-*.json")
    assert read_chosen_ways(file) == first
    monkeypatch.setattr(machine, "_measure", lambda matmul: pytest.fail("measured again"))
    machine._chosen_ways.cache_clear()
    assert chosen_ways() == first


@pytest.mark.parametrize("changed", ["sources_hash", "measurements_hash"])
def test_choices_are_measured_again_for_changed_code(
    cache: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setattr(machine, "_measure", lambda matmul: uniform(5))
    assert chosen_ways() == uniform(5)
    machine._chosen_ways.cache_clear()
    monkeypatch.setattr(machine, changed, lambda: "changed")
    monkeypatch.setattr(machine, "_measure", lambda matmul: uniform(6))
    assert chosen_ways() == uniform(6)
    assert len(list(cache.glob("machine-*.json"))) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"processor": 1}',
        "\x00",
        '{"processor": "p", "threads": 1, "ways": {"float32 products": "abacus"}}',
        '{"processor": "p", "threads": 1, "ways": {"float32 products": 0}}',
        '{"processor": "p", "threads": Infinity, "ways": {}}',
    ],
)
def test_damaged_choices_are_measured_again(
    cache: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_measure", lambda matmul: uniform(6))
    chosen_ways()
    [file] = cache.glob("machine-*.json")
    file.write_text(content)
    machine._chosen_ways.cache_clear()
    again = chosen_ways()
    assert read_chosen_ways(file) == again


def test_forgotten_choices_are_those_of_the_limited_number_of_threads(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "usable_processors", lambda: 1)
    monkeypatch.setattr(machine, "_measure", lambda matmul: uniform(6))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        chosen_ways()
        torch.set_num_threads(2)  # of a process that starts in the container
        machine.forget_chosen_ways()
        assert not list(cache.glob("machine-*.json"))
    finally:
        torch.set_num_threads(threads)


def test_parallel_processes_measure_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = iter((1, 2, 3, 4))

    def measure(matmul: str) -> Any:
        limit = next(limits)
        time.sleep(0.1)
        return uniform(limit)

    monkeypatch.setattr(machine, "_measure", measure)
    with ThreadPoolExecutor(3) as pool:  # a thread opens the lock as a process does
        measured = list(pool.map(lambda _: machine._chosen_ways.__wrapped__("auto", 1), range(3)))
    assert measured == [uniform(1)] * 3


@pytest.mark.parametrize("name", [ways.PRODUCTS, ways.INFERENCE_PRODUCTS])
def test_a_product_with_rounded_factors_is_never_chosen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor with bf16 tiles, oneDNN is fast and inexact."""
    monkeypatch.setattr(
        ways,
        "product_error",
        lambda device: 2e-3 if torch.get_float32_matmul_precision() == "medium" else 2e-7,
    )
    monkeypatch.setattr(
        ways, "_seconds", lambda runs, clock: [float(len(runs) - i) for i in range(len(runs))]
    )
    [products] = (each for each in ways.OPERATIONS if each.name == name)
    assert products.measure() == "MKL"
    monkeypatch.setattr(ways, "product_error", lambda device: 2e-7)
    assert products.measure() == "oneDNN", "oneDNN takes half the time"


@pytest.mark.parametrize(
    "name", [ways.PRODUCTS, *ways.LARGE_PRODUCTS.values(), ways.INFERENCE_PRODUCTS]
)
def test_other_processes_do_not_change_the_choice_of_products(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement counts the processor time of one thread."""
    seen: list[tuple[int, object]] = []

    def seconds(runs: list[object], clock: object) -> list[float]:
        seen.append((torch.get_num_threads(), clock))
        return [1.0] * len(runs)

    monkeypatch.setattr(ways, "_seconds", seconds)
    monkeypatch.setattr(products, "available", lambda dtype: True)
    [operation] = (each for each in ways.OPERATIONS if each.name == name)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        operation.measure()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [(1, time.thread_time)]


def test_the_speedup_that_another_way_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "_seconds", lambda runs, clock: [run() for run in runs])
    seconds = {"default": 1.0, "other": 1.02, "slow": 1.5}

    def chosen(speedup: float) -> ways.Way:
        return ways.fastest(list(seconds), lambda way: lambda: seconds[way], speedup=speedup)

    assert (chosen(1.0), chosen(0.99), chosen(0.97)) == ("default", "default", "other")
    assert ways.fastest(["default"], lambda way: lambda: 1.0) == "default"


@pytest.mark.parametrize("seconds, slower", [([1.0, 1.1], True), ([1.0, 0.9], False)])
def test_the_speed_of_a_type_is_compared_with_that_of_float32(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], slower: bool
) -> None:
    monkeypatch.setitem(kernels_are_faster, torch.float32, {"maps": True, "projection": False})
    monkeypatch.setitem(kernels_are_faster, torch.int8, {"maps": False, "projection": True})
    monkeypatch.setattr(fused_decoding, "has_products", lambda dtype: True)
    monkeypatch.setattr(ways, "_prepare_maps", lambda dtype, way: (dtype, way))
    monkeypatch.setattr(ways, "_prepare_training_products", lambda dtype, way: (dtype, way))
    monkeypatch.setitem(products.used_in_training, torch.float32, False)
    monkeypatch.setitem(products.used_in_training, torch.bfloat16, True)
    measured = []

    def measure(maps: list[tuple[torch.dtype, str]], clock: object) -> list[float]:
        measured.extend(maps)
        return seconds

    monkeypatch.setattr(ways, "_seconds", measure)
    assert ways.slower_than_float32(torch.int8) == slower
    assert measured == [(torch.float32, "kernels"), (torch.int8, "PyTorch")]
    measured.clear()
    assert ways.slower_than_float32(torch.bfloat16, training=True) == slower
    assert measured == [(torch.float32, "library"), (torch.bfloat16, "kernels")]


@pytest.mark.skipif(
    not fused_decoding.has_products(torch.float32), reason="the kernels are not compiled"
)
@pytest.mark.parametrize(("way", "whole_layers"), [("PyTorch", 0), ("kernels", 3)])
def test_a_measured_step_of_a_search(
    monkeypatch: pytest.MonkeyPatch, way: str, whole_layers: int
) -> None:
    """Each call has one more hypothesis. The random state and the choices in use do not change."""
    calls = []
    layer = fused_decoding.run_decoder_layer
    monkeypatch.setattr(
        fused_decoding, "run_decoder_layer", lambda *args: calls.append(1) or layer(*args)
    )
    before = torch.get_rng_state()
    in_use = dict(kernels_are_faster[torch.float32])
    with torch.inference_mode():
        step = ways._prepare_search_step(torch.float32, way)
        assert [len(step()[0]) for _ in range(3)] == [ways.ROWS, ways.ROWS + 1, ways.ROWS + 2]
    assert len(calls) == whole_layers
    assert kernels_are_faster[torch.float32] == in_use
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_measured_products_of_a_training_have_the_shapes_of_a_training(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of rows is new in float32. In bf16 it is rounded and recurs."""
    shapes: set[tuple[int, ...]] = set()

    def record(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        shapes.add((*a.shape, b.shape[1]))
        return a.new_empty(len(a), b.shape[1])

    monkeypatch.setattr(torch, "mm", record)
    with torch.no_grad():
        run = ways._prepare_training_products(dtype, "library")
        run()
        first = set(shapes)
        shapes.clear()
        run()
        assert first and first.isdisjoint(shapes)
        for _ in range(ways.RECURRING_ROWS - 2):
            run()
        shapes.clear()
        run()
    assert (shapes == first) == (dtype == torch.bfloat16)


def test_maps_are_measured_in_autocast_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "MAX_SECONDS", 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert ways._measure_linear(torch.float32, "maps") in ("PyTorch", "kernels")


def test_choices_are_measured_in_inference_mode_too(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "MAX_SECONDS", 0.0)
    with torch.inference_mode():
        measured = chosen_ways()
    assert set(measured.ways) == {each.name for each in machine.OPERATIONS}


def test_a_measurement_ends_when_the_times_no_longer_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the undisturbed time, even if the first rounds are slower."""
    now = 0.0
    disturbed = iter([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0])

    def run(seconds: float) -> None:
        nonlocal now
        now += seconds

    functions = [lambda: run(next(disturbed, 1.0)), lambda: run(1.5)]
    assert ways._seconds(functions, lambda: now) == [1.0, 1.5]
    assert now < 80, "it ends soon after the last change"

    endless = iter(range(10**6, 0, -1000))
    monkeypatch.setattr(ways, "MAX_SECONDS", 0.01)
    ways._seconds([lambda: run(next(endless)), lambda: time.sleep(0.001)], lambda: now)


def test_a_much_slower_way_is_not_measured_to_the_end() -> None:
    now = 0.0
    seconds = {"fast": 1.0, "slow": 9.0, "much slower": 11.0}
    calls = Counter[str]()

    def run(name: str) -> None:
        nonlocal now
        now += seconds[name]
        calls[name] += 1

    functions = [partial(run, name) for name in seconds]
    assert ways._seconds(functions, lambda: now) == list(seconds.values())
    assert calls["much slower"] == 1 + ways.ROUNDS_OF_ALL < calls["slow"] == calls["fast"]


@pytest.mark.parametrize("name", ["cuda:128", "cuda:256", "cuda:65408", "cpu:256"])
def test_a_device_with_a_large_number_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch keeps only 8 bits of the number."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        ConfigError, match=rf"device {name}(: this machine has 2| is not supported)"
    ):
        device_of(name)


def test_a_gpu_that_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(ConfigError, match=r"device cuda:1 cannot be used \(CUDA error: .*\): end"):
        device_of("cuda:1")


@pytest.mark.parametrize("training, inference", [("oneDNN", "MKL"), ("MKL", "oneDNN")])
def test_training_and_inference_have_their_own_products(
    training: str, inference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shapes of a search change with each step, and oneDNN compiles a product for each."""
    defaults = {each.name: each.ways[0] for each in machine.OPERATIONS}
    products = {ways.PRODUCTS: training, ways.INFERENCE_PRODUCTS: inference}
    chosen = ChosenWays(processor(), 1, {**defaults, **products})
    monkeypatch.setattr(machine, "chosen_ways", lambda matmul="highest": chosen)
    precision = {"MKL": "highest", "oneDNN": "medium"}
    before = torch.get_float32_matmul_precision()
    try:
        device_of("cpu")
        assert torch.get_float32_matmul_precision() == precision[inference]
        with computing(CPU, "highest", chosen) as description:
            assert torch.get_float32_matmul_precision() == precision[training]
            assert description.startswith(f"by {training}")
        assert torch.get_float32_matmul_precision() == precision[inference]
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_trainings_use_the_chosen_products(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    defaults = {each.name: each.ways[0] for each in machine.OPERATIONS}
    chosen = ChosenWays(processor(), 1, {**defaults, ways.LARGE_PRODUCTS[dtype]: "kernels"})
    kernel_calls: list[torch.dtype] = []
    monkeypatch.setattr(products, "_call", lambda a, *arguments: kernel_calls.append(a.dtype))
    factors = [torch.ones(64, 64, dtype=each) for each in (torch.float32, torch.bfloat16)]

    def calls(
        precision: str = precision, matmul: str = "highest", **settings: Any
    ) -> list[torch.dtype]:
        with computing(CPU, matmul, precision=precision, **settings) as description:
            del kernel_calls[:]
            for x in factors:
                x @ x
            multiple = length_multiple(CPU, precision)
        assert description.endswith("kernels") == bool(kernel_calls)
        assert multiple == (4 if precision == "bf16" and not kernel_calls else 1)
        return kernel_calls

    if products.available(dtype):
        assert calls(recorded=chosen) == [dtype], "products of the other type remain"
        in_use = [] if precision == "fp32" else [dtype]
        assert calls(matmul="medium", recorded=chosen) == in_use
    assert calls(recorded=chosen, compiled=True) == []
    assert calls("fp16", recorded=chosen) == []
    assert calls(recorded=chosen, precision="bf16" if precision == "fp32" else "fp32") == []
    assert calls(recorded=replace(chosen, ways=defaults)) == []
    monkeypatch.setattr(products, "available", lambda dtype: False)
    assert calls(recorded=chosen) == [], "the kernels are missing on this machine"


def test_an_operation_is_added_by_one_entry(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new operation is measured, used and restored; files without it are still read."""
    path = cache.parent / "run.json"
    write_chosen_ways(path, uniform(16))
    current = ["slow"]

    def use(way: ways.Way) -> ways.Undo:
        before = current[0]
        current[0] = str(way)
        return lambda: current.__setitem__(0, before)

    seconds = {"slow": 2.0, "fast": 1.0, "wrong": 0.1}
    monkeypatch.setattr(ways, "_seconds", lambda runs, clock: [run() for run in runs])
    new = ways.Operation(
        "sorting",
        ("slow", "fast", "wrong"),
        lambda: ways.fastest(
            ("slow", "fast", "wrong"), lambda way: lambda: seconds[way], lambda way: way != "wrong"
        ),
        use,
    )
    monkeypatch.setattr(machine, "OPERATIONS", (*machine.OPERATIONS[:1], new))
    stored = read_chosen_ways(path)
    assert stored and stored.ways == {"float32 products": "MKL", "sorting": "slow"}
    measured = replace(stored, ways={**stored.ways, "sorting": new.measure()})
    assert measured.ways["sorting"] == "fast"
    assert stored.differences(measured) == ["sorting: slow -> fast"]
    with computing(CPU, "highest", measured):
        assert current == ["fast"]
    assert current == ["slow"]
    write_chosen_ways(path, measured)
    monkeypatch.undo()
    assert read_chosen_ways(path) == uniform(0), "an unknown operation is ignored"


def test_messages_of_git_may_have_any_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nprintf 'd\\351p\\364t' >&2\nexit 128\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert machine.revision.__wrapped__() is None


@pytest.mark.parametrize(
    "precision, slower, warns",
    [("bf16", True, True), ("bf16", False, False), ("fp32", True, False)],
)
def test_training_warns_of_a_precision_that_is_slower_than_fp32(
    toy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    slower: bool,
    warns: bool,
) -> None:
    monkeypatch.setattr(train_module, "slower_than_float32", lambda dtype, training: slower)
    recipe = load(toy, [f"training.precision={precision}"])
    train_module.train(recipe, tmp_path / "run", "cpu", quiet=True)
    warning = "warning: bf16 is slower than fp32 on this processor: use training.precision fp32"
    assert (warning in (tmp_path / "run" / runs.LOG).read_text()) == warns


def test_a_run_keeps_its_choices_when_it_resumes(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's choices change before a run resumes; the weights are equal bit for bit."""
    # PyTorch computes the attention of this model: its width does not fill vectors of 16 numbers.
    conv = "{kind: conv, width: 24, encoder: {layers: 1}, decoder: {layers: 1}}"
    config = toy.with_name("conv.yaml")
    values = yaml.safe_load(toy.read_text())
    config.write_text(yaml.safe_dump({**values, "model": yaml.safe_load(conv)}))
    monkeypatch.setattr(train_module, "chosen_ways", lambda matmul: uniform(1000))
    train_module.train(load(config), tmp_path / "one", "cpu", quiet=True)
    train_module.train(
        load(config, ["training.stages.0.end.updates=4"]), tmp_path / "two", "cpu", quiet=True
    )
    monkeypatch.setattr(train_module, "chosen_ways", lambda matmul: uniform(0))
    train_module.train(load(config), tmp_path / "two", "cpu", quiet=True)
    train_module.train(load(config), tmp_path / "three", "cpu", quiet=True)
    first, second, third = (
        weights_module.read_tensors(tmp_path / name / "checkpoints" / "update-0000008", runs.MODEL)
        for name in ("one", "two", "three")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first), (
        "other choices should change the rounding"
    )


def test_another_processor_is_reported_and_measured(toy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_module.train(load(toy, ["training.stages.0.end.updates=4"]), run, "cpu", quiet=True)
    recorded = read_chosen_ways(run / "machine.json")
    assert recorded
    other = {**recorded.ways, "longest plain attention, fp32 training": 7}
    write_chosen_ways(run / "machine.json", replace(recorded, processor="another", ways=other))
    train_module.train(load(toy), run, "cpu", quiet=True)
    log = (run / "log.txt").read_text()
    assert f"changed: processor: another -> {processor()}" in log
    assert "changed: longest plain attention, fp32 training: 7 -> " in log
    assert json.loads((run / "machine.json").read_text())["processor"] == processor()
    assert "machine.json" not in log
    (run / "machine.json").write_text("{")
    train_module.train(load(toy), run, "cpu", quiet=True)
    assert "changed: machine.json is missing or damaged, " in (run / "log.txt").read_text()
    assert read_chosen_ways(run / "machine.json")


def test_deeply_nested_choices_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text("[" * 200_000)
    assert read_chosen_ways(path) is None


def test_other_code_and_missing_kernels_are_reported(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train_module.train(load(toy, ["training.stages.0.end.updates=4"]), run, "cpu", quiet=True)
    (session,) = runs.read_sessions(run)
    before = replace(session, fusetk="0.0.1", revision="abc", torch="1.0", kernels=True)
    runs.add_session(run, before)
    monkeypatch.setattr(train_module, "has_kernels", lambda device: False)
    train_module.train(load(toy), run, "cpu", quiet=True)
    log = (run / "log.txt").read_text()
    [code] = re.findall("changed: code: .*", log)
    assert "fusetk 0.0.1 (abc) -> fusetk " in code and code.endswith("an update may differ")
    for change in (f"PyTorch: 1.0 -> {torch.__version__}", "compiled kernels: yes -> no"):
        assert f"changed: {change}; the results of an update may differ by rounding" in log
    assert "changed: device" not in log
    assert [session.kernels for session in runs.read_sessions(run)] == [True, False]
    runs.add_session(run, replace(before, device="NVIDIA H100"))
    train_module.train(load(toy), run, "cpu", quiet=True)
    log = (run / "log.txt").read_text()
    assert "changed: device: NVIDIA H100 -> CPU, 1 threads; the dropout masks change" in log


@pytest.mark.parametrize("chosen", [None, "0"])
def test_training_uses_huge_pages_unless_the_user_decided(
    chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    if chosen:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", chosen)
    with pytest.raises(ConfigError, match="there is no device"):
        train_module.train(Recipe.model_construct(), Path(), "no such device")
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == (chosen or "1")
