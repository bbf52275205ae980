"""The queue of the evidence: what it trains next, and how it stops."""

import argparse
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fusetk import config as configs
from fusetk.data import manifest
from fusetk.errors import ConfigError, DataError
from fusetk.files import lock
from fusetk.recipe import load

RECIPES = Path(__file__).parent.parent / "recipes"
sys.path.insert(0, str(RECIPES / "evidence"))

import evidence_plan  # noqa: E402  # isort: skip
import run_queue  # noqa: E402  # isort: skip

PLAN = {
    "tuning": {"usual": {"rate": [2, 1, 4], "dropout": [0.2, 0.1]}},
    "seeds": [1, 2],
    "waves": [{"a": "usual", "b": "usual"}, {"c": "usual"}],
}
OWN = {system: {"rate": 2, "dropout": 0.2} for system in "abc"}


def plan(**changes: Any) -> evidence_plan.PlanConfig:
    return evidence_plan.PlanConfig.model_validate(PLAN | changes)


def result(system: str, loss: float, seed: int = 1, **values: Any) -> Any:
    return SimpleNamespace(
        system=system,
        seed=seed,
        overrides=values,
        config={"rate": 2, "dropout": 0.2, "other": [1, {"x": 2}]} | values,
        valid_curve={"epoch": [1.0, 2.0, 3.0, 4.0], "loss": [9.0, loss, None, 10.0]},
        training=SimpleNamespace(update_seconds=1800.0, on_gpu=False, data=None),
        scores=[
            SimpleNamespace(set_name="test", checkpoint=checkpoint, metric=metric)
            for checkpoint in ("best", "average-5")
            for metric in evidence_plan.METRICS
        ],
    )


def names(*results: Any, **changes: Any) -> list[str]:
    jobs = evidence_plan.jobs_left(
        plan(**changes), OWN, evidence_plan.Results(plan(**changes), results)
    )
    return [f"{job.system}{job.seed} {job.setting}" for job in jobs]


def left(*results: Any, **changes: Any) -> int:
    content = plan(**changes)
    return evidence_plan.count_left(content, OWN, evidence_plan.Results(content, results))


FIRST = [result("a", 3.0), result("b", 3.0)]
RATES = [result(s, 2.0 + r, rate=r) for s in "ab" for r in (1, 4)]


def test_all_systems_of_a_wave_get_their_first_training_first() -> None:
    assert names()[:2] == ["a1 own", "b1 own"]
    assert names().index("b1 rate=4") < names().index("c1 own")
    assert names(result("a", 3.0))[:3] == ["b1 own", "a1 rate=1", "a1 rate=4"]


def test_a_key_is_tuned_with_the_best_values_of_those_before_it() -> None:
    at_one = [result("a", 2.9, rate=1), result("a", 3.1, rate=4)]
    assert "a1 rate=1,dropout=0.1" in names(*FIRST, *at_one)
    at_two = [result("a", 3.2, rate=1), result("a", 3.1, rate=4)]
    assert "a1 dropout=0.1" in names(*FIRST, *at_two)


def test_the_other_seeds_have_the_best_values() -> None:
    tuned = [result("a", 2.5, rate=4), result("a", 2.9, rate=1)]
    better = [*FIRST, *tuned, result("a", 2.4, rate=4, dropout=0.1)]
    assert "a2 rate=4,dropout=0.1" in names(*better)
    worse = [*FIRST, *tuned, result("a", 2.6, rate=4, dropout=0.1)]
    assert "a2 rate=4" in names(*worse)
    assert not [name for name in names(*worse, result("a", 2.5, 2, rate=4)) if name[0] == "a"]


def test_all_seeds_are_known_if_there_is_nothing_to_tune() -> None:
    one_value = {"tuning": {"usual": {"rate": [2], "dropout": [0.2]}}}
    assert names(**one_value)[:4] == ["a1 own", "b1 own", "a2 own", "b2 own"]
    assert left(**one_value) == 6


def test_trainings_left_are_counted_before_they_are_known() -> None:
    assert left() == 3 * (1 + 2 + 1 + 1)
    assert left(*FIRST, *RATES) == 15 - 6
    done = [result("c", 1.0), result("c", 2.0, rate=1), result("c", 2.0, rate=4)]
    assert left(*done, result("c", 2.0, dropout=0.1), result("c", 1.0, 2)) == 10


