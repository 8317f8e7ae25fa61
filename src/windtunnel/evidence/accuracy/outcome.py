"""What became of one row: predicted, called infeasible, or skipped with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from windtunnel.errors import LayoutError, UserError
from windtunnel.evidence.accuracy.cases import Case, Skip, case_of
from windtunnel.evidence.accuracy.table import Row
from windtunnel.evidence.accuracy.words import UNREAD
from windtunnel.physics.cost.price import Z95

if TYPE_CHECKING:
    from windtunnel.physics.step.result import Result, StageMemory

    Predict = Callable[..., Result]  # of a Model, a Cluster and a Plan, and perhaps a `router_load`

GIB = 2**30

# What the published peak memory is, and of which GPU. World rank 0 writes nanotron's benchmark table, and it is in the
# first pipeline stage (huggingface/nanotron, `create_table_log`: max_memory_allocated and max_memory_reserved in GiB);
# MLPerf's NeMo logs print the allocated peak of world rank 0, which is on the first stage.
# torchtitan prints the allocator's reserved peak. A row that names `torch peak allocation` is taken at its word.
MEMORY_KINDS = {"torchtitan": "reserved", "nanotron": "reserved", "mlperf": "allocated"}
MEMORY_KIND_ELSEWHERE = "reserved"
FIRST_STAGE_ONLY = ("nanotron", "mlperf")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row with its prediction; times and memory are None where there is none.

    Where the row left fields open, `step_time_s` is the fastest of the sweep that fits, and p5 to p95 spans all.
    """

    row: Row
    status: str  # "ok" | "infeasible" | "skipped"
    reason: str = ""
    step_time_s: float | None = None
    p5_s: float | None = None
    p95_s: float | None = None
    allocated_gib: float | None = None
    reserved_gib: float | None = None
    device_gib: float | None = None
    swept: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    anchor_factor: float | None = None  # multiplied in by `--anchor`; None without it
    is_anchor: bool = False
    model_flops: float | None = None  # of one step: 6 N + 12 L a d s per token
    guess_s: float | None = None  # what a constant FLOP rate would say, see guess.py
    band_reason: str = ""  # what the band is wide for
    full: bool = False  # it fits only because the allocator gives cached memory back: `plan` proposes none of these

    @property
    def memory_definition(self) -> str:
        """Which of allocated, reserved and device the row's own figure is held against."""
        if "peak allocation" in self.row.value_kind.lower():
            return "allocated"
        name = _who(self.row)
        return next((kind for word, kind in MEMORY_KINDS.items() if word in name), MEMORY_KIND_ELSEWHERE)

    @property
    def peak_mem_gib(self) -> float | None:
        """Predicted peak in the row's own definition."""
        value: float | None = getattr(self, f"{self.memory_definition}_gib")
        return value

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, less one; None where either is missing.

        A row called infeasible has a step time too, and it counts: whether it fits is another question, scored apart.
        """
        measured = self.row.measured_s
        if self.step_time_s is None or measured is None:
            return None
        return self.step_time_s / measured - 1.0

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, less one."""
        if self.status == "skipped" or self.row.peak_mem_gib is None or self.peak_mem_gib is None:
            return None
        return self.peak_mem_gib / self.row.peak_mem_gib - 1.0

    @property
    def inside_band(self) -> bool | None:
        """Whether the measured step lies in the stated p5-p95 band."""
        measured = self.row.measured_s
        if self.error is None or self.p5_s is None or self.p95_s is None or measured is None:
            return None
        return self.p5_s <= measured <= self.p95_s

    @property
    def covers_spread(self) -> bool | None:
        """Whether the stated band holds the whole of p5 to p95 of the run's own steps; None where it gives none."""
        low, high = self.row.step_time_p5_s, self.row.step_time_p95_s
        if self.p5_s is None or self.p95_s is None or low is None or high is None:
            return None
        return self.p5_s <= low and high <= self.p95_s

    def scale(self, factor: float, *, is_anchor: bool, share: float = 1.0) -> Outcome:
        """The same outcome with its times multiplied by an anchor's factor.

        `share`: of the band's log half widths that is left.
        """
        if self.step_time_s is None or self.p5_s is None or self.p95_s is None:
            return self
        low, high = self.p5_s / self.step_time_s, self.p95_s / self.step_time_s
        return replace(
            self,
            step_time_s=self.step_time_s * factor,
            p5_s=self.step_time_s * factor * low**share,
            p95_s=self.step_time_s * factor * high**share,
            anchor_factor=factor,
            is_anchor=is_anchor,
        )


