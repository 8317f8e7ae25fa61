"""Measured beside predicted of a real engine, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windtunnel.report.printing import columns
from windtunnel.report.serving.console import duration
from windtunnel.units import format_many

if TYPE_CHECKING:
    from rich.console import Console

ROWS = (("ttft_s", "mean"), ("ttft_s", "p99"), ("tpot_s", "mean"), ("e2e_s", "mean"), ("e2e_s", "p99"))


def print_real(found: Mapping[str, Any], console: Console) -> None:
    """`found`: `Compared.to_dict()`."""
    console.print(
        f"[b]tiny-llama[/b] on {found['device']}: {format_many(found['requests'], 'request')},"
        f" {found['rate_per_s']:.3g} per second;"
        f" {found['steps_measured']} steps measured, fitted to {found['step_fit_error']:.1%}",
        highlight=False,
    )
    table = columns(("policy", "", "measured", "predicted", ""), ("policy",))
    for policy, both in found["policies"].items():
        measured, predicted = both["measured"], both["predicted"]
        for place, (key, what) in enumerate(ROWS):
            a, b = measured[key][what], predicted[key][what]
            label = f"{key[:-2].upper()} {what}"
            table.add_row(policy if place == 0 else "", label, duration(a), duration(b), f"{b / a - 1:+.1%}")
        a, b = measured["output_tokens_per_s"], predicted["output_tokens_per_s"]
        table.add_row("", "tokens/s", f"{a:.0f}", f"{b:.0f}", f"{b / a - 1:+.1%}")
        table.add_row("", "steps", f"{measured['steps']}", f"{predicted['steps']}", "")
        table.add_row("", "blocks swapped", f"{both['swapped_blocks']}", "", "")
        table.add_row("", "machine", f"{both['machine_slower']:.2f} x", "", "")
    console.print(table)
