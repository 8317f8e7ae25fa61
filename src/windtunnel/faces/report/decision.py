"""Clusters against each other, and rules of a check, as views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windtunnel.faces.report.draw.console import command_lines
from windtunnel.faces.report.own_run import PATCH
from windtunnel.faces.report.plans import words
from windtunnel.faces.report.prediction.spec_words import title
from windtunnel.studies.check import Checked
from windtunnel.studies.decide import Decision, Option
from windtunnel.units import format_count, format_many
from windtunnel.views import (
    Bar,
    Bars,
    Cell,
    Column,
    Document,
    Figure,
    Figures,
    Files,
    Headline,
    Notes,
    Number,
    Part,
    Table,
)
from windtunnel.views.text import plain

EVEN = "; even at: the price of a GPU-hour at which it costs what the cheapest other does"


def decide_document(answer: Decision) -> Document:
    """One table for someone who was not there."""
    money = any(option.cost is not None for option in answer.options)
    against = any(option.break_even_price is not None for option in answer.options)
    several = len({option.model for option in answer.options}) > 1
    columns = [
        *([Column("model")] * several),
        *(Column("cluster"), Column("step", "s"), Column("MFU", "share"), Column("trains", "share"), Column("days")),
        *((Column("cost"), Column("per M tokens")) if money else ()),
        *([Column("even at")] * against),
        *(Column("energy"), Column("head-room", "B"), Column("estimated", "share"), Column("failures met by")),
        *(Column("plan"), Column("told apart")),
    ]
    rows = [_row(option, answer.currency, money, against)[0 if several else 1 :] for option in answer.options]
    note = (
        "with failures, standbys paid; trains: the share of the time that does; estimated: of the busy time, what rests"
        f" on formulas{EVEN if against else ''}{f'; best by {answer.by} first' if len(answer.options) > 1 else ''}"
    )
    able = [option for option in answer.options if option.fits]
    plans = [
        (
            f"{option.model} on {option.cluster}",
            "\n".join(command_lines(line, 96) for line in (option.predict, option.survive)) + "\n",
        )
        for option in able
    ]
    return Document(
        "decision",
        "Which cluster to train on" if several else f"Where to train {answer.options[0].model}",
        [
            Headline(answer.sentence, tone="good" if able else "bad"),
            *_figures(able, answer.currency),
            Table("Side by side", columns, rows, note, most=len(rows)),
            Notes("Assumed", answer.notes, "warn"),
            Notes(
                "What cannot",
                [
                    f"{option.model} on {option.cluster}: {plain(option.reason)}"
                    for option in answer.options
                    if not option.fits
                ],
            ),
        ],
        [*_pictures(able, answer.currency), *([Files("Each figure by itself", plans)] if plans else [])],
        f"{format_count(answer.tokens)} tokens",
    )


def _figures(able: Sequence[Option], currency: str) -> Iterator[Figures]:
    for best in able[:1]:
        figures = (
            ("takes", best.days, "days", best.cluster),
            (f"cost, {currency}", best.cost, "", "with failures"),
            ("MFU", best.mfu, "share", ""),
            ("trains", best.effective_share, "share", "of the time"),
        )
        yield Figures([Figure(name, Number(value, unit), note) for name, value, unit, note in figures if value])


def _pictures(able: Sequence[Option], currency: str) -> Iterator[Bars]:
    """Days and cost of each, on one scale."""
    for what, unit, values in (
        ("Days", "days", [option.days for option in able]),
        (f"Cost, {currency}", "", [option.cost for option in able]),
    ):
        bars = [
            Bar(f"{option.model} on {option.cluster}", [Part(what, value)])
            for option, value in zip(able, values, strict=True)
            if value is not None
        ]
        if len(bars) > 1:
            yield Bars(what, unit, bars)


def _row(option: Option, currency: str, money: bool, against: bool) -> list[Cell]:
    if not option.fits:
        return [option.model, option.cluster, *([None] * (9 + 2 * money + against)), "does not fit"]

    def spent(value: float | None) -> str | None:
        return None if value is None else f"{currency}{value:,.0f}" if value >= 100 else f"{currency}{value:,.3g}"

    days = f"{option.days:,.3g} ({option.days_p5:,.3g}-{option.days_p95:,.3g})"
    row: list[Cell] = [option.model, option.cluster, option.step_time_s, option.mfu, option.effective_share, days]
    if money:
        row += [
            f"{spent(option.cost)} ({spent(option.cost_p5)}-{spent(option.cost_p95)})"
            if option.cost
            else spent(option.cost)
        ]
        row += [spent(option.cost_per_million_tokens), *([spent(option.break_even_price)] * against)]
    energy = f"{option.energy_mwh:,.0f} MWh" if (option.energy_mwh or 0) >= 10 else f"{option.energy_mwh:,.3g} MWh"
    text = f"{option.policy}, {format_many(option.standbys, 'machine')} kept" if option.standbys else option.policy
    apart = "no" if not option.told_apart else "" if option.days_told_apart else "by cost, not by days"
    return [*row, energy, option.head_room_bytes, option.estimated_share, text, words(option.plan or {}), apart]


def check_document(answer: Checked) -> Document:
    """The rules, and whether they are kept."""
    broken = [finding for finding in answer.findings if not finding.passed]
    text = (
        f"Not to be submitted: {broken[0].rule} is broken, {broken[0].text}."
        if broken
        else "It may be submitted: every rule is kept."
    )
    peak = Number(float(answer.peak_memory_bytes), "B")
    return Document(
        "check",
        title(answer.result),
        [
            Headline(text, tone="bad" if broken else "good"),
            Figures(
                [
                    Figure("step time", Number(answer.step_time_s, "s")),
                    Figure("MFU", Number(answer.mfu, "share")),
                    Figure("peak memory", peak),
                ]
            ),
            Table(
                "Rules",
                (Column("fail if"), Column(""), Column("found")),
                [
                    (finding.rule, "kept" if finding.passed else "BROKEN", plain(finding.text))
                    for finding in answer.findings
                ],
                most=len(answer.findings),
            ),
            *([Files(PATCH, [(answer.change.flags, answer.change.diff)])] if answer.change else []),
            Notes("Warnings", [plain(warning) for warning in answer.warnings], "warn"),
        ],
    )


def github_lines(answer: Checked, path: str) -> list[str]:
    """The broken rules as annotations of a GitHub Action."""
    file = path.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace(":", "%3A").replace(",", "%2C")
    return [
        f"::error file={file},title=windtunnel {finding.rule}::{plain(finding.text).replace('%', '%25')}"
        for finding in answer.findings
        if not finding.passed
    ]
