"""Advice as a person gives it: the fewest changes first, the simplest plan among those that are not told apart.

    single changes that were predicted (`advice.py`), those within TOLD_APART of each other by how simple they are
    the best of them together, where that is quicker still

and each as a change of the user's own file, where one is given: the patched file is read back, and said only if it lays
out as the plan that was predicted. Nothing leaves less than the head-room of `advice.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windtunnel.errors import UserError
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.model import Model
from windtunnel.physics.step.result import Advice, Result
from windtunnel.questions.asked.diagnose import LOGS
from windtunnel.questions.reading import plain_part
from windtunnel.studies.planning.advice.advise import HEAD_ROOM
from windtunnel.studies.planning.advice.changes import PLAN, change_fields, flags_of
from windtunnel.studies.planning.oracle import Layout, Plan, host_holds, laid_out, memory_bytes, read_plan, step_ns
from windtunnel.studies.training.launch.patch import diff, patch, read_again
from windtunnel.studies.training.question import states_model

TOLD_APART = 0.03  # of a step: below this two plans count as equal (a judgement; no measurement gives it)
MOST = 4
SIMPLE = (  # from what costs nothing to try to what changes most
    *("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p", "overlap_ep", "compile"),
    *("attention_impl", "cuda_graphs", "bucket_parameters", "sequence_parallel", "micro_batch", "recompute"),
    *("virtual_stages", "schedule", "account_for_embedding", "zero_stage", "shard_group"),
    *("tp", "pp", "cp", "cp_kind", "ep", "etp", "n_gpus", "offload_activations", "offload_optimizer"),
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that was predicted. `diff`: of the user's file; empty where none is given or it has no option for it."""

    changes: Mapping[str, object]
    flags: str
    diff: str
    step_time_s: float
    gain: float  # of the step as it is predicted now; negative: it takes longer, but fits
    peak_memory_bytes: int
    note: str = ""


def proposals(result: Result, model: Model, cluster: Cluster, plan: Plan, launch: str | None) -> tuple[Proposal, ...]:
    """What to change, from a result that has its advice. Raises UserError where `launch` cannot be read."""
    base = laid_out(model, cluster, plan)
    singles = ordered([advice for advice in result.advice if advice.kind == PLAN])
    offers = [_of(single, base, launch, _apart(single, singles)) for single in singles[:MOST]]
    both = _together(result, base, singles)
    if both is not None:
        offers.append(_of(both, base, launch, "together"))
    return tuple(offers)


def ordered(advice: Sequence[Advice]) -> list[Advice]:
    """Quickest first, of those that are not told apart the simplest; what offloads behind all others."""
    undecided = sorted(advice, key=lambda single: (_offloads(single.changes), single.step_time_ns, single.flags))
    advices: list[Advice] = []
    while undecided:
        most = undecided[0].step_time_ns * (1.0 + TOLD_APART)
        alike = [
            single
            for single in undecided
            if single.step_time_ns <= most and _offloads(single.changes) == _offloads(undecided[0].changes)
        ]
        for single in sorted(alike, key=lambda single: (simplicity(single.changes), single.step_time_ns)):
            # What asks for all that another one does, and is not told apart from it, only asks for more.
            if not any(other.changes.items() <= single.changes.items() for other in advices):
                advices.append(single)
        undecided = [single for single in undecided if single not in alike]
    return advices


def _offloads(changes: Mapping[str, object]) -> bool:
    return any(name.startswith("offload") and value for name, value in changes.items())


def simplicity(changes: Mapping[str, object]) -> tuple[int, int]:
    """How much a change asks for: the number of fields, then the field that changes most."""
    ranks = [SIMPLE.index(name) if name in SIMPLE else len(SIMPLE) for name in changes if name != "dp"]
    return len(ranks), max(ranks, default=0)


def _apart(advice: Advice, singles: Sequence[Advice]) -> str:
    best = min(single.step_time_ns for single in singles)
    slower = advice.step_time_ns / best - 1.0
    return "the simplest of those that are not told apart" if advice is singles[0] and slower > 0.0 else ""


def _together(result: Result, base: Layout, singles: Sequence[Advice]) -> Advice | None:
    """The best of the single changes joined, as far as they go together."""
    if not singles or "n_gpus" in singles[0].changes or _offloads(singles[0].changes):
        return None
    fields, best = dict(singles[0].changes), singles[0].step_time_ns
    room = int(result.memory_capacity_bytes * (1.0 - HEAD_ROOM))
    combination = None
    for single in singles[1:]:
        if set(single.changes) & set(fields) - {"dp"} or "n_gpus" in single.changes or _offloads(single.changes):
            continue
        joint_fields = {name: value for name, value in {**fields, **single.changes}.items() if name != "dp"}
        change = change_fields(base, joint_fields)
        if change is None or change.kind != PLAN:
            continue
        needed = memory_bytes(change.layout, room)
        if needed > room or not host_holds(change.layout):
            continue
        time_ns = step_ns(change.layout)
        if time_ns < best * (1.0 - TOLD_APART / 3.0):
            fields, best = dict(change.fields), time_ns
            gain = 1.0 - time_ns / result.step_time_ns
            combination = Advice(dict(change.fields), flags_of(change.fields), PLAN, time_ns, gain, needed)
    return combination


def launch_of(word: str) -> str | None:
    """The user's own file that a word for a model names; None for a log, which nobody edits, and for all else."""
    return word if states_model(word) and not word.lower().endswith(LOGS) else None


def as_change(advice: Advice, model: Model, cluster: Cluster, plan: Plan, launch: str | None) -> Proposal:
    """One piece of advice as a change of the user's own file, where it has an option for it."""
    return _of(advice, laid_out(model, cluster, plan), launch, "")


def _of(advice: Advice, base: Layout, launch: str | None, note: str) -> Proposal:
    text = "" if launch is None or "n_gpus" in advice.changes else _diff(advice.changes, base, launch)
    return Proposal(advice.changes, advice.flags, text, advice.step_time_s, advice.gain, advice.peak_memory_bytes, note)


def _diff(changes: Mapping[str, object], base: Layout, launch: str) -> str:
    """The change of the user's file; empty where the file, patched, does not say the plan that was predicted."""
    plan, n_gpus = base.user_plan, base.cluster.n_gpus
    free = {"dp": None} if plan.dp is not None else {}
    changed = plan.with_fields({**free, **changes})
    wanted = laid_out(base.model, base.cluster, changed)
    try:
        text = patch(launch, (plain_part(plan), base.dp), (plain_part(changed), wanted.dp), n_gpus, base.model.name)
        if not text:
            return ""
        native = read_again(launch, text, n_gpus).fields
        again = laid_out(base.model, base.cluster, read_plan({**plain_part(plan), **free, **native}))
    except UserError:
        return ""
    return diff(launch, text) if again.plan == wanted.plan else ""
