"""Units: the only place where a quantity with a unit is parsed or printed.

Inside the library everything is SI: bytes (int), seconds, bytes per second and FLOP per second (float). A user writes
`80 GiB`, `400 Gb/s`, `3 us`, `989 TFLOP/s`, or a plain number that is already in the base unit.

Three rules, because each of them, when guessed, is wrong by a factor that looks plausible:

* `b` is a bit and `B` is a byte: `400 Gb/s` is 50e9 bytes per second. Neither is ever guessed from the other.
* `k M G T P E` are powers of 1000 and `Ki Mi Gi Ti Pi Ei` powers of 1024 (IEC 80000-13).
* Units are case-sensitive. `80gb` is refused with both readings named, because half of those who write it mean `GB`.

Printed sizes are binary (`79.1 GiB`), since memory is counted so; printed rates are decimal (`450 GB/s`), since links
are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal

from windtunnel.errors import SpecError

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_PREFIXES: dict[str, int] = {**_DECIMAL, **_BINARY}

_BYTES: dict[str, float] = {prefix + "B": float(scale) for prefix, scale in _PREFIXES.items()}
_BITS: dict[str, float] = {prefix + bit: scale / 8 for prefix, scale in _PREFIXES.items() for bit in ("b", "bit")}
_RATES: dict[str, float] = {
    amount + per: scale for amount, scale in {**_BYTES, **_BITS}.items() for per in ("/s", "ps")
}
_TIMES: dict[str, float] = {
    "ps": 1e-12,
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,  # U+00B5, the micro sign
    "μs": 1e-6,  # U+03BC, the Greek letter
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_FLOPS: dict[str, float] = {
    prefix + flop: float(scale)
    for prefix, scale in _DECIMAL.items()
    for flop in ("FLOP/s", "FLOPS", "FLOPs", "FLOPs/s", "OP/s", "OPS")
}

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([^\W\d_][^\s]*)?", re.UNICODE)
_GROUPED = re.compile(r"[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+")
_LONGEST = 64  # characters of a quantity; longer text is not a quantity
_LONGEST_INT = 200  # bits; an int beyond has no float, or no text
_LARGEST = 2.0**63  # the largest amount that an int64 array can hold


def parse_bytes(value: object, field: str = "size", where: str | None = None) -> int:
    """Bytes of `80 GiB`, `1.5 GB` or a plain number of bytes, rounded to a whole byte.

    Raises:
        SpecError: no number, an unknown or ambiguous unit, negative, not finite, or above 2**63.
    """
    return round(_parse(value, field, where, _BYTES, "80 GiB, 1.5 GB or 4096"))


def parse_bandwidth(value: object, field: str = "bandwidth", where: str | None = None) -> float:
    """Bytes per second of `400 Gb/s` (bits), `450 GB/s` (bytes) or a plain number of bytes per second.

    Raises:
        SpecError: as `parse_bytes`.
    """
    return _parse(value, field, where, _RATES, "400 Gb/s (bits) or 450 GB/s (bytes)")


def parse_time(value: object, field: str = "time", where: str | None = None) -> float:
    """Seconds of `3 us`, `1.5 ms`, `2 h` or a plain number of seconds.

    Raises:
        SpecError: as `parse_bytes`.
    """
    return _parse(value, field, where, _TIMES, "3 us, 1.5 ms or 2 h")


def parse_flops(value: object, field: str = "flops", where: str | None = None) -> float:
    """FLOP per second of `989 TFLOP/s`, `2.25 PFLOPS` or a plain number of FLOP per second.

    Raises:
        SpecError: as `parse_bytes`.
    """
    return _parse(value, field, where, _FLOPS, "989 TFLOP/s or 2.25 PFLOP/s", largest=1e30)


def parse_number(value: object, field: str = "number", where: str | None = None) -> float:
    """A plain finite number that is not negative: a ratio, a factor, watts.

    Raises:
        SpecError: as `parse_bytes`, or when a unit is given.
    """
    return _parse(value, field, where, {}, "1.5")


def parse_count(value: object, field: str = "count", where: str | None = None) -> int:
    """A whole number of things, at least 1: `8192`, `8,192` or `8_192`.

    Raises:
        SpecError: not a whole number, below 1, or above 2**63. `8k` is refused: is it 8,000 or 8,192?
    """
    if isinstance(value, str) and len(value) <= _LONGEST and _GROUPED.fullmatch(value.strip()):
        count = int(value.strip().replace(",", "").replace("_", ""))
    elif isinstance(value, int) and not isinstance(value, bool):
        count = value
        if value.bit_length() > _LONGEST_INT:
            raise SpecError(field, f"an integer of {value.bit_length()} bits", "too large to be meant", where)
    elif isinstance(value, float) and math.isfinite(value) and value == int(value):
        count = int(value)
    else:
        raise SpecError(field, value, "give a whole number, such as 8192", where)
    if not 1 <= count < _LARGEST:
        raise SpecError(field, value, "give a whole number of at least 1", where)
    return count


def parse_share(value: object, field: str = "share", where: str | None = None) -> float:
    """A share, given as `0.02` or `2%`; above 1 where more than all is meant.

    Raises:
        SpecError: no number from 0 up.
    """
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise SpecError(field, value, "give a number such as 0.02 or 2%", where) from None
    if not 0.0 <= number < 1e6:
        raise SpecError(field, value, "give a number such as 0.02 or 2%", where)
    return number


def parse_tokens(value: object, field: str = "tokens", where: str | None = None) -> int:
    """Tokens of a training, as papers say them: `15T`, `1.4 T`, `300B`, `500M` or a plain whole number.

    Raises:
        SpecError: as `parse_bytes`, or below one token.
    """
    count = round(_parse(value, field, where, {"": 1.0, "M": 1e6, "B": 1e9, "T": 1e12}, "15T"))
    if count < 1:
        raise SpecError(field, value, "give at least one token, such as 15T", where)
    return count


TIME_MOST = 1e12  # seconds that are written with a unit


def exact_text(amount: float, unit: str) -> str:
    """An amount in base units as a short text that is read back exactly: `16.25e9` of a bandwidth as `130Gb/s`.

    `unit`: `bandwidth`, `bytes`, `time`, `tokens`, or another, whose amounts stay plain numbers.
    """
    plain = repr(amount) if "e" not in repr(amount) or "." in repr(amount) else repr(amount).replace("e", ".0e")
    scales: dict[str, tuple[tuple[str, float], ...]] = {
        "bytes": (("GiB", 2**30), ("MiB", 2**20)),
        "bandwidth": (("Gb/s", 1e9 / 8), ("Mb/s", 1e6 / 8)),
        "time": (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)),
        "tokens": (("T", 1e12), ("B", 1e9), ("M", 1e6)),
    }
    parse = {"bytes": parse_bytes, "bandwidth": parse_bandwidth, "time": parse_time, "tokens": parse_tokens}
    if unit == "time" and not 0.0 < amount <= TIME_MOST:
        return plain
    for name, scale in scales.get(unit, ()):
        text = f"{amount / scale:g}{name}"
        is_short = name not in ("d", "h", "min") or amount % scale == 0.0  # 90s, not 1.5min
        if amount >= scale and is_short and parse[unit](text) == amount:
            return text
    return f"{plain}s" if unit == "time" else plain


def format_bytes(size: float, digits: int = 3) -> str:
    """`84933869568` as `79.1 GiB`: binary units, `digits` significant digits."""
    return _format(size, _scale("Ki Mi Gi Ti Pi Ei", 1024, "B"), digits)


def format_rate(bytes_per_s: float, digits: int = 3) -> str:
    """`450e9` as `450 GB/s`: decimal units of bytes."""
    return _format(bytes_per_s, _scale("k M G T P E", 1000, "B/s"), digits)


def format_flops(flops_per_s: float, digits: int = 3) -> str:
    """`989e12` as `989 TFLOP/s`."""
    return _format(flops_per_s, _scale("k M G T P E", 1000, "FLOP/s"), digits)


def format_time(seconds: float, digits: int = 3) -> str:
    """`0.0123` as `12.3 ms`; minutes from 120 s on, hours from 120 min, days from 48 h."""
    size = abs(seconds)
    if math.isfinite(size) and size >= 120.0:
        unit, scale = ("min", 60.0) if size < 7200.0 else ("h", 3600.0) if size < 172800.0 else ("d", 86400.0)
        return f"{_significant(seconds / scale, digits)} {unit}"
    return _format(seconds, {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}, digits)


def format_count(count: float, digits: int = 3) -> str:
    """Whole numbers below a million in full, `8,192`; above, `405B`: K, M, B, T as models are named."""
    if abs(count) < 1e6:
        whole = count == round(count) or abs(count) >= 10**digits
        return f"{count:,.0f}" if whole else _significant(count, digits)
    return _format(count, {"M": 1e6, "B": 1e9, "T": 1e12}, digits).replace(" ", "")


def format_many(count: int, noun: str) -> str:
    """`1 GPU`, `8,192 GPUs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_percent(fraction: float, digits: int = 1) -> str:
    """`0.4137` as `41.4 %`: `digits` is the number of decimals."""
    return f"{100.0 * fraction:.{digits}f} %"


def _parse(
    value: object,
    field: str,
    where: str | None,
    units: Mapping[str, float],
    example: str,
    largest: float = _LARGEST,
) -> float:
    remedy = f"give a number{' with a unit' if units else ''}, such as {example}"
    if isinstance(value, str):
        number, unit = _split(value, field, where, remedy)
        if unit and unit not in units:
            raise SpecError(field, value, _unit_remedy(unit, units, example), where)
        scale = units[unit] if unit else 1.0
        if math.isfinite(number) and number and scale != 1.0:
            # In decimal, so that 66.9 TB is 66.9e12 and not 66900000000000.01.
            number, scale = float(Decimal(repr(number)) * Decimal(repr(scale))), 1.0
    elif isinstance(value, int) and value.bit_length() > _LONGEST_INT:
        raise SpecError(field, f"an integer of {value.bit_length()} bits", f"too large to be meant; {remedy}", where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number, scale = float(value), 1.0
    else:
        raise SpecError(field, value, remedy, where)
    if math.isnan(number):
        raise SpecError(field, value, remedy, where)
    if number < 0:
        raise SpecError(field, value, "must not be negative", where)
    amount = number * scale
    if amount > largest or not math.isfinite(amount):
        raise SpecError(field, value, f"too large to be meant; {remedy}", where)
    return amount


def _split(value: str, field: str, where: str | None, remedy: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(value.strip()) if len(value) <= _LONGEST else None
    if match is None:
        raise SpecError(field, value, remedy, where)
    return float(match[1]), match[2] or ""


def _unit_remedy(unit: str, units: Mapping[str, float], example: str) -> str:
    if not units:
        return f"takes no unit; write a plain number, such as {example}"
    if unit in _BITS and units is _BYTES:
        return f"{unit} is bits; write {unit.rstrip('it').rstrip('b')}B for bytes"
    same = [name for name in units if name.lower() == unit.lower()]
    if same:
        return f"unknown unit {unit!r}: units are case-sensitive; write {' or '.join(same)}"
    return f"unknown unit {unit!r}; write for example {example}"


def _scale(prefixes: str, base: int, unit: str) -> dict[str, float]:
    return {unit: 1.0} | {prefix + unit: float(base ** (i + 1)) for i, prefix in enumerate(prefixes.split())}


def _format(value: float, units: Mapping[str, float], digits: int) -> str:
    """`value` in the largest unit that leaves at least 1 in front of the point, after rounding."""
    names = list(units)
    best = names[0]
    if not math.isfinite(value):
        return str(value)
    for name in names:
        # 999.9996 MB must print as 1 GB, not as 1e+03 MB: compare what will be printed.
        if abs(value) >= units[name] * (1.0 - 0.5 * 10.0**-digits):
            best = name
    if value == 0:
        best = next((name for name in names if units[name] == 1.0), best)
    return f"{_significant(value / units[best], digits)} {best}"


def _significant(value: float, digits: int) -> str:
    """`digits` significant digits without an exponent where a person would not write one."""
    if value == 0:
        return "0"
    scientific = f"{value:.{digits - 1}e}"  # rounds first: 999.9 with three digits is 1.00e3
    size = int(scientific.rpartition("e")[2])
    return f"{value:.{max(0, digits - 1 - size)}f}" if -4 <= size < 7 else scientific
