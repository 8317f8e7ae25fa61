"""Best-first branch and bound over a space of plans, with a certificate.

A node stands for plans: all of some structures, of one, of one with one saving, or one plan. Its key is a bound
that none of them beats; the queue gives the least key first. A node that comes up is looked at more closely, which
raises its key or parts it, until a replayed plan comes up: no other plan can be faster. So every plan is replayed, or
lies under a node whose bound exceeds the answer, or does not fit in memory. Where a space is too large to be listed in
half the time, what was not listed counts with the time that its products take at the GPU's peak.

    family      kernels alone, evenly over ranks               -> its structures
    structure   kernels alone; passes at their best switches   -> its savings, without those whose state is too much
    saving      its own passes at the best switches; memory    -> its plans
    plan        passes, transfers, reductions, optimizer       -> replayed event by event
    replayed    its own step time                              -> an answer

Looking stops when enough plans of different structure or saving have come up, or when time is up; then the gap is
what the best plan so far could at most be slower than the best of all: 1 - (least key left) / (its time).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, product
from math import inf
from time import monotonic

from windtunnel.errors import UserError
from windtunnel.studies.planning.oracle import Layout, Replayed, laid_out, memory_bytes, step_ns
from windtunnel.studies.planning.search.ahead import MEMORY, RESULT, STEP
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.search.misfits import Misfits, Missed, Unmeasured
from windtunnel.studies.planning.space.plan_space import (
    SAVINGS,
    Family,
    Space,
    count,
    families,
    leaves,
    members,
    savings,
    switches,
)
from windtunnel.studies.planning.space.plan_space import STRUCTURE as FIELDS

FAMILY, STRUCTURE, SHAPED, ROUGH, SAVING, LEAF, PLAN, REPLAYED = range(8)
ASKED_NEXT = {SAVING: MEMORY, PLAN: STEP}  # of the plans of a node


@dataclass(frozen=True, slots=True)
class FittingPlan:
    """A replayed plan that fits. `score_ns` is what is least: the step, or what an objective makes of it."""

    layout: Layout
    replay: Replayed
    score_ns: float


@dataclass(slots=True)
class Counts:
    """Of plans: legal ones, replayed ones, those that do not fit, and structures."""

    structures: int = 0
    legal: int = 0
    replayed: int = 0
    memory: int = 0  # excluded, because they cannot fit


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search found. `gap`: 0 where it is proven that nothing in the space is faster, or that nothing fits."""

    plans: tuple[FittingPlan, ...]
    counts: Counts
    gap: float
    bound_ns: float  # no plan of the space is faster than this
    seconds: float


Objective = Callable[[Layout, int], float]


def step_time(layout: Layout, step_ns: int) -> float:
    """The plain objective. Another one takes a step time to what is least, and never to less than it."""
    return float(step_ns)


UNSAVED = {"zero_stage": 1, "recompute": "none"}  # with which every switch is there that any saving has
LISTING = 0.5  # of the time of a search, after which it goes on with the structures that it has listed
DEEP = 0.75  # of its time, after which a search that has no plan yet looks for one
FIRST_S = 10.0  # that a search has beyond its time to find a first plan
LOOKS_A_SECOND, LOOKS_OF_A_REPLAY, LOOKS_OF_A_FAMILY = 800, 25, 0.1  # of a search that counts its nodes
LET_GO = 0.04  # of the time of a search, that its nodes take to be let go when it is over


@dataclass(order=True, slots=True)
class Node:
    """Plans that none of which is faster than `key`."""

    key: float
    level: int
    number: int
    layout: Layout = field(compare=False)
    saving: dict[str, object] = field(compare=False, default_factory=dict)
    result: FittingPlan | None = field(compare=False, default=None)
    needed_bytes: int = field(compare=False, default=0)  # of one plan: switches leave memory as it is
    family: Family | None = field(compare=False, default=None)


