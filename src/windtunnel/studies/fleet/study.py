"""The fleet study: `windtunnel.fleet(trace, cluster, policies, ...)`, and what its questions are answered with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from windtunnel.errors import SpecError
from windtunnel.notebook import Shown
from windtunnel.questions import read
from windtunnel.questions.asked.fleet.flows import FleetFlows
from windtunnel.questions.asked.fleet.jobs import Scheduled, Simulated
from windtunnel.questions.asked.fleet.lint import FleetLint
from windtunnel.questions.asked.fleet.live import FleetLive
from windtunnel.questions.asked.fleet.pack import FleetPack
from windtunnel.questions.asked.fleet.study import ByFile, Failing, Fleet, Steady
from windtunnel.questions.asked.fleet.when import FleetWhen
from windtunnel.questions.header import Answer, band_entry
from windtunnel.questions.typed import check
from windtunnel.studies.fleet.changed import as_changed, changed_cluster
from windtunnel.studies.fleet.decision import Policy
from windtunnel.studies.fleet.jobs.lint import Finding, lint_jobs
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.standing import as_it_stands
from windtunnel.studies.fleet.jobs.trace import Jobs, Unread, held_at_once
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import Outcome, against_log, aggregates, write_jobs
from windtunnel.studies.fleet.policies.own import policy_of_text, title
from windtunnel.studies.fleet.policies.table import POLICIES, plain_name
from windtunnel.studies.fleet.predicted import predicted_speeds, with_predictions
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import USUAL_NODE, Site, parse_site
from windtunnel.studies.fleet.tables import Runtime, Tables, speeds_by
from windtunnel.studies.fleet.when import When, when

if TYPE_CHECKING:
    from windtunnel.studies.fleet.capacity import Changes
    from windtunnel.studies.fleet.flows.study import FlowsStudy
    from windtunnel.studies.fleet.live.study import LiveRun
from windtunnel.units import format_many, format_time, parse_bandwidth, parse_time

ELASTIC = 0.05  # share of lyra's jobs that can use twice their GPUs, where nobody says
CHANGED = "changed"  # what an answer calls policies after --change
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
    given: dict[str, Any] = {name: value for name, value in by_name.items() if value is not None}
    chosen = replace(options or Options(), **given)
    asked = list(policies) if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
    return FleetResult(site, tuple(simulate(jobs, site, policy, chosen) for policy in asked))


class RunOf(TypedDict):
    """What a fleet's figures are of."""

    trace: str
    where: str  # of the trace's lines
    cluster: str
    gpus: int


@dataclass(frozen=True, eq=False)
class FleetAnswer(Answer):
    """Each policy's figures, of one run or as bands over seeds, and what they are of."""

    named: RunOf
    figures: tuple[dict[str, Any], ...]
    outcomes: tuple[Outcome, ...] = ()  # none where the figures are bands
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was assumed
    frontier: tuple[Mapping[str, float], ...] = ()  # of lyra's loans, where it was asked for
    files: Mapping[str, str] = field(default_factory=dict)  # the scheduler's configuration, where it was asked for

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        document = by_policy(self.figures) | dict(self.named)
        if self.outcomes:
            document["left_out"] = self.left_out
        if self.files:
            document["files"] = dict(self.files)
        return document

    @property
    def left_out(self) -> dict[str, str]:
        """Why jobs could not run, by name."""
        return {one.jobs.name[at]: text for one in self.outcomes for at, text in (one.why or {}).items()}

    @property
    def band(self) -> dict[str, object] | None:
        """Of the mean completion time of a single policy over seeds."""
        bands = self.figures[0].get("bands", {}).get("jct_mean_s") if len(self.figures) == 1 else None
        return None if bands is None else band_entry("jct_mean_s", bands[0], bands[-1])

    @property
    def provenance(self) -> dict[str, object]:
        """Whose jobs they are."""
        return {"jobs": self.named["trace"]}


def by_policy(figures: Sequence[dict[str, object]]) -> dict[str, object]:
    """Figures by policy, and those of a single policy at the top too."""
    only = figures[0] if len(figures) == 1 else {}
    return {**only, "policies": {each["policy"]: each for each in figures}}


