"""Who plays which rank of a job whose processes die: a pure state machine, stimulus in, actions out.

A job has `size` ranks and tries to keep `standbys` warm processes beside them. A view says which process plays which
rank. When processes die, warm standbys take their very ranks, all in one new view; where there are too few, the view
waits for processes that are started for it. A planned change is a view that is prepared while the old one works.

    Start(name)       start a process
    Publish(view)     everybody in it builds its group; `planned`: beside the old one
    Finish()          somebody has done all steps; the rest may end
    Abandon(reason)   processes die, and no step has been done for long
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

GIVE_UP_S = 600.0  # from the first of deaths between which no step is done


@dataclass(frozen=True, slots=True)
class View:
    """A view: members by rank."""

    generation: int
    members: tuple[str, ...]
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Make a view known."""

    view: View


@dataclass(frozen=True, slots=True)
class Finish:
    """All steps are done."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """The job cannot go on."""

    reason: str


Action = Start | Publish | Finish | Abandon


@dataclass
class Membership:
    """State: members by rank (None: vacant), processes that are warm or still starting."""

    size: int
    standbys: int
    members: list[str | None] = field(default_factory=list)
    warm: list[str] = field(default_factory=list)
    starting: list[str] = field(default_factory=list)
    generation: int = -1
    started: int = 0
    give_up_s: float = GIVE_UP_S
    hosts: int = 0  # ranks that follow each other are put on different ones, where they can
    host_of: dict[str, int] = field(default_factory=dict)
    began: int = 0  # the first generation of the job, or of the job that was started anew
    struck_s: float | None = None  # when the first process died since a step was done
    preparing: tuple[str, ...] | None = None  # a planned view that is under way
    finished: bool = False

    def start(self) -> list[Action]:
        """The processes that the job begins with."""
        self.members = [None] * self.size
        return self._replenish()

    def start_anew(self, names: Iterable[str], at_s: float) -> list[Action]:
        """These are gone and with them all ranks: others begin the job from its first step. Unused standbys stay."""
        if over := self.out_of_patience(at_s):
            return over
        self._forget(names)
        self.members, self.preparing, self.began = [None] * self.size, None, self.generation + 1
        return [*self._fill(), *self._replenish()]

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            for pool in (self.warm, self.starting):
                if name in pool:
                    pool.remove(name)

    def is_warm(self, name: str) -> list[Action]:
        """A process is ready to play any rank."""
        if name not in self.starting:
            return []
        self.starting.remove(name)
        self.warm.append(name)
        return self._fill()

    def out_of_patience(self, at_s: float) -> list[Action]:
        """Something went wrong at this moment: is it to go on?"""
        if self.struck_s is None:
            self.struck_s = at_s
        if at_s - self.struck_s <= self.give_up_s:
            return []
        return [Abandon(f"for {at_s - self.struck_s:.0f} s processes died and no step was done: see --give-up")]

    def died(self, names: Iterable[str], at_s: float = 0.0) -> list[Action]:
        """Processes are gone that were still needed; all that are known to be gone at this moment."""
        if over := self.out_of_patience(at_s):
            return over
        struck, names = False, list(names)
        self._forget(names)
        for name in names:
            if name in self.members:
                self.members[self.members.index(name)] = None
                struck = True
            if self.preparing and name in self.preparing:
                struck = True
        if self.finished:
            return []
        if struck and self.preparing:  # the change is off: whoever was to join is warm still
            joining = [name for name in self.preparing if name not in self.members and name not in names]
            self.warm = [*joining, *self.warm]
            self.preparing = None
            if None not in self.members:  # the joiner alone died; tell all to forget the change
                return [*self._publish(), *self._replenish()]
        return [*self._fill(), *self._replenish()]

    def broken(self, at_s: float = 0.0) -> list[Action]:
        """The group of the members came apart and none of them is gone: the same ones meet again."""
        if self.finished or None in self.members:
            return []
        if self.preparing:  # the change is off, as where somebody dies
            self.warm = [*(name for name in self.preparing if name not in self.members), *self.warm]
            self.preparing = None
        if self.out_of_patience(at_s):
            return [Abandon("the ranks' group came apart again and again: is --timeout shorter than a step?")]
        return self._publish()

    def progressed(self) -> list[Action]:
        """A step was done in the newest view."""
        self.struck_s = None
        return []

    def leave(self, rank: int) -> list[Action]:
        """A planned change: the process of `rank` is to be replaced by a warm standby; nothing where there is none."""
        if self.preparing or self.finished or None in self.members or not self.warm:
            return []
        members = [name for name in self.members if name is not None]
        members[rank] = self.warm.pop(0)
        self.generation += 1
        self.preparing = tuple(members)
        return [Publish(View(self.generation, self.preparing, planned=True)), *self._replenish()]

    def on_swap(self) -> list[Action]:
        """The planned view works."""
        if self.preparing:
            self.members = list(self.preparing)
            self.preparing = None
        return []

    def on_process_left(self, name: str) -> list[Action]:
        """A process has ended by itself because a planned change replaces it: so the planned view works."""
        if self.preparing and name in self.members and name not in self.preparing:
            return self.on_swap()
        return []

    def on_member_done(self) -> list[Action]:
        """A member has done all steps, and knows that all others have."""
        if self.finished:
            return []
        self.finished = True
        self.generation += 1
        return [Publish(View(self.generation, ())), Finish()]

    def _fill(self) -> list[Action]:
        vacant = [rank for rank, name in enumerate(self.members) if name is None]
        if not vacant or len(self.warm) < len(vacant) or (len(vacant) == self.size and self._hosts_to_come()):
            return []
        for rank in vacant:
            wished = (name for name in self.warm if self.hosts and self.host_of.get(name) == rank % self.hosts)
            name = next(wished, self.warm[0])
            self.warm.remove(name)
            self.members[rank] = name
        return self._publish()

    def _hosts_to_come(self) -> bool:
        """Whether processes still start on a host that has fewer warm ones than ranks: without it all lie on one."""
        for host in range(self.hosts):
            short = [self.host_of.get(name) for name in self.warm].count(host) < len(range(host, self.size, self.hosts))
            if short and any(self.host_of.get(name) == host for name in self.starting):
                return True
        return False

    def _publish(self) -> list[Action]:
        self.generation += 1
        return [Publish(View(self.generation, tuple(name for name in self.members if name is not None)))]

    def _replenish(self) -> list[Action]:
        vacant = sum(name is None for name in self.members)
        lacking = vacant + self.standbys - len(self.warm) - len(self.starting)
        actions: list[Action] = []
        for _ in range(max(0, lacking)):
            name = f"p{self.started}"
            self.started += 1
            self.starting.append(name)
            actions.append(Start(name))
        return actions