def test_seeds_that_were_trained_before_the_tuning_are_not_left() -> None:
    assert left(*FIRST, result("a", 2.0, 2)) == left(*FIRST) - 1
    unused = result("a", 2.0, 2, rate=4)  # a rate that may become the best, but is not assumed
    assert left(*FIRST, unused) == left(*FIRST)


def test_hours_are_those_of_trainings_on_such_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = result("b", 3.0)
    on_gpu.training = SimpleNamespace(update_seconds=360.0, on_gpu=True, data=None)
    for available, hours in ((False, [0.5]), (True, [0.1])):
        monkeypatch.setattr(
            evidence_plan.torch.cuda, "is_available", lambda answer=available: answer
        )
        assert evidence_plan.Results(plan(), [result("a", 3.0), on_gpu]).hours == hours


TRIAL = {"trial": {"epochs": 1, "keys": ["rate"]}}


def trial(system: str, loss: float, rate: int) -> Any:
    done = result(system, loss, rate=rate, **{evidence_plan.EPOCHS: 1})
    done.valid_curve = {"epoch": [1.0], "loss": [loss]}
    done.scores = []
    return done


def test_trials_compare_the_first_epochs() -> None:
    assert names(**TRIAL)[:4] == ["a1 own", "b1 own", "a1 rate=1,epochs=1", "a1 rate=4,epochs=1"]
    # The complete training has a loss of 9 after its first epoch.
    worse = [*FIRST, trial("a", 9.1, 1), trial("a", 9.2, 4)]
    assert "a2 own" in names(*worse, **TRIAL)
    better = [*FIRST, trial("a", 9.1, 1), trial("a", 8.9, 4)]
    assert "a2 rate=4" in names(*better, **TRIAL)


def test_a_complete_training_takes_part_in_trials_with_its_first_epochs() -> None:
    """A validation after each half epoch; the second epoch is not compared."""
    complete = result("a", 2.0)
    complete.valid_curve = {"epoch": [0.5, 1.0, 1.5, 2.0], "loss": [9.5, 9.0, 3.0, 2.0]}
    results = evidence_plan.Results(plan(**TRIAL), [complete])
    assert results.loss("a", 1, OWN["a"], epochs=1) == 9.0
    assert results.loss("a", 1, OWN["a"]) == 2.0


def test_a_plan_may_write_a_number_in_another_way() -> None:
    """The config of a run has 0.0 where the plan has 0, and 2000 where it has 2e3."""
    changes = {"tuning": {"usual": {"rate": [2, 2e3], "dropout": [0.2, 0]}}}
    done = [result("a", 3.0), result("a", 2.0, rate=2000), result("a", 1.0, rate=2000, dropout=0.0)]
    of_a = [name for name in names(*done, **changes) if name[0] == "a"]
    assert of_a == ["a2 rate=2000.0,dropout=0"]


def test_a_trial_that_has_diverged_is_done_and_never_the_best() -> None:
    results = evidence_plan.Results(plan(**TRIAL), [*FIRST, trial("a", 9.1, 1)])
    diverged = evidence_plan.Job("a", 1, (("rate", 4),), 1)
    results.add_diverged(diverged, OWN["a"])
    jobs = evidence_plan.jobs_left(plan(**TRIAL), OWN, results)
    of_a = [f"a{job.seed} {job.setting}" for job in jobs if job.system == "a"]
    assert of_a == ["a2 own", "a1 dropout=0.1"]


def test_a_complete_training_does_not_change_the_choice_of_the_trials() -> None:
    """The complete training ran on another device, so its first losses are not the trial's."""
    tried = [*FIRST, trial("a", 9.1, 1), trial("a", 8.9, 4)]
    complete = result("a", 2.0, rate=4)  # its loss after the first epoch is 9, as that of `own`
    of_a = [name for name in names(*tried, complete, **TRIAL) if name[0] == "a"]
    assert of_a == ["a2 rate=4", "a1 rate=4,dropout=0.1"]


