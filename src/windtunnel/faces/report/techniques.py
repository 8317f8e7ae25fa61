"""Techniques on the console: the list of them, and what one brings to a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from windtunnel.units import format_bytes, format_time

if TYPE_CHECKING:
    from rich.console import Console

    from windtunnel.physics.step.result import TechniqueGain


def print_techniques(listed: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Each with what it does, needs and takes."""
    for number, one in enumerate(listed):
        if number:
            console.print()
        names = ", ".join(one["aliases"])
        console.print(f"[bold]{one['name']}[/bold]" + (f" (also {names})" if names else ""))
        _hanging(console, 2, one["does"])
        _hanging(console, 2, f"needs: {one['needs']}")
        _hanging(console, 2, f"runs:  {one['runs']}")
        if one["excludes"]:
            _hanging(console, 2, f"not with: {', '.join(one['excludes'])}")
        for parameter in one["parameters"]:
            choices = f"; one of {', '.join(parameter['one_of'])}" if parameter["one_of"] else ""
            _hanging(console, 4, f"{parameter['name']}={_shown(parameter['default'])}  {parameter['help']}{choices}")


def _hanging(console: Console, columns: int, line: str) -> None:
    """A line that begins so many columns in, and goes on four further in where it is too long."""
    begin, on = " " * columns, " " * (columns + 4)
    text = fill(
        line, console.width, initial_indent=begin, subsequent_indent=on, break_on_hyphens=False, break_long_words=False
    )
    console.print(text, soft_wrap=True, markup=False)


def gain_lines(gain: TechniqueGain) -> list[str]:
    """What it brings, parameters, what lies behind them, notes."""
    return [gain_words(gain), *(f"{title}: {words}" for title, words in gain_rows(gain)), *gain.notes]


def gain_words(gain: TechniqueGain) -> str:
    """What a technique brings."""
    without, after = format_time(gain.step_time_without_s), format_time(gain.step_time_with_s)
    return f"{without} a step without, {after} with: {gain.gain:.3f} x"


def gain_rows(gain: TechniqueGain) -> list[tuple[str, str]]:
    """Parameters as chosen, and what lies behind the gain; of several techniques a row each."""
    chosen = _named("chosen", gain.parameters, lambda name, value: f"{name}={_shown(value)}")
    return chosen + _named("behind it", gain.details, _measured)


def _named(title: str, values: Mapping[str, Any], words: Callable[[str, Any], str]) -> list[tuple[str, str]]:
    if not values:
        return []
    if all(isinstance(value, Mapping) for value in values.values()):
        return [row for name, inner in values.items() for row in _named(f"{title}, {name}", inner, words)]
    return [(title, ", ".join(words(name, value) for name, value in values.items()))]


def _measured(name: str, value: Any) -> str:
    """`stall_s` 0.52 as `stall 520 ms`: the unit that ends a name is the value's."""
    words = name.split("_")
    for unit, written in (("s", format_time), ("bytes", format_bytes)):
        if unit in words and isinstance(value, int | float):
            words.remove(unit)
            return f"{' '.join(words)} {written(value)}"
    return f"{' '.join(words)} {_shown(value)}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
