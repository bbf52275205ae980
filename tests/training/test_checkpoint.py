"""Checkpoints are complete or missing, and errors name the damaged file."""

import errno
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from fusetk import runs
from fusetk import weights as weights_module
from fusetk.errors import CheckpointError, UnreadableFile
from fusetk.training import checkpoint
from fusetk.training.optim import OPTIMIZERS
from fusetk.weights import read_state

MODEL = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.tensor(1.5)}


def write(run: Path, update: int) -> Path:
    folder = run / "checkpoints" / runs.checkpoint_name(update)
    folder.parent.mkdir(exist_ok=True)
    checkpoint.save(
        folder, MODEL, {"a.weight:m": torch.ones(2, 3)}, {"progress": {"update": update}}
    )
    return folder


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = write(tmp_path, 12)
    found = weights_module.read_tensors(folder, runs.MODEL)
    assert found.keys() == MODEL.keys() and all(torch.equal(found[n], MODEL[n]) for n in MODEL)
    assert read_state(folder)["progress"] == {"update": 12}
    assert sorted(p.name for p in folder.parent.iterdir()) == ["update-0000012"]


def test_others_may_read_a_checkpoint_if_the_umask_allows_it(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = write(tmp_path, 12)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "pickle"])
@pytest.mark.parametrize("file", [runs.MODEL, runs.TRAINING])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str, file: str) -> None:
    path = write(tmp_path, 12) / file
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[:-1])
    elif damage == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "missing":
        path.unlink()
    else:

        class Evil:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return Path.touch, (tmp_path / "owned",)  # type: ignore[return-value]

        path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=file):
        weights_module.read_tensors(path.parent, file)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 99}'])
def test_a_damaged_or_newer_state_is_named(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path, 12)
    (folder / runs.STATE).write_text(text)
    with pytest.raises(CheckpointError, match="update-0000012"):
        read_state(folder)


def test_a_file_that_the_system_cannot_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not advise to use or remove a checkpoint."""
    write(tmp_path, 11)
    folder = write(tmp_path, 12)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    said = r"{} cannot be read: Permission denied: make it readable$"
    with (
        monkeypatch.context() as patch,
        pytest.raises(UnreadableFile, match=said.format(runs.MODEL)),
    ):
        patch.setattr(weights_module, "checksum", refuse)
        weights_module.read_tensors(folder, runs.MODEL)
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UnreadableFile, match=said.format(runs.STATE)):
        read_state(folder)


def test_a_checkpoint_in_a_folder_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", 11)
    folder = write(tmp_path / "run", 12)
    renamed = (tmp_path / "run").rename(tmp_path / os.fsdecode(b"caf\xe9"))
    with pytest.raises(UnreadableFile, match=r"its path is not UTF-8: rename it$"):
        weights_module.read_tensors(renamed / "checkpoints" / folder.name, runs.MODEL)


def test_half_written_checkpoints_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, 3)
    aside = tmp_path / "checkpoints" / ".update-0000007"
    aside.mkdir()
    (aside / runs.STATE).write_text("{}")
    (tmp_path / "checkpoints" / "update-0000008").mkdir()
    assert [p.name for p in runs.checkpoints(tmp_path)] == ["update-0000003"]
    write(tmp_path, 7)
    assert len(runs.checkpoints(tmp_path)) == 2 and not aside.exists()


def test_prune_and_link(tmp_path: Path) -> None:
    folders = [write(tmp_path, update) for update in (1, 2, 3)]
    checkpoint.link(tmp_path, "best", folders[1])
    checkpoint.link(tmp_path, "best", folders[2])
    checkpoint.prune(tmp_path, folders[1:])
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "best",
        "update-0000002",
        "update-0000003",
    ]
    assert (tmp_path / "checkpoints" / "best").resolve() == folders[2]


def test_links_that_a_copy_made_folders_are_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    (tmp_path / "checkpoints" / "last").mkdir()
    checkpoint.link(tmp_path, "last", folder)
    assert (tmp_path / "checkpoints" / "last").resolve() == folder


def test_a_correct_link_is_not_written_again(tmp_path: Path) -> None:
    """The folder of a finished run may be read-only."""
    folder = write(tmp_path, 1)
    checkpoint.link(tmp_path, "best", folder)
    written = (tmp_path / "checkpoints" / "best").lstat().st_ino
    checkpoint.link(tmp_path, "best", folder)
    assert (tmp_path / "checkpoints" / "best").lstat().st_ino == written


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(
        CheckpointError,
        match=r"the disk is full \(the checkpoint takes 0\.1 MB, .* are free\); "
        "update-0000001 is complete; free some disk space",
    ):
        write(tmp_path, 2)
    assert [p.name for p in runs.checkpoints(tmp_path)] == ["update-0000001"]


def test_a_checkpoint_that_cannot_be_replaced_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, 1)
    rename = Path.rename

    def rename_only_the_old_one(path: Path, target: Path) -> Path:
        if path.name == f".{folder.name}":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_only_the_old_one)
    with pytest.raises(CheckpointError, match="Input/output error"):
        write(tmp_path, 1)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert runs.is_intact(folder)


def test_a_model_of_other_shape_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    with pytest.raises(CheckpointError, match="does not fit"):
        weights_module.load_weights(torch.nn.Linear(3, 3), folder)


class Mixed(torch.nn.Module):
    """Model with parameters of 0 to 3 dimensions, and one parameter without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {
            "scalar": (),
            "vector": (5,),
            "matrix": (4, 6),
            "cells": (2, 3, 5),
            "idle": (3,),
        }.items():
            setattr(
                self,
                name,
                torch.nn.Parameter(
                    torch.randn(shape, generator=torch.Generator().manual_seed(len(name)))
                ),
            )


