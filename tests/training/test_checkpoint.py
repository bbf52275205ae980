"""Checkpoints: whole or not there, and damage is named."""

import pickle
from pathlib import Path

import pytest
import torch

from fusetk.errors import CheckpointError
from fusetk.training import checkpoint

MODEL = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.tensor(1.5)}


def write(run: Path, update: int) -> Path:
    folder = run / "checkpoints" / checkpoint.name_of(update)
    checkpoint.save(folder, MODEL, {"a.weight:m": torch.ones(2, 3)}, {"progress": {"update": update}})
    return folder


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path, 12)
    found = checkpoint.read_tensors(folder, checkpoint.MODEL)
    assert found.keys() == MODEL.keys() and all(torch.equal(found[n], MODEL[n]) for n in MODEL)
    assert checkpoint.read_state(folder)["progress"] == {"update": 12}
    assert sorted(p.name for p in folder.parent.iterdir()) == ["update-0000012"]


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "pickle"])
@pytest.mark.parametrize("file", [checkpoint.MODEL, checkpoint.TRAINING])
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
        checkpoint.read_tensors(path.parent, file)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 99}'])
def test_a_damaged_or_newer_state_is_named(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path, 12)
    (folder / checkpoint.STATE).write_text(text)
    with pytest.raises(CheckpointError, match="update-0000012"):
        checkpoint.read_state(folder)


def test_half_written_checkpoints_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, 3)
    aside = tmp_path / "checkpoints" / ".update-0000007"
    aside.mkdir()
    (aside / checkpoint.STATE).write_text("{}")
    (tmp_path / "checkpoints" / "update-0000008").mkdir()
    assert [p.name for p in checkpoint.whole(tmp_path)] == ["update-0000003"]
    write(tmp_path, 7)
    assert len(checkpoint.whole(tmp_path)) == 2 and not aside.exists()


def test_prune_and_link(tmp_path: Path) -> None:
    folders = [write(tmp_path, update) for update in (1, 2, 3)]
    checkpoint.link(tmp_path, "best", folders[1])
    checkpoint.link(tmp_path, "best", folders[2])
    checkpoint.prune(tmp_path, folders[1:])
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["best", "update-0000002", "update-0000003"]
    assert (tmp_path / "checkpoints" / "best").resolve() == folders[2]


def test_links_that_a_copy_made_folders_are_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    (tmp_path / "checkpoints" / "last").mkdir()
    checkpoint.link(tmp_path, "last", folder)
    assert (tmp_path / "checkpoints" / "last").resolve() == folder


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write(tmp_path, 2)
    assert [p.name for p in checkpoint.whole(tmp_path)] == ["update-0000001"]


def test_a_model_of_other_shape_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    with pytest.raises(CheckpointError, match="does not fit"):
        checkpoint.load_model(torch.nn.Linear(3, 3), folder)
