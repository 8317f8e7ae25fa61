"""Served models for the terminal: a result, a pool of models, a real engine, and what is compared side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from windtunnel.faces.report.figures import dollars
from windtunnel.faces.report.printing import columns
from windtunnel.units import format_many

SPOT_ROWS = ("answered", "mean", "p50", "p99", "tokens/s", "changes", "paused", "computed again", "GPU hours")
WEIGHT_ROWS = ("mean", "p50", "p99", "requests/s", "tokens/s", "computing", "loads", "of which from the host")
COST_ROWS = ("cost", "per million tokens")
ROWS = (
    ("ttft_s", "TTFT"),
    ("tpot_s", "TPOT"),
    ("itl_s", "inter-token"),
    ("e2e_s", "end to end"),
    ("queue_s", "queueing"),
)
COLUMNS = ("mean", "p50", "p90", "p95", "p99")
POOL_COLUMNS = (
    *("", "finished", "TTFT mean", "p99", "TPOT mean", "p99", "within limits", "tokens/s"),
    *("replicas", "busy", "regime"),
)
REAL_ROWS = (("ttft_s", "mean"), ("ttft_s", "p99"), ("tpot_s", "mean"), ("e2e_s", "mean"), ("e2e_s", "p99"))


def print_serving(result: Mapping[str, Any], console: Console) -> None:
    """Latencies, throughput, regime, and what they rest on. `result`: `ServingResult.to_dict()`."""
    spec = result["spec"]
    console.print(f"[b]{spec['model']}[/b] on {spec['gpu']}, {spec['engine']}: {_layout(spec)}", highlight=False)
    if not result["feasible"]:
        console.print(f"infeasible: {result['reason']}")
        return
    there, used = spec["cluster_gpus"], result["gpus"]
    if used < there:
        console.print(f"uses {used} of the cluster's {there} GPUs: {there - used} stay unused")
    load = spec["workload"]
    rate = f", {per_second(load['rate_per_s'])} requests/s" if load.get("rate_per_s") else ""
    rate = f", {load['concurrency']} in flight" if load.get("concurrency") else rate
    console.print(
        f"{format_many(load['requests'], 'request')}, {load['input_tokens_mean']:,.0f} tokens in,"
        f" {load['output_tokens_mean']:,.0f} out{rate}; {result['finished']:,} finished, {result['refused']:,} refused"
    )
    table = columns(("", *COLUMNS))
    for key, label in ROWS:
        if result[key] is not None:
            table.add_row(label, *(duration(result[key][name]) for name in COLUMNS))
    if table.row_count:
        console.print(table)
    band = result["tpot_band_s"]
    if band is not None:
        console.print(f"TPOT p5 to p95 {duration(band['p5'])} to {duration(band['p95'])}")
    console.print(f"regime: {result['regime']}" + ("" if result["ttft_is_promised"] else "; TTFT here is no promise"))
    console.print(
        f"{result['output_tokens_per_s']:,.0f} output tokens/s, {per_second(result['requests_per_s'])} requests/s,"
        f" {format_many(result['gpus'], 'GPU')} {result['utilisation']:.0%} busy,"
        f" mean batch {result['batch_mean']:.1f},"
        f" KV {result['kv_use_mean']:.0%} used ({result['kv_use_peak']:.0%} at most)"
    )
    if result["preemptions"] or result["prefix_hit_rate"]:
        console.print(
            f"{format_many(result['preemptions'], 'preemption')},"
            f" {result['prefix_hit_rate']:.1%} of prompt blocks were known"
        )
    if result["slo_attainment"] is not None:
        limits = ", ".join(f"{name[:-2].upper()} {duration(value)}" for name, value in result["slo"].items())
        console.print(f"{result['slo_attainment']:.1%} meet {limits}")
    search = result["search"]
    if search is not None:
        console.print(
            f"goodput {result['goodput_requests_per_s']:.4g} requests/s at {search['attain']:.0%}"
            f" ({format_many(search['rates_tried'], 'rate')} tried)"
        )
    if result["cost_per_million_output_tokens"] is not None:
        console.print(f"{result['cost_per_million_output_tokens']:.3f} per million output tokens")
    console.print("; ".join(result["sources"]), style="dim")


def duration(seconds: float) -> str:
    """Three digits with the unit that fits, more where there are thousands."""
    if seconds >= 1000.0:
        return f"{seconds:,.0f} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def per_second(rate: float) -> str:
    """Three digits, more where there are thousands."""
    return f"{rate:,.0f}" if rate >= 1000.0 else f"{rate:.3g}"


def _layout(spec: Mapping[str, Any]) -> str:
    if spec.get("prefill"):
        sides = (f"{name} {spec[name]['replicas']} x {spec[name]['layout']}" for name in ("prefill", "decode"))
        return ", ".join(sides)
    one = spec["deployment"]
    sizes = (
        (short, one.get(name, 1)) for short, name in (("tp", "tp"), ("pp", "pp"), ("dp", "attn_dp"), ("ep", "moe_ep"))
    )
    words = " ".join(f"{short}{size}" for short, size in sizes if size and size > 1) or "tp1"
    return f"{spec['replicas']} x {words}, {one['weights']}"


def rows_of(found: Mapping[str, Any]) -> list[list[str]]:
    """One row per model, as POOL_COLUMNS says."""
    rows = []
    for name, one in found["models"].items():
        times = [
            "-" if one[key] is None else duration(one[key][what])
            for key in ("ttft_s", "tpot_s")
            for what in ("mean", "p99")
        ]
        met = "-" if one["slo_attainment"] is None else f"{one['slo_attainment']:.1%}"
        counts = [point["serving"] for point in one["replicas"]] or [0]
        some = f"{min(counts)} to {max(counts)}" if min(counts) != max(counts) else f"{counts[0]}"
        share = f"{one['utilisation']:.0%}"
        done = f"{one['finished']:,} of {one['requests']:,}"
        rows.append([name, done, *times, met, f"{one['output_tokens_per_s']:,.0f}", some, share, one["regime"]])
    return rows


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """What holds for all models together."""
    total = found["total"]
    lines = [
        f"{total['duration_s']:,.0f} s: {total['finished']:,} of {total['requests']:,} requests,"
        f" {total['output_tokens_per_s']:,.0f} output tokens/s, {total['gpu_seconds'] / 3600:,.2f} GPU hours"
    ]
    if total["slo_attainment"] is not None:
        good = total["goodput_requests_per_s"]
        lines.append(f"{total['slo_attainment']:.1%} within their limits, {good:.3g} such requests/s")
    if total["replicas_lost"]:
        lines.append(
            f"{format_many(total['replicas_lost'], 'replica')} lost,"
            f" {format_many(total['requests_moved'], 'request')} went on elsewhere"
        )
    if total["unfinished"]:
        lines.append(f"{format_many(total['unfinished'], 'request')} never found a machine")
    if total["cost"] is not None:
        per = total["cost_per_million_output_tokens"]
        lines.append(f"cost {total['cost']:,.2f}" + ("" if per is None else f", {per:.3f} per million output tokens"))
    for name, one in found["groups"].items():
        cost = "" if one["cost"] is None else f", cost {one['cost']:,.2f}"
        lines.append(f"{name}: {one['gpu_seconds'] / 3600:,.2f} GPU hours{cost}")
    return lines


def print_pool(found: Mapping[str, Any], console: Console) -> None:
    """`found`: `PoolResult.to_dict()`."""
    table = columns(POOL_COLUMNS, overflow="fold")
    for row in rows_of(found):
        table.add_row(*row)
    console.print(table)
    for line in lines_of(found):
        console.print(line, highlight=False)


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
        for place, (key, what) in enumerate(REAL_ROWS):
            a, b = measured[key][what], predicted[key][what]
            label = f"{key[:-2].upper()} {what}"
            table.add_row(policy if place == 0 else "", label, duration(a), duration(b), f"{b / a - 1:+.1%}")
        a, b = measured["output_tokens_per_s"], predicted["output_tokens_per_s"]
        table.add_row("", "tokens/s", f"{a:.0f}", f"{b:.0f}", f"{b / a - 1:+.1%}")
        table.add_row("", "steps", f"{measured['steps']}", f"{predicted['steps']}", "")
        table.add_row("", "blocks swapped", f"{both['swapped_blocks']}", "", "")
        table.add_row("", "machine", f"{both['machine_slower']:.2f} x", "", "")
    console.print(table)


def print_policies(found: Mapping[str, Any], console: Console) -> None:
    """`found`: answers of `serve` by policy."""
    results = found["policies"]
    rows = [(key, mark) for key in ("ttft_s", "tpot_s", "e2e_s") for mark in ("mean", "p99")]
    labels = [f"{dict(ROWS)[key]} {mark}" for key, mark in rows]
    cells = [
        [
            *("-" if one[key] is None else duration(one[key][mark]) for key, mark in rows),
            f"{one['output_tokens_per_s']:,.0f}",
            "-" if one["slo_attainment"] is None else f"{one['slo_attainment']:.1%}",
            f"{one['preemptions']:,}",
            one["regime"],
        ]
        for one in results.values()
    ]
    _side_by_side(console, list(results), [*labels, "tokens/s", "within limits", "preemptions", "regime"], cells)


def print_spot_serving(found: Mapping[str, Any], console: Console) -> None:
    """`found`: `SpotServing.to_dict()`."""
    spec, machines = found["spec"], found["spec"]["machines"]
    console.print(
        Text(
            f"{spec['model']} on {machines['least']} to {machines['most']} spot machines of {spec['gpus_per_machine']}"
            f" {spec['gpu']}; {spec['machines_come']} come, {spec['machines_go']} go,"
            f" noticed {spec['notice_s']:g} s before"
        )
    )
    console.print(_tokens_line(spec))
    priced = any(one["cost"] is not None for one in found["policies"].values())
    cells = [_spot_cells(one, priced) for one in found["policies"].values()]
    _side_by_side(console, list(found["policies"]), (*SPOT_ROWS, *(COST_ROWS if priced else ())), cells)


def _spot_cells(one: Mapping[str, Any], priced: bool) -> list[str]:
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


def print_weight_pool(found: Mapping[str, Any], console: Console) -> None:
    """`found`: `run_weight_pool()`."""
    spec, systems = found["spec"], found["systems"]
    size = f"{spec['weight_bytes'] / 1e9:,.0f} GB of weights"
    console.print(Text(f"{format_many(spec['models'], 'model')}, {size}, on {spec['gpus']} {spec['gpu']}"))
    console.print(_tokens_line(spec))
    priced = any(one.get("cost") is not None for one in systems.values())
    feasible = {name: one for name, one in systems.items() if one["feasible"]}
    cells = [_weight_cells(one, priced) for one in feasible.values()]
    _side_by_side(console, list(feasible), (*WEIGHT_ROWS, *(COST_ROWS if priced else ())), cells)
    for name, one in systems.items():
        if not one["feasible"]:
            console.print(Text(f"{name}: not possible, {one['reason']}"))


def _weight_cells(one: Mapping[str, Any], priced: bool) -> list[str]:
    return [
        *(duration(one["e2e_s"][key]) for key in ("mean", "p50", "p99")),
        f"{one['requests_per_s']:,.3g}",
        f"{one['output_tokens_per_s']:,.1f}",
        f"{one['utilisation']:.0%}",
        f"{one['loads']:,}",
        f"{one['host_hits']:,}",
        *([f"${one[key]:,.2f}" for key in ("cost", "cost_per_million_output_tokens")] if priced else []),
    ]


def _tokens_line(spec: Mapping[str, Any]) -> Text:
    return Text(f"{format_many(spec['requests'], 'request')}, {spec['prompt']} tokens in and {spec['output']} out")


def _side_by_side(
    console: Console, names: Sequence[str], labels: Sequence[str], cells: Sequence[Sequence[str]]
) -> None:
    """A column of `cells` under each name."""
    table = columns(["", *names])
    for label, *values in zip(labels, *cells, strict=True):
        table.add_row(label, *values)
    console.print(table)
