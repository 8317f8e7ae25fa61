"""A pool of weights for the terminal: each system beside the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windtunnel.report.printing import columns
from windtunnel.report.serving.console import duration
from windtunnel.units import format_many

if TYPE_CHECKING:
    from rich.console import Console

ROWS = ("mean", "p50", "p99", "requests/s", "tokens/s", "computing", "loads", "of which from the host")


def print_weight_pool(found: Mapping[str, Any], console: Console) -> None:
    """`found`: `run_weight_pool()`."""
    from rich.text import Text

    spec, systems = found["spec"], found["systems"]
    size = f"{spec['weight_bytes'] / 1e9:,.0f} GB of weights"
    console.print(Text(f"{format_many(spec['models'], 'model')}, {size}, on {spec['gpus']} {spec['gpu']}"))
    requests = format_many(spec["requests"], "request")
    console.print(Text(f"{requests}, {spec['prompt']} tokens in and {spec['output']} out"))
    priced = any(one.get("cost") is not None for one in systems.values())
    feasible = {name: one for name, one in systems.items() if one["feasible"]}
    table = columns(["", *feasible])
    told = [_told(one, priced) for one in feasible.values()]
    for name, *values in zip((*ROWS, *(("cost", "per million tokens") if priced else ())), *told, strict=True):
        table.add_row(name, *values)
    console.print(table)
    for name, one in systems.items():
        if not one["feasible"]:
            console.print(Text(f"{name}: not possible, {one['reason']}"))


def _told(one: Mapping[str, Any], priced: bool) -> list[str]:
    return [
        *(duration(one["e2e_s"][key]) for key in ("mean", "p50", "p99")),
        f"{one['requests_per_s']:,.3g}",
        f"{one['output_tokens_per_s']:,.1f}",
        f"{one['utilisation']:.0%}",
        f"{one['loads']:,}",
        f"{one['host_hits']:,}",
        *([f"${one[key]:,.2f}" for key in ("cost", "cost_per_million_output_tokens")] if priced else []),
    ]
