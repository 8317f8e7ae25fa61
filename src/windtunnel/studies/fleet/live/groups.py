"""Control groups of Linux behind one seam: version 2, and version 1 where a machine still has that.

What a group of processes may use of a machine (cores, which of them, memory, disks), how it stands behind others
(weight, idle), and what it used; it is frozen, thawed and killed as one. A knob that a kernel lacks and that only makes
something better (disks, which cores, `cpu.idle`) is left alone; without cores, memory and freezing `root_group`
refuses.

Kernel documentation: admin-guide/cgroup-v2.rst, admin-guide/cgroup-v1/.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from windtunnel.errors import UserError
from windtunnel.studies.fleet.live.machine import disks

MOUNT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000  # of a quota: a group that used its own up stands still for at most so long
LEAST_CORES = 0.05  # a quota of 1 ms, the kernel's least
PATIENCE_S = 5.0  # until all that was killed is gone
NEEDS = (
    "run it as root outside of a container, or where groups are delegated:"
    " systemd-run --user --scope -p Delegate=yes windtunnel ..."
)


class Group(ABC):
    """Processes under one name. Times are in seconds, sizes in bytes."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)  # one in each hierarchy

    @property
    def name(self) -> str:
        """Of its folders."""
        return self.folders[0].name

    def child(self, name: str) -> Group:
        """A group within this one, made if it is not there."""
        self._open()
        group = self._like(name)
        for folder in group.folders:
            _make(folder)
        return group

    def _like(self, name: str) -> Group:
        return type(self)([folder / name for folder in self.folders])

    def children(self) -> list[Group]:
        """Groups within this one, in whatever hierarchy they are left."""
        names = {path.name for folder in self.folders if folder.is_dir() for path in folder.iterdir() if path.is_dir()}
        return [self._like(name) for name in sorted(names)]

    def entry(self) -> str:
        """Words of a shell that put it, and all that it starts, into the group; it ends where that fails."""
        return " ".join(f"echo 0 > '{folder}/cgroup.procs' || exit 126;" for folder in self.folders)

    def processes(self) -> list[int]:
        """Numbers of the processes in it and in its children."""
        numbers = {int(word) for folder in self.folders for word in _words(folder / "cgroup.procs")}
        return sorted(numbers.union(*(group.processes() for group in self.children())))

    def thaw(self) -> None:
        """Let all that is in it and in its children go on."""
        for group in self.children():
            group.thaw()
        if self.folders[0].is_dir():
            self.freeze(on=False)

    def kill(self) -> None:
        """Kill all that is in it and in its children."""
        until = time.monotonic() + PATIENCE_S
        while numbers := self.processes():
            for number in numbers:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            self.thaw()  # what is frozen dies when it thaws
            if time.monotonic() > until:
                raise UserError(f"control group {self.name}: {len(numbers)} processes do not end")
            time.sleep(0.01)

    def remove(self) -> None:
        """Kill what is left in it, and take it away with its children."""
        self.kill()
        for group in self.children():
            group.remove()
        until = time.monotonic() + PATIENCE_S
        for folder in self.folders:
            while folder.is_dir():
                try:
                    folder.rmdir()
                except OSError as error:  # a process that was killed a moment ago still counts
                    if time.monotonic() > until:
                        raise UserError(f"{folder}: cannot be taken away: {error.strerror}") from error
                    time.sleep(0.01)

    @abstractmethod
    def _open(self) -> None:
        """Let children have controllers."""

    @abstractmethod
    def limit_cores(self, cores: float | None) -> None:
        """So many cores at most; None: all."""

    @abstractmethod
    def run_on(self, cores: Sequence[int]) -> None:
        """These cores and no others, its children too."""

    @abstractmethod
    def limit_memory(self, size: int | None) -> None:
        """So many bytes at most, swap too; None: all."""

    @abstractmethod
    def limit_disks(self, rate: float | None) -> None:
        """So many bytes a second at most to each disk, and from it; None: all.

        Version 1 knows whose a write is only where the process waits for it (fsync, O_DIRECT).
        """

    @abstractmethod
    def stand_behind(self) -> None:
        """It runs when nobody else wants to: cores, and disks where the kernel weighs them."""

    @abstractmethod
    def stand_before(self) -> None:
        """It has the highest weight."""

    @abstractmethod
    def freeze(self, *, on: bool) -> None:
        """Stop all that is in it where it stands, or let it go on."""

    @abstractmethod
    def cpu_s(self) -> float:
        """CPU time used so far, its children's too."""

    @abstractmethod
    def disk_bytes(self) -> int:
        """Bytes moved to and from disks so far, its children's too; 0 where nobody counts them."""


