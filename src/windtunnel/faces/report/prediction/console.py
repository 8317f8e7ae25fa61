"""A Result on one screen: the answer, where the step goes, memory, what limits it, how sure it is, how to repeat it.

Calm by design: one accent colour, bars of one cell height, nothing that needs colour to be understood. Every text of
the Result goes through `plain` and `Text`, so neither terminal escapes nor markup in a name take effect.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from windtunnel.faces.report import figures
from windtunnel.faces.report.figures import plain
from windtunnel.faces.report.prediction.categories import SOURCES, label_of, source_categories, time_categories
from windtunnel.faces.report.prediction.disturbed_lines import disturbed_lines
from windtunnel.faces.report.prediction.rows import advice_view, limit_groups, memory_parts
from windtunnel.faces.report.prediction.spec_words import calibrated_words, layout, model_name, title
from windtunnel.faces.report.printing import DIM, LABEL, NUMBER, REST, WORD, bar, grid, print_trimmed
from windtunnel.faces.report.techniques import gain_lines
from windtunnel.physics.step.result import Infeasible, Result
from windtunnel.units import format_bytes, format_count, format_percent

NARROW, WIDE = 48, 100
_LABEL_CELLS = 32
FAMILY_STYLES = {
    "compute": "blue",
    "memory": "cyan",
    "optimizer": "green",
    "comm": "yellow",
    "bubble": "bright_black",
    "waiting": "bright_black",
    "host": "magenta",
    "mem": "blue",
    "src": "blue",
}


class _Row(NamedTuple):
    label: str
    amount: str
    share: str
    length: float = 0.0
    style: str = ""


def print_result(result: Result, console: Console) -> None:
    """Print `result` on `console`, in its width and in characters that it can show."""
    print_trimmed(render_console(result, console.width), console)


def print_advice(result: Result, console: Console) -> None:
    """Print what `print_result` leaves out of an answer that has its advice later."""
    lines = advice_lines(result)
    if lines:
        print_trimmed(Constrain(Group(*lines[1:], Text()), min(max(console.width, NARROW), WIDE)), console)


def render_console(result: Result, width: int | None = None) -> RenderableType:
    """The screen as a rich renderable, at most `width` (default 80) columns wide."""
    columns = min(max(width or 80, NARROW), WIDE)
    parts: list[RenderableType] = [Text(), *_head(result, columns)]
    if result.infeasible is not None:
        parts += _infeasible(result.infeasible, result.class_name(result.infeasible.stage))
        parts += advice_lines(result)
    if result.step_time_ns > 0:
        parts += _headline(result)
        parts += _breakdown(result, columns)
    if result.technique is not None:
        parts += gain_lines(result.technique, columns)
    if result.disturbed is not None:
        parts += disturbed_lines(result.disturbed, result.n_gpus, result.step_time_ns)
    parts += _memory(result, columns)
    parts += _limits(result)
    if result.infeasible is None:
        parts += advice_lines(result)
    parts += _provenance(result, columns)
    parts += _defaults(result.defaults)
    parts += _warnings(result.warnings)
    parts += _reproduce(result.reproduce, columns)
    return Constrain(Group(*parts), columns)


def heading(text: str) -> list[RenderableType]:
    """A section's title with air above it."""
    return [Text(), Text(text, style="bold")]


