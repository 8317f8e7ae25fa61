"""Laws of folding: folded equals unfolded to the nanosecond, and no coarser partition exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
from exact_fold import Folded, fold
from hypothesis import given, settings
from hypothesis import strategies as st
from small_jobs import Taken, model_of, take
from valid_graph import validate

from windtunnel.errors import LayoutError
from windtunnel.physics.engine import Slowdown, Timeline, replay
from windtunnel.physics.graph import Graph, GraphBuilder, OpKind
from windtunnel.physics.graph.fold import refine
from windtunnel.physics.hardware import parse_cluster
from windtunnel.studies.training.disturbances.replicas import unfold
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import NAMES


@dataclass(frozen=True)
class Case:
    graph: Graph
    duration: np.ndarray
    slowdown: Slowdown
    templates: int  # classes if nothing were disturbed, at most
    disturbed: bool


@st.composite
def cases(draw: st.DrawFn, disturbed: bool | None = None) -> Case:
    """Ranks on a grid that run a few templates, one for each value of the first coordinate.

    Drawn step by step in a possible order of execution: kernels, collectives along one axis or over all ranks, shifts
    along an axis, as a ring or as a line, sends that meet receives, and waits for whomever. Then the ops of all
    programs are mixed at random, within each stream in order.
    """
    axes = draw(st.sampled_from([(2, 2), (1, 4), (2, 4), (3, 3), (2, 2, 2), (2, 1, 3), (4, 2), (6,), (3, 2, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steps = draw(st.integers(0, 12))
    named, is_mixed = draw(st.booleans()), draw(st.booleans())
    trouble = draw(st.integers(1, 3)) if disturbed is None and draw(st.booleans()) else 3 * bool(disturbed)
    ranks = np.arange(np.prod(axes)).reshape(axes)
    coordinate = {int(rank): at for at, rank in np.ndenumerate(ranks)}
    n_streams = int(rng.integers(1, 5))
    kinds = int(rng.integers(2, 4))
    ops: list[dict] = []
    own: dict[int, list[int]] = {rank: [] for rank in coordinate}
    is_line = False
    for step in range(steps):
        chosen = {template: rng.random() < 0.85 for template in range(axes[0])}
        length = {template: int(rng.choice([0, 1, 7, rng.integers(1, 3000)])) for template in range(axes[0])}
        stream = {template: int(rng.integers(n_streams)) for template in range(axes[0])}
        share = {template: int(rng.integers(kinds)) for template in range(axes[0])}
        back = {template: rng.integers(1, 4, size=rng.choice([0, 0, 1, 2])).tolist() for template in range(axes[0])}
        sort = rng.choice(["kernel", "collective", "collective", "shift", "shift", "exchange", "whomever"])
        is_line |= sort == "whomever"
        axis = int(rng.integers(len(axes) + 1))
        wraps = bool(rng.random() < 0.5)
        before = {rank: list(mine) for rank, mine in own.items()}
        for rank, at in coordinate.items():
            if not chosen[at[0]]:
                continue
            after = [before[rank][-b] for b in back[at[0]] if b <= len(before[rank])]
            group: Hashable = None
            if sort == "collective":
                group = (step, tuple(c for a, c in enumerate(at) if a != axis) if axis < len(axes) else ())
            elif sort == "shift" and axis < len(axes):
                source = list(at)
                source[axis] -= 1
                is_line |= axis > 0 and not wraps
                if wraps or source[axis] >= 0:
                    after += before[int(ranks[tuple(source)])][-1:]
            elif sort == "whomever":
                # Itself among them: what one program waits for within, another waits for across.
                after += [op for other in rng.integers(0, ranks.size, 2).tolist() for op in before[other][-2:][:1]]
            op = {
                "rank": rank,
                "stream": stream[at[0]],
                "after": after,
                "group": group,
                "length": length[at[0]],
                "share": share[at[0]],
            }
            if sort == "exchange" and n_streams > 1 and axis < len(axes):
                # To the next rank and from the one before, on two streams: members at two places of their programs.
                source = list(at)
                source[axis] -= 1
                own[rank].append(len(ops))
                ops.append(op | {"group": (step, rank), "stream": (stream[at[0]] + 1) % n_streams})
                op["group"] = (step, int(ranks[tuple(source)]))
            own[rank].append(len(ops))
            ops.append(op)
    for at in rng.integers(0, max(len(ops), 1), size=trouble if ops else 0).tolist():
        ops[at]["length"] += int(rng.integers(1, 500))
    order = _mixed(ops, rng) if is_mixed else sorted(range(len(ops)), key=lambda op: ops[op]["rank"])
    place = {op: at for at, op in enumerate(order)}
    b = GraphBuilder()
    for rank, number in product(coordinate, range(n_streams)):
        b.stream(rank, f"s{number}")
    for op in order:
        entry = ops[op]
        b.op(
            OpKind.COMPUTE if entry["group"] is None else OpKind.COLLECTIVE,
            b.stream(entry["rank"], f"s{entry['stream']}"),
            after=[place[on] for on in entry["after"]],
            duration_ns=entry["length"],
            rendezvous=entry["group"],
            label=f"op {op}",
        )
    graph = b.build(multiplicity=[1] * len(coordinate))
    validate(graph)
    factor = rng.choice([0.0, 0.25, 1.7], size=(kinds, kinds))
    factor[0] = factor[:, 0] = 0.0
    shares = np.array([ops[op]["share"] for op in order], np.uint8)
    bound = len(coordinate) if is_line else axes[0]
    if not named:
        graph = replace(graph, stream_names=())
    return Case(graph, b.duration_ns(), Slowdown(shares, factor), bound, trouble > 0)


def _mixed(ops: Sequence[dict], rng: np.random.Generator) -> list[int]:
    """A random order that keeps each stream's own."""
    queues: dict[tuple[int, int], list[int]] = {}
    for op, entry in enumerate(ops):
        queues.setdefault((entry["rank"], entry["stream"]), []).append(op)
    keys = np.empty(len(ops))
    for queue in queues.values():
        keys[queue] = np.sort(rng.random(len(queue)))
    return np.argsort(keys).tolist()