def test_seeds_are_trained_after_the_trials_and_before_the_other_keys_are_tuned() -> None:
    tried = [*FIRST, trial("a", 9.1, 1), trial("a", 8.9, 4)]
    of_a = [name for name in names(*tried, **TRIAL) if name[0] == "a"]
    assert of_a == ["a1 rate=4", "a2 rate=4", "a1 rate=4,dropout=0.1"]
    unknown = 4  # the second seed and the second dropout rate of b and c
    assert left(*tried, **TRIAL) == len(names(*tried, **TRIAL)) + unknown
    better = [result("a", loss, 1, rate=4, dropout=d) for loss, d in ((2.0, 0.2), (1.0, 0.1))]
    for done in better:
        done.valid_curve["loss"][0] = 8.9  # as in the trial
    of_a = [name for name in names(*tried, *better, **TRIAL) if name[0] == "a"]
    assert of_a == ["a2 rate=4", "a2 rate=4,dropout=0.1"]


def test_further_seeds_of_claims_wait_for_the_best_values_of_all_keys() -> None:
    changes = {**TRIAL, "claims": [("a", "b")], "claim_seeds": [4]}
    tried = [*FIRST, trial("a", 9.1, 1), trial("a", 9.2, 4)]
    of_a = [name for name in names(*tried, **changes) if name[0] == "a"]
    assert of_a == ["a2 own", "a1 dropout=0.1"]
    assert left(*tried, **changes) == left(*tried, **TRIAL) + 2
    tuned = [*tried, result("a", 1.0, dropout=0.1)]
    tuned[-1].valid_curve["loss"][0] = 9.0
    of_a = [name for name in names(*tuned, **changes) if name[0] == "a"]
    assert of_a == ["a2 own", "a2 dropout=0.1", "a4 dropout=0.1"]


CLAIMS = {"claims": [("a", "c"), ("a", "b")], "claim_seeds": [4, 5]}
TUNED = [result(s, 2.0 + r, rate=r) for s in "abc" for r in (1, 4)]
TUNED += [result(s, loss, dropout=d) for s in "abc" for loss, d in ((1.0, 0.2), (2.0, 0.1))]


def test_further_seeds_of_claims_come_after_all_waves() -> None:
    for claims, further in (
        ([("a", "c")], ["a4 own", "c4 own", "a5 own", "c5 own"]),
        ([("a", "c"), ("a", "b")], [f"{s}{seed} own" for seed in (4, 5) for s in "abc"]),
    ):
        changes = {**CLAIMS, "claims": claims}
        assert names(*TUNED, **changes) == ["a2 own", "b2 own", "c2 own", *further]
    fourth = [result(s, 1.0, seed) for s in "abc" for seed in (2, 4)]
    assert names(*TUNED, *fourth, **CLAIMS) == ["a5 own", "b5 own", "c5 own"]
    before = names(*TUNED[:-1], **CLAIMS)  # the second value of c's last key is not tried
    assert before[2:] == ["c1 dropout=0.1", "a4 own", "b4 own", "a5 own", "b5 own"]


def test_further_seeds_of_claims_are_counted() -> None:
    assert left(**CLAIMS) == 3 * (1 + 2 + 1 + 1 + 2)
    one_pair = {**CLAIMS, "claims": [("a", "c")]}
    assert left(**one_pair) == 15 + 2 * 2
    assert left(*TUNED, **one_pair) == len(names(*TUNED, **one_pair)) == 3 + 4


def test_claims_name_systems_and_new_seeds() -> None:
    with pytest.raises(ValueError, match="claims: z is not in a wave of the plan"):
        plan(claims=[("a", "z")])
    with pytest.raises(ValueError, match=r"have a seed twice: \[1, 2, 2\]"):
        plan(claims=[("a", "b")], claim_seeds=[2])


def test_results_of_other_systems_and_values_do_not_count() -> None:
    assert names(result("z", 1.0), result("a", 1.0, dropout=0.7)) == names()
    assert names(result("a", 1.0, untuned=7)) == names()


def test_a_training_of_another_kind_is_done() -> None:
    """The overrides of the training also have the keys of this kind."""
    kinds = {"tuning": {"usual": {"fuse.kind": ["last", "average"]}}}
    first = [result(system, 3.0, **{"fuse.kind": "last"}) for system in "ab"]
    for each in first:
        each.overrides = {}
    average = result("a", 2.0, **{"fuse.kind": "average", "fuse.norm": True})
    own = {system: {"fuse.kind": "last"} for system in "abc"}

    def left_of(*results: Any) -> list[str]:
        known = evidence_plan.Results(plan(**kinds), results)
        jobs = evidence_plan.jobs_left(plan(**kinds), own, known)
        return [f"{job.system}{job.seed} {job.setting}" for job in jobs]

    assert left_of(*first)[:2] == ["a1 kind=average", "b1 kind=average"]
    assert left_of(*first, average)[:2] == ["b1 kind=average", "a2 kind=average"]
    other_key = result("a", 2.0, **{"fuse.kind": "last", "fuse.norm": True})
    other_key.overrides = {"fuse.norm": True}
    assert left_of(*first, other_key) == left_of(*first)