class Version2(Group):
    """One hierarchy with all controllers."""

    def _open(self) -> None:
        path = self.folders[0] / "cgroup.subtree_control"
        for name in ("cpu", "memory", "cpuset", "io"):
            _try(path, f"+{name}")

    def limit_cores(self, cores: float | None) -> None:
        """See `Group`."""
        _put(self.folders[0] / "cpu.max", f"{'max' if cores is None else _quota_us(cores)} {PERIOD_US}")

    def run_on(self, cores: Sequence[int]) -> None:
        """See `Group`."""
        _try(self.folders[0] / "cpuset.cpus", ",".join(map(str, cores)))

    def limit_memory(self, size: int | None) -> None:
        """See `Group`."""
        _put(self.folders[0] / "memory.max", "max" if size is None else str(size))
        _try(self.folders[0] / "memory.swap.max", "max" if size is None else "0")

    def limit_disks(self, rate: float | None) -> None:
        """See `Group`."""
        most = "max" if rate is None else str(int(rate))
        for disk in disks():
            _try(self.folders[0] / "io.max", f"{disk} rbps={most} wbps={most}")

    def stand_behind(self) -> None:
        """See `Group`."""
        if not _try(self.folders[0] / "cpu.idle", "1"):
            _put(self.folders[0] / "cpu.weight", "1")
        _try(self.folders[0] / "io.weight", "default 1")

    def stand_before(self) -> None:
        """See `Group`."""
        _put(self.folders[0] / "cpu.weight", "10000")
        _try(self.folders[0] / "io.weight", "default 10000")

    def freeze(self, *, on: bool) -> None:
        """See `Group`."""
        _put(self.folders[0] / "cgroup.freeze", str(int(on)))

    def cpu_s(self) -> float:
        """See `Group`."""
        return int(_fields(self.folders[0] / "cpu.stat")["usage_usec"]) / 1e6

    def disk_bytes(self) -> int:
        """See `Group`."""
        pairs = (word.partition("=") for word in _words(self.folders[0] / "io.stat"))
        return sum(int(value) for name, _, value in pairs if name in ("rbytes", "wbytes"))


