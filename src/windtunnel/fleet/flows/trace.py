"""Traces of coflows in the text format of coflow-benchmark.

    line 1:  <ports> <coflows>
    line i:  <id> <arrival ms> <m> <port> ... <port> <r> <port>:<MB> ... <port>:<MB>

Ports are numbered from 0. What a reducer port receives is divided equally over the mapper ports; MB are MiB. A port may
send and receive in one coflow, and may be named twice: its parts are added.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from windtunnel.errors import InputFileError

LATEST_MS = 10**12  # thirty years: a later arrival is a unit slip


class Shuffle(NamedTuple):
    """One coflow as it is written."""

    name: str
    arrival_ms: int
    mappers: tuple[int, ...]  # ports as named, perhaps twice
    reducers: tuple[tuple[int, float], ...]  # port, MiB


class Trace(NamedTuple):
    """Coflows in the order of their lines."""

    n_ports: int
    shuffles: tuple[Shuffle, ...]


def read_trace(path: Path) -> Trace:
    """The trace in a file.

    Raises InputFileError, with the line, for what is no such trace: a count that does not match, a port that is not
    there, a negative or non-finite number, an id that is given twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(
            path, f"cannot be read ({error})", "give a text file of coflow-benchmark's layout"
        ) from None
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputFileError(path, "is empty", "line 1 is `<ports> <coflows>`")
    first, head = lines[0]
    if len(head) != 2:
        raise _wrong(path, first, f"has {len(head)} words", "line 1 is `<ports> <coflows>`")
    n_ports = _whole(path, first, "the number of ports", head[0], 1, 10**6)
    n_coflows = _whole(path, first, "the number of coflows", head[1], 0, 10**9)
    if len(lines) - 1 != n_coflows:
        problem = f"says {n_coflows} coflows, and {len(lines) - 1} lines follow"
        raise _wrong(path, first, problem, "mend the number, or the lines that are missing or too many")
    seen: dict[str, int] = {}
    shuffles = []
    for number, words in lines[1:]:
        shuffle = _shuffle(path, number, words, n_ports)
        if shuffle.name in seen:
            problem = f"coflow {shuffle.name} was given in line {seen[shuffle.name]}"
            raise _wrong(path, number, problem, "give each coflow one id and one line")
        seen[shuffle.name] = number
        shuffles.append(shuffle)
    return Trace(n_ports, tuple(shuffles))


def _shuffle(path: Path, number: int, words: list[str], n_ports: int) -> Shuffle:
    layout = "a line is `<id> <arrival ms> <m> <port>.. <r> <port>:<MB>..`"
    if len(words) < 4:
        raise _wrong(path, number, f"has {len(words)} words", layout)
    arrival = _whole(path, number, "the arrival", words[1], 0, LATEST_MS)
    n_mappers = _whole(path, number, "the number of mappers", words[2], 0, len(words))
    if len(words) < 4 + n_mappers:
        raise _wrong(path, number, f"ends among its {n_mappers} mappers", layout)
    mappers = tuple(_whole(path, number, "a mapper's port", word, 0, n_ports - 1) for word in words[3 : 3 + n_mappers])
    n_reducers = _whole(path, number, "the number of reducers", words[3 + n_mappers], 0, len(words))
    rest = words[4 + n_mappers :]
    if len(rest) != n_reducers:
        raise _wrong(path, number, f"says {n_reducers} reducers, and {len(rest)} words follow", layout)
    reducers = []
    for word in rest:
        port, colon, amount = word.partition(":")
        if not colon:
            raise _wrong(path, number, f"has a reducer {word!r} without an amount", "a reducer is `<port>:<MB>`")
        try:
            mib = float(amount)
        except ValueError:
            mib = math.nan
        if not (0.0 <= mib < 2.0**40):
            raise _wrong(path, number, f"has an amount of {amount!r} MB", "give MB, zero or more")
        reducers.append((_whole(path, number, "a reducer's port", port, 0, n_ports - 1), mib))
    return Shuffle(words[0], arrival, mappers, tuple(reducers))


def _whole(path: Path, number: int, what: str, word: str, least: int, most: int) -> int:
    if not (word.isascii() and word.isdigit()) or len(word) > 18 or not least <= int(word) <= most:
        raise _wrong(path, number, f"{what} is {word!r}", f"give a whole number from {least} to {most}")
    return int(word)


def _wrong(path: Path, number: int, problem: str, remedy: str) -> InputFileError:
    return InputFileError(f"{path}, line {number}", problem, remedy)
