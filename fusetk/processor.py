"""The processor, as /proc/cpuinfo describes it, and the limits of this process."""

import hashlib
import math
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


@cache
def _fields() -> dict[str, str]:
    """Return the fields of the first processor; none where the file does not exist."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = (line.partition(":") for line in reversed(lines))
    return {name.strip(): value.strip() for name, _, value in pairs}


def instructions() -> str:
    """Return the names of the instruction sets, separated by spaces."""
    return _fields().get("flags") or _fields().get("Features") or ""


@cache
def processor() -> str:
    """Return the processor's name with a checksum of its instruction sets.

    Different processors may have the same name.
    """
    name = _fields().get("model name") or platform.processor() or platform.machine()
    return f"{name}, instructions {hashlib.sha256(instructions().encode()).hexdigest()[:8]}"


def usable_processors() -> int:
    """Return the number of processors that this process may use.

    The limit of a control group, for example of a container, is rounded up.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:  # not Linux
        allowed = os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, control_group_limit())))


def control_group_limit(groups: Path = CONTROL_GROUPS, membership: Path = MEMBERSHIP) -> float:
    """Return the number of processors that the control groups allow; infinite without a limit.

    ``groups`` is the mounted file system of the groups, and ``membership`` lists the groups of this
    process.
    """
    return min(map(_group_limit, _own_groups("cpu", groups, membership)), default=math.inf)


class UsableMemory(NamedTuple):
    """Total and available memory in bytes; infinite or very large without a limit."""

    total: float = math.inf
    available: float = math.inf


def control_group_memory(
    groups: Path = CONTROL_GROUPS, membership: Path = MEMBERSHIP
) -> UsableMemory:
    """Return the memory that the control groups allow, and the part of it that is available.

    The arguments are those of ``control_group_limit``.
    """
    limits = map(_group_memory, _own_groups("memory", groups, membership))
    totals, available = zip(UsableMemory(), *limits, strict=True)
    return UsableMemory(min(totals), min(available))


def _own_groups(controller: str, groups: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the control groups of this process that may limit a resource."""
    with suppress(OSError, ValueError):
        for line in membership.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # version 2
                mounted = groups
            elif controller in controllers.split(","):  # version 1
                mounted = groups / controller
            else:
                continue
            group = PurePosixPath(path.lstrip("/"))
            # A container may see the path of the host, whose folders do not exist in it.
            yield from (mounted / each for each in (group, *group.parents))


def _group_limit(group: Path) -> float:
    """Return the limit of one control group; infinite if it has none."""
    with suppress(OSError, ValueError):
        if (group / "cpu.max").exists():  # version 2: "max 100000" or "150000 100000"
            quota, period = map(float, (group / "cpu.max").read_text().split())
        else:  # version 1: the quota is -1 without a limit
            quota, period = (
                float((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")
            )
        if quota > 0 and period > 0:
            return quota / period
    return math.inf


def _group_memory(group: Path) -> UsableMemory:
    """Return the memory that one control group allows."""
    with suppress(OSError, ValueError):
        if (group / "memory.max").exists():  # version 2: "max" or a number of bytes
            limit, usage, cached = "memory.max", "memory.current", "inactive_file"
        else:  # version 1: without a limit, a number that is larger than every memory
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file"
        total, used = (float((group / name).read_text()) for name in (limit, usage))
        reclaimable = 0.0  # the system frees pages of files that were not read for a long time
        with suppress(OSError, ValueError):
            lines = (group / "memory.stat").read_text().splitlines()
            reclaimable = float(dict(map(str.split, lines)).get(cached, 0))
        return UsableMemory(total, max(0.0, total - used + reclaimable))
    return UsableMemory()
