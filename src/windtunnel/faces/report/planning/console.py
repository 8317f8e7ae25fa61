"""Ranked plans, and cuts of a captured script, at the terminal: reads plain data of `planning`, computes no physics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from windtunnel.faces.report.draw.printing import columns
from windtunnel.studies.planning.compared import field_words

if TYPE_CHECKING:
    from rich.console import Console


GIB = 2**30
CHOICES_SHOWN = 4
RANKED_BY = {
    "cost": ("GPU-h/M tokens", "gpu_hours_per_million_tokens"),
    "energy": ("tokens/J", "tokens_per_joule"),
}
HIDDEN = ("global_batch", "seq_len", "framework")


def print_plans(document: Mapping[str, Any], console: Console) -> None:
    """`document`: as `Plans.to_dict` gives it."""
    space = document["space"]
    if document["status"] == "infeasible":
        _print_infeasible(document, console)
        return
    priced = any(one["cost_per_million_tokens"] is not None for one in document["plans"])
    troubled = any(one["effective_step_time_s"] is not None for one in document["plans"])
    names = ("", "plan", "GPUs", "step", "p5 to p95", "memory", "tokens/s", "MFU")
    table = columns(names, ("", "plan"), overflow="fold")
    # What is least is shown; a price says it in money.
    least = None if priced else RANKED_BY.get(document["objective"])
    more = ["cost/M tokens"] if priced else [least[0]] if least else []
    for name in [*more, *(["under trouble"] if troubled else [])]:
        table.add_column(name, justify="right")
    shown = decimals(one["p95_s"] for one in document["plans"])
    for number, one in enumerate(document["plans"], 1):
        cells = [
            str(number),
            words_of(one),
            f"{one['n_gpus']:,}",
            f"{one['step_time_s']:.{shown}f} s",
            f"{one['p5_s']:.{shown}f} to {one['p95_s']:.{shown}f}",
            f"{one['peak_memory_bytes'] / GIB:.1f} GiB",
            f"{one['tokens_per_s']:,.0f}",
            f"{one['mfu']:.1%}",
        ]
        figure = one["cost_per_million_tokens"] if priced else one[least[1]] if least else None
        cells += [] if figure is None else [f"{figure:.4g}"]
        cells += [f"{one['effective_step_time_s']:.4g} s"] if troubled else []
        table.add_row(*cells)
    console.print(table)
    console.print()
    if document["decides"]:
        console.print(f"What decides: {document['decides']}.", soft_wrap=True)
    thumb = document["rule_of_thumb"]
    if thumb is not None:
        console.print(f"Rule of thumb: {words(thumb['plan'])}: {document['rule_of_thumb_loses']}.", soft_wrap=True)
    console.print(
        f"{space['legal']:,} legal plans of {space['structures']:,} structures; {space['replayed']:,} replayed event by"
        f" event, {space['excluded_by_memory']:,} excluded by memory,"
        f" {space['bounded'] - space['excluded_by_memory']:,} by a bound on time.",
        soft_wrap=True,
    )
    console.print(f"{proof(document)} Searched for {document['seconds']:.1f} s.", soft_wrap=True)
    if document["techniques"] is not None:
        _print_techniques(document["techniques"], console)
    _print_choices(document, console)
    if document["front"]:
        console.print("\nNo plan that was found is better in time, cost and memory at once than one of these:")
        for one in document["front"]:
            console.print(
                f"  {one['n_gpus']:>7,} GPUs  {one['step_time_s']:8.4g} s"
                f"  {one['gpu_hours_per_million_tokens']:8.4g} GPU-h/M tokens"
                f"  {one['peak_memory_bytes'] / GIB:6.1f} GiB  {words_of(one)}",
                soft_wrap=True,
            )
    for name, text in document["launch"].items():
        console.print(f"\n{name}:")
        console.print(text.rstrip(), soft_wrap=True, markup=False)
    console.print(f"\nReproduce the first:\n{document['plans'][0]['reproduce']}", soft_wrap=True, markup=False)


def _print_techniques(tried: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"Techniques: {tried['predicted']} predictions on the {tried['finalists']} best plans,"
        f" {tried['unfit_pairs']} sets that do not go together left out; the proof is of plans without any.",
        soft_wrap=True,
    )
    for name, reason in tried["skipped"].items():
        console.print(f"  {name} cannot be tried: {reason}", soft_wrap=True, markup=False)


def _print_choices(document: Mapping[str, Any], console: Console) -> None:
    """By field, the next best values; then which prices decide."""
    told: dict[str, list[Mapping[str, Any]]] = {}
    for one in document["choices"]:
        told.setdefault(one["field"], []).append(one)
    if told:
        console.print("\nOther choices, with all else chosen again:")
    for name, others in told.items():
        parts, open_ones = [], []
        for one in others[:CHOICES_SHOWN]:
            mark = "" if one["exact"] else "at least "
            if one["exact"] or one["regret_at_least"] > 0:
                parts.append(f"{_said(one['value'])} costs {mark}{one['regret_at_least']:.2%}")
            else:  # a bound below the best plan says nothing: the search, or the second for this, was over before
                open_ones.append(_said(one["value"]))
        parts += [f"{' or '.join(open_ones)} not told apart"] if open_ones else []
        console.print(f"  {name}: {', '.join(parts)}", soft_wrap=True)
    if document["sensitivity"]:
        console.print("\nAnother plan wins, of those above, with")
    for one in document["sensitivity"]:
        console.print(f"  {one['price']}: {one['winner']}", soft_wrap=True)


def words(plan: Mapping[str, Any]) -> str:
    """A plan in short."""
    fields = (f"{field_words(name)} {_said(value)}" for name, value in plan.items() if name not in HIDDEN)
    return " · ".join(fields) or "data-parallel"


def words_of(one: Mapping[str, Any]) -> str:
    """A plan with its techniques, in short."""
    return " + ".join([words(one["plan"]), *one["techniques"]])


def proof(document: Mapping[str, Any]) -> str:
    """How sure the answer is, in one sentence."""
    gap = document["gap"]
    if document["objective"] == "memory":
        stopped = "Stopped early: another plan may need less memory."
        return stopped if gap >= 1.0 else f"No plan of this space needs over {gap:.2%} less memory."
    return "Optimal in this space." if gap == 0 else f"Stopped early: the best plan could be {gap:.2%} faster."


def decimals(seconds: Iterable[float]) -> int:
    """How many of them a column of times needs for four digits of the longest."""
    longest = max(seconds, default=1.0)
    return max(0, 3 - math.floor(math.log10(longest))) if longest > 0.0 else 0


def _said(value: object) -> str:
    if isinstance(value, list | tuple):
        runs = [(one, len(list(same))) for one, same in groupby(value)]
        return ",".join(f"{one}*{times}" if times > 2 else ",".join([str(one)] * times) for one, times in runs)
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _print_infeasible(document: Mapping[str, Any], console: Console) -> None:
    legal = document["space"]["legal"]
    if document["gap"]:
        console.print(f"Nothing that fits was found in the time given, among {legal:,} legal plans. The nearest:")
    else:
        console.print(f"Nothing fits: none of {legal:,} legal plans. The nearest:")
    for one in document["nearest"]:
        over = (one["needed_bytes"] - one["capacity_bytes"]) / GIB
        needed = one["needed_bytes"] / GIB
        console.print(f"  {words(one['plan'])}: needs {needed:.1f} GiB, {over:.1f} GiB too much", soft_wrap=True)
    if document["remedies"]:
        console.print("What makes one fit, each predicted:")
    for one in document["remedies"]:
        console.print(
            f"  {one['change']}: {words(one['plan'])}: {one['step_time_s']:.4g} s,"
            f" {one['peak_memory_bytes'] / GIB:.1f} GiB",
            soft_wrap=True,
        )


def print_cuts(document: Mapping[str, Any], console: Console) -> None:
    """`document`: as `plan_captured` gives it."""
    fits = document["status"] == "ok"
    if not fits:
        console.print(f"Nothing fits: none of {document['space']['legal']} numbers of stages. The nearest:")
    names = ("", "stages", "replicas", "micro-batches", "units of each stage", "step", "p5 to p95", "memory")
    table = columns(names, ("", "units of each stage"), overflow="fold")
    plans = document["plans"] if fits else document["nearest"]
    for number, one in enumerate(plans, 1):
        plan = one["plan"]
        table.add_row(
            str(number), str(plan["pp"]), str(plan["dp"]), str(plan["micro_batches"]),
            ",".join(map(str, plan["layers_per_stage"])), f"{one['step_time_s']:#.4g} s",
            f"{one['p5_s']:#.4g} to {one['p95_s']:#.4g}", f"{one['peak_memory_bytes'] / GIB:.2f} GiB",
        )  # fmt: skip
    console.print(table)
    console.print("\nStages of the first:")
    for number, stage in enumerate(plans[0]["stages"]):
        console.print(
            f"  {number}: {stage['first']} to {stage['last']}, {stage['units']} units,"
            f" {stage['micro_batch_s'] * 1e3:.4g} ms a micro-batch, {stage['memory_bytes'] / GIB:.2f} GiB",
            soft_wrap=True,
        )
    space = document["space"]
    console.print(
        f"{space['legal']} numbers of stages and replicas, each cut by dynamic programming and walked through."
        f" {document['seconds']:.1f} s.",
        soft_wrap=True,
    )
    console.print("Assumed:")
    for text in document["assumed"]:
        console.print(f"  {text}", soft_wrap=True)
    console.print(f"\n{plans[0]['reproduce']}", soft_wrap=True, markup=False)
