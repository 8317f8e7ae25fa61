"""The one place where a figure becomes text: alone, in a column of one unit, and as parts of a total.

A table whose rounded parts miss the rounded total by one digit looks like a bug, so parts are rounded together:
each is floored to the digit shown and the digits left over go to the largest remainders (Hamilton's method).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windtunnel.units import format_bytes, format_count, format_flops, format_percent, format_rate, format_time
from windtunnel.views import Number

GIB = 1 << 30
MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
SCALES: dict[str, tuple[tuple[float, str], ...]] = {  # of a column: the first that its largest reaches
    "s": ((172_800.0, "d"), (7200.0, "h"), (120.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (0.0, "ns")),
    "B": ((2.0**50, "PiB"), (2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (0.0, "B")),
}
# A column keeps one unit down to this part of its largest: sizes are powers of two, of which 0.062 GiB says too little.
_LEAST = {"s": 2e-3, "B": 0.1}
_SIZES = {"d": 86_400.0, "h": 3600.0, "min": 60.0, "ns": 1e-9, "B": 1.0}  # of a unit, where that is not where it begins
# From which length on, in which unit: as `format_time` has it.
_TIME_UNITS = (
    (172_800_000_000_000, 86_400_000_000_000, "d"),
    (7_200_000_000_000, 3_600_000_000_000, "h"),
    (120_000_000_000, 60_000_000_000, "min"),
    (1_000_000_000, 1_000_000_000, "s"),
    (1_000_000, 1_000_000, "ms"),
    (1_000, 1_000, "us"),
    (1, 1, "ns"),
)


def plain(text: object) -> str:
    """One line without control characters: names come from user files and may hold terminal escapes."""
    return printable(" ".join(str(text).split()))


def printable(line: str) -> str:
    """A line as it is, but for control characters."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def text_of(figure: Number | float | None, unit: str = "") -> str:
    """A figure with its unit, without its band; a dash where there is none."""
    if figure is None:
        return NOTHING
    value, unit = (figure.value, figure.unit) if isinstance(figure, Number) else (figure, unit)
    match unit:
        case "s":
            return format_time(value, 4)
        case "B":
            return format_bytes(value)
        case "B/s":
            return format_rate(value)
        case "FLOP/s":
            return format_flops(value)
        case "share":
            return format_percent(value)
        case "change":
            text = format_percent(abs(value))
            return text if text == format_percent(0.0) else signed(text, value)
        case "$":
            if 0.0 < abs(value) < 1.0:  # a price of a million tokens
                return f"${significant(value)}"
            return f"${value:,.2f}" if abs(value) < 1e6 else f"${format_count(value, 4)}"
        case "x":
            return f"{value:.3f} x" if abs(value) < 100 else f"{significant(value)} x"
        case "" | "count":
            return _amount(value, unit)
    return f"{_amount(value, 'count')} {unit}"


def _amount(value: float, unit: str) -> str:
    if unit == "count" and abs(value) >= 1e6 and math.isfinite(value):
        return format_count(value, 4)
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else significant(value)


def band_text(number: Number) -> str:
    """`8.559 s – 10.76 s`; nothing where a figure has no band."""
    if number.p5 is None or number.p95 is None or number.p5 == number.p95:
        return ""
    return f"{text_of(number.p5, number.unit)} – {text_of(number.p95, number.unit)}"


def scale_of(values: Sequence[float], unit: str) -> tuple[float, str]:
    """(size, name) of the unit in which the largest of `values` is read best."""
    most = max((abs(value) for value in values), default=0.0) or 1.0  # nothing: 0 s, 0 B
    begins, name = next((scale for scale in SCALES[unit] if most >= scale[0]), SCALES[unit][-1])
    return _SIZES.get(name, begins), name


