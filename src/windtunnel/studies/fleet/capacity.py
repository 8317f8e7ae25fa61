"""How many GPUs each node has over time: nodes that fail and return, or a trace of what was there.

    failures    each node fails after an exponential time of mean `mtbf_s`, and is back `repair_s` later; nodes are
                independent, and each has a stream of draws of its own, so that more nodes never change the others'.
                `repair_spread`: repairs are lognormal, with `repair_s` their median; `frailty`: nodes are unlike, their
                rates gamma-distributed with this shape (1/shape is the variance of a node's share of failures)
    trace       CSV of `time_s,node,gpus` (a node has so many GPUs from then on), of `time_s,nodes` (so many nodes are
                there; those with the highest numbers leave first), or of faults, `node,start_s,end_s` or with days

Work lost follows from where the last checkpoint was: `clock/`. Other laws of failure (components, bursts, lemon
hosts) come as a trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.table import Table, read_table
from windtunnel.physics.engine.events import EventQueue
from windtunnel.studies.fleet.clock.clock import NodeChange
from windtunnel.studies.fleet.clock.running import NS
from windtunnel.studies.fleet.site import Site

NEVER_S = 4e9  # of a draw; a clock of nanoseconds in 64 bits counts 9.2e9 s
LONGEST = 10  # times the busy period without failures, after which a run that does not get on is ended


@dataclass(frozen=True)
class Changes:
    """What happens to nodes, and what jobs lose by it. Times in seconds."""

    mtbf_s: float | None = None  # of one node
    repair_s: float = 3600.0
    repair_spread: float = 0.0  # standard deviation of the logarithm of a repair
    frailty: float | None = None  # None: nodes are alike
    checkpoint_s: float = 1800.0  # 0: nothing is lost; infinite: no checkpoints
    trace: Path | None = None

    def stream(self, site: Site, begin_s: float, seed: int) -> Iterator[NodeChange]:
        """Changes from `begin_s` on, by time. Raises InputFileError for a trace that does not fit the site."""
        if self.trace is not None:
            return iter(_traced(self.trace, site, begin_s))
        if self.mtbf_s is None:
            return iter(())
        if self.mtbf_s <= 0:
            raise SpecError("--mtbf-node", self.mtbf_s, "give the mean time between a node's failures, such as 30 d")
        return self._failures(site, round(begin_s * NS), self.mtbf_s, seed)

    def _failures(self, site: Site, begin_ns: int, mtbf_s: float, seed: int) -> Iterator[NodeChange]:
        random = [np.random.default_rng((seed, node)) for node in range(site.nodes)]
        shape = self.frailty
        mean_s = [mtbf_s if shape is None else mtbf_s / max(each.gamma(shape) / shape, 1e-9) for each in random]

        def next_ns(node: int, after_ns: int) -> int:
            return after_ns + max(round(min(float(random[node].exponential(mean_s[node])), NEVER_S) * NS), 1)

        def repair_ns(node: int) -> int:
            spread = self.repair_spread
            longer = np.exp(spread * random[node].standard_normal()) if spread else 1.0
            return max(round(min(self.repair_s * float(longer), NEVER_S) * NS), 1)

        due: EventQueue[tuple[int, int]] = EventQueue(begin_ns)  # (node, GPUs that it then has)
        for node in range(site.nodes):
            due.push(next_ns(node, begin_ns), (node, 0), node)
        while True:
            time_ns, (node, gpus), _ = due.pop()
            yield NodeChange(time_ns, node, gpus)
            if gpus:
                due.push(next_ns(node, time_ns), (node, 0), node)
            else:
                due.push(time_ns + repair_ns(node), (node, site.node_sizes[node]), node)


def _traced(path: Path, site: Site, begin_s: float) -> list[NodeChange]:
    table = read_table(path)
    unit_s = next((seconds for unit, seconds in (("s", 1.0), ("day", 86_400.0)) if table.has(f"start_{unit}")), None)
    if unit_s is not None and table.has("node"):
        return _faults(table, path, site, begin_s, unit_s)
    by_node = table.has("node") and table.has("gpus")
    if not table.has("time_s") or not (by_node or table.has("nodes")):
        raise InputFileError(
            path, "is no trace of capacity", "give the columns time_s,node,gpus or time_s,nodes, or node,start_s,end_s"
        )
    node_changes: list[NodeChange] = []
    there = site.nodes
    names = ("time_s", "node", "gpus") if by_node else ("time_s", "nodes")
    rows = zip(table.line.tolist(), *(table.texts(name) for name in names), strict=True)
    last_s = -np.inf
    for line, text, which, *more in rows:
        time_s = _number(path, line, "time_s", text)
        if time_s < last_s:
            raise InputFileError(path, f"line {line}: time_s goes back, {text}", "sort the lines by time")
        last_s = time_s
        time_ns = round((begin_s + time_s) * NS)
        if by_node:
            node = int(_number(path, line, "node", which, site.nodes - 1))
            gpus = int(_number(path, line, "gpus", more[0], site.node_sizes[node] // site.unit)) * site.unit
            node_changes.append(NodeChange(time_ns, node, gpus))
            continue
        count = int(_number(path, line, "nodes", which, site.nodes))
        node_changes += [NodeChange(time_ns, node, 0) for node in range(there - 1, count - 1, -1)]
        node_changes += [NodeChange(time_ns, node, site.node_sizes[node]) for node in range(there, count)]
        there = count
    return node_changes


def _faults(table: Table, path: Path, site: Site, begin_s: float, unit_s: float) -> list[NodeChange]:
    """A node is away from the start of a fault to its end (none: for good), and while another of its faults lasts."""
    unit = "s" if unit_s == 1.0 else "day"
    ends = table.texts(f"end_{unit}") if table.has(f"end_{unit}") else [""] * len(table)
    rows = zip(table.line.tolist(), table.texts("node"), table.texts(f"start_{unit}"), ends, strict=True)
    events: list[tuple[float, int, int]] = []  # when, node, faults more
    for line, which, start, end in rows:
        node = int(_number(path, line, "node", which, site.nodes - 1))
        start_s, end_s = (_number(path, line, "time_s", text) * unit_s if text else np.inf for text in (start, end))
        if end_s < start_s:
            raise InputFileError(path, f"line {line}: end_{unit} = {end} is before the start", "mend or drop that line")
        events.append((start_s, node, 1))
        if end_s < np.inf:
            events.append((end_s, node, -1))
    faults, changes = [0] * site.nodes, []
    for time_s, node, more in sorted(events):
        before, faults[node] = faults[node], faults[node] + more
        if bool(before) != bool(faults[node]):
            gpus = 0 if faults[node] else site.node_sizes[node]
            changes.append(NodeChange(round((begin_s + time_s) * NS), node, gpus))
    return changes


def _number(path: Path, line: int, column: str, text: str, most: float = 9e9) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    whole = column == "time_s" or value == int(value) if np.isfinite(value) else False
    if not whole or not 0 <= value <= most:
        remedy = f"give a {'number' if column == 'time_s' else 'whole number'} from 0 to {most:g}"
        raise InputFileError(path, f"line {line}: {column} = {text[:40]!r}", remedy)
    return value
