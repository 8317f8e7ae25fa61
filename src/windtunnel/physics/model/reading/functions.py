"""What the expressions of a type's file may call: operators, and functions of lists and numbers."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from itertools import takewhile
from math import isqrt

from windtunnel.physics.model.limits import LAYERS_MAX

PRIME_MOST = 10**9

OPERATIONS: dict[type, Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def _of_layer(value: object, i: int, key: str = "", default: object = None) -> object:
    """Layer `i`'s own of a list with one for each, or `key` of a mapping by layer; without key the value itself."""
    if isinstance(value, list):
        return value[i]
    if not key:
        return value
    own = _mapping(_mapping(value).get(f"{i:02d}") or _mapping(value).get(str(i)))
    return own.get(key, default)


def _mapping(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    if value:
        raise TypeError(f"{value!r} is no mapping")
    return {}


@cache
def _small_primes() -> tuple[int, ...]:
    """Those below 32,000: what is not prime below its square has one of them for a factor."""
    sieve = bytearray([1]) * 32_000
    for number in range(2, isqrt(len(sieve)) + 1):
        sieve[number * number :: number] = bytes(len(range(number * number, len(sieve), number)))
    return tuple(number for number in range(2, len(sieve)) if sieve[number])


def _padded_primes(base: int, heads: int, tables: int, divisor: int) -> int:
    """Rows of so many tables with a part for each head, each part the next prime from `base` on, padded (Qwen4-Exp)."""
    if not 1 < base < PRIME_MOST:
        raise ValueError(base)
    rows, prime = 0, base - 1
    for _ in range(tables):
        own = 0
        for _ in range(heads):
            prime += 1
            while any(prime % factor == 0 for factor in takewhile(isqrt(prime).__ge__, _small_primes())):
                prime += 1
            own += prime
        rows += -(-own // divisor) * divisor
    return rows


FUNCTIONS: dict[str, Callable[..., object]] = {
    # A layer that a config names in a text of numbers, "4,5,6" (Step 3).
    "named": lambda numbers, i: str(i) in numbers.split(","),
    "count": lambda words, word: words.count(word),
    "padded_primes": _padded_primes,
    "min": min,
    "max": max,
    "len": len,
    "sum": sum,
    "int": int,
    "bool": bool,
    "of_layer": _of_layer,
    # Fields that a mapping by layer gives beside those that are known.
    "fields_by_layer": lambda value, known: [
        k for own in _mapping(value).values() for k in _mapping(own) if k not in known
    ],
    "removeprefix": str.removeprefix,
    "repeated": lambda parts, times: parts * min(times, LAYERS_MAX),
}
