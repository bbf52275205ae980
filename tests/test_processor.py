"""The processors, the threads and the memory that this process may use."""

import math
import os
from pathlib import Path

import pytest
import torch

from fusetk import machine, processor
from fusetk.processor import control_group_limit, control_group_memory, usable_processors
from tests.helpers.threads import torch_threads

V1 = "4:memory:/m\n3:cpu,cpuacct:/a/b\n1:name=systemd:/\n"
V2 = "0::/a/b\n"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.mark.parametrize(
    ("own", "groups", "limit"),
    [
        (V2, {"a/b": {"cpu__max": "max 100000"}}, math.inf),
        (V2, {"a/b": {"cpu__max": "150000 100000"}}, 1.5),
        (V2, {"a/b": {"cpu__max": "max 100000"}, "a": {"cpu__max": "300000 100000"}}, 3),
        # In a container, the path is that of the host, and the group is mounted at the top.
        (V2, {".": {"cpu__max": "50000 100000"}}, 0.5),
        (V2, {"a/b": {"cpu__max": "much"}}, math.inf),
        (V1, {"cpu/a/b": {"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}}, math.inf),
        (V1, {"cpu/a": {"cpu__cfs_quota_us": "400000", "cpu__cfs_period_us": "100000"}}, 4),
        (V1, {"cpu": {"cpu__cfs_quota_us": "25000", "cpu__cfs_period_us": "10000"}}, 2.5),
        ("no group\n", {}, math.inf),
        ("", {}, math.inf),
    ],
)
def test_the_limit_of_control_groups(
    tmp_path: Path, own: str, groups: dict[str, dict[str, str]], limit: float
) -> None:
    (tmp_path / "own").write_text(own)
    for folder, files in groups.items():
        write(tmp_path / "groups" / folder, **files)
    assert control_group_limit(tmp_path / "groups", tmp_path / "own") == limit


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert control_group_limit(tmp_path, tmp_path / "missing") == math.inf


@pytest.mark.parametrize(
    ("own", "groups", "memory"),
    [
        (V2, {"a/b": {"memory__max": "max"}}, (math.inf, math.inf)),
        (
            V2,
            {
                "a/b": {"memory__max": "max"},
                "a": {
                    "memory__max": "5000",
                    "memory__current": "3000",
                    "memory__stat": "anon 9\ninactive_file 400",
                },
            },
            (5000, 2400),
        ),
        (
            V1,
            {
                "memory/m": {
                    "memory__limit_in_bytes": "5000",
                    "memory__usage_in_bytes": "4000",
                    "memory__stat": "inactive_file 1\ntotal_inactive_file 300",
                }
            },
            (5000, 1300),
        ),
        (V2, {}, (math.inf, math.inf)),
        ("", {}, (math.inf, math.inf)),
    ],
)
def test_the_memory_of_control_groups(
    tmp_path: Path, own: str, groups: dict[str, dict[str, str]], memory: tuple[float, float]
) -> None:
    (tmp_path / "own").write_text(own)
    for folder, files in groups.items():
        write(tmp_path / "groups" / folder, **files)
    assert control_group_memory(tmp_path / "groups", tmp_path / "own") == memory


@pytest.mark.parametrize(("limit", "number"), [(math.inf, 3), (8, 3), (1.5, 2), (0.1, 1)])
def test_usable_processors(monkeypatch: pytest.MonkeyPatch, limit: float, number: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    monkeypatch.setattr(processor, "control_group_limit", lambda: limit)
    assert usable_processors() == number


@pytest.mark.parametrize(("variable", "threads"), [(None, 1), ("2", 2)])
def test_threads_are_limited_to_the_processors(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, threads: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(machine, "usable_processors", lambda: 1)
    monkeypatch.setattr(machine, "adapt_spinning", lambda threads: None)
    with torch_threads(2):
        machine.device_of("cpu")
        assert torch.get_num_threads() == threads
