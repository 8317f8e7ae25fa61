"""The fleet study: `windtunnel.fleet(trace, cluster, policies, ...)`, and what its questions are answered with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from windtunnel.errors import SpecError, UserError
from windtunnel.notebook import Shown
from windtunnel.questions import plain, read
from windtunnel.questions.asked.fleet.study import Fleet
from windtunnel.questions.header import Answer, band_entry
from windtunnel.questions.typed import check
from windtunnel.studies.fleet.asked import as_asked, changes_of, happened, is_file, options_of, policies_of
from windtunnel.studies.fleet.changed import as_changed
from windtunnel.studies.fleet.clock.decision import Policy
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import Outcome, against_log, against_text, aggregates, by_policy, write_jobs
from windtunnel.studies.fleet.policies.own import policy_of_text
from windtunnel.studies.fleet.policies.table import POLICIES, plain_name
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import Site, parse_site
from windtunnel.studies.fleet.speeds.predicted import Notes, predicted_speeds, with_predictions
from windtunnel.studies.fleet.speeds.tables import Runtime, Tables, speeds_by
from windtunnel.units import format_many, format_time

ELASTIC = 0.05  # share of lyra's jobs that can use twice their GPUs, where nobody says
CHANGED = "changed"  # what an answer calls policies after --change
BAND = (5.0, 50.0, 95.0)  # percentiles over seeds
ONE = "windtunnel.studies.fleet.study:one_seed"
NAMED = 5  # jobs and kinds of jobs left out that a warning names


@dataclass(frozen=True, eq=False)
class FleetResult(Shown):
    """What became of a trace under each policy, in the order asked."""

    site: Site
    outcomes: tuple[Outcome, ...]

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Aggregates by policy; names and definitions: `fleet/outcome.py`."""
        return {outcome.policy: aggregates(outcome, self.site.gpus) for outcome in self.outcomes}

    def to_dict(self) -> dict[str, object]:
        """The figures by policy, and those of a single policy at the top too."""
        return by_policy(list(self.figures.values()))

    def write_jobs(self, path: str | Path) -> None:
        """One line per job, CSV or Parquet."""
        write_jobs(list(self.outcomes), path)


def fleet(
    trace: str | Path | Jobs,
    cluster: str | Site,
    policies: str | Policy | Sequence[str | Policy] = "fifo",
    *,
    where: str = "",
    tables: str | Path | None = None,
    seed: int | None = None,
    pool: bool | None = None,
    iteration_s: Runtime | None = None,
    options: Options | None = None,
) -> FleetResult:
    """Run a trace under policies, e.g. `fleet("jobs.csv", "v100:64", ["fifo", "easy", Mine()])`.

    A policy is a name or an object with `decide(snapshot) -> Decision` (`fleet/policies/own.py`).
    `iteration_s(model, batch, GPUs)` gives seconds per iteration for policies that size jobs without tables. What is
    given by name comes before the same of `options`. Raises UserError for what cannot be asked.
    """
    check(locals(), where=str, tables=str | PathLike | None, seed=int | None, pool=bool | None, options=Options | None)
    if not isinstance(trace, str | Path | Jobs):
        raise SpecError("trace", trace, "give the path of a trace, or Jobs")
    if not isinstance(cluster, str | Site):
        raise SpecError("cluster", cluster, "give GPU:COUNT such as t4:64, the path of a file, or a Site")
    jobs = trace if isinstance(trace, Jobs) else read_jobs(trace, where)
    site = cluster if isinstance(cluster, Site) else parse_site(cluster)
    if seed is not None and seed < 0:
        raise SpecError("seed", seed, "give a whole number from 0 on")
    by_name = {
        "tables": None if tables is None else Tables(Path(tables)),
        "seed": seed,
        "pool": pool,
        "speeds": None if iteration_s is None else speeds_by(iteration_s),
    }
    changes: dict[str, Any] = {name: value for name, value in by_name.items() if value is not None}
    chosen = replace(options or Options(), **changes)
    listed = list(policies) if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
    return FleetResult(site, tuple(simulate(jobs, site, policy, chosen) for policy in listed))


NEAREST = "is nearest to the log's own starts"


class RunOf(TypedDict):
    """What a fleet's figures are of."""

    trace: str
    where: str  # of the trace's lines
    cluster: str
    gpus: int


