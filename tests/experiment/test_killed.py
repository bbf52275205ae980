"""`fusetk run` that is killed in each of its steps: the last call gives the results of one call."""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fusetk.cli.main import main

CONFIG = """
data: {source: de, target: en, folder: data, train: [raw/train], valid: [raw/valid],
  test: {test: [raw/test]}, bpe: {merges: 50}, steps: [{step: lowercase}]}
model: {kind: transformer, width: 16, heads: 2, ffn: 16, encoder: {layers: 1}, decoder: {layers: 1}}
training:
  keep_last: 3
  save_every: 5
  log_every: 1
  stages:
    - {optimizer: adam, schedule: {kind: constant, rate: 0.01}, end: {updates: 12},
       batch: {size: 60}}
decoding: {beam: 2, max_length_factor: 1, max_length_extra: 3}
"""
WORDS = {"de": "das Haus ist alt und der Hund schläft".split(), "en": "the house is old".split()}
KILLED_AT = {  # text in the messages of a step, by the step; the call is killed after it
    "prep": "$ fusetk prep",
    "train": "update 7 ",  # between two checkpoints
    "average": "$ fusetk average",
    "decode": "checkpoints/average-3 -i",  # the second translation
    "score": "$ fusetk score",
}
PAUSE = 0.05  # seconds from this text to the kill
PATIENCE = 300  # seconds


@pytest.fixture
def folder(commands: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config and its raw text. Commands of `fusetk run` start fast."""
    python = shutil.which("python")
    assert python
    monkeypatch.setattr(sys, "executable", python)
    (tmp_path / "my.yaml").write_text(CONFIG)
    (tmp_path / "raw").mkdir()
    choose = random.Random(3)
    for name, pairs in (("train", 150), ("valid", 20), ("test", 6)):
        for side, words in WORDS.items():
            lines = [" ".join(choose.choices(words, k=4)) for _ in range(pairs)]
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / "raw" / f"{name}.{side}").write_text(text, encoding="utf-8")
    return tmp_path


class Call:
    """A call of `fusetk run` in a fork, whose messages are in a file."""

    number = 0

    def __init__(self, folder: Path, out: str):
        Call.number += 1
        self.log = folder / f"{out}.{Call.number}.log"
        self.log.touch()
        self.process = os.fork()
        if not self.process:
            self._run(folder, out)

    def _run(self, folder: Path, out: str) -> None:
        code = 1
        try:
            with open(self.log, "a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            sys.stdout, sys.stderr = (os.fdopen(n, "w", 1, closefd=False) for n in (1, 2))
            places = ["--raw", str(folder / "raw"), "--out", str(folder / out)]
            main(["run", str(folder / "my.yaml"), *places, "--threads", "1"])
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def kill_at(self, text: str) -> bool:
        """Kill the call after a text in its messages. Return False if it ends before."""
        end = time.monotonic() + PATIENCE
        while text not in self.output():
            assert time.monotonic() < end, self.output()
            if os.waitpid(self.process, os.WNOHANG)[0]:
                return False
            time.sleep(0.005)
        time.sleep(PAUSE)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        return True

    def succeeds(self) -> bool:
        _, status = os.waitpid(self.process, 0)
        return status == 0


def repeat(call: Callable[[], Call], done: Callable[[Call], bool]) -> None:
    """Call until it is done. A call is refused while a command of a killed one still ends."""
    end = time.monotonic() + PATIENCE
    while not done(current := call()):
        said = current.output()
        assert "another fusetk run works on" in said and time.monotonic() < end, said
        time.sleep(0.1)


def results(folder: Path) -> dict[str, str]:
    """Return the scores, and checksums of translations and weights by file name."""
    run = folder / "run.my.seed1"
    values = {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (*run.glob("test.*.txt"), *run.glob("checkpoints/*/model.safetensors"))
    }
    scores = json.loads((run / "scores.json").read_text())["scores"]
    return {**values, "scores": json.dumps(sorted(scores, key=json.dumps))}


@pytest.mark.slow
def test_calls_that_are_killed_in_each_step_give_the_results_of_one_call(folder: Path) -> None:
    complete = Call(folder, "complete")
    assert complete.succeeds(), complete.output()
    expected = results(folder / "complete")
    models = {name for name in expected if name.endswith("model.safetensors")}
    assert len(models) == 6  # updates 5, 10 and 12, their average, best, last
    assert len(expected) == len(models) + 3  # two translations, scores
    for text in KILLED_AT.values():
        repeat(lambda: Call(folder, "killed"), lambda call, text=text: call.kill_at(text))
    repeat(lambda: Call(folder, "killed"), Call.succeeds)
    assert results(folder / "killed") == expected
