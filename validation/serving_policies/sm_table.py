"""Prefill and decode times by the share of a GPU's SMs, from a measured table.

Columns: `model, gpu, gpus, sm_percent, batch, seq_len, prefill_ms, decode_ms`; an empty cell was not run. Between
nodes: SM share straight in 1 / share, batch and length straight. A prompt batch is read by its tokens at batch 1 and
beyond, since prefill is straight in tokens; decode beyond the longest length goes on with the last slope.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from windtunnel.errors import InputFileError, SpecError

COLUMNS = ("model", "gpu", "gpus", "sm_percent", "batch", "seq_len", "prefill_ms", "decode_ms")


@dataclass(eq=False)
class SmTable:
    """Times of one model on so many GPUs."""

    decode_ms: dict[int, dict[int, dict[int, float]]]  # sm -> batch -> length
    prefill_ms: dict[int, dict[int, float]]  # sm -> tokens
    _known: dict[tuple[float, int, int], float] = field(default_factory=dict, repr=False)

    def decode_s(self, sm_percent: float, batch: int, context: float) -> float:
        """One step of `batch` sequences of a mean context, with so many percent of the SMs."""
        key = (sm_percent, batch, int(context) >> 3)
        found = self._known.get(key)
        if found is None:
            at = float(key[2] << 3)
            found = 1e-3 * _over_shares(self.decode_ms, sm_percent, lambda rows: _over_batches(rows, batch, at))
            self._known[key] = found
        return found

    def prefill_s(self, sm_percent: float, tokens: float) -> float:
        """Prompts of so many tokens in all."""
        return _over_shares(self.prefill_ms, sm_percent, lambda line: _straight(line, tokens)) * 1e-3


def read_sm_tables(path: Path) -> dict[tuple[str, int], SmTable]:
    """Tables by (model, GPUs). Raises InputFileError."""
    decode: dict[tuple[str, int], dict[int, dict[int, dict[int, float]]]] = {}
    prefill: dict[tuple[str, int], dict[int, dict[int, float]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = set(COLUMNS) - set(reader.fieldnames or ())
            if missing:
                raise InputFileError(path, f"lacks {', '.join(sorted(missing))}", f"columns are {', '.join(COLUMNS)}")
            for row in reader:
                key = (row["model"], int(row["gpus"]))
                share, batch, length = int(row["sm_percent"]), int(row["batch"]), int(row["seq_len"])
                if row["decode_ms"]:
                    by_share = decode.setdefault(key, defaultdict(lambda: defaultdict(dict)))
                    by_share[share][batch][length] = float(row["decode_ms"])
                if row["prefill_ms"]:
                    tokens = prefill.setdefault(key, defaultdict(dict))[share]
                    known = tokens.get(batch * length)
                    tokens[batch * length] = min(float(row["prefill_ms"]), known) if known else float(row["prefill_ms"])
    except OSError as error:
        raise InputFileError(path, f"cannot be read ({error})", "give a CSV of times by SM share") from None
    except ValueError as error:
        raise InputFileError(path, f"holds what is no number ({error})", "mend the row") from None
    return {key: SmTable(decode[key], prefill[key]) for key in decode if key in prefill}


Of = TypeVar("Of")


def _over_shares(table: dict[int, Of], share: float, at: Callable[[Of], float]) -> float:
    shares = sorted(table)
    if not shares:
        raise SpecError("sm_percent", share, "the table has no row")
    if share <= shares[0]:
        return float(at(table[shares[0]])) * shares[0] / share
    if share >= shares[-1]:
        return float(at(table[shares[-1]]))
    place = bisect_right(shares, share)
    low, high = shares[place - 1], shares[place]
    part = (1 / low - 1 / share) / (1 / low - 1 / high)
    return float((1 - part) * at(table[low]) + part * at(table[high]))


def _over_batches(table: dict[int, dict[int, float]], batch: int, context: float) -> float:
    line = {size: _straight(lengths, context) for size, lengths in _near(table, batch).items()}
    return _straight(line, float(batch))


def _near(table: dict[int, dict[int, float]], batch: int) -> dict[int, dict[int, float]]:
    """The rows around a batch; those with several lengths only, so that a line can be drawn."""
    sizes = sorted(size for size, lengths in table.items() if len(lengths) > 1)
    place = min(max(1, bisect_right(sizes, batch)), len(sizes) - 1)
    return {size: table[size] for size in sizes[place - 1 : place + 1]}


def _straight(line: dict[int, float], x: float) -> float:
    """Straight between nodes, and on with the outer slopes; never below zero."""
    nodes = sorted(line)
    if len(nodes) == 1:
        return line[nodes[0]]
    place = min(max(1, bisect_right(nodes, x)), len(nodes) - 1)
    low, high = nodes[place - 1], nodes[place]
    return max(0.0, line[low] + (line[high] - line[low]) * (x - low) / (high - low))