def unfolded(folded: Folded, timeline: Timeline) -> Timeline:
    return Timeline(folded.unfold(timeline.start_ns), folded.unfold(timeline.end_ns))


def check_equal(graph: Graph, duration: np.ndarray, slowdown: Slowdown, folded: Folded) -> None:
    assert folded.interference is not None
    for full, short in (
        (replay(graph, duration), replay(folded.graph, folded.duration_ns)),
        (
            replay(graph, duration, slowdown),
            replay(folded.graph, folded.duration_ns, Slowdown(folded.interference, slowdown.factor)),
        ),
    ):
        back = unfolded(folded, short)
        assert np.array_equal(back.start_ns, full.start_ns)
        assert np.array_equal(back.end_ns, full.end_ns)


def numbered(keys: Sequence[Hashable]) -> list[int]:
    known: dict[Hashable, int] = {}
    return [known.setdefault(key, len(known)) for key in keys]


def naive_fold(graph: Graph, duration: np.ndarray, shares: np.ndarray) -> list[int]:
    """The definition, op by op, in sets of Python: the coarsest partition from which nothing splits."""
    streams: dict[int, list[int]] = {}
    for op, stream in enumerate(graph.stream.tolist()):
        streams.setdefault(stream, []).append(op)
    of_program: list[list[list[int]]] = [[] for _ in range(graph.n_programs)]
    names = graph.stream_names or tuple(range(graph.n_streams))
    for stream in sorted(streams, key=lambda s: (names[s], s)):
        of_program[int(graph.stream_rank[stream])].append(streams[stream])
    where = {
        op: (program, (number, at))
        for program, mine in enumerate(of_program)
        for number, queue in enumerate(mine)
        for at, op in enumerate(queue)
    }
    members: dict[int, list[int]] = {}
    for op, group in enumerate(graph.rendezvous.tolist()):
        members.setdefault(group, []).append(op)

    def show(colour: list[int], others: Sequence[int]) -> Hashable:
        return frozenset((colour[where[op][0]], where[op][1]) for op in others)

    colour = [0] * graph.n_programs
    while True:
        keys: list[Hashable] = []
        for program, mine in enumerate(of_program):
            key: list[Hashable] = [colour[program]]
            for queue in mine:
                for op in queue:
                    group = int(graph.rendezvous[op])
                    key.append((int(graph.kind[op]), int(duration[op]), int(shares[op])))
                    key.append(show(colour, graph.dep_idx[graph.dep_ptr[op] : graph.dep_ptr[op + 1]].tolist()))
                    key.append(show(colour, members[group]) if group >= 0 else None)
                key.append("end of stream")
            keys.append(tuple(key))
        finer = numbered(keys)
        if finer == colour:
            return colour
        colour = finer