@pytest.mark.parametrize("lacking", [slice(0, 3), slice(3, 6), slice(1, 2), slice(4, 5)])
def test_a_training_without_all_scores_is_not_done(lacking: slice) -> None:
    unscored = result("a", 3.0)
    del unscored.scores[lacking]
    assert names(unscored, FIRST[1])[:3] == ["a1 own", "a1 rate=1", "a1 rate=4"]
    assert left(unscored, FIRST[1]) == left(*FIRST) + 1
    of_validation = SimpleNamespace(set_name="valid", checkpoint="best", metric="bleu")
    of_last = SimpleNamespace(set_name="test", checkpoint="last", metric="sacrebleu")
    of_other = [
        SimpleNamespace(set_name="other", checkpoint="best", metric=metric)
        for metric in evidence_plan.METRICS
    ]
    unscored.scores = [*FIRST[0].scores, of_validation, of_last, *of_other]
    assert names(unscored, FIRST[1]) == names(*FIRST)


def test_a_training_without_losses_is_worse_than_others_and_has_no_hours() -> None:
    lost = result("a", 3.0, rate=1)
    lost.valid_curve = {}
    lost.training.update_seconds = None
    known = evidence_plan.Results(plan(), [FIRST[0], lost])
    assert known.loss("a", 1, {"rate": 1, "dropout": 0.2}) == math.inf
    assert known.hours == [0.5]
    others = [*FIRST, lost, *(each for each in RATES if each.config["rate"] == 4)]
    assert "a1 dropout=0.1" in names(*others)


def test_an_epoch_without_a_finite_loss_counts_as_an_epoch() -> None:
    done = result("a", 3.0)
    done.valid_curve = {"epoch": [1.0, 2.0, 3.0], "loss": [None, 5.0, 3.0]}
    known = evidence_plan.Results(plan(), [done])
    assert known.loss("a", 1, {"rate": 2, "dropout": 0.2}, epochs=2) == 5.0


def test_settings_have_the_shortest_unique_ends_of_the_keys() -> None:
    layers = {"model.encoder.layers": [2, 4], "model.decoder.layers": [2, 4]}
    tuning = {"usual": {"training.peak": [1, 2], "model.epochs": [1], **layers}}
    options = [("training.peak", 2), ("model.encoder.layers", 4), (evidence_plan.EPOCHS, 3)]
    assert plan(tuning=tuning).setting(options) == "peak=2,encoder.layers=4,end.epochs=3"
    assert plan(tuning=tuning).setting([]) == "own"


def test_a_plan_names_its_tunings() -> None:
    with pytest.raises(ValueError, match="b: the plan has no tuning more"):
        plan(waves=[{"b": "more"}])


def test_a_system_in_two_waves_and_an_unknown_key_of_trials_are_errors() -> None:
    with pytest.raises(ValueError, match="a is in two waves"):
        plan(waves=[{"a": "usual"}, {"a": "usual"}])
    with pytest.raises(ValueError, match=r"trial.keys: ratte is not a key of a tuning"):
        plan(trial={"epochs": 1, "keys": ["ratte"]})


@pytest.mark.parametrize("task", ["multi30k", "iwslt14"])
def test_the_plans_have_all_recipes_and_begin_with_their_values(task: str) -> None:
    path = RECIPES / "evidence" / "plans" / f"{task}.yaml"
    content = configs.parse(configs.load(path), evidence_plan.PlanConfig)
    own = evidence_plan.own_values(content, RECIPES / "evidence" / task)
    for system, values in own.items():
        assert values == {key: choices[0] for key, choices in content.steps(system).items()}
        for key in [*values, evidence_plan.EPOCHS]:
            assert content.setting([(key, 1)]) == f"{key.rpartition('.')[2]}=1"
    recipes = {path.stem for path in (RECIPES / "evidence" / task).glob("*.yaml")}
    assert set(own) == recipes - {"base", "joint"}
    papers = {name: load(RECIPES / "evidence" / task / f"{name}.yaml").paper for name in own}
    rows = {paper.row for paper in papers.values()}
    assert all(paper.compared_with in rows for paper in papers.values())
    for base, system in content.claims:
        assert papers[system].compared_with == papers[base].row


