"""A fleet as views: policies side by side, GPUs in use over time, jobs that waited; and when one job starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from windtunnel.faces.report.fleet_verdict import best_of, jobs_left_out, verdict_of
from windtunnel.studies.fleet.flows.study import FlowsStudy
from windtunnel.studies.fleet.jobs.lint import LintAnswer
from windtunnel.studies.fleet.live.study import LiveRun
from windtunnel.studies.fleet.outcome import ON_FLAVOR, Floats, Outcome
from windtunnel.studies.fleet.packing.study import PackAnswer
from windtunnel.studies.fleet.sharing.study import OnLink, Shared, slower_of
from windtunnel.studies.fleet.study import FleetAnswer, FleetResult, left_out
from windtunnel.studies.fleet.when import When, WhenAnswer
from windtunnel.units import format_many
from windtunnel.views import (
    Axis,
    Cell,
    Column,
    Curve,
    Document,
    Field,
    Figure,
    Figures,
    Headline,
    Lane,
    Lanes,
    Notes,
    Number,
    Series,
    Span,
    Table,
    View,
    table_of,
)
from windtunnel.views.text import plain, text_of, texts_of

Amount = float | int | str | None
CALENDAR_S = 1e9  # a later moment is one since 1970 (September 2001)
ROWS = (  # measure, key of the figures, unit
    ("mean JCT", "jct_mean_s", "s"),
    ("p50 JCT", "jct_p50_s", "s"),
    ("p99 JCT", "jct_p99_s", "s"),
    ("mean queueing delay", "queueing_delay_mean_s", "s"),
    ("makespan", "makespan_s", "s"),
    ("utilisation", "utilisation", "share"),
    ("mean wait against the log's", "log_wait_error", "share"),
    ("median error of a start", "log_start_error_p50_s", "s"),
    ("restarts", "restarts", "count"),
    ("deadlines met, by log", "deadline_met_by_log", "share"),
    ("deadlines met, scored", "deadline_met_scored", "share"),
    ("worst finish-time fairness", "finish_time_fairness_max", "x"),
    ("GPU-hours lost to failures", "failure_lost_gpu_hours", ""),
    ("  work undone", "failure_undone_gpu_hours", ""),
    ("  restarts after them", "failure_restart_gpu_hours", ""),
    ("GPU-hours that were not there", "down_gpu_hours", ""),
    ("jobs stopped by failures", "job_failures", "count"),
    ("preempted GPU-hours", "preempted_gpu_hours", ""),
    ("use of own GPUs", "use_of_own", "share"),
    ("use of all GPUs", "use_of_all", "share"),
    ("requests late, with loans", "loan_violations", "share"),
    ("requests late, without", "loan_violations_alone", "share"),
    ("cost", "cost", "$"),
    ("GB moved", "moved_gb", ""),
    ("GB of secrets moved", "secret_gb", ""),
    ("jobs outside", "outside_jobs", "count"),
    ("use of machines", "machine_use", "share"),
    ("requested of machines", "machine_requested", "share"),
    ("p95 of services, of requested-only", "service_p95_ratio", "x"),
    ("evictions", "evictions", "count"),
    ("completed", "completed_jobs", "count"),
    ("failed, as traced", "failed_jobs", "count"),
    ("cancelled, as traced", "cancelled_jobs", "count"),
    ("rejected", "rejected_jobs", "count"),
    ("unfinished", "unfinished_jobs", "count"),
    ("left out: impossible", "impossible_jobs", "count"),
    ("left out: incomplete", "dropped_jobs", "count"),
    ("allocated at full arrival", "allocated_pct", "%"),
    ("fragments of capacity", "fragment_pct", "%"),
    ("fragments of what is free", "fragment_of_free_pct", "%"),
)
TIMES = 300  # at which use is drawn
JOBS_SHOWN = 240  # of a policy: those that waited longest or held most
LANES = 24
NAMED = 6  # jobs in a list


@dataclass(frozen=True, slots=True)
class Fleet:
    """What policies made of a trace. `figures`: of each policy, as `aggregates` gives them."""

    trace: str
    cluster: str
    gpus: int | None
    figures: Sequence[Mapping[str, Amount]]
    outcomes: Sequence[Outcome] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # job -> why
    frontier: Sequence[Mapping[str, float]] = ()  # of lending, as `loans/frontier.py` gives it
    bands: Sequence[Mapping[str, Sequence[float]]] = ()  # of each policy over seeds: 5, 50 and 95 %
    warnings: Sequence[str] = ()  # beside those of jobs left out


def answer_document(fleet_answer: FleetAnswer) -> Document:
    """What the command line answers."""
    own, figures = fleet_answer.run, fleet_answer.figures
    bands = [figure["bands"] for figure in figures if "bands" in figure]
    omissions = {line for outcome in fleet_answer.outcomes for line in left_out(outcome)}
    warnings = [text for text in fleet_answer.warnings if text not in omissions]
    ran = fleet_answer.outcomes, fleet_answer.left_out, fleet_answer.frontier
    return fleet_document(Fleet(own["trace"], own["cluster"], own["gpus"], figures, *ran, bands, warnings))


def result_document(fleet_result: FleetResult) -> Document:
    """What `windtunnel.fleet` answers."""
    site = fleet_result.site
    return fleet_document(
        Fleet("a trace", site.text, site.gpus, list(fleet_result.figures.values()), fleet_result.outcomes)
    )


def pack_document(pack_answer: PackAnswer) -> Document:
    """What packing pods made of a trace."""
    return fleet_document(Fleet(pack_answer.jobs.source, pack_answer.cluster, None, pack_answer.figures))


def fleet_document(answer: Fleet) -> Document:
    """Everything that there is to see of a fleet."""
    jobs = answer.figures[0]["jobs"]
    of = "" if answer.gpus is None else f"{answer.gpus:,} GPUs; "
    return Document(
        "fleet",
        f"{jobs:,} job{'' if jobs == 1 else 's'} of {plain(answer.trace)} on {plain(answer.cluster)}",
        list(_views(answer)),
        list(_details(answer)),
        f"{of}{_same_jobs(answer)}" if len(answer.figures) > 1 else f"{of}{answer.figures[0]['policy']}",
    )


def _same_jobs(answer: Fleet) -> str:
    alike = len(set(map(jobs_left_out, answer.figures))) == 1
    return "every policy ran the same jobs" if alike else "not every policy could run every job"


def _views(answer: Fleet) -> Iterator[View]:
    best = best_of(answer.figures)
    yield verdict_of(answer.figures, best)
    cards = [
        Figure(name, _number(best, key, unit, {}))
        for name, key, unit in ROWS[:6]
        if isinstance(best.get(key), float | int) and key not in ("jct_p50_s", "makespan_s")
    ]
    yield Figures([Figure(card.name, card.number, f"with {best['policy']}") for card in cards])
    yield _policies(answer)
    if answer.left_out:
        kinds: dict[str, list[str]] = {}
        for name, why in answer.left_out.items():
            kinds.setdefault(why, []).append(name)
        lines = [f"{len(names):,} left out, {why}: {_listed(names)}" for why, names in kinds.items()]
        yield Notes("Jobs left out", lines[:50], "warn")


def _number(figures: Mapping[str, Amount], key: str, unit: str, bands: Mapping[str, Sequence[float]]) -> Number:
    low, _, high = bands.get(key, (None, None, None))
    value = figures[key]
    assert isinstance(value, float | int)
    if key == "log_wait_error" and value > 9:  # a factor says more than thousands of per cent
        return Number(1 + value, "x", None if low is None else 1 + low, None if high is None else 1 + high)
    return Number(value, unit, low, high)


def _policies(answer: Fleet) -> Table:
    rows: list[list[Cell]] = []
    bands = answer.bands or [{} for _ in answer.figures]
    flavors = sorted({key for figure in answer.figures for key in figure if key.startswith(ON_FLAVOR)})
    for label, key, unit in (*ROWS, *((f"GPU-hours on {key.removeprefix(ON_FLAVOR)}", key, "") for key in flavors)):
        values = [figure.get(key) for figure in answer.figures]
        if all(value is None for value in values) or (unit == "count" and not any(values)):
            continue
        cells: list[Cell] = [
            None if value is None else value if isinstance(value, str) else _number(figure, key, unit, own)
            for figure, value, own in zip(answer.figures, values, bands, strict=True)
        ]
        rows.append([label, *cells])
    names = [str(figure["policy"]) for figure in answer.figures]
    note = "in brackets 5 and 95 % over the seeds" if answer.bands else ""
    return Table("Policies", [Column(""), *(Column(name, "") for name in names)], rows, note, len(rows), by_row=True)


def _details(answer: Fleet) -> Iterator[View]:
    if answer.warnings:
        yield Notes("To mind", [plain(warning) for warning in answer.warnings], "warn")
    runs = [(outcome, _ran(outcome)) for outcome in answer.outcomes]
    if answer.frontier:
        yield from _frontier(answer.frontier)
    if not any(len(ran) for _, ran in runs):
        return
    first = min(float(outcome.jobs.submit_s.min()) for outcome, _ in runs)
    last = max(float(outcome.end_s[ran].max()) for outcome, ran in runs if len(ran))
    use, queue = [], []
    times = np.linspace(first, last, TIMES + 1)
    for outcome, ran in runs:
        # Mean over its stay.
        gpus = outcome.gpu_seconds[ran] / np.maximum(outcome.end_s[ran] - outcome.start_s[ran], 1e-9)
        share = _level(outcome.start_s[ran], outcome.end_s[ran], gpus, times) / max(answer.gpus or 1, 1)
        waiting = _level(outcome.jobs.submit_s[ran], outcome.start_s[ran], np.ones(len(ran)), times)
        x = [float(time - first) for time in times]
        use.append(Series("in use", x, [float(min(value, 1.0)) for value in share], form="steps", panel=outcome.policy))
        queue.append(Series("waiting", x, [float(value) for value in waiting], form="steps", panel=outcome.policy))
    yield Curve("GPUs in use", Axis("time", "s", low=0.0), Axis("share of the GPUs", "share", low=0.0, high=1.0), use)
    yield Curve("Jobs that wait", Axis("time", "s", low=0.0), Axis("jobs", "count"), queue)
    ages = []
    for outcome, _ in runs:
        jct = np.sort(outcome.jct_s[~np.isnan(outcome.jct_s)])
        at = np.unique(np.linspace(0, max(len(jct) - 1, 0), min(len(jct), TIMES)).astype(np.int64)).tolist()
        ages.append(Series(outcome.policy, [float(jct[k]) for k in at], [(k + 1) / len(jct) for k in at], form="steps"))
    log = all(min(age.x, default=0.0) > 0 for age in ages)
    yield Curve("Completion", Axis("JCT", "s", log=log), Axis("share of the jobs", "share", low=0.0, high=1.0), ages)
    for outcome, ran in runs:
        yield from _jobs(outcome, ran, first, answer.gpus or 0)


def _ran(outcome: Outcome) -> NDArray[np.int64]:
    ran = outcome.ended_jobs()
    return ran[outcome.end_s[ran] > outcome.start_s[ran]]


def _level(begin: Floats, end: Floats, amount: Floats, at: Floats) -> Floats:
    """What is held at each time: begun before or then, and not yet over."""
    begins, ends = np.argsort(begin, kind="stable"), np.argsort(end, kind="stable")
    come, leave = np.concatenate([[0.0], np.cumsum(amount[begins])]), np.concatenate([[0.0], np.cumsum(amount[ends])])
    level: Floats = come[np.searchsorted(begin[begins], at, "right")] - leave[np.searchsorted(end[ends], at, "right")]
    return level.clip(0.0)


def _jobs(outcome: Outcome, ran: NDArray[np.int64], first: float, gpus: int) -> Iterator[View]:
    """Those that waited longest or held most, in rows without overlap while there are rows, and as a table."""
    waited = (outcome.start_s - outcome.jobs.submit_s)[ran]
    by_wait = [int(at) for at in np.argsort(-waited, kind="stable")[: JOBS_SHOWN // 2]]
    by_work = [int(at) for at in np.argsort(-outcome.gpu_seconds[ran], kind="stable")[:JOBS_SHOWN]]
    chosen = list(dict.fromkeys([*by_wait, *by_work]))[:JOBS_SHOWN]
    size = outcome.gpu_seconds[ran] / np.maximum(outcome.end_s[ran] - outcome.start_s[ran], 1e-9)
    busy_gpus = _level(outcome.start_s[ran], outcome.end_s[ran], size, outcome.jobs.submit_s[ran[chosen]])
    spans: list[list[Span]] = [[] for _ in range(LANES)]
    ends = [first] * LANES
    rows: list[tuple[str, float, float, float, float, float, str]] = []
    for place, at in sorted(enumerate(chosen), key=lambda pair: float(outcome.start_s[ran[pair[1]]])):
        job = int(ran[at])
        start, end, wait = float(outcome.start_s[job]), float(outcome.end_s[job]), float(waited[at])
        lane = next((number for number in range(LANES) if ends[number] <= start), ends.index(min(ends)))
        ends[lane] = end
        why = _why(wait, float(busy_gpus[place]), float(size[at]), gpus)
        name = outcome.jobs.name[job]
        family, colour = ("waited", "line-1") if wait > 0 else ("did not wait", "line-0")
        spans[lane].append(Span(start - first, end - first, f"{name}: waited {text_of(wait, 's')}", family, colour))
        rows.append((name, float(size[at]), start - wait - first, wait, start - first, end - first, why))
    lanes = [Lane("", own) for own in spans if own]  # a lane is no place: jobs lie where there is room
    yield Lanes(f"Jobs under {outcome.policy}", lanes, f"{len(chosen):,} of {len(ran):,}: waited longest or held most")
    names = ("job", "GPUs", "submitted", "waited", "started", "ended", "why it waited")
    units = ("text", "count", "s", "s", "s", "s", "text")
    columns = [Column(*pair) for pair in zip(names, units, strict=True)]
    ordered = sorted(rows, key=lambda row: -row[3])
    yield Table(f"These jobs under {outcome.policy}", columns, ordered, folded=True)


def _why(waited: float, busy_gpus: float, size: float, gpus: int) -> str:
    """What is known of the moment it came: GPUs held by jobs that ran then, and those that it needs."""
    if waited <= 0:
        return "it did not wait"
    free = gpus - busy_gpus
    if size > free + 0.5:
        return f"{busy_gpus:,.0f} of {gpus:,} GPUs were held when it came"
    return f"{free:,.0f} GPUs were free when it came: the policy, its clock or placement held it back"


def _frontier(points: Sequence[Mapping[str, float]]) -> Iterator[View]:
    lost = [float(point["preempted_gpu_hours"]) for point in points]
    delay = [float(point["queueing_delay_mean_s"] or 0.0) for point in points]
    labels = [f"headroom {text_of(point['headroom'], 'share')}" for point in points]
    series = Series("headroom", lost, delay, form="points", labels=labels)
    note = "each point is a headroom of the serving pool"
    yield Curve(
        "What lending costs", Axis("preempted GPU-hours", ""), Axis("mean queueing delay", "s"), [series], note=note
    )
    fields: list[Field[Mapping[str, float]]] = [
        *(("headroom", "share", "headroom"), ("mean queueing delay", "s", "queueing_delay_mean_s")),
        *(("mean JCT", "s", "jct_mean_s"), ("preempted GPU-hours", "", "preempted_gpu_hours")),
        ("requests late", "text", lambda point: f"{point['loan_violations']:.3%}"),
    ]
    yield table_of("Lending", points, fields)


def when_document(answer: When) -> Document:
    """When a job starts and ends under one policy, and why it waits."""
    wait_s = None if answer.start_s is None else answer.start_s - answer.submit_s
    start = (
        "never starts"
        if wait_s is None
        else "starts at once"
        if wait_s == 0
        else f"starts after {text_of(wait_s, 's')}"
    )
    end = "" if answer.end_s is None else f" and ends {text_of(answer.end_s - answer.submit_s, 's')} after it came"
    waits = [wait_s, *(answer.wait_band_s or (None, None, None))]
    rows: list[list[Cell]] = [["waits", *("not at all" if value == 0.0 else value for value in waits)]]
    rows += [
        [label, *(None if at is None else _moment(at) for at in (value, *(band or (None, None, None))))]
        for label, value, band in (
            ("starts at", answer.start_s, answer.start_band_s),
            ("ends at", answer.end_s, answer.end_band_s),
        )
    ]
    why = answer.why
    lines = [why.text] if wait_s else []
    for label, names in (("ahead", why.ahead), ("overtaking", why.overtaking), ("freed by", why.freed_by)):
        lines += [f"{label}: {_listed(names)}"] if names else []
    if why.holders and answer.start_s != answer.submit_s:
        texts = [
            f"{holder.job} ({holder.gpus} GPUs{'' if holder.end_s is None else f', until {_moment(holder.end_s)}'})"
            for holder in why.holders
        ]
        lines.append(f"held by: {_listed(texts)}")
    ended = "" if answer.ended_draws == answer.draws else f", of which {answer.ended_draws} ended"
    columns = [Column(""), *(Column(name, "s") for name in ("as traced", "5 %", "50 %", "95 %"))]
    views: list[View] = [
        Headline(
            f"{answer.job} {start}{end}{f': {why.text}' if lines else ''}.",
            tone="calm" if answer.start_s is not None else "bad",
        ),
        Table("When", columns, rows, f"band: {answer.draws} draws{ended}; {answer.uncertainty}", by_row=True),
        Notes("Why", lines),
    ]
    title = f"{plain(answer.job)} under {answer.policy}"
    under = f"{format_many(answer.gpus, 'GPU')}, submitted at {_moment(answer.submit_s)}, {answer.state}"
    return Document("fleet", title, views, subtitle=under)


def _moment(seconds: float) -> str:
    """A moment of a trace: the date in a log that counts from 1970, else seconds."""
    if seconds < CALENDAR_S:
        return f"{seconds:,.0f} s"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def when_answer_document(when_answer: WhenAnswer) -> Document:
    """When a job starts and ends, by policy."""
    return when_documents(when_answer.when)


def when_documents(answers: Sequence[When]) -> Document:
    """The same under several policies, one after the other."""
    documents = list(map(when_document, answers))
    if len(documents) == 1:
        return documents[0]
    views = [view for document in documents for view in (Notes(document.title, [document.subtitle]), *document.views)]
    return Document("fleet", documents[0].title.partition(" under ")[0], views)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(plain, names[:NAMED])) + (f", and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


def sharing_document(sharing: Shared) -> Document:
    """Jobs on links that they share."""
    views: list[View] = []

    def times(values: Sequence[float]) -> str:
        return ", ".join(f"{value:.2f} x" for value in values)

    fields: list[Field[OnLink]] = [
        *(("jobs", "text", lambda link: ", ".join(link.jobs)), ("score", "share", "score")),
        (
            "begin after",
            "text",
            lambda link: "drift" if link.shifts_s is None else ", ".join(texts_of(link.shifts_s, "s")),
        ),
        *(
            ("steps, shifted", "text", lambda link: times(link.shifted)),
            ("not shifted", "text", lambda link: times(link.unshifted)),
        ),
    ]
    for name, links in sharing.placements.items():
        slower = sum(slower_of(links)) / len(slower_of(links)) - 1
        views += [] if views else [Headline(f"Steps are {text_of(slower, 'share')} longer than alone.")]
        views.append(table_of(f"Placed {name}", links, fields))
    title = f"{sum(len(link.jobs) for link in sharing.placements['by fit'])} jobs on shared links"
    return Document("traffic in turns", title, views, [], sharing.source)


def flows_document(study: FlowsStudy) -> Document:
    """Coflow completion times, policy by policy."""
    columns = [Column("policy"), *(Column(name, "s") for name in ("mean", "p50", "p95", "p99", "last end"))]
    rows: list[tuple[Cell, ...]] = []
    for answer in study.answers:
        cct = answer.cct_s
        times = [cct.mean(), *np.percentile(cct, [50, 95, 99]), np.nanmax(answer.finish_s)] if len(cct) else [None] * 5
        rows.append((answer.policy, *(None if value is None else float(value) for value in times)))
    return Document("fleet flows", study.trace, [Table("Coflow completion time", columns, rows)])


def lint_document(lint_answer: LintAnswer) -> Document:
    """What is wrong with a trace, and what of it was not understood."""
    lines = [f"{finding.severity}: {finding.text}; {finding.remedy}" for finding in lint_answer.findings]
    unread = [
        f"{entry.count} of {lint_answer.read}: {entry.reason}: {', '.join(entry.examples)}"
        for entry in lint_answer.not_understood
    ]
    bad = any(finding.severity == "error" for finding in lint_answer.findings)
    views: list[View] = [Notes("Found", lines, tone="bad" if bad else "warn"), Notes("Not understood", unread)]
    return Document(
        "fleet lint", lint_answer.trace, views if lines or unread else [Headline("nothing found", tone="good")]
    )


def live_document(live_run: LiveRun) -> Document:
    """Jobs that ran here, beside their simulation."""
    fields = (("job", "text", "job"), ("state", "text", "state"), ("real", "s", "jct_s"))
    mean, simulated = live_run.jct_mean_s, live_run.simulated_jct_mean_s
    if mean is None:
        verdict = "no job completed"
    else:
        beside = f", {text_of(simulated, 's')} simulated ({mean / simulated - 1:+.1%})" if simulated else ""
        verdict = f"mean JCT {text_of(mean, 's')} real{beside}"
    return Document(
        "fleet live",
        "Jobs run here",
        [Headline(verdict), table_of("", live_run.jobs, (*fields, ("simulated", "s", "simulated_jct_s")))],
    )
