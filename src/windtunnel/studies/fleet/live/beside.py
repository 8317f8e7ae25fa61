"""Batch jobs beside a service on this machine, held back by control groups so that the service stays in time.

The service's real twin of `studies/fleet/oversubscribe`: it is started, measured alone, and batch jobs run behind it
(idle class, cores, memory); `control.py` decides window by window. Every `again_s` all batch jobs stand still for
`alone_s`, so that alone and beside are measured in turns, under the load of the same minutes.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.files.document import read_mapping
from windtunnel.questions.asked.fleet.further import FleetBeside
from windtunnel.questions.header import Answer
from windtunnel.studies.fleet.live import process
from windtunnel.studies.fleet.live.control import Action, Controller, Window
from windtunnel.studies.fleet.live.groups import Group, root_group
from windtunnel.studies.fleet.live.latency import ENOUGH, TIMEOUT_S, Latencies, LatencyFile, Probe, late_from, p95_of
from windtunnel.studies.fleet.live.machine import cores_from, machine_times, memory
from windtunnel.studies.fleet.policies.beyond.oversubscribe import RULES, Running
from windtunnel.units import parse_bytes

REMEDY = "give `jobs`, each with job and command, and cpus and memory where they are known (docs/fleet-live.md)"
PREFIX = "windtunnel-beside-"
JOBS_MOST = 1000
NAME_MOST = 200  # bytes
REQUESTS = 300  # that a window's p95 is of
HEADROOM = 2.0  # cores that a service is given over those that it used alone
LATELY = 1000  # the last ones, over several windows: their p95 is what a service is promised
WINDOW_S = 4.0  # at most, where requests are few
TICK_S = 0.05
START_S = 60.0  # until a service answers


@dataclass
class BatchJob:
    """One batch job and where it stands."""

    index: int
    name: str
    command: str
    cpus: float
    memory: int
    group: Group | None = None
    identity: tuple[int, int] = (0, -1)
    began_s: float = 0.0
    starts: int = 0
    retries: int = 0
    cpu_s: float = 0.0  # of starts before
    state: str = "waiting"
    frozen: bool = False

    @property
    def attempt(self) -> str:
        """Name of this start."""
        return str(self.starts)


@dataclass(frozen=True)
class BesideRun(Answer):
    """What the service and the batch jobs had of the machine. p95 in seconds; uses are shares of its cores."""

    policy: str
    p95_alone_s: float
    p95_beside_s: float | None
    target_s: float
    use_alone: float
    use_beside: float
    batch_cpu_s: float
    late_windows: int
    windows: int
    freezes: int
    evictions: int
    jobs: tuple[dict[str, str | float], ...]
    curve: tuple[tuple[float, float, float], ...] = ()  # time, p95, cores of the batch jobs
    warnings: Sequence[str] = ()

    JSON_LEAVES_OUT = ("warnings",)


@dataclass
class Phase:
    """Requests and machine time of one kind of minutes."""

    latencies: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    cpu_s: float = 0.0  # of the service
    whole_s: float = 0.0

    @property
    def use(self) -> float:
        """Share of the machine's cores."""
        return self.busy_s / self.whole_s if self.whole_s else 0.0


def read_batch(path: Path) -> list[BatchJob]:
    """Jobs of a file. Raises InputFileError, SpecError."""
    rows = read_mapping(path, REMEDY).get("jobs")
    if not isinstance(rows, list) or not 0 < len(rows) <= JOBS_MOST:
        raise InputFileError(path, f"has no list of 1 to {JOBS_MOST} `jobs`", REMEDY)
    jobs: list[BatchJob] = []
    for number, row in enumerate(rows):
        known = isinstance(row, Mapping) and {"command"} <= set(row) <= {"job", "command", "cpus", "memory"}
        if not known or not isinstance(row["command"], str) or "\0" in row["command"]:
            what = f"has a job that is not job, command, cpus and memory: number {number + 1}"
            raise InputFileError(path, what, REMEDY)
        name = str(row.get("job", number + 1))
        odd = "/" in name or "\0" in name or len(name.encode()) > NAME_MOST or name in ("", ".", "..")
        if odd or name in {job.name for job in jobs}:
            raise SpecError("job", name, "give each a name of its own, which a folder can have", str(path))
        cpus = row.get("cpus", 1)
        if isinstance(cpus, bool) or not isinstance(cpus, int | float) or not 0 < cpus < 1e6:
            raise SpecError(f"cpus of {name}", cpus, "give a number of cores above 0", str(path))
        memory = parse_bytes(row["memory"], f"memory of {name}", str(path)) if "memory" in row else 0
        jobs.append(BatchJob(number, name, row["command"], float(cpus), memory))
    return jobs