def test_a_recipe_with_another_value_is_an_error() -> None:
    content = plan(tuning={"usual": {"model.dropout": [0.7]}}, waves=[{"transformer": "usual"}])
    with pytest.raises(ConfigError, match=r"transformer.yaml: model.dropout is 0.3, .*: 0.7"):
        evidence_plan.own_values(content, RECIPES / "evidence" / "multi30k")


@pytest.mark.parametrize("key", ["model.dropuot", "model.decoder.fuse"])
def test_a_tuned_key_that_a_recipe_does_not_have_is_an_error(key: str) -> None:
    content = plan(tuning={"usual": {key: [None, "average"]}}, waves=[{"transformer": "usual"}])
    with pytest.raises(ConfigError, match=rf"tunes {key}, .*model\.decoder\.fuse\.kind"):
        evidence_plan.own_values(content, RECIPES / "evidence" / "multi30k")


def test_a_recipe_that_ends_after_epochs_is_an_error(tmp_path: Path) -> None:
    """Only trials end after epochs: the queue would never count its training as done."""
    stage = {"optimizer": "adam", "schedule": {"kind": "constant", "rate": 0.1}}
    stage |= {"batch": {"size": 100}, "end": {"epochs": 2}}
    base = RECIPES / "evidence" / "multi30k" / "transformer.yaml"
    values = {"extends": str(base), "training": {"stages": [stage]}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(values))
    content = plan(tuning={"usual": {}}, waves=[{"a": "usual"}])
    with pytest.raises(ConfigError, match=r"a.yaml: training.stages.0.end.epochs is 2: in a plan"):
        evidence_plan.own_values(content, tmp_path)


