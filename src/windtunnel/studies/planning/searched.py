"""The searches of a question, a space for each number of GPUs, and what they prove together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic

from windtunnel.errors import UserError
from windtunnel.physics.cost.power import least_joules
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.hardware.mixed import MixedCluster
from windtunnel.studies.planning.answers.compared import joules_ranked
from windtunnel.studies.planning.answers.plans import Planned
from windtunnel.studies.planning.asked import Asked
from windtunnel.studies.planning.objectives.by_stage import ByStage
from windtunnel.studies.planning.objectives.mixed_types import slowest_of
from windtunnel.studies.planning.objectives.robust import progress_score
from windtunnel.studies.planning.oracle import straggling
from windtunnel.studies.planning.search.best_first import Answer, Search, step_time
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.space.plan_space import Space, first_refusal

HEADROOM_STEPS = 6  # points of a front over memory
OF_ENERGY = 12  # fastest plans of different kinds whose energy is compared
SPARE = 2  # replays that a prediction of an answer may be worth
LEAST_WITHIN = 0.01  # how near to the least memory a search for it goes


@dataclass(slots=True)
class Searched:
    """`whole`: of the whole space; `answers`: those, and with less memory over the same plans again."""

    answers: list[tuple[Cluster, Answer]] = field(default_factory=list)
    whole: list[tuple[Search, Answer]] = field(default_factory=list)
    best: dict[int, tuple[Search, Answer]] = field(default_factory=dict)  # by GPUs
    least_bytes: float = inf  # that a plan may need, where memory is asked for

    def space(self) -> dict[str, int]:
        """How many plans there are, and what became of them."""
        counts = [answer.counts for _, answer in self.whole]
        legal, replayed = sum(each.legal for each in counts), sum(each.replayed for each in counts)
        return {
            "legal": legal,
            "replayed": replayed,
            "excluded_by_memory": sum(each.memory for each in counts),
            "structures": sum(each.structures for each in counts),
            "bounded": legal - replayed,
        }

    def gap(self, asked: Asked, best: Planned | None) -> float:
        """How much better than the best another plan of the space may be, in what is asked for."""
        if best is not None and asked.objective == "memory":
            return max(0.0, 1.0 - self.least_bytes / best.peak_memory_bytes)
        of_size: dict[int, list[Answer]] = {}
        for search, answer in self.whole:
            of_size.setdefault(search.space.cluster.n_gpus, []).append(answer)
        if best is not None and asked.objective == "energy":
            progress = asked.trouble.most_progress if asked.trouble else 1.0
            bounds_s = [
                (n_gpus, each.bound_ns / 1e9 / progress) for n_gpus, answers in of_size.items() for each in answers
            ]
            return _energy_gap(best, asked.mixed or asked.cluster, bounds_s)
        return max(map(_gap, of_size.values()))


def search_all(asked: Asked) -> Searched:
    """Searches by size, each with its share of the time that is left. Raises UserError where no space has a plan."""
    searched, mixed = Searched(), asked.mixed
    tried_on = [(size, False) for size in asked.sizes]
    if mixed is not None:
        tried_on.append((mixed.clusters_on_own_network()[0], True))  # stages that follow the types
    refusal: UserError | None = None
    for number, (hardware, by_stage) in enumerate(tried_on):
        search_s = None
        if asked.within_s is not None:
            search_s = max(1.0, (asked.within_s - (monotonic() - asked.begun_s)) / (len(tried_on) - number))
        ends = inf if search_s is None else monotonic() + search_s
        if search_s is not None and (asked.pareto or asked.objective == "memory"):
            search_s /= 2  # the rest finds plans that need less memory
        search = _search(asked, hardware, by_stage)
        most = max(asked.top, OF_ENERGY) if asked.objective == "energy" else asked.top
        answer = search.run(most, search_s, spare=SPARE * (most + 1))
        if not answer.counts.structures:
            refusal = first_refusal(search.space) or refusal
            continue
        searched.answers.append((hardware, answer))
        searched.whole.append((search, answer))
        incumbent = searched.best.get(hardware.n_gpus)
        if incumbent is None or _best_ns(answer) < _best_ns(incumbent[1]):
            searched.best[hardware.n_gpus] = search, answer
        if asked.pareto and answer.plans:
            searched.answers += [(hardware, more) for more in _with_headroom(search, answer, ends)]
        if asked.objective == "memory":
            smaller, least = _least_memory(search, answer, ends)
            searched.answers += [(hardware, more) for more in smaller]
            searched.least_bytes = min(searched.least_bytes, least)
    if not searched.answers:
        raise refusal or UserError(f"no plan of {asked.cluster.n_gpus} GPUs divides the batch and the model")
    return searched


def _search(asked: Asked, hardware: Cluster, by_stage: bool) -> Search:
    space = Space(asked.model, hardware, asked.constraints, mixed=asked.mixed, by_stage=by_stage)
    if asked.mixed is not None and by_stage:
        own = ByStage(asked.mixed)
        return Search(
            space, own, listener=asked.listener, memory=own.memory, step=own.step, head_room=asked.head_room
        )  # fmt: skip
    goal = step_time if asked.mixed is None else slowest_of(asked.model, asked.mixed)
    if asked.trouble:
        goal = progress_score(asked.model, hardware, asked.trouble)
    exact = asked.exact
    return Search(
        space, Bounds(straggling(hardware)), goal, listener=asked.listener,
        memory=exact.memory_bytes, step=exact.step_ns, soon=exact.soon, head_room=asked.head_room,
    )  # fmt: skip


def _gap(answers: Sequence[Answer]) -> float:
    """How much faster than the best plan of these searches, which are over the same GPUs, another one may be."""
    best = min(map(_best_ns, answers))
    if best == float("inf"):
        return max(answer.gap for answer in answers)
    return max(0.0, 1.0 - min(answer.bound_ns for answer in answers) / best)


def _energy_gap(best: Planned, cluster: Cluster | MixedCluster, bounds_s: Sequence[tuple[int, float]]) -> float:
    """What part of its energy another plan could take less: none of so many GPUs has a step below its bound.

    The FLOPs of a step, but for what is computed again, are those of the model; of several types none are counted.
    """
    tokens, least = best.tokens_per_s * best.step_time_s, inf
    for n_gpus, seconds in bounds_s:
        if isinstance(cluster, Cluster):
            at_peak_s = best.mfu * best.step_time_s * best.n_gpus / n_gpus
            least = min(least, n_gpus * least_joules(cluster.gpu, seconds, at_peak_s))
        else:
            least = min(least, sum(part.n_gpus * least_joules(part.gpu, seconds, 0.0) for part in cluster.parts))
    return max(0.0, 1.0 - least / tokens / joules_ranked(best))


def _best_ns(answer: Answer) -> float:
    return answer.plans[0].score_ns if answer.plans else float("inf")


def _with_headroom(search: Search, answer: Answer, ends: float) -> list[Answer]:
    """Ever less memory: the fastest plan that needs at least 5 % less than the last."""
    answers = []
    each = None if ends == inf else max(0.0, ends - monotonic()) / HEADROOM_STEPS
    for _ in range(HEADROOM_STEPS):
        capacity = int(answer.plans[0].replay.peak_bytes * 0.95)
        again = replace(search, capacity_bytes=capacity)
        answer = again.run(1, each)
        if not answer.plans:
            break
        answers.append(answer)
    return answers


def _least_memory(search: Search, answer: Answer, ends: float) -> tuple[list[Answer], float]:
    """Plans that need ever less memory, each the fastest of those that need no more; and what no plan needs less than.

    Halves what is left between a plan that was found and a capacity in which none fits.
    """
    if not answer.plans:
        return [], 0.0 if answer.gap else inf
    answers: list[Answer] = []
    least, most = 0, min(candidate.replay.peak_bytes for candidate in answer.plans)
    while most - least > LEAST_WITHIN * most and monotonic() < ends:
        capacity = (least + most) // 2
        again = replace(search, capacity_bytes=capacity).run(1, None if ends == inf else ends - monotonic())
        if again.plans:
            most = again.plans[0].replay.peak_bytes
            answers.append(again)
        elif again.gap == 0.0:
            least = capacity
        else:
            break
    return answers, float(least)
