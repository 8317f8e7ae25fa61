"""A Comparison on one screen: the numbers side by side, the cause of the difference, and what was asked differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from windtunnel.faces.report.comparison.compare import Comparison, Difference, Side
from windtunnel.faces.report.draw.console import NARROW, WIDE, heading
from windtunnel.faces.report.draw.printing import DIM, LABEL, NUMBER, WORD, grid, print_trimmed
from windtunnel.faces.report.prediction.categories import Category, label_of, memory_categories, time_categories
from windtunnel.faces.report.prediction.spec_words import difference_words
from windtunnel.units import format_bytes, format_percent
from windtunnel.views import text as figures
from windtunnel.views.text import plain

_SHOWN_FIELDS = 16
_LABEL_CELLS = 28


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print on `console`, in its width and in characters that it can show."""
    print_trimmed(render_comparison(comparison, console.width), console)


def render_comparison(comparison: Comparison, width: int | None = None) -> RenderableType:
    """The screen as a rich renderable, at most `width` (default 80) columns wide."""
    columns = min(max(width or 80, NARROW), WIDE)
    parts: list[RenderableType] = [Text(), _names(comparison), Text(), _headline(comparison)]
    parts += [Text(), Text(comparison.explanation)]
    causes = _by_label(comparison.causes_ns)
    if causes:
        categories = time_categories(causes)
        amounts = figures.times([causes[key] for key in categories], signed=True)
        title = "Where the time differs (B minus A, mean over all GPUs)"
        parts += [*heading(title), _diverging(causes, categories, amounts, "step", columns)]
    memory = {key: n for key, n in comparison.memory_causes_bytes.items() if n}
    if memory:
        categories = memory_categories(memory)
        amounts = figures.memory_column([memory[key] for key in categories], signed=True)
        title = "Where the memory differs (B minus A, fullest GPUs)"
        parts += [*heading(title), _diverging(memory, categories, amounts, "on the device", columns)]
    if comparison.spec:
        parts += [*heading("What was asked differently"), _fields(comparison.spec)]
    return Constrain(Group(*parts, Text()), columns)


def _by_label(causes: Mapping[str, int]) -> dict[str, int]:
    """What differs; keys that are called alike (the gradient norm, on either tier) are one line."""
    first: dict[str, str] = {}
    found: dict[str, int] = {}
    for key, ns in causes.items():
        key = first.setdefault(label_of(key), key)
        found[key] = found.get(key, 0) + ns
    return {key: ns for key, ns in found.items() if ns}


def _names(comparison: Comparison) -> Table:
    table = grid()
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        table.add_row(Text(name, style="bold"), Text(side.content_hash, style="dim"), Text(side.title))
    return table


def _headline(comparison: Comparison) -> Table:
    a, b = comparison.a, comparison.b
    table = grid(WORD | DIM, NUMBER, NUMBER, NUMBER)
    table.add_row("", Text("A", style="bold"), Text("B", style="bold"), Text("change", style="dim"))
    if comparison.timed:
        table.add_row("step time", *_pair(figures.duration, a.step_time_ns, b.step_time_ns))
        table.add_row("p5–p95", _band(a), _band(b), "")
        if a.tokens_per_step and b.tokens_per_step:
            table.add_row("tokens/s/GPU", *_pair(figures.significant, a.tokens_per_s_per_gpu, b.tokens_per_s_per_gpu))
        table.add_row("MFU", *_pair(format_percent, a.mfu, b.mfu))
    if a.peak_memory_bytes and b.peak_memory_bytes:
        table.add_row("peak memory", *_pair(format_bytes, a.peak_memory_bytes, b.peak_memory_bytes))
        if a.fullest_stage != b.fullest_stage:
            table.add_row("on stage", f"{a.fullest_stage}", f"{b.fullest_stage}", "")
    if "infeasible" in (a.status, b.status):
        table.add_row("fits", *("no" if side.status == "infeasible" else "yes" for side in (a, b)), "")
    return table


def _pair(write: Callable[[float], str], a: float, b: float) -> tuple[str, str, Text]:
    change = Text(figures.signed(f"{abs(b - a) / a * 100:.1f} %", b - a), style="bold") if a else Text("")
    return write(a), write(b), change


def _band(side: Side) -> str:
    low, high = figures.duration(side.step_time_p5_ns), figures.duration(side.step_time_p95_ns)
    return f"{low} – {high}"


def _diverging(
    values: Mapping[str, int], categories: Mapping[str, Category], amounts: Sequence[str], total: str, columns: int
) -> Table:
    labels = [plain(category.label) for category in categories.values()]
    fixed = min(_LABEL_CELLS, max(map(cell_len, [*labels, total]))) + max(map(len, amounts)) + 8
    cells = max(3, min((columns - fixed) // 2, 20))
    longest = max(abs(value) for value in values.values())
    table = grid(LABEL | {"max_width": _LABEL_CELLS}, NUMBER, WORD)
    for key, label, amount in zip(categories, labels, amounts, strict=False):
        value = values[key]
        # Both halves in whole cells: a block that fills from the right exists for halves only.
        # What shows as zero gets no block.
        blocks = "█" * max(any(digit in "123456789" for digit in amount), round(abs(value) / longest * cells))
        drawn = f"{blocks if value < 0 else '':>{cells}}│{blocks if value > 0 else ''}"
        table.add_row(Text(label), amount, Text(drawn, style="green" if value < 0 else "yellow"))
    table.add_row(Text(total, style="bold"), Text(amounts[-1], style="bold"), "")
    return table


def _fields(differences: Sequence[Difference]) -> Table:
    table = grid(DIM, {})
    for pair in differences[:_SHOWN_FIELDS]:
        field, change = difference_words(pair.field, pair.a, pair.b)
        table.add_row(Text(field), Text(change))
    if len(differences) > _SHOWN_FIELDS:
        table.add_row(Text(f"... and {len(differences) - _SHOWN_FIELDS} more"), "")
    return table
