"""Ranked plans as one offline page: the table, what decides, and time against memory. Computes no physics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windtunnel.faces.report.draw.page import page_template
from windtunnel.faces.report.planning.console import GIB, decimals, proof, words, words_of
from windtunnel.output_file import write_atomically
from windtunnel.units import format_many, format_time

WIDTH, HEIGHT, MARGIN = 640.0, 300.0, 44.0


def write_plans_html(document: Mapping[str, Any], path: Path | str, *, title: str) -> None:
    """Write the page of a document of `Plans.to_dict`. Raises InputFileError when it cannot be written."""
    page = page_template("plans.html.j2").render(title=title, **plans_view(document))
    write_atomically(Path(path), page.encode())


def plans_view(
    document: Mapping[str, Any], address: Callable[[Mapping[str, Any]], str] = lambda plan: ""
) -> dict[str, Any]:
    """What `plans_body.html.j2` shows. `address`: where a plan of the table is looked at; "": nowhere."""
    shown = {one["reproduce"]: one for one in [*document["front"], *document["plans"]]}
    plot = _scatter(list(shown.values()), {one["reproduce"] for one in document["front"] or document["plans"][:1]})
    seconds = [one["step_time_s"] for one in shown.values()]
    ends = {
        "least": format_time(min(seconds, default=0.0)),
        "most": format_time(max(seconds, default=0.0)),
        "memory": f"{max((one['peak_memory_bytes'] / GIB for one in shown.values()), default=0.0):.1f} GiB",
    }
    rows = [
        {**one, "words": words_of(one), "gib": one["peak_memory_bytes"] / GIB, "href": address(one)}
        for one in document["plans"]
    ]
    digits = f"%.{decimals(one['p95_s'] for one in document['plans'])}f"
    said = proof(document)
    return {
        "document": document,
        "rows": rows,
        "plot": plot,
        "ends": ends,
        "words": words,
        "gib": GIB,
        "digits": digits,
        "proof": said,
    }


def _scatter(plans: list[Mapping[str, Any]], front: set[str]) -> list[dict[str, Any]]:
    """Step time across, memory up; those on the front are filled."""
    if not plans:
        return []
    times = [one["step_time_s"] for one in plans]
    sizes = [one["peak_memory_bytes"] / GIB for one in plans]
    low, high = min(times), max(times)
    most = max(sizes)
    return [
        {
            "x": f"{MARGIN + (one['step_time_s'] - low) / ((high - low) or 1.0) * (WIDTH - 2 * MARGIN):.1f}",
            "y": f"{HEIGHT - MARGIN - one['peak_memory_bytes'] / GIB / most * (HEIGHT - 2 * MARGIN):.1f}",
            "front": one["reproduce"] in front,
            "label": f"{words_of(one)}: {one['step_time_s']:.4g} s, {one['peak_memory_bytes'] / GIB:.1f} GiB,"
            f" {format_many(one['n_gpus'], 'GPU')}",
        }
        for one in plans
    ]
