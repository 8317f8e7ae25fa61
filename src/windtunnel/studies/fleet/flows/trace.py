"""Traces of coflows in the text format of coflow-benchmark.

    line 1:  <ports> <coflows>
    line i:  <id> <arrival ms> <m> <port> ... <port> <r> <port>:<MB> ... <port>:<MB>

Ports are numbered from 0. What a reducer port receives is divided equally over the mapper ports; MB are MiB. A port may
send and receive in one coflow, and may be named twice: its parts are added.

The ports are those of a switch that does not block: port p sends on link 2 p and receives on link 2 p + 1, each at the
rate of the port. A flow from a port to itself takes both, as any other. Whatever runs on other links gives
`engine.coflows.Coflows` itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import read_text
from windtunnel.physics.engine.coflows import MIB, Coflows

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
    text = read_text(path, "give a text file of coflow-benchmark's layout")
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


class Transfer(NamedTuple):
    """One coflow: `bytes_total[i]` go from port `source[i]` to port `target[i]`, from `arrival_ns` on."""

    arrival_ns: int
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    bytes_total: NDArray[np.float64]


def on_switch(transfers: Iterable[Transfer], n_ports: int, port_bytes_per_s: float) -> Coflows:
    """The coflows of these transfers on a switch. Raises SpecError for a port that is not there."""
    all_transfers = list(transfers)
    source = np.concatenate([np.zeros(0, np.int64), *(t.source for t in all_transfers)])
    target = np.concatenate([np.zeros(0, np.int64), *(t.target for t in all_transfers)])
    for ports in (source, target):
        wrong = ports[(ports < 0) | (ports >= n_ports)]
        if len(wrong):
            raise SpecError("port", int(wrong[0]), f"ports are numbered from 0 to {n_ports - 1}")
    return Coflows(
        np.array([t.arrival_ns for t in all_transfers], np.int64),
        np.repeat(np.arange(len(all_transfers)), [len(t.source) for t in all_transfers]).astype(np.int64),
        np.concatenate([np.zeros(0), *(t.bytes_total for t in all_transfers)]),
        2 * np.arange(len(source) + 1, dtype=np.int64),
        np.stack([2 * source, 2 * target + 1], axis=1).astype(np.int32).reshape(-1),
        np.full(2 * n_ports, float(port_bytes_per_s)),
    )


def of_trace(trace: Trace, port_bytes_per_s: float) -> Coflows:
    """A trace as it is written: real arrivals, amounts not rounded. One flow for each pair of ports of a coflow."""
    transfers = []
    for shuffle in trace.shuffles:
        senders = np.array(sorted(set(shuffle.mappers)), np.int64)
        received: dict[int, float] = {}
        for port, mib in shuffle.reducers:
            received[port] = received.get(port, 0.0) + mib
        targets = np.array(list(received), np.int64)
        amount = np.array(list(received.values())) * MIB / max(1, len(senders))
        n = len(senders)
        transfers.append(
            Transfer(
                shuffle.arrival_ms * 1_000_000,
                np.tile(senders, len(targets)),
                np.repeat(targets, n),
                np.repeat(amount, n),
            )
        )
    return on_switch(transfers, trace.n_ports, port_bytes_per_s)
