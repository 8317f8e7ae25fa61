"""Points of a sweep or of a search for plans as a picture needs them: from the journal while it runs, a sweep that is
done from its table.

A point is [step in seconds, peak memory in GiB, GPU-hours per million tokens, words, question]; the question is what
Ask takes in its address. Points that were refused, do not fit, or are of a verb without a step are not drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

TABLE, PLANS = "sweep.parquet", "plans.journal"
AT_ONCE = 2000  # points in one event, so that neither side waits long for one

Point = list[object]


def journalled(folder: Path, offset: int) -> tuple[list[Point], int]:
    """At most AT_ONCE points behind `offset` bytes of the journal, and where the next ones begin."""
    plans = folder / PLANS
    try:
        with (plans if plans.is_file() else folder / f"{TABLE}.journal").open("rb") as file:
            file.seek(offset)
            lines = [line for _, line in zip(range(AT_ONCE), file, strict=False)]
    except OSError:  # not begun, or done: the table holds them all
        return [], offset
    points = []
    for line in lines:
        if not line.endswith(b"\n"):  # still being written
            break
        offset += len(line)
        row = json.loads(line)
        point = point_of(row.get("inputs", {}), row["status"], row["outputs"])
        points += [point] if point else []
    return points, offset


def tabled(folder: Path) -> list[Point]:
    """All points of a sweep that is done; of one that was stopped, those of its journal."""
    points: list[Point] = []
    if not (folder / TABLE).is_file():
        after, offset = 0, -1
        while after != offset:
            more, after = journalled(folder, offset := after)
            points += more
        return points
    import pyarrow.parquet as pq

    for row in pq.read_table(folder / TABLE).to_pylist():
        inputs = {name: value for name, value in row.items() if _is_input(name) and value is not None}
        point = point_of(inputs, row["status"], row)
        points += [point] if point else []
    return points


def _is_input(name: str) -> bool:
    return name in ("model", "cluster") or name.startswith("plan.")


def point_of(inputs: Mapping[str, object], status: str, outputs: Mapping[str, object]) -> Point | None:
    """One point; None where it has no step that fits."""
    numbers = {name: value for name, value in outputs.items() if isinstance(value, int | float)}
    step, rate = numbers.get("step_time_s"), numbers.get("tokens_per_s")
    if status != "ok" or not step or not rate:
        return None
    hours = float(numbers.get("n_gpus") or 0) / 3600.0 / rate * 1e6
    fields = {name.removeprefix("plan."): value for name, value in inputs.items() if _is_input(name)}
    cluster = str(fields.pop("cluster", ""))
    words = " · ".join(f"{name} {shown(value)}" for name, value in sorted(fields.items()) if name != "model")
    text = f"{cluster.rpartition(':')[2] + ' GPUs · ' if ':' in cluster else ''}{words}"
    return [step, float(numbers.get("peak_memory_bytes") or 0) / 2**30, hours, text, address_of(cluster, fields)]


def address_of(cluster: str, fields: Mapping[str, object]) -> str:
    """A question as Ask takes it in its address; fields that are no plain values are left out."""
    gpu, colon, count = cluster.rpartition(":")
    query = {**({"gpu": gpu, "gpus": count} if colon else {"gpu": count}), **fields}
    return urlencode(
        {name: shown(value) for name, value in query.items() if isinstance(value, (str, int, float, list))}
    )


def shown(value: object) -> str:
    """A value as a form shows it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
