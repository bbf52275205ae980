import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from click.testing import CliRunner

from fusetk.cli.main import main
from fusetk.errors import CheckpointError, DataError
from fusetk.plotting.curve_figure import draw, plot
from fusetk.plotting.curves import KEYS, Curve, curves, read_curve_records, smooth
from fusetk.plotting.style import STYLES, Size
from fusetk.training.validation_config import ValidationConfig


def write(run: Path, *lines: dict[str, Any] | str) -> Path:
    run.mkdir(exist_ok=True)
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text, encoding="utf-8")
    return run


def train(update: int, loss: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": "train",
        "update": update,
        "epoch": update / 10,
        "loss": loss,
        "lr": 0.1,
        **more,
    }


def valid(update: int, loss: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": "valid",
        "update": update,
        "epoch": update / 10,
        "loss": loss,
        "best": True,
        **more,
    }


def test_accuracy_on_training_pairs_is_the_training_curve(tmp_path: Path) -> None:
    """Training logs no accuracy, but it logs a loss, which remains the training curve."""
    results = {"accuracy": 0.2, "train_accuracy": 0.3, "train_loss": 9.0}
    run = write(tmp_path / "a", train(1, 5.0), train(2, 4.0), valid(2, 4.5, **results))
    by_name = {
        (curve.kind, curve.what): curve.value.tolist()
        for curve in curves({"a": read_curve_records(run)}, ["accuracy", "loss", "train_loss"])
    }
    assert by_name == {
        ("train", "accuracy"): [0.3],
        ("valid", "accuracy"): [0.2],
        ("train", "loss"): [5.0, 4.0],
        ("valid", "loss"): [4.5],
        ("valid", "train_loss"): [9.0],
    }
    [curve] = curves({"a": read_curve_records(run)}, ["accuracy"], ["train"])
    assert (curve.update.tolist(), curve.epoch.tolist()) == ([2], [0.2])


def test_curves_have_the_recorded_values(tmp_path: Path) -> None:
    validated = [valid(2, 4.5, bleu=1.0), valid(4, 4.75), valid(6, 4.25, bleu=2.0)]
    run = write(
        tmp_path / "a", train(1, 5.0), train(2, 4.0), validated[0], train(3, 3.0), *validated[1:]
    )
    by_name = {
        (curve.kind, curve.what): curve
        for curve in curves({"a": read_curve_records(run)}, ["loss", "bleu"])
    }
    assert list(by_name) == [("train", "loss"), ("valid", "loss"), ("valid", "bleu")]
    assert by_name["train", "loss"].value.tolist() == [5, 4, 3]
    assert by_name["valid", "bleu"].update.tolist() == [2, 6]  # BLEU is not measured every time
    assert by_name["valid", "bleu"].epoch.tolist() == [0.2, 0.6]
    assert (
        by_name["valid", "loss"].best() == 2 and by_name["valid", "bleu"].best() == 1
    )  # the lowest loss, the highest BLEU
    assert by_name["train", "loss"].best() is None
    [lr] = curves({"a": read_curve_records(run)}, ["lr"])
    assert lr.best() is None


def test_after_a_resume_the_later_record_counts(tmp_path: Path) -> None:
    run = write(
        tmp_path / "a",
        train(1, 9.0),
        train(2, 8.0),
        valid(2, 7.0),
        train(3, 7.0),
        train(2, 6.0),
        valid(2, 5.0),
        train(3, 4.0),
    )
    drawn = curves({"a": read_curve_records(run)}, ["loss"])
    assert drawn[0].update.tolist() == [1, 2, 3] and drawn[0].value.tolist() == [9, 6, 4]
    assert drawn[1].value.tolist() == [5]


@pytest.mark.parametrize(
    "rest",
    [
        '{"kind": "tr',
        '{"kind": "train"}\n',
        "[1]\n",
        "\x00\x00",
        '{"kind": "train", "update": 2, "loss": 3',
    ],
)
def test_a_damaged_last_line_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rest: str
) -> None:
    run = write(tmp_path / "a", train(1, 9.0), rest)
    with caplog.at_level(logging.WARNING):
        assert [record["update"] for record in read_curve_records(run)] == [1]
    assert "last line (2)" in caplog.text