@dataclass(eq=False)
class Search:
    """One run over one space; prices outlive it in `bounds`, for the next run over the same model."""

    space: Space
    bounds: Bounds
    objective: Objective = step_time
    capacity_bytes: int | None = None  # less than the device's, where little memory is asked for
    head_room: float = 0.0  # of the device's memory, left free
    listener: Callable[[Layout, Replayed], None] | None = None  # called with each plan that is replayed, at once
    memory: Callable[[Layout], int] = memory_bytes  # exact, held against the capacity of the layout's own GPU
    step: Callable[[Layout], int] = step_ns  # replayed
    counts_nodes: bool = False  # in place of time, so that the answer is the same on every machine
    soon: Callable[[int, float, Layout], None] | None = None  # told what of a plan may be asked, at which bound

    def run(self, top: int = 1, within_s: float | None = None, *, spare: int = 0) -> Answer:
        """The `top` best plans that differ in more than switches.

        `within_s`: of which the time of `spare` replays is left for what comes after, and that of letting the nodes go;
        FIRST_S longer to find any plan.
        """
        self._looks, self._spare = 0.0, spare
        self._start_s = start = self._now()
        self._heap: list[Node] = []
        self._number = 0
        self.misfits = Misfits(self.space, self.bounds, self.capacity_bytes, self.head_room)
        self._replayed_nodes: list[Node] = []  # that have come up
        self.counts = Counts()
        self._shortest_s = inf
        best: dict[tuple[object, ...], FittingPlan] = {}
        answers: list[FittingPlan] = []
        listing: Iterator[Family] = families(self.space)
        unlisted: Family | None = None
        ends = inf if within_s is None else start + within_s
        while True:
            unlisted = self._list(listing, ends)
            answers = []
            while self._heap and len(answers) < top:
                now = self._now()
                if self._over(now, ends, best):
                    break
                if not best and now > start + DEEP * (ends - start):
                    self._deep(best, ends)
                    continue
                node = heapq.heappop(self._heap)
                if node.result is None:
                    self._take(node, best)
                    continue
                self._replayed_nodes.append(node)
                if not any(_kind(self.space, answer.layout) == _kind(self.space, node.layout) for answer in answers):
                    answers.append(node.result)
                    if self.soon is not None:
                        self.soon(RESULT, node.key, node.layout)
            if unlisted is None or self._over(self._now(), ends, best):
                break
            listing = chain((unlisted,), listing)
            self._heap += self._replayed_nodes
            self._replayed_nodes = []
            heapq.heapify(self._heap)
        self.listed = unlisted is None  # all of the space
        least_open_ns = self._heap[0].key if self._heap else inf
        proven = self.listed and (len(answers) >= top or not self._heap)
        if unlisted is not None:
            least_open_ns = min(least_open_ns, self.bounds.peak_ns(unlisted.layout))
        gap = 0.0
        if not proven or not answers:
            others = sorted((plan for plan in best.values() if plan not in answers), key=lambda plan: plan.score_ns)
            answers = [*answers, *others][:top]
            if not proven:
                gap = max(0.0, 1.0 - least_open_ns / answers[0].score_ns) if answers else 1.0
        least = min([least_open_ns, *(answer.score_ns for answer in answers[:1])])
        return Answer(tuple(answers), replace(self.counts), gap, least, self._now() - start)

    @property
    def state_alone(self) -> bool:
        """After a run: whether parameters and optimizer alone exclude every plan, so that no shorter sequence fits.

        A shorter length has no degree that a longer one has not, and micro-batches of one sequence are always tried.
        """
        return self.listed and not self._heap and all(isinstance(unfit, Unmeasured) for unfit in self.misfits.all)

    def open_nodes(self) -> list[Node]:
        """After a run: what every legal plan that fits is in, or lies under."""
        return [*self._replayed_nodes, *self._heap]

    def expanded(self, node: Node) -> list[Node]:
        """After a run: what a node stands for, told more exactly. Empty where nothing of it fits."""
        self._heap = []
        for _ in self._looked_at(node):  # a replayed plan is a node too
            pass
        return self._heap

    def put_back(self, nodes: list[Node]) -> None:
        """After a run: all that is left."""
        self._replayed_nodes, self._heap = [], nodes

    def _list(self, listing: Iterator[Family], ends: float) -> Family | None:
        """Take structures in, for a share of the time that is left; returns the first that time was too short for."""
        now = self._now()
        until = now + LISTING * (ends - now)
        for family in listing:
            self._looks += LOOKS_OF_A_FAMILY
            legal = sum(count(self.space, family.layout, most) for most in family.largest)
            self.counts.structures += len(family.pipelines)
            self.counts.legal += legal
            state = self.misfits.even_state(family.layout)
            if state > self.misfits.capacity(family.layout):
                self.counts.memory += legal
                self.misfits.add(Unmeasured(family.layout, state, family=family))
            else:
                self._listed(family)
            if self._now() > until:
                return next(listing, None)
        return None

    def _take(self, node: Node, best: dict[tuple[object, ...], FittingPlan]) -> None:
        """Look at a node, and remember the best plan of each kind."""
        for plan in self._looked_at(node):
            key = _kind(self.space, plan.layout)
            if key not in best or plan.score_ns < best[key].score_ns:
                best[key] = plan

    def _deep(self, best: dict[tuple[object, ...], FittingPlan], ends: float) -> None:
        """Nodes that are furthest along come first, for what time is left: some answer is better than a bound alone."""
        least = inf
        aside: list[Node] = []
        order: list[tuple[int, Node]] = []
        waiting, self._heap = self._heap, []
        while True:
            for node in waiting:
                heapq.heappush(order, (-node.level, node)) if node.result is None else aside.append(node)
            if not order or self._over(self._now(), ends, best):
                break
            _, node = heapq.heappop(order)
            if node.key < least:
                self._take(node, best)
                least = min((plan.score_ns for plan in best.values()), default=inf)
            else:
                aside.append(node)
            waiting, self._heap = self._heap, []
        self._heap = [*aside, *(node for _, node in order)]
        heapq.heapify(self._heap)

    def _listed(self, family: Family) -> None:
        """Put all structures of a family into the queue, as one node where there are several."""
        if len(family.pipelines) == 1:
            self._push(self.bounds.work_ns(family.layout), STRUCTURE, family.layout)
            return
        self._number += 1
        least = self.bounds.even_ns(family.layout)
        heapq.heappush(self._heap, Node(least, FAMILY, self._number, family.layout, family=family))

    def _push(
        self, bound_ns: float, level: int, layout: Layout, saving: dict[str, object] | None = None, needed: int = 0
    ) -> None:  # fmt: skip
        self._number += 1
        heapq.heappush(self._heap, Node(bound_ns, level, self._number, layout, saving or {}, None, needed))
        if self.soon is not None and level in ASKED_NEXT:
            self.soon(ASKED_NEXT[level], bound_ns, layout)

    def _looked_at(self, node: Node) -> Iterator[FittingPlan]:
        """Put what a node stands for back, told more exactly."""
        bounds = self.bounds
        self._looks += LOOKS_OF_A_REPLAY if node.level == PLAN else 1
        if node.family is not None:
            for layout in members(self.space, node.family):
                self._push(max(node.key, bounds.work_ns(layout)), STRUCTURE, layout)
        elif node.level == STRUCTURE:
            state = self.misfits.least_state(node.layout, bounds.state_bytes)
            if state > self.misfits.capacity(node.layout):
                self.counts.memory += count(self.space, node.layout)
                self.misfits.add(Unmeasured(node.layout, state))
            else:
                self._push(max(node.key, bounds.structure_ns(node.layout, self._options(node))), SHAPED, node.layout)
        elif node.level == SHAPED:
            self._part(node)
        elif node.level == ROUGH:
            self._push(
                max(node.key, bounds.saving_ns(node.layout, self._options(node))), SAVING, node.layout, node.saving
            )
        elif node.level == SAVING:
            self._switched(node)
        elif node.level == LEAF:
            least = max(node.key, bounds.step_ns(node.layout))
            self._push(least, PLAN, node.layout, node.saving, node.needed_bytes)
        else:
            yield from self._replayed(node)

    def _over(self, now: float, ends: float, best: dict[tuple[object, ...], FittingPlan]) -> bool:
        """Whether what is left of the time is needed behind the search."""
        behind = self._spare * self._replay_s() + LET_GO * (now - self._start_s)
        return now + behind > (ends if best else ends + FIRST_S)

    def _now(self) -> float:
        return self._looks / LOOKS_A_SECOND if self.counts_nodes else monotonic()

    def _replay_s(self) -> float:
        """The shortest replay of this run; 0 before the second one, as the first loads compiled code."""
        return self._shortest_s if self.counts.replayed > 1 else 0.0

    def _options(self, node: Node) -> dict[str, tuple[object, ...]]:
        return switches(self.space, node.layout, node.saving or UNSAVED)

    def _part(self, node: Node) -> None:
        layout, options = node.layout, self._options(node)
        # What is recomputed does not change what parameters and optimizer take; most savings fail by that alone.
        alike = not (layout.plan.offload_activations and layout.plan.lora_rank)  # some ways to recompute are refused
        fits: set[object] = set()
        too_much: dict[object, int] = {}
        for saving in savings(self.space, layout):
            sharded = (saving["zero_stage"], saving.get("shard_group"))
            if sharded in too_much:
                self._lost_unmeasured(layout, saving, too_much[sharded])
                continue
            try:
                variant = laid_out(layout.model, layout.cluster, layout.user_plan.with_fields(saving))
            except UserError as error:  # a saving is legal wherever its structure is; a given one may not be
                self._refused(layout, saving, error)
                continue
            state = self.bounds.state_bytes(variant) if alike and sharded not in fits else 0
            if state > self.misfits.capacity(variant):
                too_much[sharded] = state
                self._lost_unmeasured(layout, saving, state)
                continue
            fits.add(sharded)
            least = self.bounds.memory_bytes(variant)
            if least > self.misfits.capacity(variant):
                self._lost(variant, saving, least, exact=False)
            else:
                self._push(max(node.key, self.bounds.recomputed_ns(variant, options)), ROUGH, variant, saving)

    def _lost_unmeasured(self, layout: Layout, saving: dict[str, object], state: int) -> None:
        """A structure with a saving whose state alone does not fit: how much it needs is found if somebody asks."""
        self.counts.memory += leaves(self.space, layout, saving)
        self.misfits.add(Unmeasured(layout, state, saving))

    def _refused(self, layout: Layout, saving: dict[str, object], error: UserError) -> None:
        self.counts.legal -= leaves(self.space, layout, saving)
        self.refusal = error

    def _lost(self, layout: Layout, saving: dict[str, object], needed: int, *, exact: bool) -> None:
        self.counts.memory += leaves(self.space, layout, saving)
        self.misfits.add(Missed(layout, needed, exact))

    def _switched(self, node: Node) -> None:
        needed = self.memory(node.layout)
        if needed > self.misfits.capacity(node.layout):
            self._lost(node.layout, node.saving, needed, exact=True)
            return
        options, first = self._options(node), True
        for chosen in product(*options.values()):
            update = dict(zip(options, chosen, strict=True))
            variant = laid_out(node.layout.model, node.layout.cluster, node.layout.user_plan.with_fields(update))
            least = max(node.key, self.bounds.best_switches_ns(variant, options))
            self._push(least, LEAF, variant, node.saving, needed)
            if first and self.soon is not None:
                self.soon(STEP, least, variant)
            first = False

    def _replayed(self, node: Node) -> Iterator[FittingPlan]:
        start = monotonic()
        capacity = node.layout.cluster.gpu.usable_memory_bytes
        replay = Replayed(self.step(node.layout), node.needed_bytes, capacity)
        self._shortest_s = min(self._shortest_s, monotonic() - start)
        self.counts.replayed += 1
        assert replay.step_ns >= node.key * (1.0 - 1e-9), "a bound exceeded the replayed time"
        plan = FittingPlan(node.layout, replay, self.objective(node.layout, replay.step_ns))
        if self.listener is not None:
            self.listener(node.layout, replay)
        self._number += 1
        heapq.heappush(self._heap, Node(plan.score_ns, REPLAYED, self._number, node.layout, node.saving, plan))
        yield plan


def _kind(space: Space, layout: Layout) -> tuple[object, ...]:
    """What plans that differ in switches only have in common."""
    return tuple(getattr(layout.plan, name) for name in (*FIELDS, *SAVINGS))
