"""Full disks, damaged files, changed configs and signals destroy nothing and give clear errors."""

import errno
import gc
import json
import math
import os
import pickle
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors import SafetensorError
from safetensors.torch import load_file

from fusetk import resume, runs, sections
from fusetk import train as train_module
from fusetk.cli.main import main
from fusetk.data.manifest import differences
from fusetk.decoding.translate import Translator
from fusetk.errors import CheckpointError, ConfigError, DiskFull
from fusetk.files import checksum, digest
from fusetk.recipe import check_unchanged, load
from fusetk.resume import check_config
from fusetk.runs import EMA, MODEL, STARTING, STATE, TRAINING
from fusetk.training import checkpoint, log, loop
from fusetk.training.progress import Progress
from fusetk.training.validation import Validator
from fusetk.weights import read_state
from tests.helpers import forks

GIVEN = [
    "training.ema=0.9",
    "training.validation.every_updates=2",
    "training.keep_last=9",
    "training.log_every=1",
]
FILES = (MODEL, TRAINING, EMA)


def call(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def train(config: Path, run: Path, *overrides: str) -> Result:
    return call(
        "train",
        config,
        "--run",
        run,
        "--device",
        "cpu",
        "--quiet",
        *(word for override in overrides for word in ("--set", override)),
    )


def refusal(result: Result, code: int = 2) -> str:
    """Check that a command ended with this exit code and one message. Return the message."""
    assert result.exit_code == code and isinstance(result.exception, SystemExit), (
        result.output,
        result.exception,
    )
    messages = [line for line in result.output.splitlines() if line.startswith("fusetk: ")]
    assert len(messages) == 1 and "Traceback" not in result.output
    return messages[0]


def folder_of(run: Path, update: int) -> Path:
    return run / "checkpoints" / runs.checkpoint_name(update)


def tensors(run: Path, update: int = 8) -> dict[str, bytes]:
    return {file: (folder_of(run, update) / file).read_bytes() for file in FILES}


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def trained(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after 2, 4, 6 and 8 updates."""
    run = tmp_path_factory.mktemp("trained") / "run"
    assert train(toy, run, *GIVEN).exit_code == 0
    return run


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", trained, tmp_path / "run"], check=True)
    return tmp_path / "run"


# Damage -------------------------------------------------------------------------------------------


class Evil:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def rewrite(folder: Path, **changes: Any) -> None:
    """Change the state and its checksum."""
    state = json.loads((folder / STATE).read_text()) | changes
    state.pop("digest")
    (folder / STATE).write_text(json.dumps({**state, "digest": digest(state)}))


def forget_config(folder: Path) -> None:
    """Remove the config from the state, which older versions of fusetk did not record."""
    rewrite(folder, config={})


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def damage(folder: Path, kind: str, file: str, tmp_path: Path) -> None:
    path = folder / file
    if kind == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    elif kind == "flipped":
        flip(path, path.stat().st_size * 2 // 3)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "missing":
        path.unlink()
    elif kind == "another":
        shutil.copy(folder.with_name("update-0000002") / file, path)
    else:
        path.write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
        if kind == "pickle with its checksum" and file != STATE:
            sums = json.loads((folder / STATE).read_text())["sha256"]
            rewrite(folder, sha256={**sums, file: checksum(path)})


KINDS = (
    "truncated",
    "flipped",
    "empty",
    "missing",
    "another",
    "pickle",
    "pickle with its checksum",
)


# An older state.json is valid: its checksums differ, so the error names the other files.
DAMAGES = [
    (kind, file) for kind in KINDS for file in (*FILES, STATE) if (kind, file) != ("another", STATE)
]


@pytest.mark.parametrize(("kind", "file"), DAMAGES)
def test_the_error_names_damage_and_the_newest_complete_checkpoint(
    toy: Path, copy: Path, tmp_path: Path, kind: str, file: str
) -> None:
    damage(folder_of(copy, 8), kind, file, tmp_path)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    said = refusal(train(toy, copy, *GIVEN, "training.stages.0.end.updates=10"))
    assert file in said and str(folder_of(copy, 8)) in said
    assert said.endswith(
        "; use checkpoints/update-0000006, the newest complete one; "
        "to resume from there, remove update-0000008"
    )
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before, (
        "nothing is written"
    )
    options = {MODEL: ["--raw"], EMA: [], STATE: []}  # with these, a translation reads the file
    if file in options:
        translation = ["-i", toy.parent / "valid.de", "-o", tmp_path / "out", "--device", "cpu"]
        said = refusal(call("decode", "-m", folder_of(copy, 8), *translation, *options[file]))
        assert file in said and "use checkpoints/update-0000006, the newest complete one" in said
    assert not (tmp_path / "owned").exists()


def test_a_config_makes_no_objects(toy: Path, copy: Path, tmp_path: Path) -> None:
    (copy / "config.yaml").write_text(f"model: !!python/object/apply:os.mkdir [{tmp_path}/owned]\n")
    assert "config.yaml" in refusal(train(toy, copy, *GIVEN))
    assert "config.yaml" in refusal(call("decode", "-m", copy, "-i", os.devnull))
    assert not (tmp_path / "owned").exists()


def test_the_offered_checkpoint_is_complete(toy: Path, trained: Path, copy: Path) -> None:
    """After the removal of the damaged last one, training ends with the same model."""
    flip(folder_of(copy, 8) / MODEL, -1)
    flip(folder_of(copy, 6) / TRAINING, -1)
    flip(
        folder_of(copy, 4) / STATE,
        (folder_of(copy, 4) / STATE).read_text().index('"update"') + len('"update": '),
    )
    assert "use checkpoints/update-0000002, the newest complete one" in refusal(
        train(toy, copy, *GIVEN)
    )
    shutil.rmtree(folder_of(copy, 8))
    assert train(toy, copy, *GIVEN).exit_code == 0
    assert "resumed after update 2" in (copy / "log.txt").read_text() and tensors(copy) == tensors(
        trained
    )
    assert all(runs.is_intact(folder) for folder in runs.checkpoints(copy))
    assert names(copy) == names(trained)
    links = [copy / "checkpoints" / name for name in ("best", "last")]
    assert [link.resolve() for link in links] == [folder_of(copy, 8)] * 2


def test_a_complete_checkpoint_is_offered_if_their_folder_is_a_link(
    toy: Path, copy: Path, tmp_path: Path
) -> None:
    (copy / "checkpoints").rename(tmp_path / "scratch")
    (copy / "checkpoints").symlink_to(tmp_path / "scratch")
    flip(folder_of(copy, 8) / MODEL, -1)
    message = refusal(train(toy, copy, *GIVEN))
    assert "use checkpoints/update-0000006, the newest complete one" in message


def test_a_damaged_last_checkpoint_deletes_no_other_one(toy: Path, copy: Path) -> None:
    """Surplus checkpoints are deleted only after the last one was read."""
    flip(folder_of(copy, 8) / "training.safetensors", -1)
    message = refusal(train(toy, copy, *GIVEN, "training.keep_last=1"))
    assert "use checkpoints/update-0000006, the newest complete one" in message
    assert folder_of(copy, 2).is_dir()


def test_a_copy_without_links_is_resumed(toy: Path, copy: Path) -> None:
    for name in ("best", "last"):
        link = copy / "checkpoints" / name
        content = link.resolve()
        link.unlink()
        shutil.copytree(content, link)
    assert train(toy, copy, *GIVEN, "training.stages.0.end.updates=10").exit_code == 0
    assert "resumed after update 8" in (copy / "log.txt").read_text()


@pytest.mark.parametrize("name", [STATE, MODEL])
def test_a_copy_without_links_keeps_a_checkpoint_that_cannot_be_read(
    name: str, toy: Path, copy: Path
) -> None:
    for link in ("best", "last"):
        (copy / "checkpoints" / link).unlink()
    file = folder_of(copy, 8) / name
    file.unlink()
    file.mkdir()  # the system has an error for it other than that the file is missing
    message = refusal(train(toy, copy, *GIVEN, "training.keep_last=1"))
    assert f"{name} cannot be read: Is a directory: check the disk" in message
    assert len(runs.checkpoints(copy)) == 4


def test_without_a_complete_checkpoint_training_does_not_restart(toy: Path, copy: Path) -> None:
    for update in (2, 4, 6):
        shutil.rmtree(folder_of(copy, update))
    (folder_of(copy, 8) / STATE).unlink()
    assert refusal(train(toy, copy, *GIVEN)).endswith(
        "no other complete checkpoint in this run: train again in a new run folder"
    )
    for name in ("best", "last"):
        (copy / "checkpoints" / name).unlink()
    assert refusal(train(toy, copy, *GIVEN)).endswith(
        "no other complete checkpoint in this run: train again in a new run folder"
    )
    assert (folder_of(copy, 8) / MODEL).exists()


def test_without_its_checkpoints_a_run_does_not_restart(toy: Path, copy: Path) -> None:
    for update in (2, 4, 6, 8):
        shutil.rmtree(folder_of(copy, update))
    metrics = (copy / "metrics.jsonl").read_bytes()
    said = refusal(train(toy, copy, *GIVEN))
    assert "was trained before" in said and said.endswith("restore one, or choose another folder")
    for name in ("best", "last"):
        (copy / "checkpoints" / name).unlink()
    assert refusal(train(toy, copy, *GIVEN)) == said  # the folder is empty
    (copy / "checkpoints").rmdir()
    assert refusal(train(toy, copy, *GIVEN)) == said
    with pytest.raises(ConfigError, match="was trained before"):
        check_config(load(toy, GIVEN), copy, "--run")
    assert (copy / "metrics.jsonl").read_bytes() == metrics


def test_a_kill_between_two_renames_leaves_a_checkpoint(toy: Path, copy: Path) -> None:
    """The only checkpoint was written again."""
    for update in (2, 4, 6):
        shutil.rmtree(folder_of(copy, update))
    folder_of(copy, 8).rename(copy / "checkpoints" / f".{folder_of(copy, 8).name}.old")
    (copy / "checkpoints" / "best").unlink()
    check_config(load(toy, GIVEN), copy, "--run")
    with pytest.raises(ConfigError, match="model"):
        check_config(load(toy, [*GIVEN, "model.width=48"]), copy, "--run")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"format": 2},
            "was written by a newer fusetk (format 2, this one reads 1): update fusetk; "
            "use checkpoints/update-0000006",
        ),
        ({"format": "1"}, "state.json is damaged"),
        ({"sha256": []}, "state.json is damaged"),
        (
            {"progress": {"update": 8, "mood": "good"}},
            "state.json has no valid training progress; use checkpoints/update-0000006",
        ),
        ({"progress": None}, "state.json has no valid training progress"),
    ],
)
def test_a_newer_or_foreign_state_is_named(
    toy: Path, copy: Path, changes: dict[str, Any], said: str
) -> None:
    rewrite(folder_of(copy, 8), **changes)
    assert said in refusal(train(toy, copy, *GIVEN))


def test_no_byte_of_the_state_changes_unnoticed(copy: Path) -> None:
    """The only exception is a byte that does not change the values."""
    folder, noticed = folder_of(copy, 8), 0
    content, state = (folder / STATE).read_bytes(), read_state(folder)
    for place in range(0, len(content), 7):
        flip(folder / STATE, place)
        try:
            changed = read_state(folder)
            assert all(changed[key] == state[key] for key in state)
        except CheckpointError:
            noticed += 1
        (folder / STATE).write_bytes(content)
    assert noticed > len(content) / 7 / 2


def test_a_changed_config_is_named_where_no_checkpoint_fits(toy: Path, copy: Path) -> None:
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("width: 32", "width: 16"))
    for folder in (copy / "checkpoints").glob("update-*"):
        forget_config(folder)
    said = refusal(call("decode", "-m", copy, "-i", toy, "--device", "cpu"))
    assert (
        "do not fit it either: if config.yaml, the folder text, or the code of a class" in said
        and "update-0000006" in said
    )
    for folder in (copy / "checkpoints").glob("update-*"):
        if folder.name < "update-0000006":
            shutil.rmtree(folder)
    said = refusal(call("decode", "-m", copy, "-i", toy, "--device", "cpu"))
    assert "; update-0000006 does not fit it either: " in said


def test_an_edited_config_of_a_run_is_refused_if_it_changes_the_model(
    toy: Path, copy: Path
) -> None:
    """Another number of heads, or another clipping, has the same shapes."""
    decode = ("decode", "-m", copy, "-i", toy.parent / "train.de", "--device", "cpu", "-q")
    assert call("average", copy, "--last", 2).exit_code == 0
    average = [*decode, "-m", copy / "checkpoints" / "average-2"]
    translations, config = call(*decode).output, copy / "config.yaml"
    original = config.read_text()

    def edit(old: str, new: str) -> None:
        config.write_text(original.replace(old, new))
        assert config.read_text() != original

    edit("heads: 2", "heads: 1")
    for command in (decode, average):
        said = refusal(call(*command))
        assert "was trained with other settings than those in" in said
        assert "config.yaml (model.heads: 2 -> 1): restore the old values in this file" in said
    assert "(model.heads: 2 -> 1)" in refusal(train(toy, copy, *GIVEN, "model.heads=1"))
    edit("clip: 0.0", "clip: 1.0")
    said = refusal(train(toy, copy, *GIVEN, "training.stages.0.clip=1"))
    assert "config.yaml (training.stages.0.clip: 0.0 -> 1.0): restore" in said
    edit("dropout: 0.1", "dropout: 0.3")
    assert call(*decode).output == translations, "the search uses no dropout"
    edit("checkpoint: false", "checkpoint: true")
    assert call(*decode).output == translations
    assert train(toy, copy, *GIVEN).exit_code == 0


def test_a_class_may_be_moved_to_another_module(toy: Path) -> None:
    recipe = load(toy)
    state = {"config": {"model": {"kind": "old:Model", "key_of_another_version": 1}}}

    def check(kind: str, width: int) -> None:
        model = recipe.model.model_copy(update={"kind": kind, "width": width})
        changed = recipe.model_copy(update={"model": model})
        check_unchanged(changed, Path("config.yaml"), Path("checkpoint"), state, ["training"])

    check("package.new:Model", 32)
    state["config"]["model"]["width"] = 32
    check("package.new:Model", 32)
    for kind, width in (("package.new:Model", 16), ("old:Other", 32), ("transformer", 32)):
        with pytest.raises(
            CheckpointError, match="checkpoint was trained with other settings than those in config"
        ):
            check(kind, width)


def test_a_run_with_a_missing_module_is_not_a_changed_run(copy: Path) -> None:
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("kind: adam", "kind: nowhere:Adam"))
    said = refusal(call("decode", "-m", copy, "-i", config, "--device", "cpu"))
    assert "set PYTHONPATH to the folder of nowhere  [" in said and "was changed" not in said


def test_a_stage_from_the_best_checkpoint_names_it_if_it_is_missing(
    toy: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stage = (
        "{optimizer: adam, schedule: {kind: constant, rate: 1.0e-30}, batch: {size: 400}, "
        "end: {updates: 4}%s}"
    )
    # The weights do not change, so the first of equal validations is the best.
    assert train(toy, run, *GIVEN, f"training.stages=[{stage % ''}]").exit_code == 0
    shutil.rmtree(folder_of(run, 2))
    both = f"training.stages=[{stage % ''}, {stage % ', start: best'}]"
    said = refusal(train(toy, run, *GIVEN, both))
    assert "training.stages.1 has start: best" in said
    assert f"({runs.checkpoint_name(2)}) is missing: restore it" in said
    link = run / "checkpoints" / "best"
    link.unlink()
    link.symlink_to(runs.checkpoint_name(4))
    assert train(toy, run, *GIVEN, both).exit_code == 0


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_missing_checkpoint_is_named_with_the_newest_complete_one(
    toy: Path, copy: Path, name: str
) -> None:
    """The best checkpoint is never silently replaced by the last."""
    if name == "last":
        (copy / "checkpoints" / "best").unlink()
    shutil.rmtree((copy / "checkpoints" / name).resolve())
    newest = runs.checkpoints(copy)[-1]
    said = refusal(call("decode", "-m", copy, "-i", toy, "--device", "cpu"))
    assert said.endswith(
        f"checkpoints/{name} points to a checkpoint that is missing; "
        f"use {newest}, the newest complete one"
    )
    assert call("decode", "-m", newest, "-i", toy, "--device", "cpu").exit_code == 0
    for folder in runs.checkpoints(copy):
        shutil.rmtree(folder)
    assert "is missing; there is no other complete checkpoint" in refusal(
        call("decode", "-m", copy, "-i", toy, "--device", "cpu")
    )


def test_another_models_tensors_are_refused_and_one_that_fits_is_offered(
    toy: Path, copy: Path, tmp_path: Path
) -> None:
    assert train(toy, tmp_path / "other", *GIVEN, "model.width=16").exit_code == 0
    for update in (6, 8):
        shutil.rmtree(folder_of(copy, update))
        shutil.copytree(folder_of(tmp_path / "other", update), folder_of(copy, update))
    said = refusal(train(toy, copy, *GIVEN))
    assert "was trained with other settings than those in" in said
    assert "(model.width: 16 -> 32): restore the old values" in said
    for update in (6, 8):
        forget_config(folder_of(copy, update))
    said = refusal(train(toy, copy, *GIVEN))
    assert (
        "does not fit the model of its config" in said
        and "use checkpoints/update-0000004, the newest complete one" in said
    )
    assert "use checkpoints/update-0000004" in refusal(
        call("decode", "-m", folder_of(copy, 6), "-i", toy, "--device", "cpu")
    )


def test_an_average_replaces_only_averages(copy: Path) -> None:
    own = copy / "checkpoints" / "mine"
    shutil.copytree(folder_of(copy, 4), own)
    command = ("average", copy, "--last", 2, "--name", "mine")
    assert "has no record of fusetk average" in refusal(call(*command))
    assert (own / TRAINING).exists()
    for _ in range(2):
        assert call("average", copy, "--last", 2, "--name", "new").exit_code == 0
    (copy / "checkpoints" / "new" / STATE).write_text("")
    (copy / "checkpoints" / "notes").mkdir()
    (copy / "checkpoints" / "file").write_text("mine")
    for name in ("new", "notes", "file"):
        said = refusal(call("average", copy, "--last", 2, "--name", name))
        assert f"{name} exists and has no record of fusetk average: choose another --name" in said
    assert (copy / "checkpoints" / "file").read_text() == "mine"


def test_an_average_does_not_need_the_best_checkpoint(copy: Path) -> None:
    (copy / "checkpoints" / "best").unlink()
    (copy / "checkpoints" / "best").symlink_to("update-0000099")
    assert call("average", copy, "--last", 2).exit_code == 0


def test_a_checkpoint_is_not_averaged_as_its_run(copy: Path) -> None:
    """Its name does not choose a checkpoint, so the average would be that of others."""
    for name in ("best", "update-0000002"):
        folder = copy / "checkpoints" / name
        said = refusal(call("average", folder, "--last", 2))
        assert f"{folder} is a checkpoint: name its run, {copy}, " in said
    assert not (copy / "checkpoints" / "average").exists()


def test_checkpoints_of_several_runs_are_averaged(toy: Path, copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert train(toy, other, *GIVEN, "training.seed=5").exit_code == 0
    said = call("average", copy, other, "--update", 4, "--update", 8).output
    folders = [folder_of(run, update) for run in (copy, other) for update in (4, 8)]
    assert f"checkpoints/average: mean of {', '.join(map(str, folders))}\n" in said
    weights = [load_file(folder / MODEL) for folder in folders]
    for name, mean in load_file(copy / "checkpoints" / "average" / MODEL).items():
        expected = torch.stack([each[name] for each in weights]).double().mean(0)
        torch.testing.assert_close(mean.double(), expected, atol=1e-7, rtol=1e-6)
    assert f"{other} is given twice" in refusal(call("average", copy, other, other, "--last", 1))
    one_head = tmp_path / "one_head"  # the shapes of its weights are equal
    assert train(toy, one_head, *GIVEN, "model.heads=1").exit_code == 0
    said = refusal(call("average", copy, one_head, "--last", 1))
    assert "have different models (model.heads: " in said


def test_an_average_of_different_models_names_the_first_differences(
    copy: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(copy, other, symlinks=True)
    changes = ("width=48", "heads=4", "ffn=80", "norm=pre", "encoder.layers=2")
    recipe = load(other / runs.CONFIG, [f"model.{change}" for change in changes])
    (other / runs.CONFIG).write_text(sections.dump(recipe))
    said = refusal(call("average", copy, other, "--last", 1))
    listed = "model.width: 32 -> 48; model.heads: 2 -> 4; model.ffn: 64 -> 80 and 2 more"
    assert f"have different models ({listed}): choose runs with equal models" in said


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (torch.nan, "has values that are not finite in {newest}: "),
        (torch.inf, "has values that are not finite in {older}: "),  # the first of the mean
        ("data.bpe.merges=9", "{older} and {newest} have different training texts"),
    ],
)
def test_an_average_is_that_of_one_sound_training(
    toy: Path, copy: Path, tmp_path: Path, fault: str | float, message: str
) -> None:
    older, newest = folder_of(copy, 6), folder_of(copy, 8)
    if isinstance(fault, str):
        other = [*GIVEN, fault, f"data.folder={tmp_path / 'data'}"]
        settings = [word for each in other for word in ("--set", each)]
        assert call("prep", toy, *settings).exit_code == 0
        assert train(toy, tmp_path / "other", *other).exit_code == 0
        shutil.rmtree(newest)
        shutil.copytree(folder_of(tmp_path / "other", 8), newest)
    else:
        diverged = newest if math.isnan(fault) else older
        weights = load_file(diverged / MODEL)
        next(iter(weights.values()))[0] = fault
        state = {k: v for k, v in read_state(diverged).items() if k not in ("digest", "sha256")}
        checkpoint.save(diverged, weights, {}, state)
    said = message.format(newest=newest, older=older)
    assert said in refusal(call("average", copy, "--last", 2))


def test_checkpoints_without_a_record_of_their_text_can_be_averaged(copy: Path) -> None:
    state = read_state(folder_of(copy, 8))
    for key in ("data", "sha256"):
        del state[key]
    checkpoint.save(folder_of(copy, 8), load_file(folder_of(copy, 8) / MODEL), {}, state)
    assert call("average", copy, "--last", 2).exit_code == 0


def test_a_start_that_was_killed_is_repeated_and_other_folders_are_refused(
    toy: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(sections.dump(load(toy, [*GIVEN, "training.seed=9"])))
    assert "such as config.yaml" in refusal(train(toy, run, *GIVEN))
    (run / STARTING).touch()
    (run / ".config.yaml.123.new").touch()
    (run / "text").mkdir()
    (run / "text" / ".pipeline.json.123.new").touch()
    assert train(toy, run, *GIVEN).exit_code == 0
    assert not list(run.glob(".*")) and not list((run / "text").glob(".*"))
    foreign = tmp_path / "foreign"
    (foreign / "checkpoints").mkdir(parents=True)
    (foreign / "checkpoints" / "model.pt").write_text("mine")
    assert "such as checkpoints" in refusal(train(toy, foreign, *GIVEN))


def test_a_run_folder_that_was_moved_is_an_error(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    validate_part = Validator.validate_part

    def move(self: Validator, *arguments: Any) -> Any:
        if run.exists():
            run.rename(moved)
        return validate_part(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Validator, "validate_part", move)
        said = refusal(train(toy, run, *GIVEN))
    assert "the run folder was moved or deleted during the training" in said
    assert not run.exists()
    assert train(toy, moved, *GIVEN).exit_code == 0


def test_a_training_does_not_write_into_a_later_folder_of_the_same_name(
    toy: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    validate_part = Validator.validate_part

    def replace(self: Validator, *arguments: Any) -> Any:
        if not (tmp_path / "moved").exists():
            run.rename(tmp_path / "moved")
            shutil.copytree(trained, run, symlinks=True)  # another training
        return validate_part(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Validator, "validate_part", replace)
        said = refusal(train(toy, run, *GIVEN, "training.keep_last=1"))
    assert f"{run} is another folder now" in said
    assert {*os.listdir(run / "checkpoints")} == {*os.listdir(trained / "checkpoints")}


def test_a_copied_checkpoint_is_not_one_of_training(toy: Path, copy: Path) -> None:
    own = copy / "checkpoints" / "update-0000002.keep"
    shutil.copytree(folder_of(copy, 2), own)
    assert own not in runs.checkpoints(copy)
    more = "training.stages.0.end.updates=10"
    assert train(toy, copy, *GIVEN, more, "training.keep_last=1").exit_code == 0
    assert (own / MODEL).exists()
    last = copy / "checkpoints" / "last"
    last.unlink()
    last.symlink_to(own.name)
    assert train(toy, copy, *GIVEN, more).exit_code == 0 and (own / MODEL).exists()


def test_a_run_in_a_folder_named_checkpoints(copy: Path, tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "base"
    shutil.copytree(copy, run, symlinks=True)
    assert runs.run_and_checkpoint(run) == (run, "best")


def test_a_run_with_an_average_is_not_translated_with_raw_weights(
    toy: Path, copy: Path, tmp_path: Path
) -> None:
    """The average of checkpoints, however, is an average of raw weights."""
    assert train(toy, tmp_path / "other", *GIVEN[1:]).exit_code == 0
    shutil.rmtree(folder_of(copy, 8))
    shutil.copytree(folder_of(tmp_path / "other", 8), folder_of(copy, 8))
    assert f"{EMA} is missing" in refusal(
        call("decode", "-m", copy, "-i", toy.parent / "valid.de", "--device", "cpu")
    )
    assert call("average", copy, "--update", 2, "--update", 4).exit_code == 0
    assert (
        call(
            "decode",
            "-m",
            copy / "checkpoints" / "average",
            "-i",
            toy.parent / "valid.de",
            "--device",
            "cpu",
        ).exit_code
        == 0
    )


def test_a_damaged_older_state_does_not_stop_training(toy: Path, copy: Path) -> None:
    (folder_of(copy, 4) / STATE).write_text("{")
    assert train(toy, copy, *GIVEN, "training.stages.0.end.updates=10").exit_code == 0
    assert runs.is_intact(folder_of(copy, 10))


def test_a_checkpoint_that_was_being_replaced_comes_back(
    toy: Path, trained: Path, copy: Path
) -> None:
    """Kills came between two renames, in the middle of writing, and in the middle of deleting."""
    old, temporary, gone = (
        copy / "checkpoints" / name
        for name in (".update-0000008.old", ".update-0000010", ".update-0000001.gone")
    )
    folder_of(copy, 8).rename(old)
    temporary.mkdir()
    (temporary / MODEL).write_bytes(b"half")
    shutil.copytree(folder_of(copy, 2), gone)
    assert train(toy, copy, *GIVEN).exit_code == 0
    assert "nothing to do" in (copy / "log.txt").read_text()
    assert names(copy) == names(trained) and tensors(copy) == tensors(trained)


def test_the_best_of_equals_is_kept(toy: Path, tmp_path: Path) -> None:
    """BLEU is 0 for a while, and the first such checkpoint is the best."""
    overrides = [
        "training.validation={every_updates: 2, metric: bleu}",
        "training.keep_last=1",
        "decoding.max_length_factor=0.1",
    ]
    run = tmp_path / "run"
    assert (
        train(
            toy, run, *overrides, "training.stages.0.schedule={kind: constant, rate: 1e-30}"
        ).exit_code
        == 0
    )
    assert names(run) == ["best", "last", "update-0000002", "update-0000008"]
    assert (run / "checkpoints" / "best").resolve() == folder_of(run, 2)


# Full disks ---------------------------------------------------------------------------------------


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Within this context no file can become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_limit_of_file_sizes_leaves_complete_checkpoints(
    toy: Path, trained: Path, tmp_path: Path
) -> None:
    run, fewer = tmp_path / "run", "training.stages.0.end.updates=4"
    assert train(toy, run, *GIVEN, fewer).exit_code == 0
    size = (folder_of(run, 4) / MODEL).stat().st_size
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size - 8192},) * 2)"
    limited = forks.train(toy, run, GIVEN, code=limit)
    assert limited.wait() == [DiskFull.exit_code] == [74]
    said = limited.output()
    assert "Traceback" not in said
    assert (
        "a file exceeds the size limit (the largest file has " in said
        and " MB); update-0000004 is complete; raise the limit" in said
    )
    assert names(run) == ["best", "last", "update-0000002", "update-0000004"]
    assert all(runs.is_intact(folder) for folder in runs.checkpoints(run))
    assert train(toy, run, *GIVEN).exit_code == 0
    assert tensors(run) == tensors(trained) and names(run) == names(trained)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("only root may mount a small disk, and not everywhere")
    yield place
    gc.collect()  # the trainer of a training that failed maps files of the disk
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_is_full(toy: Path, trained: Path, small_disk: Path) -> None:
    """The disk may be full to the last byte. With more space, the same command resumes exactly."""
    run = small_disk / "run"
    size = sum(path.stat().st_size for path in folder_of(trained, 8).iterdir())
    room = 2 * size + size // 2
    subprocess.run(["mount", "-o", f"remount,size={room}", small_disk], check=True)
    said = refusal(train(toy, run, *GIVEN), DiskFull.exit_code)
    assert (
        "update-0000006 cannot be written: the disk is full (the checkpoint takes" in said
        and "; update-0000004 is complete; free " in said
    )
    needed, free, missing = (
        float(word) for word in said.replace(",", "").split() if word.replace(".", "").isdigit()
    )
    assert (
        needed == pytest.approx(size / 1e6, abs=0.15)
        and missing == pytest.approx(needed - free, abs=0.25)
        and missing > 0
    )
    assert names(run) == ["best", "last", "update-0000002", "update-0000004"]
    with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    refusal(train(toy, run, *GIVEN), DiskFull.exit_code)
    assert (
        all(runs.is_intact(folder) for folder in runs.checkpoints(run))
        and call("decode", "-m", run, "-i", os.devnull).exit_code == 0
    )
    subprocess.run(["mount", "-o", f"remount,size={20 * size}", small_disk], check=True)
    assert train(toy, run, *GIVEN).exit_code == 0
    assert tensors(run) == tensors(trained) and names(run) == names(trained)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EDQUOT, "Disk quota exceeded"),
            r"your disk quota is exceeded \(the checkpoint takes 0.1 MB\); update-0000001 is "
            "complete; free some disk space and",
        ),
        (
            SafetensorError("I/O error: Disk quota exceeded (os error 122)"),
            "your disk quota is exceeded",
        ),
        (
            SafetensorError("I/O error: No space left on device (os error 28)"),
            r"the disk is full \(the checkpoint takes 0.1 MB, ",
        ),
        (
            OSError(errno.EFBIG, "File too large"),
            r"a file exceeds the size limit \(the largest file has 0.1 MB\)",
        ),
    ],
)
def test_every_lack_of_space_has_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    tensors = {"a": torch.ones(3)}
    folder = folder_of(tmp_path, 1)
    folder.parent.mkdir()
    checkpoint.save(folder, tensors, tensors, {})
    monkeypatch.setattr(checkpoint, "save_file", refuse)
    for target in (folder_of(tmp_path, 2), folder):
        with pytest.raises(DiskFull, match=said):
            checkpoint.save(target, tensors, tensors, {})
    assert names(tmp_path) == ["update-0000001"] and runs.is_intact(folder)


def test_a_disk_with_a_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    folder_of(tmp_path, 1).parent.mkdir()
    with pytest.raises(CheckpointError, match="Input/output error; check the disk and run the"):
        checkpoint.save(folder_of(tmp_path, 1), {"a": torch.ones(3)}, {}, {})


def test_a_link_that_cannot_be_set_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder_of(tmp_path, 1).parent.mkdir()
    checkpoint.save(folder_of(tmp_path, 1), {"a": torch.ones(3)}, {}, {})
    monkeypatch.setattr(Path, "symlink_to", full)
    with pytest.raises(DiskFull, match="last cannot be written: the disk is full"):
        checkpoint.link(tmp_path, "last", folder_of(tmp_path, 1))


def test_all_processes_end_when_the_first_has_no_space(toy: Path, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    processes = forks.train(toy, tmp_path / "run", [], 2, limit)
    assert processes.wait() == [DiskFull.exit_code] * 2
    said = processes.output()
    assert said.count("update-0000004 cannot be written: a file exceeds the size limit") == 2
    assert names(tmp_path / "run") == []


def test_a_log_that_cannot_be_written_does_not_stop_training(
    toy: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "sessions.jsonl").touch()  # marks a run folder
    for name in ("log.txt", "metrics.jsonl"):
        (run / name).symlink_to("/dev/full")

    def all_the_same(_run: Path, _progress: object) -> None:
        pass

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train_module, "forget_after", all_the_same)  # reading /dev/full has no end
        train_module.train(load(toy, GIVEN), run, "cpu", quiet=True)
    said = capsys.readouterr().err
    assert (
        said.count("log.txt cannot be written (No space left on device): training continues") == 1
    )
    assert said.count("metrics.jsonl cannot be written") == 1 and "Traceback" not in said
    assert tensors(run) == tensors(trained)


def test_lines_wait_until_there_is_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = log.AppendingFile(tmp_path / "lines")
    expected = "".join(f"line {i}\n" for i in range(300))
    for i in range(300):
        with file_limit(100 if i < 200 else 1 << 20):
            file.add(f"line {i}")
    file.close()
    assert (tmp_path / "lines").read_text() == expected and capsys.readouterr().err.count("\n") == 1


def test_the_last_lines_are_written_when_there_is_space_at_the_end(tmp_path: Path) -> None:
    file = log.AppendingFile(tmp_path / "lines")
    with file_limit(10):
        file.add("the last validation")
    assert (tmp_path / "lines").read_text() == "the last v"
    file.close()
    assert (tmp_path / "lines").read_text() == "the last validation\n"


def test_config_and_pipeline_are_never_half_written(toy: Path, copy: Path) -> None:
    """After an error, config.yaml and the text pipeline are complete."""
    before = {
        path: path.read_bytes()
        for path in copy.rglob("*")
        if path.is_file() and path.name != "log.txt"
    }
    message = r"run/config.yaml cannot be written: .*; update-0000008 is complete; raise the limit"
    with file_limit(10), pytest.raises(DiskFull, match=message):
        train_module.train(
            load(toy, [*GIVEN, "training.stages.0.end.updates=20"]), copy, "cpu", quiet=True
        )
    assert {
        path: path.read_bytes()
        for path in copy.rglob("*")
        if path.is_file() and path.name != "log.txt"
    } == before


# Configs that changed -----------------------------------------------------------------------------


FIRST = (
    "{optimizer: adam, schedule: {kind: inverse-sqrt, peak: 0.01, warmup: 20}, "
    "batch: {size: 400}, end: {updates: 8}}"
)
SECOND = (
    "{optimizer: nag, schedule: {kind: constant, rate: 0.01}, "
    "batch: {size: 400}, end: {updates: 2}}"
)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["training.stages.0.schedule.warmup=30"],
            "(training.stages.0.schedule.warmup: 20 -> 30): choose another --run, or undo",
        ),
        (
            ["training.stages.0.clip=1", "model.dropout=0.2"],
            "(model.dropout: 0.1 -> 0.2; training.stages.0.clip: 0.0 -> 1.0)",
        ),
        (["training.ema=0.99"], "(training.ema: 0.9 -> 0.99)"),
        (["training.precision=bf16"], '(training.precision: "fp32" -> "bf16")'),
        (
            ["model.encoder={layers: 1, fuse: average}"],
            'model.encoder.fuse.kind: "last" -> "average"',
        ),
        (["training.validation.metric=bleu"], '(training.validation.metric: "loss" -> "bleu")'),
    ],
)
def test_a_change_that_makes_another_model_is_shown(
    toy: Path, copy: Path, overrides: list[str], said: str
) -> None:
    before = (copy / "config.yaml").read_bytes()
    assert said in refusal(train(toy, copy, *GIVEN, *overrides))
    assert (copy / "config.yaml").read_bytes() == before


def test_a_change_inside_a_long_value_is_shown() -> None:
    def shown(before: object, now: object) -> list[str]:
        [line] = differences(before, now, "key")
        assert line.startswith("key: ") and len(line) < 200
        return line.removeprefix("key: ").split(" -> ")

    path = "/" + "folder/" * 30
    old, new = shown(f"{path}one", f"{path}second/run")
    assert old.startswith("...") and old.endswith('folder/one"') and new.endswith('second/run"')
    old, new = shown([3] * 50, [3] * 40 + [5] * 60)
    assert "5" not in old and "3, 5, 5" in new and new.endswith("...")
    old, new = shown(None, path)
    assert old == "none" and new.startswith('"/folder/') and new.endswith("...")
    assert shown([1], [2, 3]) == ["[1]", "[2, 3]"]


def test_a_stage_may_be_added_and_removed_before_it_begins(toy: Path, copy: Path) -> None:
    both = f"training.stages=[{FIRST}, {SECOND}]"
    (copy / "config.yaml").write_text(sections.dump(load(toy, [*GIVEN, both])))
    said = call("train", toy, "-r", copy, "-d", "cpu", *(w for o in GIVEN for w in ("--set", o)))
    assert "changed: training.stages.1: removed, nag, constant, updates 2\n" in said.output
    assert not folder_of(copy, 10).exists()
    assert train(toy, copy, *GIVEN, both).exit_code == 0
    assert (
        "changed: training.stages.1: added, nag, constant, updates 2\n"
        in (copy / "log.txt").read_text()
    )
    assert folder_of(copy, 10).exists()
    assert "(training.stages.1: removed, nag, constant, updates 2)" in refusal(
        train(toy, copy, *GIVEN)
    )
    (copy / "config.yaml").unlink()
    assert "has checkpoints but no config.yaml: copy this file" in refusal(train(toy, copy, *GIVEN))


def test_the_end_may_be_moved(toy: Path, copy: Path) -> None:
    moved = [
        "training.stages.0.end={epochs: 90, updates: 12, patience: 7}",
        "training.keep_last=8",
        "decoding.beam=3",
    ]
    assert train(toy, copy, *GIVEN, *moved).exit_code == 0
    text = (copy / "log.txt").read_text()
    for line in (
        "stages.0.end.updates: 8 -> 12",
        "stages.0.end.epochs: none -> 90",
        "keep_last: 9 -> 8",
    ):
        assert f"changed: training.{line}\n" in text
    assert folder_of(copy, 12).exists()


def test_the_end_is_not_before_the_updates_of_the_run(toy: Path, copy: Path) -> None:
    before = (copy / "config.yaml").read_bytes()
    refused = refusal(train(toy, copy, *GIVEN, "training.stages.0.end={updates: 7}"))
    said = f"end.updates: {copy} already has 8 updates of this stage, more than 7: set the key"
    assert said in refused and (copy / "config.yaml").read_bytes() == before
    recipe = load(toy, ["training.stages.0.end={epochs: 2}"])
    resume._check_end(recipe, copy, Progress(stage_epoch=2), "--run")
    with pytest.raises(ConfigError, match="already has 3 epochs of this stage, more than 2"):
        resume._check_end(recipe, copy, Progress(stage_epoch=2, position=1), "--run")


def test_the_end_of_a_finished_stage_is_fixed(toy: Path, copy: Path) -> None:
    assert train(toy, copy, *GIVEN, f"training.stages=[{FIRST}, {SECOND}]").exit_code == 0
    longer = FIRST.replace("updates: 8", "updates: 80")
    assert longer != FIRST
    assert "training.stages.0.end.updates: 8 -> 80" in refusal(
        train(toy, copy, *GIVEN, f"training.stages=[{longer}, {SECOND}]")
    )


def test_a_key_is_free_only_if_it_changes_no_model() -> None:
    def free(key: str) -> bool:
        return any(resume.re.fullmatch(pattern, key) for pattern in resume.CHANGEABLE_KEYS)

    assert all(
        map(
            free,
            (
                "training.max_skipped",
                "training.stages.0.end.updates",
                "training.stages.12.end.hours",
                "data.bpe.merges",
                "paper",
                "paper.row",
            ),
        )
    )
    others = [
        "stages.0.schedule.decay_end",
        "stages.0.optimizer.end",
        "stages.0.schedule.end.rate",
        "keep_last_of",
        "validation.metric",
    ]
    assert (
        not any(free(f"training.{key}") for key in others)
        and not free("model.end.layers")
        and not free("database")
    )


@pytest.mark.parametrize(
    ("overrides", "change"),
    [
        (["training.validation.metric=bleu"], "decoding.normalize=0"),
        (
            ["training.stages.0.schedule={kind: plateau, rate: 0.01}"],
            "training.validation.every_updates=1",
        ),
    ],
)
def test_keys_that_change_decisions_of_validations_are_not_free(
    toy: Path, tmp_path: Path, overrides: list[str], change: str
) -> None:
    overrides = [
        *overrides,
        "training.validation.every_updates=2",
        "training.stages.0.end.updates=2",
    ]
    assert train(toy, tmp_path / "run", *overrides).exit_code == 0
    assert f"({change.partition('=')[0]}: " in refusal(
        train(toy, tmp_path / "run", *overrides, change)
    )


# Signals ------------------------------------------------------------------------------------------


SAVING = ["training.validation={every_updates: 4, bleu: true}", "training.save_every=2"]


@pytest.fixture(scope="module")
def uninterrupted(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert train(toy, run, *SAVING).exit_code == 0
    return run


@pytest.mark.parametrize(
    ("number", "where", "update"),
    [
        (signal.SIGTERM, "update", 3),
        (signal.SIGUSR1, "losses", 4),
        (signal.SIGINT, "search", 4),
        (signal.SIGTERM, "save", 5),
    ],
)
def test_a_signal_anywhere_saves_and_ends_with_75(
    toy: Path,
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    where: str,
    update: int,
) -> None:
    """The signal arrives in an update, in the losses or search of a validation, or in a save.

    Then the same command ends with the same model.
    """
    owner, name = {
        "update": (loop, "optimizer_step"),
        "losses": (Validator, "_loss_sums"),
        "search": (Translator, "translate_ids"),
        "save": (checkpoint, "save"),
    }[where]
    plain, calls = getattr(owner, name), 0

    def signalled(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (3 if where == "update" else 2 if where == "save" else 1):
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        return plain(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, signalled)
        said = refusal(train(toy, tmp_path / "run", *SAVING), 75)
    assert (
        f"{number.name} received: saved after update {update}; run the same command again to resume"
        in said
    )
    assert (tmp_path / "run" / "checkpoints" / "last").resolve() == folder_of(
        tmp_path / "run", update
    )
    assert train(toy, tmp_path / "run", *SAVING).exit_code == 0
    for file in (MODEL, TRAINING):
        assert (folder_of(tmp_path / "run", 8) / file).read_bytes() == (
            folder_of(uninterrupted, 8) / file
        ).read_bytes()


def test_a_signal_before_the_first_update_saves_too(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train_module.build

    def signalled(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return plain(*arguments)

    monkeypatch.setattr(train_module, "build", signalled)
    assert "SIGUSR1 received: saved after update 1" in refusal(train(toy, tmp_path / "run"), 75)


def test_a_second_signal_while_the_first_is_obeyed_changes_nothing(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch systems send USR1 and soon TERM. Only a second Ctrl-C ends training at once."""
    losses, save = Validator._loss_sums, checkpoint.save

    def first(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return losses(*arguments)

    def second(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        save(*arguments)

    monkeypatch.setattr(Validator, "_loss_sums", first)
    monkeypatch.setattr(checkpoint, "save", second)
    assert "SIGUSR1 received: saved after update 4" in refusal(train(toy, tmp_path / "run"), 75)
    assert runs.is_intact(folder_of(tmp_path / "run", 4))


def test_a_second_interrupt_ends_at_once(toy: Path, tmp_path: Path) -> None:
    """This is also true in a long update. Earlier checkpoints remain."""
    slow = (
        "import time\nfrom fusetk.training import loop\n"
        "plain = loop.optimizer_step\ncalls = []\n"
        "def apply(*arguments, **named):\n"
        "    calls.append(0)\n"
        "    if len(calls) == 6:\n"
        "        print('slow', file=sys.stderr, flush=True)\n"
        "        time.sleep(300)\n"
        "    return plain(*arguments, **named)\n"
        "loop.optimizer_step = apply\n"
    )
    process = forks.train(toy, tmp_path / "run", [], code=slow)
    process.wait_for("slow")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.is_alive(), "the first waits for the update"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == [130]
    assert "Traceback" not in process.output()
    assert names(tmp_path / "run") == ["best", "last", "update-0000004"] and runs.is_intact(
        folder_of(tmp_path / "run", 4)
    )
