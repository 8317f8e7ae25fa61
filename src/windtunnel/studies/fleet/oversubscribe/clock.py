"""Tasks on machines, node agents every `DT_S`: requested-only, over-subscribed, or re-scheduled by quality of service.

In each step: uses wander, agents act on what they measure, tasks progress, newcomers are packed on what is requested
(first in order that fits, fullest machine first), and who has waited long looks for a place as a speculative task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from windtunnel.studies.fleet.oversubscribe.machines import (
    Beside,
    Floats,
    p95_of,
    service_mean,
    service_slowdown,
    wander,
)
from windtunnel.studies.fleet.policies.beyond.oversubscribe import (
    Rules,
    Running,
    admits,
    candidates,
    least_loss,
    throttle,
    youngest,
)

CHECKPOINT_S = 600.0  # of work
MOVE_S = 30.0  # without progress after a move
BINS = 400  # of slow-downs, from 1 to 3
DT_S = 30.0  # of a step


@dataclass
class Task:
    """One task. `request`: share of a machine; `mean`, `memory`, `link`: what it really uses."""

    index: int
    submit_s: float
    request: float
    work_s: float
    mean: float = 0.0
    memory: float = 0.0
    link: float = 0.0
    home: int = 0
    machine: int = -1
    speculative: bool = False
    began_s: float = 0.0
    pause_s: float = 0.0
    done_s: float = 0.0
    start_s: float | None = None
    end_s: float | None = None
    retries: int = 0
    moves: int = 0
    lost_s: float = 0.0
    held_s: float = 0.0


@dataclass
class Tally:
    """What a run says of its machines, up to the last submission."""

    steps: int = 0
    used: float = 0.0
    requested: float = 0.0
    evicted: int = 0
    moved: int = 0
    killed: int = 0  # for memory
    lost_s: float = 0.0  # work, times the request
    slow: Floats = field(default_factory=lambda: np.zeros(BINS))

    def p95(self) -> float:
        """Of the services' latency, alone = ln 20."""
        middle = 1.0 + (np.arange(BINS) + 0.5) * 2.0 / BINS
        return p95_of(middle, self.slow) if self.slow.any() else p95_of(np.ones(1), np.ones(1))


