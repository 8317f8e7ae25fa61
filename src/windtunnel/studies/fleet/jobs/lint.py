"""What is wrong with a trace: what cannot be, and what is probably a slip. Each finding names jobs and a remedy.

error      a job that no policy can run, or that contradicts itself
warning    what makes results doubtful: load over capacity, units that look wrong, deadlines that cannot be met
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.questions.asked.fleet.further import FleetLint
from windtunnel.questions.header import Answer
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs, Unread
from windtunnel.studies.fleet.parts.part import parts_of, with_shares
from windtunnel.studies.fleet.site import Site, parse_site

LONG_S = 365 * 86_400.0  # above which a duration is probably in other units
NAMED = 5


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    kind: str
    severity: str
    text: str
    remedy: str
    jobs: tuple[str, ...] = ()


def lint_jobs(jobs: Jobs, site: Site | None = None) -> list[Finding]:
    """All findings, errors first."""
    findings: list[Finding] = []

    def add(kind: str, severity: str, rows: NDArray[np.int64], text: str, remedy: str) -> None:
        if len(rows):
            names = [jobs.name[at] for at in rows[:NAMED].tolist()]
            places = ", ".join(
                f"{name} (line {int(jobs.line[at])})" for name, at in zip(names, rows.tolist(), strict=False)
            )
            more = ", ..." if len(rows) > NAMED else ""
            count = f"{len(rows)} job{'s' * (len(rows) > 1)} {text}: {places}{more}"
            findings.append(Finding(kind, severity, count, remedy, tuple(jobs.name[at] for at in rows.tolist())))

    submit, duration, deadline, start = jobs.submit_s, jobs.duration_s, jobs.deadline_s, jobs.start_s
    unstarted = np.array(jobs.columns.get("ended", [""] * len(jobs))) == "cancelled"  # such a job asks for nothing
    unstarted &= np.isnan(start) & ~(duration > 0)
    none = np.flatnonzero((jobs.gpus < 1) & ~unstarted)
    logged = "log_state" in jobs.columns  # clusters run jobs without GPUs too, and their logs are in no order of time
    if logged:
        add("no-gpu", "warning", none, "without a GPU", "they are left out; mend the log where they had some")
    else:
        add("no-gpu", "error", none, "without a GPU", "give gpus, or leave them out")
    if site is not None:
        too_many = np.flatnonzero(-(-jobs.gpus_asked // site.per_node) > site.nodes)
        add(
            "too-large", "error", too_many, f"of more than the {site.gpus} GPUs of {site.text}", "give a larger cluster"
        )
    odd = [at for at, part in enumerate(parts_of(jobs, site)) if isinstance(part, str)]
    remedy = "name a profile of MIG that the cluster's GPU has, a share of a GPU, or say shares_per_gpu in its file"
    add("part", "error", np.array(odd, np.int64), "of parts of a GPU that it does not have", remedy)
    add(
        "no-duration",
        "warning",
        np.flatnonzero(np.isnan(duration) & np.isnan(jobs.iterations)),
        "without duration and iterations",
        "they wait, or the log does not say how long they ran: left out"
        if logged
        else "add duration_s, or iterations with model and batch_size",
    )
    idle = np.flatnonzero((duration == 0) & ~unstarted)
    add("zero-duration", "warning", idle, "of no duration", "check the unit of duration_s")
    add(
        "long",
        "warning",
        np.flatnonzero(duration > LONG_S),
        "of more than a year",
        "durations are seconds: check the unit",
    )
    add(
        "late-before-start",
        "error",
        np.flatnonzero(deadline < submit),
        "due before submission",
        "check the deadlines' clock",
    )
    add(
        "started-early",
        "error",
        np.flatnonzero(start < submit),
        "started before submission",
        "check both columns' clock",
    )
    if (site is not None) and not np.isnan(deadline).all():
        hopeless = np.flatnonzero((deadline - submit < duration * jobs.gpus_asked / site.gpus) & (deadline >= submit))
        add("hopeless", "warning", hopeless, "too late even on the whole cluster at perfect speed", "check deadlines")
    if not logged:
        findings.extend(_order(jobs))
        findings.extend(_copies(jobs))
    findings.extend(_load(jobs, site))
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _order(jobs: Jobs) -> Sequence[Finding]:
    back = np.flatnonzero(np.diff(jobs.submit_s) < 0)
    if not len(back):
        return []
    at = int(back[0]) + 1
    text = f"submissions are out of order from {jobs.name[at]} (line {int(jobs.line[at])}) on"
    remedy = (
        "policies take jobs by their times, and only over-subscription draws by row; but a mixed-up clock would look so"
    )
    return [Finding("unsorted", "warning", text, remedy)]


def _load(jobs: Jobs, site: Site | None) -> Sequence[Finding]:
    if site is not None and not np.isnan(jobs.duration_s).all() and len(jobs) > 1:
        runs = -(-jobs.gpus_asked // site.per_node) <= site.nodes  # larger jobs are left out of every run
        work = float(np.nansum((jobs.duration_s * jobs.gpus_asked)[runs]))
        span = float(jobs.submit_s.max() - jobs.submit_s.min())
        if span > 0:
            load = work / (span * site.gpus)
            if load > 1:
                text = f"the offered load is {load:.0%} of {site.text}"
                text += f": {work:,.0f} GPU-s in {span:,.0f} s of submissions"
                remedy = "queues grow to the end of the trace: give a larger cluster, or read waits as such"
                return [Finding("overload", "warning", text, remedy)]
    return []


def _copies(jobs: Jobs) -> Sequence[Finding]:
    seen: dict[tuple[object, ...], int] = {}
    copies = []
    rows = zip(jobs.submit_s.tolist(), jobs.gpus.tolist(), jobs.duration_s.tolist(), jobs.model, jobs.user, strict=True)
    for at, key in enumerate(rows):
        if key in seen and key[2] == key[2]:
            copies.append(at)
        seen.setdefault(key, at)
    if len(copies) > max(len(jobs) // 20, 1):
        names = ", ".join(jobs.name[at] for at in copies[:NAMED])
        text = f"{len(copies)} jobs look like copies of others (same submission, GPUs and duration): {names}, ..."
        return [
            Finding(
                "copies", "warning", text, "check that lines were not doubled", tuple(jobs.name[at] for at in copies)
            )
        ]
    return []


@dataclass(frozen=True, eq=False)
class LintAnswer(Answer):
    """What is wrong with a trace."""

    trace: str
    findings: tuple[Finding, ...]
    read: int = 0
    not_understood: tuple[Unread, ...] = ()


def answer_lint(question: FleetLint) -> LintAnswer:
    """Look at a trace. Raises UserError for what cannot be read."""
    site = parse_site(question.cluster) if question.cluster else None
    jobs = with_shares(read_jobs(question.trace, question.where), site)
    return LintAnswer(question.trace, tuple(lint_jobs(jobs, site)), len(jobs), jobs.not_understood)
