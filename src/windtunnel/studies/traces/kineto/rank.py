"""One rank's Kineto trace as ops: host calls, GPU work, and what waits for what.

    host thread   its CUDA calls in order; the time between two calls is host work (Python, the framework) as recorded
    launch        GPU work waits for the call with the same correlation id
    stream        GPU work of a stream runs in the order in which it ran
    event         `cudaStreamWaitEvent`: GPU work launched afterwards on the waiting stream waits for what was launched
                  on the other stream before the event was recorded. The event's identity is in the trace only if it
                  was recorded with `enable_cuda_sync_events`; waits without it are counted
    synchronise   a call that waits for a stream, an event or the device ends when the GPU work launched before it has

(Lumos, MLSys'25, names these kinds.) The pure work of a synchronising call is what is left after the GPU work ended.
Waiting of one host thread for another is not in the trace; it stays part of the recorded host time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from windtunnel.physics.graph.program import OpKind
from windtunnel.studies.traces.json_trace import JsonTrace
from windtunnel.studies.traces.kernel_kinds import IS_COMMUNICATION, collective_kind, kernel_kind
from windtunnel.studies.traces.kineto.events import Event, Steps, event_of, steps_of
from windtunnel.studies.traces.rank_ops import Communication, RankOps

_GPU = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_CALLS = frozenset(("cuda_runtime", "cuda_driver", "privateuse1_runtime"))
_SYNCHRONISING = frozenset(
    (
        *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
        *("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize"),
    )
)
_WAITS_FOR_EVENT = frozenset(("cudaStreamWaitEvent", "hipStreamWaitEvent"))


_Stream = tuple[str, str]  # device and number, as the trace has them


class _Launch(NamedTuple):
    """GPU work in order of launch, for waits that mean "all that was launched before"."""

    when_ns: list[int]
    ops: list[int]


def rank_of(trace: JsonTrace) -> int | None:
    """The rank that the file says it is of."""
    info = trace.top.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


def loading_of(trace: JsonTrace) -> list[tuple[int, int]]:
    """When the host was in PyTorch's data loader, in nanoseconds."""
    spans = []
    for item in trace.items:
        if type(item) is dict and item.get("ph") == "X" and "DataLoader" in str(item.get("name")):
            event = event_of(item) if type(item.get("cat")) is str else None
            if event is not None:
                spans.append((event.start_ns, event.end_ns))
    return spans


def kineto_ops(trace: JsonTrace, rank: int) -> RankOps:
    """The ops of one file."""
    ops = RankOps(rank=rank, path=str(trace.path), notes=list(trace.notes))
    gpu, calls, syncs, comms, damaged = _sorted_out(trace.items)
    steps = steps_of(trace.items)
    if not gpu:
        from windtunnel.studies.traces.kineto.cpu import cpu_ops

        return cpu_ops(trace, rank, steps)
    if damaged:
        ops.notes.append(f"{damaged:,} events without usable time left out")
    used = {event.correlation for event in gpu}
    launched_by: dict[int, Event] = {}
    for launch in calls:
        if launch.correlation in used:
            launched_by.setdefault(launch.correlation, launch)
    streams: dict[_Stream, int] = {}
    by_stream: dict[_Stream, list[tuple[int, int]]] = {}
    correlated: dict[int, list[int]] = {}
    orphans = 0
    for event in sorted(gpu, key=_by_start):
        stream = (str(event.args.get("device")), str(event.args.get("stream")))
        if stream not in streams:
            streams[stream] = ops.stream_of(f"gpu {stream[0]} stream {stream[1]}")
        call = launched_by.get(event.correlation) if event.correlation >= 0 else None
        op = _gpu_op(ops, streams[stream], event, comms)
        ops.step[op] = steps.at(event.start_ns if call is None else call.start_ns)
        if call is None:
            orphans += 1
            when = event.start_ns
        else:
            when = call.start_ns
            correlated.setdefault(event.correlation, []).append(op)
        by_stream.setdefault(stream, []).append((when, op))
    if orphans:
        ops.notes.append(f"{orphans:,} of {len(gpu):,} GPU ops without the call that launched them: stream order only")
    launches: dict[_Stream, _Launch] = {}
    for key, pairs in by_stream.items():
        pairs.sort()
        launches[key] = _Launch([when for when, _ in pairs], [op for _, op in pairs])
    _host(ops, calls, syncs, correlated, launches, steps)
    _events(ops, calls, syncs, launches)
    return ops


def _by_start(event: Event) -> tuple[int, int]:
    return event.start_ns, event.end_ns


