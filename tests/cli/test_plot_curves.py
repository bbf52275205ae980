"""``fusetk plot-curves`` on run folders made by hand."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fusetk.cli.main import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plot-curves", *arguments])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, gain in (("x/base", 1.0), ("y/base", 1.5)):
        folder = Path(name)
        folder.mkdir(parents=True)
        lines = [
            {"kind": "train", "update": n, "epoch": n / 4, "loss": 9 - gain * n, "lr": n}
            for n in range(1, 6)
        ]
        lines += [
            {
                "kind": "valid",
                "update": n,
                "epoch": n / 4,
                "loss": 9 - n,
                "bleu": n * gain,
                "best": True,
            }
            for n in (2, 4)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_a_picture(runs: Path) -> None:
    result = run("x/base", "y/base", "-o", "a.png", "--smooth", "3", "--x", "epochs")
    assert (result.exit_code, result.output) == (0, "")
    assert Path("a.png").stat().st_size > 10_000


def test_curves_in_the_numbers(runs: Path) -> None:
    def curves(*arguments: str) -> list[tuple[str, str, str]]:
        result = run("x/base", "y/base", "-o", "a.json", *arguments)
        assert result.exit_code == 0, result.output
        return [
            (curve["run"], curve["kind"], curve["what"])
            for curve in json.loads(Path("a.json").read_text())
        ]

    x, y = "x/base", "y/base"  # the names of the folders are equal
    both = [(name, kind, "loss") for name in (x, y) for kind in ("train", "valid")]
    bleu = [(x, "valid", "bleu"), (y, "valid", "bleu")]
    assert curves() == [*both, *bleu]
    assert curves("--train", "--valid", "--what", "loss") == both
    assert curves("--valid", "--what", "bleu,loss") == [
        *bleu,
        (x, "valid", "loss"),
        (y, "valid", "loss"),
    ]
    assert curves("--train", "--names", "one,two", "--what", "lr") == [
        ("one", "train", "lr"),
        ("two", "train", "lr"),
    ]
    assert curves("--train", "--names", "one, two", "--what", "lr,")[1] == ("two", "train", "lr")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["x/base", "-o", "a.jpg"], ".png, .pdf, .svg"),
        (["x/base", "-o", "nowhere/a.png"], "the folder nowhere does not exist"),
        (["x", "-o", "a.png"], "x has no metrics.jsonl"),
        (["z", "-o", "a.png"], "z is not a run folder: there is no such folder"),
        (["x/base", "-o", "a.png", "--what", "blue"], "did you mean 'bleu'"),
        (["x/base", "-o", "a.png", "--names", "a,b"], "2 names for 1 run;"),
        (["x/base", "x/base", "-o", "a.png"], "two runs have the name '/"),
        (["x/base", "y/base", "-o", "a.png", "--names", "a,"], "--names has an empty name"),
        (["x/base", "-o", "a.png", "--what", ","], "--what has no quantity"),
        (["x/base", "-o", "a.png", "--size", "0.5"], "--size: 0.5 x 1.54 inches are too small"),
        (["x/base", "-o", "a.png", "--smooth", "0"], "--smooth"),
        (["x/base", "-o", "a.json", "--title", "a"], "--title changes no number in a.json"),
        (["-o", "a.png"], "RUN"),
    ],
)
def test_mistakes(runs: Path, arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr and "Traceback" not in result.stderr
    assert "'//" not in result.stderr
    assert not Path("a.png").exists()