@pytest.mark.parametrize(
    "line", ['{"kind": "tr\n', "{}\n", '{"kind": "train", "update": true}\n', "\x00\n"]
)
def test_another_damaged_line_is_an_error(tmp_path: Path, line: str) -> None:
    run = write(tmp_path / "a", train(1, 9.0), "\n", line, train(3, 8.0))
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 3"):
        read_curve_records(run)


def test_invalid_utf_8_is_an_error(tmp_path: Path) -> None:
    run = write(tmp_path / "a", train(1, 9.0), train(2, 9.0))
    path = run / "metrics.jsonl"
    path.write_bytes(b"\xff\xfe\n" + path.read_bytes())
    with pytest.raises(DataError, match="line 1"):
        read_curve_records(run)


def test_runs_without_metrics_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is not a run folder: there is no such "):
        read_curve_records(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no metrics\.jsonl"):
        read_curve_records(tmp_path)
    with pytest.raises(DataError, match="no complete line"):
        read_curve_records(write(tmp_path / "a", ""))
    with pytest.raises(DataError, match="no complete line"):
        read_curve_records(write(tmp_path / "b", '{"kind'))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is not a run folder: it is a file"):
        read_curve_records(tmp_path / "file")


def test_the_default_quantities(tmp_path: Path) -> None:
    metrics = {
        "a": read_curve_records(
            write(tmp_path / "a", train(1, 9.0, tokens_per_second=3.0), valid(1, 8.0, accuracy=0.5))
        )
    }
    assert [(curve.what, curve.kind) for curve in curves(metrics)] == [
        ("loss", "train"),
        ("loss", "valid"),
        ("accuracy", "valid"),
    ]
    assert [curve.kind for curve in curves(metrics, ["loss"], ["valid"])] == ["valid"]
    with pytest.raises(DataError, match="did you mean 'accuracy'"):
        curves(metrics, ["acuracy"])
    with pytest.raises(DataError, match="loss, lr, tokens_per_second"):
        curves(metrics, ["bleu"], ["train"])


def test_pictures_do_not_use_latex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # without LaTeX
    run = tmp_path / "run"
    run.mkdir()
    lines = [{"kind": "train", "update": n, "epoch": n / 2, "loss": 3 / n} for n in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with matplotlib.rc_context({"text.usetex": True}):
        result = CliRunner().invoke(main, ["plot-curves", str(run), "-o", str(tmp_path / "a.png")])
    assert result.exit_code == 0, result.output


def test_a_link_to_itself_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    for words in (["plot-curves", "-o", str(tmp_path / "a.png")], ["report"]):
        result = CliRunner().invoke(main, [*words, str(tmp_path / "link")])
        assert result.exit_code == 2 and result.stderr.count("\n") == 1


def test_smoothing_averages_a_centred_window() -> None:
    values = np.array([1.0, 5.0, 3.0, math.nan, 8.0, 2.0])
    np.testing.assert_array_equal(smooth(values, 1), values)
    np.testing.assert_allclose(smooth(values, 3), [1, 3, 4, 5.5, 5, 2])
    line = np.arange(20.0)
    for window in (7, 2, 6):  # a straight line does not change, not even at its ends
        np.testing.assert_allclose(smooth(line, window), line)
    assert np.isnan(smooth(np.array([math.nan, math.nan]), 5)).all()
    assert smooth(np.array([]), 3).shape == (0,)


def test_smoothing_keeps_small_values_beside_large_ones() -> None:
    values = np.array([1.0, 1e18, 1.0, 1.2, 1.1])
    assert smooth(values, 1).tolist() == values.tolist()
    assert smooth(values, 3)[-1] == 1.1
    large_first = np.array([1e12, 5e-5, 5e-5, 5e-5, 5e-5])
    np.testing.assert_allclose(smooth(large_first, 3)[2:], 5e-5)


@pytest.mark.parametrize("window", [1, 1999])
def test_a_constant_curve_is_a_straight_line_with_short_labels(window: int) -> None:
    metrics = [train(update, 5.0, lr=3e-4) for update in range(1, 2001)]
    figure = draw(curves({"a": metrics}, ["lr"]), "updates", window)
    figure.draw_without_rendering()
    [axes] = figure.axes
    low, high = axes.get_ylim()
    assert low < 2.9e-4 and high > 3.1e-4
    assert all(np.ptp(line.get_ydata()) < 1e-6 * (high - low) for line in axes.lines)
    assert max(len(text.get_text()) for text in axes.get_yticklabels()) <= len("0.000300")


def test_numbers_are_stored(tmp_path: Path) -> None:
    run = write(
        tmp_path / "a", train(1, 5.0), train(2, math.nan), train(3, math.inf), valid(3, 4.0)
    )
    drawn = curves({"my run": read_curve_records(run)}, ["loss"])
    plot(drawn, tmp_path / "a.npz")
    plot(drawn, tmp_path / "a.json")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["my run/train/loss.value"], [5, math.nan, math.inf])
        assert arrays["my run/valid/loss.update"].tolist() == [3]
    document = json.loads((tmp_path / "a.json").read_text())
    assert document[0]["value"] == [5.0, None, None]
    assert document[1] == {
        "run": "my run",
        "kind": "valid",
        "what": "loss",
        "best": 0,
        "update": [3],
        "epoch": [0.3],
        "value": [4],
    }


def test_curves_of_layers(tmp_path: Path) -> None:
    """Each stack, each fusion and the other parts have a panel, with a line for each layer."""
    runs = {}
    for name in ("a", "b"):
        norms = [
            {"other parts": {"source": 1.0, "decoder": 0.0}, "encoder": {"l1": n, "l2": 2.0 * n}}
            for n in ((1, 2) if name == "a" else (10, 20))
        ]
        shares = {"decoder.fuse": {"sum": 0.25, "l1": 0.75, "l10": None}}
        run = write(
            tmp_path / name,
            train(1, 5.0, grad_norms=norms[0]),
            train(2, 4.0, grad_norms=norms[1]),
            train(3, 4.0, grad_norms={}),
            valid(3, 3.0, layer_shares=shares) if name == "b" else valid(3, 3.0),
        )
        runs[name] = read_curve_records(run)
    drawn = curves(runs, ["grad_norms", "layer_shares"])
    of_b = {(curve.group, curve.layer): curve.value.tolist() for curve in drawn if curve.run == "b"}
    assert of_b == {
        ("encoder", "l1"): [10, 20],
        ("encoder", "l2"): [20, 40],
        ("other parts", "source"): [1, 1],
        ("other parts", "decoder"): [0, 0],
        ("decoder.fuse", "sum"): [0.25],
        ("decoder.fuse", "l1"): [0.75],
    }
    figure = draw(drawn, "updates", 1)
    places = {axes.get_title(): axes.get_subplotspec() for axes in figure.axes}
    rows = {
        title: (place.rowspan.start, place.colspan.start)
        for title, place in places.items()
        if place is not None
    }
    assert rows == {
        "encoder, a": (0, 0),
        "encoder, b": (0, 1),
        "other parts, a": (1, 0),
        "other parts, b": (1, 1),
        "decoder.fuse, b": (2, 1),  # run a has no fusion
    }
    limits = [axes.get_ylim() for axes in figure.axes]
    assert limits[0] == limits[1] and limits[0][0] < 1 and limits[0][1] > 40
    shorter = [
        replace(curve, update=curve.update[:1], epoch=curve.epoch[:1], value=curve.value[:1])
        if curve.run == "b"
        else curve
        for curve in drawn
    ]
    first, second, *_ = draw(shorter, "updates", 1).axes
    assert first.get_xlim() == second.get_xlim()
    colors = {
        line.get_color() if isinstance(line.get_color(), str) else tuple(line.get_color())
        for axes in figure.axes
        for line in axes.lines
    }
    assert len(colors) == 5  # sum, l1, l2 and two other parts; l1 has one colour everywhere
    assert all(axes.get_yscale() == "log" for axes in figure.axes[:4])
    plot(drawn, tmp_path / "layers.json")
    document = json.loads((tmp_path / "layers.json").read_text())
    assert (document[0]["group"], document[0]["layer"]) == ("encoder", "l1")
    empty = write(tmp_path / "c", valid(3, 3.0, layer_shares={"decoder.fuse": {"l1": None}}))
    with pytest.raises(DataError, match=r"no run has 'layer_shares'.*set .*share_pairs"):
        curves({"c": read_curve_records(empty)}, ["layer_shares"])


@pytest.mark.parametrize(
    "ending, start", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_pictures_have_the_format_of_their_ending(
    tmp_path: Path, ending: str, start: bytes
) -> None:
    run = write(
        tmp_path / "a",
        *[train(n, 9 - n, ppl=math.exp(9 - n)) for n in range(1, 9)],
        valid(4, 3.0, ppl=math.nan),
        valid(8, 2.0),
    )
    plot(curves({"a": read_curve_records(run)}), tmp_path / f"a.{ending}", window=3)
    assert (tmp_path / f"a.{ending}").read_bytes().startswith(start)


def test_a_run_can_have_any_name(tmp_path: Path) -> None:
    metrics = read_curve_records(write(tmp_path / "a", train(1, 2.0), valid(2, 3.0)))
    names = ["_hidden", "$_{$", "тест"]
    figure = draw(curves({name: metrics for name in names}, ["loss"]), "updates", 1)
    figure.canvas.draw()
    [legend] = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [*names, "training", "validation", "best"]
    colours = [line.get_color() for line in legend.get_lines()]
    assert len(set(colours[: len(names)])) == len(names)
    assert [text.get_text() for text in figure.axes[0].texts] == ["3"] * 3  # the best values


def test_a_long_name_in_the_legend_is_cut_to_the_width_of_the_figure(tmp_path: Path) -> None:
    metrics = read_curve_records(write(tmp_path / "a", train(1, 2.0), valid(2, 3.0)))
    name = "a-folder-with-a-long-name/" * 3
    for width in (3.0, 12.0):
        size = Size(width, None)
        figure = draw(curves({name: metrics}, ["loss"]), "updates", 1, size=size)
        figure.canvas.draw()
        [legend] = figure.legends
        box = legend.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width
        shown = legend.get_texts()[0].get_text()
        assert "\u2026" in shown and (len(shown) > 55) == (width > 5)


@pytest.mark.parametrize(
    ("what", "values", "direction"),
    [
        ("bleu", (30.0, 30.1, 30.05), 1),
        ("chrf", (50.0, 50.1, 50.05), 1),
        ("ter", (60.0, 60.1, 60.0), -1),
        ("loss", (4.0, 4.01, 4.0), -1),
        ("ppl", (9.0, 9.0, 9.1), -1),
    ],
)
def test_the_best_values_of_similar_runs_do_not_overlap(
    what: str, values: tuple[float, ...], direction: int
) -> None:
    runs = {
        f"run {value} {i}": [
            valid(1, **{"loss": 9.0, what: value - direction * 3}),
            valid(2, **{"loss": 9.0, what: value}),
        ]
        for i, value in enumerate(values)
    }
    figure = draw(curves(runs, [what]), "updates", 1)
    figure.draw_without_rendering()
    [axes] = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 3
    assert not any(box.overlaps(other) for i, box in enumerate(boxes) for other in boxes[:i])
    panel = axes.get_window_extent()
    assert all(panel.y0 < box.y0 and box.y1 < panel.y1 for box in boxes)
    for text, value in zip(axes.texts, values, strict=True):
        point = axes.transData.transform(text.xy)
        assert not any(box.contains(*point) for box in boxes)
        assert text.xy[1] == value and text.xyann[1] * direction > 0


def test_a_curve_of_one_value_is_a_dot(tmp_path: Path) -> None:
    one = read_curve_records(write(tmp_path / "a", train(1, 2.0)))
    two = read_curve_records(write(tmp_path / "b", train(1, 2.0), train(2, 1.0)))
    for metrics, marker, line_style in ((one, "o", "None"), (two, "None", "-")):
        [line] = draw(curves({"a": metrics}, ["loss"]), "updates", 1).axes[0].lines
        assert (line.get_marker(), line.get_linestyle()) == (marker, line_style)


def test_a_run_without_a_quantity_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = {
        "a": read_curve_records(write(tmp_path / "a", train(1, 2.0), valid(2, 3.0, bleu=1.0))),
        "b": read_curve_records(write(tmp_path / "b", train(1, 2.0))),
    }
    with caplog.at_level(logging.WARNING):
        curves(metrics, ["loss", "bleu"])
    assert [record.getMessage() for record in caplog.records] == ["b: no bleu was recorded"]


@pytest.mark.parametrize(
    ("size", "style", "expected", "columns"),
    [(None, "paper", 3.3, 1), (Size(6.9, 2.2), "paper", 6.9, 3), (Size(5), "screen", 5, 2)],
)
def test_panels_fit_in_the_width(
    tmp_path: Path, size: Size | None, style: str, expected: float, columns: int
) -> None:
    run = write(tmp_path / "a", train(1, 2.0, ppl=7.0), valid(2, 3.0, ppl=9.0, accuracy=0.5))
    drawn = curves({"a": read_curve_records(run)})
    figure = draw(drawn, "updates", 1, style=STYLES[style], size=size, title="a run")
    width, height = figure.get_size_inches()
    assert width == expected and (size is None or size.height in (None, height))
    figure.canvas.draw()
    assert len({round(axes.get_position().x0, 3) for axes in figure.axes}) == columns


def test_many_runs_have_many_colours(tmp_path: Path) -> None:
    metrics = read_curve_records(write(tmp_path / "a", train(1, 2.0)))
    figure = draw(curves({str(i): metrics for i in range(15)}, ["loss"]), "updates", 1)
    assert len({str(line.get_color()) for line in figure.axes[0].lines}) == 15


@pytest.mark.parametrize(("runs", "numbers"), [(6, 6), (7, 0)])
def test_every_run_has_a_star_but_many_runs_have_no_numbers(runs: int, numbers: int) -> None:
    records = [valid(1, 3.0), valid(2, 2.0)]
    figure = draw(curves({str(i): records for i in range(runs)}, ["loss"]), "updates", 1)
    [axes] = figure.axes
    stars = [line for line in axes.lines if line.get_marker() == "*"]
    assert [(star.get_xdata()[0], star.get_ydata()[0]) for star in stars] == [(2, 2.0)] * runs
    assert len(axes.texts) == numbers


def test_an_integer_that_is_too_large_for_a_float_is_infinite(tmp_path: Path) -> None:
    records = read_curve_records(write(tmp_path / "a", train(1, 10**400), train(2, 1.0)))
    [curve] = curves({"a": records}, ["loss"])
    assert curve.value.tolist() == [math.inf, 1.0]


@pytest.mark.parametrize("lowest", [3.0, -3.0])
def test_room_for_numbers_adds_no_negative_ticks(lowest: float) -> None:
    runs = {
        str(i): [train(1, 0.0, ppl=50.0), valid(1, 0.0, ppl=20.0), valid(2, 0.0, ppl=lowest + i)]
        for i in range(5)
    }
    [axes] = draw(curves(runs, ["ppl"]), "updates", 1).axes
    bottom, _ = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if tick >= bottom]
    assert bottom < 0 and (min(ticks) < 0) == (lowest < 0)


def test_the_number_beside_a_star_is_short() -> None:
    """The perplexity of a training that has diverged has 305 digits."""
    records = [valid(1, 9.0, ppl=math.exp(700)), valid(2, 9.0, ppl=math.exp(699))]
    [axes] = draw(curves({"a": records}, ["ppl"]), "updates", 1).axes
    assert [text.get_text() for text in axes.texts] == ["3.731e+303"]


def test_the_keys_of_quantities_exist() -> None:
    known = {f"training.validation.{key}" for key in ValidationConfig.model_fields}
    assert known.issuperset(KEYS.values())


def test_curves_can_be_drawn_over_epochs(tmp_path: Path) -> None:
    drawn = curves(
        {"a": read_curve_records(write(tmp_path / "a", train(10, 2.0), train(20, 1.0)))}, ["loss"]
    )
    [line] = draw(drawn, "epochs", 1).axes[0].lines
    assert list(line.get_xdata()) == [1, 2]
    without = [{"kind": "train", "update": 1, "loss": 2.0}]
    with pytest.raises(DataError, match="no epochs"):
        plot(curves({"a": without}, ["loss"]), tmp_path / "a.png", x="epochs")


@pytest.mark.parametrize(("what", "best"), [("ter", 1), ("chrf", 0), ("my_metric:Mine", None)])
def test_the_best_value_of_a_metric_of_translations(what: str, best: int | None) -> None:
    steps = np.array([1.0, 2.0])
    assert Curve("run", "valid", what, steps, steps, np.array([9.0, 8.0])).best() == best


def test_metrics_of_translations_are_drawn_by_default() -> None:
    record = {"kind": "valid", "update": 1, "epoch": 1.0, "loss": 2.0, "seconds": 3.0, "ter": 60.0}
    assert [curve.what for curve in curves({"run": [record]})] == ["loss", "ter"]