def outcome_of(row: Row, predict: Predict) -> Outcome:
    """Predict one row. Never raises on what a row may hold."""
    case = case_of(row)
    if isinstance(case, Skip):
        return Outcome(row, "infeasible" if case.infeasible else "skipped", case.reason)
    try:
        return _swept(case, predict)
    except LayoutError as error:
        return Outcome(row, "infeasible", str(error), assumptions=case.assumptions)
    except UserError as error:
        return Outcome(row, "skipped", str(error), assumptions=case.assumptions)


def _swept(case: Case, predict: Predict) -> Outcome:
    results: list[Result] = []
    refused: LayoutError | None = None
    for plan in case.plans:
        try:
            routed = {"router_load": case.router_load} if case.router_load else {}
            results.append(predict(case.model, case.cluster, plan, **routed))
        except LayoutError as error:  # one value of a sweep may be impossible; all of them are a verdict
            refused = error
    if not results:
        assert refused is not None  # every plan either gave a result or was refused
        raise refused
    feasible = [result for result in results if result.status == "ok"]
    chosen = feasible or results
    quickest = min(chosen, key=lambda result: result.step_time_ns)
    memory = _memory_of(case.row, quickest) if quickest.memory else None
    tokens = case.plan.global_batch * case.plan.seq_len
    outcome = Outcome(
        case.row,
        "ok" if feasible else "infeasible",
        "" if feasible or results[0].infeasible is None else results[0].infeasible.reason,
        allocated_gib=None if memory is None else memory.peak_allocated_bytes / GIB,
        reserved_gib=None if memory is None else memory.peak_reserved_bytes / GIB,
        device_gib=None if memory is None else memory.device_bytes / GIB,
        swept=case.swept,
        assumptions=case.assumptions,
        model_flops=tokens * _flops_per_token(case),
        full=memory is not None and memory.gives_back,
    )
    times = [result for result in chosen if result.step_time_ns > 0]
    if not times:
        return outcome
    # Packed documents of unknown lengths have between none and all of the attention of whole sequences.
    fewer = {id(result): result.breakdown_ns.get("attention", 0) if case.packed else 0 for result in times}
    open_words = f"not stated, swept: {', '.join(case.swept)}" if case.swept else ""
    # Whoever publishes a benchmark has tuned what the row leaves open.
    step = min(result.step_time_ns - fewer[id(result)] / 2 for result in times)
    low = min(result.step_time_p5_ns - fewer[id(result)] for result in times)
    high = max(result.step_time_p95_ns for result in times)
    guessed = Z95 * UNREAD * math.sqrt(len(case.unread))
    return replace(
        outcome,
        band_reason="; ".join(words for words in (*case.unread, open_words, quickest.band_reason) if words),
        step_time_s=step / 1e9,
        p5_s=step / (1.0 + math.hypot(step / low - 1.0, guessed)) / 1e9,
        p95_s=step * (1.0 + math.hypot(high / step - 1.0, guessed)) / 1e9,
    )


def _flops_per_token(case: Case) -> float:
    """6 N + 12 L a d s, or 4 N where the weights are frozen."""
    forward = case.model.forward_flops_per_token(case.plan.seq_len, "full")
    return 3.0 * forward - (case.model.forward_flops_per_token(1, "full") if case.plan.lora_rank else 0.0)


def _who(row: Row) -> str:
    """Who measured, and with what."""
    return f"{row.framework} {row.source}".lower()


def _memory_of(row: Row, result: Result) -> StageMemory:
    if any(word in _who(row) for word in FIRST_STAGE_ONLY):
        return min(result.memory, key=lambda stage: stage.stage)
    return result.peak_memory