@given(cases())
def test_folded_equals_unfolded_and_nothing_coarser_exists(case: Case) -> None:
    folded = fold(case.graph, case.duration, case.slowdown.kind_class)
    validate(folded.graph)
    check_equal(case.graph, case.duration, case.slowdown, folded)
    assert folded.class_of.tolist() == naive_fold(case.graph, case.duration, case.slowdown.kind_class)
    assert folded.graph.multiplicity.tolist() == np.bincount(folded.class_of).tolist()
    assert np.array_equal(folded.class_of[case.graph.program], folded.graph.program[folded.fold_of])
    assert np.array_equal(folded.fold_of[folded.op_of], np.arange(folded.graph.n_ops))
    assert np.array_equal(folded.duration_ns[folded.fold_of], case.duration)


@given(cases(disturbed=False))
def test_an_undisturbed_job_folds_to_its_templates(case: Case) -> None:
    assert fold(case.graph, case.duration, case.slowdown.kind_class).graph.n_programs <= case.templates


@given(cases())
def test_folding_twice_folds_no_further(case: Case) -> None:
    once = fold(case.graph, case.duration, case.slowdown.kind_class)
    again = fold(once.graph, once.duration_ns, once.interference)
    assert again.graph is once.graph


@given(cases(), st.randoms(use_true_random=False))
def test_renumbering_programs_and_rendezvous_permutes_the_classes(case: Case, random: object) -> None:
    g = case.graph
    new, groups = list(range(g.n_programs)), list(range(g.n_ops))
    random.shuffle(new)  # type: ignore[attr-defined]
    random.shuffle(groups)  # type: ignore[attr-defined]
    other = replace(
        g,
        stream_rank=np.array(new, np.int32)[g.stream_rank],
        rendezvous=np.where(g.rendezvous < 0, -1, np.array([*groups, -1], np.int32)[g.rendezvous]).astype(np.int32),
    )
    classes = fold(g, case.duration).class_of
    renamed = fold(other, case.duration).class_of
    assert numbered(renamed[new].tolist()) == classes.tolist()


@given(cases(disturbed=True))
def test_a_disturbance_never_merges_what_was_apart_in_its_absence(case: Case) -> None:
    # Seen from the other side: with the same durations everywhere, nobody can tell more than with several.
    rough = fold(case.graph, case.duration)
    flat = fold(case.graph, np.ones_like(case.duration))
    assert len(set(zip(rough.class_of.tolist(), flat.class_of.tolist(), strict=True))) == rough.graph.n_programs


def test_a_program_that_would_never_end_still_never_ends() -> None:
    b = GraphBuilder()
    for program in range(4):
        b.op(OpKind.COMPUTE, b.stream(program, "a"), after=[(program + 1) % 4], duration_ns=1)
    folded = fold(b.build(), b.duration_ns())
    assert folded.graph.n_programs == 1
    assert folded.graph.dep_idx.tolist() == [0]