@dataclass(frozen=True, eq=False)
class FleetAnswer(Answer):
    """Each policy's figures, of one run or as bands over seeds, and what they are of."""

    run: RunOf
    figures: tuple[dict[str, Any], ...]
    outcomes: tuple[Outcome, ...] = ()  # none where the figures are bands
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was assumed
    frontier: tuple[Mapping[str, float], ...] = ()  # of lyra's loans, where it was asked for
    files: Mapping[str, str] = field(default_factory=dict)  # the scheduler's configuration, where it was asked for

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        document = by_policy(self.figures) | dict(self.run)
        if self.outcomes:
            document["left_out"] = self.left_out
        if self.files:
            document["files"] = dict(self.files)
        return document

    @property
    def left_out(self) -> dict[str, str]:
        """Why jobs could not run, by name."""
        return {outcome.jobs.name[at]: text for outcome in self.outcomes for at, text in (outcome.why or {}).items()}

    @property
    def band(self) -> dict[str, object] | None:
        """Of the mean completion time of a single policy over seeds."""
        bands = self.figures[0].get("bands", {}).get("jct_mean_s") if len(self.figures) == 1 else None
        return None if bands is None else band_entry("jct_mean_s", bands[0], bands[-1])

    @property
    def provenance(self) -> dict[str, object]:
        """Whose jobs they are."""
        return {"jobs": self.run["trace"]}


def answer(question: Fleet, executor: str = "serial", *, frontier: bool = False) -> FleetAnswer:
    """Run a trace under each policy, or with `seeds` so often on an executor; with changes, before and after them.

    Raises UserError.
    """
    if not question.change:
        return answer_as_it_is(question, executor, frontier=frontier)
    before = answer_as_it_is(replace(question, change=()), executor, frontier=frontier)
    changed = as_changed(question)
    names = [name for name in policies_of(changed.policy) if is_file(name) or not happened(name)]
    if not names:
        raise SpecError("--change", ", ".join(question.change), "what happened does not change: give a policy too")
    after = answer_as_it_is(replace(changed, policy=",".join(names)), executor, frontier=frontier)
    notes = (note for note in after.notes if NEAREST not in note)  # the log is of the cluster as it was
    return replace(
        before,
        figures=(*before.figures, *({**figure, "policy": f"{figure['policy']} {CHANGED}"} for figure in after.figures)),
        outcomes=(
            *before.outcomes,
            *(replace(outcome, policy=f"{outcome.policy} {CHANGED}") for outcome in after.outcomes),
        ),
        warnings=tuple(
            dict.fromkeys(
                (*before.warnings, *(f"{CHANGED}: {line}" for line in after.warnings if line not in before.warnings))
            )
        ),
        files=after.files,
        notes=tuple(dict.fromkeys((*before.notes, f"{CHANGED}: {', '.join(question.change)}", *notes))),
    )


def answer_as_it_is(question: Fleet, executor: str = "serial", *, frontier: bool = False) -> FleetAnswer:
    """Run a trace under each policy on the cluster as it is changed. Raises UserError."""
    names, jobs, site, notes = as_asked(question)
    about: RunOf = {"trace": question.trace, "where": question.where, "cluster": site.text, "gpus": site.gpus}
    files = {}
    if question.emit is not None:
        from windtunnel.studies.fleet.emit import emitted

        files = emitted(question.emit, jobs, site)
    if question.seeds is not None:
        banded = tuple(run_seeds(question, names, question.seeds, executor))
        return FleetAnswer(about, banded, notes=notes, files=files)
    jobs, unfit = with_predictions(jobs, site)
    sized_by = Notes()
    options = replace(options_of(question), changes=changes_of(question.capacity), speeds=predicted_speeds(sized_by))
    if any(name.startswith("lyra") for name in names):
        from windtunnel.studies.fleet.loans.pool_file import loans_of

        elastic = ELASTIC if question.elastic is None else question.elastic
        serving = None if question.serving is None else Path(question.serving)
        options = replace(options, loans=loans_of(serving, elastic, question.seed))
    outcomes = tuple(simulate(jobs, site, policy_of_text(name), options) for name in names)
    warnings = (
        *dict.fromkeys((*unfit, *sized_by.lines)),
        *_unheeded(jobs, names, placed=bool(site.topology) and not options.pool),
        *dict.fromkeys(line for outcome in outcomes for line in left_out(outcome)),
    )
    if "slurm" in names and site.slurm_cluster.limits_idle:
        text = "limits of QOS and associations do not hold: slurm.conf's AccountingStorageEnforce has no limits"
        warnings += (f"{text} (--change slurm.limits_hold=true)",)
    if question.restart is None:
        often = [outcome for outcome in outcomes if outcome.restarts.any() and outcome.policy != "current"]
        free = ", ".join(f"{int(outcome.restarts.sum()):,} with {outcome.policy}" for outcome in often)
        if free:
            warnings += (f"restarts cost nothing: {free}; say what one costs with --restart 5min",)
    points: tuple[Mapping[str, float], ...] = ()
    if frontier and question.serving is not None and "lyra" in names:
        from windtunnel.studies.fleet.loans.frontier import frontier as frontier_of

        points = tuple(frontier_of(jobs, site, options))
    figures = tuple(aggregates(outcome, site.gpus) | against_log(outcome) for outcome in outcomes)
    compared = [figure for figure in figures if figure.get("log_wait_error") is not None]
    if compared:
        nearest = min(compared, key=lambda entry: float(entry["log_start_error_p50_s"]))
        wait = against_text(nearest["log_wait_error"])
        text = f"{nearest['policy']} {NEAREST}: mean wait {wait}"
        notes += (f"{text}, half of the starts within {format_time(nearest['log_start_error_p50_s'])}",)
    return FleetAnswer(about, figures, outcomes, warnings, notes, points, files)


