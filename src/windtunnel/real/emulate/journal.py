"""What a real rank is to do, and what it learns while the script runs."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from windtunnel.real.emulate.memory import DevicePeak

if TYPE_CHECKING:
    import torch

    from windtunnel.real.emulate.clock.compute_time import ComputeTime
    from windtunnel.real.emulate.conductor import Conductor
    from windtunnel.real.emulate.ddp_technique import Applied
    from windtunnel.real.emulate.memory import MemoryWatch, Peak
    from windtunnel.real.emulate.observe import ObservedStep
    from windtunnel.studies.programs.communication import Communication

MEMORY_STEP = 2  # profiling begins at the end of this step: the optimizer's state is there
MEMORY_STEPS = 2


class LaunchFields(TypedDict):
    """A `Launch`, as JSON."""

    target: str
    arguments: tuple[str, ...]  # a list, after JSON
    is_module: bool
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    run_id: str
    role: str
    max_restarts: int


class Task(TypedDict):
    """What `run.Emulation` asks for, as JSON, and what its process adds."""

    launch: LaunchFields
    rank: int
    ranks: list[int]
    cluster: str
    slow: dict[str, float]
    jitter: bool
    seed: int
    data: str
    tape: list[str]
    captured: str | None
    peer_times: list[str]
    memory: bool
    techniques: list[str]
    watch: list[int]
    folder: str
    parent: int


class Journal:
    """What is learnt while the script runs."""

    def __init__(self, folder: Path, task: Task) -> None:
        self.folder, self.task = folder, task
        self.step_s: list[float] = []
        self.blocked_s: list[float] = []
        self.profiled: list[int] = []  # steps that the profiler slowed
        self.kinds: Counter[str] = Counter()
        self.kind_bytes: Counter[str] = Counter()
        self.control: Counter[str] = Counter()  # calls of objects and small tensors of the host
        self.last: ObservedStep | None = None
        self.memory: Peak | None = None
        self.device_peak = DevicePeak()
        self.notes: list[str] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._watch: MemoryWatch | None = None
        self._may_watch = bool(task["memory"])
        self.conductor: Conductor | None = None
        self.own: ComputeTime | None = None
        self.technique: Applied | None = None

    @property
    def profiling(self) -> bool:
        """Whether this step is slowed by looking at it."""
        return self._watch is not None

    def record_communication(self, call: Communication) -> None:
        """A communication was begun."""
        if call.is_control:
            self.control[call.kind] += 1
            return
        self.kinds[call.kind] += 1
        self.kind_bytes[call.kind] += call.bytes

    def on_step(self, number: int, seen: ObservedStep | None) -> bool:
        """A step has ended; whether this took time that is not the job's."""
        if seen is not None:
            self.step_s.append(seen.ended - seen.begin_s)
            self.blocked_s.append(seen.blocked)
            self.last = seen
        if self._watch is not None:
            self._watch.mark(self.optimizers)
            self.profiled.append(len(self.step_s) - 1)
            if len(self.profiled) == MEMORY_STEPS:
                self.stop_watch()
            return True
        if number == MEMORY_STEP and self._may_watch and not self.profiled:
            return self._start_watch()
        return False

    def _start_watch(self) -> bool:
        import torch

        if torch.cuda.is_available():
            self.device_peak.begin()
            return False
        from windtunnel.real.emulate.memory import MemoryWatch

        watch = MemoryWatch()
        if watch.start(self.optimizers):
            watch.mark(self.optimizers)
            self._watch = watch
        else:
            self.script_profiles()
        return True

    def script_profiles(self) -> None:
        """The script runs a profiler, and there can be but one."""
        if self._may_watch and self.memory is None:
            self.notes.append("peak memory was not looked at: the script runs PyTorch's profiler itself")
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.abandon()
        self._may_watch = False

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Know all optimizers; see where gradients lie."""
        if all(other is not optimizer for other in self.optimizers):
            self.optimizers.append(optimizer)
        if self._watch is not None:
            self._watch.note_gradients(self.optimizers)

    def stop_watch(self) -> None:
        """Read the profiler's log."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self.memory = watch.stop(self.folder, self._folders(), f"{self.task['rank']}")

    def _folders(self) -> list[str]:
        here = [os.getcwd()]
        if not self.task["launch"]["is_module"]:
            here.append(str(Path(self.task["launch"]["target"]).resolve().parent))
        return here
