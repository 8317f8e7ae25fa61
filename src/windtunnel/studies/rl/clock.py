"""One run of RL post-training as events: generators, judges and the learner on the serving study's loop.

    prompts -> generators -> tools -> judge -> a group is complete -> the learner takes a batch -> weights change

The policy's version rises with each batch that is trained. A group may begin while

    groups begun - groups dropped < (version + async_steps + 1) x groups of a batch          (AReaL's rule)

so with 0 the pools work in turn. The learner takes first the groups that would grow older than that (rounded up) if
they waited, then, unless batches are trained in order, what was complete first: no sample is staler than the bound.
Weights change when a batch is trained: answers under way stand still and go on with or without their caches (partial
rollouts), or the generators run empty first.

Everything about time comes from outside: `passes` says how long a batch trains, `Times` the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.studies.rl.generators import Generator
from windtunnel.studies.rl.learner import Passes
from windtunnel.studies.serving.loop import Loop, Server
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence

NS = 1e9
SPAN = 16  # blocks of a name where answers have turns: one by one they are as many as tokens are long


@dataclass(frozen=True, slots=True)
class Rules:
    """What begins when."""

    groups: int  # of a batch
    samples: int  # of a group
    async_steps: float = 0.0
    partial: bool = False
    keep_cache: bool = True
    in_order: bool = True
    chunks: bool = False  # a batch goes to the generators in order, not to the least busy
    useful: float = 1.0  # share of groups that a filter keeps
    turns: int = 1
    prompt_tokens: int = 150
    tool_tokens: int = 0
    in_flight: int | None = None  # groups that may be generated at a time; None: all that may begin

    @property
    def oldest(self) -> int:
        """Versions by which a sample may be behind."""
        return ceil(self.async_steps)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of what is neither generated nor trained."""

    refit_s: float  # everybody waits for new weights
    between_s: float = 0.0  # before each training: data, rewards, advantages, engine and trainer change places
    tool_s: float = 0.0  # mean
    reward_s: float = 0.0
    reward_workers: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One batch from the wait for it to the weights after it. Times in seconds of the run."""

    begin_s: float  # the learner is free
    ready_s: float  # the batch is there
    trained_s: float
    end_s: float  # new weights are everywhere
    passes: Passes
    begun_s: float  # the batch's first sample
    complete_s: float  # and its last
    tokens: int  # prompts and answers
    ages: tuple[int, ...]  # versions by which its groups were behind when they were trained

    @property
    def wait_s(self) -> float:
        """Of the learner."""
        return self.ready_s - self.begin_s


@dataclass(slots=True)
class _Group:
    """A prompt with its samples."""

    number: int
    version: int
    begun_ns: int
    left: int
    names: tuple[int, ...]  # of its prompt's blocks
    tokens: int = 0
    complete_ns: int = NEVER


@dataclass(eq=False)
class Run:
    """A run under way. `lengths(batch)` gives the answers of a batch, its groups together."""

    rules: Rules
    times: Times
    lengths: Callable[[int], NDArray[np.int64]]
    passes: Callable[[NDArray[np.int64]], Passes]
    generators: Listed[Generator]
    guests: Listed[Generator] = ()  # on the trainers' GPUs, while they wait
    judges: Listed[Server] = ()
    judge_tokens: int = 0
    seed: int = 0
    version: int = 0
    steps: list[Step] = field(default_factory=list)
    groups_begun: int = 0
    dropped: int = 0
    tokens_begun: int = 0  # answers'
    tokens_training: int = 0
    tokens_trained: int = 0
    tokens_dropped: int = 0

    def __post_init__(self) -> None:
        self._loop = Loop(self._ended)
        self._all = [*self.generators, *self.guests]
        for place, server in enumerate((*self._all, *self.judges)):
            self._loop.add(server, place)
        self._first_judge = len(self._all)
        self._drawn: dict[int, NDArray[np.int64]] = {}
        self._samples: dict[int, tuple[_Group, int]] = {}  # index -> its group, its answer's tokens
        self._turn: dict[int, int] = {}
        self._home: dict[int, int] = {}  # of samples with turns: the generator of the last one
        self._open: dict[int, _Group] = {}  # begun and not trained, in order
        self._in_flight = 0  # groups
        self._goal = 0  # steps to which it runs
        self._training = False
        self._draining = False  # nothing begins: generators run empty, or weights change
        self._updating = False
        self._free_ns = 0  # since when the learner is
        self._guests_away = False
        self._judged: deque[int] = deque()
        self._judging = 0
        self._random = np.random.default_rng(self.seed + 7919)
        self._last: Step | None = None

    def until(self, steps: int, latest_ns: int = NEVER) -> None:
        """Run to so many trained batches, or to `latest_ns`. Raises SpecError where nothing more would happen."""
        self._goal = steps
        self._feed(self.now_ns)
        while len(self.steps) < steps:
            if latest_ns < self._loop.next_ns < NEVER:
                return
            if self._loop.next_ns == NEVER:
                raise SpecError("async_steps", self.rules.async_steps, "the run stands still: give a larger batch")
            self._loop.step()

    @property
    def now_ns(self) -> int:
        """The time."""
        return self._loop.events.now_ns

    @property
    def in_flight(self) -> int:
        """Groups that are being generated or judged."""
        return self._in_flight

    def open_tokens(self) -> int:
        """Answers' tokens of groups that are begun and not trained."""
        return sum(group.tokens for group in self._open.values())

    # ------------------------------------------------------------------------------------------------ generation

    def _feed(self, now_ns: int) -> None:
        """Begin the groups that may; none behind the last step, as nobody would wait for it."""
        rules = self.rules
        if self._draining or len(self.steps) >= self._goal:
            return
        most = NEVER if rules.in_flight is None else rules.in_flight
        behind = self.dropped + (self.version + rules.async_steps + 1) * rules.groups
        while self._in_flight < most and self.groups_begun < behind:
            self._begin(self.groups_begun, now_ns)
            self.groups_begun += 1

    def _begin(self, number: int, now_ns: int) -> None:
        rules = self.rules
        batch, within = divmod(number, rules.groups)
        answers = self._drawn.get(batch)
        if answers is None:
            answers = self._drawn[batch] = self.lengths(batch)
            self._drawn.pop(batch - 2 - rules.oldest, None)
        size = self._all[0].block_size * (1 if rules.turns == 1 else SPAN)
        names = tuple(range(number << 20, (number << 20) + rules.prompt_tokens // size))
        group = _Group(number, self.version, now_ns, rules.samples, names)
        self._open[number] = group
        self._in_flight += 1
        for k in range(rules.samples):
            index = number * rules.samples + k
            tokens = int(answers[within * rules.samples + k])
            group.tokens += tokens
            self.tokens_begun += tokens
            self._samples[index] = (group, tokens)
            self._turn[index] = 0
            self._send(index, now_ns)

    def _send(self, index: int, now_ns: int) -> None:
        """The next turn of a sample."""
        rules = self.rules
        group, tokens = self._samples[index]
        turn, turns = self._turn[index], min(rules.turns, tokens)
        before, until = tokens * turn // turns, tokens * (turn + 1) // turns
        prompt = rules.prompt_tokens + before + turn * rules.tool_tokens
        span = 1 if rules.turns == 1 else SPAN
        names = group.names
        if turn:  # what the turns before have left in the cache
            size, own = self._all[0].block_size * SPAN, (index + 1) << 40
            names += tuple(range(own + len(names), own + prompt // size))
        place = self._home.get(index, -1) if turn else -1  # where its cache is (verl's sticky sessions)
        if not 0 <= place < (len(self.generators) if self._guests_away else len(self._all)):
            place = self._place(index)
        if rules.turns > 1:
            self._home[index] = place
        self._all[place].submit(Sequence(index, prompt, until - before, now_ns, names, span), now_ns)
        self._loop.watch(place)

    def _place(self, index: int) -> int:
        """The generator of a sample."""
        many = len(self.generators) if self._guests_away else len(self._all)
        if self.rules.chunks:
            if self.rules.async_steps:  # one by one: to the generators in turn
                return index % many
            batch = self.rules.groups * self.rules.samples
            return index % batch * many // batch
        loads = [self._all[place].load for place in range(many)]
        return loads.index(min(loads))

    def _ended(self, now_ns: int, place: int, finished: list[Sequence]) -> None:
        for sequence in finished:
            if place >= self._first_judge:
                self._complete(sequence.index, now_ns)
                continue
            index = sequence.index
            _, tokens = self._samples[index]
            self._turn[index] += 1
            if self._turn[index] < min(self.rules.turns, tokens):
                wait_ns = round(NS * self.times.tool_s * self._random.exponential())
                self._loop.at(now_ns + wait_ns, partial(self._send, index))
            else:
                self._judge(index, now_ns)

    def _judge(self, index: int, now_ns: int) -> None:
        """A sample has its last token."""
        if self.judges:
            _, tokens = self._samples[index]
            many = [server.load for server in self.judges]
            place = many.index(min(many))
            prompt = self.rules.prompt_tokens + tokens
            self.judges[place].submit(Sequence(index, prompt, self.judge_tokens, now_ns), now_ns)
            self._loop.watch(self._first_judge + place)
        elif not self.times.reward_s:
            self._complete(index, now_ns)
        else:
            self._judged.append(index)
            self._work(now_ns)

    def _work(self, now_ns: int) -> None:
        """Reward workers take what waits for them."""
        while self._judged and (self.times.reward_workers is None or self._judging < self.times.reward_workers):
            index = self._judged.popleft()
            self._judging += 1
            self._loop.at(now_ns + round(NS * self.times.reward_s), partial(self._rated, index))

    def _rated(self, index: int, now_ns: int) -> None:
        self._judging -= 1
        self._complete(index, now_ns)
        self._work(now_ns)

    def _complete(self, index: int, now_ns: int) -> None:
        """A sample is there; perhaps its group is."""
        group, _ = self._samples[index]
        del self._turn[index]
        self._home.pop(index, None)
        group.left -= 1
        if group.left:
            return
        self._in_flight -= 1
        group.complete_ns = now_ns
        if self.rules.useful < 1.0 and self._random.random() >= self.rules.useful:
            self.dropped += 1
            self.tokens_dropped += sum(self._forget(group))
        self._feed(now_ns)
        if self._draining:
            if not (self._in_flight or self._updating):  # a reward may come while weights change
                self._update(now_ns)
        else:
            self._take(now_ns)

    def _forget(self, group: _Group) -> list[int]:
        """The answers' tokens of a group, which is no longer open."""
        del self._open[group.number]
        samples = self.rules.samples
        return [self._samples.pop(group.number * samples + k)[1] for k in range(samples)]

    # -------------------------------------------------------------------------------------------------- the learner

    def _take(self, now_ns: int) -> None:
        """The learner takes a batch, if it is free and one is there."""
        if self._training or self._draining:
            return
        batch = self._batch()
        if batch is None:
            return
        self._training = True
        rules, prompt = self.rules, self.rules.prompt_tokens
        complete_ns = max(group.complete_ns for group in batch)
        begun_ns = min(group.begun_ns for group in batch)
        ages = tuple(self.version - group.version for group in batch)
        extra = prompt + (rules.turns - 1) * rules.tool_tokens
        answers = np.array([size for group in batch for size in self._forget(group)], np.int64)
        self.tokens_training = int(answers.sum())
        tokens = answers + extra
        if self.guests:
            self._send_guests_home(now_ns)
        passes = self.passes(tokens)
        end_ns = now_ns + round(NS * (self.times.between_s + passes.total_s))
        begin_ns = self._free_ns

        def trained(at_ns: int) -> None:
            self.version += 1
            self.tokens_trained += self.tokens_training
            self.tokens_training = 0
            self._last = Step(
                begin_ns / NS, now_ns / NS, at_ns / NS, 0.0, passes, begun_ns / NS, complete_ns / NS,
                int(tokens.sum()), ages,
            )  # fmt: skip
            if not rules.partial and self._in_flight:
                self._draining = True
            else:
                self._update(at_ns)

        self._loop.at(end_ns, trained)

    def _batch(self) -> list[_Group] | None:
        """The groups that are trained next; None where one of them is still to come."""
        groups = self.rules.groups
        if self.rules.in_order:
            first = [group for group, _ in zip(self._open.values(), range(groups), strict=False)]
            return first if len(first) == groups and all(group.left == 0 for group in first) else None
        oldest = self.version - self.rules.oldest
        must, others = [], []
        for group in self._open.values():
            if group.version <= oldest:
                if group.left:
                    return None
                must.append(group)
            elif not group.left:
                others.append(group)
        if len(must) + len(others) < groups:
            return None
        others.sort(key=lambda group: group.complete_ns)
        return [*must, *others[: groups - len(must)]]

    def _send_guests_home(self, now_ns: int) -> None:
        """The trainers stop generating: what is under way there goes on elsewhere."""
        self._guests_away = True
        for offset, guest in enumerate(self.guests):
            moved = guest.taken_away(now_ns)
            self._loop.watch(len(self.generators) + offset)
            for sequence in moved:
                place = self._place(sequence.index)
                self._all[place].submit(sequence, now_ns)
                self._loop.watch(place)

    def _update(self, now_ns: int) -> None:
        """New weights for everybody."""
        length_ns = round(NS * self.times.refit_s)
        for place, server in enumerate(self._all):
            server.pause(now_ns, length_ns)
            if not self.rules.keep_cache:
                server.begin_again(now_ns)
            self._loop.watch(place)
        self._draining = self._updating = True

        def updated(at_ns: int) -> None:
            assert self._last is not None
            self.steps.append(replace(self._last, end_s=at_ns / NS))
            self._draining = self._updating = self._training = self._guests_away = False
            self._free_ns = at_ns
            self._feed(at_ns)
            self._take(at_ns)

        self._loop.at(now_ns + length_ns, updated)
