"""Capturing a whole job: play a few ranks of the script, find who is like whom, check that, keep one of each class.

1. Rank 0 is played. Its groups give the grid of ranks, its messages the dimensions along which all coordinates are run.
2. `representatives.find_classes` asks for ranks until it knows the classes; pipelines run together.
3. Ranks drawn at random are played and held against the class they were taken to be of. One that differs is taken into
   the search, which begins again, and more are drawn; where that finds no end, the capture ends with the first op that
   differs: a fold that is not exact is worth nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from windtunnel.errors import SpecError
from windtunnel.process import terminated_is_an_end
from windtunnel.real.capture.arguments import Launch
from windtunnel.real.capture.checks import Checks, first_hash_seed
from windtunnel.real.capture.period import Part, Period
from windtunnel.real.capture.processes.leftovers import sweep
from windtunnel.real.capture.processes.rank_process import EmptyStepError
from windtunnel.real.capture.processes.rank_server import ScriptError
from windtunnel.real.capture.processes.scheduler import Outcome, Report, Workers
from windtunnel.real.capture.source.conditions import MOST_RANKS, ranks_named
from windtunnel.real.capture.source.rank_tests import RankTest, World, not_met, rank_tests
from windtunnel.studies.programs.folder import publish, runs_document, table_document
from windtunnel.studies.programs.program_file import numbers_of, read_program
from windtunnel.studies.programs.rank_classes.draws import draw, parts_of_ranks
from windtunnel.studies.programs.rank_classes.equality import first_difference
from windtunnel.studies.programs.rank_classes.flat_buffers import DIMENSIONS, TENSORS, FlatBuffer, TestedRanks
from windtunnel.studies.programs.rank_classes.grid import Grid, RankAxes, find_grid
from windtunnel.studies.programs.rank_classes.representatives import Table, find_axes, find_classes
from windtunnel.studies.programs.rank_classes.search import NoClassesError
from windtunnel.studies.programs.rank_classes.uneven_shards import Tail

LOAD = ("torch", "torch.distributed")
# What scripts import anyway, so that it is imported once.
TRY_TO_LOAD = (
    *("torch.distributed.device_mesh", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"),
    *("torch.distributed.pipelining", "torch.distributed.checkpoint", "torch.distributed.tensor.experimental"),
    *("torch.nn.parallel", "torch.utils.checkpoint", "torch.utils.data", "torch._dynamo", "numpy"),
    *(f"windtunnel.real.capture.virtual_world.{name}" for name in ("world", "initialisation", "objects")),
    *("windtunnel.real.capture.recorder.recorder", "windtunnel.real.capture.fake_tensors.fake"),
)
PLAYER = "windtunnel.real.capture.processes.rank_process:play"
PLAYS = {"load": LOAD, "try_to_load": TRY_TO_LOAD, "player": PLAYER}  # as `Workers` take it
DRAWN, FEW_RANKS = 4, 8
MOST_DRAWS = 4  # times that drawn ranks may differ from what they were taken to be
MORE_DRAWN = 4  # times as many are drawn after that: a rank that differs and was met by chance is hardly ever alone
MOST_NAMED = 3  # tests that are not understood
MOST_AT_ALL = 4096  # ranks that `--representatives all` plays


@dataclass(frozen=True)
class Options:
    """How to capture."""

    steps: int = 2  # the last one is kept
    device: Literal["cuda", "cpu"] = "cuda"
    ranks: tuple[int, ...] = ()  # only these; nothing is said about others
    representatives: Literal["auto", "all"] = "auto"
    verify: int | None = None  # ranks drawn at random; None: DRAWN, or all of a job of up to FEW_RANKS
    seed: int = 0
    answers: Mapping[str, str] = field(default_factory=dict)  # what control flow is told: loss=2.0
    timeout_s: float = 600.0  # for one rank, not counting what it waits for others and for a core
    jobs: int | None = None  # ranks played at a time; as many as there are cores
    stand_ins: tuple[str, ...] = ()  # packages that are not installed, and that the script cannot do without


def capture_job(launch: Launch, options: Options, out: Path, report: Report | None = None) -> dict[str, object]:
    """Capture one steady step of every rank of a script, into a folder; the folder's document.

    Raises ScriptError (the script cannot be captured) and other UserErrors. Whatever the end, no process and no
    temporary file is left (of SIGKILL: after the next start).
    """
    from windtunnel.studies.programs.folder import check_place, sweep_place

    start = time.monotonic()
    _check(launch, options)
    check_place(out)
    sweep_place(out)
    sweep()
    while True:
        try:
            return _with_workers(launch, options, out, start, report)
        except ScriptError as error:  # the script knows no other way: what stands in for the package, then
            if not error.missing or error.missing in options.stand_ins:
                raise
            options = replace(options, stand_ins=(*options.stand_ins, error.missing))


def _with_workers(
    launch: Launch, options: Options, out: Path, start: float, report: Report | None
) -> dict[str, object]:
    waiting = {"cores": options.jobs, "timeout_s": options.timeout_s, "report": report}
    seed = first_hash_seed()
    with terminated_is_an_end(), Workers(PLAYS, **waiting, hash_seed=seed) as workers:  # type: ignore[arg-type]
        checks = Checks(launch, options.device, workers)
        try:
            return _captured(launch, options, workers, checks, out, start)
        except ScriptError as error:
            if any(outcome.get("ended") for outcome in workers.outcomes.values()):  # do all end like this one?
                few = range(launch.world_size) if launch.world_size <= FEW_RANKS else _ranks_in_source(launch, workers)
                others = options.ranks or few
                workers.run_whatever_comes(others, task_of(launch, options))
            elif workers.outcomes and 0 not in workers.outcomes and not options.ranks:  # does the first raise too?
                workers.run_whatever_comes([0], task_of(launch, options))
            checks.explain(error)
            raise


def _captured(
    launch: Launch, options: Options, workers: Workers, checks: Checks, out: Path, start: float
) -> dict[str, object]:
    task = task_of(launch, options)
    table: Table | None = None
    notes: list[str] = []
    unmet: list[str] = []
    if options.ranks:
        workers.run(options.ranks, task, helpers_end=True)
        classes = {rank: [rank] for rank in options.ranks}
        grid = _grid(launch, [workers.outcomes[rank] for rank in options.ranks])
        tables: dict[str, Any] = {"grid": {"sizes": list(grid.sizes), "names": list(grid.names)}}
        verified: list[int] = []
    elif options.representatives == "all":
        workers.run(range(launch.world_size), task)
        classes, grid, tables = _from_all(launch, workers)
        verified = list(range(launch.world_size))
    else:
        table, verified, notes, unmet = from_few(launch, options, workers, task)
        tables, grid = table_document(table), table.layout.grid
        classes = {rank: [rank] for rank in table.counts()}
    if not options.ranks and not any(outcome["flops"] for outcome in workers.outcomes.values()):
        raise EmptyStepError(launch.line, f"step {options.steps} multiplies nothing (0 FLOPs) on any rank")
    checks.compare_calls()
    counts = table.counts() if table else {rank: len(ranks) for rank, ranks in classes.items()}
    facts = {**_facts(launch, options, workers, verified), **tables}
    facts["seconds"] = round(time.monotonic() - start, 2)
    period = Period(workers, sorted(classes))
    parts = [
        Part(
            {**facts, "classes": [_class(grid, of[rank], counts[rank]) for rank in sorted(classes)]}, files, name, steps
        )
        for name, steps, of, files in period.parts()
    ]
    main = parts[0]
    for part in parts:
        checks.compare_programs(part.document, part.files, whole=not options.ranks)
    checks.compare_own_data(task)
    checks.compare_orders_of_sets(task)
    main.document.update(checks.document() | period.document())
    unmet = unmet or _not_run(launch, workers)
    main.document["not_seen"] = [*period.unseen, *checks.not_reached(), *unmet]
    main.document["notes"] = sorted({*facts["notes"], *checks.notes, *notes})
    publish(out, main.document, main.files, {part.name: (part.document, part.files) for part in parts[1:]})
    return dict(main.document)


def from_few(
    launch: Launch, options: Options, workers: Workers, task: Mapping[str, object]
) -> tuple[Table, list[int], list[str], list[str]]:
    """Whom each rank is like, the ranks drawn to test it, notes, and what no rank met.

    Raises ScriptError where no few stand for all.
    """
    all_will_run = options.verify is None and launch.world_size <= FEW_RANKS
    workers.run([0], task, helpers_end=not all_will_run)
    layout = _layout(launch, workers.outcomes)

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        workers.run(ranks, task, helpers_end=True)
        return {rank: str(workers.outcomes[rank]["digest"]) for rank in ranks}

    def kind_of(rank: int) -> object:
        return workers.outcomes[rank]["kind"]

    def tails_of(rank: int) -> list[Tail]:
        return [(numbers_of(runs), places) for runs, places in workers.outcomes[rank]["tails"]]

    def buffers_of(rank: int) -> list[FlatBuffer]:
        return [
            FlatBuffer(numbers_of(runs), part, tuple(map(tuple, tensors)))
            for runs, part, tensors in workers.outcomes[rank]["buffers"]
        ]

    find = partial(find_classes, digests=digests, kind_of=kind_of, tails_of=tails_of, buffers_of=buffers_of)
    tests: list[RankTest] = []
    class_tests: list[RankTest] = []  # that tell a rank from those that it was taken to be like
    detail = DIMENSIONS
    odd_ranks: list[int] = []
    notes: list[str] = []
    few = FEW_RANKS if launch.world_size <= FEW_RANKS else DRAWN
    count = few if options.verify is None else options.verify
    try:
        for turn in range(MOST_DRAWS):
            table = find(layout, ranks_run=odd_ranks, tested=_tested(class_tests), detail=detail)
            refined = _layout(launch, workers.outcomes)
            if refined != layout:  # other ranks call in groups that rank 0 is not in
                layout = refined
                table = find(layout, ranks_run=odd_ranks, tested=_tested(class_tests), detail=detail)
            if not turn:
                tests, missed = _tests(launch, workers)
            parts = parts_of_ranks(layout, buffers_of(0), [test.holds for test in tests])
            named = _ranks_in_source(launch, workers, tests)
            doubtful = _doubtful(table, tests, workers)[:count]
            ranks_run = {*workers.outcomes, *named, *doubtful}
            sample = sorted([*doubtful, *draw(layout, count - len(doubtful), options.seed + turn, ranks_run, parts)])
            digests([*sample, *named])
            # Ranks that were played because others waited for them are as good a test as those that were drawn.
            new_odd_ranks = _those_that_differ(table, workers)
            if not new_odd_ranks:
                unmet = [*_not_run(launch, workers, len(sample), tests), *_missed(missed)]
                return table, sample, notes, unmet
            odd_ranks += new_odd_ranks
            like = [table.representative_of(rank) for rank in new_odd_ranks]
            explanations = [test for test in tests if (test.holds[new_odd_ranks] != test.holds[like]).any()]
            class_tests += [test for test in explanations if test not in class_tests]
            by_chance = [rank for rank in new_odd_ranks if rank not in named and rank not in doubtful]
            if by_chance:
                detail = min(detail + (not explanations), TENSORS)
                count *= MORE_DRAWN
                what = "met by chance, ran another program than the ranks that it was taken to be like"
                notes.append(f"rank {by_chance[0]:,}, {what}: {count} more were drawn")
    except NoClassesError as error:
        workers.run([error.one, error.other], task)
        raise _not_folded(launch, workers, layout.grid, error.one, error.other) from None
    raise _not_folded(launch, workers, layout.grid, table.representative_of(odd_ranks[-1]), odd_ranks[-1])


def _tests(launch: Launch, workers: Workers) -> tuple[list[RankTest], list[str]]:
    outcome = workers.outcomes[0]
    meshes = [(tuple(names), tuple(sizes)) for names, sizes in outcome["meshes"]]
    numbers_of_ranks = [set(of.get("numbers", {}).items()) for of in workers.outcomes.values()]
    local_size = min(launch.local_world_size, launch.world_size)
    world = World(launch.world_size, local_size, meshes, dict(set.intersection(*numbers_of_ranks)))
    return rank_tests(outcome.get("files", {}), world)


def _missed(tests: Sequence[str]) -> list[str]:
    few = ", ".join(tests[:MOST_NAMED])
    return [f"tests of the rank that were not understood: {few}{' ...' * (len(tests) > MOST_NAMED)}"] * bool(tests)


def _doubtful(table: Table, tests: Sequence[RankTest], workers: Workers) -> list[int]:
    """A rank for each test that tells it from those that it is taken to be like, as it does tell all programs apart."""
    ranks = []
    like = np.array([table.representative_of(rank) for rank in range(table.layout.grid.world_size)])
    for test in tests:
        truths: dict[object, set[bool]] = {}
        for rank, outcome in workers.outcomes.items():
            truths.setdefault(outcome["digest"], set()).add(bool(test.holds[rank]))
        against = (test.holds != test.holds[like]).nonzero()[0]
        if len(against) and all(len(of) == 1 for of in truths.values()) and len(truths) > 1:
            ranks.append(int(against[len(against) // 2]))
    return [rank for rank in dict.fromkeys(ranks) if rank not in workers.outcomes]


def _tested(tests: Sequence[RankTest]) -> TestedRanks | None:
    if not tests:
        return None
    truths = zip(*(test.holds.astype(int).tolist() for test in tests), strict=True)
    return TestedRanks(tuple(range(len(tests[0].holds))), tuple(truths))


def _not_run(launch: Launch, workers: Workers, drawn: int = 0, tests: Sequence[RankTest] = ()) -> list[str]:
    left = launch.world_size - len(workers.outcomes)
    if not left:
        return []
    text = f"{left:,} of {launch.world_size:,} ranks were not run"
    if drawn:
        text += (
            ": programs of their own that neither source nor shards tell of may be missed"
            f" ({drawn} ranks were drawn; --verify draws more)"
        )
    return [text, *not_met(tests, list(workers.outcomes))]


def _ranks_in_source(launch: Launch, workers: Workers, tests: Sequence[RankTest] = ()) -> list[int]:
    """Ranks that the script's source treats on their own, and the last: a few of a large job.

    First those for which a test gives what it gives on no rank that was run.
    """
    if launch.world_size <= FEW_RANKS:
        return []
    ranks = [*workers.outcomes, launch.world_size - 1]
    unmet = [(test.holds != test.holds[0]).nonzero()[0] for test in tests if len({*test.holds[ranks]}) == 1]
    meeting = [int(those[len(those) // 2]) for those in unmet]
    named = dict.fromkeys([*meeting, *ranks_named(list(workers.outcomes[0].get("files", {})), launch.world_size)])
    return [*[*named][:MOST_RANKS], launch.world_size - 1]


def _those_that_differ(table: Table, workers: Workers) -> list[int]:
    """Ranks that were run and are not what the table takes them to be."""
    digest = {rank: outcome["digest"] for rank, outcome in workers.outcomes.items()}
    return [rank for rank in sorted(digest) if digest[rank] != digest[table.representative_of(rank)]]


def _not_folded(launch: Launch, workers: Workers, grid: Grid, representative: int, other: int) -> ScriptError:
    programs = [read_program(workers.folder / f"program_{rank}.jsonl.gz") for rank in (representative, other)]
    difference = first_difference(*programs)
    what = difference.text if difference else "their programs have different digests"
    return ScriptError(
        f"no few ranks stand for all {launch.world_size:,}: rank {other} ({grid.label(other)}) should run what rank"
        f" {representative} ({grid.label(representative)}) runs, and does not: {what}; the job is not folded. If what"
        " differs is data, make it equal; or run every rank with --representatives all, or some with --ranks"
    )


def _from_all(launch: Launch, workers: Workers) -> tuple[dict[int, list[int]], Grid, dict[str, object]]:
    outcomes = workers.outcomes
    layout = _layout(launch, outcomes)
    first: dict[object, int] = {}
    classes: dict[int, list[int]] = {}
    chosen = []
    for rank in range(launch.world_size):
        exact, _ = layout.place(rank)
        representative = first.setdefault((exact, outcomes[rank]["digest"]), rank)
        classes.setdefault(representative, []).append(rank)
        chosen.append(representative)
    return classes, layout.grid, runs_document(layout.grid, chosen)


def _grid(launch: Launch, outcomes: Sequence[Outcome]) -> Grid:
    groups = {numbers_of(runs) for outcome in outcomes for runs in outcome["groups"]}
    meshes = {(tuple(names), tuple(sizes)) for outcome in outcomes for names, sizes in outcome["meshes"]}
    return find_grid(launch.world_size, groups, sorted(meshes))


def _layout(launch: Launch, outcomes: Mapping[int, Outcome]) -> RankAxes:
    grid = _grid(launch, list(outcomes.values()))
    pairs = {(rank, peer) for rank, outcome in outcomes.items() for peer in outcome["peers"] if peer >= 0}
    return find_axes(grid, sorted(pairs))


def task_of(launch: Launch, options: Options) -> dict[str, object]:
    """What a rank is told to play."""
    return {
        "launch": asdict(launch),
        "steps": options.steps,
        "device": options.device,
        "answers": dict(options.answers),
        "timeout_s": options.timeout_s,
        "goes_on": not options.ranks,
        "stand_ins": list(options.stand_ins),
    }


def _check(launch: Launch, options: Options) -> None:
    for rank in options.ranks:
        if not 0 <= rank < launch.world_size:
            raise SpecError("--ranks", rank, f"ranks are 0 to {launch.world_size - 1}")
    if options.steps < 1:
        raise SpecError("--steps", options.steps, "capture at least one step")
    if options.verify is not None and options.verify < 0:
        raise SpecError("--verify", options.verify, "give a number of ranks, or 0 to trust the representatives")
    if options.timeout_s <= 0:
        raise SpecError("--timeout", options.timeout_s, "give seconds, more than 0")
    if options.jobs is not None and options.jobs < 1:
        raise SpecError("--jobs", options.jobs, "give at least 1")
    if options.representatives == "all" and not options.ranks and launch.world_size > MOST_AT_ALL:
        raise SpecError("--representatives", "all", f"would play {launch.world_size} ranks; give auto, or --ranks")


def _facts(launch: Launch, options: Options, workers: Workers, verified: Sequence[int]) -> dict[str, object]:
    outcomes = workers.outcomes
    answers: dict[tuple[str, str, str], int] = {}
    for outcome in outcomes.values():
        for what, answer, where, count in outcome["answers"]:
            answers[what, answer, where] = max(count, answers.get((what, answer, where), 0))
    first = next(iter(outcomes.values()))
    return {
        "script": {"line": launch.line, "arguments": list(launch.arguments), "folder": os.getcwd()},
        "world_size": launch.world_size,
        "local_world_size": launch.local_world_size,
        "facts": {"device": options.device, "step": options.steps, **first.get("facts", {})},
        "faked": first.get("faked", []),
        "verification": {
            "drawn": list(verified),
            "seed": options.seed,
            "played": len(outcomes),
            "equal": True if verified or len(outcomes) == launch.world_size else None,  # None: nothing was checked
        },
        "answers": [
            {"what": what, "told": answer, "where": where, "times": times}
            for (what, answer, where), times in sorted(answers.items())
        ],
        "notes": sorted({note for outcome in outcomes.values() for note in outcome["notes"]}),
        "seconds_of_one_rank": round(max(outcome["seconds"] for outcome in outcomes.values()), 2),
        "cpu_seconds_of_one_rank": round(max(outcome["cpu_seconds"] for outcome in outcomes.values()), 2),
        "peak_rss_bytes": max(outcome["peak_rss_bytes"] for outcome in outcomes.values()),
    }


def _class(grid: Grid, outcome: Outcome, count: int) -> dict[str, object]:
    rank = int(outcome["rank"])
    return {
        "rank": rank,
        "at": grid.label(rank),
        "ranks": count,
        "ops": outcome["ops"],
        "flops": outcome["flops"],
        "collectives": _calls(outcome["collectives"]),
        "control": _calls(outcome["control"]),
        "peak_bytes": outcome["peak_bytes"],
        "peak_op": outcome["peak_op"],
        "resident_bytes": outcome["resident_bytes"],
    }


def _calls(entry: Mapping[str, Sequence[int]]) -> dict[str, dict[str, int]]:
    return {kind: {"calls": calls, "bytes": moved} for kind, (calls, moved) in sorted(entry.items())}
