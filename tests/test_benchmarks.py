"""The quantities that the benchmarks compute."""

import sys
from pathlib import Path

import pytest

from tests.contracts.systems import SIZES, TARGET_SIZE, build

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

from products import multiply_adds


def test_multiply_adds_of_a_transformer() -> None:
    """The count agrees with the sizes of the weights and of attention."""
    sizes = SIZES["transformer"]
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