def answer(question: Fleet, executor: str = "serial", *, frontier: bool = False) -> FleetAnswer:
    """Run a trace under each policy, or with `seeds` so often on an executor; with changes, before and after them.

    Raises UserError.
    """
    if not question.change:
        return answer_as_it_is(question, executor, frontier=frontier)
    before = answer_as_it_is(replace(question, change=()), executor, frontier=frontier)
    asked = as_changed(question)
    names = [name for name in _policies(asked.policy) if _is_file(name) or not _happened(name)]
    if not names:
        raise SpecError("--change", ", ".join(question.change), "what happened does not change: give a policy too")
    after = answer_as_it_is(replace(asked, policy=",".join(names)), executor, frontier=frontier)
    return replace(
        before,
        figures=(*before.figures, *({**each, "policy": f"{each['policy']} {CHANGED}"} for each in after.figures)),
        outcomes=(*before.outcomes, *(replace(one, policy=f"{one.policy} {CHANGED}") for one in after.outcomes)),
        warnings=tuple(dict.fromkeys((*before.warnings, *(f"{CHANGED}: {line}" for line in after.warnings)))),
        files=after.files,
        notes=tuple(dict.fromkeys((*before.notes, f"{CHANGED}: {', '.join(question.change)}", *after.notes))),
    )


def answer_as_it_is(question: Fleet, executor: str = "serial", *, frontier: bool = False) -> FleetAnswer:
    """Run a trace under each policy on the cluster as it is changed. Raises UserError."""
    names, jobs, site, notes = _asked(question)
    about: RunOf = {"trace": question.trace, "where": question.where, "cluster": site.text, "gpus": site.gpus}
    files = {}
    if question.emit is not None:
        from windtunnel.studies.fleet.emit import emitted

        files = emitted(question.emit, jobs, site)
    if question.seeds is not None:
        from windtunnel.studies.fleet.seeds import run_seeds

        banded = tuple(run_seeds(question, names, question.seeds, executor))
        return FleetAnswer(about, banded, notes=notes, files=files)
    jobs, unfit = with_predictions(jobs, site)
    options = replace(_options(question), changes=_changes(question.capacity))
    if any(name.startswith("lyra") for name in names):
        from windtunnel.studies.fleet.loans.pool_file import loans_of

        elastic = ELASTIC if question.elastic is None else question.elastic
        serving = None if question.serving is None else Path(question.serving)
        options = replace(options, loans=loans_of(serving, elastic, question.seed))
    outcomes = tuple(simulate(jobs, site, policy_of_text(name), options) for name in names)
    warnings = (
        *unfit,
        *_unheeded(jobs, names, placed=bool(site.topology) and not options.pool),
        *dict.fromkeys(line for one in outcomes for line in left_out(one)),
    )
    if question.restart is None:
        often = [one for one in outcomes if one.restarts.any() and one.policy != "current"]
        free = ", ".join(f"{int(one.restarts.sum()):,} with {one.policy}" for one in often)
        if free:
            warnings += (f"restarts cost nothing: {free}; say what one costs with --restart 5min",)
    points: tuple[Mapping[str, float], ...] = ()
    if frontier and question.serving is not None and "lyra" in names:
        from windtunnel.studies.fleet.loans.frontier import frontier as frontier_of

        points = tuple(frontier_of(jobs, site, options))
    figures = tuple(aggregates(outcome, site.gpus) | against_log(outcome) for outcome in outcomes)
    compared = [one for one in figures if one.get("log_wait_error") is not None]
    if compared:
        nearest = min(compared, key=lambda one: float(one["log_start_error_p50_s"]))
        said = f"{nearest['policy']} is nearest to the log's own starts: mean wait {nearest['log_wait_error']:+.0%}"
        notes += (f"{said}, half of the starts within {format_time(nearest['log_start_error_p50_s'])}",)
    return FleetAnswer(about, figures, outcomes, warnings, notes, points, files)


def one_seed(*, question: Mapping[str, object]) -> dict[str, object]:
    """Figures of one policy at one seed; `question` in its plain form, as executors carry it. Raises UserError."""
    return answer_as_it_is(read(question)).figures[0]


def _unheeded(jobs: Jobs, names: Sequence[str], *, placed: bool) -> list[str]:
    """Quotas, priorities and places of the log that policies pay no heed to; `placed`: the cluster has a topology."""
    plain = [plain_name(name) for name in names if not _is_file(name)]
    deaf = {
        "quotas of queues": [each for each in plain if "quota" not in POLICIES[each].needs] if jobs.quotas else [],
        "priorities": [each for each in plain if not POLICIES[each].priorities]
        if len(set(jobs.columns.get("priority", ())) - {""}) > 1
        else [],
        "topology": [each for each in plain if "quota" not in POLICIES[each].needs or not placed]
        if any(jobs.columns.get("topology", ()))
        else [],
    }
    logs = {name for name in plain if POLICIES[name].loop == "log"}
    found = {what: [name for name in who if name not in logs] for what, who in deaf.items()}
    pays = {what: f"{', '.join(who)} {'pays' if len(who) == 1 else 'pay'}" for what, who in found.items() if who}
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