def _sorted_out(
    items: Sequence[object],
) -> tuple[list[Event], list[Event], dict[int, dict[str, object]], dict[int, dict[str, object]], int]:
    """(GPU work, CUDA calls, sync records by correlation, communication records by external id, damaged events)."""
    gpu: list[Event] = []
    calls: list[Event] = []
    syncs: dict[int, dict[str, object]] = {}
    comms: dict[int, dict[str, object]] = {}
    damaged = 0
    for item in items:
        if type(item) is not dict or item.get("ph") != "X":
            continue
        cat = item.get("cat")
        if type(cat) is not str:
            continue
        is_gpu, is_call = cat in _GPU, cat in _CALLS
        is_comm = item.get("name") == "record_param_comms"
        if not (is_gpu or is_call or is_comm or cat == "cuda_sync"):
            continue
        if is_comm or cat == "cuda_sync":
            args = item.get("args")
            args = args if type(args) is dict else {}
            key = args.get("External id" if is_comm else "correlation")
            if type(key) is int and (is_comm or key >= 0):  # calls without a number have -1
                (comms if is_comm else syncs)[key] = args
            continue
        event = event_of(item)
        if event is None or (is_gpu and type(event.args.get("stream")) not in (int, str)):
            damaged += 1
        else:
            (gpu if is_gpu else calls).append(event)
    return gpu, calls, syncs, comms, damaged


def _gpu_op(ops: RankOps, stream: int, event: Event, comms: dict[int, dict[str, object]]) -> int:
    duration_ns = event.end_ns - event.start_ns
    args = event.args
    if event.cat == "kernel" and IS_COMMUNICATION.match(event.name):
        return _communication(ops, stream, event, duration_ns, comms)
    if event.cat != "kernel":
        category = "memory copies" if event.cat == "gpu_memcpy" else "memory sets"
        peer: Hashable = (event.name, args.get("bytes") if type(args.get("bytes")) is int else 0)
    else:
        category = kernel_kind(event.name)
        peer = (event.name, str(args.get("grid")), str(args.get("block")))
    return ops.add(OpKind.COMPUTE, stream, event.start_ns, duration_ns, event.name, category, peer)


def _communication(
    ops: RankOps, stream: int, event: Event, duration_ns: int, comms: dict[int, dict[str, object]]
) -> int:
    """A NCCL kernel; what it says of itself, or the framework's record with the same external id."""
    args = event.args
    if "Process Group Name" not in args:
        external = args.get("External id")
        args = comms.get(external, args) if type(external) is int else args
    name = str(args.get("Collective name") or event.name)
    source, destination = args.get("Src Rank"), args.get("Dst Rank")
    is_pair = type(source) is int and type(destination) is int
    lowered = name.lower()
    kind = OpKind.COLLECTIVE
    if "send" in lowered and "recv" not in lowered:
        kind = OpKind.SEND
    elif "recv" in lowered and "send" not in lowered:
        kind = OpKind.RECV
    if kind == OpKind.SEND and type(destination) is int:
        source, is_pair = ops.rank, True
    elif kind == OpKind.RECV and type(source) is int:
        destination, is_pair = ops.rank, True
    category = {OpKind.SEND: "send", OpKind.RECV: "receive"}.get(kind) or collective_kind(name)
    ranks = _ranks(args.get("Process Group Ranks"))
    signature = (name if kind == OpKind.COLLECTIVE else "", args.get("dtype"), args.get("Group size"))
    size = str(args.get("In msg nelems"))
    op = ops.add(
        kind,
        stream,
        event.start_ns,
        duration_ns,
        event.name,
        category,
        (category, str(args.get("dtype")), size, len(ranks)),
    )
    group = args.get("Process Group Name")
    sequence, members = args.get("Seq"), args.get("Group size")
    if group is None or (kind != OpKind.COLLECTIVE and not is_pair):
        _count(ops, "communication kernels that do not say with whom", event.name)
        return op
    ops.communications.append(
        Communication(
            op=op,
            group=(str(group), ranks),
            sequence=sequence if type(sequence) is int else None,
            signature=tuple(map(str, signature)),
            ranks=ranks,
            n_members=members if type(members) is int else len(ranks),
            pair=(int(str(source)), int(str(destination)), 0) if kind != OpKind.COLLECTIVE else None,
        )
    )
    return op


def _count(ops: RankOps, what: str, example: str) -> None:
    for at, note in enumerate(ops.notes):
        number, _, rest = note.partition(" ")
        if rest.startswith(what):
            ops.notes[at] = f"{int(number.replace(',', '')) + 1:,} {rest}"
            return
    ops.notes.append(f"1 {what}, first '{example}'")


