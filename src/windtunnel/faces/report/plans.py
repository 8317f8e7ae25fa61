"""Ranked plans as views: the best plan, what decides, time against memory, and what each choice is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby
from typing import Any

from windtunnel.studies.planning.answers.choices import Choice
from windtunnel.studies.planning.answers.compared import field_words
from windtunnel.studies.planning.answers.plans import Miss, Planned, Plans, Remedy
from windtunnel.views import (
    Axis,
    Bar,
    Bars,
    Column,
    Curve,
    Document,
    Field,
    Figure,
    Figures,
    Files,
    Headline,
    Notes,
    Number,
    Part,
    Table,
    View,
    points_of,
    table_of,
)
from windtunnel.views.text import text_of

HIDDEN = ("global_batch", "seq_len", "framework")


def plans_document(
    answer: Plans, title: str = "Plans", address: Callable[[Planned], str] = lambda plan: ""
) -> Document:
    """What a search found. `address`: where a page looks at a plan; "": nowhere."""
    if answer.status == "infeasible":
        return Document("plans", title, list(_nothing_fits(answer)))
    return Document("plans", title, list(_views(answer, address)), list(_details(answer)), command=answer[0].reproduce)


def _views(answer: Plans, address: Callable[[Planned], str]) -> Iterator[View]:
    best = answer[0]
    yield Headline(
        f"{words_of(best)}: {text_of(best.step_time_s, 's')} a step, {text_of(best.mfu, 'share')} MFU. {proof(answer)}",
        "good",
    )
    room = best.memory_capacity_bytes - best.peak_memory_bytes
    yield Figures(
        [
            Figure("step time", _step(best)),
            Figure("throughput", Number(best.tokens_per_s, "tokens/s"), f"{best.n_gpus:,} GPUs"),
            Figure("MFU", Number(best.mfu, "share")),
            Figure("peak memory", Number(best.peak_memory_bytes, "B"), f"{text_of(room, 'B')} left"),
        ]
    )
    yield _ranked(answer, address)
    sizes = {plan.n_gpus: plan for plan in reversed(answer.front)}  # of each the fastest, which stands first
    if len(sizes) > 1:
        rows = [sizes[n_gpus] for n_gpus in sorted(sizes)]
        note = "without those that another number beats in time, cost and memory"
        yield _front(rows, "The fastest on each number of GPUs", note, len(rows))
    lines = [f"What decides: {answer.decides}."] if answer.decides else []
    thumb = answer.rule_of_thumb
    lines += [] if thumb is None else [f"Rule of thumb: {words_of(thumb)}: {answer.rule_of_thumb_loses}."]
    yield Notes("Why this one", [*lines, _searched(answer)])


def _front(plans: Sequence[Planned], title: str, note: str, most: int) -> Table:
    fields: list[Field[Planned]] = [
        *(("plan", "text", words_of), ("GPUs", "count", "n_gpus"), ("step", "s", "step_time_s")),
        *(("GPU-h/M tokens", "", "gpu_hours_per_million_tokens"), ("memory", "B", "peak_memory_bytes")),
    ]
    return table_of(title, plans, fields, note, most=most)


def _details(answer: Plans) -> Iterator[View]:
    yield from _picture(answer)
    yield from _choices(answer.choices)
    if answer.sensitivity:
        yield Notes("Another plan wins with", [f"{price}: {winner}" for price, winner in answer.sensitivity])
    if answer.front:
        note = "no plan that was found is better in time, cost and memory at once"
        yield _front(answer.front, "The front", note, 30)
    if answer.techniques is not None:
        trials = answer.techniques
        text = (
            f"{trials['predicted']} predictions on the {trials['finalists']} best plans, {trials['unfit_pairs']} sets"
            " that do not go together left out; the proof is of plans without any"
        )
        skipped = [f"{name} cannot be tried: {reason}" for name, reason in trials["skipped"].items()]
        yield Notes("Techniques", [text, *skipped])
    if answer.launch:
        yield Files("To run the best plan", list(answer.launch.items()))


def _step(plan: Planned) -> Number:
    return Number(plan.step_time_s, "s", plan.p5_s, plan.p95_s)


def _ranked(answer: Plans, address: Callable[[Planned], str]) -> Table:
    number = count(1)
    fields: list[Field[Planned]] = [
        *(("rank", "count", lambda _: next(number)), ("plan", "text", words_of), ("GPUs", "count", "n_gpus")),
        *(
            ("step", "s", "step_time_s"),
            ("p5", "s", "p5_s"),
            ("p95", "s", "p95_s"),
            ("memory", "B", "peak_memory_bytes"),
        ),
        *(("MFU", "share", "mfu"), ("GPU-h/M tokens", "", "gpu_hours_per_million_tokens")),
        ("per M tokens", "$", "cost_per_million_tokens"),
        ("tokens/J", "", lambda plan: plan.tokens_per_joule if answer.objective == "energy" else None),
        ("under trouble", "s", "effective_step_time_s"),
    ]
    links = [address(plan) for plan in answer.plans]
    return replace(table_of("Best plans", answer.plans, fields), links=links if any(links) else ())


def _searched(answer: Plans) -> str:
    space = answer.space
    unseen = "by a bound on time" if answer.gap == 0 else "by a bound on time or not reached"
    return (
        f"{space['legal']:,} legal plans of {space['structures']:,} structures; {space['replayed']:,} replayed event by"
        f" event, {space['excluded_by_memory']:,} excluded by memory,"
        f" {space['bounded'] - space['excluded_by_memory']:,} {unseen}. {proof(answer)} Searched for"
        f" {answer.seconds:.1f} s."
    )


def _picture(answer: Plans) -> Iterator[Curve]:
    """Time against memory: the best, the front, the others and the rule of thumb."""
    best, front = answer[0], {plan.reproduce for plan in answer.front}
    groups: dict[str, list[Planned]] = {"best": [best], "front": [], "others": [], "rule of thumb": []}
    shown = {plan.reproduce: plan for plan in (*answer.front, *answer.plans) if plan.reproduce != best.reproduce}
    for plan in shown.values():
        groups["front" if plan.reproduce in front else "others"].append(plan)
    if answer.rule_of_thumb is not None:
        groups["rule of thumb"].append(answer.rule_of_thumb)
    series = points_of(groups, lambda plan: plan.step_time_s, lambda plan: float(plan.peak_memory_bytes), words_of)
    if len(shown) + len(groups["rule of thumb"]) > 0:
        yield Curve("Time and memory", Axis("step time", "s"), Axis("peak memory", "B"), series)


def _choices(choices: Sequence[Choice]) -> Iterator[View]:
    """What the next best value of each field costs, with all else chosen again; then what bounds say of others."""
    exact = [choice for choice in choices if choice.exact]
    if exact:
        bars = [
            Bar(words({choice.field: choice.value}), [Part("slower by", max(choice.regret, 0.0), "line-0")])
            for choice in exact
        ]
        yield Bars("Other choices, with all else chosen again: slower by", "share", bars)
    bounded = [choice for choice in choices if not choice.exact and choice.regret > 0]
    if bounded:
        lines = [
            f"{field_words(field)}: "
            + ", ".join(f"{value_words(choice.value)} {text_of(choice.regret, 'share')}" for choice in of_field)
            for field, of_field in groupby(
                sorted(bounded, key=lambda choice: choice.field), key=lambda choice: choice.field
            )
        ]
        yield Notes("Others are slower by at least", lines)
    unknown = [words({choice.field: choice.value}) for choice in choices if not choice.exact and choice.regret <= 0]
    if unknown:
        yield Notes("Not told apart from the best", [", ".join(unknown)])


def _nothing_fits(answer: Plans) -> Iterator[View]:
    legal = answer.space["legal"]
    remedy = min(answer.remedies, key=lambda remedy: remedy.planned.step_time_s, default=None)
    help_ = (
        "" if remedy is None else f" {remedy.change} makes one fit: {text_of(remedy.planned.step_time_s, 's')} a step."
    )
    begin = (
        f"Nothing that fits was found in the time given, among {legal:,} legal plans."
        if answer.gap
        else f"Nothing fits: none of {legal:,} legal plans."
    )
    yield Headline(begin + help_, tone="bad")
    misses: list[Field[Miss]] = [
        *(
            ("plan", "text", lambda miss: words(miss.plan)),
            ("needs", "B", "needed_bytes"),
            ("of", "B", "capacity_bytes"),
        ),
        ("too much", "B", lambda miss: miss.needed_bytes - miss.capacity_bytes),
    ]
    yield table_of("The nearest", answer.nearest, misses)
    remedies: list[Field[Remedy]] = [
        *(("change", "text", "change"), ("plan", "text", lambda remedy: words_of(remedy.planned))),
        *(("step", "s", "planned.step_time_s"), ("memory", "B", "planned.peak_memory_bytes")),
    ]
    yield table_of("What makes one fit, each predicted", answer.remedies, remedies)


def cuts_document(answer: Mapping[str, Any]) -> Document:
    """Cuts of a captured script. `answer`: as `plan_captured` gives it."""
    fits, space = answer["status"] == "ok", answer["space"]
    plans = answer["plans"] if fits else answer["nearest"]
    best = plans[0]
    units = {"stages": "count", "replicas": "count", "micro-batches": "count", "units of each stage": "text"}
    columns = [Column(*pair) for pair in (units | dict.fromkeys(("step", "p5", "p95"), "s") | {"memory": "B"}).items()]
    rows = [
        (
            plan["plan"]["pp"], plan["plan"]["dp"], plan["plan"]["micro_batches"],
            ",".join(map(str, plan["plan"]["layers_per_stage"])), plan["step_time_s"], plan["p5_s"], plan["p95_s"],
            plan["peak_memory_bytes"],
        )
        for plan in plans
    ]  # fmt: skip
    stages = [
        (f"{stage['first']} to {stage['last']}", stage["units"], stage["micro_batch_s"], stage["memory_bytes"])
        for stage in best["stages"]
    ]
    cut = f"{best['plan']['pp']} stages of {best['plan']['dp']} replicas"
    verdict = (
        f"{cut}: {text_of(best['step_time_s'], 's')} a step."
        if fits
        else f"Nothing fits: none of {space['legal']} numbers of stages. The nearest: {cut}."
    )
    stage_columns = (Column("stage"), Column("units", "count"), Column("a micro-batch", "s"), Column("memory", "B"))
    how = (
        f"{space['legal']} numbers of stages and replicas, each cut by dynamic programming and walked through;"
        f" {answer['seconds']:.1f} s."
    )
    views: list[View] = [
        Headline(verdict, "good" if fits else "bad"),
        Table("Best cuts" if fits else "The nearest", columns, rows),
        Table("Stages of the first", stage_columns, stages, most=len(stages)),
        Notes("Assumed", [how, *answer["assumed"]]),
    ]
    return Document("plans", "Cuts of a captured script", views, command=best["reproduce"])


def words(plan: Mapping[str, object]) -> str:
    """A plan in short."""
    fields = (f"{field_words(name)} {value_words(value)}" for name, value in plan.items() if name not in HIDDEN)
    return " · ".join(fields) or "data-parallel"


def words_of(plan: Planned) -> str:
    """A plan with its techniques, in short."""
    return " + ".join([words(plan.plan), *plan.techniques])


def proof(answer: Plans) -> str:
    """How sure the answer is, in one sentence."""
    gap = answer.gap
    if answer.objective == "memory":
        stopped = "Stopped early: another plan may need less memory."
        return stopped if gap >= 1.0 else f"No plan of this space needs over {gap:.2%} less memory."
    if answer.objective == "energy":
        return f"The least energy of the fastest plans; no plan of this space takes over {gap:.2%} less."
    return "Optimal in this space." if gap == 0 else f"Stopped early: the best plan could be {gap:.2%} faster."


def value_words(value: object) -> str:
    """One value of a plan; of several that are alike, how many."""
    if isinstance(value, list | tuple):
        runs = [(member, len(list(same))) for member, same in groupby(value)]
        return ",".join(f"{member}*{times}" if times > 2 else ",".join([str(member)] * times) for member, times in runs)
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
