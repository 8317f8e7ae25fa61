"""The table of a sweep: one Parquet file, one row a point, in the order of the study. Same rows, same bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError
from windtunnel.sweeps.points import Point

INPUTS = b"windtunnel.inputs"  # of the file's metadata: the names of the inputs, as JSON


def write_table(points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Columns key, status, reason, the inputs, the outputs (with a leading `out.` where an input has the name)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    inputs = sorted({name for point in points for name in point.inputs})
    outputs = sorted({name for row in rows.values() for name in row["outputs"]})
    columns: dict[str, Any] = {
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


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
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


def _array(values: Sequence[Any]) -> Any:
    """A typed column: truths, whole numbers, numbers, else text; anything nested as JSON."""
    import pyarrow as pa

    present = [value for value in values if value is not None]
    if present and all(isinstance(value, bool) for value in present):
        return pa.array(values, pa.bool_())
    if present and all(isinstance(value, int) and not isinstance(value, bool) for value in present):
        return pa.array(values, pa.int64())
    if present and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    texts = [
        value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True) for value in values
    ]
    return pa.array(texts, pa.string())
