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

from windtunnel.errors import SpecError, UserError
from windtunnel.files.document import read_mapping
from windtunnel.physics.cost.power import least_joules
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.hardware.cluster import cluster_with
from windtunnel.physics.hardware.mixed import JOINED, MixedCluster, parse_mixed
from windtunnel.physics.model import Model, load_model
from windtunnel.physics.step.result import Result
from windtunnel.questions import read
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.typed import check, texts
from windtunnel.questions.words import command
from windtunnel.studies.planning.ahead import Exact
from windtunnel.studies.planning.answer import Planned, Plans
from windtunnel.studies.planning.bounds import Bounds
from windtunnel.studies.planning.choices import LOOKS, Budget, Choice, choices
from windtunnel.studies.planning.compared import decides, joules_ranked, loses, sensitivity, told_apart
from windtunnel.studies.planning.infeasible import NEAREST_TRIED, nearest, remedies
from windtunnel.studies.planning.objectives.by_stage import ByStage
from windtunnel.studies.planning.objectives.mixed_types import slower, slowest_of
from windtunnel.studies.planning.objectives.robust import Trouble, progress_score
from windtunnel.studies.planning.oracle import Layout, Plan, Replayed, checked, predict, straggling
from windtunnel.studies.planning.ranking import best_first, pareto_front
from windtunnel.studies.planning.search import Answer, Search, step_time
from windtunnel.studies.planning.space import Space, first_refusal
from windtunnel.studies.planning.techniques import TechniqueSearch, chosen, try_techniques
from windtunnel.studies.planning.thumb import rule_of_thumb
from windtunnel.studies.techniques import predict_with
from windtunnel.studies.training.launch import launch_files
from windtunnel.studies.training.plan import PLAN_FILE
from windtunnel.units import parse_count, parse_number, parse_time

