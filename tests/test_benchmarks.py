"""The quantities that the benchmarks compute."""

import hashlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fusetk import system
from fusetk.data.pipeline import Pipeline
from fusetk.data.vocab import EOS
from fusetk.decoding.translate import Translator
from fusetk.estimate.operations import BatchShape, batch_cost
from fusetk.nn.fused import build as build_kernels
from fusetk.recipe import load
from fusetk.reporting.measured_costs import read_costs
from fusetk.runs import TEXT
from tests.contracts.systems import BACKBONES, TARGET_SIZE, build
from tests.helpers.results import make_recipes

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

import costs
import recurrence
import smoke
import training
from bench import changes
from growing_text import growing_lines, heaps
from growth import decoding_cost, exponent, training_cost
from memory import kept_bytes
from products import multiply_adds
from sample_data import prepare_sample


def test_multiply_adds_of_a_transformer() -> None:
    """The count agrees with the sizes of the weights and of attention."""
    sizes = BACKBONES["transformer"].sizes
    layers, width, ffn = sizes["encoder"]["layers"], sizes["width"], sizes["ffn"]
    assert sizes["decoder"]["layers"] == layers
    square, feed_forward = width**2, 2 * width * ffn
    expected = [
        0,
        layers * (4 * square + feed_forward + 2 * square),  # the last term: cross-attention's k, v
        layers * (4 * square + feed_forward + 2 * square) + width * TARGET_SIZE,
        layers * 2 * width,
        layers * 2 * width,
        layers * 2 * width,
    ]
    assert multiply_adds(build("transformer")) == pytest.approx(expected, abs=1e-3)


def test_multiply_adds_of_a_recurrence() -> None:
    """The counter sees the products of a recurrence, which has fused kernels."""
    shallow = {side: {"cell": "gru", "depth": 0} for side in ("encoder", "query", "decoder")}
    model = build("recurrent", **shallow)
    weights = {name: p.numel() for name, p in model.named_parameters() if p.dim() > 1}
    per_source = ("encoder.cells.0.state", "encoder.cells.0.input", "keys.0.weight")
    per_target = (
        "query.cells.0.state",
        "query.cells.0.input",
        "attention.query",
        "decoder.cells.0.state",
        "decoder.cells.0.input",
        "readout.weight",
        "output.weight",
    )
    constant, source, target, both, *_ = multiply_adds(model)
    assert constant == pytest.approx(weights["initial.weight"], abs=1e-3)
    assert source == pytest.approx(sum(weights[name] for name in per_source), abs=1e-3)
    assert target == pytest.approx(sum(weights[name] for name in per_target), abs=1e-3)
    assert both > 0


def test_the_words_of_growing_text_follow_heaps_law() -> None:
    random = np.random.default_rng(3)
    letters = str.maketrans("0123456789", "ghijklmnop")

    def word(rank: int) -> str:
        return hashlib.md5(str(rank).encode()).hexdigest()[: 5 + rank % 5].translate(letters)

    lines = [" ".join(map(word, row)) for row in random.zipf(1.6, (3000, 10)).tolist()]
    k, b = heaps([word for line in lines for word in line.split()])
    grown = list(growing_lines(lines, 20_000))
    assert grown[:3000] == lines and len(grown) == 20_000
    words = [word for line in grown for word in line.split()]
    expected = k * len(words) ** b
    assert len(set(words)) == pytest.approx(expected, rel=0.25)


def test_changes_of_ratios_are_reported() -> None:
    before = {"start": {"decode": 2.0, "prep": 1.0, "gone": 1.0}}
    now = {"start": {"decode": 1.0, "prep": 1.05, "new": 3.0}, "growth": {"width": 2.0}}
    assert changes(before, now) == ["start: decode: 2.00 -> 1.00"]


def test_an_exponent_is_fitted() -> None:
    assert exponent({n: 3 * n**1.5 for n in (1, 2, 4, 8)}) == pytest.approx(1.5)


