"""An Explanation on one screen: how much slower than the ideal, whose fault, and what mending each part gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from windtunnel.faces.report.draw.console import NARROW, WIDE, heading
from windtunnel.faces.report.draw.printing import DIM, LABEL, NUMBER, WORD, bar, grid, print_trimmed
from windtunnel.studies.traces.stragglers.explanation import Asked, Explanation, Part
from windtunnel.units import format_many
from windtunnel.views import text as figures
from windtunnel.views.text import plain

_SHOWN = 8  # parts of one sort; the JSON has them all
_LABEL_CELLS = 30
_BAR_CELLS = 16


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Print on `console`, in its width and in characters that it can show."""
    print_trimmed(render_explanation(explanation, console.width), console)


def render_explanation(explanation: Explanation, width: int | None = None) -> RenderableType:
    """The screen as a rich renderable, at most `width` (default 80) columns wide."""
    columns = min(max(width or 80, NARROW), WIDE)
    parts: list[RenderableType] = [Text(), *_head(explanation), Text(), _headline(explanation)]
    parts += [Text(), Text(plain(explanation.verdict))]
    if explanation.asked is not None:
        parts += _asked(explanation.asked, explanation.replayed_ns)
    by_place = bool(explanation.by_stage or explanation.by_replica)
    for title, found in (
        ("By stage", explanation.by_stage),
        ("By replica", explanation.by_replica),
        ("By worker", () if by_place else explanation.by_worker),
        ("By kind of op", explanation.by_kind),
    ):
        if len(found) > 1:
            parts += [*heading(f"{title}: what it costs alone, and what mending it gives back"), _parts(found, columns)]
    if len(explanation.worker_slowdown) > 1:
        parts += [*heading("Slowest workers"), _ratios(explanation.worker_slowdown, "")]
        few = explanation.slowest_workers
        parts.append(Text(f"{plain(few.name)} ideal: {_gain(few)}", style="dim"))
    if len(explanation.step_slowdown) > 1:
        by_step = dict(sorted(explanation.step_slowdown.items(), key=lambda item: (-item[1], item[0])))
        parts += [*heading("Slowest steps"), _ratios(by_step, "step ")]
    if explanation.notes:
        parts += heading("What the trace lacks")
        parts += [Padding(Text(f"• {plain(note)}"), (0, 0, 0, 2)) for note in explanation.notes]
    return Constrain(Group(*parts, Text()), columns)


def _head(explanation: Explanation) -> list[RenderableType]:
    names = [plain(name) for name in explanation.files]
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    counts = [(explanation.n_ops, "op"), (explanation.n_workers, "worker")]
    if explanation.n_steps > 1:  # else the recording as a whole, however many it holds
        counts.append((explanation.n_steps, "step"))
    words = ", ".join(format_many(n, noun) for n, noun in counts)
    return [Text(shown or "trace", style="bold"), Text(f"{explanation.source} · {words}", style="dim")]


def _headline(explanation: Explanation) -> Table:
    table = grid(WORD | DIM, NUMBER, DIM)
    measured, replayed = explanation.measured_ns, explanation.replayed_ns
    off = f"{figures.signed(f'{abs(replayed / measured - 1):.1%}', replayed - measured)} of it" if measured else ""
    of = "mean of the steps" if explanation.n_steps > 1 else "the whole recording"
    table.add_row("step time", Text(figures.duration(measured), style="bold"), f"as measured, {of}")
    table.add_row("replayed", figures.duration(replayed), f"dependencies and durations only, {off}" if off else "")
    table.add_row("ideal", figures.duration(explanation.ideal_ns), "every op as long as its peers")
    lost = f"{(explanation.slowdown - 1) / explanation.slowdown:.1%} of the time is lost to stragglers"
    table.add_row(
        "slowdown", Text(f"{explanation.slowdown:.3f}", style="bold"), lost if explanation.slowdown > 1 else ""
    )
    return table


def _asked(asked: Asked, replayed_ns: int) -> list[RenderableType]:
    said = (
        f"{figures.duration(asked.step_time_ns)} instead of {figures.duration(replayed_ns)}: {less(asked.saved_ns)}"
        + (f", {asked.share:.1%} of the loss" if asked.share is not None and asked.saved_ns > 0 else "")
        + f"; a slowdown of {asked.slowdown:.3f} remains"
    )
    words = " and ".join(plain(part) for part in asked.parts)
    return [*heading(f"If {words} were ideal"), Text(said)]


def _parts(found: Sequence[Part], columns: int) -> Table:
    shown = found[:_SHOWN]
    labels = [plain(one.name) for one in shown]
    table = grid(LABEL | {"max_width": _LABEL_CELLS}, NUMBER, NUMBER, NUMBER, WORD)
    table.add_row(*(Text(word, style="dim") for word in ("", "alone", "gives back", "of the loss")))
    fixed = min(_LABEL_CELLS, max(map(cell_len, labels))) + 34
    cells = max(3, min(columns - fixed, _BAR_CELLS))
    longest = max((one.slowdown - 1 for one in shown), default=0.0)
    for label, one in zip(labels, shown, strict=True):
        drawn = bar((one.slowdown - 1) / longest, cells) if longest > 1e-6 and one.slowdown > 1 else ""
        table.add_row(
            Text(label),
            f"{one.slowdown:.3f}",
            time_words(one.saved_ns),
            share_words(one.share),
            Text(drawn, style="yellow"),
        )
    if len(found) > _SHOWN:
        table.add_row(Text(f"... and {len(found) - _SHOWN} more", style="dim"))
    return table


def _ratios(values: Mapping[str, float] | Mapping[int, float], prefix: str) -> Text:
    items = [f"{prefix}{plain(name)} {value:.3f}" for name, value in list(values.items())[:_SHOWN]]
    return Text(" · ".join(items))


def _gain(part: Part) -> str:
    share = f", {part.share:.1%} of the loss" if part.share is not None and part.saved_ns > 0 else ""
    return less(part.saved_ns) + share


def less(saved_ns: int) -> str:
    """How much less a step takes, or more."""
    return f"{figures.duration(abs(saved_ns))} {'more' if saved_ns < 0 else 'less'}"


def time_words(saved_ns: int) -> str:
    """What is given back, with a sign where that is negative."""
    return figures.signed(figures.duration(abs(saved_ns)), min(saved_ns, 0)) if saved_ns else "0 s"


def share_words(share: float | None) -> str:
    """A share of the loss, likewise; nothing where there is none."""
    return "" if share is None else figures.signed(f"{abs(share):.1%}", min(share, 0.0))