def texts_of(figures: Sequence[Number | float | None], unit: str = "") -> list[str]:
    """Figures that are compared: times and sizes in one unit, unless the least would then say too little."""
    values = [figure.value if isinstance(figure, Number) else figure for figure in figures]
    units = {figure.unit if isinstance(figure, Number) else unit for figure in figures if figure is not None}
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value)]
    only = units.pop() if len(units) == 1 else ""
    if (
        only not in SCALES
        or len(sizes) < 2
        or min((value for value in sizes if value), default=0.0) < _LEAST[only] * max(sizes)
    ):
        return [text_of(figure, unit) for figure in figures]
    size, name = scale_of(sizes, only)
    decimals = max(0, 3 - math.floor(math.log10(max(sizes) / size))) if max(sizes) else 0
    return [
        NOTHING if value is None else f"{value / size:,.{decimals}f} {name}" if math.isfinite(value) else f"{value}"
        for value in values
    ]


def split_exactly(parts: Sequence[int], quantum: int, total: int | None = None) -> list[int]:
    """`parts` in whole quanta that sum to the rounded sum of `parts` (or to `total` quanta)."""
    whole = _rounded(sum(parts), quantum) if total is None else total
    floors = [part // quantum for part in parts]
    missing = whole - sum(floors)
    by_remainder = sorted(range(len(parts)), key=lambda i: (-(parts[i] % quantum), i))
    for i in by_remainder[: max(0, missing)]:
        floors[i] += 1
    return floors


def shares(parts: Sequence[float], digits: int = 1) -> list[str]:
    """Percentages of `parts` in their sum, that add up to 100 as printed. All zero when the sum is."""
    whole = 10**digits * 100
    total = sum(parts)
    if not total > 0:
        return [f"{0:.{digits}f} %"] * len(parts)
    fine = 10**6
    quanta = split_exactly([round(part / total * whole * fine) for part in parts], fine, whole)
    return [f"{n / 10**digits:.{digits}f} %" for n in quanta]


def time_column(total_ns: int) -> tuple[int, str, int]:
    """(quantum in ns, unit, decimals) in which parts of `total_ns` are best read: four to five digits of the total."""
    size = abs(total_ns)
    _, unit_ns, unit = next((time_unit for time_unit in _TIME_UNITS if size >= time_unit[0]), _TIME_UNITS[-1])
    decimals = min(3 if size < 100 * unit_ns else 2, round(math.log10(unit_ns)))
    return unit_ns // 10**decimals, unit, decimals


def times(parts_ns: Sequence[int], signed: bool = False) -> list[str]:
    """Times in one unit, the last entry being their total: what is printed adds up."""
    quantum, unit, decimals = time_column(max((abs(part) for part in [*parts_ns, sum(parts_ns)]), default=0))
    quanta = split_exactly(parts_ns, quantum)
    return [f"{_number(n / 10**decimals, decimals, signed)} {unit}" for n in [*quanta, sum(quanta)]]


def duration(ns: float) -> str:
    """Nanoseconds as a time with four significant digits."""
    return format_time(ns / 1e9, 4)


def significant(value: float) -> str:
    """`value` with about four significant digits, thousands separated, never in exponent form."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 9)}f}"


def round_step(least: float) -> float:
    """The next of 1, 2, 5 x 10^k from `least` on."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((power * factor for factor in (1, 2, 5) if power * factor >= least), power * 10)


def memory_column(parts: Sequence[int], signed: bool = False) -> list[str]:
    """Sizes with two decimals, the last entry being their total: what is printed adds up.

    In GiB; in MiB where all of it is so little that most parts would be 0.00 GiB.
    """
    unit, name = (GIB, "GiB") if sum(abs(part) for part in parts) >= 4 * GIB else (GIB >> 10, "MiB")
    # A hundredth of a GiB is no whole number of bytes: scale so that the quantum is.
    quanta = split_exactly([part * 100 for part in parts], unit)
    return [f"{_number(n / 100, 2, signed)} {name}" for n in [*quanta, sum(quanta)]]


def signed(text: str, value: float) -> str:
    """`text`, which shows the size of `value`, with the sign of `value` before it."""
    return f"{'+' if value > 0 else MINUS if value < 0 else ''}{text}"


def _number(value: float, decimals: int, with_sign: bool) -> str:
    return signed(f"{abs(value):,.{decimals}f}", value) if with_sign else f"{value:,.{decimals}f}"


def _rounded(total: int, quantum: int) -> int:
    return (2 * total + quantum) // (2 * quantum)
