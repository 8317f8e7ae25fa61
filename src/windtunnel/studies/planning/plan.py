"""`plan`: the best plans for a model on a cluster, with reasons and a certificate.

    structures of the space -> best-first search -> the survivors predicted -> what decides, and what loses and why

Objectives rank, and are never mixed: `time` (of a step), `cost` (GPU-hours of a token; money where a price is given),
`memory` (head-room) and `energy` (tokens per joule, by what GPUs do: `physics/cost/power.py`). On a given number of
GPUs time and cost rank alike; over several numbers they do not. Several at once are a front: plans of which none is
better in all. Energy ranks the fastest plans of different kinds; what any other could take less is bounded by the
least time of the space and by the model's FLOPs at the peak.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.hardware.mixed import MixedCluster, parse_mixed
from windtunnel.physics.model import Model, load_model
from windtunnel.questions.typed import check, texts
from windtunnel.studies.planning.answers.choices import LOOKS, Budget, Choice, choices
from windtunnel.studies.planning.answers.compared import decides, loses, sensitivity, told_apart
from windtunnel.studies.planning.answers.infeasible import NEAREST_TRIED, nearest, remedies
from windtunnel.studies.planning.answers.plans import Planned, Plans
from windtunnel.studies.planning.answers.ranking import best_first, pareto_front
from windtunnel.studies.planning.asked import OBJECTIVES, Asked, fixed_fields, sizes
from windtunnel.studies.planning.objectives.mixed_types import slower
from windtunnel.studies.planning.objectives.robust import Trouble, progress_score
from windtunnel.studies.planning.oracle import Layout, Plan, Replayed, checked
from windtunnel.studies.planning.planned import Named, names, planned, planned_as
from windtunnel.studies.planning.search.ahead import Exact
from windtunnel.studies.planning.searched import Searched, search_all
from windtunnel.studies.planning.space.plan_space import Space
from windtunnel.studies.planning.space.thumb import rule_of_thumb
from windtunnel.studies.planning.techniques import TechniqueSearch, chosen, try_techniques
from windtunnel.studies.techniques import predict_with
from windtunnel.studies.training.launch import launch_files
from windtunnel.units import parse_count, parse_number, parse_time

BY_TIME = ("time", "cost")  # which rank plans of as many GPUs alike
WITHIN_S = 60.0
HEAD_ROOM = 0.03  # of a device's memory: a plan that fills all of it does not always fit
TOP = 5
FINALISTS = 5  # plans that techniques are tried on
PLAINLY_WITHIN_S = 10.0


def plan(
    model: Model | str | Path | Mapping[str, object],
    cluster: Cluster | MixedCluster | str | Path | Mapping[str, object],
    plan: Plan | str | Path | Mapping[str, object] | None = None,
    *,
    top: int = TOP,
    within_s: float | None = WITHIN_S,
    objective: str = "time",
    gpus: tuple[int, int] | None = None,
    pareto: bool = False,
    price_per_gpu_hour: float | None = None,
    slow: Sequence[str] = (),
    mtbf_s: float | None = None,
    techniques: str | Sequence[str] = (),
    choices_within_s: float | None = None,
    head_room: float = HEAD_ROOM,
    named: Named | None = None,
    listener: Callable[[Layout, Replayed], None] | None = None,
    exact: Exact | None = None,
    **fields: object,
) -> Plans:
    """The best plans, proven inside the space that `planning/space/plan_space.py` states.

    `model`, `cluster`: as `predict` takes them. `plan` and `fields`: fields of a Plan that are fixed; `global_batch`
    and `seq_len` are needed. `gpus`: other numbers of GPUs, from the least to the most by doubling. `within_s`: stop
    early, with the proven gap; it holds what comes behind the search too, as far as that can be foreseen. `slow`,
    `mtbf_s`: rank by the step under these disturbances, and by the progress that failures of the job leave.
    `techniques`: `all`, `exact` (those that leave alone what is trained) or names, tried on the best plans
    (`planning/techniques.py`), after `within_s`. `choices_within_s`: how long to search on for what each single choice
    is worth, which is told by bounds then; if not given, a fixed number of looks, and no longer than `within_s`.
    `head_room`: share of a device's memory that a plan leaves free. `listener` is called with each plan that is
    replayed, while the search runs. `exact`: who measures and replays single plans; this process if not given
    (`planning/search/ahead.py`). Raises UserError on a question that cannot be; where nothing fits the answer has no
    plans, but the nearest ones and what makes one fit.
    """
    check(locals(), pareto=bool)
    constraints, words, slow = fixed_fields(plan, fields), named or names(model, cluster), texts("slow", slow)
    model = model if isinstance(model, Model) else load_model(model)
    mixed = cluster if isinstance(cluster, MixedCluster) else parse_mixed(cluster)
    if mixed is not None:
        if gpus is not None or slow or mtbf_s is not None or techniques:
            raise SpecError("cluster", mixed.name, "of several types: leave out --gpus, --slow, --mtbf and --technique")
        cluster = slower(mixed)
    elif not isinstance(cluster, Cluster):
        cluster = parse_cluster(cluster)  # type: ignore[arg-type]
    assert isinstance(cluster, Cluster)
    if objective not in OBJECTIVES:
        raise SpecError("objective", objective, f"use {', '.join(OBJECTIVES)}")
    trials = chosen(texts("techniques", techniques))
    if trials and (slow or mtbf_s is not None):
        raise SpecError("techniques", ", ".join(trials), "are not predicted under --slow or --mtbf: leave one out")
    top = parse_count(top, "top")
    if not 0.0 <= head_room < 1.0:
        raise SpecError("head_room", head_room, "give a share of the memory, such as 0.03")
    asked = Asked(
        model, cluster, mixed, sizes(cluster, gpus), constraints, objective, top,
        within_s=None if within_s is None else parse_time(within_s, "within_s"),
        choices_within_s=None if choices_within_s is None else parse_time(choices_within_s, "choices_within_s"),
        head_room=head_room,
        pareto=pareto,
        front=pareto or gpus is not None,
        price=None if price_per_gpu_hour is None else parse_number(price_per_gpu_hour, "price_per_gpu_hour"),
        trouble=Trouble(slow, None if mtbf_s is None else parse_time(mtbf_s, "mtbf_s")),
        techniques=trials,
        words=words,
        listener=listener,
        exact=exact or Exact(),
    )  # fmt: skip
    searched = search_all(asked)
    plans = _plans(asked, searched)
    searched_s = monotonic() - asked.begun_s
    attempts = _with_techniques(asked, searched, best_first(plans, objective)) if trials else None
    ranked = best_first([*plans, *(attempts.plans if attempts else ())], objective)
    answer = Plans(
        tuple(ranked[:top]), searched.space(), searched.gap(asked, ranked[0] if ranked else None), objective,
        searched_s, warnings=model.notes, techniques=None if attempts is None else attempts.to_dict(),
    )  # fmt: skip
    return _explained(asked, searched, ranked, answer) if ranked else _nothing_fits(asked, searched, answer)


def _plans(asked: Asked, searched: Searched) -> list[Planned]:
    """Those that the searches found, predicted."""
    progress = asked.trouble.most_progress if asked.trouble else None
    return [
        planned(
            asked.exact,
            asked.mixed or hardware,
            each.layout,
            asked.words,
            asked.price,
            each.score_ns / progress if progress else None,
        )
        for hardware, answer in searched.answers
        for each in answer.plans
        if each.score_ns < inf
    ]


def _with_techniques(asked: Asked, searched: Searched, ranked: Sequence[Planned]) -> TechniqueSearch:
    """Techniques on the best plans, and on the best with ZeRO 0 and 1: most techniques rewrite nothing else."""
    by_size = {size.n_gpus: size for size in asked.sizes}

    def rewritten(finalist: Planned, techniques: tuple[str, ...]) -> Planned | None:
        cluster, plan = by_size[finalist.n_gpus], checked(finalist.plan)
        result = predict_with(asked.model, cluster, plan, techniques)
        if result.status != "ok":
            return None
        return planned_as(result, cluster, plan, asked.words, asked.price, techniques=techniques)

    finalists = list(ranked[:FINALISTS])
    for n_gpus, (search, answer) in searched.best.items():
        if not answer.plans or asked.constraints.get("zero_stage") is not None:
            continue
        for zero in (0, 1):
            space = replace(search.space, fixed={**search.space.fixed, "zero_stage": zero}, counts={})
            plain = replace(search, space=space, listener=None).run(1, PLAINLY_WITHIN_S)
            finalists += [
                planned(asked.exact, by_size[n_gpus], each.layout, asked.words, asked.price) for each in plain.plans
            ]
    return try_techniques(best_first(finalists, asked.objective), asked.techniques, rewritten)


def _nothing_fits(asked: Asked, searched: Searched, answer: Plans) -> Plans:
    search = searched.whole[0][0]
    missed = search.misfits.nearest(NEAREST_TRIED)

    def predicted(cluster: Cluster, layout: Layout) -> Planned:
        return planned(asked.exact, cluster, layout, asked.words, None)

    mends = () if asked.mixed else remedies(asked.model, asked.cluster, asked.constraints, search, missed, predicted)
    answer = replace(answer, nearest=nearest(search, missed), remedies=mends)
    return replace(answer, seconds=monotonic() - asked.begun_s)


def _explained(asked: Asked, searched: Searched, ranked: list[Planned], answer: Plans) -> Plans:
    """The answer with what decides, what the rule of thumb loses, and what each choice is worth."""
    best, objective, by_time = ranked[0], asked.objective, asked.objective in BY_TIME
    worth = _choices(asked, searched, best.n_gpus) if by_time else ()
    size = next(size for size in asked.sizes if size.n_gpus == best.n_gpus)
    thumb = rule_of_thumb(Space(asked.model, size, asked.constraints, mixed=asked.mixed))
    by_thumb = None if thumb is None else planned(asked.exact, asked.mixed or size, thumb, asked.words, asked.price)
    if thumb is not None and by_thumb is not None and asked.trouble:
        score_ns = progress_score(asked.model, size, asked.trouble)(thumb, round(by_thumb.step_time_s * 1e9))
        by_thumb = replace(by_thumb, effective_step_time_s=score_ns / asked.trouble.most_progress / 1e9)
    return replace(
        answer,
        decides=decides(best, ranked[1], objective) if len(ranked) > 1 else "",
        told_apart=len(ranked) < 2 or told_apart(best, ranked[1], objective),
        rule_of_thumb=by_thumb,
        rule_of_thumb_loses="" if by_thumb is None else loses(by_thumb, best, objective),
        choices=worth,
        sensitivity=sensitivity(ranked, by_gpu=objective != "time") if by_time else (),
        launch=launch_files(best.plan, best.n_gpus, asked.model.name),
        front=pareto_front(ranked) if asked.front else (),
    )


def _choices(asked: Asked, searched: Searched, n_gpus: int) -> tuple[Choice, ...]:
    """What each single choice is worth; looked for on in the time that is left."""
    search, answer = searched.best[n_gpus]
    budget = Budget(LOOKS, inf if asked.within_s is None else asked.begun_s + asked.within_s)
    if asked.choices_within_s is not None:
        budget = Budget(sys.maxsize, monotonic() + asked.choices_within_s)
    return choices(search, answer.plans[0], budget)
