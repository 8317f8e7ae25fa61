"""The whole job, replayed as far as its real rank has come: when its virtual peers arrive at each communication.

A rank is a sequence of events, one after the other on its host, each after some seconds of computing:

    begin     it arrives at a communication: `arrivals` says when that is done
    wait      it goes on when that is done, or at once if it is already

Ranks of one class run one program; a *cohort* is a class, or the part of it that no message joins to another part, and
goes through its program in step, one vector of clocks for all its ranks. The cohort of the real rank moves when the
real rank does, its clock set by the real rank's own arrivals; the others move on until they wait for something that
nobody has yet begun. With no real rank in it the same code replays a job of virtual ranks only.

Pure: no wall clock in it, every time is given. The same stimuli give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np

from windtunnel.errors import UserError
from windtunnel.real.emulate.peers.arrivals import (
    Meeting,
    Ranks,
    Roster,
    Span,
    Times,
    box_of,
    idle,
    pairs,
    places,
    roster,
)
from windtunnel.real.emulate.peers.cohort import Channel, Cohort, OtherReal, Underway, Watched
from windtunnel.real.emulate.peers.host_program import Event, HostProgram
from windtunnel.studies.programs.communication import Communication

SecondsOf = Callable[[Communication], float]
MOST_COHORTS = 256  # more are replayed more slowly than a script runs


class Replay:
    """The job from one instant on. Methods take and give seconds of one clock."""

    def __init__(
        self,
        programs: Sequence[tuple[HostProgram, Sequence[int]]],
        world_size: int,
        seconds_of: SecondsOf,
        *,
        begin_at: float = 0.0,
        real: int | None = None,
        slow: Mapping[int, float] | None = None,
        draw: Callable[[int, int], Ranks] | None = None,
        messages_meet: bool = True,
        processor_s_of: SecondsOf | None = None,
        queued_s_of: SecondsOf | None = None,
        others: OtherReal | None = None,
    ) -> None:
        """Programs with the ranks that run each; every rank must have one.

        Args:
            programs: Class by class.
            world_size: Ranks of the job.
            seconds_of: How long a communication takes once all are there.
            begin_at: When every rank begins its step.
            real: The rank whose arrivals are given; None = all are virtual.
            slow: How many times longer a rank computes.
            draw: (ranks, samples) -> which sample each runs in a step; None = the first.
            messages_meet: False where the programs of the ranks that messages go to are not known: the other side
                then comes when this one does.
            processor_s_of: Seconds of a rank's own processor that a communication needs, where there is one for both:
                what the rank computes meanwhile takes so much longer. The rest of its time is waiting, which
                computing hides.
            queued_s_of: How long a communication takes from when the one before it in its group is done, where it waits
                for that; `seconds_of` by default.
            others: Other real ranks. They, and the real one, then are cohorts of their own: who is like them waits for
                whom they wait for.
        """
        self.others = others
        alone = {real, *others.ranks} - {None} if others is not None else set()
        self.queued_s_of = queued_s_of or seconds_of
        self.world_size, self.seconds_of, self.real = world_size, seconds_of, real
        self.messages_meet, self.processor_s_of = messages_meet, processor_s_of
        self.draw = draw or (lambda ranks, samples: np.zeros(ranks, dtype=np.int64))
        self._streams: dict[Channel, Times] = {}
        self._meetings: dict[tuple[Channel, int], tuple[Meeting, int]] = {}  # and the step that they are of
        self._left = 0
        self._channels: dict[tuple[int, str], Channel] = {}
        self.cohorts: list[Cohort] = []
        factors = np.ones(world_size)
        for rank, factor in (slow or {}).items():
            factors[rank] = factor
        for number, (program, ranks) in enumerate(programs):
            of_class = np.asarray(sorted(ranks), dtype=np.int64)
            parts = _parts(program, of_class, world_size) if messages_meet else [of_class]
            for part in [some for alike in parts for some in _apart(alike, alone)]:
                clock = np.full(len(part), begin_at)
                is_real = len(part) == 1 and int(part[0]) in alone and int(part[0]) != real
                self.cohorts.append(Cohort(number, program, part, clock, factors[part], real=is_real))
        if len(self.cohorts) > MOST_COHORTS:
            raise UserError(
                f"messages join {len(self.cohorts):,} ranks one by one, more than {MOST_COHORTS} that can be replayed "
                "beside a running script; send them in a group of its own, as a DeviceMesh does"
            )
        for cohort in self.cohorts:
            cohort.sample = self.draw(len(cohort.ranks), len(cohort.program.seconds))
        self._own = next((cohort for cohort in self.cohorts if real is not None and real in cohort.ranks), None)
        self._place = 0 if self._own is None or real is None else int(np.searchsorted(self._own.ranks, real))

    def watch(self, ranks: Sequence[int]) -> dict[int, list[Watched]]:
        """Keep what these ranks do from here on; the lists grow as it happens."""
        watch: dict[int, list[Watched]] = {}
        for cohort in self.cohorts:
            of_cohort = [rank for rank in ranks if rank in cohort.ranks]
            lists = {rank: watch.setdefault(rank, []) for rank in of_cohort}
            cohort.watchers = {int(np.searchsorted(cohort.ranks, rank)): watcher for rank, watcher in lists.items()}
        return watch

    def reprice(self, programs: Sequence[tuple[HostProgram, Sequence[int]]]) -> None:
        """The same programs with other seconds, from here on."""
        for cohort in self.cohorts:
            program = programs[cohort.number][0]
            assert program.events == cohort.program.events
            cohort.program = program
            cohort.sample = self.draw(len(cohort.ranks), len(program.seconds))

    # ------------------------------------------------------------------------------------------- the real rank moves

    def expected(self) -> Communication | None:
        """The real rank's next communication by its program; None = the step ends first."""
        assert self._own is not None
        events = self._own.program.events
        at = next((at for at in range(self._own.at, len(events)) if not events[at].waits), None)
        return None if at is None else self._own.program.calls[events[at].call]

    def begin(self, call: Communication, now: float) -> tuple[int, int]:
        """The real rank arrives at its next communication. What to ask `span` for."""
        own = self._own
        assert own is not None
        while (event := own.event) is not None and event.waits:
            self._move_own(own)
        assert event is not None, "the program has no further communication"
        self._compute(own)
        own.clock[self._place] = now
        self._begin(own, event, call)
        key = (own.step, event.call)
        own.at += 1
        return key

    def end_step(self, now: float) -> None:
        """The real rank ends its step."""
        own = self._own
        assert own is not None
        while own.event is not None:
            assert own.event.waits, "the program has communications left"
            self._move_own(own)
        self._end(own)
        own.clock[self._place] = now

    def span(self, key: tuple[int, int]) -> Span | None:
        """Of a communication of the real rank; None while that hangs on what the real rank does next."""
        own = self._own
        assert own is not None
        self.settle()
        meeting, groups = own.meetings[key]
        group = groups[self._place]
        span = Span(float(meeting.start[group]), float(meeting.finish[group]))
        return None if np.isnan(span.finish) else span

    def _move_own(self, own: Cohort) -> None:
        """Past a wait that the real rank is past: peers that miss a member still go on no earlier than it."""
        self.settle()
        if not self._step(own):
            self._compute(own)
            own.at += 1

    # --------------------------------------------------------------------------------------------- everybody else

    def settle(self) -> None:
        """Everybody else moves on until they wait for what nobody has begun, one step ahead at most."""
        others = [other for other in self.cohorts if other is not self._own]
        ahead = self._own.step + 1 if self._own is not None else None
        moved = True
        while moved:
            moved = False
            for cohort in others:
                while (ahead is None or cohort.step <= ahead) and self._step(cohort):
                    moved = True

    def run(self, steps: int) -> None:
        """All virtual: so many steps.

        Raises:
            UserError: ranks wait for each other for ever; names two of them and what they wait for.
        """
        assert self._own is None
        moved = True
        while moved and any(cohort.step < steps for cohort in self.cohorts):
            moved = False
            for cohort in self.cohorts:
                while cohort.step < steps and self._step(cohort):
                    moved = True
        stuck = [cohort for cohort in self.cohorts if cohort.step < steps]
        if stuck:
            raise UserError("the replay of the job hangs: " + "; ".join(map(_waiting_for, stuck[:2])))

    def _step(self, cohort: Cohort) -> bool:
        """One event, or the step's end. False when it waits for somebody."""
        event = cohort.event
        if cohort.real and not self._has_come(cohort, event):
            return False
        if event is None:
            self._end(cohort)
            return True
        if event.waits and cohort.real:
            self._compute(cohort)  # what it waited for is in when it comes to the next
        elif event.waits:
            entry = cohort.meetings.get((cohort.step - event.steps_ago, event.call))
            if entry is not None:
                meeting, groups = entry
                finish = meeting.finish[groups]
                if np.isnan(finish).any():
                    return False
                self._compute(cohort)
                finish = np.maximum(finish, cohort.clock + self._left_of(cohort, meeting))
                for place, watcher in cohort.watchers.items():
                    if finish[place] > cohort.clock[place]:
                        since, call = float(cohort.clock[place]), cohort.program.calls[event.call]
                        watcher.append(Watched("wait", cohort.step, since, float(finish[place]), call))
                np.maximum(cohort.clock, finish, out=cohort.clock)
            else:
                self._compute(cohort)  # of a step before the first
        else:
            self._compute(cohort)
            if cohort.real:
                self._real_comes(cohort, cohort.program.calls[event.call])
            self._begin(cohort, event, cohort.program.calls[event.call])
        cohort.at += 1
        return True

    def _has_come(self, cohort: Cohort, event: Event | None) -> bool:
        """Whether a real rank is known to be past its next event."""
        assert self.others is not None
        rank = int(cohort.ranks[0])
        if event is None:
            return self.others.has_ended_step(rank, cohort.step)
        if event.waits:
            return True
        return self.others.arrival_s(rank, cohort.step, cohort.begins, cohort.program.calls[event.call]) is not None

    def _real_comes(self, cohort: Cohort, call: Communication) -> None:
        assert self.others is not None
        at = self.others.arrival_s(int(cohort.ranks[0]), cohort.step, cohort.begins, call)
        cohort.begins += 1
        if at is not None and not np.isnan(at):
            cohort.clock[0] = at

    def _compute(self, cohort: Cohort) -> None:
        before = {place: float(cohort.clock[place]) for place in cohort.watchers}
        cohort.clock += cohort.program.seconds[cohort.sample, cohort.at] * cohort.factor

        for underway in cohort.underway:
            share_processor(underway, cohort.clock)
        for place, watcher in cohort.watchers.items():
            watcher.append(Watched("compute", cohort.step, before[place], float(cohort.clock[place])))

    def _left_of(self, cohort: Cohort, meeting: Meeting) -> Times | float:
        """What a communication still needs of the processor when its host waits for it: it goes on alone."""
        own = next((underway for underway in cohort.underway if underway.meeting is meeting), None)
        if own is None:
            return 0.0
        cohort.underway.remove(own)
        return own.left

    def _begin(self, cohort: Cohort, event: Event, call: Communication) -> None:
        channel, of, groups = self._channel(cohort, call)
        # The ends of a message count for themselves; a group's collectives come one after another, whatever their kind.
        side = (channel, call.kind if call.is_message else "")
        number = cohort.uses[side] = cohort.uses.get(side, -1) + 1
        meeting, _ = self._meetings.setdefault((channel, number), (Meeting(of), cohort.step))
        free_at = self._streams.setdefault(channel, idle(of))
        meeting.arrive(groups, cohort.clock, self.seconds_of(call), free_at, self.queued_s_of(call))
        cohort.meetings[cohort.step, event.call] = (meeting, groups)
        if self.processor_s_of is not None and (seconds := self.processor_s_of(call)) > 0.0:
            nothing = np.zeros(len(cohort.ranks))
            cohort.underway.append(Underway(meeting, groups, nothing + seconds, nothing - np.inf))
        for place, watcher in cohort.watchers.items():
            at, group = float(cohort.clock[place]), int(groups[place])
            watcher.append(Watched("communication", cohort.step, at, np.nan, call, meeting, group))

    def _end(self, cohort: Cohort) -> None:
        self._compute(cohort)
        cohort.step_ends.append(cohort.clock.copy())
        cohort.underway = [underway for underway in cohort.underway if (underway.left > 0.0).any()]
        del cohort.step_ends[:-64]
        for key in [key for key in cohort.meetings if key[0] < cohort.step]:
            del cohort.meetings[key]
        cohort.step += 1
        self._forget()
        cohort.at = cohort.begins = 0
        cohort.sample = self.draw(len(cohort.ranks), len(cohort.program.seconds))

    def _forget(self) -> None:
        """Meetings of steps that everybody has left."""
        left = min(cohort.step for cohort in self.cohorts)
        if left > self._left:
            self._left = left
            self._meetings = {key: meeting for key, meeting in self._meetings.items() if meeting[1] >= left}

    def _channel(self, cohort: Cohort, call: Communication) -> tuple[Channel, Roster, Ranks]:
        """What a call goes through, the same for all its members; the roster; and the group of each rank."""
        channel = self._group_channel(cohort, call)
        groups = roster(call.members, self.world_size)
        if not call.is_message:
            return channel, groups, groups.group_of[cohort.ranks]
        if not self.messages_meet:
            return (*channel, call.kind, call.peer, call.tag), _alone(self.world_size), cohort.ranks
        size = len(call.members)
        ahead = (call.members.index(call.peer) - call.position) % size
        forward = ahead if call.kind == "send" else -ahead % size
        source = cohort.ranks if call.kind == "send" else groups.neighbour(cohort.ranks, ahead)
        return (*channel, forward, call.tag), pairs(self.world_size), source

    def _group_channel(self, cohort: Cohort, call: Communication) -> Channel:
        """The channel of groups like this one: their shape, and which of those of this shape, as classes name them."""
        key = (cohort.number, call.group)
        channel = self._channels.get(key)
        if channel is None:
            shape = box_of(call.members) or call.members
            alike = sorted(
                {other.group for other in cohort.program.calls if (box_of(other.members) or other.members) == shape},
                key=lambda group: (len(group), group),  # torch counts them up
            )
            place = alike.index(call.group) if call.group in alike else call.group
            channel = self._channels[key] = (shape, place)
        return channel


