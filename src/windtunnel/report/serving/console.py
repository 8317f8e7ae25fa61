"""A serving result for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windtunnel.report.printing import columns
from windtunnel.units import format_many

if TYPE_CHECKING:
    from rich.console import Console

ROWS = (
    ("ttft_s", "TTFT"),
    ("tpot_s", "TPOT"),
    ("itl_s", "inter-token"),
    ("e2e_s", "end to end"),
    ("queue_s", "queueing"),
)
COLUMNS = ("mean", "p50", "p90", "p95", "p99")


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
