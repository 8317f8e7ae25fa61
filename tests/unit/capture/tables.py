"""Operation tables of made-up jobs: 1F1B, simulated by hand, so that every duration and dependency is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
SEND_S = 0.001


def one_f_one_b(stage: int, n_stages: int, n_micro: int) -> list[tuple[str, int]]:
    """(kind, micro-batch) in the order in which a stage computes."""
    warm = min(n_stages - 1 - stage, n_micro)
    order = [("forward", m) for m in range(warm)]
    for m in range(n_micro - warm):
        order += [("forward", warm + m), ("backward", m)]
    return order + [("backward", m) for m in range(n_micro - warm, n_micro)]


def job(
    n_stages: int = 3,
    n_replicas: int = 2,
    n_micro: int = 4,
    steps: tuple[int, ...] = (7, 9),
    seconds: Callable[[str, int, int, int, int], float] = lambda kind, step, replica, stage, micro: 0.1,
    clock_s: Callable[[int, int], float] = lambda replica, stage: 0.0,
) -> list[Row]:
    """Rows of a job whose computes take `seconds(kind, step, replica, stage, micro-batch)`; sends take SEND_S."""
    rows: list[Row] = []
    for step in steps:
        ends: list[float] = []
        mine: list[Row] = []
        for replica in range(n_replicas):
            rows_of, end = _pipeline(step, replica, n_stages, n_micro, seconds)
            mine += rows_of
            ends += [end[stage] for stage in range(n_stages)]
        for replica in range(n_replicas):
            for stage in range(n_stages):
                begin = ends[replica * n_stages + stage]
                tail = [("gc", 0.0), ("layernorm-grads-all-reduce", 0.0001)]
                for kind, taken in tail:
                    mine.append(_row(step, replica, stage, kind, 0, begin, taken))
                    begin += taken
                clipped = max(ends) + 0.0001 + 0.002
                mine.append(_row(step, replica, stage, "optimizer-clip-main-grad", 0, begin, clipped - begin))
                mine.append(_row(step, replica, stage, "optimizer", 0, clipped, 0.01))
        for row in mine:
            row["start_ts"] += clock_s(row["dp_rank"], row["stage"])
        rows += mine
    return rows


def _pipeline(
    step: int, replica: int, n_stages: int, n_micro: int, seconds: Callable[[str, int, int, int, int], float]
) -> tuple[list[Row], dict[int, float]]:
    queues = {stage: one_f_one_b(stage, n_stages, n_micro) for stage in range(n_stages)}
    free = dict.fromkeys(queues, 0.0)
    done: dict[tuple[str, int, int], float] = {}
    rows: list[Row] = []
    count: dict[tuple[int, str], int] = {}
    while any(queues.values()):
        for stage, queue in queues.items():
            while queue:
                kind, micro = queue[0]
                source = stage - 1 if kind == "forward" else stage + 1
                received = 0.0
                if 0 <= source < n_stages:
                    if (kind, source, micro) not in done:
                        break
                    received = done[kind, source, micro] + SEND_S
                begin = max(free[stage], received)
                seq = count.setdefault((stage, kind), 0)
                count[stage, kind] += 1
                taken = seconds(kind, step, replica, stage, micro)
                rows.append(
                    _row(step, replica, stage, f"{kind}-compute", seq, begin, taken, chunk=0, of=stage, micro=micro)
                )
                done[kind, stage, micro] = free[stage] = begin + taken
                if 0 <= source < n_stages:
                    sent = done[kind, source, micro]
                    rows.append(_row(step, replica, source, f"{kind}-send", seq, sent, SEND_S))
                    rows.append(_row(step, replica, stage, f"{kind}-recv", seq, sent, SEND_S))
                queue.pop(0)
    return rows, free


def _row(
    step: int,
    replica: int,
    stage: int,
    kind: str,
    seq: int,
    start: float,
    duration: float,
    chunk: int = -1,
    of: int = -1,
    micro: int = -1,
) -> Row:
    return {
        "dp_rank": replica,
        "stage": stage,
        "step": step,
        "optype": kind,
        "start_ts": start,
        "duration": duration,
        "seq_id": seq,
        "mc": chunk,
        "mb_id": micro,
        "gmc": of,
    }


def write(rows: list[Row], path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
