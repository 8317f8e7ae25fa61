"""AlpaServe's groups: one-shot models on devices that share one pipeline of stages, first come first served.

    start of stage i   t = max(t, clock[i]);   end t + stage[i] x (1 + overhead x stages)
    admission          rejected on arrival where the end would come after arrival + SLO
    dispatch           to the group with the model whose first stage is free first

Source: alpa-projects/mms (alpa_serve/simulator). The pipeline overhead is what stages lose to sending activations. The
milliseconds that its dispatch takes are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

STAGE_OVERHEAD = 0.009  # per stage, share of a stage's time
ADMISSION_SLACK_S = 11e-3  # by which the estimate at admission is raised


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """One request: `end_s` is infinite where it was rejected."""

    model: int
    arrival_s: float
    end_s: float


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Devices with one layout, and the models on it: stage times in seconds by model."""

    stages: dict[int, tuple[float, ...]]

    def idle(self) -> list[float]:
        """When each of its stages is free before the first request."""
        lengths = {len(times) for times in self.stages.values()} or {1}
        assert len(lengths) == 1, "models of one group have as many stages"
        return [0.0] * lengths.pop()


def serve_groups(
    groups: Sequence[Group],
    requests: Iterable[tuple[float, int]],
    slo_s: Sequence[float] | None = None,
    *,
    overhead: float = STAGE_OVERHEAD,
    slack_s: float = ADMISSION_SLACK_S,
) -> list[GroupRequest]:
    """Requests (arrival, model) in the order of arrival. `slo_s` by model: None lets everything in."""
    clocks = [group.idle() for group in groups]
    served = []
    for arrival, model in requests:
        best, first = -1, inf
        for place, group in enumerate(groups):
            if model in group.stages and clocks[place][0] < first:
                best, first = place, clocks[place][0]
        if best < 0:
            served.append(GroupRequest(model, arrival, inf))
            continue
        stages = groups[best].stages[model]
        slower = 1.0 + overhead * len(stages) if len(stages) > 1 else 1.0
        at, clock = arrival, []
        for stage, free in zip(stages, clocks[best], strict=True):
            at = max(at, free) + stage * slower
            clock.append(at)
        if slo_s is not None and at + slack_s > arrival + slo_s[model]:
            served.append(GroupRequest(model, arrival, inf))
            continue
        clocks[best] = clock
        served.append(GroupRequest(model, arrival, at))
    return served
