"""One rank's Kineto trace of a job without GPU work, as with the gloo backend: the operators of the host are the work.

    operator      the outermost `cpu_op` events of a thread, in order; the time between two is host work as recorded
    collective    an annotation such as `gloo:all_reduce`, on a thread of the backend. The k-th that runs was launched
                  by the k-th `c10d::` operator, as the backend's queue is first in, first out. The operator is split
                  there
    waiting       the trace does not say what a thread waits for. Where a thread idles and a collective that it launched
                  ends in the second half of that time, the next operator is taken to have waited for it

A collective belongs to the only process group of more than one rank; with several the trace does not say to which.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from windtunnel.physics.graph.program import OpKind
from windtunnel.studies.traces.json_trace import JsonTrace
from windtunnel.studies.traces.kernel_kinds import collective_kind
from windtunnel.studies.traces.kineto.events import Event, Steps, event_of
from windtunnel.studies.traces.rank_ops import Communication, RankOps

_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc|nccl|xccl):")
_LAUNCH = re.compile(r"^c10d::\w")
_PREFIX = re.compile(r"^(aten::|autograd::engine::evaluate_function: (torch::autograd::)?)")


class Launched(NamedTuple):
    """A collective in the rank's ops."""

    end_ns: int
    op: int
    thread: Hashable  # that launched it


def cpu_ops(trace: JsonTrace, rank: int, steps: Steps) -> RankOps:
    """The ops of one file that holds no GPU work."""
    ops = RankOps(rank=rank, path=str(trace.path), notes=list(trace.notes))
    operators, collectives, damaged = _events(trace.items)
    if not operators and not collectives:
        return ops
    ops.notes.append("no GPU work in the trace: the operators of the host are taken for the work")
    if damaged:
        ops.notes.append(f"{damaged:,} events without usable time left out")
    calls = [event for event in operators if _LAUNCH.match(event.name)]
    agree = len(calls) == len(collectives) and all(
        collective_kind(call.name) == collective_kind(run.name) for call, run in zip(calls, collectives, strict=False)
    )
    if not agree:
        ops.notes.append(
            f"{len(collectives):,} collectives for {len(calls):,} calls of other kinds or number: when each was "
            "launched is not known"
        )
    launchers = calls if agree else []
    runs = _collectives(ops, trace, collectives, launchers, steps)
    by_thread: dict[Hashable, list[Event]] = {}
    for event in operators:
        by_thread.setdefault(event.thread, []).append(event)
    for number, thread in enumerate(sorted(by_thread, key=str)):
        mine = [(call.start_ns, at) for at, call in enumerate(launchers) if call.thread == thread]
        _thread(ops, number, _outermost(by_thread[thread]), mine, runs, steps)
    return ops


def _events(items: Sequence[object]) -> tuple[list[Event], list[Event], int]:
    """(operators, collectives, damaged events), in order of start, the longer first."""
    operators: list[Event] = []
    collectives: list[Event] = []
    damaged = 0
    for item in items:
        if type(item) is not dict or item.get("ph") != "X" or item.get("cat") not in ("cpu_op", "user_annotation"):
            continue
        name = item.get("name")
        is_run = type(name) is str and _COLLECTIVE.match(name) is not None
        if not is_run and item["cat"] != "cpu_op":
            continue
        event = event_of(item)
        if event is None:
            damaged += 1
        else:
            (collectives if is_run else operators).append(event)
    for events in (operators, collectives):
        events.sort(key=lambda event: (event.start_ns, -event.end_ns))
    return operators, collectives, damaged


def _outermost(events: Sequence[Event]) -> list[Event]:
    outermost: list[Event] = []
    for event in events:
        if not outermost or event.start_ns >= outermost[-1].end_ns:
            outermost.append(event)
    return outermost


def _collectives(
    ops: RankOps,
    trace: JsonTrace,
    collectives: Sequence[Event],
    launchers: Sequence[Event],
    steps: Steps,
) -> list[Launched]:
    group = _group(trace)
    if collectives and group is None:
        ops.notes.append(f"{len(collectives):,} collectives of which the trace does not say the process group")
    streams: dict[Hashable, int] = {}
    runs: list[Launched] = []
    for at, event in enumerate(collectives):
        if event.thread not in streams:
            streams[event.thread] = ops.stream_of(f"collectives on thread {event.thread}")
        duration_ns, size = event.end_ns - event.start_ns, str(event.args.get("Input Dims"))
        category = collective_kind(event.name)
        step = steps.at(launchers[at].start_ns if launchers else event.start_ns)
        op = ops.add(
            OpKind.COLLECTIVE,
            streams[event.thread],
            event.start_ns,
            duration_ns,
            event.name,
            category,
            (event.name, size),
            step,
        )
        if group is not None:
            ops.communications.append(Communication(op, group, None, (category, size), group[1], len(group[1])))
        runs.append(Launched(event.end_ns, op, launchers[at].thread if launchers else None))
    return runs


def _group(trace: JsonTrace) -> tuple[str, tuple[int, ...]] | None:
    """The only process group that has members to speak to."""
    info = trace.top.get("distributedInfo")
    if not isinstance(info, dict):
        return None
    world, listed = info.get("world_size"), info.get("pg_config")
    groups = []
    for entry in listed if isinstance(listed, list) else ():
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and len(ranks) > 1 and all(type(rank) is int for rank in ranks):
            groups.append((str(entry.get("pg_name")), tuple(ranks)))
    if not groups and type(world) is int and 1 < world < 10_000_000 and not listed:
        groups.append(("world", tuple(range(world))))
    return groups[0] if len(groups) == 1 else None


def _thread(
    ops: RankOps,
    number: int,
    operators: Sequence[Event],
    launches: Sequence[tuple[int, int]],
    runs: Sequence[Launched],
    steps: Steps,
) -> None:
    """The operators of a thread, split where they launch, and the host work between them."""
    stream = ops.stream_of(f"host thread {operators[0].thread}")
    free = operators[0].start_ns
    ops.openings.append(ops.add(OpKind.HOST, stream, free, 0, "before the first operator", "host", None))
    ends = sorted((runs[at].end_ns, runs[at].op) for _, at in launches)
    end_times = [end for end, _ in ends]
    pending = list(launches)
    for event in operators:
        step = steps.at(event.start_ns)
        name = _PREFIX.sub("", event.name)
        first, last = bisect_right(end_times, free), bisect_right(end_times, event.start_ns)
        waited = [op for _, op in ends[first:last]]
        ready = end_times[last - 1] if waited else free
        if event.start_ns - ready > ready - free:
            waited, ready = [], free  # mostly busy with something else
        if waited or event.start_ns > free:
            idle = ops.add(
                OpKind.HOST,
                stream,
                ready,
                event.start_ns - ready,
                "host work",
                "host",
                (number, "before " + name),
                step,
            )
            ops.waits += [(idle, op) for op in waited]
        free = event.start_ns
        while pending and pending[0][0] < event.end_ns:
            when, at = pending.pop(0)
            part = ops.add(
                OpKind.COMPUTE, stream, free, max(0, when - free), event.name, name, (number, "launching " + name), step
            )
            ops.waits.append((runs[at].op, part))
            free = max(free, when)
        ops.add(OpKind.COMPUTE, stream, free, event.end_ns - free, event.name, name, (number, name), step)
        free = event.end_ns
