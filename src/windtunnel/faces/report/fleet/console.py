"""On one screen: policies side by side; when a job starts and ends, and why it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from windtunnel.faces.report.draw.printing import columns
from windtunnel.units import format_many
from windtunnel.views.text import plain

ROWS = (
    ("mean JCT", "jct_mean_s", "s"),
    ("p50 JCT", "jct_p50_s", "s"),
    ("p99 JCT", "jct_p99_s", "s"),
    ("mean queueing delay", "queueing_delay_mean_s", "s"),
    ("makespan", "makespan_s", "s"),
    ("utilisation", "utilisation", "%"),
    ("restarts", "restarts", ""),
    ("deadlines met, by log", "deadline_met_by_log", "%"),
    ("deadlines met, scored", "deadline_met_scored", "%"),
    ("worst finish-time fairness", "finish_time_fairness_max", "x"),
    ("GPU-hours lost to failures", "failure_lost_gpu_hours", "x"),
    ("  work undone", "failure_undone_gpu_hours", "x"),
    ("  restarts after them", "failure_restart_gpu_hours", "x"),
    ("GPU-hours that were not there", "down_gpu_hours", "x"),
    ("jobs stopped by failures", "job_failures", ""),
    ("preempted GPU-hours", "preempted_gpu_hours", "x"),
    ("use of own GPUs", "use_of_own", "%"),
    ("use of all GPUs", "use_of_all", "%"),
    ("requests late, with loans", "loan_violations", "fine"),
    ("requests late, without", "loan_violations_alone", "fine"),
    ("cost", "cost", "x"),
    ("GB moved", "moved_gb", "x"),
    ("GB of secrets moved", "secret_gb", "x"),
    ("jobs outside", "outside_jobs", ""),
    ("use of machines", "machine_use", "%"),
    ("requested of machines", "machine_requested", "%"),
    ("p95 of services, of requested-only", "service_p95_ratio", "x"),
    ("evictions", "evictions", ""),
    ("completed", "completed_jobs", ""),
    ("failed, as traced", "failed_jobs", ""),
    ("cancelled, as traced", "cancelled_jobs", ""),
    ("rejected", "rejected_jobs", ""),
    ("unfinished", "unfinished_jobs", ""),
    ("left out: impossible", "impossible_jobs", ""),
    ("left out: incomplete", "dropped_jobs", ""),
    ("allocated at full arrival", "allocated_pct", "pct"),
    ("fragments of capacity", "fragment_pct", "pct"),
    ("fragments of what is free", "fragment_of_free_pct", "pct"),
)


def print_fleet(document: Mapping[str, Any], figures: Sequence[Mapping[str, Any]], console: Console) -> None:
    """One column per policy."""
    console.print(
        f"{format_many(figures[0]['jobs'], 'job')} of {plain(document['trace'])} on {plain(document['cluster'])}",
        markup=False,
    )
    table = columns(["", *(str(each["policy"]) for each in figures)])
    for label, key, unit in ROWS:
        values = [each.get(key) for each in figures]
        if all(value is None for value in values) or (unit == "" and not any(values)):
            continue
        unit = unit_of(values, unit)
        table.add_row(label, *(_banded(each, key, unit) for each in figures))
    console.print(table)


def _banded(figures: Mapping[str, Any], key: str, unit: str) -> str:
    """A figure, and where it varies over seeds the 5 and 95 % of it."""
    text = shown(figures.get(key), unit)
    low, _, high = figures.get("bands", {}).get(key, (0, 0, 0))
    return text if low == high else f"{text} ({shown(low, unit)} to {shown(high, unit)})"


def unit_of(values: Sequence[Any], unit: str) -> str:
    """One unit for a row of times, so that its columns compare: hours where the longest is of hours."""
    return "h" if unit == "s" and any(value is not None and value >= 10_000 for value in values) else unit


def shown(value: Any, unit: str) -> str:
    """A figure with its unit."""
    if value is None:
        return "-"
    if unit == "s":
        return f"{value:,.0f} s" if value < 10_000 else f"{value / 3600:,.1f} h"
    if unit == "h":
        return f"{value / 3600:,.2f} h"
    if unit == "%":
        return f"{value:.1%}"
    if unit == "fine":
        return f"{value:.3%}"
    if unit == "pct":
        return f"{value:.2f} %"
    if unit == "x":
        return f"{value:,.2f}"
    return f"{value:,}"


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
