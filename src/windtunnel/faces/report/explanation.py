"""Why a traced job is slow, as views: the verdict, what each part costs, which workers and steps are slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windtunnel.studies.traces.by_class import StepTime, typical
from windtunnel.studies.traces.stragglers.explanation import Explanation, Part, Repair
from windtunnel.views import (
    Axis,
    Column,
    Curve,
    Document,
    Field,
    Figure,
    Figures,
    Grid,
    Headline,
    Heat,
    Limit,
    Notes,
    Number,
    Series,
    Table,
    View,
    table_of,
)
from windtunnel.views.text import plain, text_of

PARTS_SHOWN = 8  # of one sort
CLASSES_SHOWN = 7
STEPS_SHOWN = 400
CELLS_MOST = 12_000  # of the heat map
LEAST_SPAN = 0.05  # of its scale, so that noise stays pale


def explanation_document(answer: Explanation) -> Document:
    """Everything that there is to see of a traced job."""
    names = [plain(name) for name in answer.files]
    title = (names[0].rsplit("/", 1)[-1] if names else "trace") + (f" and {len(names) - 1} more" * (len(names) > 1))
    counts = [(answer.n_ops, "op"), (answer.n_workers, "worker")]
    if answer.n_steps > 1:  # else the recording as a whole, however many it holds
        counts.append((answer.n_steps, "step"))
    words = ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    return Document("explanation", title, list(_views(answer)), list(_details(answer)), f"{answer.source} · {words}")


def _views(answer: Explanation) -> Iterator[View]:
    slowdown = Number(answer.slowdown, "x")
    yield Headline(answer.verdict, "good" if answer.slowdown < 1.02 else "warn")
    measured, replayed = answer.measured_ns, answer.replayed_ns
    off = f", {text_of(replayed / measured - 1, 'change')} of it" if measured else ""
    of = "mean of the steps" if answer.n_steps > 1 else "the whole recording"
    lost = (answer.slowdown - 1) / answer.slowdown if answer.slowdown > 1 else 0.0
    figures = [
        Figure("step time", Number(measured / 1e9, "s"), f"as measured, {of}"),
        Figure("replayed", Number(replayed / 1e9, "s"), f"dependencies and durations only{off}"),
    ]
    if answer.ideal_ns < min(replayed, measured or replayed):  # one that takes longer is none
        figures += [
            Figure("ideal", Number(answer.ideal_ns / 1e9, "s"), "every op as long as its peers"),
            Figure("slowdown", slowdown, f"{text_of(lost, 'share')} of the time is lost to stragglers", lost),
        ]
    yield Figures(figures)
    if answer.rank_steps:
        yield by_class_table(answer.rank_steps)
    if answer.asked is not None:
        yield _mended(answer.asked, replayed)
    by_place = bool(answer.by_stage or answer.by_replica)
    yield from (
        _parts(title, parts)
        for title, parts in (
            ("By stage", answer.by_stage),
            ("By replica", answer.by_replica),
            ("By worker", () if by_place else answer.by_worker),
            ("By kind of op", answer.by_kind),
        )
        if len(parts) > 1
    )
    if len(answer.worker_slowdown) > 1:
        few = answer.slowest_workers
        slowest = [f"{name} {value:.3f}" for name, value in list(answer.worker_slowdown.items())[:PARTS_SHOWN]]
        yield Notes(
            "Slowest workers", [" · ".join(slowest), f"{few.name} ideal: {gain_words(few.saved_ns, few.share)}"]
        )
    if len(answer.step_slowdown) > 1:
        by_step = sorted(answer.step_slowdown.items(), key=lambda item: (-item[1], item[0]))[:PARTS_SHOWN]
        yield Notes("Slowest steps", [" · ".join(f"step {step} {value:.3f}" for step, value in by_step)])
    yield Notes("What the trace lacks", answer.notes, "warn")


def by_class_table(rank_steps: Sequence[StepTime]) -> Table:
    """A step of each rank by class of op, and each step of a single rank: every instant is of one class."""
    ranks = sorted({rank_step.rank for rank_step in rank_steps})
    rows: list[tuple[str, dict[str, float]]] = []
    if len(ranks) == 1:
        rows = [(f"step {rank_step.step}", dict(rank_step.seconds)) for rank_step in rank_steps]
    else:
        rows = [
            (f"rank {rank}", typical([rank_step for rank_step in rank_steps if rank_step.rank == rank]))
            for rank in ranks
        ]
    names = sorted(
        {name for _, parts in rows for name in parts}, key=lambda name: -sum(p.get(name, 0) for _, p in rows)
    )
    columns = [Column(""), Column("step", "s"), *(Column(name, "s") for name in names[:CLASSES_SHOWN])]
    cells = [(who, sum(p.values()), *(p.get(name) for name in names[:CLASSES_SHOWN])) for who, p in rows]
    note = (
        "host: the queue was empty; idle: launched, but waiting for another stream; communication: what nothing hides"
    )
    return Table("Where the time goes", columns, cells, note, PARTS_SHOWN)


def _details(answer: Explanation) -> Iterator[View]:
    if (answer.by_stage or answer.by_replica) and len(answer.by_worker) > 1:
        yield _parts("By worker", answer.by_worker)
    if len(answer.worker_slowdown) > 1:
        yield _workers(answer)
    if len(answer.step_slowdown) > 1:
        steps = list(answer.step_slowdown.items())[:STEPS_SHOWN]
        labels = [
            f"step {step}, {text_of(answer.step_measured_ns.get(step, 0) / 1e9, 's')} measured" for step, _ in steps
        ]
        series = Series(
            "step", [float(step) for step, _ in steps], [value for _, value in steps], form="columns", labels=labels
        )
        low = min(1.0, *(value for _, value in steps))
        high = max(*(value for _, value in steps), answer.slowdown, 1 + LEAST_SPAN)
        axis = Axis("slowdown", "x", low=low, high=high + 0.06 * (high - low))
        mean = Limit(answer.slowdown, "mean")
        yield Curve("Slowdown by step", Axis("step", "count"), axis, [series], [mean])


def _mended(ideal: Repair, replayed_ns: int) -> Notes:
    text = (
        f"{text_of(ideal.step_time_ns / 1e9, 's')} instead of {text_of(replayed_ns / 1e9, 's')}:"
        f" {gain_words(ideal.saved_ns, ideal.share)}; a slowdown of {ideal.slowdown:.3f} remains"
    )
    return Notes(f"If {' and '.join(map(plain, ideal.parts))} were ideal", [text])


def _parts(title: str, parts: Sequence[Part]) -> Table:
    fields: list[Field[Part]] = [
        *(("", "text", "name"), ("alone", "x", "slowdown"), ("gives back", "s", lambda part: part.saved_ns / 1e9)),
        ("of the loss", "share", "share"),
    ]
    note = "what it costs alone, and what mending it gives back"
    return table_of(title, parts, fields, note, PARTS_SHOWN)


def _workers(answer: Explanation) -> Heat:
    """A row per stage and a column per replica where both are known, else one worker after the other."""
    slow, place = answer.worker_slowdown, answer.worker_place
    names = list(slow)[:CELLS_MOST]
    low = max(min(slow.values()), 1.0)
    high = max(max(slow.values()), low + LEAST_SPAN)
    has_places = all(replica >= 0 and stage >= 0 for replica, stage in place.values())
    left_out = f" The slowest {len(names):,} workers of {len(slow):,}." if len(names) < len(slow) else ""
    if has_places:
        stages, replicas = (sorted({place[name][part] for name in names}) for part in (1, 0))
        at = {place[name]: slow[name] for name in names}
        values = [at.get((replica, stage)) for replica in replicas for stage in stages]
        columns = Grid("replica", len(replicas), [f"replica {replica}" for replica in replicas])
        rows = Grid("stage", len(stages), [f"stage {stage}" for stage in stages])
        note = f"a worker's slowdown is the smaller of its replica's and its stage's.{left_out}"
    else:
        names.sort(key=_natural)
        values = [slow[name] for name in names]
        columns, rows = Grid("worker", len(names), [plain(name) for name in names]), Grid("", 1, [""])
        note = f"slowdown with only this rank as measured, all else ideal.{left_out}"
    return Heat("Workers", columns, rows, values, "slowdown", "x", low, high, note=note)


def _natural(name: str) -> tuple[int, str]:
    digits = name.rsplit(" ", 1)[-1]
    return (int(digits) if digits.isascii() and digits.isdigit() else 0, name)


def gain_words(saved_ns: int, share: float | None) -> str:
    """How much less a step takes, or more."""
    part = f", {text_of(share, 'share')} of the loss" if share is not None and saved_ns > 0 else ""
    return f"{text_of(abs(saved_ns) / 1e9, 's')} {'more' if saved_ns < 0 else 'less'}{part}"