def naive_refine(colour: Sequence[int], families: Sequence[np.ndarray]) -> list[int]:
    colour = numbered(list(colour))
    while True:
        keys: list[list[Hashable]] = [[c] for c in colour]
        for groups in families:
            shown: dict[int, Hashable] = {}
            for group in groups.tolist():
                shown |= dict.fromkeys(group, frozenset(Counter(colour[r] for r in group).items()))
            for rank, key in enumerate(keys):
                key.append(shown.get(rank))
        finer = numbered([tuple(key) for key in keys])
        if finer == colour:
            return colour
        colour = finer


@st.composite
def partitions(draw: st.DrawFn) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ranks = draw(st.integers(1, 24))
    families = []
    for _ in range(draw(st.integers(0, 3))):
        size = int(rng.integers(1, ranks + 1))
        # In order the symmetries are many, shuffled they are few.
        row = rng.permutation(ranks) if rng.random() < 0.3 else np.arange(ranks)
        groups = row[: ranks // size * size]
        families.append(groups.reshape(-1, size) if rng.random() < 0.5 else groups.reshape(size, -1).T)
    colour = (rng.random(ranks) < rng.choice([0.0, 0.1, 0.5])).astype(np.int64)
    return colour, families


@given(partitions())
def test_ranks_refine_as_by_the_definition(case: tuple) -> None:
    colour, families = case
    mine = refine(colour, families)
    assert mine.tolist() == naive_refine(colour.tolist(), families)
    assert np.array_equal(refine(mine, families), mine), "a fixed point"


@given(partitions(), st.randoms(use_true_random=False))
def test_relabelling_ranks_permutes_their_classes(case: tuple, random: object) -> None:
    colour, families = case
    new = list(range(len(colour)))
    random.shuffle(new)  # type: ignore[attr-defined]
    moved = np.empty_like(colour)
    moved[new] = colour
    renamed = refine(moved, [np.array(new)[groups] for groups in families])
    assert numbered(renamed[new].tolist()) == refine(colour, families).tolist()


@given(st.sampled_from([(2, 2, 2), (4, 3, 2), (2, 8, 4), (1, 6, 2)]), st.integers(0, 10**6), st.sampled_from([1, 2, 3]))
def test_ranks_of_one_class_run_alike(shape: tuple[int, int, int], seed: int, slow: int) -> None:
    """The partition of ranks is one that the op-level fold of any job on these communicators can use."""
    rng = np.random.default_rng(seed)
    ranks = np.arange(np.prod(shape)).reshape(shape)
    families = [ranks.reshape(-1, shape[2]), ranks.swapaxes(1, 2).reshape(-1, shape[1]), ranks.reshape(shape[0], -1).T]
    colour = np.zeros(ranks.size, np.int64)
    colour[rng.choice(ranks.size, slow, replace=False)] = 1
    stage_of = ranks.ravel() // (shape[1] * shape[2])
    classes = refine(2 * stage_of + colour, families)
    group_of = np.empty((3, ranks.size), np.int64)
    for family, groups in enumerate(families):
        group_of[family, groups.ravel()] = np.repeat(np.arange(len(groups)), groups.shape[1])
    b = GraphBuilder()
    lengths = rng.integers(1, 100, (shape[0], 6))
    for step, family in enumerate(rng.integers(0, 3, 6).tolist()):
        for rank in range(ranks.size):
            stage = int(rank // (shape[1] * shape[2]))
            own = int(lengths[stage, step])
            stream = b.stream(rank, "all")
            b.op(OpKind.COMPUTE, stream, duration_ns=own * (1 + int(colour[rank])))
            b.op(OpKind.COLLECTIVE, stream, duration_ns=own, rendezvous=(step, family, int(group_of[family, rank])))
    graph, duration = b.build(), b.duration_ns()
    ends = replay(graph, duration).end_ns
    table = np.array([ends[graph.program == rank] for rank in range(ranks.size)])
    first = np.unique(classes, return_index=True)[1]
    assert np.array_equal(table, table[first[classes]])


def layouts(limit: int) -> Iterator[tuple[int, int, int, int]]:
    """tp, pp, cp, dp, all powers of two, of exactly `limit` ranks or fewer."""
    powers = [1, 2, 4, 8, 16, 32, 64]
    for tp, pp, cp, dp in product(powers[:4], powers[:5], powers[:4], powers):
        if tp * pp * cp * dp <= limit:
            yield tp, pp, cp, dp


@lru_cache(maxsize=1)
def taken(tp: int, pp: int, cp: int, dp: int, schedule: str | None, zero: int, ep: int) -> Taken | None:
    """One step of a small model, or None where the plan is not one."""
    model = model_of(hidden=128, feed_forward=256, layers=16, experts=4 if ep > 1 else 0)
    plan = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "zero_stage": zero, "global_batch": 2 * pp * dp, "seq_len": 256}
    plan |= {"schedule": schedule, "virtual_stages": 2 if schedule == "interleaved" else 1} if schedule else {}
    try:
        return take(model, parse_cluster(f"h100-sxm:{tp * pp * cp * dp}"), plan)
    except LayoutError:
        return None


def check_layout(one: Taken, rng: np.random.Generator) -> None:
    shape = (one.layout.dp, one.layout.plan.pp)
    compute = np.where(rng.random(shape) < 0.2, 1.3, 1.0)
    links = np.where(rng.random(shape) < 0.1, 2.0, 1.0)
    pricer = Pricer(one.layout)
    parts = (one.step, one.layout, one.pieces, pricer, compute, links)
    naive, replicas = unfold(*parts, fold=False), unfold(*parts, fold=True)
    folded = fold(naive.step.graph, naive.step.duration_ns, naive.step.interference)
    slowdown = Slowdown(naive.step.interference, np.array(pricer.training.slowdown_factors()))
    check_equal(naive.step.graph, naive.step.duration_ns, slowdown, folded)
    assert folded.graph.n_programs <= replicas.step.graph.n_programs
    assert folded.graph.multiplicity.sum() == naive.step.graph.multiplicity.sum() == one.layout.cluster.n_gpus


# The larger half of the layouts is most of the work; `test_some_layouts` draws from it too.
UP_TO = pytest.mark.parametrize("ranks", [16, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (32, 64))])


