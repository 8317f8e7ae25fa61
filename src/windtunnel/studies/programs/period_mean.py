"""The mean step of a script whose steps differ: each kind of step is priced alone, and counts as often as it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from windtunnel.physics.step.result import Result
from windtunnel.units import format_time


def mean_of(kinds: Sequence[tuple[int, Result]]) -> Result:
    """The mean of a period; (how many steps, their result), the commonest kind first.

    Times, tokens, FLOPs and traffic are means over the period's steps; memory is that of the fullest kind; what is
    drawn (stages, timeline) is of the commonest.
    """
    first = kinds[0][1]
    if len(kinds) == 1:
        return first
    steps = sum(count for count, _ in kinds)
    fullest = max(
        (result for _, result in kinds), key=lambda result: max((m.device_bytes for m in result.memory), default=0)
    )
    refused = next((result for _, result in kinds if result.infeasible is not None), None)

    def mean(values: Sequence[float]) -> float:
        return sum(count * value for (count, _), value in zip(kinds, values, strict=True)) / steps

    total_ns = round(mean([result.step_time_ns for _, result in kinds]))
    times = [result.step_time_ns for _, result in kinds]

    def of_time(values: Sequence[float]) -> float:
        """A rate is what was done in the whole period over its time."""
        done = mean([value * time for value, time in zip(values, times, strict=True)])
        return done / max(mean(times), 1)

    text = ", ".join(f"{count} of {format_time(result.step_time_s)}" for count, result in kinds)
    names = dict.fromkeys(name for _, result in kinds for name in result.traffic_bytes)
    traffic = {name: round(mean([result.traffic_bytes.get(name, 0) for _, result in kinds])) for name in names}
    return replace(
        first,
        status=first.status if refused is None else refused.status,
        infeasible=None if refused is None else refused.infeasible,
        step_time_ns=total_ns,
        step_time_p5_ns=round(mean([result.step_time_p5_ns for _, result in kinds])),
        step_time_p95_ns=round(mean([result.step_time_p95_ns for _, result in kinds])),
        tokens_per_step=round(mean([result.tokens_per_step for _, result in kinds])),
        tokens_per_s=of_time([result.tokens_per_s for _, result in kinds]),
        tokens_per_s_per_gpu=of_time([result.tokens_per_s_per_gpu for _, result in kinds]),
        mfu=of_time([result.mfu for _, result in kinds]),
        hfu=of_time([result.hfu for _, result in kinds]),
        model_tflops_per_gpu=of_time([result.model_tflops_per_gpu for _, result in kinds]),
        breakdown_ns=_whole([(count, result.breakdown_ns) for count, result in kinds], total_ns),
        memory=fullest.memory,
        memory_p95_bytes=fullest.memory_p95_bytes,
        tight=fullest.tight,
        traffic_bytes=traffic,
        defaults=(*first.defaults, f"the mean step of a period of {steps}: {text}"),
    )


def _whole(parts: Sequence[tuple[int, Mapping[str, int]]], total: int) -> dict[str, int]:
    """Means of the parts, in whole nanoseconds, that add up to `total`."""
    steps = sum(count for count, _ in parts)
    names = dict.fromkeys(name for _, part in parts for name in part)
    means = {name: round(sum(count * part.get(name, 0) for count, part in parts) / steps) for name in names}
    if means:
        largest = max(means, key=lambda name: means[name])
        means[largest] += total - sum(means.values())
    return means