Named = tuple[ModelPart, ClusterPart]  # model and cluster as a question names them
OBJECTIVES = ("time", "cost", "memory", "energy")
BY_TIME = ("time", "cost")  # which rank plans of as many GPUs alike
WITHIN_S = 60.0
HEAD_ROOM = 0.03  # of a device's memory: a plan that fills all of it does not always fit
HEADROOM_STEPS = 6  # points of a front over memory
TOP = 5
OF_ENERGY = 12  # fastest plans of different kinds whose energy is compared
SPARE = 2  # replays that a prediction of an answer may be worth
FINALISTS = 5  # plans that techniques are tried on
PLAINLY_WITHIN_S = 10.0
LEAST_WITHIN = 0.01  # how near to the least memory a search for it goes


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
    told: Callable[[Layout, Replayed], None] | None = None,
    exact: Exact | None = None,
    **fields: object,
) -> Plans:
    """The best plans, proven inside the space that `planning/space.py` states.

    `model`, `cluster`: as `predict` takes them. `plan` and `fields`: fields of a Plan that are fixed; `global_batch`
    and `seq_len` are needed. `gpus`: other numbers of GPUs, from the least to the most by doubling. `within_s`: stop
    early, with the proven gap; it holds what comes behind the search too, as far as that can be foreseen. `slow`,
    `mtbf_s`: rank by the step under these disturbances, and by the progress that failures of the job leave.
    `techniques`: `all`, `exact` (those that leave alone what is trained) or names, tried on the best plans
    (`planning/techniques.py`), after `within_s`. `choices_within_s`: how long to search on for what each single choice
    is worth, which is told by bounds then; if not given, a fixed number of looks, and no longer than `within_s`.
    `head_room`: share of a device's memory that a plan leaves free. `told` is called with each plan that is replayed,
    while the search runs. `exact`: who measures and replays single plans; this process if not given
    (`planning/ahead.py`). Raises UserError on a question that cannot be; where nothing fits the answer has no plans,
    but the nearest ones and what makes one fit.
    """
    check(locals(), pareto=bool)
    constraints = _fixed_fields(plan, fields)
    for name in ("lora_rank", "frozen"):
        if constraints.get(name):
            raise SpecError(name, constraints[name], "plans are searched for training of all weights: leave it out")
    if constraints.get("task", "train") != "train":
        raise SpecError("task", constraints["task"], "plans are searched for plain training: leave it out")
    words, slow = named or _names(model, cluster), texts("slow", slow)
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
    within_s = None if within_s is None else parse_time(within_s, "within_s")
    choices_within_s = None if choices_within_s is None else parse_time(choices_within_s, "choices_within_s")
    price = None if price_per_gpu_hour is None else parse_number(price_per_gpu_hour, "price_per_gpu_hour")
    trouble = Trouble(slow, None if mtbf_s is None else parse_time(mtbf_s, "mtbf_s"))
    start_s, exact = monotonic(), exact or Exact()
    sizes = [cluster] if gpus is None else _sizes(cluster, gpus)
    tried_on = list(sizes)
    if mixed is not None:
        tried_on.append(mixed.clusters_on_own_network()[0])  # stages that follow the types
    answers: list[tuple[Cluster, Answer]] = []
    searches: dict[int, tuple[Search, Answer]] = {}
    whole_space: dict[int, Search] = {}  # by answer
    least_bytes = inf  # that a plan may need, where memory is asked for
    refusal: UserError | None = None
    for number, hardware in enumerate(tried_on):
        by_stage = mixed is not None and number == len(sizes)
        space = Space(model, hardware, constraints, mixed=mixed, by_stage=by_stage)
        search_s, searches_to_come = None, len(tried_on) - number
        if within_s is not None:
            search_s = max(1.0, (within_s - (monotonic() - start_s)) / searches_to_come)
        ends = inf if search_s is None else monotonic() + search_s
        if search_s is not None and (pareto or objective == "memory"):
            search_s /= 2  # the rest finds plans that need less memory
        goal = (
            progress_score(model, hardware, trouble)
            if trouble
            else step_time
            if mixed is None
            else slowest_of(model, mixed)
        )
        if mixed is not None and by_stage:
            own = ByStage(mixed)
            search = Search(space, own, listener=told, memory=own.memory, step=own.step, head_room=head_room)
        else:
            search = Search(
                space, Bounds(straggling(hardware)), goal, listener=told,
                memory=exact.memory_bytes, step=exact.step_ns, soon=exact.soon, head_room=head_room,
            )  # fmt: skip
        most = max(top, OF_ENERGY) if objective == "energy" else top
        answer = search.run(most, search_s, spare=SPARE * (most + 1))
        if not answer.counts.structures:
            refusal = first_refusal(space) or refusal
            continue
        answers.append((hardware, answer))
        whole_space[id(answer)] = search
        incumbent = searches.get(hardware.n_gpus)
        if incumbent is None or _best_ns(answer) < _best_ns(incumbent[1]):
            searches[hardware.n_gpus] = (search, answer)
        if pareto and answer.plans:
            answers += [(hardware, more) for more in _with_headroom(search, answer, ends)]
        if objective == "memory":
            smaller, least = _least_memory(search, answer, ends)
            answers += [(hardware, more) for more in smaller]
            least_bytes = min(least_bytes, least)
    if not answers:
        raise refusal or UserError(f"no plan of {cluster.n_gpus} GPUs divides the batch and the model")
    plans = [
        _planned(
            exact,
            mixed or hardware,
            each.layout,
            words,
            price,
            each.score_ns / trouble.most_progress if trouble else None,
        )
        for hardware, answer in answers
        for each in answer.plans
        if each.score_ns < float("inf")
    ]
    ranked = best_first(plans, objective)
    searched_s = monotonic() - start_s
    attempts: TechniqueSearch | None = None
    by_size = {size.n_gpus: size for size in sizes}
    if trials:

        def rewritten(finalist: Planned, words_of: tuple[str, ...]) -> Planned | None:
            cluster = by_size[finalist.n_gpus]
            result = predict_with(model, cluster, checked(finalist.plan), words_of)
            if result.status != "ok":
                return None
            return _answer(result, cluster, checked(finalist.plan), words, price, None, words_of)

        finalists = ranked[:FINALISTS]
        for gpus_of_it, (search, answer) in searches.items():
            if answer.plans and constraints.get("zero_stage") is None:
                finalists += _plainly_sharded(search, exact, by_size[gpus_of_it], words, price)
        attempts = try_techniques(best_first(finalists, objective), trials, rewritten)
        ranked = best_first([*plans, *attempts.plans], objective)
    main = next(
        (answer for hardware, answer in answers if ranked and hardware.n_gpus == ranked[0].n_gpus), answers[0][1]
    )
    worth: tuple[Choice, ...] = ()
    if ranked and objective in BY_TIME:
        search, answer = searches[ranked[0].n_gpus]
        worth = choices(
            search, answer.plans[0], _budget(choices_within_s, None if within_s is None else start_s + within_s)
        )
    # Of searches of the whole space alone: those with less memory are over the same plans again.
    whole = [(hardware.n_gpus, answer) for hardware, answer in answers if id(answer) in whole_space]
    space_counts = {
        "legal": sum(answer.counts.legal for _, answer in whole),
        "replayed": sum(answer.counts.replayed for _, answer in whole),
        "excluded_by_memory": sum(answer.counts.memory for _, answer in whole),
        "structures": sum(answer.counts.structures for _, answer in whole),
    }
    space_counts["bounded"] = space_counts["legal"] - space_counts["replayed"]
    gaps = [_gap([answer for gpus, answer in whole if gpus == size]) for size, _ in whole]
    gap = max(gaps)
    if ranked and objective == "memory":
        gap = max(0.0, 1.0 - least_bytes / ranked[0].peak_memory_bytes)
    if ranked and objective == "energy":
        bounds_s = [
            (size, answer.bound_ns / 1e9 / (trouble.most_progress if trouble else 1.0)) for size, answer in whole
        ]
        gap = _energy_gap(ranked[0], mixed or cluster, bounds_s)
    result = Plans(
        tuple(ranked[:top]), space_counts, gap, objective, searched_s,
        warnings=model.notes, techniques=None if attempts is None else attempts.to_dict(),
    )  # fmt: skip
    if not ranked:
        search = whole_space[id(main)]
        missed = search.misfits.nearest(NEAREST_TRIED)

        def predicted(other: Cluster, layout: Layout) -> Planned:
            return _planned(exact, other, layout, words, None, None)

        result = replace(
            result,
            nearest=nearest(search, missed),
            remedies=remedies(model, cluster, constraints, search, missed, predicted) if mixed is None else (),
        )
        return replace(result, seconds=monotonic() - start_s)
    size = by_size[ranked[0].n_gpus]
    thumb = rule_of_thumb(Space(model, size, constraints, mixed=mixed))
    thumb_planned = None if thumb is None else _planned(exact, mixed or size, thumb, words, price, None)
    if thumb is not None and thumb_planned is not None and trouble:
        score_ns = progress_score(model, size, trouble)(thumb, round(thumb_planned.step_time_s * 1e9))
        thumb_planned = replace(thumb_planned, effective_step_time_s=score_ns / trouble.most_progress / 1e9)
    return replace(
        result,
        decides=decides(ranked[0], ranked[1], objective) if len(ranked) > 1 else "",
        told_apart=len(ranked) < 2 or told_apart(ranked[0], ranked[1], objective),
        rule_of_thumb=thumb_planned,
        rule_of_thumb_loses="" if thumb_planned is None else loses(thumb_planned, ranked[0], objective),
        choices=worth,
        sensitivity=sensitivity(ranked, by_gpu=objective != "time") if objective in BY_TIME else (),
        launch=launch_files(ranked[0].plan, ranked[0].n_gpus, model.name),
        front=pareto_front(ranked) if pareto or gpus is not None else (),
    )


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


