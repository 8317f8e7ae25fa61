"""A Result with another step time: parts that are exposed give or take first, and everything still sums exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from windtunnel.physics.step.result import Infeasible, Result, StageMemory, TechniqueGain
from windtunnel.physics.step.result_of import limits_of
from windtunnel.questions import plain
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.words import command
from windtunnel.studies.techniques.priced import MemoryShares

STATE = ("parameters", "gradients", "optimizer")


def with_technique(
    result: Result, gain: TechniqueGain, seconds: float, on_device: MemoryShares | None, question: Predict
) -> Result:  # fmt: skip
    """`result` at `seconds` a step, with the technique's report, and with its memory where that changes."""
    total = round(seconds * 1e9)
    scale = total / result.step_time_ns
    breakdown = moved_to(result.breakdown_ns, total, gain.name)
    memory, trouble, status = result.memory, result.infeasible, result.status
    if on_device is not None:
        memory = tuple(_partly_elsewhere(stage, on_device) for stage in memory)
        fullest = max(memory, key=lambda stage: stage.device_bytes)
        fits = fullest.device_bytes <= result.memory_capacity_bytes
        status = "ok" if fits else "infeasible"
        lacks = Infeasible("out of memory", fullest.stage, fullest.device_bytes, result.memory_capacity_bytes)
        trouble = None if fits else lacks
    return replace(
        result,
        status=status,
        infeasible=trouble,
        memory=memory,
        step_time_ns=total,
        step_time_p5_ns=round(result.step_time_p5_ns * scale),
        step_time_p95_ns=round(result.step_time_p95_ns * scale),
        tokens_per_s=result.tokens_per_s / scale,
        tokens_per_s_per_gpu=result.tokens_per_s_per_gpu / scale,
        mfu=result.mfu / scale,
        hfu=result.hfu / scale,
        model_tflops_per_gpu=result.model_tflops_per_gpu / scale,
        breakdown_ns=breakdown,
        limits=limits_of(breakdown, total),
        stages=tuple(
            replace(stage, breakdown_ns=moved_to(stage.breakdown_ns, total, gain.name)) for stage in result.stages
        ),
        technique=gain,
        reproduce=command(question),
        question=plain(question),
    )


def moved_to(parts: Mapping[str, int], total: int, technique: str) -> dict[str, int]:
    """The parts with a new sum: what is exposed shrinks first, then all alike; what is more is the technique's."""
    now = sum(parts.values())
    if total >= now:
        more = {f"added by {technique}": total - now} if total > now else {}
        return {**parts, **more}
    exposed = {name: value for name, value in parts.items() if name.startswith(("exposed", "slowed"))}
    less = now - total
    exposed_left = _shrunk(exposed, max(0, sum(exposed.values()) - less))
    rest = {name: value for name, value in parts.items() if name not in exposed}
    rest_left = _shrunk(rest, total - sum(exposed_left.values()))
    return {name: value for name in parts if (value := {**exposed_left, **rest_left}[name])}


def _shrunk(parts: Mapping[str, int], total: int) -> dict[str, int]:
    """Each part in proportion, rounded so that they sum to `total`."""
    whole = sum(parts.values())
    shares: dict[str, int] = {}
    before = after = 0
    for name, value in parts.items():
        before += value
        end = before * total // whole if whole else 0
        shares[name] = end - after
        after = end
    return shares


def _partly_elsewhere(stage: StageMemory, on_device: MemoryShares) -> StageMemory:
    """A stage's memory with part of its state elsewhere; the parts sum to what is allocated, as everywhere."""
    parts = dict(stage.categories)
    state = sum(parts.get(name, 0) for name in STATE)
    parts |= {name: int(parts[name] * on_device.state_share) for name in STATE if name in parts}
    if on_device.moving_share:
        parts["on its way"] = int(state * on_device.moving_share)
    allocated = sum(parts.values())
    reserved = int(allocated * on_device.reserved_over_allocated)
    less = stage.peak_allocated_bytes - allocated
    return replace(
        stage,
        categories=parts,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        device_bytes=reserved + max(0, stage.device_bytes - stage.peak_reserved_bytes),
        timeline=tuple((time_ns, max(0, now - less)) for time_ns, now in stage.timeline),
    )