@pytest.mark.slow
@UP_TO
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_every_layout(zero: int, ranks: int) -> None:
    rng = np.random.default_rng(zero)
    counted = 0
    for tp, pp, cp, dp in layouts(ranks):
        for ep in (1, 2, 4) if zero == 1 else (1,):
            one = taken(tp, pp, cp, dp, None, zero, ep)
            if one is not None:
                counted += 1
                check_layout(one, rng)
    assert counted >= ranks * 100 // 64


@pytest.mark.slow
@UP_TO
@pytest.mark.parametrize("schedule", NAMES)
def test_every_pipeline_schedule(schedule: str, ranks: int) -> None:
    rng = np.random.default_rng(len(schedule))
    counted = 0
    for tp, pp, cp, dp in layouts(ranks):
        for zero, ep in ((0, 1), (1, 2)):
            one = taken(tp, pp, cp, dp, schedule, zero, ep) if pp > 1 else None
            if one is not None:
                counted += 1
                check_layout(one, rng)
    assert counted >= ranks * 50 // 64


@given(
    st.sampled_from(sorted(layouts(64))),
    st.sampled_from([None, *NAMES]),
    st.sampled_from([0, 1, 2, 3]),
    st.integers(0, 10**6),
)
@settings(max_examples=25)
def test_some_layouts(layout: tuple[int, int, int, int], schedule: str | None, zero: int, seed: int) -> None:
    one = taken(*layout, schedule if layout[1] > 1 else None, zero, 1)
    if one is not None:
        check_layout(one, np.random.default_rng(seed))
