"""`fusetk run` that is killed in any of its steps: the next call gives the same result."""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from fusetk.cli.main import main
from fusetk.experiment.run import STEPS

CONFIG = """
data: {source: de, target: en, folder: data, train: [raw/train], valid: [raw/valid],
  test: {test: [raw/test]}, bpe: {merges: 50},
  steps: [{step: tokenize}, {step: lowercase}]}
model: {kind: transformer, width: 16, heads: 2, ffn: 16, encoder: {layers: 1}, decoder: {layers: 1}}
training:
  keep_last: 3
  save_every: 5
  log_every: 1
  stages:
    - {optimizer: adam, schedule: {kind: constant, rate: 0.01}, end: {updates: 15},
       batch: {size: 60}}
decoding: {beam: 2, max_length_factor: 1, max_length_extra: 3}
"""
WORDS = {"de": "das Haus ist alt und der Hund schläft".split(), "en": "the house is old".split()}
PAUSES = {"train": 1.0}  # seconds after the start of a step, in which it does a part of its work
PATIENCE = 3600  # seconds


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my.yaml").write_text(CONFIG)
    (tmp_path / "raw").mkdir()
    choose = random.Random(3)
    for name, pairs in (("train", 200), ("valid", 20), ("test", 6)):
        for side, words in WORDS.items():
            lines = [" ".join(choose.choices(words, k=4)) for _ in range(pairs)]
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / "raw" / f"{name}.{side}").write_text(text, encoding="utf-8")
    return tmp_path


def start(folder: Path, out: str) -> int:
    """Start `fusetk run` in a fork whose messages go to OUT.log; return its process id."""
    child = os.fork()
    if child:
        return child
    with open(folder / f"{out}.log", "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    code = 1
    try:
        places = ["--raw", str(folder / "raw"), "--out", str(folder / out)]
        main(["run", str(folder / "my.yaml"), *places, "--threads", "1"])
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def finish(folder: Path, out: str) -> dict[str, str]:
    """Complete the run, and return its translations, scores and weights."""
    deadline = time.monotonic() + PATIENCE
    log = folder / f"{out}.log"
    while True:
        before = log.stat().st_size if log.exists() else 0
        _, status = os.waitpid(start(folder, out), 0)
        said = log.read_bytes()[before:].decode()
        # The killed run's command may still save its checkpoint.
        if "another fusetk run works on" not in said or time.monotonic() > deadline:
            break
    assert status == 0, said
    [run] = (folder / out).glob("run.*.seed1")
    scores = json.loads((run / "scores.json").read_text())["scores"]
    result = {"scores": json.dumps(sorted(scores, key=json.dumps))}
    for path in [*run.glob("*.txt"), *run.glob("checkpoints/*/model.safetensors")]:
        if path.name != "log.txt":
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            result[str(path.relative_to(run))] = content
    return result


@pytest.mark.slow
def test_after_a_kill_in_any_step_the_next_call_gives_the_same(
    commands: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("python"))
    expected = finish(folder, "complete")
    assert len(expected) > 5
    for number, step in enumerate(STEPS, 1):
        child = start(folder, step)
        heading = f"== {number} of {len(STEPS)}: {step}"
        deadline = time.monotonic() + PATIENCE
        log = folder / f"{step}.log"
        while not log.exists() or heading not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(PAUSES.get(step, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert finish(folder, step) == expected, step