def _budget(choices_within_s: float | None, ends_s: float | None) -> Budget:
    if choices_within_s is not None:
        return Budget(sys.maxsize, monotonic() + choices_within_s)
    return Budget(LOOKS, float("inf") if ends_s is None else ends_s)


def _fixed_fields(
    plan: Plan | str | Path | Mapping[str, object] | None, fields: Mapping[str, object]
) -> dict[str, object]:
    """The fields that are fixed. Raises as `predict` does on one that cannot be."""
    if isinstance(plan, Plan):
        plan = plan.stated()
    elif isinstance(plan, str | Path):
        plan = read_mapping(plan, PLAN_FILE)
    elif plan is not None and not isinstance(plan, Mapping):
        raise SpecError("plan", plan, "give a mapping of its fields, or the path of a YAML file")
    constraints = {name: value for name, value in {**(plan or {}), **fields}.items() if value is not None}
    for name in ("global_batch", "seq_len"):
        if name not in constraints:
            raise UserError(f"{name} is not given: add --{name.replace('_', '-')} N, or put it in the plan file")
    checked_plan = checked(constraints)
    return {name: getattr(checked_plan, name) for name in constraints}


def _sizes(cluster: Cluster, gpus: tuple[int, int]) -> list[Cluster]:
    two = isinstance(gpus, Sequence) and not isinstance(gpus, str) and len(gpus) == 2
    least, most = (parse_count(gpu, "gpus") for gpu in gpus) if two else (1, 0)
    if least > most:
        text = f"{least}..{most}" if two else gpus
        raise SpecError("gpus", text, "give the least and the most, e.g. 512..4096")
    clusters, count = [], least
    while count <= most:
        clusters.append(cluster_with(cluster, n_gpus=count))
        count *= 2
    return clusters


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


