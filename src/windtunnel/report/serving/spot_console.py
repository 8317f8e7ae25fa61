"""A model on spot machines for the terminal: each policy beside the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windtunnel.report.figures import dollars
from windtunnel.report.printing import columns
from windtunnel.report.serving.console import duration
from windtunnel.units import format_many

if TYPE_CHECKING:
    from rich.console import Console

ROWS = ("answered", "mean", "p50", "p99", "tokens/s", "changes", "paused", "computed again", "GPU hours")


def print_spot_serving(found: Mapping[str, Any], console: Console) -> None:
    """`found`: `SpotServing.to_dict()`."""
    from rich.text import Text

    spec, machines = found["spec"], found["spec"]["machines"]
    console.print(
        Text(
            f"{spec['model']} on {machines['least']} to {machines['most']} spot machines of {spec['gpus_per_machine']}"
            f" {spec['gpu']}; {spec['machines_come']} come, {spec['machines_go']} go,"
            f" noticed {spec['notice_s']:g} s before"
        )
    )
    requests = format_many(spec["requests"], "request")
    console.print(Text(f"{requests}, {spec['prompt']} tokens in and {spec['output']} out"))
    priced = any(one["cost"] is not None for one in found["policies"].values())
    table = columns(["", *found["policies"]])
    told = [_told(one, priced) for one in found["policies"].values()]
    for name, *values in zip((*ROWS, *(("cost", "per million tokens") if priced else ())), *told, strict=True):
        table.add_row(name, *values)
    console.print(table)


def _told(one: Mapping[str, Any], priced: bool) -> list[str]:
    times = ["never" if one["e2e_s"][key] is None else duration(one["e2e_s"][key]) for key in ("mean", "p50", "p99")]
    return [
        f"{one['finished']:,}",
        *times,
        f"{one['output_tokens_per_s']:,.1f}",
        f"{one['reconfigurations'] + one['replicas_loaded']:,}",
        duration(one["paused_s"]),
        f"{one['recomputed_tokens']:,}",
        f"{one['gpu_seconds'] / 3600:,.1f}",
        *([dollars(one["cost"]), dollars(one["cost_per_million_output_tokens"])] if priced else []),
    ]
