"""One HTML file that shows a Result with pictures and needs nothing else: no network, no server, no library.

Python gathers what is shown and reckons the pictures; `templates/report.html.j2` writes and arranges it;
`templates/report.js` draws the zoomable timeline and answers the pointer. Autoescape is on, data for the script travel
as JSON with `<` escaped, and a content security policy forbids every request. Why no chart library:
docs/decisions/0003-charts.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from windtunnel.arguments import typed
from windtunnel.faces.report import figures
from windtunnel.faces.report.figures import plain
from windtunnel.faces.report.pages import page_template
from windtunnel.faces.report.prediction import charts
from windtunnel.faces.report.prediction.categories import (
    SOURCES,
    Category,
    label_of,
    source_categories,
    time_categories,
)
from windtunnel.faces.report.prediction.charts import heat_data
from windtunnel.faces.report.prediction.console import command_lines
from windtunnel.faces.report.prediction.disturbed_page import disturbed_view
from windtunnel.faces.report.prediction.rows import advice_view, limit_groups
from windtunnel.faces.report.prediction.spec_words import calibrated_words, flatten, gpus, layout, model_name, shown
from windtunnel.faces.report.techniques import gain_rows, gain_words
from windtunnel.output_file import write_atomically
from windtunnel.physics.step.result import Result
from windtunnel.units import format_many


@typed
def write_html(result: Result, path: Path | str) -> None:
    """Write the report at `path`. Raises InputFileError when it cannot be written."""
    write_atomically(Path(path), render_html(result).encode())


def render_html(result: Result) -> str:
    """The whole page. The same result gives the same text."""
    # Lone surrogates (from a JSON escape in a name) cannot be written as UTF-8.
    return page_template("report.html.j2").render(**view_of(result)).encode("utf-8", "replace").decode()


def view_of(result: Result) -> dict[str, Any]:
    """What `report_body.html.j2` shows of a result, ready to be drawn."""
    categories = time_categories(_time_keys(result))
    heat = heat_data(result)
    return {
        "model": model_name(result),
        "where": gpus(result),
        "layout": layout(result),
        "content_hash": result.content_hash,
        "version": plain(result.spec.get("version") or ""),
        "result": result,
        "band": charts.band(result.step_time_p5_ns, result.step_time_ns, result.step_time_p95_ns),
        "warnings": [plain(text) for text in result.warnings],
        "limits": limit_groups(result.limits),
        "label_of": label_of,
        "advice_later": False,  # a page that asks for it on its own says True
        "advice": dict(zip(("title", "note", "groups"), advice_view(result), strict=True)),
        "breakdown": charts.breakdown(result, categories),
        "classes": charts.classes(result),
        "stage_rows": charts.stage_rows(result, categories),
        "memory": charts.memory_bars(result),
        "curves": charts.memory_curves(result),
        "sources": _sources(result.provenance),
        "rests": plain(calibrated_words(result)),
        "traffic": sorted(filter(itemgetter(1), result.traffic_bytes.items()), key=lambda pair: (-pair[1], pair[0])),
        "spec": _spec(result.spec),
        "defaults": [plain(text) for text in result.defaults],
        "reproduce": command_lines(plain(result.reproduce), 96),
        "simulated": f"{result.n_ops:,} ops of {result.n_classes:,} rank class{'' if result.n_classes == 1 else 'es'}"
        f" stand for {format_many(result.n_gpus, 'GPU')}",
        "technique": result.technique and {"words": gain_words(result.technique), "rows": gain_rows(result.technique)},
        "disturbed": disturbed_view(result, categories),
        "heat": heat,
        "data": {
            "timeline": charts.timeline_data(result, categories),
            "curves": charts.curve_data(result),
            **({"heat": heat} if heat else {}),
        },
    }


def _time_keys(result: Result) -> set[str]:
    keys = {key for key, ns in result.breakdown_ns.items() if ns}
    for stage in result.stages:
        keys |= {key for key, ns in stage.breakdown_ns.items() if ns}
    return keys | {interval.category for interval in result.excerpt}


def _sources(provenance: Mapping[str, float]) -> list[tuple[Category, str, float, str]]:
    """What priced the busy time, each with its share as printed and as a number, and what it means."""
    shares = source_categories(provenance)
    shown_shares = figures.shares([provenance[key] for key in shares])
    return [
        (category, share, provenance[key], SOURCES.get(key, ""))
        for (key, category), share in zip(shares.items(), shown_shares, strict=True)
        if provenance[key] > 0
    ]


def _spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    order = ("plan", "model", "cluster")
    parts = sorted(spec, key=lambda key: (order.index(key) if key in order else len(order), str(key)))
    groups, loose, sources = [], [], []
    for part in parts:
        if isinstance(spec[part], Mapping):
            flat = {plain(key): shown(value) for key, value in flatten(spec[part]).items() if value is not None}
            sources += [(f"{plain(part)}.{key}", text) for key, text in flat.items() if _is_source(key)]
            groups.append({"name": plain(part), "rows": [pair for pair in flat.items() if not _is_source(pair[0])]})
        else:
            loose.append((plain(part), shown(spec[part])))
    return {"groups": [*groups, {"name": "run", "rows": loose}] if loose else groups, "sources": sources}


def _is_source(key: str) -> bool:
    return "sources" in key.split(".")
