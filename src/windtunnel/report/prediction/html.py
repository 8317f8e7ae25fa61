"""One HTML file that shows a Result with pictures and needs nothing else: no network, no server, no library.

Python decides every number and width here; `templates/report.html.j2` arranges them; `templates/report.js` draws the
zoomable timeline and answers the pointer. Autoescape is on, data for the script travel as JSON with `<` escaped, and a
content security policy forbids every request. Why no chart library: docs/decisions/0003-charts.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windtunnel.report import figures
from windtunnel.report.figures import plain
from windtunnel.report.files import write_atomically
from windtunnel.report.pages import page_template
from windtunnel.report.prediction import charts
from windtunnel.report.prediction.advice_rows import advice_view
from windtunnel.report.prediction.categories import SOURCES, label_of, source_categories, time_categories
from windtunnel.report.prediction.console import command_lines
from windtunnel.report.prediction.disturbed_page import disturbed_view
from windtunnel.report.prediction.heatmap import heat_data
from windtunnel.report.prediction.limit_groups import limit_groups
from windtunnel.report.prediction.spec_words import calibrated_words, flatten, gpus, layout, model_name, shown
from windtunnel.result import Result
from windtunnel.units import format_bytes, format_count, format_many, format_percent


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
        "infeasible": _infeasible(result),
        "tiles": _tiles(result),
        "band": charts.band(result.step_time_p5_ns, result.step_time_ns, result.step_time_p95_ns),
        "warnings": [plain(text) for text in result.warnings],
        "limits": _limits(result),
        "advice_later": False,  # a page that asks for it on its own says True
        "advice": dict(zip(("title", "note", "groups"), advice_view(result), strict=True)),
        "breakdown": charts.breakdown(result, categories),
        "classes": charts.classes(result),
        "stage_rows": charts.stage_rows(result, categories),
        "memory": charts.memory_bars(result),
        "curves": charts.memory_curves(result),
        "sources": _sources(result.provenance),
        "rests": plain(calibrated_words(result)),
        "traffic": _traffic(result.traffic_bytes),
        "spec": _spec(result.spec),
        "defaults": [plain(text) for text in result.defaults],
        "reproduce": command_lines(plain(result.reproduce), 96),
        "simulated": f"{result.n_ops:,} ops of {result.n_classes:,} rank class{'' if result.n_classes == 1 else 'es'}"
        f" stand for {format_many(result.n_gpus, 'GPU')}",
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


def _infeasible(result: Result) -> dict[str, Any] | None:
    trouble = result.infeasible
    if trouble is None:
        return None
    return {
        "reason": plain(trouble.reason),
        "where": result.class_name(trouble.stage),
        "needed": format_bytes(trouble.needed_bytes),
        "capacity": format_bytes(trouble.capacity_bytes),
        "over": format_bytes(trouble.needed_bytes - trouble.capacity_bytes),
    }


def _tiles(result: Result) -> list[dict[str, Any]]:
    tiles: list[dict[str, Any]] = []
    if result.step_time_ns > 0:
        low, high = figures.duration(result.step_time_p5_ns), figures.duration(result.step_time_p95_ns)
        value, unit = figures.duration(result.step_time_ns).split(" ")
        tiles = [
            {"name": "Step time", "value": value, "unit": unit, "notes": [f"p5–p95: {low} – {high}"], "kind": "band"},
            {
                "name": "Throughput",
                "value": figures.significant(result.tokens_per_s_per_gpu),
                "unit": "tokens/s/GPU",
                "notes": [
                    f"{format_count(result.tokens_per_s)} tokens/s in all",
                    f"{format_count(result.tokens_per_step)} tokens per step",
                ],
                "kind": "",
            },
            {
                "name": "MFU",
                "value": f"{result.mfu * 100:.1f}",
                "unit": "%",
                "notes": [
                    f"{figures.significant(result.model_tflops_per_gpu)} TFLOP/s per GPU",
                    f"HFU {format_percent(result.hfu)}, which counts recomputation",
                    plain(result.mfu_convention),
                ],
                "kind": "",
            },
        ]
        if not result.tokens_per_step:  # of a captured script that looks up no embedding
            del tiles[1]
    if result.memory:
        peak = result.peak_memory
        share = peak.device_bytes / max(result.memory_capacity_bytes, 1)
        value, unit = format_bytes(peak.device_bytes).split(" ")
        note = f"{share:.0%} of {format_bytes(result.memory_capacity_bytes)}, on {result.class_name(peak.stage)}"
        tiles.append({"name": "Peak memory", "value": value, "unit": unit, "notes": [note], "kind": "gauge"})
        tiles[-1] |= {"share": f"{min(share, 1.0) * 100:.2f}", "full": share > 1}
    return tiles


def _limits(result: Result) -> list[dict[str, Any]]:
    longest = max((limit.share for limit in result.limits), default=0.0) or 1.0
    return [
        {
            "title": title,
            "rows": [
                {
                    "what": plain(label_of(limit.what)),
                    "share": format_percent(limit.share),
                    "width": f"{max(limit.share, 0.0) / longest * 100:.2f}",
                    "without": figures.duration(limit.step_time_s_without * 1e9),
                }
                for limit in limits
            ],
        }
        for title, limits in limit_groups(result.limits)
    ]


def _sources(provenance: Mapping[str, float]) -> list[dict[str, Any]]:
    shares = source_categories(provenance)
    shown_shares = figures.shares([provenance[key] for key in shares])
    return [
        {
            "label": plain(category.label),
            "slot": category.slot,
            "share": share,
            "width": f"{provenance[key] * 100:.3f}",
            "meaning": SOURCES.get(key, ""),
        }
        for (key, category), share in zip(shares.items(), shown_shares, strict=True)
        if provenance[key] > 0
    ]


def _traffic(traffic: Mapping[str, int]) -> list[dict[str, str]]:
    most = max(traffic.values(), default=0) or 1
    ordered = sorted((pair for pair in traffic.items() if pair[1]), key=lambda pair: (-pair[1], pair[0]))
    return [
        {"label": plain(label_of(key)), "size": format_bytes(n), "width": f"{n / most * 100:.2f}"} for key, n in ordered
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
