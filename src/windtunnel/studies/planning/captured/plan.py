"""`plan captured/`: how to cut a captured script into pipeline stages and replicas on a cluster.

    for every number of replicas dp that divides the GPUs and the job's micro-batches, pp = GPUs / dp:
        the programme of `planning/alpa/stages.py` cuts the script's units into pp stages, memory included
        the cut runs as 1F1B: passes and sends of every stage, event by event; then reductions and updates

The micro-batch stays as it was captured, so every op keeps its shape and its price; the job's micro-batches are dealt
out anew, and the tokens of a step stay the same. The programme's cost, sum + (B - 1) x longest, is exact where nothing
is sent; it proposes, and the walk through the schedule decides.

Assumed, and said in the answer: ranks follow GPUs with replicas of a stage side by side; a send blocks its stage; of
replicas' gradients all but the last unit's reduction hides behind the last backward pass, as far as that is long
enough; shards are gathered under each pass; a stage with q stages behind it keeps q + 1 micro-batches; what is reserved
beyond what is allocated is not counted.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from math import floor
from pathlib import Path
from time import monotonic

import numpy as np

from windtunnel.errors import SpecError, UserError
from windtunnel.physics.cost.communication.collectives import group_of
from windtunnel.physics.cost.device_memory import outside_of_allocator
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.studies.planning.alpa.stages import best_stages
from windtunnel.studies.planning.captured.units import Script, script_of
from windtunnel.studies.planning.oracle import walked_1f1b
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.lowering.pricing import OpPricer, op_pricer
from windtunnel.studies.programs.predict import between_steps_s, load

ASSUMED = (
    "micro-batches have the size that was captured; the step has as many as before",
    "ranks follow GPUs, the replicas of a stage side by side; sends between stages block",
    "gradients reduce under the last backward pass but for the last unit's; shards are gathered under each pass",
    "1F1B: a stage with q stages behind it keeps q + 1 micro-batches; fragmentation is not counted",
)


@dataclass(frozen=True, slots=True)
class Partition:
    """One way to cut the script."""

    pp: int
    dp: int
    micro_batches: int  # of each replica
    ends: tuple[int, ...]  # units up to the end of each stage
    step_s: float
    low_s: float
    high_s: float
    stage_s: tuple[float, ...]  # one micro-batch, both passes
    memory_bytes: tuple[int, ...]


def plan_captured(
    job: CapturedJob | str | Path,
    cluster: Cluster | str | Path,
    *,
    pp: int | None = None,
    dp: int | None = None,
    top: int = 5,
    framework: str = "pytorch",
    cuda_graphs: bool = False,
) -> dict[str, object]:
    """Ranked cuts as plain data: `plans`, `space`, `gap`, `assumed`; where none fits, `nearest`.

    `pp`, `dp`: fixed where given. Raises UserError on a script that is a pipeline already, cuts layers over ranks, or
    has micro-batches that no number of replicas divides.
    """
    start_s = monotonic()
    cluster_argument = cluster
    job = job if isinstance(job, CapturedJob) else load(job)
    cluster = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)
    pricer = op_pricer(cluster, framework=framework, cuda_graphs=cuda_graphs)
    script = script_of(job, pricer, between_steps_s(cluster, pricer, framework))
    options = _options(script, cluster.n_gpus, pp, dp)
    cuts = [cut for stages, replicas in options if (cut := _cut(script, cluster, pricer, stages, replicas)) is not None]
    capacity = cluster.gpu.usable_memory_bytes
    fitting = sorted((cut for cut in cuts if max(cut.memory_bytes) <= capacity), key=lambda cut: (cut.step_s, cut.pp))
    missed = sorted((cut for cut in cuts if max(cut.memory_bytes) > capacity), key=lambda cut: max(cut.memory_bytes))
    machine = cluster.name if isinstance(cluster_argument, Cluster) else str(cluster_argument)
    words = f"{shlex.quote(job.source)} --cluster {shlex.quote(machine)}"
    words += f" --framework {framework}" if framework != "pytorch" else ""
    words += " --cuda-graphs" if cuda_graphs else ""
    return {
        "status": "ok" if fitting else "infeasible",
        "units": [unit.name for unit in script.units],
        "plans": [_document(cut, script, words, capacity) for cut in fitting[:top]],
        "nearest": [] if fitting else [_document(cut, script, words, capacity) for cut in missed[:top]],
        "space": {"legal": len(options), "replayed": len(cuts), "bounded": 0},
        "gap": 0.0,
        "assumed": list(ASSUMED),
        "seconds": monotonic() - start_s,
    }


def _options(script: Script, gpus: int, pp: int | None, dp: int | None) -> list[tuple[int, int]]:
    """Stages and replicas. Raises UserError where there are none."""
    for name, value in (("pp", pp), ("dp", dp)):
        if value is not None and (value < 1 or gpus % value):
            raise SpecError(name, value, f"does not divide {gpus} GPUs")
    options = [
        (gpus // replicas, replicas)
        for replicas in range(1, gpus + 1)
        if gpus % replicas == 0 and script.micro_batches % replicas == 0 and gpus // replicas <= len(script.units)
    ]
    options = [option for option in options if pp in (None, option[0]) and dp in (None, option[1])]
    if not options:
        raise UserError(
            f"{gpus} GPUs cannot be shared: a step has {script.micro_batches} micro-batches and the script"
            f" {len(script.units)} units; use a number of GPUs that replicas x stages make up"
        )
    return options


def _cut(script: Script, cluster: Cluster, pricer: OpPricer, pp: int, dp: int) -> Partition | None:
    """The best cut into so many stages; None where the micro-batches are too few to be cut at all."""
    units, rounds = script.units, script.micro_batches // dp
    count = len(units)
    hop = [_hop(unit.sent_bytes, cluster, pricer, pp, dp) for unit in units]
    room = cluster.gpu.usable_memory_bytes - _outside(cluster, pricer, pp, dp)
    times = np.full((count, count, 1, 1), np.inf)
    successors = np.zeros((count, count, 1, 1), np.int64)
    for first in range(count):
        for last in range(first, count):
            forward, backward = _passes(script, first, last, hop, cluster, pricer, dp)
            times[first, last] = forward + backward
            state, activations, most = _memory(script, first, last, dp)
            successors[first, last] = min(count, floor((room - state - most) / max(1, activations))) - 1
    staging = best_stages(times, [1], pp, rounds, successors) or best_stages(times, [1], pp, rounds)
    if staging is None:
        return None
    ends = tuple(stage.last + 1 for stage in staging.stages)
    starts = (0, *ends[:-1])
    passes = [_passes(script, a, b - 1, hop, cluster, pricer, dp) for a, b in zip(starts, ends, strict=True)]
    done = walked_1f1b(pp, rounds, [forward for forward, _ in passes], [backward for _, backward in passes])
    finish = 0.0
    for stage, (a, b) in enumerate(zip(starts, ends, strict=True)):
        share = _share(script, a, b - 1)
        reduced = _reduced(script, share, cluster, pricer, dp)
        hidden = passes[stage][1] * (1.0 - 1.0 / (b - a))
        exposed_s = max(reduced / (b - a), reduced - hidden) if dp > 1 else 0.0
        update = script.optimizer_s * share / (dp if script.sharded else 1)
        finish = max(finish, done[stage] + exposed_s + update)
    memory = []
    for stage, (a, b) in enumerate(zip(starts, ends, strict=True)):
        state, activations, most = _memory(script, a, b - 1, dp)
        memory.append(int(state + activations * min(rounds, pp - stage) + most) + _outside(cluster, pricer, pp, dp))
    step = (finish + script.other_s) * (1.0 + pricer.training.straggling(cluster.n_gpus))
    whole = sum(unit.forward_s + unit.backward_s for unit in units)
    low, high = (sum(part) / whole for part in zip(*((u.low_s, u.high_s) for u in units), strict=True))
    stage_s = tuple(forward + backward for forward, backward in passes)
    return Partition(pp, dp, rounds, ends, step, step * min(1.0, low), step * max(1.0, high), stage_s, tuple(memory))


def _outside(cluster: Cluster, pricer: OpPricer, pp: int, dp: int) -> int:
    return 0 if pricer.on_cpu else outside_of_allocator(cluster, int(dp > 1) + int(pp > 1))


def _hop(sent: int, cluster: Cluster, pricer: OpPricer, pp: int, dp: int) -> float:
    if pp == 1:
        return 0.0
    far = group_of(2, max(1, dp), cluster)
    return pricer.communication("send", float(sent), far).seconds


def _share(script: Script, first: int, last: int) -> float:
    whole = sum(unit.weights for unit in script.units)
    own = sum(unit.weights for unit in script.units[first : last + 1])
    return own / whole if whole else (last + 1 - first) / len(script.units)


def _passes(
    script: Script, first: int, last: int, hop: list[float], cluster: Cluster, pricer: OpPricer, dp: int
) -> tuple[float, float]:
    """Forward and backward of units first..last with what they send on, at least what gathering takes."""
    units = script.units[first : last + 1]
    forward, backward = sum(unit.forward_s for unit in units), sum(unit.backward_s for unit in units)
    if script.sharded and dp > 1:
        size = script.parameter_bytes * _share(script, first, last)
        gathered = pricer.communication("all_gather", size, group_of(dp, 1, cluster)).seconds
        forward, backward = max(forward, gathered), max(backward, gathered)
    if last + 1 < len(script.units):
        forward += hop[last]
    if first:
        backward += hop[first - 1]
    return forward, backward


def _memory(script: Script, first: int, last: int, dp: int) -> tuple[float, int, int]:
    """State, what a micro-batch keeps, and the most that one unit needs beside it, in bytes."""
    units, share = script.units[first : last + 1], _share(script, first, last)
    state = (script.parameter_bytes + script.gradient_bytes + script.optimizer_bytes) * share
    most = max(unit.workspace_bytes for unit in units)
    if script.sharded:
        largest = max(_share(script, number, number) for number in range(first, last + 1))
        state, most = state / dp, most + int(2 * script.parameter_bytes * largest)
    return state, sum(unit.kept_bytes for unit in units), most


def _reduced(script: Script, share: float, cluster: Cluster, pricer: OpPricer, dp: int) -> float:
    if dp == 1:
        return 0.0
    kind = "reduce_scatter" if script.sharded else "all_reduce"
    return pricer.communication(kind, script.parameter_bytes * share, group_of(dp, 1, cluster)).seconds


def _document(cut: Partition, script: Script, words: str, capacity: int) -> dict[str, object]:
    starts = (0, *cut.ends[:-1])
    names = [unit.name for unit in script.units]
    stages = [
        {
            "first": names[a], "last": names[b - 1], "units": b - a, "micro_batch_s": seconds,
            "memory_bytes": memory,
        }
        for a, b, seconds, memory in zip(starts, cut.ends, cut.stage_s, cut.memory_bytes, strict=True)
    ]  # fmt: skip
    return {
        "plan": {"pp": cut.pp, "dp": cut.dp, "layers_per_stage": [b - a for a, b in zip(starts, cut.ends, strict=True)],
                 "micro_batches": cut.micro_batches, "schedule": "1f1b"},
        "step_time_s": cut.step_s,
        "p5_s": cut.low_s,
        "p95_s": cut.high_s,
        "peak_memory_bytes": max(cut.memory_bytes),
        "memory_capacity_bytes": capacity,
        "stages": stages,
        "reproduce": f"windtunnel plan {words} --pp {cut.pp} --dp {cut.dp}",
    }  # fmt: skip
