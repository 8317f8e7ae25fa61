"""A look into a table: the least or most of one column at each value of another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError, SpecError
from windtunnel.sweeps.table import INPUTS

SHORT = {"time": "step_time_s", "gpus": "n_gpus", "memory": "peak_memory_bytes", "tokens": "tokens_per_s"}
WRITTEN = "give a table that `windtunnel sweep` wrote"
MORE_IS_BETTER = ("mfu", "hfu", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu")


def best_at_each(table: Path, show: str) -> list[dict[str, Any]]:
    """`show`: `Y_vs_X`. Of the rows that are ok, the best Y at each X, X rising, with those inputs of that row in
    which the rows of the table differ. Raises SpecError or InputFileError."""
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
    best: dict[Any, dict[str, Any]] = {}
    for row in data:
        if row["status"] != "ok" or row[x] is None or row[y] is None:
            continue
        known = best.get(row[x])
        if known is None or (row[y] > known[y] if y in MORE_IS_BETTER else row[y] < known[y]):
            best[row[x]] = row
    inputs = [name for name in inputs if any(row[name] != data[0][name] for row in data)]
    return [
        {x: row[x], y: row[y], **{name: row[name] for name in inputs if name != x}} for _, row in sorted(best.items())
    ]