def _plainly_sharded(
    search: Search, exact: Exact, cluster: Cluster, words: Named | None, price: float | None
) -> list[Planned]:  # fmt: skip
    """The best plans with ZeRO 0 and 1: most techniques rewrite nothing else."""
    plans = []
    for zero in (0, 1):
        space = replace(search.space, fixed={**search.space.fixed, "zero_stage": zero}, counts={})
        answer = replace(search, space=space, listener=None).run(1, PLAINLY_WITHIN_S)
        plans += [_planned(exact, cluster, candidate.layout, words, price, None) for candidate in answer.plans]
    return plans


def _planned(
    exact: Exact,
    cluster: Cluster | MixedCluster,
    layout: Layout,
    words: Named | None,
    price: float | None,
    score_ns: float | None,
) -> Planned:
    plain = isinstance(cluster, Cluster)
    result = exact.predicted(layout) if plain else predict(layout.model, cluster, layout.user_plan)
    return _answer(result, cluster, layout.user_plan, words, price, score_ns)


def _answer(
    result: Result, cluster: Cluster | MixedCluster, plan: Plan, words: Named | None, price: float | None,
    score_ns: float | None, techniques: tuple[str, ...] = (),
) -> Planned:  # fmt: skip
    seconds, tokens = result.step_time_s, result.tokens_per_step
    hours = cluster.n_gpus * seconds / 3600.0 / (tokens / 1e6)
    question = read(result.question)
    if words is not None:
        model, machine = words
        question = replace(question, model=model, cluster=cluster_of_size(machine, cluster.n_gpus))
    return Planned(
        plan=plan.stated(),
        n_gpus=cluster.n_gpus,
        step_time_s=seconds,
        p5_s=result.step_time_p5_ns / 1e9,
        p95_s=result.step_time_p95_ns / 1e9,
        peak_memory_bytes=result.peak_memory.device_bytes,
        memory_capacity_bytes=result.memory_capacity_bytes,
        tokens_per_s=result.tokens_per_s,
        mfu=result.mfu,
        gpu_hours_per_million_tokens=hours,
        reproduce=command(question),
        breakdown_s={name: value / 1e9 for name, value in result.breakdown_ns.items()},
        cost_per_million_tokens=None if price is None else hours * price,
        effective_step_time_s=None if score_ns is None else score_ns / 1e9,
        tokens_per_joule=tokens / (seconds * cluster.n_gpus * result.gpu_watts),
        techniques=techniques,
    )


def _names(model: object, cluster: object) -> Named | None:
    """How model and cluster were named, where they were."""
    if not isinstance(model, str) or not isinstance(cluster, str):
        return None
    return ModelPart(base=model), ClusterPart(base=cluster)


def cluster_of_size(part: ClusterPart, n_gpus: int) -> ClusterPart:
    """The cluster with another number of GPUs; several types have each a number of their own."""
    base = part.base or ""
    head, colon, count = base.rpartition(":")
    return replace(part, base=f"{head}:{n_gpus}") if colon and count.isdigit() and JOINED not in base else part
