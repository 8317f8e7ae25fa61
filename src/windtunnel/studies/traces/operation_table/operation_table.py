"""Reads operation tables: one row per op of each worker and step (Parquet), and checks that a replay can use them.

Columns (Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI'25; readme of
github.com/ByteDance-Seed/StragglerAnalysis):

    dp_rank, stage   data-parallel rank and pipeline stage of the worker         seq_id   order among ops of one kind
    step             training step                                              mc       model chunk within the stage
    optype           kind of op, see `KINDS`                                     gmc      model chunk within the model
    start_ts         seconds on the worker's clock; duration: seconds          mb_id    micro-batch
    rank             global rank of the worker

The last four may be missing. A step of a replica in which an op is missing cannot be replayed: its collectives would
wait for ever. Such steps are left out, or such replicas where that costs less, and the notes say which.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError
from windtunnel.studies.traces.operation_table.complete_steps import usable_part

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
_WHOLE = ("dp_rank", "stage", "step", "seq_id")
COLUMNS = (*_WHOLE, "optype", "start_ts", "duration")
_OPTIONAL = ("mc", "gmc", "mb_id", "rank")
_NONE = -1
Ints = NDArray[np.int32]
_LONGEST_S = 1e8  # three years: what is longer was not written in seconds, and nanoseconds must fit in 63 bits
_MOST = {"stage": 100_000, "seq_id": 10_000_000, "dp_rank": 10_000_000}
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
    rank: NDArray[np.int64]  # [r, p] global rank; replica * p + stage where the table does not say
    start_s: NDArray[np.float64]  # [s, r, k]
    duration_s: NDArray[np.float64]  # [s, r, k]
    notes: tuple[str, ...]


def read_operation_table(path: Path) -> OperationTable:
    """Read and check `path`.

    Raises InputFileError: not Parquet, columns missing or of the wrong type, or no complete step.
    """
    columns = _columns(path)
    notes: list[str] = []
    names = columns.pop("optype")
    numbers = {name: number for number, name in enumerate(KINDS)}
    kind = np.array([numbers.get(name.strip().lower().replace("_", "-"), _NONE) for name in names], dtype=np.int32)
    keep = kind >= 0
    if not keep.all():
        strange = sorted({str(name) for name, has_kind in zip(names, keep, strict=True) if not has_kind})
        notes.append(f"{np.count_nonzero(~keep):,} ops of unknown kind left out, such as '{strange[0][:80]}'")
    for name in NEEDED:
        if not (kind == numbers[name]).any():
            raise InputFileError(path, f"holds no '{name}' op", _REMEDY)
    keep &= _well_timed(path, columns, keep, notes)
    keep &= _of_one_rank(columns, keep, notes)
    for name in NEEDED:
        if not (kind[keep] == numbers[name]).any():
            raise InputFileError(path, f"holds no usable '{name}' op ({'; '.join(notes)})", "record the job again")
    return _arranged(path, kind[keep], {name: values[keep] for name, values in columns.items()}, notes)


def _columns(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
        names = table.schema_arrow.names
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise InputFileError(path, f"has no column '{missing[0]}'", _REMEDY)
        present = [name for name in (*COLUMNS, *_OPTIONAL) if name in names]
        read = table.read(columns=present)
        columns: dict[str, object] = {"optype": [str(value) for value in read.column("optype").to_pylist()]}
        for name in present:
            if name != "optype":
                columns[name] = _numbers(path, name, read.column(name))
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        message = " ".join(str(error).split())[:120]
        raise InputFileError(path, f"is no readable Parquet file ({message})", "export it again") from error
    if read.num_rows == 0:
        raise InputFileError(path, "holds no op", _REMEDY)
    return columns


def _numbers(path: Path, name: str, column: Any) -> NDArray[Any]:
    """A column as numbers. Empty cells are nan in times and -1 in what may be missing; elsewhere they are refused."""
    import pyarrow as pa

    whole = name not in ("start_ts", "duration")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
        wanted = "whole numbers" if whole else "numbers"
        raise InputFileError(path, f"column '{name}' holds {column.type}, not {wanted}", _REMEDY)
    if whole and name not in _OPTIONAL and column.null_count:
        raise InputFileError(path, f"column '{name}' has {column.null_count:,} empty cells", "fill them")
    if pa.types.is_integer(column.type) and not column.null_count and whole:
        return np.asarray(np.clip(column.to_numpy(), -(2**62), 2**62).astype(np.int64))
    values = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
    if not whole:
        return np.asarray(values)
    if name in _OPTIONAL:
        values = np.where(np.isfinite(values), values, float(_NONE))
    bad = ~(np.isfinite(values) & (values == np.rint(values)) & (np.abs(values) < 2**62))
    if bad.any():
        at = int(np.argmax(bad))
        raise InputFileError(
            path, f"column '{name}' holds {values[at]:g} in row {at}", "it numbers things: give whole numbers"
        )
    return np.asarray(values.astype(np.int64))


def _well_timed(path: Path, columns: dict[str, Any], keep: NDArray[np.bool_], notes: list[str]) -> NDArray[np.bool_]:
    """Rows whose times can be used."""
    start, duration = columns["start_ts"], columns["duration"]
    with np.errstate(invalid="ignore", over="ignore"):
        has_times = np.isfinite(start) & np.isfinite(duration)
        reasons = [("have no start or no duration", ~has_times)]
        reasons.append(("end before they start", has_times & (duration < 0)))
        usable = keep & has_times & (duration >= 0)
        middle = float(np.median(start[usable])) if usable.any() else 0.0
        far = usable & ((np.abs(start - middle) > _LONGEST_S) | (duration > _LONGEST_S))
    if np.count_nonzero(far) * 2 > np.count_nonzero(usable):
        span = float(np.ptp(start[usable])) + float(duration[usable].max())
        raise InputFileError(path, f"spans {span:.3g} s", "start_ts and duration are in seconds")
    reasons.append(("are years from the others", far))
    for reason, rows in reasons:
        rows = rows & keep
        if rows.any():
            notes.append(f"{np.count_nonzero(rows):,} ops {reason}, first in row {int(np.argmax(rows))}: left out")
    return np.asarray(usable & ~far)


def _of_one_rank(columns: dict[str, Any], keep: NDArray[np.bool_], notes: list[str]) -> NDArray[np.bool_]:
    """One rank of those that share a replica and a stage: they work in step."""
    rank = columns.get("rank")
    if rank is None or not keep.any():
        return keep
    rows = np.flatnonzero(keep)
    worker, at = np.unique(np.stack([columns["dp_rank"][rows], columns["stage"][rows]]), axis=1, return_inverse=True)
    lowest = np.full(worker.shape[1], np.iinfo(np.int64).max)
    np.minimum.at(lowest, at.reshape(-1), rank[rows])
    others = rank[rows] != lowest[at.reshape(-1)]
    if others.any():
        n = len(np.unique(rank[rows][others]))
        notes.append(
            f"{n:,} ranks share replica and stage with another, as tensor-parallel ranks do: the lowest was used"
        )
    used = keep.copy()
    used[rows[others]] = False
    return used


def _arranged(path: Path, kind: NDArray[np.int32], columns: dict[str, Any], notes: list[str]) -> OperationTable:
    """Rows as [step, replica, op]."""
    for name, most in _MOST.items():
        if columns[name].min() < 0 or columns[name].max() > most:
            low, high = columns[name].min(), columns[name].max()
            raise InputFileError(path, f"column '{name}' goes from {low} to {high}", _REMEDY)
    radix = int(columns["seq_id"].max()) + 1
    key = (columns["stage"] * len(KINDS) + kind) * radix + columns["seq_id"]
    part = usable_part(path, columns["step"], columns["dp_rank"], key, lambda number: _shown(number, radix))
    notes += part.notes
    stage, of_kind, seq = _decoded(part.keys, radix)
    missing = set(range(int(stage.max()) + 1)) - set(stage.tolist())
    if missing:
        raise InputFileError(
            path, f"no op of stage {min(missing)} of 0 to {int(stage.max())}", "give the whole pipeline"
        )
    n_stages = int(stage.max()) + 1
    lost = set(range(part.replicas[-1] + 1)) - set(part.replicas) - set(part.left_out_replicas)
    if lost:
        notes.append(
            f"no op of replica {min(lost)}: {len(part.replicas)} of {part.replicas[-1] + 1} replicas were replayed"
        )
    sample = part.rows[0, 0]
    numbers = {
        name: np.clip(columns[name][sample], _NONE, 2**31 - 1).astype(np.int32)
        if name in columns
        else np.full(len(sample), _NONE, np.int32)
        for name in ("mc", "gmc", "mb_id")
    }
    chunk, model_chunk = _chunks(of_kind, stage, n_stages, numbers["mc"], numbers["gmc"])
    data = np.isin(of_kind, [KINDS.index(name) for name in (GATHER, SCATTER)])
    if chunk[of_kind < 2].max(initial=0) > 0 and (data & (numbers["mc"] < 0)).any():
        notes.append("the table does not say of which model chunk gathers and scatters are: taken to be of the first")
    n_replicas = len(part.replicas)
    rank = np.arange(n_replicas * n_stages, dtype=np.int64).reshape(n_replicas, n_stages)
    if "rank" in columns:
        rank[:, stage] = columns["rank"][part.rows[0]]
    return OperationTable(
        steps=part.steps,
        replicas=part.replicas,
        n_stages=n_stages,
        stage=stage,
        kind=of_kind,
        seq=seq,
        chunk=chunk,
        model_chunk=model_chunk,
        micro_batch=numbers["mb_id"],
        rank=rank,
        start_s=columns["start_ts"][part.rows],
        duration_s=columns["duration"][part.rows],
        notes=tuple(notes),
    )


def _chunks(
    kind: NDArray[np.int32],
    stage: NDArray[np.int32],
    n_stages: int,
    chunk: NDArray[np.int32],
    model_chunk: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Model chunks of the ops. Computes that name none: chunk c of stage s is chunk c x stages + s of the model."""
    in_chunk = np.isin(kind, [KINDS.index(name) for name in (FORWARD, BACKWARD, GATHER, SCATTER)])
    computes = kind < 2
    from_model = computes & (chunk < 0) & (model_chunk >= 0)
    chunk = np.where(from_model, model_chunk // n_stages, np.where(in_chunk & (chunk < 0), 0, chunk))
    model_chunk = np.where(computes & (model_chunk < 0), chunk * n_stages + stage, model_chunk)
    return chunk.astype(np.int32), model_chunk.astype(np.int32)


def _decoded(keys: NDArray[np.int64], radix: int) -> tuple[Ints, Ints, Ints]:
    rest, seq = np.divmod(keys, radix)
    stage, kind = np.divmod(rest, len(KINDS))
    return stage.astype(np.int32), kind.astype(np.int32), seq.astype(np.int32)


def _shown(key: int, radix: int) -> str:
    (stage,), (kind,), (seq,) = _decoded(np.array([key]), radix)
    return f"{KINDS[int(kind)]} {seq} of stage {stage}"