@dataclass(frozen=True, eq=False)
class WhenAnswer(Answer):
    """When a job starts and ends, by policy."""

    trace: str
    cluster: str
    when: tuple[When, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {"trace": self.trace, "cluster": self.cluster, "when": {one.policy: one.to_dict() for one in self.when}}


def answer_when(question: FleetWhen) -> WhenAnswer:
    """When one job starts and ends under each policy, and why it waits. Raises UserError."""
    question = as_changed(question)
    names, jobs, site, notes = _asked(question)
    _refuse_files(names)
    jobs, standing = as_it_stands(jobs, question.job)
    jobs, unfit = with_predictions(jobs, site)
    options = _options(question)
    answers = tuple(
        when(jobs, site, name, options, question.job, draws=question.seeds, spread=question.spread) for name in names
    )
    return WhenAnswer(jobs.source, site.text, answers, (*notes, *standing, *unfit))


@dataclass(frozen=True, eq=False)
class PackAnswer(Answer):
    """Packings of pods by policy."""

    jobs: Jobs
    cluster: str
    packings: tuple[dict[str, object], ...]
    warnings: tuple[str, ...]

    @property
    def figures(self) -> list[dict[str, Any]]:
        """What is said of each policy."""
        return [{key: value for key, value in each.items() if key != "runs"} for each in self.packings]

    @property
    def provenance(self) -> dict[str, object]:
        """Whose pods they are."""
        return {"jobs": self.jobs.source}

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return by_policy(self.figures) | {"trace": self.jobs.source, "cluster": self.cluster}

    def write_rows(self, path: Path) -> None:
        """The first seed's placements."""
        from windtunnel.studies.fleet.packing.study import write_placements

        write_placements(self.jobs, list(self.packings), path)


def answer_pack(question: FleetPack) -> PackAnswer:
    """Pack the pods of a trace on unlike nodes under each policy. Raises UserError."""
    from windtunnel.studies.fleet.packing.study import packing_figures, read_nodes, unknown_models

    names = _policies(question.policy)
    jobs = read_jobs(question.trace, question.where)
    nodes = read_nodes(Path(question.cluster))
    unknown = unknown_models(jobs, nodes[2])
    warnings = (f"gpu_models: no node of {question.cluster} has {', '.join(unknown)}",) if unknown else ()
    packings = tuple(packing_figures(jobs, nodes, name, question.seed, question.seeds) for name in names)
    return PackAnswer(jobs, question.cluster, packings, warnings)


@dataclass(frozen=True, eq=False)
class LintAnswer(Answer):
    """What is wrong with a trace."""

    trace: str
    findings: tuple[Finding, ...]
    read: int = 0
    not_understood: tuple[Unread, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {
            "trace": self.trace,
            "read": self.read,
            "not_understood": [asdict(each) for each in self.not_understood],
            "findings": [finding.to_dict() for finding in self.findings],
        }


def answer_lint(question: FleetLint) -> LintAnswer:
    """Look at a trace. Raises UserError for what cannot be read."""
    site = parse_site(question.cluster) if question.cluster else None
    jobs = read_jobs(question.trace, question.where)
    return LintAnswer(question.trace, tuple(lint_jobs(jobs, site)), len(jobs), jobs.not_understood)


def answer_flows(question: FleetFlows) -> FlowsStudy:
    """Coflows under each policy (`FlowsStudy`). Raises UserError."""
    from windtunnel.studies.fleet.flows import policy_named, read_trace, run_flows
    from windtunnel.studies.fleet.flows.study import PORT_BYTES_PER_S, FlowsStudy

    port = question.port
    names = [policy_named(word.strip()) for word in question.policy.split(",")]
    if len(set(names)) < len(names):
        raise SpecError("--policy", question.policy, "name each policy once")
    if port.replace(".", "").strip().isdigit():  # as likely meant in Gb/s as in bytes per second
        raise SpecError("--port", port, f"say the unit: {port.strip()}Gb/s or {port.strip()}MB/s")
    rate = parse_bandwidth(port, "--port") if port else PORT_BYTES_PER_S
    read = read_trace(Path(question.trace))
    answers = tuple(run_flows(read, name, rate) for name in names)
    none = answers[0].ignored
    warnings = (f"{len(none)} coflows have no mapper and were ignored: {', '.join(none[:20])}",) if none else ()
    return FlowsStudy(question.trace, read.n_ports, answers, warnings)


def answer_live(question: FleetLive, folder: Path) -> LiveRun:
    """The commands of a trace run here (`LiveRun`); their journal is in `folder`. Raises UserError."""
    from windtunnel.studies.fleet.live.study import run_live

    if not question.cluster:
        raise SpecError("--cluster", None, "say on what the jobs run, such as gpu:1x4")
    names, jobs, site, _ = _asked(question)
    _refuse_files(names)
    return run_live(jobs, site, names, folder, question.restart or 0.0, question.host)


def _asked(question: Scheduled) -> tuple[list[str], Jobs, Site, tuple[str, ...]]:
    """The policies, the jobs and the site of a question as changed, and what was assumed. Raises UserError."""
    names, jobs, site, notes = _as_told(question)
    if isinstance(question, Simulated) and question.change:
        jobs, site = changed_cluster(question.change, jobs, site)
    return names, jobs, site, notes


def _as_told(question: Scheduled) -> tuple[list[str], Jobs, Site, tuple[str, ...]]:
    names = _policies(question.policy)
    jobs = read_jobs(question.trace, question.where)
    most = held_at_once(jobs)
    unread = sum(each.count for each in jobs.not_understood)
    notes: tuple[str, ...] = ()
    if unread:
        what = f"{format_many(unread, 'job')} of the log not taken as they stand"
        notes = (f"{what}; `windtunnel fleet lint` says which and why",)
    if question.cluster:
        site = parse_site(question.cluster, question.gpus_per_node)
        if most > site.gpus:
            held = f"jobs of the log held {format_many(most, 'GPU')} at once, and {site.text} has {site.gpus:,}"
            notes += (f"{held}: the cluster is not the log's, or the log's GPUs are no whole GPUs",)
        return names, jobs, site, notes
    if not most:
        raise SpecError("--cluster", None, "say on what the jobs run, such as t4:64")
    cluster = f"gpu:{-(-most // USUAL_NODE) * USUAL_NODE if most > USUAL_NODE else most}"
    assumed = f"--cluster is not given: {cluster}, since the trace's jobs held {format_many(most, 'GPU')} at once"
    return names, jobs, parse_site(cluster, question.gpus_per_node), (*notes, assumed)


def _policies(text: str) -> list[str]:
    """Names of policies, and files of them. Raises SpecError."""
    words = [each.strip() for each in text.split(",") if each.strip()]
    names = [name if _is_file(name) else name.lower() for name in words]
    if not names:
        raise SpecError("--policy", text, "give one, such as fifo")
    if len({title(name) for name in names}) < len(names):  # figures are told apart by it
        raise SpecError("--policy", text, "name each policy once; a YAML file's name: is what it is called")
    return names


def _happened(policy: str) -> bool:
    traits = POLICIES.get(plain_name(policy))
    return traits is not None and traits.loop == "log"


def _is_file(policy: str) -> bool:
    return policy.lower().endswith((".yaml", ".yml"))


def _refuse_files(names: Sequence[str]) -> None:
    file = next(filter(_is_file, names), None)
    if file is not None:
        raise SpecError("--policy", file, "give a policy's name here")


def _options(question: Simulated) -> Options:
    return Options(
        tables=None if question.tables is None else Tables(Path(question.tables)),
        seed=question.seed,
        pool=question.placement == "pool",
        restart_s=question.restart,
        speeds=predicted_speeds(),
    )


def _changes(capacity: Steady | Failing | ByFile) -> Changes | None:
    """What happens to nodes (`Changes`), or None. Raises SpecError."""
    if isinstance(capacity, Steady):
        return None
    from windtunnel.studies.fleet.capacity import Changes

    every = capacity.checkpoint_every
    checkpoint_s = float("inf") if every == "never" else parse_time(every, "--checkpoint-every")
    if isinstance(capacity, ByFile):
        return Changes(None, checkpoint_s=checkpoint_s, trace=Path(capacity.capacity))
    mtbf = capacity.mtbf_node.strip()
    if mtbf[-1:].isdigit():
        raise SpecError("--mtbf-node", mtbf, f"say the unit: {mtbf}d, {mtbf}h or {mtbf}s")
    return Changes(
        parse_time(mtbf, "--mtbf-node"),
        parse_time(capacity.repair, "--repair"),
        capacity.repair_spread,
        capacity.frailty,
        checkpoint_s,
    )
