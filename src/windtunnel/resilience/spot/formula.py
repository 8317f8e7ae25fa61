"""Durations that a table gives as a formula in D replicas and P stages, in the words of people.

    234.8 + 430 x ceil(48/P)
    35 + 39.3 x (D+P+1+D P) removal; 35 + 500 x (D+P+1+D P) addition
    35 + (2000 if D >= 12, 1500 if D >= 6, else 1000) removal; 1.5 x the second term on addition

A product is written `x`, `*` or by standing side by side. `removal` and `addition` name the two cases of one cell;
where neither is named, the formula is of both. Formulas are parsed here; nothing is ever handed to Python's own
evaluation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.errors import SpecError

Formula = Callable[[int, int], float]  # of D and P
_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|([A-Za-z_]+)|(>=|<=|==|[-+*/x×(),<>]))")
_TIMES = ("x", "*", "×")
_FUNCTIONS: dict[str, Callable[..., float]] = {"ceil": math.ceil, "floor": math.floor, "max": max, "min": min}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


@dataclass(frozen=True, slots=True)
class TwoCases:
    """A duration when machines go, and when machines come."""

    removal: Formula
    addition: Formula


def parse_formula(text: str, field: str) -> Formula:
    """One formula. Raises SpecError where it cannot be read."""
    terms = _Reader(text, field).terms()
    return lambda d, p: math.fsum(sign * term(d, p) for sign, term in terms)


def parse_cases(text: str, field: str) -> TwoCases:
    """The two cases of a cell. Raises SpecError."""
    found: dict[str, Formula] = {}
    terms: list[tuple[float, Formula]] = []
    for part in text.split(";"):
        words = part.strip()
        derived = re.fullmatch(r"([\d.]+)\s*[x×*]\s*the (first|second|third) term (?:on|for) addition", words)
        if derived and terms:
            which = ("first", "second", "third").index(derived[2])
            if which >= len(terms):
                raise SpecError(field, text, f"there is no {derived[2]} term")
            factor = [float(derived[1]) if at == which else 1.0 for at in range(len(terms))]
            found["addition"] = _sum([(sign * f, term) for (sign, term), f in zip(terms, factor, strict=True)])
            continue
        case = re.search(r"(?:\s+(?:on|for))?\s+(removal|addition)$", words)
        terms = _Reader(words[: case.start()] if case else words, field).terms()
        for name in (case[1],) if case else ("removal", "addition"):
            found[name] = _sum(terms)
    if len(found) != 2:
        raise SpecError(field, text, "give a formula for removal and one for addition, with `;` between them")
    return TwoCases(found["removal"], found["addition"])


def _sum(terms: list[tuple[float, Formula]]) -> Formula:
    kept = list(terms)
    return lambda d, p: math.fsum(sign * term(d, p) for sign, term in kept)


class _Reader:
    """Recursive descent over the tokens of one formula."""

    def __init__(self, text: str, field: str) -> None:
        self.text, self.field, self.tokens, self.at = text, field, list[str](), 0
        place = 0
        stripped = text.rstrip()
        while place < len(stripped):
            match = _TOKEN.match(stripped, place)
            if match is None:
                raise self._refusal()
            self.tokens += [one for one in (match[1], match[2], match[3]) if one]
            place = match.end()
        if not self.tokens:
            raise self._refusal()

    def terms(self) -> list[tuple[float, Formula]]:
        """The formula as a signed sum."""
        found = self._signed()
        if self.at != len(self.tokens):
            raise self._refusal()
        return found

    def _refusal(self) -> SpecError:
        return SpecError(self.field, self.text, "write a formula of D and P, such as 35 + 39.3 x (D + P)")

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if not token or (wanted and token not in wanted):
            raise self._refusal()
        self.at += 1
        return token

    def _signed(self) -> list[tuple[float, Formula]]:
        sign = -1.0 if self._peek() == "-" else 1.0
        if self._peek() in ("-", "+"):
            self.at += 1
        found = [(sign, self._term())]
        while self._peek() in ("+", "-"):
            sign = 1.0 if self._take() == "+" else -1.0
            found.append((sign, self._term()))
        return found

    def _term(self) -> Formula:
        value = self._factor()
        while True:
            token = self._peek()
            if token in (*_TIMES, "/"):
                self.at += 1
                value = _product(value, self._factor(), divide=token == "/")
            elif token in ("D", "P", "(") or token in _FUNCTIONS or re.match(r"[\d.]", token):
                value = _product(value, self._factor(), divide=False)
            else:
                return value

    def _factor(self) -> Formula:
        token = self._take()
        if token == "D":
            return lambda d, p: float(d)
        if token == "P":
            return lambda d, p: float(p)
        if token == "(":
            inner = self._choice()
            self._take(")")
            return inner
        if token in _FUNCTIONS:
            return self._call(_FUNCTIONS[token])
        if not re.match(r"[\d.]", token):
            raise self._refusal()
        number = float(token)
        return lambda d, p: number

    def _call(self, function: Callable[..., float]) -> Formula:
        self._take("(")
        arguments = [_sum(self._signed())]
        while self._peek() == ",":
            self.at += 1
            arguments.append(_sum(self._signed()))
        self._take(")")
        return lambda d, p: float(function(*(one(d, p) for one in arguments)))

    def _choice(self) -> Formula:
        """`A if D >= 12, B if D >= 6, else C`, or a plain sum."""
        branches: list[tuple[Callable[[int, int], bool], Formula]] = []
        while True:
            if branches and self._peek() == "else":
                self.at += 1
                return _chosen(branches, _sum(self._signed()))
            value = _sum(self._signed())
            if self._peek() != "if":
                return value if not branches else _chosen(branches, value)
            self.at += 1
            left = _sum(self._signed())
            compare = _COMPARE[self._take(*_COMPARE)]
            branches.append((_condition(left, compare, _sum(self._signed())), value))
            if self._peek() == ",":
                self.at += 1


def _product(a: Formula, b: Formula, *, divide: bool) -> Formula:
    return (lambda d, p: a(d, p) / b(d, p)) if divide else (lambda d, p: a(d, p) * b(d, p))


def _condition(a: Formula, compare: Callable[[float, float], bool], b: Formula) -> Callable[[int, int], bool]:
    return lambda d, p: compare(a(d, p), b(d, p))


def _chosen(branches: list[tuple[Callable[[int, int], bool], Formula]], otherwise: Formula) -> Formula:
    kept = list(branches)

    def value(d: int, p: int) -> float:
        return next((then(d, p) for holds, then in kept if holds(d, p)), otherwise(d, p))

    return value
