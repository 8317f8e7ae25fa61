"""An operation table as a `Trace`: the pattern of one replica, laid out for every replica and step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph.program import Graph, OpKind
from windtunnel.studies.traces.clocks import clock_offsets
from windtunnel.studies.traces.operation_table.operation_table import (
    COMMUNICATION,
    KINDS,
    OPTIMIZER,
    OperationTable,
    read_operation_table,
)
from windtunnel.studies.traces.operation_table.pipeline_order import STREAMS, Pattern, find_pattern
from windtunnel.studies.traces.trace import Trace

_SKEW_S = 0.05  # clocks that differ by more are put right; by less, the ends of a rendezvous differ anyway
_UNTRUSTED = 0.1
_KIND_SHOWN = {
    "forward-send": "forward-pp-comm",
    "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}


def read_table_trace(path: Path) -> Trace:
    """Read an operation table and rebuild what waited for what.

    Raises InputFileError: the table cannot be read, or cannot be replayed.
    """
    table = read_operation_table(path)
    notes = list(table.notes)
    usual = _usual_order(table, notes)
    pattern = find_pattern(path, table, usual)
    start_s = _aligned(table, pattern, notes)
    return _trace(table, pattern, start_s, notes)


def _instances(pattern: Pattern, n_steps: int, n_replicas: int) -> NDArray[np.int64]:
    """int64[s, r, k]: the rendezvous that each op takes part in, dense from 0; -1 for an op that meets nobody."""
    k = len(pattern.stream)
    local = np.full(k, -1, np.int64)
    for number, members in enumerate(pattern.meets):
        local[list(members)] = number
    alone = pattern.across_replicas & (local < 0)
    local[alone] = len(pattern.meets) + np.arange(np.count_nonzero(alone))
    n_local = int(local.max(initial=-1)) + 1
    step = np.arange(n_steps, dtype=np.int64)[:, None, None]
    replica = np.arange(n_replicas, dtype=np.int64)[None, :, None]
    instance = (step * n_replicas + np.where(pattern.across_replicas, 0, replica)) * n_local + local
    _, dense = np.unique(np.where(local >= 0, instance, -1), return_inverse=True)
    dense = dense.reshape(n_steps, n_replicas, k)
    shift = 1 if (local < 0).any() else 0
    return np.asarray(dense - shift, dtype=np.int64)


def _aligned(table: OperationTable, pattern: Pattern, notes: list[str]) -> NDArray[np.float64]:
    """Starts on one clock."""
    n_steps, n_replicas, k = table.start_s.shape
    rendezvous = _instances(pattern, n_steps, n_replicas)
    worker = np.broadcast_to(np.arange(n_replicas)[:, None] * table.n_stages + table.stage, (n_steps, n_replicas, k))
    tied = rendezvous >= 0
    ahead = clock_offsets(
        worker[tied].astype(np.int32),
        rendezvous[tied],
        (table.start_s + table.duration_s)[tied],
        n_replicas * table.n_stages,
    )
    skewed = np.abs(np.nan_to_num(ahead)) > _SKEW_S
    put_right = np.asarray(table.start_s - np.where(skewed, ahead, 0.0)[worker])
    before = _apart(rendezvous, table.start_s + table.duration_s)
    after = _apart(rendezvous, put_right + table.duration_s)
    if skewed.any() and after < 0.5 * before:
        at = int(np.nanargmax(np.abs(ahead)))
        notes.append(
            f"clocks of {np.count_nonzero(skewed)} of {len(ahead)} workers put right, by what their common "
            f"communication ends at: replica {table.replicas[at // table.n_stages]} stage {at % table.n_stages} "
            f"was {ahead[at]:+.3f} s off"
        )
    else:
        put_right, after = table.start_s, before
    if after > _UNTRUSTED:
        notes.append(
            f"{after:.0%} of the common communication ends more than {_SKEW_S * 1e3:.0f} ms apart on its members, "
            "which no constant offset of their clocks explains: clocks that drift or jump make transfers wrong"
        )
    return put_right


def _apart(rendezvous: NDArray[np.int64], end_s: NDArray[np.float64]) -> float:
    """Share of the rendezvous whose members end further apart than clocks may differ."""
    tied = rendezvous >= 0
    number, end = rendezvous[tied], end_s[tied]
    n = int(number.max(initial=-1)) + 1
    if not n:
        return 0.0
    first, last = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(first, number, end)
    np.maximum.at(last, number, end)
    members = np.bincount(number, minlength=n) > 1
    return float((last - first > _SKEW_S)[members].mean()) if members.any() else 0.0


def _usual_order(table: OperationTable, notes: list[str]) -> tuple[int, int]:
    """The (step, replica) that is the pattern for all: the first, as in the study, unless its computes alone ran in
    such an order while others agree on another.
    """
    n_steps, n_replicas, _ = table.start_s.shape
    orders = [
        np.argsort(table.start_s[:, :, mine], axis=2, kind="stable")
        for mine in (np.flatnonzero((table.stage == s) & (table.kind < 2)) for s in range(table.n_stages))
    ]
    joined = np.concatenate(orders, axis=2).reshape(n_steps * n_replicas, -1)
    _, first, inverse, counts = np.unique(joined, axis=0, return_index=True, return_inverse=True, return_counts=True)
    best = int(inverse.reshape(-1)[0])
    if counts[best] == 1:
        best = int(np.lexsort((first, -counts))[0])
    differing = len(joined) - int(counts[best])
    if differing:
        notes.append(
            f"computes of {differing:,} of {len(joined):,} replica-steps ran in another order than those of the rest"
        )
    step, replica = divmod(int(first[best]), n_replicas)
    return step, replica


def _trace(table: OperationTable, pattern: Pattern, start_s: NDArray[np.float64], notes: list[str]) -> Trace:
    n_steps, n_replicas, k = start_s.shape
    n_instances, n_stages = n_steps * n_replicas, table.n_stages
    rendezvous = _instances(pattern, n_steps, n_replicas).reshape(n_instances, k)
    start, duration = start_s.reshape(n_instances, k), table.duration_s.reshape(n_instances, k)
    end = start + duration
    transfer = _transfer(rendezvous, start, end, duration)

    order = pattern.order
    place = np.empty(k, np.int64)  # of op j in its instance's part of the arrays
    place[order] = np.arange(k)
    first = np.arange(n_instances, dtype=np.int64)[:, None] * k
    waits = np.array(sorted((int(place[op]), int(place[dep])) for op, dep in set(pattern.waits)), dtype=np.int64)
    waits = waits.reshape(-1, 2)
    dep_count = np.bincount(waits[:, 0], minlength=k)
    dep_ptr = np.zeros(n_instances * k + 1, np.int64)
    np.cumsum(np.tile(dep_count, n_instances), out=dep_ptr[1:])
    n_local = n_stages * len(STREAMS)
    kind = table.kind[order]
    shown = [_KIND_SHOWN.get(name, name) for name in KINDS]
    categories = tuple(dict.fromkeys(shown))
    labels = tuple(f"{KINDS[table.kind[j]]} {table.seq[j]}" for j in order)
    op_kind = np.array([_op_kind(name) for name in KINDS], dtype=np.uint8)
    zeros = np.zeros(n_instances * k)

    def tiled(values: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.tile(values.astype(np.int32), n_instances)

    graph = Graph(
        kind=np.tile(op_kind[kind], n_instances),
        stream=(np.arange(n_instances)[:, None] * n_local + pattern.stream[order]).reshape(-1).astype(np.int32),
        stream_rank=np.repeat(np.arange(n_instances * n_stages, dtype=np.int32), len(STREAMS)),
        dep_ptr=dep_ptr,
        dep_idx=(first + waits[:, 1]).reshape(-1).astype(np.int32),
        rendezvous=rendezvous[:, order].reshape(-1).astype(np.int32),
        label=tiled(np.arange(k, dtype=np.int32)),
        category=tiled(np.array([categories.index(name) for name in shown])[kind]).astype(np.uint16),
        flops=zeros,
        bytes=zeros,
        multiplicity=np.ones(n_instances * n_stages, np.int64),
        labels=labels,
        categories=categories,
        stream_names=STREAMS * (n_instances * n_stages),
    )
    replica = np.arange(n_instances) % n_replicas
    communication = np.array([name in COMMUNICATION for name in KINDS])
    worker_replica = np.repeat(np.array(table.replicas, dtype=np.int32), n_stages)
    worker_stage = np.tile(np.arange(n_stages, dtype=np.int32), n_replicas)
    return Trace(
        source="operation table",
        graph=graph,
        duration_ns=np.rint(transfer[:, order].reshape(-1) * 1e9).astype(np.int64),
        peers=tiled(kind),
        is_communication=np.tile(communication[kind], n_instances),
        worker=(replica[:, None] * n_stages + table.stage[order]).reshape(-1).astype(np.int32),
        step=np.repeat(np.arange(n_steps, dtype=np.int32), n_replicas * k),
        worker_names=tuple(f"replica {r} stage {s}" for r, s in zip(worker_replica, worker_stage, strict=True)),
        replica=worker_replica,
        stage=worker_stage,
        steps=table.steps,
        measured_ns=np.rint((end.reshape(n_steps, -1).max(1) - start.reshape(n_steps, -1).min(1)) * 1e9).astype(
            np.int64
        ),
        worker_rank=table.rank.reshape(-1),
        ends_step=tiled(kind) == KINDS.index(OPTIMIZER),
        forward_backward_correlation=_correlation(table),
        notes=tuple(notes),
    )


def _correlation(table: OperationTable) -> float | None:
    """Pearson correlation of forward and backward time of a micro-batch, mean over the model chunks.

    Near 1 when micro-batches are unequal work, as with sequences of unequal length; near 0 for noise of the machine.
    """
    coefficients: list[float] = []
    forward, backward = (np.flatnonzero((table.kind == number) & (table.micro_batch >= 0)) for number in (0, 1))
    for chunk in np.unique(table.model_chunk[forward]):
        mine = {int(table.micro_batch[j]): int(j) for j in backward[table.model_chunk[backward] == chunk]}
        pairs = [
            (int(j), mine[int(table.micro_batch[j])])
            for j in forward[table.model_chunk[forward] == chunk]
            if int(table.micro_batch[j]) in mine
        ]
        if pairs:
            a, b = (table.duration_s[:, :, list(side)].reshape(-1) for side in zip(*pairs, strict=True))
            if a.std() > 0 and b.std() > 0:
                coefficients.append(float(np.corrcoef(a, b)[0, 1]))
    return sum(coefficients) / len(coefficients) if coefficients else None


def _transfer(
    rendezvous: NDArray[np.int64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    duration: NDArray[np.float64],
) -> NDArray[np.float64]:
    """What a member of a rendezvous still takes after the last one has arrived; the duration of any other op."""
    latest = np.full(int(rendezvous.max(initial=-1)) + 2, -np.inf)  # the last entry: ops that meet nobody
    np.maximum.at(latest, rendezvous.reshape(-1), start.reshape(-1))
    transfer_s = np.where(rendezvous >= 0, end - latest[rendezvous], duration)
    return np.asarray(np.maximum(transfer_s, 0.0))


def _op_kind(name: str) -> OpKind:
    if name.endswith("-send"):
        return OpKind.SEND
    if name.endswith("-recv"):
        return OpKind.RECV
    return OpKind.COLLECTIVE if name in COMMUNICATION else OpKind.COMPUTE