def share_processor(underway: Underway, clock: Times) -> None:
    """Half of the time since it started is its own: computing that took `clock` alone takes so much longer."""
    since = np.maximum(underway.meeting.start[underway.groups], underway.since)
    overlap = np.nan_to_num(np.clip(clock - since, 0.0, underway.left), nan=0.0)
    underway.left = underway.left - overlap
    clock += overlap
    underway.since = clock.copy()


def _parts(program: HostProgram, ranks: Ranks, world_size: int) -> list[Ranks]:
    """A class, split so that its ranks are in step: by their places in the groups that carry its messages."""
    keys = np.zeros(len(ranks), dtype=np.int64)
    for members in {call.members for call in program.calls if call.is_message}:
        groups = roster(members, world_size)
        keys = keys * (world_size + 1) + places(groups)[1][ranks]
        keys = np.unique(keys, return_inverse=True)[1].reshape(-1)
    return [ranks[keys == key] for key in np.unique(keys)]


def _apart(ranks: Ranks, alone: Collection[int | None]) -> list[Ranks]:
    """The real ones each by itself, then the rest."""
    real = [int(rank) for rank in ranks if int(rank) in alone]
    rest = np.array([rank for rank in ranks.tolist() if rank not in alone], dtype=np.int64) if real else ranks
    return [*(np.array([rank], dtype=np.int64) for rank in real), *([rest] if len(rest) else [])]


@lru_cache(maxsize=64)
def _alone(world_size: int) -> Roster:
    ranks = np.arange(world_size, dtype=np.int64)
    return Roster(ranks, np.ones(world_size, dtype=np.int64))


def _waiting_for(cohort: Cohort) -> str:
    event = cohort.event
    assert event is not None
    call = cohort.program.calls[event.call]
    peer = f" from rank {call.peer}" if call.kind == "recv" else f" to rank {call.peer}" if call.kind == "send" else ""
    return f"rank {cohort.ranks[0]} waits for {call.kind}{peer} of group {call.group} (call {event.call} of its step)"
