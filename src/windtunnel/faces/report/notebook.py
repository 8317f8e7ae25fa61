"""A result in a notebook: the few figures that a person looks for first, as one HTML table without scripts."""

from __future__ import annotations

from html import escape

from windtunnel.arguments import typed
from windtunnel.faces.report.figures import plain
from windtunnel.faces.report.prediction.categories import label_of
from windtunnel.faces.report.prediction.spec_words import title
from windtunnel.physics.step.result import Result
from windtunnel.units import format_bytes

_PARTS = 8  # of the breakdown, longest first


@typed
def notebook_html(result: Result) -> str:
    """An HTML fragment; text of the result is escaped."""
    rows = [
        (
            "step time",
            f"{result.step_time_s:.4g} s",
            f"p5–p95 {result.step_time_p5_ns / 1e9:.4g} – {result.step_time_p95_ns / 1e9:.4g} s",
        ),
        ("throughput", f"{result.tokens_per_s_per_gpu:,.1f} tokens/s/GPU", f"{result.tokens_per_s:,.0f} tokens/s"),
        ("MFU", f"{result.mfu:.1%}", f"{result.model_tflops_per_gpu:,.1f} TFLOP/s per GPU"),
    ]
    if not result.tokens_per_step:  # of a captured script that looks up no embedding
        del rows[1]
    if result.memory:
        most = result.peak_memory
        room = f"of {format_bytes(result.memory_capacity_bytes)}, {result.class_name(most.stage)}"
        rows.append(("peak memory", format_bytes(most.device_bytes), room))
    if result.infeasible is not None:
        rows.insert(0, ("does not fit", result.infeasible.reason, result.class_name(result.infeasible.stage)))
    longest = sorted(result.breakdown_ns.items(), key=lambda part: (-part[1], part[0]))[:_PARTS]
    rows += [
        (plain(label_of(name)), f"{part / 1e9:.4g} s", f"{part / max(result.step_time_ns, 1):.1%} of the step")
        for name, part in longest
        if part
    ]
    rows += [("warning", text, "") for text in result.warnings]
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title(result))}</caption><tbody>{body}</tbody></table>"