def test_the_cost_of_decoding_grows_with_the_length(tmp_path: Path) -> None:
    baseline = "recipes/multi30k/fusion/baseline.yaml"
    data = prepare_sample(tmp_path / "sample", 60)
    layers = ["model.encoder.layers=1", "model.decoder.layers=1"]
    sizes = [f"data.folder={data}", "model.width=8", "model.heads=2", "model.ffn=8", *layers]
    # All options of the training benchmark are given, too.
    assert training_cost(baseline, sizes, "--vocabulary", "5000", "5000") > 0
    assert decoding_cost(baseline, sizes, "length", 24) > decoding_cost(
        baseline, sizes, "length", 2
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # several batches at the same time
    try:
        assert decoding_cost(baseline, [*sizes, "decoding.batch_tokens=200"], "beam", 2) > 0
    finally:
        torch.set_num_threads(threads)


def test_smoke_trainings_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = prepare_sample(tmp_path / "sample", 60)
    side = {"layers": 1}
    model = {"kind": "transformer", "width": 8, "heads": 2, "ffn": 8, "norm": "pre"}
    stage = {
        "optimizer": "adam",
        "schedule": {"kind": "constant", "rate": 0.01},
        "batch": {"size": 200},
        "end": {"updates": 9},
    }
    configs = []
    for name, residual in (("plain", "plain"), ("streams", "hyper")):
        values = yaml.safe_load((tmp_path / "sample" / "config.yaml").read_text(encoding="utf-8"))
        values["data"]["folder"] = str(data)
        values["model"] = {**model, "encoder": side, "decoder": {**side, "residual": residual}}
        values["training"] = {"stages": [stage]}
        configs.append(tmp_path / "sample" / f"{name}.yaml")
        configs[-1].write_text(yaml.safe_dump(values), encoding="utf-8")

    def run(updates: int, *parts: str) -> list[str]:
        arguments = ["--only", *parts, "--updates", str(updates), "--turns", "1"]
        files = ["--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "results.json")]
        monkeypatch.setattr(sys, "argv", ["smoke.py", *map(str, configs), *arguments, *files])
        smoke.main()
        return capsys.readouterr().out.splitlines()

    first = run(2, "speed", "memory", "loss")
    assert [line.split(":")[0] for line in first[:2]] == ["plain", "streams"]
    rows = [line.split(" | ") for line in first[-2:]]
    assert [row[0] for row in rows] == ["| plain", "| streams"]
    assert rows[0][3] == "1.00" and float(rows[1][3]) > 0
    assert float(rows[0][4].strip(" |")) < float(rows[1][4].strip(" |"))
    shutil.rmtree(tmp_path / "runs")
    assert run(2, "loss") == first[2:]  # no training
    assert not (tmp_path / "runs").exists()
    assert run(3, "loss")[-1] != first[-1]


@pytest.mark.skipif(build_kernels.library("recurrence") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("cell", ["l-gru", "gru"])
def test_the_estimated_memory_of_a_recurrent_model_is_the_measured_one(cell: str) -> None:
    """The fused recurrence keeps fewer tensors than single steps."""
    options = {
        "width": 64,
        "layer_norm": cell == "l-gru",
        "encoder": {"depth": 2, "cell": cell},
        "query": {"depth": 1, "cell": cell},
        "decoder": {"depth": 1, "cell": cell},
    }
    shape = BatchShape([9] * 8, [7] * 8)
    measured = kept_bytes(build("recurrent", **options).train(), shape.batch(), 0.1)
    estimated = batch_cost(build("recurrent", **options).to("meta").train(), shape, 0.1)
    assert estimated.activations == pytest.approx(measured, rel=0.03)


def test_costs_of_systems(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = {"model": {"decoder": {"layers": 3}}}
    recipes = make_recipes(tmp_path / "recipes", toy, {"plain": {}, "deep": deep})
    out, results = tmp_path / "out", tmp_path / "results"
    shutil.copytree(load(toy).data.folder, out / f"data.{recipes.name}")

    def measure(*options: str) -> str:
        words = [str(recipes), "--out", str(out), "--results", str(results)]
        sizes = ["--turns", "2", "--updates", "2", "--sentences", "3", "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", ["costs.py", *words, *sizes, *options])
        costs.main()
        return capsys.readouterr().out

    assert "costs.json: plain, deep" in measure()
    measured = read_costs(results)
    assert measured is not None and "2 turns of 2 updates" in measured.settings
    systems = measured.systems
    assert all(len(cost.training) == len(cost.decoding) == 2 for cost in systems.values())
    assert min(min(cost.training + cost.decoding) for cost in systems.values()) > 0
    assert systems["deep"].bytes_per_token > systems["plain"].bytes_per_token

    with pytest.raises(SystemExit, match=r"an epoch has . batches, .*: give less --updates"):
        measure("--updates", "1000")
    with pytest.raises(SystemExit, match=r"no prepared text for .*: `fusetk run .* --until prep`"):
        measure("--out", str(tmp_path))


def test_the_loops_of_a_recurrent_model_are_compared(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "recurrent.yaml"
    content = {"extends": str(toy), "model": {"kind": "recurrent", "width": 16, "heads": 2}}
    config.write_text(yaml.safe_dump(content), encoding="utf-8")
    words = [str(config), "--updates", "1", "--turns", "1", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["recurrence.py", *words])
    recurrence.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["plain", "unfused", "fused"]


def test_translations_are_as_long_as_their_sources(toy: Path) -> None:
    recipe = load(toy)
    pipeline = Pipeline.load(Path(recipe.data.folder) / TEXT)
    search = system.changed(recipe.decoding, costs.AS_LONG_AS_SOURCE)
    translator = Translator([training.build(recipe, None).eval()], pipeline, search)
    sources = [[5, 6, 7, EOS], [8, EOS], [9] * 12 + [EOS]]
    with torch.inference_mode():
        n_best_lists = translator.translate_ids(sources)
    lengths = [len(n_best[0].ids) for n_best in n_best_lists]
    assert lengths == [len(source) - 1 for source in sources]  # without EOS
