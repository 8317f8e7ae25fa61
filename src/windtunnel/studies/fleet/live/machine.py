"""What Linux says of this machine: how busy it is, its memory, its disks, which cores share an execution core."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

BLOCK = Path("/sys/block")
TOPOLOGY = Path("/sys/devices/system/cpu")


def machine_times() -> tuple[float, float]:
    """(busy, all) seconds of all cores, from some moment on.

    All that is not idle: the kernel times idleness, and only counts at each tick who runs, which misses what sleeps
    in step with the ticks.
    """
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    whole = time.monotonic() * (os.cpu_count() or 1)
    return whole - (int(words[4]) + int(words[5])) / os.sysconf("SC_CLK_TCK"), whole


def memory() -> tuple[int, int]:
    """Bytes of the machine that a process can still have, and all."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free, whole = (int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    return free, whole


def disks() -> list[str]:
    """Numbers of the machine's disks, as the kernel writes them: `254:0`."""
    with suppress(OSError):  # no such folder, or a disk that goes meanwhile
        return sorted((path / "dev").read_text().strip() for path in BLOCK.iterdir() if (path / "device").exists())
    return []


def cores_from(cores: Sequence[int], first: int) -> list[int]:
    """The `first` cores, then those that share an execution core with none of them, then those that do."""
    near = {int(core) for core in cores[:first]}
    for core in cores[:first]:
        near |= _numbers(TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list")
    return sorted(cores, key=lambda core: (core not in cores[:first], core in near, core))


def _numbers(path: Path) -> set[int]:
    """Numbers of a list as the kernel writes it: `0,2-3`."""
    words = path.read_text().strip().split(",") if path.is_file() else []
    ranges = (word.partition("-") for word in words)
    return {number for low, _, high in ranges for number in range(int(low), int(high or low) + 1)}
