"""The list of techniques as views, and what one brings to a step in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windtunnel.units import format_bytes, format_many, format_time
from windtunnel.views import Document, Notes

if TYPE_CHECKING:
    from windtunnel.physics.step.result import TechniqueGain


def techniques_document(listed: Sequence[Mapping[str, object]]) -> Document:
    """Each with what it does, needs and takes; several for a job with what they would bring to it."""
    title = format_many(len(listed), "technique")
    if len(listed) > 1 and "line" in listed[0]:
        short = [Notes(_names(entry), [*_here(entry), str(entry["does"])]) for entry in listed]
        return Document("techniques", f"{title}, what each would bring to this job, the best first", short)
    return Document("techniques", title, [_listed(entry) for entry in listed])


def _listed(technique: Mapping[str, Any]) -> Notes:
    lines = _here(technique)
    lines += [technique["does"], f"needs: {technique['needs']}", f"runs: {technique['runs']}"]
    lines += [f"not with: {', '.join(technique['excludes'])}"] if technique["excludes"] else []
    for parameter in technique["parameters"]:
        choices = f"; one of {', '.join(parameter['one_of'])}" if parameter["one_of"] else ""
        lines.append(f"{parameter['name']}={_shown(parameter['default'])} {parameter['help']}{choices}")
    return Notes(_names(technique), lines)


def _names(technique: Mapping[str, Any]) -> str:
    others = f" (also {', '.join(technique['aliases'])})" if technique["aliases"] else ""
    return f"{technique['name']}{others}"


def _here(technique: Mapping[str, Any]) -> list[str]:
    """What it would bring to the job that was named."""
    if "cannot" in technique:
        return [f"not here: {technique['cannot']}"]
    if "gain" not in technique:
        return []
    without, after = format_time(technique["step_time_without_s"]), format_time(technique["step_time_s"])
    memory = "fits" if technique["fits"] else "out of memory"
    memory = "" if technique["fits_without"] and technique["fits"] else f"; {memory} with it"
    memory += "" if technique["fits_without"] else ", out of memory without"
    brings = f"here: {without} a step without, {after} with: {technique['gain']:.3f} x{memory}"
    if f"{technique['gain_of_all']:.3f}" != f"{technique['gain']:.3f}":
        brings += f"; all of the technique, of which the line is a part: {technique['gain_of_all']:.3f} x"
    return [brings, f"add: {technique['line']}"]


def gain_lines(gain: TechniqueGain) -> list[str]:
    """What it brings, parameters, what lies behind them, notes."""
    return [gain_words(gain), *(f"{title}: {words}" for title, words in gain_rows(gain)), *gain.notes]


def gain_words(gain: TechniqueGain) -> str:
    """What a technique brings."""
    without, after = format_time(gain.step_time_without_s), format_time(gain.step_time_with_s)
    return f"{without} a step without, {after} with: {gain.gain:.3f} x"


def gain_rows(gain: TechniqueGain) -> list[tuple[str, str]]:
    """Parameters as chosen, and what lies behind the gain; of several techniques a row each."""
    chosen = _row("chosen", gain.parameters, lambda name, value: f"{name}={_shown(value)}")
    return chosen + _row("behind it", gain.details, _measured)


def _row(title: str, values: Mapping[str, object], words: Callable[[str, object], str]) -> list[tuple[str, str]]:
    if not values:
        return []
    parts = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    if len(parts) == len(values):
        return [row for name, inner in parts.items() for row in _row(f"{title}, {name}", inner, words)]
    return [(title, ", ".join(words(name, value) for name, value in values.items()))]


def _measured(name: str, value: object) -> str:
    """`stall_s` 0.52 as `stall 520 ms`: the unit that ends a name is the value's."""
    words = name.split("_")
    for unit, written in (("s", format_time), ("bytes", format_bytes)):
        if unit in words and isinstance(value, int | float):
            words.remove(unit)
            return f"{' '.join(words)} {written(value)}"
    return f"{' '.join(words)} {_shown(value)}"


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
