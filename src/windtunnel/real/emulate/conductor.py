"""When each communication of the real rank is done: the whole job replayed around it, corrected by what it measures.

    first steps     nothing is known of the peers: they come when the real rank comes; its marks are kept
    same step again peers run the program that was seen, each part taking what it took the real rank (typical of the
                    steps so far, or drawn from them); ranks of other classes run theirs
    every so often  the program is priced again with all steps measured so far; when no arrival of a step of the job
                    moves by more than 0.1 % of the step, the plan holds, and is corrected ever more rarely

A step that is not the one known (evaluation, logging every tenth step) has its peers come when the real rank comes, and
the replay begins anew after it; how many communications that were is told.

Pure: every method is given the time. `emulate.script_clock` joins it to a running script.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windtunnel.real.emulate.observe import NO_CPU, Came, ObservedStep, Observer, host_program, largest_move
from windtunnel.real.emulate.peers.arrivals import Span
from windtunnel.real.emulate.peers.cohort import Watched
from windtunnel.real.emulate.peers.host_program import HostProgram, resembles
from windtunnel.real.emulate.peers.peers_replay import Replay, SecondsOf
from windtunnel.real.emulate.several.company import Company
from windtunnel.studies.programs.communication import Communication

WARM_UP = 3  # steps alike before peers run them: caches, allocator and optimizer state settle
MOST_SAMPLES = 64
SETTLED = 1e-3  # of the step
_TYPICAL_STEPS = 2

# The other classes' programs with the ranks that run them, given the real rank's as it was measured.
OtherClasses = Callable[[HostProgram], Sequence[tuple[HostProgram, Sequence[int]]]]


class Ticket:
    """A communication that was begun: asked for its span until it has one."""

    __slots__ = ("_ask", "_span", "left", "place", "since")

    def __init__(
        self, place: int, span: Span | None, ask: Callable[[], Span | None] | None, processor_s: float
    ) -> None:
        self.place, self._span, self._ask = place, span, ask
        self.left = processor_s  # seconds of this rank's processor that it still needs
        self.since = float("-inf")  # until when these were paid for

    def span(self) -> Span | None:
        """When it starts and is done; None while that hangs on what the real rank does next."""
        if self._span is None and self._ask is not None:
            self._span = self._ask()
        return self._span

    def due(self) -> float | None:
        """When it is done."""
        span = self.span()
        return None if span is None else span.finish

    def pay(self, now: float) -> float:
        """Seconds that the processor spent on it until now, and computing could not have."""
        span = self.span()
        if span is None or self.left <= 0.0:
            return 0.0
        overlap = min(max(0.0, now - max(span.start, self.since)), self.left)
        self.left -= overlap
        self.since = now + overlap
        return overlap

    def wait(self, now: float) -> None:
        """The host stands from now on: what is left of it goes on alone, and is not done before."""
        span = self.span()
        if span is not None and self.left > 0.0:
            self._span = Span(span.start, max(span.finish, now + self.left))


@dataclass
class Conductor:
    """The state of one emulation."""

    rank: int
    world_size: int
    seconds_of: SecondsOf
    same_class: Sequence[int]  # ranks that run the real rank's program, itself among them
    others: OtherClasses | None = None  # None: nothing is known of ranks outside `same_class`
    slow: Mapping[int, float] = field(default_factory=dict)
    jitter: bool = False
    seed: int = 0
    watch: Sequence[int] = ()
    processor_s_of: SecondsOf | None = None  # what it needs of the rank's own processor, where there is one for both
    queued_s_of: SecondsOf | None = None  # once the one before it in its group is done, where that is less
    company: Company | None = None  # other real ranks
    steps: deque[ObservedStep] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    alike: int = 0
    replay: Replay | None = None
    settled_at: int | None = None  # the step from which on the plan holds
    movement: float = float("inf")  # of arrivals, the last time that it was priced anew
    unplanned: int = 0  # communications of steps that were not the known one
    planned: int = 0
    n_steps: int = 0
    last_watched: dict[int, list[Watched]] = field(default_factory=dict)
    replayed_step_s: float | None = None  # all ranks virtual, with the parts as measured

    def __post_init__(self) -> None:
        self._free: dict[tuple[str, str, int], float] = {}
        self._observer: Observer | None = None
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._arrivals: NDArray[np.float64] = np.zeros(0)
        self._off_plan = False
        self._underway: list[Ticket] = []
        self._watched: dict[int, list[Watched]] = {}
        self._own_part: list[Watched] = []
        self._program: HostProgram | None = None
        self._odd: ObservedStep | None = None
        self._begun_in_step = 0
        self._laid: Sequence[tuple[HostProgram, Sequence[int]]] = ()  # who runs what in the replay

    # ------------------------------------------------------------------------------------------------- the real rank

    def begin(self, call: Communication, now: float, cpu: float = NO_CPU, came: Came | None = None) -> Ticket:
        """The real rank arrives at a communication; `came`: where it had to share its processor before that."""
        place = self._observer.begin(call, now, cpu, came) if self._observer is not None else -1
        company = self.company
        ident = company.board.ident(call) if company is not None else 0
        if company is not None:
            company.board.record_arrival(call, ident, self.n_steps, self._begun_in_step, now)
            self._begun_in_step += 1
        ticket = self._ticket(call, now, place)
        if company is not None and (shared := company.shared_ranks(call)):
            ticket = self._with_the_real(ticket, call, ident, shared)
        if ticket.left > 0.0:
            self._underway.append(ticket)
        return ticket

    def share(self, now: float, waits_for: Ticket | None = None) -> float:
        """How long the real rank's processor was somebody else's since it was last asked: it goes on so much later."""
        spent = 0.0
        for ticket in self._underway:
            spent += ticket.pay(now + spent)
        if waits_for is not None:
            waits_for.wait(now + spent)
        self._underway = [ticket for ticket in self._underway if ticket.left > 0.0 and ticket is not waits_for]
        return spent

    def _ticket(self, call: Communication, now: float, place: int) -> Ticket:
        processor_s = self.processor_s_of(call) if self.processor_s_of is not None else 0.0
        replay = self.replay
        if replay is not None and not self._off_plan:
            expected = replay.expected()
            if expected is not None and resembles(call, expected):
                self.planned += 1
                key = replay.begin(call, now)
                span = replay.span(key)
                self._tell(place, span)
                later = None if span is not None else self._later(replay, key, place)
                return Ticket(place, span, later, processor_s)
            self._off_plan = True
        self.unplanned += replay is not None
        span = self._like_me(call, now)
        self._tell(place, span)
        return Ticket(place, span, None, processor_s)

    def _with_the_real(self, ticket: Ticket, call: Communication, ident: int, shared: Sequence[int]) -> Ticket:
        """It is not done before the other real ranks have come, whatever the replay takes them to do."""

        def ask() -> Span | None:
            assert self.company is not None
            latest = self.company.latest(ident, shared)
            span = ticket.span() if latest is not None else None
            if span is None or latest is None:
                return None
            if span.finish < latest + (seconds := self.seconds_of(call)):
                span = Span(max(span.start, latest), latest + seconds)
            self._tell(ticket.place, span)
            return span

        return Ticket(ticket.place, None, ask, ticket.left)

    def on_wait(self, call: Communication, entered: float, now: float, cpu: float = NO_CPU) -> None:
        """The host waited for it from `entered` to `now`."""
        if self._observer is not None:
            self._observer.on_wait(call, entered, now, cpu)

    def optimizer(self, now: float, cpu: float = NO_CPU) -> None:
        """The optimizer begins: what nobody was seen to wait for is done."""
        self._underway = [ticket for ticket in self._underway if (ticket.due() or now) > now]
        if self._observer is not None:
            self._observer.optimizer(now, cpu)

    def end_step(self, now: float, cpu: float = NO_CPU, *, learns: bool = True) -> ObservedStep | None:
        """The step ends, and the next begins. What was seen of it; None for the first, whose begin nobody saw.

        `learns`: it was an ordinary step; nothing slowed it that is not the job's.
        """
        if self.company is not None:
            self.company.board.record_step_end(self.n_steps, self._begun_in_step, now)
        self._begun_in_step = 0
        self.n_steps += 1
        if self._observer is None:
            self._observer = Observer(now, cpu)
            return None
        observed_step = self._observer.end(now, cpu)
        if learns:
            self._learn(observed_step)
        if self.replay is not None and not self._off_plan and self.replay.expected() is None:
            self.replay.end_step(now)
            self._turn_page()
        else:
            self.replay = None
        self._off_plan = False
        if learns and self.alike >= WARM_UP and self._is_due():
            self._plan(now)
        elif self.replay is None and self._program is not None and self.steps and self.alike:
            self._start(now)
        return observed_step

    def begin_anew(self, now: float, cpu: float = NO_CPU) -> None:
        """Something that is no part of the job took time since the step's end: the step begins now, for everybody."""
        if self._observer is not None:
            self._observer = Observer(now, cpu, carried=self._observer.carried, step=self._observer.step)
        if self.replay is not None:
            assert self._program is not None
            self._start(now)

    def holds(self, seen: ObservedStep) -> list[Watched]:
        """For a device that is planned ahead: learn a step, and give the real rank's part of the job's replay."""
        self.n_steps += 1
        self._learn(seen)
        if self.alike >= WARM_UP and self._is_due():
            self._plan(None)
        return self._own_part

    def typical(self) -> HostProgram | None:
        """A typical step of the real rank; None where too few were alike."""
        return host_program(self.rank, self.steps, samples=False) if self.alike >= WARM_UP else None

    # ----------------------------------------------------------------------------------------------------- the peers

    def _learn(self, seen: ObservedStep) -> None:
        if not self.steps or self.steps[-1].like(seen):
            self.steps.append(seen)
            self.alike += 1
            self._odd = None
            return
        odd = self._odd
        if odd is not None and odd.like(seen):  # twice: this is the step from now on
            self.steps.clear()
            self.steps.extend((odd, seen))
            self.alike, self.settled_at, self._program, self.replay = 2, None, None, None
            self._odd = None
        else:
            self._odd = seen

    def _is_due(self) -> bool:
        """After 3, 4, 6, 8, 12, 16, 24, ... steps alike, so that correcting costs ever less."""
        since = self.alike
        while since > 4 and since % 2 == 0:
            since //= 2
        return since in (3, 4)

    def _plan(self, now: float | None) -> None:
        program = self.typical()
        assert program is not None
        if self.company is not None:
            self.company.keep(program)
            if self.company.classes(program) is None:
                return  # the step of another real rank is not known yet
        arrivals = self._arrivals_of(program)
        self.movement = largest_move(self._arrivals, arrivals)
        self._arrivals = arrivals
        self._program = host_program(self.rank, self.steps, samples=True) if self.jitter else program
        if self.settled_at is None and self.movement < SETTLED:
            self.settled_at = self.n_steps
        classes = self._classes(self._program)
        if self.replay is not None and _same_layout(self._laid, classes):
            self.replay.reprice(classes)
        elif now is not None:
            self._start(now)

    def _arrivals_of(self, program: HostProgram) -> NDArray[np.float64]:
        """Seconds from a step's begin to each arrival of the real rank, were it virtual too."""
        replay = self._new_replay(program, 0.0, real=None, jitter=False)
        watched = replay.watch([self.rank])[self.rank]
        replay.run(_TYPICAL_STEPS)
        cohort = next(cohort for cohort in replay.cohorts if self.rank in cohort.ranks)
        at = int(np.searchsorted(cohort.ranks, self.rank))
        first, last = (float(end[at]) for end in cohort.step_ends[-2:])
        self.replayed_step_s = last - first
        self._own_part = [event for event in watched if event.step == _TYPICAL_STEPS - 1]
        seen = [event.begin_s - first for event in self._own_part if event.what == "communication"]
        return np.array([*seen, last - first])

    def _start(self, now: float) -> None:
        assert self._program is not None
        if self.company is not None:
            self.company.first_step = self.n_steps
        self._laid = self._classes(self._program)
        self.replay = self._new_replay(self._program, now, real=self.rank, jitter=self.jitter)
        self._watched = self.replay.watch(self.watch)

    def _new_replay(self, program: HostProgram, begin_at: float, *, real: int | None, jitter: bool) -> Replay:
        return Replay(
            self._classes(program),
            self.world_size,
            self.seconds_of,
            begin_at=begin_at,
            real=real,
            slow=self.slow,
            draw=self._draw if jitter else None,
            messages_meet=self.others is not None or (self.company is not None and self.company.is_whole),
            processor_s_of=self.processor_s_of,
            queued_s_of=self.queued_s_of,
            others=self.company if real is not None else None,
        )

    def _classes(self, program: HostProgram) -> list[tuple[HostProgram, Sequence[int]]]:
        if self.company is not None and (classes := self.company.classes(program)) is not None:
            return classes
        return [(program, self.same_class), *(self.others(program) if self.others is not None else ())]

    def _draw(self, ranks: int, samples: int) -> NDArray[np.int64]:
        return self._random.integers(0, samples, ranks)

    def _turn_page(self) -> None:
        assert self.replay is not None
        self.last_watched = self._watched
        self._watched = self.replay.watch(self.watch)

    def _later(self, replay: Replay, key: tuple[int, int], place: int) -> Callable[[], Span | None]:
        def ask() -> Span | None:
            span = replay.span(key)
            self._tell(place, span)
            return span

        return ask

    def _tell(self, place: int, span: Span | None) -> None:
        if span is not None and place >= 0 and self._observer is not None:
            self._observer.due(place, span.finish)

    def _like_me(self, call: Communication, now: float) -> Span:
        seconds = self.seconds_of(call)
        channel = (call.group, call.kind if call.is_message else "", call.peer if call.is_message else -1)
        queued_s = min(seconds, self.queued_s_of(call)) if self.queued_s_of is not None else seconds
        free = self._free.get(channel, float("-inf"))
        due = self._free[channel] = max(now + seconds, free + queued_s)
        return Span(max(now, free), due)


def _same_layout(
    before: Sequence[tuple[HostProgram, Sequence[int]]], after: Sequence[tuple[HostProgram, Sequence[int]]]
) -> bool:
    """Whether the same ranks make the same marks: only seconds differ."""
    if len(before) != len(after):
        return False
    return all(
        program.events == other.events and list(ranks) == list(its)
        for (program, ranks), (other, its) in zip(before, after, strict=True)
    )
