"""The table of a sweep: one Parquet file, one row a point, in the order of the study. Same rows, same bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import InputFileError, SpecError
from windtunnel.questions.asked.sweep import SweepTable
from windtunnel.studies.sweeps.points import Point

if TYPE_CHECKING:
    from windtunnel.studies.sweeps.run_points import Row


INPUTS = b"windtunnel.inputs"  # of the file's metadata: the names of the inputs, as JSON


def write_table(points: Sequence[Point], rows: Mapping[str, Row], path: Path) -> None:
    """Columns key, status, reason, the inputs, the outputs (with a leading `out.` where an input has the name)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    inputs = sorted({name for point in points for name in point.inputs})
    outputs = sorted({name for row in rows.values() for name in row["outputs"]})
    columns: dict[str, object] = {
        "key": pa.array([point.key for point in points], pa.string()),
        "status": pa.array([rows[point.key]["status"] for point in points], pa.string()),
        "reason": pa.array([rows[point.key]["reason"] for point in points], pa.string()),
    }
    for name in inputs:
        columns[name] = _array([point.inputs.get(name) for point in points])
    for name in outputs:
        column = f"out.{name}" if name in columns else name
        columns[column] = _array([rows[point.key]["outputs"].get(name) for point in points])
    partial = path.with_name(path.name + ".partial")
    try:
        pq.write_table(pa.table(columns, metadata={INPUTS: json.dumps(inputs)}), partial, compression="zstd")
        os.replace(partial, path)
    except OSError as error:
        raise InputFileError(path, error.strerror or "cannot be written", "give a path that can be written") from None


def read_rows(path: Path) -> dict[str, dict[str, object]]:
    """Rows of a table by key, in its order: status, reason and the columns. Empty where there is no such table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        return {}
    try:
        rows = pq.read_table(path).to_pylist()
        return {row["key"]: row for row in rows}
    except (OSError, KeyError, pa.ArrowInvalid):  # something else is there: it is written over, as a table would be
        return {}


def _array(values: Sequence[object]) -> object:
    """A typed column: truths, whole numbers, numbers, else text; anything nested as JSON."""
    import pyarrow as pa

    present = [value for value in values if value is not None]
    if present and all(isinstance(value, bool) for value in present):
        return pa.array(values, pa.bool_())
    if present and all(isinstance(value, int) and not isinstance(value, bool) for value in present):
        return pa.array(values, pa.int64())
    if present and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        return pa.array([float(value) if isinstance(value, int | float) else None for value in values], pa.float64())
    texts = [
        value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True) for value in values
    ]
    return pa.array(texts, pa.string())


SHORT = {"time": "step_time_s", "gpus": "n_gpus", "memory": "peak_memory_bytes", "tokens": "tokens_per_s"}
WRITTEN = "give a table that `windtunnel sweep` wrote"
MOST = 10  # rows that are shown where X is the same everywhere
MORE_IS_BETTER = ("mfu", "hfu", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu")


def answer(question: SweepTable) -> dict[str, list[dict[str, object]]]:
    """The best rows. Raises SpecError or InputFileError."""
    return {"rows": best_at_each(Path(question.table), question.show)}


def best_at_each(table: Path, show: str) -> list[dict[str, object]]:
    """`show`: `Y_vs_X`. Of the rows that are ok, the best Y at each X, X rising, with those inputs of that row in
    which the rows of the table differ; where X is the same everywhere, the MOST best rows. Raises SpecError or
    InputFileError."""
    import pyarrow.parquet as pq

    y, separator, x = show.partition("_vs_")
    if not separator:
        raise SpecError("--show", show, "write Y_vs_X, e.g. time_vs_gpus")
    y, x = SHORT.get(y, y), SHORT.get(x, x)
    try:
        read = pq.read_table(table)
        data = read.to_pylist()
        inputs = json.loads(read.schema.metadata[INPUTS])
    except (OSError, ValueError) as error:
        raise InputFileError(table, f"cannot be read ({error})", WRITTEN) from None
    except (KeyError, TypeError):
        raise InputFileError(table, "names no inputs of a sweep", WRITTEN) from None
    for name in (x, y):
        if data and name not in data[0]:
            raise SpecError("--show", show, f"no column {name}; there are {', '.join(data[0])}")
    ok_rows = [row for row in data if row["status"] == "ok" and row[x] is not None and row[y] is not None]
    ok_rows.sort(key=lambda row: row[y], reverse=y in MORE_IS_BETTER)
    best: dict[object, dict[str, object]] = {}
    for row in ok_rows:
        best.setdefault(row[x], row)
    rows = [row for _, row in sorted(best.items())] if len(best) > 1 else ok_rows[:MOST]
    inputs = [name for name in inputs if any(row[name] != data[0][name] for row in data)]
    return [{x: row[x], y: row[y], **{name: row[name] for name in inputs if name != x}} for row in rows]
