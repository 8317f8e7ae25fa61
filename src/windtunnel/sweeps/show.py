"""A look into a table: the least or most of one column at each value of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError, SpecError

SHORT = {"time": "step_time_s", "gpus": "n_gpus", "memory": "peak_memory_bytes", "tokens": "tokens_per_s"}
MORE_IS_BETTER = ("mfu", "hfu", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu")


def best_at_each(table: Path, show: str) -> list[dict[str, Any]]:
    """`show`: `Y_vs_X`. Of the rows that are ok, the best Y at each X, X rising, with the inputs of that row."""
    import pyarrow.parquet as pq

    y, separator, x = show.partition("_vs_")
    if not separator:
        raise SpecError("--show", show, "write Y_vs_X, e.g. time_vs_gpus")
    y, x = SHORT.get(y, y), SHORT.get(x, x)
    try:
        data = pq.read_table(table).to_pylist()
    except (OSError, ValueError) as error:
        raise InputFileError(table, f"cannot be read ({error})", "give a table that `windtunnel sweep` wrote") from None
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
    inputs = [name for name in (data[0] if data else {}) if "." in name and not name.startswith("out.")]
    return [
        {x: row[x], y: row[y], **{name: row[name] for name in inputs if name != x}} for _, row in sorted(best.items())
    ]