def optimizer_of(
    model: torch.nn.Module, kind: str, options: dict[str, Any]
) -> torch.optim.Optimizer:
    builder: Any = OPTIMIZERS[kind]
    optimizer: torch.optim.Optimizer = builder(
        builder.Config.model_validate({"kind": kind, **options}), model.parameters()
    )
    return optimizer


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, updates: Iterable[int]) -> None:
    for update in updates:
        random = torch.Generator().manual_seed(update)
        for name, parameter in model.named_parameters():
            parameter.grad = (
                None if name == "idle" else torch.randn(parameter.shape, generator=random)
            )
        optimizer.param_groups[0]["lr"] = 0.1 / update
        optimizer.step()


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"momentum": 0.9}),
    ("adafactor", {"beta1": 0.9}),
    ("adafactor", {"decay": 1}),
]


@pytest.mark.parametrize(("kind", "options"), [*((kind, {}) for kind in OPTIMIZERS), *OPTIONS])
def test_every_optimizer_resumes_exactly(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    whole, half, rest = Mixed(), Mixed(), Mixed()
    expected, before, after = (optimizer_of(model, kind, options) for model in (whole, half, rest))
    train(whole, expected, range(1, 15))
    train(half, before, range(1, 8))
    checkpoint.save(
        tmp_path, checkpoint.model_tensors(half), checkpoint.optimizer_tensors(half, before), {}
    )
    weights_module.load_weights(rest, tmp_path)
    checkpoint.load_optimizer(rest, after, tmp_path)
    train(rest, after, range(8, 15))
    for expected_tensors, resumed_tensors in (
        (checkpoint.model_tensors(whole), checkpoint.model_tensors(rest)),
        (checkpoint.optimizer_tensors(whole, expected), checkpoint.optimizer_tensors(rest, after)),
    ):
        assert expected_tensors.keys() == resumed_tensors.keys()
        assert all(
            torch.equal(expected_tensors[name], resumed_tensors[name])
            and expected_tensors[name].dtype == resumed_tensors[name].dtype
            for name in expected_tensors
        )


def test_state_of_an_unknown_parameter_is_refused(tmp_path: Path) -> None:
    model = Mixed()
    checkpoint.save(
        tmp_path, checkpoint.model_tensors(model), {"other:exp_avg": torch.zeros(2)}, {}
    )
    with pytest.raises(CheckpointError, match="optimiser state of 'other', which is not a param"):
        checkpoint.load_optimizer(model, optimizer_of(model, "adam", {}), tmp_path)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_the_file_of_a_loaded_optimizer_is_not_mapped(tmp_path: Path) -> None:
    """Otherwise its blocks stay on the disk after the checkpoint is deleted."""
    model = Mixed()
    optimizer = optimizer_of(model, "adam", {})
    train(model, optimizer, range(1, 2))
    tensors = checkpoint.optimizer_tensors(model, optimizer)
    checkpoint.save(tmp_path / "a", checkpoint.model_tensors(model), tensors, {})
    checkpoint.load_optimizer(model, optimizer, tmp_path / "a")
    assert str(tmp_path / "a") not in Path("/proc/self/maps").read_text()


def test_state_that_is_none_is_left_out_and_a_counter_is_kept(tmp_path: Path) -> None:
    model = Mixed()
    optimizer = optimizer_of(model, "sgd", {})
    optimizer.state[model.vector] = {"momentum_buffer": None, "step": 3, "part": 0.5}
    found = checkpoint.optimizer_tensors(model, optimizer)
    assert found == {"vector:step#number": torch.tensor(3), "vector:part#number": torch.tensor(0.5)}
    checkpoint.save(tmp_path, checkpoint.model_tensors(model), found, {})
    checkpoint.load_optimizer(model, fresh := optimizer_of(model, "sgd", {}), tmp_path)
    assert fresh.state[model.vector] == {"step": 3, "part": 0.5}