def test_a_recipe_with_several_stages_has_no_trials(tmp_path: Path) -> None:
    """The end of a trial is that of the first stage, so the second one would follow."""
    base = RECIPES / "evidence" / "multi30k" / "transformer.yaml"
    stages = load(base).model_dump(mode="json")["training"]["stages"]
    values = {"extends": str(base), "training": {"stages": 2 * stages}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(values))
    changes = {"tuning": {"usual": {"model.dropout": [0.3, 0.2]}}, "waves": [{"a": "usual"}]}
    assert evidence_plan.own_values(plan(**changes), tmp_path) == {"a": {"model.dropout": 0.3}}
    content = plan(**changes, trial={"epochs": 1, "keys": ["model.dropout"]})
    with pytest.raises(ConfigError, match=r"a.yaml: training has 2 stages, but a trial ends"):
        evidence_plan.own_values(content, tmp_path)


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Call the script with the plan of Multi30k."""
    plan_path = RECIPES / "evidence" / "plans" / "multi30k.yaml"
    folder = RECIPES / "evidence" / "multi30k"
    fixed = ["run_queue.py", plan_path, "--recipes", folder, "--raw", "text", "--jobs", 1]
    arguments = [str(word) for word in (*fixed, "--threads", 1, *words)]
    monkeypatch.setattr(sys, "argv", arguments)
    return run_queue.main()


@pytest.mark.parametrize("option", ["--results", "--out"])
@pytest.mark.parametrize("left", [[], ["--left"]])
def test_a_file_in_place_of_a_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, left: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    folders = {"--results": tmp_path / "a", "--out": tmp_path / "b", option: tmp_path / "file"}
    words = [word for pair in folders.items() for word in pair]
    with pytest.raises(ConfigError, match=f"file is not a folder: give .* with {option}"):
        call(monkeypatch, *words, *left)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_list_of_trainings_left_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = ["--results", tmp_path / "a", "--out", tmp_path / "b", "--left"]
    assert call(monkeypatch, *words) == 0
    assert "trainings left: " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".queue.lock").mkdir()
    with pytest.raises(DataError, match=r"\.queue\.lock cannot be written: Is a directory"):
        call(monkeypatch, "--results", tmp_path / "a", "--out", tmp_path)


def test_a_list_whose_reader_has_ended_has_no_traceback(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [RECIPES / "evidence" / "run_queue.py", RECIPES / "evidence" / "plans" / "iwslt14.yaml"]
    words += ["--recipes", RECIPES / "evidence" / "iwslt14", "--raw", "text", "--jobs", "1"]
    words += ["--threads", "1", "--results", tmp_path / "a", "--out", tmp_path / "b", "--left"]
    ran = subprocess.run([sys.executable, *words], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (1, "")


class FakeQueue(run_queue.Queue):
    """Its trainings are a small program, and a list takes the place of the result files."""

    def __init__(self, tmp_path: Path, code: str, jobs: int = 2):
        self.plan = plan(tuning={"usual": {}})
        self.own: Mapping[str, Any] = {system: {} for system in "abc"}
        self.options = argparse.Namespace(jobs=jobs, out=tmp_path, results=tmp_path, threads=1)
        self.running = {}
        self.preparing = set()
        self.saving = set()
        self.job_locks = {}
        self.elsewhere = set()
        self.next_try = 0.0
        self.failed = set()
        self.stopped = False
        self.error = None
        self.code = code
        self.other_text = ""  # the system whose text is not that of the results
        self.save_code = ""
        self.unsaved = ""
        self.done: list[Any] = []
        self.times_read = 0

    def command(self, job: evidence_plan.Job) -> list[str]:
        return [sys.executable, "-c", self.code, f"{job.system}{job.seed}", job.setting]

    def prepare_command(self, job: evidence_plan.Job) -> list[str]:
        return [sys.executable, "-S", "-c", ""]

    def check_text(self, job: evidence_plan.Job) -> None:
        if job.system == self.other_text:
            self.error = ConfigError("another text")
            self.stop()

    def save_command(self, job: evidence_plan.Job) -> list[str]:
        if job.system != self.unsaved:
            self.done.append(result(job.system, 1.0, job.seed))
        return [sys.executable, "-c", self.save_code, f"{job.system}{job.seed}"]

    def results(self) -> evidence_plan.Results:
        self.times_read += 1
        return evidence_plan.Results(self.plan, self.done)


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(run_queue, "POLL", 0.01)
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_queue_ends_when_nothing_is_left(tmp_path: Path) -> None:
    queue = FakeQueue(tmp_path, "print('trained')")
    assert queue.run() == 0
    assert sorted(f"{r.system}{r.seed}" for r in queue.done) == ["a1", "a2", "b1", "b2", "c1", "c2"]
    assert (tmp_path / "own" / "a.seed1.log").read_text() == "trained\n"


def test_results_are_read_only_when_a_process_has_ended(tmp_path: Path) -> None:
    queue = FakeQueue(tmp_path, "import time; time.sleep(0.3)", jobs=10)
    assert queue.run() == 0
    ended = 3 * len(queue.done)  # a preparation, a training, and the save of its result
    # They are also read when a job is locked, and when its result is checked.
    assert queue.times_read <= 1 + ended + 2 * len(queue.done)


def test_a_failed_training_does_not_stop_the_others(tmp_path: Path, capsys: Any) -> None:
    queue = FakeQueue(tmp_path, "import sys; sys.exit(sys.argv[1] == 'b1')")
    assert queue.run() == 1
    assert len(queue.done) == 5
    log = tmp_path / "own" / "b.seed1.log"
    assert f"b.seed1 (own) failed with status 1: see {log}" in capsys.readouterr().out


def test_a_training_that_has_diverged_does_not_stop_the_tuning(tmp_path: Path) -> None:
    diverged = f"sys.argv[2] == 'rate=1' and {run_queue.EX_DIVERGED}"
    queue = FakeQueue(tmp_path, f"import sys; sys.exit({diverged})")
    queue.plan = plan(tuning={"usual": {"rate": [2, 1]}}, waves=[{"a": "usual"}])
    queue.own = {"a": {"rate": 2}}
    assert queue.run() == 1
    assert [job.seed for job in queue.done] == [1, 2]
    assert queue.failed == {"a.seed1 (rate=1)"}


def test_another_queue_does_not_repeat_a_training_that_has_diverged(
    tmp_path: Path, capsys: Any
) -> None:
    """A trial and a complete training diverge. The second queue trains neither of them."""
    first = FakeQueue(
        tmp_path,
        "import sys; system, setting = sys.argv[1:]; "
        f"sys.exit({run_queue.EX_DIVERGED} if setting != 'own' or system == 'a2' else 0)",
    )
    second = FakeQueue(tmp_path, "")
    second.options.out = tmp_path / "other"
    for queue in (first, second):
        queue.plan = plan(tuning={"usual": {"rate": [2, 1]}}, waves=[{"a": "usual"}], **TRIAL)
        queue.own = {"a": {"rate": 2}}
        queue.done = first.done
        assert queue.run() == 1
        assert queue.failed == {"a.seed1 (rate=1,epochs=1)", "a.seed2 (own)"}
        out = capsys.readouterr().out
        file = tmp_path / run_queue.JOB_LOCKS / "a.seed2.own.diverged"
        reason = f"has diverged; to train it again, delete its run folder and {file}: see "
        assert out.count(f"a.seed2 (own) {reason}") == 1
        assert [training.seed for training in first.done] == [1]
    second.describe()
    assert "trainings left: 0" in capsys.readouterr().out
    file.unlink()
    second.failed.clear()
    second.run()
    assert [training.seed for training in first.done] == [1, 2]


def test_a_signal_between_two_steps_stops_the_next_one(tmp_path: Path) -> None:
    class Signalled(FakeQueue):
        def start_process(self, job: evidence_plan.Job, command: list[str]) -> None:
            if job not in self.preparing:  # the training
                signal.raise_signal(signal.SIGTERM)
            super().start_process(job, command)

    start = time.monotonic()
    queue = Signalled(tmp_path, "import time; time.sleep(60)", jobs=1)
    assert queue.run() == run_queue.EX_TEMPFAIL and not queue.done
    assert time.monotonic() - start < 30


def test_a_training_without_a_result_is_not_repeated(tmp_path: Path, capsys: Any) -> None:
    queue = FakeQueue(tmp_path, "")
    queue.unsaved = "b"
    assert queue.run() == 1
    assert len(queue.done) == 4
    assert capsys.readouterr().out.count("was trained, but has no result: see ") == 2


def test_a_training_runs_while_the_result_of_another_one_is_saved(tmp_path: Path) -> None:
    started = tmp_path / "started"
    queue = FakeQueue(tmp_path, f"import sys; open({str(started)!r} + sys.argv[1], 'w')")
    queue.save_code = (
        "import os, sys, time\n"
        "end = time.monotonic() + 30\n"
        f"while sys.argv[1] == 'a1' and not os.path.exists({str(started)!r} + 'c1'):\n"
        "    assert time.monotonic() < end\n"
        "    time.sleep(0.01)"
    )
    assert queue.run() == 0


def test_another_text_stops_the_queue_before_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = FakeQueue(tmp_path, "", jobs=1)
    queue.other_text = "b"
    trained: list[str] = []
    command = queue.command
    monkeypatch.setattr(queue, "command", lambda job: trained.append(job.system) or command(job))
    with pytest.raises(ConfigError, match="another text"):
        queue.run()
    assert trained == [r.system for r in queue.done] == ["a"] and not queue.running


def test_results_of_another_text_are_found() -> None:
    recipe = load(RECIPES / "evidence" / "multi30k" / "pre_norm.yaml")
    joint = load(RECIPES / "evidence" / "multi30k" / "joint_transformer.yaml")
    prepared = {"stages": {"train": {"outputs": {"train.source.bin": {"sha256": "1"}}}}}
    other = {"stages": {"train": {"outputs": {"train.source.bin": {"sha256": "2"}}}}}
    first = result("a", 1.0, data=recipe.data.model_dump(mode="json", exclude={"folder"}))
    first.overrides = {}
    first.training.data = manifest.training_fingerprint(prepared)
    results = evidence_plan.Results(plan(), [first])
    assert results.fits(recipe.data, prepared) and not results.fits(recipe.data, other)
    assert results.fits(joint.data, other), "these settings have no result yet"
    first.config["data"]["key_of_another_version"] = 1
    results = evidence_plan.Results(plan(), [first])
    assert results.fits(recipe.data, other) and results.done


def test_a_training_that_was_stopped_stops_the_others(tmp_path: Path) -> None:
    code = "import sys, time; time.sleep(60 * (sys.argv[1] == 'a1')); sys.exit(75)"
    start = time.monotonic()
    assert FakeQueue(tmp_path, code).run() == run_queue.EX_TEMPFAIL
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("begun", [True, False])
def test_a_signal_stops_the_trainings_and_the_queue(tmp_path: Path, begun: bool) -> None:
    handle = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n" if begun else ""
    code = f"import signal, sys, time\n{handle}print('ready', flush=True)\ntime.sleep(60)"
    queue = FakeQueue(tmp_path, code)
    logs = [tmp_path / "own" / f"{system}.seed1.log" for system in "ab"]

    def interrupt() -> None:
        while not all(log.exists() and log.read_text() for log in logs):
            time.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    assert queue.run() == run_queue.EX_TEMPFAIL
    thread.join()
    assert not queue.done and not queue.running and not queue.failed


def job_lock_file(tmp_path: Path, name: str) -> Any:
    (tmp_path / run_queue.JOB_LOCKS).mkdir(exist_ok=True)
    return open(tmp_path / run_queue.JOB_LOCKS / name, "a")


def test_queues_with_the_same_results_start_different_trainings(tmp_path: Path) -> None:
    queues = [FakeQueue(tmp_path, "", jobs=2) for _ in range(2)]
    for queue in queues:
        queue.options.out = tmp_path / str(id(queue))
        queue.start()
    started = [{f"{job.system}{job.seed}" for job in queue.running} for queue in queues]
    assert started == [{"a1", "b1"}, {"a2", "b2"}]
    for queue in queues:
        for process in queue.running.values():
            process.wait()


def test_a_queue_waits_for_a_training_of_another_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The other queue ends without a result, so this one runs the training."""
    monkeypatch.setattr(run_queue, "RETRY", 0.01)
    queue = FakeQueue(tmp_path, "")
    other = job_lock_file(tmp_path, "b.seed1.own")
    assert lock(other)

    done_before = []

    def end() -> None:
        while len(queue.done) < 5:
            time.sleep(0.01)
        time.sleep(0.1)
        done_before.append(len(queue.done))
        other.close()

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    assert queue.run() == 0
    thread.join()
    assert done_before == [5]
    assert (queue.done[-1].system, queue.done[-1].seed) == ("b", 1)
    assert (
        capsys.readouterr().out.count("b.seed1 (own): another queue runs it, or has run it\n") == 1
    )


