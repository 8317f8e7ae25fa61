"""A policy over real processes: it starts, preempts and resumes them; what it decides is what it would in simulation.

The snapshot is the exact clock's: seconds since the first start, GPUs as slots of this machine, or of a host for each
node (`host.py`): a job then has a process on each of its hosts. A job's command is told its slots
(CUDA_VISIBLE_DEVICES, WINDTUNNEL_GPUS), its share of each where it asked for one (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE),
and a folder for its checkpoints (WINDTUNNEL_FOLDER); it is asked to stop by SIGTERM, and has to go on from its
checkpoint when it is started again. A job that dies is started again, a few times. The scheduler itself may be killed:
started again in the same folder it goes on, and nothing runs twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.errors import UserError
from windtunnel.studies.fleet.clock.decision import EMPTY, JobView, Placement, Policy, Snapshot, Spot, kept_or_placed
from windtunnel.studies.fleet.live import mig, process
from windtunnel.studies.fleet.live.host import Found, Host, RemoteHost
from windtunnel.studies.fleet.live.journal import Journal
from windtunnel.studies.fleet.parts.profile import UNITS, Part

POLL_S = 0.02
RETRIES = 3  # starts after a job died by itself


@dataclass
class LiveJob:
    """One job and what is known of it."""

    index: int
    name: str
    submit_s: float
    gpus: int
    command: str
    duration_s: float | None = None
    part: Part | None = None  # of each of its GPUs
    profile: str = ""  # of MIG, where that is what the part is
    placement: Placement = EMPTY  # as the policy counts: in units where some job asks for a part
    spots: tuple[Spot, ...] = ()
    slots: tuple[int, ...] = ()  # of this machine, numbered through all nodes
    attempt: int = 0
    parts: dict[int, Found] = field(default_factory=dict)  # its process on each host
    held_s: float = 0.0
    since_s: float = 0.0
    start_s: float | None = None
    end_s: float | None = None
    deaths: int = 0
    preemptions: int = 0
    failed: bool = False

    def units(self, unit: int) -> int:
        """What it asks for, of GPUs of so many units."""
        return self.gpus * (unit if self.part is None else self.part.units)


@dataclass
class Scheduler:
    """Runs jobs under a policy in a folder."""

    jobs: list[LiveJob]
    nodes: tuple[int, ...]
    policy: Policy
    folder: Path
    restart_s: float = 0.0  # of each start, until there is progress
    hosts: Sequence[Host] = (Host(),)  # one for each node, or one for all
    devices: Sequence[str] = ()  # names of the slots; none: their numbers on each host
    unit: int = 1  # of a GPU: `UNITS` where some job asks for a part
    origin: float = 0.0
    memory: object = None
    wake_s: float | None = None
    round: int = -1  # of a policy that is asked at intervals, the last
    seen: set[int] = field(default_factory=set)
    cuts: list[list[int]] = field(default_factory=list)  # host, GPU, start, size, numbers of slices that were there
    warnings: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Until every job has ended or failed for good."""
        journal = Journal(self.folder)
        try:
            self._recover(journal)
            changed = True
            while any(job.end_s is None and not job.failed for job in self.jobs):
                changed |= self._look(journal)
                if self._is_due(changed):
                    changed = self._decide(journal)
                time.sleep(POLL_S)
            for cut in tuple(self.cuts):
                try:
                    self._clear(journal, cut)
                except UserError as error:  # the jobs are done: their answer is not lost for it
                    where = f"node {cut[0]}, GPU {cut[1]}, place {cut[2]}"
                    self.warnings.append(f"a slice stays, {where} ({error}): free it, and give the same command again")
        finally:
            journal.close()
            for host in self.hosts:
                if isinstance(host, RemoteHost):
                    host.close()

    def _hosts(self, job: LiveJob) -> list[int]:
        return [0] if len(self.hosts) == 1 else [node for node, _ in job.placement]

    def _name(self, job: LiveJob, host: int) -> str:
        """Of a start's files."""
        return f"{job.attempt}" if len(self.hosts) == 1 else f"{job.attempt}.{host}"

    def _statuses(self, job: LiveJob) -> list[int | None]:
        folder = self.folder / job.name
        return [self.hosts[host].status(folder, self._name(job, host)) for host in job.parts]

    def _stop(self, job: LiveJob) -> None:
        for host, part in job.parts.items():
            self.hosts[host].stop(part)

    def _is_due(self, changed: bool) -> bool:
        """Whether the policy is to be asked; one with `interval_s` is at multiples of it only, as in the clock."""
        now, every_s = self._now(), float(getattr(self.policy, "interval_s", 0.0))
        if not every_s:
            return changed or (self.wake_s is not None and now >= self.wake_s)
        before, self.round = self.round, int(now // every_s)
        return self.round > before

    def _now(self) -> float:
        return time.time() - self.origin

    def _recover(self, journal: Journal) -> None:
        entries = journal.entries()
        if not entries:
            self._begin_slices()
            self.origin = time.time()
            journal.write(what="begin", origin=self.origin)
            return
        self.origin = float(entries[0]["origin"])
        by_name = {job.name: job for job in self.jobs}
        for entry in entries[1:]:
            if entry["what"] == "cut":
                self.cuts.append(entry["cut"])
            elif entry["what"] == "cleared":
                self.cuts.remove(entry["cut"])
            job = by_name.get(entry.get("job", ""))
            if job is None:
                continue
            if entry["what"] == "start":
                job.attempt = entry["attempt"]
                job.placement = tuple((node, count) for node, count in entry["placement"])
                job.slots = tuple(entry.get("slots", ()))
                job.spots = tuple((node, number, start) for node, number, start in entry.get("spots", ()))
                job.since_s = entry["at"]
                job.start_s = entry["at"] if job.start_s is None else job.start_s
            elif entry["what"] in ("stop", "death", "end", "failed"):
                job.held_s += entry["at"] - job.since_s
                job.placement = EMPTY
                job.preemptions += entry["what"] == "stop"
                job.deaths += entry["what"] == "death"
                job.end_s = entry["at"] if entry["what"] == "end" else job.end_s
                job.failed |= entry["what"] == "failed"
        for job in self.jobs:
            if job.placement:
                self._adopt(job)

    def _adopt(self, job: LiveJob) -> None:
        """Find the process that an earlier scheduler started; where it is gone, `_look` books its end."""
        folder = self.folder / job.name
        job.parts = {host: self.hosts[host].find(folder, self._name(job, host)) for host in self._hosts(job)}

    def _look(self, journal: Journal) -> bool:
        """Book what ended or died; returns whether anything changed, arrivals included."""
        process.reap()
        now = self._now()
        changed = False
        for job in self.jobs:
            if job.submit_s <= now and job.index not in self.seen:
                self.seen.add(job.index)
                changed = True
            if not job.placement:
                continue
            running = [self.hosts[host].alive(part) for host, part in job.parts.items()]
            if all(running):
                continue
            statuses = self._statuses(job)
            if any(running) and all(there or status == 0 for there, status in zip(running, statuses, strict=True)):
                continue  # the others are not done
            self._book_end(journal, job, now)
            changed = True
        return changed

    def _book_end(self, journal: Journal, job: LiveJob, now: float) -> None:
        """A job ended or died by itself."""
        statuses = self._statuses(job)
        if None in statuses:  # a shell was killed, alone perhaps, or others run without a part that died
            self._stop(job)
        status = next((status for status in statuses if status != 0), 0)
        died = status != 0
        for_good = died and job.deaths >= RETRIES
        what = "failed" if for_good else "death" if died else "end"
        journal.write(what=what, job=job.name, at=now, status=status)
        job.held_s += now - job.since_s
        job.placement = EMPTY
        job.deaths += died
        job.failed = for_good
        job.end_s = None if died else now

    def _decide(self, journal: Journal) -> bool:
        """Ask the policy and do what it says; returns whether a job ended by itself meanwhile."""
        now = self._now()
        ended = False
        active = [job for job in self.jobs if job.index in self.seen and job.end_s is None and not job.failed]
        nodes = tuple(gpus * self.unit for gpus in self.nodes)
        snapshot = Snapshot(now, [self._view(job, now) for job in active], nodes, self.memory)
        decision = self.policy.decide(snapshot)
        self.memory, self.wake_s = decision.memory, decision.wake_s
        placements = kept_or_placed(snapshot, decision)
        for job in active:
            same = placements.get(job.index, EMPTY) == job.placement and decision.spots.get(job.index, ()) == job.spots
            if job.placement and not same:
                self._stop(job)
                stopped = self._now()
                if None not in self._statuses(job):
                    self._book_end(journal, job, stopped)  # before it was asked to stop: that leaves no status
                    ended = True
                    continue
                journal.write(what="stop", job=job.name, at=stopped)
                job.held_s += stopped - job.since_s
                job.placement = EMPTY
                job.preemptions += 1
        for job in active:
            after = placements.get(job.index, EMPTY)
            if after and not job.placement and job.end_s is None and not job.failed:
                job.spots = decision.spots.get(job.index, ())
                self._start(journal, job, after)
        return ended

    def _start(self, journal: Journal, job: LiveJob, placement: Placement) -> None:
        job.attempt += 1
        others = [other for other in self.jobs if other.placement]
        if job.part is None:
            gpus = tuple((node, count // self.unit) for node, count in placement)
            job.slots = free_slots(self.nodes, gpus, [other.slots for other in others])
        else:
            job.slots = slots_of_parts(self.nodes, job, others)
        names = self._cut(journal, job) if job.profile else dict[int, list[str]]()
        job.placement = placement
        job.since_s = self._now()
        job.start_s = job.since_s if job.start_s is None else job.start_s
        cells = [list(cell) for cell in placement]
        place = {"placement": cells, "slots": list(job.slots), "spots": [list(spot) for spot in job.spots]}
        journal.write(what="start", job=job.name, attempt=job.attempt, at=job.since_s, **place)
        job.parts = {}
        for rank, host in enumerate(hosts := self._hosts(job)):
            first = sum(self.nodes[:host])
            here = job.slots if len(self.hosts) == 1 else [
                slot - first for slot in job.slots if first <= slot < first + self.nodes[host]
            ]  # fmt: skip
            environment = {
                "WINDTUNNEL_GPUS": str(job.gpus),
                "WINDTUNNEL_ATTEMPT": str(job.attempt),
                "WINDTUNNEL_NODES": str(len(hosts)),
                "WINDTUNNEL_NODE": str(rank),
                "CUDA_VISIBLE_DEVICES": ",".join(
                    names.get(host) or self._names(here, 0 if len(self.hosts) == 1 else first)
                ),
            }
            if job.part is not None and not job.profile:
                environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{job.part.units * 100 / UNITS:g}"
            folder, name = self.folder / job.name, self._name(job, host)
            job.parts[host] = self.hosts[host].launch(folder, name, job.command, environment)

    def _cut(self, journal: Journal, job: LiveJob) -> dict[int, list[str]]:
        """The names of its slices, cut now, by host."""
        names: dict[int, list[str]] = {}
        assert job.part is not None
        for slot, (node, _, start) in zip(job.slots, job.spots, strict=True):
            host, first = (0, 0) if len(self.hosts) == 1 else (node, sum(self.nodes[:node]))
            gpu, size = slot - first, job.part.size
            for each in tuple(self.cuts):
                if each[:2] == [host, gpu] and each[2] < start + size and start < each[2] + each[3]:
                    self._clear(journal, each)
            others = mig.INSTANCE.findall(self.hosts[host].slices("instances", gpu))
            cut = [host, gpu, start, size, *(int(number) for number, _, _ in others)]
            journal.write(what="cut", cut=cut)  # before it is there: nobody else would know whose it is
            self.cuts.append(cut)
            try:
                names.setdefault(host, []).append(self.hosts[host].slices("cut", gpu, job.profile, start))
            except UserError:
                self._clear(journal, cut)  # or what others cut there later would be taken for it
                raise
        return names

    def _clear(self, journal: Journal, cut: list[int]) -> None:
        """Destroy a slice that was cut here."""
        host, *words = cut
        if host >= len(self.hosts):
            raise UserError("its node has no --host now")
        self.hosts[host].slices("clear", *words)
        journal.write(what="cleared", cut=cut)
        self.cuts.remove(cut)

    def _begin_slices(self) -> None:
        """Raises UserError where GPUs that are to be cut have slices, or MIG is off."""
        for node, count in enumerate(self.nodes if any(job.profile for job in self.jobs) else ()):
            host, first = (0, sum(self.nodes[:node])) if len(self.hosts) == 1 else (node, 0)
            for gpu in range(count):
                self.hosts[host].slices("begin", first + gpu)

    def _names(self, slots: Sequence[int], first: int) -> list[str]:
        return [self.devices[first + slot] if self.devices else str(slot) for slot in slots]

    def _view(self, job: LiveJob, now: float) -> JobView:
        held_s = job.held_s + (now - job.since_s if job.placement else 0.0)
        done_s = max(held_s - job.attempt * self.restart_s, 0.0)  # each start takes that long before there is progress
        left_s = None if job.duration_s is None else max(job.duration_s - self.restart_s - done_s, 0.0)
        return JobView(
            index=job.index,
            submit_s=job.submit_s,
            gpus=job.units(self.unit),
            part=job.part,
            spots=job.spots,
            placement=job.placement,
            executed_s=held_s,
            gpu_seconds=held_s * job.units(self.unit),
            restarts=max(job.attempt - 1, 0),
            remaining_s=left_s,
        )


def free_slots(nodes: Sequence[int], placement: Placement, others: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The lowest slots of a placement's nodes that none of `others` holds; node 0 has slots 0, 1, ..., then node 1."""
    used = {slot for slots in others for slot in slots}
    result: list[int] = []
    for node, count in placement:
        first = sum(nodes[:node])
        result += [slot for slot in range(first, first + nodes[node]) if slot not in used][:count]
    return tuple(result)


def slots_of_parts(nodes: Sequence[int], job: LiveJob, others: Sequence[LiveJob]) -> tuple[int, ...]:
    """The slot of each part: that of the jobs that it shares a GPU with, else a free one."""
    slots = {spot[:2]: slot for other in others for spot, slot in zip(other.spots, other.slots, strict=False)}
    used = [other.slots for other in others]
    for node, number, _ in job.spots:
        if (node, number) not in slots:
            slots[node, number] = free_slots(nodes, ((node, 1),), [*used, tuple(slots.values())])[0]
    return tuple(slots[spot[:2]] for spot in job.spots)
