"""What the study defines, once more and apart from the product: op by op, with dictionaries.

Slow and strict: it takes only tables as the study publishes them (every op named once per step and replica, sequence
numbers from 0). The product must agree with it on every such table.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Op = tuple[str, int, int]  # kind, number, stage
Times = NDArray[np.float64]  # [steps, replicas]
P2P = ("forward-send", "forward-recv", "backward-send", "backward-recv")
DATA = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
COMM = (*P2P, *DATA, "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad")
CLOSE_S = 5e-5


class Study:
    def __init__(self, rows: list[dict[str, Any]], dsp: int = 1) -> None:
        self.steps = sorted({row["step"] for row in rows})
        self.replicas = max(row["dp_rank"] for row in rows) + 1
        self.stages = max(row["stage"] for row in rows) + 1
        shape = (len(self.steps), self.replicas)
        self.start: dict[Op, Times] = {}
        self.end: dict[Op, Times] = {}
        self.info: dict[Op, dict[str, Any]] = {}
        for row in rows:
            op = (row["optype"], row["seq_id"], row["stage"])
            at = self.steps.index(row["step"]), row["dp_rank"]
            for times, value in ((self.start, row["start_ts"]), (self.end, row["start_ts"] + row["duration"])):
                times.setdefault(op, np.full(shape, np.nan))[at] = value
            if at == (0, 0):
                self.info[op] = row
        assert not any(np.isnan(times).any() for times in self.start.values())
        self.has_data = self.replicas * dsp > 1
        self.needs: dict[Op, list[Op]] = {op: [] for op in self.info}
        self.groups: list[list[Op]] = []
        for stage in range(self.stages):
            self._stage(stage)
        self._partners()
        if self.has_data:
            self.groups += [[op] for op in self.info if op[0] in DATA]
        edge = [("embedding-grads-all-reduce", 0, stage) for stage in sorted({0, self.stages - 1})]
        self.groups += [edge, [("optimizer-clip-main-grad", 0, stage) for stage in range(self.stages)]]
        self.group_of = {op: number for number, group in enumerate(self.groups) for op in group}
        self.measured = {op: self._transfer(op) for op in self.info}
        self.ideal = self._ideal()

    def first(self, op: Op) -> tuple[float, int, str]:
        return float(self.start[op][0, 0]), op[1], op[0]

    def in_order(self, stage: int, *kinds: str) -> list[Op]:
        return sorted((op for op in self.info if op[2] == stage and op[0] in kinds), key=self.first)

    def _chain(self, ops: list[Op]) -> None:
        for before, after in pairwise(ops):
            self.needs[after].append(before)

    def _stage(self, stage: int) -> None:
        computes = self.in_order(stage, "forward-compute", "backward-compute")
        self._chain(computes)
        for kind in P2P:
            self._chain(self.in_order(stage, kind))
            self._beside_computes(stage, kind)
        first = [op[0] for op in computes].index("backward-compute")
        if first >= 2:
            for kind in ("backward-send", "backward-recv"):
                if (kind, 0, stage) in self.needs:
                    self.needs[kind, 0, stage].append(computes[first - 2])
        overlapped = any(op[0] == "separate-grads-all-reduce" for op in self.info)
        scatters = sorted(op for op in self.info if op[0] == "grads-reduce-scatter" and op[2] == stage)
        if self.has_data:
            self._chain(self.in_order(stage, "params-all-gather", "grads-reduce-scatter"))
            for gather in sorted(op for op in self.info if op[0] == "params-all-gather" and op[2] == stage)[::-1]:
                chunk = self.info[gather]["mc"]
                later = [op for op in self.info if op[0] == gather[0] and op[2] == stage and op[1] > gather[1]]
                if not any(self.info[op]["mc"] == chunk for op in later):
                    forwards = [op for op in computes if op[0][0] == "f" and self.info[op]["mc"] == chunk]
                    self.needs[forwards[0]].append(gather)
            seen = set()
            for scatter in scatters if overlapped else []:
                chunk = self.info[scatter]["mc"]
                if chunk not in seen:
                    backwards = [op for op in computes if op[0][0] == "b" and self.info[op]["mc"] == chunk]
                    self.needs[scatter].append(max(backwards, key=lambda op: self.end[op][0, 0]))
                seen.add(chunk)
        self.needs["gc", 0, stage].append(max(computes, key=lambda op: self.end[op][0, 0]))
        edge = ["embedding-grads-all-reduce"] if stage in (0, self.stages - 1) else []
        head = [(kind, 0, stage) for kind in ("layernorm-grads-all-reduce", *edge)]
        tail = [(kind, 0, stage) for kind in ("optimizer-clip-main-grad", "optimizer")]
        if self.has_data and overlapped:
            self.needs[head[0]].append(scatters[-1])
            head.append(("separate-grads-all-reduce", 0, stage))
        elif self.has_data:
            head += scatters
        self._chain([("gc", 0, stage), *head, *tail])

    def _beside_computes(self, stage: int, kind: str) -> None:
        """Which compute a send follows or a receive feeds; `launched` in the op's row says if it has a partner."""
        way, action = kind.split("-")
        computes = [op for op in self.info if op[0] == f"{way}-compute" and op[2] == stage]
        last_start = max(self.start[op][0, 0] for op in computes)
        first_end = min(self.end[op][0, 0] for op in computes)
        real = [
            op
            for op in self.in_order(stage, kind)
            if (
                self.start[op][0, 0] <= last_start + CLOSE_S
                if action == "recv"
                else self.end[op][0, 0] >= first_end - CLOSE_S
            )
        ]
        assert len(real) in (0, len(computes) - 1, len(computes))
        number = int(action == "recv" and len(real) + 1 == len(computes))
        top = max(self.info[op]["gmc"] for op in self.info)
        for op in real:
            compute = (f"{way}-compute", number, stage)
            toward = 1 if (way == "forward") == (action == "send") else -1
            self.info[op] = {**self.info[op], "launched": 0 <= self.info[compute]["gmc"] + toward <= top}
            if action == "send":
                self.needs[op].append(compute)
            else:
                self.needs[compute].append(op)
                if number:
                    self.needs[op].append((f"{way}-compute", number - 1, stage))
            number += 1

    def _partners(self) -> None:
        taken = set()
        for way, toward in (("forward", 1), ("backward", -1)):
            for stage in range(self.stages):
                pair = [
                    [op for op in self.in_order(where, f"{way}-{action}") if self.info[op].get("launched")]
                    for action, where in (("send", stage), ("recv", (stage + toward) % self.stages))
                ]
                assert len(pair[0]) == len(pair[1])
                self.groups += [list(both) for both in zip(*pair, strict=True)]
                taken |= {op for ops in pair for op in ops}
        self.groups += [[op] for op in self.info if op[0] in P2P and op not in taken]

    def _everywhere(self, op: Op) -> bool:
        return op[0] in (*DATA, "optimizer-clip-main-grad") and op in self.group_of

    def _latest(self, op: Op, start: Callable[[Op], Times]) -> Times:
        found = np.maximum.reduce([start(member) for member in self.groups[self.group_of[op]]])
        return np.broadcast_to(found.max(1, keepdims=True), found.shape) if self._everywhere(op) else found

    def _transfer(self, op: Op) -> Times:
        if op not in self.group_of:
            return self.end[op] - self.start[op]
        return np.maximum(self.end[op] - self._latest(op, lambda one: self.start[one]), 0.0)

    def _ideal(self) -> dict[Op, Times]:
        found = {}
        for kind in {op[0] for op in self.info}:
            mine = [op for op in self.info if op[0] == kind]
            values = np.stack([self.measured[op] for op in mine])
            level = np.median(values) if kind in COMM else values.mean()
            found |= {op: np.full_like(self.measured[op], level) for op in mine}
        return found

    def replay(self, taken: dict[Op, Times], to_optimizer: bool = False) -> NDArray[np.float64]:
        """Step times."""

        ready: dict[Op, Times] = {}
        end: dict[Op, Times] = {}
        left = [*self.groups, *([op] for op in self.info if op not in self.group_of)]
        while left:
            able = [group for group in left if all(need in end for op in group for need in self.needs[op])]
            assert able, "ops wait for each other"
            for group in able:
                for op in group:
                    ready[op] = np.maximum.reduce([np.zeros_like(taken[op]), *(end[need] for need in self.needs[op])])
                for op in group:
                    begin = self._latest(op, lambda one: ready[one]) if op in self.group_of else ready[op]
                    end[op] = begin + taken[op]
            left = [group for group in left if group[0] not in end]
        last = [end[op].max(1) for op in self.info if not to_optimizer or op[0] == "optimizer"]
        return np.maximum.reduce(last)

    def slowdown(self) -> float:
        return float(self.replay(self.measured).mean() / self.replay(self.ideal, True).mean())

    def per_step(self) -> list[float]:
        return list(self.replay(self.measured) / self.replay(self.ideal, True))

    def alone(self, chosen: Callable[[Op], Any]) -> float:
        """`chosen` gives truth, or a mask [steps, replicas], by op."""
        mixed = {op: np.where(chosen(op), self.measured[op], self.ideal[op]) for op in self.info}
        return float(self.replay(mixed, True).mean() / self.replay(self.ideal, True).mean())

    def share(self, chosen: Callable[[Op], Any]) -> float:
        mixed = {op: np.where(chosen(op), self.ideal[op], self.measured[op]) for op in self.info}
        before, ideal = self.replay(self.measured).mean(), self.replay(self.ideal).mean()
        return float((before - self.replay(mixed).mean()) / (before - ideal))

    def by_replica(self) -> dict[str, float]:
        return {
            str(r): self.alone(lambda _, r=r: np.arange(self.replicas) == r)  # type: ignore[misc]
            for r in range(self.replicas)
        }

    def by_stage(self) -> dict[str, float]:
        return {str(s): self.alone(lambda op, s=s: op[2] == s) for s in range(self.stages)}  # type: ignore[misc]

    def by_kind(self) -> dict[str, float]:
        def shown(kind: str) -> str:
            return f"{kind.split('-')[0]}-pp-comm" if kind in P2P else kind

        names = {shown(op[0]) for op in self.info}
        return {name: self.alone(lambda op, name=name: shown(op[0]) == name) for name in names}  # type: ignore[misc]

    def slowest_share(self, rank: Callable[[int, int], int]) -> float:
        of_replica, of_stage = self.by_replica(), self.by_stage()
        scores = {
            (r, s): min(of_replica[str(r)], of_stage[str(s)]) for r in range(self.replicas) for s in range(self.stages)
        }
        ranked = sorted(scores, key=lambda worker: (-scores[worker], rank(*worker)))
        few = ranked[: -(-3 * len(ranked) // 100)]
        masks = {s: np.isin(np.arange(self.replicas), [r for r, t in few if t == s]) for s in range(self.stages)}
        return self.share(lambda op: masks[op[2]])
