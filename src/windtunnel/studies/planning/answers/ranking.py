"""Which of several predicted plans is the best by an objective, and which are beaten by none."""

from __future__ import annotations

from windtunnel.studies.planning.answers.compared import joules_ranked, seconds_ranked
from windtunnel.studies.planning.answers.plans import Planned


def _least(objective: str, planned: Planned) -> tuple[float, ...]:
    time = seconds_ranked(planned)
    hours = planned.gpu_hours_per_million_tokens * time / planned.step_time_s
    if objective == "memory":
        return (float(planned.peak_memory_bytes), time)
    if objective == "cost":
        return (hours, time)
    if objective == "energy":
        return (joules_ranked(planned), time)
    return (time, hours)


def best_first(answers: list[Planned], objective: str) -> list[Planned]:
    """Answers by what is asked for, the best first, each plan once."""
    by_plan: dict[str, Planned] = {}
    for planned in sorted(answers, key=lambda planned: (*_least(objective, planned), planned.reproduce)):
        by_plan.setdefault(f"{planned.n_gpus} {planned.techniques} {sorted(planned.plan.items())}", planned)
    return list(by_plan.values())


def pareto_front(ranked: list[Planned]) -> tuple[Planned, ...]:
    """Plans of which no other is better in time, cost and memory at once, fastest first."""

    def parts(planned: Planned) -> tuple[float, float, float]:
        return (planned.step_time_s, planned.gpu_hours_per_million_tokens, float(planned.peak_memory_bytes))

    def beaten(planned: Planned) -> bool:
        mine = parts(planned)
        return any(
            all(a <= b for a, b in zip(parts(other), mine, strict=True)) and parts(other) != mine for other in ranked
        )

    return tuple(sorted((planned for planned in ranked if not beaten(planned)), key=parts))