def command_lines(command: str, columns: int) -> str:
    """A shell command folded at flags with backslashes, so that it can be read and pasted at any width."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    groups: list[str] = []
    for word in words:
        quoted = shlex.quote(word)
        if groups and not (word.startswith("-") and len(word) > 1):
            groups[-1] += f" {quoted}"
        else:
            groups.append(quoted)
    lines: list[str] = []
    for group in groups:
        if lines and len(lines[-1]) + len(group) + 3 <= columns:
            lines[-1] += f" {group}"
        else:
            lines.append(f"    {group}" if lines else group)
    return " \\\n".join(lines)


def _head(result: Result, columns: int) -> list[RenderableType]:
    name = model_name(result)
    line = Text(title(result))
    line.stylize("bold", 0, len(name))
    words = " · ".join(f"{key} {value}".strip() for key, value in layout(result))
    return [line, Text(words, style="dim")] if words else [line]


def _headline(result: Result) -> list[RenderableType]:
    rows = [
        (
            "step time",
            figures.duration(result.step_time_ns),
            f"p5–p95 {figures.duration(result.step_time_p5_ns)} – {figures.duration(result.step_time_p95_ns)}",
        ),
        (
            "throughput",
            f"{figures.significant(result.tokens_per_s_per_gpu)} tokens/s/GPU",
            f"{format_count(result.tokens_per_s)} tokens/s, {format_count(result.tokens_per_step)} per step",
        ),
        (
            "MFU",
            format_percent(result.mfu),
            f"{figures.significant(result.model_tflops_per_gpu)} TFLOP/s per GPU, HFU {format_percent(result.hfu)}",
        ),
        ("", "", plain(result.mfu_convention)),
    ]
    if not result.tokens_per_step:  # of a captured script that looks up no embedding
        del rows[1]
    if result.memory:
        peak = result.peak_memory
        share = peak.device_bytes / result.memory_capacity_bytes if result.memory_capacity_bytes else 0.0
        rows.append(
            (
                "peak memory",
                format_bytes(peak.device_bytes),
                f"{share:.0%} of {format_bytes(result.memory_capacity_bytes)}, on {result.class_name(peak.stage)}",
            )
        )
    table = grid(WORD | DIM, WORD | {"style": "bold"}, REST)
    for label, value, note in rows:
        table.add_row(label, Text(value), Text(note))
    return [Text(), table]


def _infeasible(trouble: Infeasible, where: str) -> list[RenderableType]:
    over = trouble.needed_bytes - trouble.capacity_bytes
    lines: list[RenderableType] = [
        Text(),
        Text.assemble(("Does not fit: ", "bold red"), plain(trouble.reason)),
        Text(
            f"{where} needs {format_bytes(trouble.needed_bytes)} of "
            f"{format_bytes(trouble.capacity_bytes)}: {format_bytes(over)} too much"
        ),
    ]
    return lines


def _bars(rows: Sequence[_Row], total: _Row, columns: int) -> Table:
    """Rows with bars, the longest as long as the room allows, over a total without one."""
    table = grid(LABEL | {"max_width": _LABEL_CELLS}, NUMBER, NUMBER | DIM, WORD | {"overflow": "crop"})
    everything = [*rows, total]
    fixed = min(_LABEL_CELLS, max(cell_len(row.label) for row in everything))
    fixed += max(len(row.amount) for row in everything) + max(len(row.share) for row in everything) + 6
    cells = max(4, min(columns - fixed, 40))
    longest = max((row.length for row in rows), default=0.0) or 1.0
    for row in rows:
        table.add_row(Text(row.label), row.amount, row.share, Text(bar(row.length / longest, cells), style=row.style))
    table.add_row(Text(total.label, style="bold"), Text(total.amount, style="bold"), total.share, "")
    return table


def _breakdown(result: Result, columns: int) -> list[RenderableType]:
    shown = {key: ns for key, ns in result.breakdown_ns.items() if ns}
    if not shown:
        return []
    categories = time_categories(shown)
    parts = [shown[key] for key in categories]
    amounts, shares = figures.times(parts), figures.shares(parts)
    rows = [
        _Row(plain(category.label), amount, share, part / sum(parts), FAMILY_STYLES.get(category.family, ""))
        for category, amount, share, part in zip(categories.values(), amounts, shares, parts, strict=False)
    ]
    return [
        *heading("Where the step goes (mean over all GPUs)"),
        _bars(rows, _Row("step", amounts[-1], "100.0 %"), columns),
    ]


def _memory(result: Result, columns: int) -> list[RenderableType]:
    if not result.memory:
        return []
    peak = result.peak_memory
    parts = [part for part in memory_parts(peak) if part[1]]
    amounts = figures.memory_column([n_bytes for _, n_bytes in parts])
    capacity = max(result.memory_capacity_bytes, 1)
    rows = [
        _Row(plain(category.label), amount, format_percent(n_bytes / capacity), n_bytes / capacity, "blue")
        for (category, n_bytes), amount in zip(parts, amounts, strict=False)
    ]
    total = _Row("on the device", amounts[-1], format_percent(peak.device_bytes / capacity))
    return [
        *heading(
            f"Memory of the fullest GPUs ({result.class_name(peak.stage)}, {peak.ranks:,} alike), share of capacity"
        ),
        _bars(rows, total, columns),
    ]


def _limits(result: Result) -> list[RenderableType]:
    if not result.limits:
        return []
    table = grid(NUMBER | {"style": "bold"}, REST)
    for group, limits in limit_groups(result.limits):
        table.add_row("", Text(group, style="dim italic"))
        for limit in limits:
            without = figures.duration(limit.step_time_s_without * 1e9)
            what = Text.assemble((plain(label_of(limit.what)), "bold"), (f", without it {without}", "dim"))
            table.add_row(format_percent(limit.share), what)
    return [*heading("What limits it"), table]


def advice_lines(result: Result) -> list[RenderableType]:
    """What would change that, each predicted: step, gain, memory and flags."""
    title, note, groups = advice_view(result)
    if not title:
        return []
    table = grid(NUMBER, NUMBER, NUMBER, REST)
    for name, rows in groups:
        if name:
            table.add_row("", "", "", Text(name, style="dim italic"))
        for row in rows:
            table.add_row(Text(row.gain, style="bold"), row.step, Text(row.memory, style="dim"), Text(row.flags))
    return [*heading(title), *([Text(note, style="dim")] if note else []), table]


def _provenance(result: Result, columns: int) -> list[RenderableType]:
    sources = source_categories(result.provenance)
    shown = [(category, result.provenance[key]) for key, category in sources.items() if result.provenance[key] > 0]
    if not shown:
        return []
    shares = figures.shares([share for _, share in shown])
    table = grid(WORD, NUMBER, REST | DIM)
    for (category, _), share in zip(shown, shares, strict=True):
        table.add_row(Text(plain(category.label)), share, SOURCES.get(category.key, ""))
    found = [*heading("Where the numbers come from (share of busy time)"), table]
    rests = calibrated_words(result)
    return [*found, Text(rests, style="dim")] if rests else found


def _defaults(defaults: Sequence[str]) -> list[RenderableType]:
    if not defaults:
        return []
    return [*heading("Defaults filled in"), Text(" · ".join(plain(default) for default in defaults))]


def _warnings(warnings: Sequence[str]) -> list[RenderableType]:
    if not warnings:
        return []
    table = Table.grid(padding=(0, 1))
    for warning in warnings:
        table.add_row(Text("•", style="yellow"), Text(plain(warning)))
    return [*heading("Warnings"), table]


def _reproduce(command: str, columns: int) -> list[RenderableType]:
    if not command.strip():
        return []
    lines = command_lines(plain(command), columns - 2)
    return [*heading("Reproduce"), Padding(Text(lines, overflow="fold"), (0, 0, 0, 2)), Text()]