def test_a_signal_stops_a_queue_that_waits_for_another_one(tmp_path: Path) -> None:
    queue = FakeQueue(tmp_path, "")
    queue.done = [result(system, 1.0, seed) for system in "abc" for seed in (1, 2)][1:]
    with job_lock_file(tmp_path, "a.seed1.own") as other:
        assert lock(other)
        thread = threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGTERM))
        thread.start()
        assert queue.run() == run_queue.EX_TEMPFAIL
        thread.join()
    assert len(queue.done) == 5


def test_a_training_that_another_queue_has_completed_is_not_started(tmp_path: Path) -> None:
    """Its result is saved after this queue has read the results, and before it locks the job."""
    queue = FakeQueue(tmp_path, "")
    [first, *_] = evidence_plan.jobs_left(queue.plan, queue.own, queue.results())
    queue.done.append(result(first.system, 1.0, first.seed))
    assert not queue.lock_job(first) and not queue.job_locks


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a signal of Linux")
def test_the_trainings_of_a_killed_queue_stop_and_hold_its_locks(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "def stop(*_):\n"
        "    while not (folder / 'end').exists():\n"
        "        time.sleep(0.01)\n"
        "    (folder / 'saved').touch()\n"
        "    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "(folder / 'ready').touch()\n"
        "time.sleep(60)"
    )
    queue = FakeQueue(tmp_path, code, jobs=1)
    file = tmp_path / "lock"
    child = os.fork()
    if not child:
        try:
            with open(file, "a") as locked:
                lock(locked)
                queue.locks = [locked.fileno()]
                queue.run()
        finally:
            os._exit(1)

    def wait_for(name: str) -> None:
        end = time.monotonic() + 30
        while not (tmp_path / name).exists():
            assert time.monotonic() < end, name
            time.sleep(0.01)

    wait_for("ready")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with open(file, "a") as locked, job_lock_file(tmp_path, "a.seed1.own") as job_file:
        assert not lock(locked) and not lock(job_file)
    (tmp_path / "end").touch()
    wait_for("saved")
    with open(file, "a") as locked, job_lock_file(tmp_path, "a.seed1.own") as job_file:
        assert lock(locked, wait=True) and lock(job_file, wait=True)