def one_seed(*, question: Mapping[str, object]) -> dict[str, object]:
    """Figures of one policy at one seed; `question` in its plain form, as executors carry it. Raises UserError."""
    return answer_as_it_is(read(question)).figures[0]


def _unheeded(jobs: Jobs, names: Sequence[str], *, placed: bool) -> list[str]:
    """Quotas, priorities and places of the log that policies pay no heed to; `placed`: the cluster has a topology."""
    plain = [plain_name(name) for name in names if not is_file(name)]
    deaf = {
        "quotas of queues": [word for word in plain if "quota" not in POLICIES[word].needs] if jobs.quotas else [],
        "priorities": [word for word in plain if not POLICIES[word].priorities]
        if len(set(jobs.columns.get("priority", ())) - {""}) > 1
        else [],
        "topology": [word for word in plain if "quota" not in POLICIES[word].needs or not placed]
        if any(jobs.columns.get("topology", ()))
        else [],
    }
    logs = {name for name in plain if POLICIES[name].loop == "log"}
    deaf_policies = {what: [name for name in who if name not in logs] for what, who in deaf.items()}
    pays = {
        what: f"{', '.join(who)} {'pays' if len(who) == 1 else 'pay'}" for what, who in deaf_policies.items() if who
    }
    return [f"{who} no heed to the {what} of the log" for what, who in pays.items()]


def left_out(outcome: Outcome) -> list[str]:
    """One line for each kind of job that could not run, naming the first few."""
    why = outcome.why or {}
    lines = []
    for text in dict.fromkeys(why.values()):
        names = [outcome.jobs.name[at] for at in why if why[at] == text]
        shown = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
        lines.append(f"{len(names)} job{'s' * (len(names) > 1)} left out, {text}: {shown}")
        if len(lines) == NAMED:
            lines.append(f"{format_many(len(why), 'job')} left out in all; `windtunnel fleet lint` names them")
            break
    return lines


def run_seeds(question: Fleet, policies: Sequence[str], count: int, executor: str) -> list[dict[str, object]]:
    """For each policy the mean of each figure, its `bands` (5, 50, 95 %) over seeds, and `seeds`. Raises UserError."""
    from windtunnel.studies.sweeps.executors import rows_of

    points = [(name, question.seed + at) for name in policies for at in range(count)]
    questions = [plain(replace(question, policy=name, seed=seed, seeds=None)) for name, seed in points]
    rows: list[dict[str, object]] = [{} for _ in points]
    inputs = [(place, {"question": entry}) for place, entry in enumerate(questions)]
    for place, row in rows_of(executor, ONE, inputs, os.cpu_count() or 1):
        if row["status"] != "ok":
            name, seed = points[place]
            raise UserError(f"{name}, seed {seed}: {row['reason']}")
        rows[place] = row["outputs"]
    return [_banded(rows[at : at + count]) for at in range(0, len(rows), count)]


def _banded(runs: Sequence[Mapping[str, object]]) -> dict[str, object]:
    import numpy as np

    result: dict[str, object] = {}
    bands: dict[str, list[float]] = {}
    for name, value in runs[0].items():
        values: list[Any] = [run.get(name) for run in runs]
        if isinstance(value, str) or any(each is None for each in values):
            if len(set(values)) == 1:
                result[name] = value
            continue
        result[name] = value if len(set(values)) == 1 else round(float(np.mean(values)), 6)
        bands[name] = [round(float(each), 6) for each in np.percentile(values, BAND)]
    return {**result, "seeds": len(runs), "bands": bands}
