"""Reads operation tables: one row per op of each worker and step (Parquet), and checks that a replay can use them.

Columns (Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI'25; readme of
github.com/ByteDance-Seed/StragglerAnalysis):

    dp_rank, stage   data-parallel rank and pipeline stage of the worker         seq_id   order among ops of one kind
    step             training step                                              mc       model chunk within the stage
    optype           kind of op, see `KINDS`                                     gmc      model chunk within the model
    start_ts         seconds on the worker's clock; duration: seconds          mb_id    micro-batch (may be missing)

A step in which an op is missing cannot be replayed: its collectives would wait for ever. Such steps are left out, and
the notes say which.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError

FORWARD, BACKWARD = "forward-compute", "backward-compute"
SENDS_AND_RECEIVES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GATHER, SCATTER, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, GC = "optimizer-clip-main-grad", "optimizer", "gc"
KINDS = (
    *(FORWARD, BACKWARD, *SENDS_AND_RECEIVES, GATHER, SCATTER, SEPARATE),
    *(GC, LAYERNORM, EMBEDDING, CLIP, OPTIMIZER),
)
COMMUNICATION = (*SENDS_AND_RECEIVES, GATHER, SCATTER, SEPARATE, LAYERNORM, EMBEDDING, CLIP)
NEEDED = (FORWARD, BACKWARD, OPTIMIZER)  # without these there is no step
_WHOLE = ("dp_rank", "stage", "step", "seq_id", "mc", "gmc")
_OPTIONAL = "mb_id"
COLUMNS = (*_WHOLE, "optype", "start_ts", "duration")
_LONGEST_S = 1e8  # three years: what is longer was not written in seconds, and nanoseconds must fit in 63 bits
_REMEDY = "give the operation table of a training job, with the columns " + ", ".join(COLUMNS)


@dataclass(frozen=True, eq=False)
class OperationTable:
    """The rows of the usable steps: r replicas, p stages, s steps, k ops per replica and step, the same k in each.

    Arrays are [s, r, k]; column j is the same op (stage, kind, seq_id) everywhere.
    """

    steps: tuple[int, ...]  # [s]
    replicas: tuple[int, ...]  # [r]
    n_stages: int
    stage: NDArray[np.int32]  # [k]
    kind: NDArray[np.int32]  # [k] index into KINDS
    seq: NDArray[np.int32]  # [k]
    chunk: NDArray[np.int32]  # [k] -1: belongs to no model chunk
    model_chunk: NDArray[np.int32]  # [k]
    micro_batch: NDArray[np.int32]  # [k] -1: of none, or not recorded
    start_s: NDArray[np.float64]  # [s, r, k]
    duration_s: NDArray[np.float64]  # [s, r, k]
    notes: tuple[str, ...]


def read_operation_table(path: Path) -> OperationTable:
    """Read and check `path`.

    Raises:
        InputFileError: not Parquet, columns missing or of the wrong type, or no complete step.
    """
    columns = _columns(path)
    notes: list[str] = []
    names = columns.pop("optype")
    kinds = {name: number for number, name in enumerate(KINDS)}
    kind = np.array([kinds.get(name, -1) for name in names], dtype=np.int32)
    keep = kind >= 0
    if not keep.all():
        strange = sorted({str(name) for name, known in zip(names, keep, strict=True) if not known})
        notes.append(f"{np.count_nonzero(~keep):,} ops of unknown kind left out, such as '{strange[0]}'")
    bad = ~(np.isfinite(columns["start_ts"]) & np.isfinite(columns["duration"]))
    if (bad & keep).any():
        at = int(np.argmax(bad & keep))
        raise InputFileError(path, f"row {at} has no start or no duration", "export the table without empty cells")
    negative = keep & (columns["duration"] < 0)
    if negative.any():
        raise InputFileError(
            path,
            f"{np.count_nonzero(negative):,} ops end before they start, the first in row {int(np.argmax(negative))}",
            "repair or leave out these steps",
        )
    span = np.ptp(columns["start_ts"][keep]) if keep.any() else 0.0
    longest = max(float(span), float(columns["duration"][keep].max(initial=0.0)))
    if longest > _LONGEST_S:
        raise InputFileError(path, f"spans {longest:.3g} s", "start_ts and duration are in seconds")
    kind = kind[keep]
    columns = {name: values[keep] for name, values in columns.items()}
    missing = [name for name in NEEDED if not (kind == kinds[name]).any()]
    if missing:
        raise InputFileError(path, f"holds no '{missing[0]}' op", _REMEDY)
    return _arranged(path, kind, columns, notes)


def _columns(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
        missing = [name for name in COLUMNS if name not in table.schema_arrow.names]
        if missing:
            raise InputFileError(path, f"has no column '{missing[0]}'", _REMEDY)
        has_optional = _OPTIONAL in table.schema_arrow.names
        read = table.read(columns=[*COLUMNS, _OPTIONAL] if has_optional else list(COLUMNS))
        columns: dict[str, Any] = {"optype": [str(value) for value in read.column("optype").to_pylist()]}
    except (pa.ArrowException, OSError, ValueError) as error:
        said = " ".join(str(error).split())[:120]
        raise InputFileError(path, f"is no readable Parquet file ({said})", "export it again") from error
    if read.num_rows == 0:
        raise InputFileError(path, "holds no op", _REMEDY)
    if not has_optional:
        columns[_OPTIONAL] = np.full(read.num_rows, -1, np.int64)
    for name in read.column_names:
        column = read.column(name)
        if column.null_count:
            raise InputFileError(path, f"column '{name}' has {column.null_count:,} empty cells", "fill them")
        if name == "optype":
            continue
        kind = column.type
        whole = name in (*_WHOLE, _OPTIONAL)
        if not (pa.types.is_integer(kind) or (pa.types.is_floating(kind) and not whole)):
            wanted = "whole numbers" if whole else "numbers"
            raise InputFileError(path, f"column '{name}' holds {kind}, not {wanted}", _REMEDY)
        columns[name] = column.to_numpy().astype(np.int64 if whole else np.float64)
    return columns


def _arranged(path: Path, kind: NDArray[np.int32], columns: dict[str, Any], notes: list[str]) -> OperationTable:
    """Rows as [step, replica, op]; steps in which any op is missing or doubled are left out."""
    stage, seq = columns["stage"], columns["seq_id"]
    replicas, replica = np.unique(columns["dp_rank"], return_inverse=True)
    steps, step = np.unique(columns["step"], return_inverse=True)
    for name, most in (("stage", 100_000), ("seq_id", 10_000_000), ("dp_rank", 10_000_000)):
        if columns[name].min() < 0 or columns[name].max() > most:
            low, high = columns[name].min(), columns[name].max()
            raise InputFileError(path, f"column '{name}' goes from {low} to {high}", _REMEDY)
    for name in ("mc", "gmc", _OPTIONAL):
        columns[name] = np.clip(columns[name], -1, 2**31 - 1)
    stages = np.unique(stage)
    if len(stages) != int(stage.max()) + 1:
        gone = next(s for s in range(len(stages) + 1) if s not in set(stages.tolist()))
        raise InputFileError(path, f"no op of stage {gone} of 0 to {int(stage.max())}", "give the whole pipeline")
    if int(replicas[-1]) + 1 != len(replicas):
        gone = next(r for r in range(len(replicas) + 1) if r not in set(replicas.tolist()))
        notes.append(f"no op of replica {gone}: {len(replicas)} of {int(replicas[-1]) + 1} replicas were replayed")
    key = (stage * len(KINDS) + kind) * (int(seq.max()) + 1) + seq
    keys, op, copies = np.unique(key, return_inverse=True, return_counts=True)
    # The ops of a step are those that most of its (step, replica) pairs have; rarer ones belong to incomplete steps.
    common = copies * 2 > len(steps) * len(replicas)
    if not common.any():
        raise InputFileError(path, "no op is in most of the steps and replicas", "give complete steps")
    column = np.cumsum(common) - 1
    kept = common[op]
    k = int(common.sum())
    cell = (step * len(replicas) + replica) * k + column[op]
    count = np.bincount(cell[kept], minlength=len(steps) * len(replicas) * k).reshape(len(steps), len(replicas), k)
    extra = np.bincount(step[~kept], minlength=len(steps)) > 0
    complete = (count == 1).all(axis=(1, 2)) & ~extra
    shown_stage, shown_kind, shown_seq = _decoded(keys[common], int(seq.max()) + 1)
    if not complete.all():
        at = int(np.argmin(complete))
        first = f"step {steps[at]} has ops that the others lack"
        wrong = np.argwhere(count[at] != 1)
        if len(wrong):
            r, j = (int(i) for i in wrong[0])
            trouble = "lacks" if count[at, r, j] == 0 else "repeats"
            first = (
                f"in step {steps[at]} replica {replicas[r]} {trouble} "
                f"{KINDS[shown_kind[j]]} {shown_seq[j]} of stage {shown_stage[j]}"
            )
        if not complete.any():
            raise InputFileError(path, f"none of its {len(steps)} steps is complete: {first}", "give complete steps")
        notes.append(f"{np.count_nonzero(~complete)} of {len(steps)} incomplete steps left out: {first}")
    rows = np.full(count.size, -1, np.int64)
    rows[cell[kept]] = np.flatnonzero(kept)
    rows = rows.reshape(count.shape)[complete]
    sample = rows[0, 0]
    return OperationTable(
        steps=tuple(int(s) for s in steps[complete]),
        replicas=tuple(int(r) for r in replicas),
        n_stages=len(stages),
        stage=shown_stage,
        kind=shown_kind,
        seq=shown_seq,
        chunk=columns["mc"][sample].astype(np.int32),
        model_chunk=columns["gmc"][sample].astype(np.int32),
        micro_batch=columns[_OPTIONAL][sample].astype(np.int32),
        start_s=columns["start_ts"][rows],
        duration_s=columns["duration"][rows],
        notes=tuple(notes),
    )


def _decoded(keys: Any, radix: int) -> tuple[Any, Any, Any]:
    rest, seq = np.divmod(keys, radix)
    stage, kind = np.divmod(rest, len(KINDS))
    return stage.astype(np.int32), kind.astype(np.int32), seq.astype(np.int32)