def _ranks(value: object) -> tuple[int, ...]:
    """`[0, 1, 2]`, as text or as a list; empty where it is abridged or missing."""
    if isinstance(value, str):
        inner = value.strip().removeprefix("[").removesuffix("]")
        parts: Sequence[str | int] = inner.split(",") if inner else []
    else:
        parts = value if isinstance(value, list) else []
    try:
        return tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        return ()


def _host(
    ops: RankOps,
    calls: list[Event],
    syncs: dict[int, dict[str, object]],
    correlated: dict[int, list[int]],
    launches: dict[_Stream, _Launch],
    steps: Steps,
) -> None:
    """The threads: one op per call that launches or synchronises, with the host work before it."""
    threads: dict[Hashable, list[Event]] = {}
    for call in calls:
        if call.correlation in correlated or call.name in _SYNCHRONISING:
            threads.setdefault(call.thread, []).append(call)
    ends = [s + d for s, d in zip(ops.start_ns, ops.duration_ns, strict=True)]
    by_name = {stream[1]: stream for stream in launches}
    for number, thread in enumerate(sorted(threads, key=str)):
        mine = sorted(threads[thread], key=_by_start)
        stream = ops.stream_of(f"host thread {thread}")
        free = mine[0].start_ns
        ops.openings.append(ops.add(OpKind.HOST, stream, free, 0, "before the first call", "host", None))
        last_stream = -1
        for call in mine:
            step = steps.at(call.start_ns)
            launched = correlated.get(call.correlation, ())
            if call.name not in _SYNCHRONISING:
                end = max(call.end_ns, free)
                op = ops.add(OpKind.HOST, stream, free, end - free, call.name, "host", (number, call.name), step)
                for work in launched:
                    ops.waits.append((work, op))
                if launched:
                    last_stream = ops.stream[launched[0]]
                free = end
                continue
            before = max(call.start_ns, free)
            ops.add(
                OpKind.HOST, stream, free, before - free, "host work", "host", (number, "before " + call.name), step
            )
            waited = _synchronised(call, syncs, launches, by_name, last_stream, ops)
            ready = max((ends[work] for work in waited), default=before)
            end = max(call.end_ns, before)
            pure = max(0, end - max(before, ready))
            op = ops.add(OpKind.HOST, stream, end - pure, pure, call.name, "host", (number, call.name), step)
            ops.waits += [(op, work) for work in waited]
            free = end


def _synchronised(
    call: Event,
    syncs: dict[int, dict[str, object]],
    launches: dict[_Stream, _Launch],
    by_name: dict[str, _Stream],
    last_stream: int,
    ops: RankOps,
) -> list[int]:
    """The GPU work for which a synchronising call waits: the last that each stream concerned was given before."""
    concerned = list(launches)
    before_ns = call.start_ns
    if "Device" not in call.name:
        record = syncs.get(call.correlation, {})
        stream_name = record.get("wait_on_stream") if "Event" in call.name else record.get("stream")
        if str(stream_name) in by_name:
            concerned = [by_name[str(stream_name)]]
        elif "Event" in call.name:
            _count(ops, "host waits for an event that the trace does not name", call.name)
            return []
        else:
            # Copies to the host synchronise the stream that they were just put on.
            concerned = [stream for stream in launches if ops.stream[launches[stream].ops[0]] == last_stream]
    last_ops: list[int] = []
    for stream in concerned:
        at = bisect_left(launches[stream].when_ns, before_ns)
        if at > 0:
            last_ops.append(launches[stream].ops[at - 1])
    return last_ops


def _events(
    ops: RankOps, calls: list[Event], syncs: dict[int, dict[str, object]], launches: dict[_Stream, _Launch]
) -> None:
    """Streams that wait for events of other streams."""
    called = {call.correlation: call.start_ns for call in calls if call.correlation >= 0}
    by_name = {stream[1]: stream for stream in launches}
    for call in calls:
        if call.name not in _WAITS_FOR_EVENT:
            continue
        record = syncs.get(call.correlation, {})
        correlation = record.get("wait_on_cuda_event_record_corr_id")
        recorded = called.get(correlation) if type(correlation) is int else None
        waiting, other = by_name.get(str(record.get("stream"))), by_name.get(str(record.get("wait_on_stream")))
        if not record or recorded is None:
            _count(ops, "stream waits for an event that the trace does not name: work may start too early", call.name)
            continue
        if waiting is None or other is None or waiting == other:
            continue  # one of the two streams has no work in the trace, or the order is the stream's own
        after = bisect_left(launches[waiting].when_ns, call.start_ns)
        before = bisect_left(launches[other].when_ns, recorded)
        if after < len(launches[waiting].ops) and before > 0:
            ops.waits.append((launches[waiting].ops[after], launches[other].ops[before - 1]))