class Machines:
    """Runs tasks on `count` equal machines."""

    def __init__(self, tasks: Sequence[Task], count: int, rules: Rules, beside: Beside, *, seed: int = 0) -> None:
        self.tasks, self.count, self.rules, self.beside = list(tasks), count, rules, beside
        # services wander alike whatever the policy does beside them
        self.draw_service, self.draw_task = (np.random.default_rng([seed, part]) for part in (0, 1))
        generator = np.random.default_rng([seed, 2])
        self.phase = generator.uniform(-0.5, 0.5, count)
        for task in self.tasks:
            share = float(np.clip(generator.normal(beside.task_use, beside.task_use_spread), 0.05, 1.0))
            task.mean = task.request * share
            task.memory = task.request * float(generator.uniform(*beside.task_memory))
            task.link = task.request * float(generator.uniform(*beside.task_link))
            task.home = int(generator.integers(count))
        self.use = np.array([task.mean for task in self.tasks])
        self.means = self.use.copy()
        self.requested = np.full(count, beside.service_request)
        self.memory = np.full(count, beside.service_memory)
        self.link = np.zeros(count)
        self.on: list[list[Task]] = [[] for _ in range(count)]
        self.running: dict[int, Task] = {}
        self.waiting: list[Task] = []
        self.late = np.zeros(count, np.int64)  # windows in a row that the agent saw trouble
        self.tally = Tally()
        self.tasks_by = {task.index: task for task in self.tasks}
        self.limit = rules.slow

    def run(self) -> Tally:
        """Until all tasks that fit a machine beside its service are done."""
        order = sorted(self.tasks, key=lambda task: (task.submit_s, task.index))
        coming = [task for task in order if task.request + self.beside.service_request <= 1.0 + 1e-9]
        if not coming:
            return self.tally
        last_s = coming[-1].submit_s
        now, at, unfinished = coming[0].submit_s, 0, len(coming)
        service = service_mean(now, self.phase, self.beside)
        seen = [service.copy()]
        lag = max(int(self.rules.staleness_s / DT_S), 0)
        while unfinished:
            service = wander(service, service_mean(now, self.phase, self.beside), DT_S, self.beside, self.draw_service)
            self._wander()
            tasks = self._tasks_use()
            tasks = self._agents(now, service, tasks)
            unfinished -= self._progress(now, service, tasks)
            if now <= last_s:
                self._count(service, tasks)
            now += DT_S
            while at < len(coming) and coming[at].submit_s <= now:
                self.waiting.append(coming[at])
                at += 1
            if at < len(coming) and not self.running and not self.waiting:
                now = max(now, coming[at].submit_s)
            self._pack(now)
            used = service + self._tasks_use()
            seen.append(used)
            del seen[: -lag - 1]
            if self.rules.speculate and self.waiting:
                self._speculate(now, seen[0], used)
        return self.tally

    def _wander(self) -> None:
        if self.running:
            rows = np.fromiter(self.running, np.int64, len(self.running))
            self.use[rows] = wander(self.use[rows], self.means[rows], DT_S, self.beside, self.draw_task)

    def _tasks_use(self) -> Floats:
        total = np.zeros(self.count)
        for index, task in self.running.items():
            total[task.machine] += self.use[index]
        return total

    def _agents(self, now: float, service: Floats, tasks: Floats) -> Floats:
        """Each node's agent: memory, then throttling, then eviction."""
        if not self.rules.speculate:
            return tasks
        for machine in np.flatnonzero(self.memory > 1.0).tolist():
            while self.memory[machine] > 1.0 and (guests := self._guests(machine, now)):
                self._evict(self.tasks_by[youngest(guests).task], now)
                self.tally.killed += 1
        tasks = self._tasks_use()
        used = tasks + service
        slow = service_slowdown(tasks, service, self.beside)
        trouble = (used > self.rules.high) | (slow > self._target())
        self.late = np.where(trouble, self.late + 1, 0)
        for machine in np.flatnonzero(trouble).tolist():
            guests = self._guests(machine, now)
            if not guests:
                continue
            if self.late[machine] < self.rules.windows:
                over = max(
                    float(used[machine]) - self.rules.low,
                    float(tasks[machine])
                    - self.rules.margin * (self._target() - 1.0) / max(self.beside.contention, 1e-12),
                )
                factor = throttle(over, sum(guest.use for guest in guests))
                for guest in guests:
                    self.use[guest.task] *= factor
            else:
                self._relieve(machine, float(service[machine]), guests, now, used)
        return self._tasks_use()

    def _target(self) -> float:
        """The slow-down that the service is promised: what requested tasks may cause, and the margin on top."""
        beside = self.beside
        requested = (1.0 - beside.service_request) * beside.task_use
        return (1.0 + beside.contention * requested) * self.limit

    def _relieve(self, machine: int, service: float, guests: list[Running], now: float, used: Floats) -> None:
        while guests:
            tasks = sum(float(self.use[task.index]) for task in self.on[machine])
            slow = float(service_slowdown(np.array([tasks]), np.array([service]), self.beside)[0])
            if tasks + service <= self.rules.low and slow <= self._target():
                return
            chosen = least_loss(guests, self.rules) if self.rules.reschedule else youngest(guests)
            guests = [guest for guest in guests if guest.task != chosen.task]
            task = self.tasks_by[chosen.task]
            if not (self.rules.reschedule and self._move(task, now, used)):
                self._evict(task, now)

    def _guests(self, machine: int, now: float) -> list[Running]:
        return [
            Running(
                task.index,
                task.began_s,
                float(self.use[task.index]),
                task.done_s % CHECKPOINT_S,
                task.retries,
                machine == task.home,
            )
            for task in self.on[machine]
            if task.speculative
        ]

    def _progress(self, now: float, service: Floats, tasks: Floats) -> int:
        ended = 0
        crowd = np.minimum(np.maximum(1.0 - service, 0.0) / np.maximum(tasks, 1e-12), 1.0)
        for task in list(self.running.values()):
            at = task.machine
            use = float(self.use[task.index])
            others = float(tasks[at] + service[at]) - use
            throttle = min(use / task.mean, 1.0) if task.speculative else 1.0  # a throttled task is slower by as much
            speed = throttle * float(crowd[at]) / (1.0 + self.beside.contention * max(others, 0.0))
            works = max(DT_S - task.pause_s, 0.0)
            task.pause_s = max(task.pause_s - DT_S, 0.0)
            gained = speed * works
            if task.done_s + gained >= task.work_s:
                task.end_s = now + DT_S - works + (task.work_s - task.done_s) / max(speed, 1e-12)
                task.held_s += task.end_s - now
                task.done_s = task.work_s
                self._leave(task, task.end_s)
                ended += 1
            else:
                task.done_s += gained
                task.held_s += DT_S
        return ended

    def _count(self, service: Floats, tasks: Floats) -> None:
        slow = service_slowdown(tasks, service, self.beside)
        rows = np.minimum(((slow - 1.0) * BINS / 2.0).astype(np.int64), BINS - 1)
        np.add.at(self.tally.slow, rows, service)
        self.tally.steps += 1
        self.tally.used += float(np.minimum(tasks + service, 1.0).mean())
        self.tally.requested += float(self.requested.mean())

    def _pack(self, now: float) -> None:
        if not self.waiting:
            return
        room = 1.0 - float(self.requested.min())
        waiting = []
        for task in self.waiting:
            if task.request <= room + 1e-9:
                fits = np.flatnonzero(self.requested + task.request <= 1.0 + 1e-9)
                if len(fits):
                    machine = int(fits[self.requested[fits].argmax()])
                    self._begin(task, machine, now, speculative=False)
                    room = 1.0 - float(self.requested.min())
                    continue
            waiting.append(task)
        self.waiting = waiting

    def _speculate(self, now: float, stale: Floats, used: Floats) -> None:
        waiting = []
        room = float((self.rules.theta - np.minimum(stale, used)).max())
        seen = stale.tolist()
        for task in self.waiting:
            capped = self.rules.reschedule and task.retries >= self.rules.retries
            if task.mean < room and not capped and now - task.submit_s >= self.rules.tau_s:
                for machine in candidates(seen, self.memory.tolist(), task.mean, task.memory, self.rules, task.home):
                    need = (task.mean, task.memory, task.link)
                    here = (float(used[machine]), float(self.memory[machine]), float(self.link[machine]))
                    if admits(*here, need, self.rules) and self._harmless(machine, task):
                        self._begin(task, machine, now, speculative=True)
                        used[machine] += task.mean
                        seen[machine] += task.mean
                        break
                else:
                    waiting.append(task)
                continue
            waiting.append(task)
        self.waiting = waiting

    def _harmless(self, machine: int, task: Task) -> bool:
        """Whether the service beside would stay within its target."""
        tasks = sum(float(self.means[other.index]) for other in self.on[machine]) + task.mean
        return 1.0 + self.beside.contention * tasks <= self._target()

    def _begin(self, task: Task, machine: int, now: float, *, speculative: bool) -> None:
        task.machine, task.speculative, task.began_s = machine, speculative, now
        if task.start_s is None:
            task.start_s = now
        self.use[task.index] = task.mean
        self.on[machine].append(task)
        self.running[task.index] = task
        if not speculative:
            self.requested[machine] += task.request
        self.memory[machine] += task.memory
        self.link[machine] += task.link

    def _leave(self, task: Task, now: float) -> None:
        machine = task.machine
        self.on[machine].remove(task)
        del self.running[task.index]
        if not task.speculative:
            self.requested[machine] -= task.request
        self.memory[machine] -= task.memory
        self.link[machine] -= task.link
        task.machine = -1

    def _evict(self, task: Task, now: float) -> None:
        self._leave(task, now)
        saved_s = task.done_s // CHECKPOINT_S * CHECKPOINT_S
        task.lost_s += task.done_s - saved_s
        self.tally.lost_s += (task.done_s - saved_s) * task.request
        task.done_s = saved_s
        task.retries += 1
        self.tally.evicted += 1
        self.waiting.append(task)

    def _move(self, task: Task, now: float, used: Floats) -> bool:
        """To another machine that says yes, with its work; returns whether there is one."""
        machines = candidates(used.tolist(), self.memory.tolist(), task.mean, task.memory, self.rules, task.home)
        for machine in machines:
            here = (float(used[machine]), float(self.memory[machine]), float(self.link[machine]))
            fits = admits(*here, (task.mean, task.memory, task.link), self.rules)
            if machine != task.machine and fits and self._harmless(machine, task):
                self._leave(task, now)
                self._begin(task, machine, now, speculative=True)
                task.pause_s = MOVE_S
                task.moves += 1
                self.tally.moved += 1
                used[machine] += task.mean
                return True
        return False
