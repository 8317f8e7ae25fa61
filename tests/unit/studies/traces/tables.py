"""Operation tables of made-up jobs, simulated by hand, so that every duration and dependency in them is known.

Pipelines are 1F1B, or interleaved with several chunks per stage, whose profiles also hold sends and receives at the
ends of the model that meet nobody. A send and its receive begin when both are there. With `overlap`, gathers and
scatters run beside the computes, a chunk each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
Seconds = Callable[[str, int, int, int, int], float]
SEND_S, GATHER_S, SCATTER_S, EMBEDDING_S, SEPARATE_S, CLIP_S, OPTIMIZER_S = (
    0.001,
    0.002,
    0.003,
    0.004,
    0.005,
    0.002,
    0.01,
)


def order_of(stage: int, n_stages: int, n_micro: int, n_chunks: int) -> list[tuple[str, int, int]]:
    """(kind, chunk of the stage, micro-batch) in the order in which a stage computes."""
    total = n_micro * n_chunks
    forward = [
        (chunk, first + m)
        for first in range(0, n_micro, n_stages)
        for chunk in range(n_chunks)
        for m in range(min(n_stages, n_micro - first))
    ]
    backward = [(n_chunks - 1 - chunk, m) for chunk, m in forward]
    warm = n_stages - 1 - stage if n_chunks == 1 else 2 * (n_stages - 1 - stage) + (n_chunks - 1) * n_stages
    warm = min(warm, total)
    order = [("forward", *one) for one in forward[:warm]]
    for k in range(total - warm):
        order += [("forward", *forward[warm + k]), ("backward", *backward[k])]
    return order + [("backward", *one) for one in backward[total - warm :]]


def job(
    n_stages: int = 3,
    n_replicas: int = 2,
    n_micro: int = 4,
    steps: tuple[int, ...] = (7, 9),
    seconds: Seconds = lambda kind, step, replica, stage, micro: 0.1,
    clock_s: Callable[[int, int], float] = lambda replica, stage: 0.0,
    n_chunks: int = 1,
    overlap: bool = False,
    scatters_late: bool = False,
) -> list[Row]:
    """Rows of a job whose computes take `seconds(kind, step, replica, stage, micro-batch)`."""
    rows: list[Row] = []
    for step in steps:
        mine: list[Row] = []
        ends = []
        for replica in range(n_replicas):
            found, last = _pipeline(step, replica, n_stages, n_micro, n_chunks, seconds, overlap)
            mine += found
            ends.append(last)
        mine += _tail(step, n_replicas, n_stages, n_chunks, ends, overlap, scatters_late)
        for row in mine:
            row["start_ts"] += clock_s(row["dp_rank"], row["stage"])
        rows += mine
    return rows


def _pipeline(
    step: int, replica: int, n_stages: int, n_micro: int, n_chunks: int, seconds: Seconds, overlap: bool
) -> tuple[list[Row], dict[tuple[int, int], float]]:
    """Rows, and by (stage, chunk) the end of the last backward."""
    queues = {stage: order_of(stage, n_stages, n_micro, n_chunks) for stage in range(n_stages)}
    free = dict.fromkeys(queues, 0.0)
    done: dict[tuple[str, int, int], float] = {}  # (kind, chunk of the model, micro-batch)
    sent: dict[tuple[str, int], float] = {}  # end of the last send of a stage
    posted: dict[tuple[str, int], float] = {}  # when a stage is ready for the next receive
    count: dict[tuple[str, int], int] = {}
    last: dict[tuple[int, int], float] = {}
    rows: list[Row] = []
    for stage, queue in queues.items():
        at = [kind for kind, _, _ in queue].index("backward")
        count["first backward", stage] = at - 2
    finished: dict[int, int] = dict.fromkeys(queues, 0)
    top = n_stages * n_chunks - 1

    def row(stage: int, kind: str, seq: int, start: float, end: float, **more: int) -> None:
        rows.append(_row(step, replica, stage, kind, seq, start, end - start, **more))

    while any(queues.values()):
        for stage, queue in queues.items():
            while queue:
                kind, chunk, micro = queue[0]
                model_chunk = chunk * n_stages + stage
                before = model_chunk + (-1 if kind == "forward" else 1)
                has_source = 0 <= before <= top
                if has_source and (kind, before, micro) not in done:
                    break
                seq = count.get((kind, stage), 0)
                ready = posted.get((kind, stage), 0.0)
                begin = free[stage]
                if has_source:
                    source = before % n_stages
                    output = done[kind, before, micro]
                    met = max(output, sent.get((kind, source), 0.0), ready)
                    sent[kind, source] = met + SEND_S
                    begin = max(begin, met + SEND_S)
                    send = count[kind, source, before, micro]
                    row(source, f"{kind}-send", send, output, met + SEND_S)
                    row(stage, f"{kind}-recv", seq, ready, met + SEND_S)
                elif n_chunks > 1:
                    row(stage, f"{kind}-recv", seq, ready, ready)
                if overlap and kind == "forward" and (stage, chunk) not in last:
                    begin = max(begin, GATHER_S * (chunk + 1))
                end = begin + seconds(kind, step, replica, stage, micro)
                row(stage, f"{kind}-compute", seq, begin, end, mc=chunk, gmc=model_chunk, mb_id=micro)
                after = model_chunk + (1 if kind == "forward" else -1)
                if n_chunks > 1 and not 0 <= after <= top:
                    row(stage, f"{kind}-send", seq, end, end)
                done[kind, model_chunk, micro] = free[stage] = end
                count[kind, stage] = seq + 1
                count[kind, stage, model_chunk, micro] = seq
                posted[kind, stage] = end
                last[stage, chunk] = end
                if finished[stage] == count["first backward", stage]:
                    posted["backward", stage] = end
                finished[stage] += 1
                queue.pop(0)
    return rows, last


def _tail(
    step: int,
    n_replicas: int,
    n_stages: int,
    n_chunks: int,
    ends: list[dict[tuple[int, int], float]],
    overlap: bool,
    scatters_late: bool,
) -> list[Row]:
    rows: list[Row] = []
    free: dict[tuple[int, int], float] = {}
    for stage in range(n_stages):
        previous = GATHER_S * n_chunks
        scattered = 0.0
        for seq, chunk in enumerate(reversed(range(n_chunks)) if overlap else ()):
            for replica in range(n_replicas):
                begin = GATHER_S * (n_chunks - 1 - seq)
                rows.append(
                    _row(step, replica, stage, "params-all-gather", n_chunks - 1 - seq, begin, GATHER_S, mc=chunk)
                )
            starts = [max(ends[replica][stage, chunk], previous) for replica in range(n_replicas)]
            previous = scattered = max(starts) + SCATTER_S
            for replica, begin in enumerate(starts):
                rows.append(_row(step, replica, stage, "grads-reduce-scatter", seq, begin, previous - begin, mc=chunk))
        for replica in range(n_replicas):
            begin = max(ends[replica][stage, chunk] for chunk in range(n_chunks))
            rows.append(_row(step, replica, stage, "gc", 0, begin, 0.0))
            begin = max(begin, scattered)
            rows.append(_row(step, replica, stage, "layernorm-grads-all-reduce", 0, begin, 0.0001))
            free[replica, stage] = begin + 0.0001
    edges = {0, n_stages - 1}
    for replica in range(n_replicas):
        met = max(free[replica, stage] for stage in edges) + EMBEDDING_S
        for stage in sorted(edges):
            begin = free[replica, stage]
            rows.append(_row(step, replica, stage, "embedding-grads-all-reduce", 0, begin, met - begin))
            free[replica, stage] = met
    for stage in range(n_stages) if overlap else ():
        met = max(free[replica, stage] for replica in range(n_replicas)) + SEPARATE_S
        for replica in range(n_replicas):
            begin = free[replica, stage]
            rows.append(_row(step, replica, stage, "separate-grads-all-reduce", 0, begin, met - begin))
            free[replica, stage] = met
    for stage in range(n_stages) if scatters_late else ():
        for seq in range(n_chunks):
            met = max(free[replica, stage] for replica in range(n_replicas)) + SCATTER_S
            for replica in range(n_replicas):
                begin = free[replica, stage]
                rows.append(_row(step, replica, stage, "grads-reduce-scatter", seq, begin, met - begin, mc=seq))
                free[replica, stage] = met
    clipped = max(free.values()) + CLIP_S
    for (replica, stage), begin in free.items():
        rows.append(_row(step, replica, stage, "optimizer-clip-main-grad", 0, begin, clipped - begin))
        rows.append(_row(step, replica, stage, "optimizer", 0, clipped, OPTIMIZER_S))
    return rows


def with_idle_sends(rows: list[Row], random: Any) -> list[Row]:
    """Also with sends and receives that were recorded but never launched: before the first compute, after the last."""
    found = [dict(row) for row in rows]
    first = min(row["step"] for row in rows)
    for stage in sorted({row["stage"] for row in rows}):
        for way in ("forward", "backward"):
            mine = [row for row in found if row["stage"] == stage and row["optype"].startswith(way)]
            sends = [row for row in mine if row["optype"] == f"{way}-send"]
            receives = [row for row in mine if row["optype"] == f"{way}-recv"]
            for kind, ops in (("send", sends), ("recv", receives)):
                if not ops or random.random() < 0.5:
                    continue
                early = kind == "send"
                for row in ops:
                    row["seq_id"] += early
                last = max(row["seq_id"] for row in ops)
                for replica, step in sorted({(row["dp_rank"], row["step"]) for row in rows}):
                    computes = [
                        row
                        for row in mine
                        if row["optype"] == f"{way}-compute" and (row["dp_rank"], row["step"]) == (replica, step)
                    ]
                    at = 0.0 if early else max(row["start_ts"] for row in computes) + 0.01
                    # The first step decides which are idle; elsewhere they may last as long as they like.
                    longest = 0.01 if early and step == first else 2.0
                    found.append(
                        _row(
                            step,
                            replica,
                            stage,
                            f"{way}-{kind}",
                            0 if early else last + 1,
                            at,
                            random.uniform(0, longest),
                        )
                    )
    return found


def _row(
    step: int,
    replica: int,
    stage: int,
    optype: str,
    seq_id: int,
    start: float,
    duration: float,
    mc: int = -1,
    gmc: int = -1,
    mb_id: int = -1,
) -> Row:
    return {
        "dp_rank": replica,
        "stage": stage,
        "step": step,
        "optype": optype,
        "start_ts": start,
        "duration": duration,
        "seq_id": seq_id,
        "mc": mc,
        "mb_id": mb_id,
        "gmc": gmc,
    }


def write(rows: list[Row], path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