class Version1(Group):
    """A hierarchy for each controller: freezer, cpu, cpuacct, memory; blkio, cpuset where they are there."""

    ORDER = ("freezer", "cpu", "cpuacct", "memory", "blkio", "cpuset")
    MUST = ORDER[:4]

    def __init__(self, folders: Sequence[Path], names: Sequence[str] = ORDER) -> None:
        super().__init__(folders)
        self.names = tuple(names)  # of the controllers, one a folder

    def _like(self, name: str) -> Group:
        return Version1([folder / name for folder in self.folders], self.names)

    def child(self, name: str) -> Group:
        """See `Group`. Its cores and memory nodes begin as none, and nobody could join."""
        group = super().child(name)
        if upper := self._perhaps("cpuset"):
            for file in ("cpuset.mems", "cpuset.cpus"):
                if not _words(upper / name / file):
                    _put(upper / name / file, (upper / file).read_text().strip())
        return group

    def _open(self) -> None:
        for folder in self.folders:
            _try(folder / "memory.use_hierarchy", "1")

    def _of(self, controller: str) -> Path:
        return self.folders[self.names.index(controller)]

    def _perhaps(self, controller: str) -> Path | None:
        return self._of(controller) if controller in self.names else None

    def limit_cores(self, cores: float | None) -> None:
        """See `Group`."""
        _put(self._of("cpu") / "cpu.cfs_period_us", str(PERIOD_US))
        _put(self._of("cpu") / "cpu.cfs_quota_us", str(-1 if cores is None else _quota_us(cores)))

    def run_on(self, cores: Sequence[int]) -> None:
        """See `Group`. A child's cores have to be among its parent's before and after."""
        if folder := self._perhaps("cpuset"):
            within = sorted((path.parent for path in folder.rglob("cpuset.cpus")), reverse=True)  # innermost first
            for path in (*within, *within[::-1]):
                _try(path / "cpuset.cpus", ",".join(map(str, cores)))

    def limit_memory(self, size: int | None) -> None:
        """See `Group`."""
        _put(self._of("memory") / "memory.limit_in_bytes", str(-1 if size is None else size))
        _try(self._of("memory") / "memory.memsw.limit_in_bytes", str(-1 if size is None else size))

    def stand_behind(self) -> None:
        """See `Group`."""
        if not _try(self._of("cpu") / "cpu.idle", "1"):
            _put(self._of("cpu") / "cpu.shares", "2")
        self._weigh_disks(1)

    def stand_before(self) -> None:
        """See `Group`."""
        _put(self._of("cpu") / "cpu.shares", "262144")
        self._weigh_disks(1000)

    def _weigh_disks(self, weight: int) -> None:
        if folder := self._perhaps("blkio"):
            _try(folder / "blkio.bfq.weight", str(weight))

    def limit_disks(self, rate: float | None) -> None:
        """See `Group`."""
        if folder := self._perhaps("blkio"):
            for disk, way in product(disks(), ("read", "write")):
                _try(folder / f"blkio.throttle.{way}_bps_device", f"{disk} {int(rate or 0)}")  # 0: all

    def freeze(self, *, on: bool) -> None:
        """See `Group`."""
        _put(self._of("freezer") / "freezer.state", "FROZEN" if on else "THAWED")

    def cpu_s(self) -> float:
        """See `Group`."""
        return int((self._of("cpuacct") / "cpuacct.usage").read_text()) / 1e9

    def disk_bytes(self) -> int:
        """See `Group`."""
        folder = self._perhaps("blkio")
        words = _words(folder / "blkio.throttle.io_service_bytes_recursive") if folder else []
        return int(words[-1]) if words else 0


def root_group(mount: Path = MOUNT) -> Group:
    """The group in which this process may make others, of version 2 or 1. Raises UserError where it may not."""
    if {"cpu", "memory"} <= set(_words(mount / "cgroup.controllers")):
        group: Group = Version2([mount])
        if (mount / "cgroup.type").is_file():  # a container's own, in which its processes are
            return _delegated(group)
    else:
        there = [name for name in Version1.ORDER if (mount / name / "cgroup.procs").is_file()]
        if not set(Version1.MUST) <= set(there):
            raise UserError(f"{mount}: no control groups with controllers for cpu, memory and freezing; {NEEDS}")
        group = Version1([mount / name for name in there], there)
    if not all(os.access(folder / "cgroup.procs", os.W_OK) for folder in group.folders):
        group = _delegated(group)
    return group


def _delegated(group: Group) -> Group:
    """The group that this process is in, where it may write there: itself moved into a leaf, as version 2 wants it."""
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), "/")
    folder = group.folders[0] / own.lstrip("/")
    if not isinstance(group, Version2) or not os.access(folder / "cgroup.procs", os.W_OK):
        raise UserError(f"{group.folders[0]}: control groups cannot be written here; {NEEDS}")
    leaf = folder / "windtunnel-itself"
    _make(leaf)
    _put(leaf / "cgroup.procs", "0")
    _try(folder / "cgroup.subtree_control", "+cpu +memory")
    if not {"cpu", "memory"} <= set(_words(folder / "cgroup.subtree_control")):
        raise UserError(f"{folder}: other processes are in the control group of this one; {NEEDS}")
    return Version2([folder])


def _quota_us(cores: float) -> int:
    return max(1000, round(cores * PERIOD_US))


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.is_file() else []


def _fields(path: Path) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in path.read_text().splitlines())


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror}; {NEEDS}") from error


def _put(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be set to {text}: {error.strerror}; {NEEDS}") from error


def _try(path: Path, text: str) -> bool:
    """Whether the kernel has that knob and takes the value."""
    if not path.is_file():
        return False
    try:
        path.write_text(text)
    except OSError:
        return False
    return True