def own_name() -> str:
    """Name of this process's group: its number and when it began, since numbers come again."""
    return f"{PREFIX}{os.getpid()}-{process.birth_of(os.getpid())}"


@contextmanager
def own_group(root: Group) -> Iterator[Group]:
    """A group of this process; those of processes that are gone are taken away with all that is in them."""
    for group in root.children():
        number, _, born = group.name.removeprefix(PREFIX).partition("-")
        if group.name.startswith(PREFIX) and number.isdecimal() and str(process.birth_of(int(number))) != born:
            group.remove()
    group = root.child(own_name())
    try:
        yield group
    finally:
        group.remove()
        process.reap()


class Beside:
    """A service and its batch jobs under one controller."""

    def __init__(self, question: FleetBeside, jobs: list[BatchJob], group: Group, folder: Path) -> None:
        self.question, self.jobs, self.folder = question, jobs, folder
        self.order = sorted(os.sched_getaffinity(0))
        self.cores = float(len(self.order))
        self.controller = Controller(self.cores, RULES[question.policy])
        self.service, self.batch = group.child("service"), group.child("batch")
        self.service.stand_before()
        self.batch.stand_behind()
        self.alone, self.beside = Phase(), Phase()
        self.late = self.windows = self.freezes = self.evictions = 0
        self.last: deque[float] = deque(maxlen=LATELY)  # requests beside batch jobs
        self.curve: list[tuple[float, float, float]] = []
        self.began_s = time.monotonic()

    def run(self) -> BesideRun:
        """Until all batch jobs are done, or the time is up. Raises UserError where the service does not run."""
        latencies = self._start_service()
        try:
            self._measure(latencies, self.question.alone, self.alone)
            alone_s = p95_of(self.alone.latencies)
            if alone_s is None:
                raise UserError(
                    f"the service had {len(self.alone.latencies)} requests in {self.question.alone:g} s, {ENOUGH} are"
                    " needed: give a longer --alone, or more load"
                )
            if self.question.probe and (usual := median(self.alone.latencies)) > self.question.every:
                pace = f"it takes {usual:.3g} s for a request and is asked each {self.question.every:g} s"
                raise UserError(f"the service cannot keep up alone: {pace}; give --every {2 * usual:.2g}s or more")
            self.began_s = time.monotonic()
            next_alone = self.began_s + self.question.again
            self._place()
            self._limit()
            self._admit()
            while any(job.state == "running" for job in self.jobs) or self._waiting():
                self._window(latencies)
                now = time.monotonic()
                if now - self.began_s > self.question.longest:
                    break
                if self.question.again and now > next_alone:
                    self.batch.freeze(on=True)
                    self.service.run_on(sorted(self.order))  # as if nobody were there
                    self._measure(latencies, TICK_S * 4, Phase())  # what was under way
                    self._measure(latencies, self.question.alone, self.alone)
                    self.service.run_on(self.order[: self.controller.own])
                    self.batch.freeze(on=False)
                    next_alone = time.monotonic() + self.question.again
            return self._answer()
        finally:
            self._cut_off()
            latencies.close()
            self._stop(self.folder / "service", "1")

    @property
    def target_s(self) -> float:
        """What p95 the service is promised."""
        return self.question.p95 or self.question.slower * (p95_of(self.alone.latencies) or 0.0)

    def _start_service(self) -> Latencies:
        written, probe = self.folder / "latencies", self.question.probe
        latencies: Latencies = Probe(probe, self.question.every) if probe else LatencyFile(written)
        environment = {} if probe else {"WINDTUNNEL_LATENCIES": str(written)}
        self._launch(self.folder / "service", "1", f"{self.service.entry()} {self.question.service}", environment)
        until = time.monotonic() + START_S
        try:
            while not any(value < TIMEOUT_S or not probe for value in latencies.take()):
                self._check_service()
                if time.monotonic() > until:
                    raise UserError(f"the service: no request was answered well in {START_S:g} s{self._log}")
                time.sleep(TICK_S)
        except BaseException:
            latencies.close()
            raise
        return latencies

    @property
    def _log(self) -> str:
        return f": see {self.folder / 'service' / 'log.1'}"

    def _check_service(self) -> None:
        """Raises UserError once it has ended."""
        status = process.status(self.folder / "service", "1")
        number = process.number(self.folder / "service", "1", process.BIRTH_S)
        if status is not None or number is None or process.birth_of(number) is None:
            raise UserError(f"the service ended with {'a signal' if status is None else status}{self._log}")

    def _launch(self, folder: Path, attempt: str, command: str, environment: Mapping[str, str]) -> None:
        for name in ("pid", "exit"):  # of an earlier run in this folder
            (folder / f"{name}.{attempt}").unlink(missing_ok=True)
        process.launch(folder, attempt, command, environment)

    def _stop(self, folder: Path, attempt: str) -> None:
        """Ask what was started to end, and end it."""
        number = process.number(folder, attempt, process.BIRTH_S)
        if number is not None and (born := process.birth_of(number)) is not None:
            process.stop(number, born)

    def _measure(self, latencies: Latencies, seconds: float, phase: Phase) -> None:
        latencies.take()
        busy, whole = machine_times()
        cpu_s = self.service.cpu_s()
        time.sleep(seconds)
        self._check_service()
        phase.cpu_s += self.service.cpu_s() - cpu_s
        self._count(phase, busy, whole)
        phase.latencies += latencies.take()

    def _count(self, phase: Phase, busy: float, whole: float) -> None:
        now_busy, now_whole = machine_times()
        phase.busy_s += now_busy - busy
        phase.whole_s += now_whole - whole

    def _window(self, latencies: Latencies) -> None:
        """Measure, decide, act. Alone is what it was lately: its load, and the machine's own moods, change."""
        latencies.take()
        busy, whole = machine_times()
        began, cpu_s, moved = time.monotonic(), self.batch.cpu_s(), self.batch.disk_bytes()
        ended: list[float] = []
        while len(ended) < REQUESTS and time.monotonic() - began < WINDOW_S:
            time.sleep(TICK_S)
            ended += latencies.take()
            self._collect()
            if not self._waiting() and not any(job.state == "running" for job in self.jobs):
                break
        self._check_service()
        lasted = time.monotonic() - began
        self._count(self.beside, busy, whole)
        self.beside.latencies += ended
        self.last.extend(ended)
        alone = self.alone.latencies[-LATELY:]
        p95, alone_s = p95_of(ended), p95_of(alone) or 0.0
        target = self.question.p95 or self.question.slower * alone_s
        guests = [self._guest(job) for job in self.jobs if job.state == "running"]
        frozen = frozenset(job.index for job in self.jobs if job.frozen)
        free, installed = memory()
        batch_cores, rate = (self.batch.cpu_s() - cpu_s) / lasted, (self.batch.disk_bytes() - moved) / lasted
        window = Window(
            p95_s=p95, alone_s=alone_s, target_s=target,
            late_s=late_from(alone, len(ended), target), lately_late_s=late_from(alone, LATELY, target),
            batch_cores=batch_cores, memory_use=1.0 - free / installed, guests=guests, frozen=frozen,
            waiting=self._waiting(), lately_s=p95_of(self.last) if len(self.last) == LATELY else None, disk_rate=rate,
        )  # fmt: skip
        self.windows += 1
        self.late += p95 is not None and p95 > window.late_s
        self.curve.append((time.monotonic() - self.began_s, p95 or 0.0, self.controller.quota))
        quota = self.controller.quota
        self._act(self.controller.decide(window))
        if self.controller.quota < quota:
            self.last.clear()  # they were late for what is taken away now

    def _act(self, action: Action) -> None:
        self._limit()
        for index, on in ((action.freeze, True), (action.thaw, False)):
            if index is not None and (group := self.jobs[index].group) is not None:
                group.freeze(on=on)
                self.jobs[index].frozen = on
                self.freezes += on
        if action.leave is not None:
            self._evict(self.jobs[action.leave])
        if action.admit:
            self._admit()

    def _place(self) -> None:
        """The service on as few cores as hold it, twice over, and the order in which batch jobs get cores."""
        own = min(math.ceil(HEADROOM * self.alone.cpu_s / self.question.alone) or 1, len(self.order))
        self.controller = Controller(self.cores, self.controller.rules, own)
        self.order = cores_from(self.order, own)
        self.service.run_on(self.order[:own])

    def _limit(self) -> None:
        """Hold the batch jobs to what the controller gives them."""
        quota = self.controller.quota
        self.batch.run_on(self.order[: math.ceil(quota)])
        self.batch.limit_cores(None if quota == math.ceil(quota) else quota)
        self.batch.limit_disks(self.controller.disk_rate)

    def _guest(self, job: BatchJob) -> Running:
        saved = time.time() - (time.monotonic() - job.began_s)
        with suppress(OSError):  # files come and go
            saved = max(saved, *(path.lstat().st_mtime for path in self._folder(job).iterdir()))
        since = max(time.time() - saved, 0.0)
        return Running(job.index, job.began_s, job.cpus / self.cores, since, job.retries, True)

    def _folder(self, job: BatchJob) -> Path:
        return self.folder / "jobs" / job.name

    def _waiting(self) -> bool:
        return any(job.state == "waiting" for job in self.jobs)

    def _admit(self) -> None:
        """Start the next jobs whose cores and memory are there. The first always comes in."""
        running = [job for job in self.jobs if job.state == "running"]
        cores = sum(job.cpus for job in running)
        for job in self.jobs:
            if job.state != "waiting":
                continue
            if running and (cores + job.cpus > self.cores + 1e-9 or job.memory > memory()[0]):
                continue
            job.group = self.batch.child(f"job{job.index}")
            if job.memory:
                job.group.limit_memory(job.memory)
            folder = self._folder(job)
            job.starts += 1
            command = f"{job.group.entry()} {job.command}"
            self._launch(folder, job.attempt, command, {"WINDTUNNEL_FOLDER": str(folder)})
            number = process.number(folder, job.attempt, process.BIRTH_S)
            job.identity = (0, -1) if number is None else (number, process.birth_of(number) or -1)
            job.began_s, job.state = time.monotonic(), "running"
            running.append(job)
            cores += job.cpus

    def _collect(self) -> None:
        """Jobs that ended."""
        process.reap()
        for job in self.jobs:
            if job.state == "running" and process.birth_of(job.identity[0]) != job.identity[1]:
                status = process.status(self._folder(job), job.attempt)
                self._gone(job, "completed" if status == 0 else "failed")

    def _gone(self, job: BatchJob, state: str) -> None:
        assert job.group is not None, "it ran"
        job.cpu_s += job.group.cpu_s()
        job.group.remove()
        job.group, job.frozen, job.state = None, False, state

    def _evict(self, job: BatchJob) -> None:
        """It comes again unless it came too often."""
        self.evictions += 1
        self._leave(job, "waiting" if job.retries < self.controller.rules.retries else "given up")
        job.retries += 1

    def _leave(self, job: BatchJob, state: str) -> None:
        """Ask it to save, and stop it."""
        assert job.group is not None, "it runs"
        job.group.freeze(on=False)
        self.batch.limit_cores(None)  # with a sliver of a core it could save nothing
        self.batch.limit_disks(None)
        self._stop(self._folder(job), job.attempt)
        self._limit()
        self._gone(job, state)

    def _cut_off(self) -> None:
        """Jobs that still run end."""
        for job in self.jobs:
            if job.state == "running":
                self._leave(job, "cut off")

    def _answer(self) -> BesideRun:
        self._cut_off()
        alone_s = p95_of(self.alone.latencies)
        assert alone_s is not None, "measured at first"
        given_up = [job.name for job in self.jobs if job.state == "given up"]
        often = self.controller.rules.retries + 1
        warnings = [f"evicted {often} times, not started again: {', '.join(given_up)}"] if given_up else []
        return BesideRun(
            self.question.policy, alone_s, p95_of(self.beside.latencies), self.target_s, self.alone.use,
            self.beside.use, sum(job.cpu_s for job in self.jobs), self.late, self.windows, self.freezes, self.evictions,
            tuple(
                {"job": job.name, "state": job.state, "cpu_s": round(job.cpu_s, 3), "starts": job.starts}
                for job in self.jobs
            ),
            tuple(self.curve), warnings,
        )  # fmt: skip


def answer_beside(question: FleetBeside, folder: Path) -> BesideRun:
    """The service and its batch jobs, run here; logs are in `folder`. Raises UserError."""
    jobs = read_batch(Path(question.jobs))
    if not question.service.strip():
        raise SpecError("--service", question.service, "give the command of the service")
    try:
        (folder / "service").mkdir(parents=True, exist_ok=True)
        (folder / "jobs").mkdir(exist_ok=True)
        (folder / "latencies").unlink(missing_ok=True)
    except OSError as error:
        raise SpecError("--out", str(folder), f"give a folder that can be written: {error.strerror}") from error
    with own_group(root_group()) as group:
        return Beside(question, jobs, group, folder.resolve()).run()
