"""Durations that a table gives as a formula in D replicas and P stages, in the words of people.

    234.8 + 430 x ceil(48/P)
    35 + 39.3 x (D+P+1+D P) removal; 35 + 500 x (D+P+1+D P) addition
    35 + (2000 if D >= 12, 1500 if D >= 6, else 1000) removal; 1.5 x the second term on addition

A product is written `x`, `*` or by standing side by side. `removal` and `addition` name the two cases of one cell;
where neither is named, the formula is of both. Words become Python's syntax, of which only what stands here is taken;
nothing is ever handed to its evaluation.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from windtunnel.errors import SpecError

Formula = Callable[[int, int], float]  # of D and P
_TOKEN = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+|[A-Za-z_]+|>=|<=|==|[-+*/x×(),<>])")
_FUNCTIONS: dict[str, Callable[..., float]] = {"ceil": math.ceil, "floor": math.floor, "max": max, "min": min}
_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.GtE: operator.ge, ast.LtE: operator.le, ast.Eq: operator.eq, ast.Gt: operator.gt, ast.Lt: operator.lt,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TwoCases:
    """A duration when machines go, and when machines come."""

    removal: Formula
    addition: Formula


def parse_formula(text: str, field: str) -> Formula:
    """One formula. Raises SpecError where it cannot be read."""
    return _sum(_terms(text, field))


def parse_cases(text: str, field: str) -> TwoCases:
    """The two cases of a cell. Raises SpecError."""
    cases: dict[str, Formula] = {}
    terms: list[Formula] = []
    for part in text.split(";"):
        words = part.strip()
        derived = re.fullmatch(r"([\d.]+)\s*[x×*]\s*the (first|second|third) term (?:on|for) addition", words)
        if derived and terms:
            which = ("first", "second", "third").index(derived[2])
            if which >= len(terms):
                raise SpecError(field, text, f"there is no {derived[2]} term")
            factor = parse_formula(derived[1], field)
            cases["addition"] = _sum([_of(operator.mul, factor, t) if t is terms[which] else t for t in terms])
            continue
        case = re.search(r"(?:\s+(?:on|for))?\s+(removal|addition)$", words)
        terms = _terms(words[: case.start()] if case else words, field)
        for name in (case[1],) if case else ("removal", "addition"):
            cases[name] = _sum(terms)
    if len(cases) != 2:
        raise SpecError(field, text, "give a formula for removal and one for addition, with `;` between them")
    return TwoCases(cases["removal"], cases["addition"])


def _terms(text: str, field: str) -> list[Formula]:
    """The signed terms of a sum."""
    try:
        node = ast.parse(_python(text), mode="eval").body
        terms: list[Formula] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            term = _formula(node.right)
            terms.append(term if isinstance(node.op, ast.Add) else _of(operator.neg, term))
            node = node.left
        return [_formula(node), *reversed(terms)]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise SpecError(field, text, "write a formula of D and P, such as 35 + 39.3 x (D + P)") from None


def _python(text: str) -> str:
    """The words as Python writes them: `*` between neighbours, and `A if B, C if D, else E` with `else` for commas."""
    tokens: list[str] = []
    choices = [False]  # of each open bracket, whether it has had an `if`
    place, stripped = 0, text.rstrip()
    while place < len(stripped):
        match = _TOKEN.match(stripped, place)
        if match is None:
            raise ValueError(text)
        token, place, last = match[1], match.end(), tokens[-1] if tokens else ""
        opens = token == "(" or token[0].isalnum() or token[0] == "."
        if token in ("x", "×"):
            token = "*"
        elif token == "," and choices[-1]:
            token = "else"
        elif token == "else" and last == "else":
            continue
        elif opens and token not in ("if", "else") and (last == ")" or last in ("D", "P") or last[:1].isdecimal()):
            tokens.append("*")
        if token == "(":
            choices.append(False)
        elif token == ")" and len(choices) > 1:
            choices.pop()
        elif token == "if":
            choices[-1] = True
        tokens.append(token)
    return " ".join(tokens)


def _formula(node: ast.expr) -> Formula:
    """What a piece of syntax stands for. Raises ValueError for any other than numbers, D, P, sums and choices."""
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            return lambda d, p: float(value)
        case ast.Name("D" | "P" as name):
            return lambda d, p: float(d if name == "D" else p)
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, operand):
            return _of(operator.neg if isinstance(sign, ast.USub) else operator.pos, _formula(operand))
        case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]) if type(op) in _OPERATORS:
            return _of(_OPERATORS[type(op)], _formula(left), _formula(right))
        case ast.Call(ast.Name(name), [_, *_] as parts, []) if name in _FUNCTIONS:
            return _of(_FUNCTIONS[name], *map(_formula, parts))
        case ast.IfExp(ast.Compare() as condition, then, otherwise):
            holds, a, b = _formula(condition), _formula(then), _formula(otherwise)
            return lambda d, p: a(d, p) if holds(d, p) else b(d, p)
    raise ValueError(ast.dump(node))


def _of(function: Callable[..., float], *parts: Formula) -> Formula:
    return lambda d, p: float(function(*(part(d, p) for part in parts)))


def _sum(terms: Sequence[Formula]) -> Formula:
    return lru_cache(maxsize=65_536)(_of(lambda *values: math.fsum(values), *terms))  # few layouts, many moves
