"""Fills the marked tables of docs/plan.md and docs/cluster.md from the code: `python docs/update_tables.py`.

A test holds the pages against what this script would write.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from windtunnel.physics.hardware import cluster_names, get_gpu, gpu_names, parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.questions.fields import Field, fields_of
from windtunnel.studies.training import Plan, read_plan
from windtunnel.studies.training.framework import HABITS
from windtunnel.studies.training.layout import resolve
from windtunnel.units import format_rate

HERE = Path(__file__).parent
WORDS = {int: "integer", float: "number", bool: "on or off", str: "text"}


def filled(text: str, marker: str, body: str) -> str:
    """`text` with what stands between `<!-- marker -->` and `<!-- /marker -->` replaced."""
    found = re.subn(
        rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", lambda m: m[1] + body + m[2], text, flags=re.DOTALL
    )
    assert found[1] == 1, f"{marker}: {found[1]} marked sections"
    return found[0]


def values(annotation: Any) -> str:
    """What a field takes, in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inside)
    if origin is tuple:
        return "list of integers"
    return WORDS[annotation]


def default(field: Field, resolved: Sequence[Plan]) -> str:
    """What holds where the plan says nothing; `resolved` is an empty plan as every framework fills it."""
    name = field.path
    if field.required:
        return "required"
    if field.default is not None:
        return f"`{field.default}`"
    found = {getattr(plan, name) for plan in resolved}
    if len(found) > 1:
        return "framework"
    return {None: "-", True: "`on`", False: "`off`"}[found.pop()]


def empty_plans() -> list[Plan]:
    """A plan that says no more than it must, resolved by every framework."""
    model, cluster = load_model("llama-3-8b"), parse_cluster("h100-sxm:64")
    said = {"tp": 2, "pp": 2, "virtual_stages": 2, "global_batch": 64, "seq_len": 4096}
    whole = {"pytorch": {"tp": 1}}  # shards no layer
    plans = ({**said, **whole.get(name, {}), "framework": name} for name in HABITS)
    return [resolve(model, cluster, read_plan(plan)).plan for plan in plans]


def fields() -> str:
    """One table per group of flags, one row per field."""
    resolved = empty_plans()
    groups: dict[str, list[str]] = {}
    for field in fields_of(Plan):
        text = re.sub(r" \([^()]*\)\.$|; required\.$", "", field.about.text).rstrip(".")
        row = (f"`{field.path}`", values(field.type), default(field, resolved), text[0].lower() + text[1:])
        cells = " | ".join(cell.replace("|", "\\|") for cell in row)
        groups.setdefault(field.about.group, []).append(f"| {cells} |")
    parts = []
    for title, rows in groups.items():
        parts += [f"### {title}", "", "| field | takes | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    return "\n".join(parts)


def shown_value(value: object) -> str:
    """One cell of the table of habits."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(str(one) for one in value) or "off"
    return f"{value / 1e6:g} million" if isinstance(value, float) else str(value)


def habits() -> str:
    """One column per framework, one row per habit."""
    names = [field.name for field in dataclasses.fields(next(iter(HABITS.values()))) if field.name != "title"]
    lines = ["| | " + " | ".join(f"`{name}`" for name in HABITS) + " |", "| --- |" + " --- |" * len(HABITS)]
    lines.append("| stands for | " + " | ".join(habit.title for habit in HABITS.values()) + " |")
    for name in names:
        cells = (getattr(habit, name) for habit in HABITS.values())
        shown = (shown_value(cell) for cell in cells)
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def gpus() -> str:
    """The GPUs of the catalogue."""
    lines = ["| name | memory | bandwidth | dense bf16 | measured kernels |", "| --- | ---: | ---: | ---: | --- |"]
    for name in gpu_names():
        gpu = get_gpu(name)
        memory, bandwidth = gpu.memory_bytes / 2**30, gpu.memory_bandwidth_bytes_per_s / 1e12
        kernels = "yes" if gpu.kernel_tables else "no: roofline"
        rate = gpu.peak_flops("bf16") / 1e12
        lines.append(f"| `{name}` | {memory:.0f} GiB | {bandwidth:.2f} TB/s | {rate:,.0f} TFLOP/s | {kernels} |")
    return "\n".join(lines) + "\n"


def clusters() -> str:
    """The node types of the catalogue."""
    lines = [
        "| name | GPU | per node | scale-up domain | scale-up | scale-out |",
        "| --- | --- | ---: | ---: | --- | --- |",
    ]
    for name in cluster_names():
        cluster = parse_cluster(f"{name}:1")
        up, out = (
            f"{link.name}, {format_rate(link.bandwidth_bytes_per_s)}" for link in (cluster.scale_up, cluster.scale_out)
        )
        lines.append(
            f"| `{name}` | `{cluster.gpu.name}` | {cluster.gpus_per_node} | {cluster.scale_up_domain} | {up} | {out} |"
        )
    return "\n".join(lines) + "\n"


TABLES = {"plan.md": {"fields": fields, "habits": habits}, "cluster.md": {"gpus": gpus, "clusters": clusters}}


def updated(name: str, page: str) -> str:
    """A page of docs/ as it should be."""
    for marker, table in TABLES[name].items():
        page = filled(page, marker, table())
    return page


def main() -> None:
    """Write the pages."""
    for name in TABLES:
        text = updated(name, (HERE / name).read_text(encoding="utf-8"))
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
