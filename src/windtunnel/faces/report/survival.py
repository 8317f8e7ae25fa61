"""What failures cost a job, as views; policies on spot machines; and who of a running job hangs or is slow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from windtunnel.real.survive.watch.verdict import Verdict
from windtunnel.studies.resilience import PolicyEntry, Survival
from windtunnel.studies.resilience.run import Episode
from windtunnel.studies.resilience.spot import SpotAnswer
from windtunnel.studies.resilience.spot.study import SpotEntry
from windtunnel.units import format_many
from windtunnel.views import (
    Axis,
    Bar,
    Bars,
    Cell,
    Column,
    Curve,
    Document,
    Field,
    Figure,
    Figures,
    Grid,
    Headline,
    Heat,
    Lane,
    Lanes,
    Notes,
    Number,
    Part,
    Series,
    Span,
    Table,
    View,
    table_of,
)
from windtunnel.views.text import plain, text_of

COLOURS = {
    "productive": "optimizer-0",
    "checkpoint stall": "memory-0",
    "lost work": "comm-2",
    "detect": "comm-0",
    "localise": "comm-3",
    "schedule": "comm-1",
    "groups": "host-0",
    "warm-up": "host-1",
    "load": "memory-1",
    "fewer machines": "waiting-0",
    "slow hosts": "waiting-2",
}
LOSSES = {  # in a sentence, where the name of the part is a verb
    "detect": "detection",
    "localise": "finding the machine",
    "schedule": "waiting for a machine",
    "groups": "making the groups anew",
    "load": "loading the state",
}
EPISODES_SHOWN = 400
RANKS_SHOWN = 16


def survival_document(answer: Survival, model: str = "") -> Document:
    """Everything that there is to see of policies on the same failures, the best one first."""
    job = answer.asked
    entries = sorted(answer.entries, key=lambda policy_entry: (-policy_entry.ettr, answer.entries.index(policy_entry)))
    gpus = format_many(job.gpus, "GPU")
    days = f"{job.days:g} day{'' if job.days == 1 else 's'}"
    return Document(
        "survival",
        f"{model} on {gpus} for {days}" if model else f"{gpus} for {days}",
        list(_views(answer, entries)),
        list(_details(answer, entries)),
        f"{format_many(job.replicas, 'replica')} of {format_many(job.stages, 'stage')}"
        f" · failures {plain(job.process.name)} ({plain(job.process.source)}) · {format_many(job.seeds, 'run')}",
    )


def _share(entry: PolicyEntry) -> Number:
    return Number(entry.ettr, "share", entry.ettr_p5, entry.ettr_p95)


def _views(answer: Survival, entries: Sequence[PolicyEntry]) -> Iterator[View]:
    best, worst, first = entries[0], entries[-1], answer.entries[0]
    loss = max((part for part in best.waterfall if part != "productive"), key=lambda part: best.waterfall[part])
    most = best.waterfall[loss] / answer.wall_s
    beside = f", {text_of(worst.ettr, 'share')} with {worst.policy}" if worst is not best else ""
    text = f"; the largest loss is {LOSSES.get(loss, loss)}, {text_of(most, 'share')}" if most > 0 else ""
    if answer.mttf_s == math.inf and not first.planned:
        beside = text = ""  # all policies do the same: save
    verdict = f"With {best.policy}, training goes on {text_of(best.ettr, 'share')} of the time{beside}{text}."
    yield Headline(verdict, "good")
    planned = f", and {first.planned:,.0f} planned" if first.planned else ""
    every = "nothing fails"
    if math.isfinite(answer.mttf_s):
        every = f"one every {text_of(answer.mttf_s, 's')}{planned}"
    elif planned:
        every += planned
    if every != "nothing fails":
        every += f"; 80 % of runs: {first.interruptions_p10:,.0f} to {first.interruptions_p90:,.0f}"
    of_all = f"of {text_of(best.gpu_hours, 'count')}"
    stall = f"a stall of {text_of(best.checkpoint_stall_s, 's')}"
    money = [] if best.cost_usd is None else [Figure("cost", Number(best.cost_usd, "$"))]
    yield Figures(
        [
            Figure("effective training time", _share(best), f"with {best.policy}"),
            Figure("interruptions", Number(round(first.interruptions, 2 if first.interruptions < 10 else None)), every),
            Figure("GPU-hours wasted", Number(best.gpu_hours_wasted, "count"), of_all),
            Figure("save every", Number(best.checkpoint_interval_s, "s"), stall),
            *money,
        ]
    )  # fmt: skip
    yield _policies(entries)
    yield Bars("Where the wall time goes (mean run)", "s", [_waterfall(entry) for entry in entries])


def _policies(entries: Sequence[PolicyEntry]) -> Table:
    fields: list[Field[PolicyEntry]] = [
        *(("policy", "text", "policy"), ("effective time", "share", _share), ("closed form", "share", "ettr_exact")),
        *(("linear", "share", "ettr_linear"), ("save every", "s", "checkpoint_interval_s")),
        *(("standbys", "count", "standbys"), ("GPU-hours wasted", "count", "gpu_hours_wasted")),
        *(("tokens/s", "count", "tokens_per_s"), ("cost", "$", "cost_usd")),
    ]
    note = "best first; in brackets 5 and 95 % of the runs"
    return table_of("Policies, on the same failures", entries, fields, note)


def _waterfall(entry: PolicyEntry) -> Bar:
    return Bar(
        entry.policy,
        [Part(part, entry.waterfall[part], slot) for part, slot in COLOURS.items() if entry.waterfall[part] > 0],
    )


def _details(answer: Survival, entries: Sequence[PolicyEntry]) -> Iterator[View]:
    parts = [part for part in COLOURS if any(entry.waterfall[part] > 0 for entry in entries)]
    rows: list[tuple[Cell, ...]] = [
        (part, *(entry.waterfall[part] / answer.wall_s for entry in entries)) for part in parts
    ]
    columns = [Column(""), *(Column(entry.policy, "share") for entry in entries)]
    yield Table("Share of the wall time", columns, rows, most=len(rows))
    causes = sorted(entries[0].interruptions_by_cause.items(), key=lambda item: (-item[1], item[0]))
    bars = [Bar(name, [Part(name, count, "comm-2")]) for name, count in causes if count]
    yield Bars("Interruptions by cause (mean run)", "count", bars)
    own = f"closed form, each with its own best interval; asked: {format_many(answer.asked.gpus, 'GPU')}"
    for what, axis, curve, note in (
        ("GPUs", Axis("GPUs", "count", log=True), "scale_curve", own),
        ("checkpoint interval", Axis("interval", "s", log=True), "interval_curve", "closed form"),
    ):
        series = _series(entries, curve)
        up = Axis("effective time", "share", low=_floor([value for line in series for value in line.y]), high=1.0)
        yield Curve(f"Effective training time by {what}", axis, up, series, note=note)
    series = _series([entry for entry in entries if entry.standby_curve], "standby_curve")
    yield Curve("Machines' worth of time lost by standbys", Axis("standbys", "count"), Axis("machines", ""), series)
    lanes = [Lane(entry.policy, [_span(stop) for stop in _longest(entry.stops)]) for entry in entries]
    yield Lanes(
        "The first run: what was not productive", lanes, f"the longest {EPISODES_SHOWN} stretches of each policy"
    )


def _series(entries: Sequence[PolicyEntry], curve: str) -> list[Series]:
    """A line for each policy through the points of one of its curves."""
    points = {entry.policy: getattr(entry, curve) for entry in entries}
    return [Series(policy, [float(at[0]) for at in own], [at[1] for at in own]) for policy, own in points.items()]


def _floor(shares: Sequence[float]) -> float:
    """A tenth at or below them all."""
    return min(math.floor(min(shares, default=0.0) * 10) / 10, 0.9)


def _span(stop: Episode) -> Span:
    return Span(
        stop.begin_ns / 1e9, stop.end_ns / 1e9, stop.cause or stop.part, stop.part, COLOURS.get(stop.part, "line-7")
    )


def _longest(stops: Sequence[Episode]) -> list[Episode]:
    longest = sorted(_joined(stops), key=lambda each: (each.begin_ns - each.end_ns, each.begin_ns))[:EPISODES_SHOWN]
    return sorted(longest, key=lambda episode: episode.begin_ns)


def _joined(episodes: Sequence[Episode]) -> list[Episode]:
    """Phases of one recovery as one stop, named by the longest."""
    joined: list[Episode] = []
    longest_ns = 0
    for each in episodes:
        length = each.end_ns - each.begin_ns
        if joined and joined[-1].end_ns == each.begin_ns and joined[-1].cause == each.cause:
            part = each.part if length > longest_ns else joined[-1].part
            joined[-1] = Episode(joined[-1].begin_ns, each.end_ns, part, each.cause)
            longest_ns = max(longest_ns, length)
        else:
            joined.append(each)
            longest_ns = length
    return joined


def spot_document(answer: SpotAnswer) -> Document:
    """Policies on machines that are taken away."""
    nodes = [minute.nodes for minute in answer.trace.minutes]
    went = sum(minute.removed for minute in answer.trace.minutes)
    best = max(answer.entries, key=lambda spot_entry: spot_entry.samples)
    others = [entry for entry in answer.entries if entry is not best]
    beside = "".join(f", {entry.policy} {text_of(entry.samples, 'count')}" for entry in others)
    fields: list[Field[SpotEntry]] = [
        *(("policy", "text", "policy"), ("samples", "count", "samples")),
        *(("samples/s", "", lambda entry: entry.samples / answer.wall_s), ("effective time", "share", "ettr")),
        *(("moving", "s", lambda entry: entry.waterfall["moving"]), ("node-hours", "", "node_hours")),
        (
            "samples per node-hour",
            "count",
            lambda entry: entry.samples / entry.node_hours if entry.node_hours else None,
        ),
        *(("cost", "$", "cost_usd"), ("per million samples", "$", "usd_per_million_samples")),
    ]
    knows = "the future" if answer.forecast == "known" else "nothing of the future"
    minutes = [60.0 * at for at in range(len(nodes))]
    views: list[View] = [
        Headline(f"{best.policy} trains {text_of(best.samples, 'count')} samples{beside}.", tone="good"),
        table_of("Policies, on the same machines", answer.entries, fields),
        Notes("Look-ahead", [f"parcae looks {answer.look_ahead} decisions ahead and knows {knows}"]),
    ]
    machines = Series("machines", minutes, [float(node) for node in nodes], form="steps")
    curve = Curve("Machines there", Axis("time", "s"), Axis("machines", "count"), [machines])
    title = f"{answer.model} on {min(nodes)} to {max(nodes)} spot machines for {text_of(answer.wall_s, 's')}"
    return Document("survival on spot machines", title, views, [curve], f"{went:,} of them taken away")


def verdict_document(answer: Verdict) -> Document:
    """Who is to blame, and own time by rank and segment."""
    first = answer.culprits[0].sentence if answer.culprits else "Nobody hangs, and nobody is slow."
    names = sorted({name for parts in answer.own_s.values() for name in parts})
    blamed = {culprit.rank for culprit in answer.culprits}
    ranks = sorted(answer.own_s)
    order = sorted(ranks, key=lambda rank: (rank not in blamed, -sum(answer.own_s[rank].values()), rank))
    views: list[View] = [Headline(first, tone="bad" if answer.culprits else "good")]
    views.append(Notes("Also", [culprit.sentence for culprit in answer.culprits[1:]], "warn"))
    rows: list[tuple[Cell, ...]] = [
        (f"{rank}", *(answer.own_s[rank].get(name, 0.0) for name in names)) for rank in order
    ]
    columns = [Column("rank"), *(Column(name, "s") for name in names)]
    views.append(Table("Own time by rank", columns, rows, most=RANKS_SHOWN))
    typical = {name: median([parts.get(name, 0.0) for parts in answer.own_s.values()]) for name in names}
    step = answer.step_s or 1.0
    values = [max(0.0, answer.own_s[rank].get(name, 0.0) - typical[name]) / step for rank in ranks for name in names]
    sentences = {(culprit.rank, culprit.where): culprit.sentence for culprit in answer.culprits}
    texts = [
        (at * len(names) + row, sentences[rank, name])
        for at, rank in enumerate(ranks)
        for row, name in enumerate(names)
        if (rank, name) in sentences
    ]
    details: list[View] = []
    if values:
        what = "above the median, of the step"
        sides = Grid("rank", len(ranks), [f"rank {rank}" for rank in ranks]), Grid("segment", len(names), names)
        details.append(Heat("Ranks and segments", *sides, values, what, "share", 0.0, max(*values, 0.01), texts))
    return Document("watch", "Who waits for whom", views, details, f"step {text_of(answer.step_s, 's')}")
