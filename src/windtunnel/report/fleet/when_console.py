"""When a job starts and ends, and why it waits, on one screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from windtunnel.report.figures import plain
from windtunnel.report.fleet.console import shown
from windtunnel.report.printing import columns
from windtunnel.units import format_many

NAMED = 6  # jobs in a list


def print_when(answer: Mapping[str, Any], console: Console) -> None:
    """One policy's answer."""
    console.print(
        f"{plain(answer['job'])} under {answer['policy']}: {format_many(answer['gpus'], 'GPU')}, submitted at "
        f"{answer['submit_s']:,.0f} s, {answer['state']}",
        markup=False,
    )
    table = columns(("", "as traced", "5 %", "50 %", "95 %"))
    start_s, end_s, submit_s = answer["start_s"], answer["end_s"], answer["submit_s"]
    wait_s = None if start_s is None else start_s - submit_s
    for label, value, band in (
        ("waits", wait_s, answer["wait_band_s"]),
        ("starts at", start_s, answer["start_band_s"]),
        ("ends at", end_s, answer["end_band_s"]),
    ):
        table.add_row(label, shown(value, "s"), *(shown(part, "s") for part in band or (None, None, None)))
    console.print(table)
    why = answer["why"]
    console.print(f"why: {why['text']}", markup=False)
    for label, names in (("ahead", why["ahead"]), ("overtaking", why["overtaking"]), ("freed by", why["freed_by"])):
        if names:
            console.print(f"  {label}: {_listed([plain(name) for name in names])}", markup=False)
    if why["holders"] and answer["start_s"] != answer["submit_s"]:
        held = [
            f"{plain(each['job'])} ({format_many(each['gpus'], 'GPU')}, until {shown(each['end_s'], 's')})"
            for each in why["holders"]
        ]
        console.print(f"  held by: {_listed(held)}", markup=False)
    ended = "" if answer["ended_draws"] == answer["draws"] else f", of which {answer['ended_draws']} ended"
    console.print(f"band: {answer['draws']} draws{ended}; {answer['uncertainty']}", markup=False)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f", and {len(names) - NAMED} more" if len(names) > NAMED else "")
