"""`windtunnel fleet TRACE --cluster GPU:COUNT --policy ...`, and its sub-commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.fleet_flows import flows
from windtunnel.faces.cli.fleet_seeds import changes_of, run_seeds
from windtunnel.faces.cli.output import note, print_answer, show, working
from windtunnel.files.write import check_writable, writing
from windtunnel.questions.header import band_entry
from windtunnel.units import format_many, parse_time

if TYPE_CHECKING:
    from windtunnel.studies.fleet.outcome import Outcome

PACKING_SEEDS = 10
ELASTIC, SPREAD = 0.05, 0.3
PODS = "pods are packed once and never end: give a cluster such as t4:64"
LIVE = "jobs run for real, once, and their simulation is told beside them"

fleet = App(
    name="fleet",
    help="Many jobs, one cluster: what each policy makes of a trace.",
    default_parameter=Parameter(show_default=False),
    help_format="plaintext",
)


@fleet.default
def run(
    trace: Path | None = None,
    /,
    *,
    cluster: Annotated[
        str, Parameter(help="t4:64, t4:16x4 (nodes x GPUs), a YAML file, or a CSV of unlike nodes.")
    ] = "",
    policy: Annotated[
        str, Parameter(help="One or several, separated by commas; a YAML file is one with its parameters (fifo).")
    ] = "fifo",
    clock: Annotated[str | None, Parameter(show=False)] = None,
    where: Annotated[str, Parameter(help="Which lines: workload=1,load=1.0")] = "",
    tables: Annotated[Path | None, Parameter(help="Folder of measured throughputs.")] = None,
    jobs_out: Annotated[Path | None, Parameter(help="Write the outcome of each job, CSV or Parquet.")] = None,
    placement: Annotated[str, Parameter(help="nodes: gangs on real nodes; pool: GPUs are a count (nodes).")] = "nodes",
    gpus_per_node: Annotated[int | None, Parameter(help="Where the usual node of that GPU is not meant.")] = None,
    seed: Annotated[int, Parameter(help="Of policies and clusters that draw (0).")] = 0,
    seeds: Annotated[
        int | None,
        Parameter(
            help="How many runs of each policy give bands (1). Packing: shuffles averaged (10). --when: draws (40)."
        ),
    ] = None,
    executor: Annotated[str, Parameter(help="--seeds: serial, processes, ray or ray:ADDRESS (serial).")] = "serial",
    when: Annotated[str | None, Parameter(help="When will this job start and end, and why does it wait?")] = None,
    spread: Annotated[
        float, Parameter(help="--when: of the logarithm of run times that are not yet known (0.3).")
    ] = SPREAD,
    slot: Annotated[float | None, Parameter(show=False)] = None,
    restart: Annotated[
        str | None, Parameter(help="Without progress after each new allocation, such as 5min or 30 (seconds).")
    ] = None,
    mtbf_node: Annotated[
        str | None, Parameter(help="Nodes fail: mean time between failures of one, with its unit, such as 30d.")
    ] = None,
    repair: Annotated[str | None, Parameter(help="--mtbf-node: until a failed node is back (1h).")] = None,
    checkpoint_every: Annotated[
        str | None,
        Parameter(
            help="Nodes fail: progress between checkpoints; 0: nothing is lost; never: all since the start (30min)."
        ),
    ] = None,
    capacity: Annotated[
        Path | None, Parameter(help="Nodes come and go as in this CSV: time_s,node,gpus or time_s,nodes.")
    ] = None,
    serving: Annotated[Path | None, Parameter(help="Lyra: the serving pool that lends servers, a YAML file.")] = None,
    elastic: Annotated[float, Parameter(help="Lyra: share of jobs that can use twice their GPUs (0.05).")] = ELASTIC,
    full: Annotated[bool, Parameter(negative="", help="Print all of the answer, not its first screen alone.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print the figures as JSON.")] = False,
    report: Annotated[Path | None, Parameter(help="Write an HTML report.")] = None,
    live: Annotated[Path | None, Parameter(help="Run the commands of this YAML here, beside their simulation.")] = None,
    live_folder: Annotated[Path, Parameter(help="Where a live run keeps its journal (fleet-live).")] = Path(
        "fleet-live"
    ),
) -> None:
    """Run a trace of jobs under one policy or several.

    Parameters
    ----------
    trace
        CSV, Parquet, YAML or `sacct -P` text.
    """
    from windtunnel.studies.fleet.jobs.read import read_jobs
    from windtunnel.studies.fleet.jobs.trace import held_at_once
    from windtunnel.studies.fleet.site import USUAL_NODE

    if clock is not None:
        raise SpecError("--clock", clock, "leave it out: published simulators' clocks are in validation/oracles")
    if slot is not None:
        raise SpecError("--slot", slot, "leave it out: a policy's slot is slot_s in its YAML file, --policy edf.yaml")
    if live is not None:
        if trace is not None:
            raise SpecError("TRACE", str(trace), "leave it out: --live names the jobs")
        trace = live
    if trace is None:
        raise SpecError("TRACE", None, "give a trace, or --live JOBS.yaml")
    if placement not in ("nodes", "pool"):
        raise SpecError("--placement", placement, "give nodes or pool")
    names = [each.strip() for each in policy.split(",") if each.strip()]
    described = next((name for name in names if name.lower().endswith((".yaml", ".yml"))), None)
    names = [name if name.lower().endswith((".yaml", ".yml")) else name.lower() for name in names]
    if not names:
        raise SpecError("--policy", policy, "give one, such as fifo")
    from windtunnel.studies.fleet.policies.own import named, title

    if len({title(name) for name in names}) < len(names):  # figures are told apart by it
        raise SpecError("--policy", policy, "name each policy once; a YAML file's name: is what it is called")
    if seed < 0:
        raise SpecError("--seed", seed, "give a whole number from 0 on")
    with working("reading the trace"):
        jobs = read_jobs(trace, where)
    for place in (jobs_out, report):
        if place is not None:
            check_writable(place)
    if not cluster:
        most = held_at_once(jobs)
        if not most or live is not None:
            raise SpecError("--cluster", None, "say on what the jobs run, such as t4:64")
        cluster = f"gpu:{-(-most // USUAL_NODE) * USUAL_NODE if most > USUAL_NODE else most}"
        note(f"--cluster is not given: {cluster}, since the trace's jobs held {format_many(most, 'GPU')} at once")
    packed = cluster.lower().endswith(".csv")
    if described is not None and (packed or live is not None or when is not None):
        raise SpecError("--policy", described, "with --when, --live and packing give a policy's name")
    if executor != "serial" and (seeds is None or when is not None or packed or live is not None):
        raise SpecError("--executor", executor, "it is for runs of one policy at several seeds: give --seeds too")
    lyra = any(name.startswith("lyra") for name in names)
    if packed or live is not None:
        simulated = {
            "--mtbf-node": mtbf_node,
            "--capacity": capacity,
            "--repair": repair,
            "--checkpoint-every": checkpoint_every,
            "--when": when,
            "--tables": tables,
            "--placement": None if placement == "nodes" else placement,
            "--report": report,
            "--serving": serving,
        }
        of_jobs = {"--restart": restart, "--gpus-per-node": gpus_per_node}  # that really run
        of_pods = {"--seeds": seeds, "--jobs-out": jobs_out, "--seed": seed or None}
        for name, value in {**simulated, **(of_jobs if packed else of_pods)}.items():
            if value is not None:
                raise SpecError(name, str(value), f"leave it out: {PODS if packed else LIVE}")
    if elastic != ELASTIC and not lyra:
        raise SpecError("--elastic", elastic, "it is a share of lyra's jobs: give --policy lyra, or leave it out")
    if spread != SPREAD and when is None:
        raise SpecError("--spread", spread, "it is how far run times are drawn apart for --when: give that too")
    if packed:
        _pack(jobs, cluster, names, seed, PACKING_SEEDS if seeds is None else seeds, jobs_out, json)
        return
    from windtunnel.studies.fleet.options import Options
    from windtunnel.studies.fleet.outcome import aggregates, write_jobs
    from windtunnel.studies.fleet.run import simulate
    from windtunnel.studies.fleet.site import parse_site
    from windtunnel.studies.fleet.tables import Tables

    if serving is not None and not lyra:
        raise SpecError("--serving", str(serving), "it is the pool that lends servers to lyra: leave it out")
    site = parse_site(cluster, gpus_per_node)
    restart_s = None if restart is None else parse_time(restart, "--restart")
    if live is not None:
        from windtunnel.faces.cli.fleet_live import run_live

        run_live(jobs, site, names, live_folder, json, restart_s or 0.0)
        return
    failing = (mtbf_node, repair, checkpoint_every, None if capacity is None else str(capacity))
    changes = changes_of(*failing)
    if seeds is not None and when is None:
        if jobs_out is not None or report is not None:
            raise SpecError("--seeds", seeds, "it prints bands over runs: leave out --jobs-out and --report")
        asked = {
            "trace": str(trace),
            "where": where,
            "cluster": cluster,
            "gpus_per_node": gpus_per_node,
            "seed": seed,
            "tables": None if tables is None else str(tables),
            "pool": placement == "pool",
            "restart": restart_s,
            "failing": failing,
            "serving": None if serving is None else str(serving),
            "elastic": elastic,
        }
        with working("running seeds"):
            banded = run_seeds(names, seeds, executor, asked)
        document = _document(banded, trace=str(trace), where=where, cluster=cluster, gpus=site.gpus)
        bands = banded[0]["bands"].get("jct_mean_s") if len(banded) == 1 else None
        _show(document, banded, json, band=None if bands is None else band_entry("jct_mean_s", bands[0], bands[-1]))
        return
    from windtunnel.faces.cli.fleet_predicted import predicted_speeds, with_predictions

    with working("predicting what jobs take"):
        jobs, unfit = with_predictions(jobs, site)
    for line in unfit:
        note(line)
    options = Options(
        tables=None if tables is None else Tables(tables),
        seed=seed,
        pool=placement == "pool",
        restart_s=restart_s,
        speeds=predicted_speeds(),
        changes=changes,
    )
    if lyra:
        from windtunnel.faces.cli.fleet_loans import loans_of

        with working("serving"):
            options = replace(options, loans=loans_of(serving, elastic, seed))
    if when is not None:
        if jobs_out is not None or report is not None:
            raise SpecError("--when", when, "it prints an answer of its own: leave out --jobs-out and --report")
        if options.changes is not None:
            raise SpecError("--when", when, "it draws run times only: leave out --mtbf-node and --capacity")
        from windtunnel.faces.cli.fleet_when import answer_when

        answer_when(jobs, site, names, options, when, seeds, spread, json)
        return
    outcomes = []
    for name in names:
        with working(f"running {name}"):
            outcomes.append(simulate(jobs, site, named(name), options))
    warnings = [*unfit, *dict.fromkeys(line for outcome in outcomes for line in left_out(outcome))]
    for line in warnings[len(unfit) :]:
        note(line)
    figures = [aggregates(outcome, site.gpus) for outcome in outcomes]
    if jobs_out is not None:
        with writing(jobs_out):
            write_jobs(outcomes, jobs_out)
    why = {one.jobs.name[at]: text for one in outcomes for at, text in (one.why or {}).items()}
    document = _document(figures, trace=str(trace), where=where, cluster=cluster, gpus=site.gpus, left_out=why)
    _show(document, figures, json, full=full, warnings=warnings)
    if report is not None:
        from windtunnel.faces.report.draw.page import write_page
        from windtunnel.faces.report.fleet import Fleet, fleet_document

        points: Sequence[dict[str, float]] = ()
        if serving is not None and "lyra" in names:
            from windtunnel.studies.fleet.loans.frontier import frontier

            with working("drawing the frontier"):
                points = frontier(jobs, site, options)
        write_page(fleet_document(Fleet(str(trace), cluster, site.gpus, figures, outcomes, why, points)), report)
        note(f"wrote {report}")


def left_out(outcome: Outcome, most: int = 5) -> list[str]:
    """One line for each kind of job that could not run, naming the first few."""
    why = outcome.why or {}
    lines = []
    for text in dict.fromkeys(why.values()):
        named = [outcome.jobs.name[at] for at in why if why[at] == text]
        shown = ", ".join(named[:most]) + (", ..." if len(named) > most else "")
        lines.append(f"{len(named)} job{'s' * (len(named) > 1)} left out, {text}: {shown}")
        if len(lines) == most:
            lines.append(f"{format_many(len(why), 'job')} left out in all; `windtunnel fleet lint` names them")
            break
    return lines


def _document(figures: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What `--json` prints: figures by policy, and those of a single policy at the top too."""
    only = figures[0] if len(figures) == 1 else {}
    return {**only, **more, "policies": {each["policy"]: each for each in figures}}


def _show(
    document: dict[str, Any],
    figures: list[dict[str, Any]],
    json: bool,
    *,
    full: bool = False,
    band: dict[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> None:
    if json:
        print_answer("fleet", document, band=band, provenance={"jobs": document["trace"]}, warnings=warnings)
        return
    from windtunnel.faces.report.fleet import Fleet, fleet_document

    bands = [each["bands"] for each in figures if "bands" in each]
    left_out = document.get("left_out", {})
    answer = Fleet(document["trace"], document["cluster"], document.get("gpus"), figures, (), left_out, (), bands)
    show(fleet_document(answer), full=full)


def _pack(jobs: Any, cluster: str, names: list[str], seed: int, seeds: int, jobs_out: Path | None, json: bool) -> None:
    from windtunnel.studies.fleet.packing.study import packing_figures, read_nodes, unknown_models, write_placements

    nodes = read_nodes(Path(cluster))
    unknown = unknown_models(jobs, nodes[2])
    warnings = [f"gpu_models: no node of {cluster} has {', '.join(unknown)}"] if unknown else []
    for line in warnings:
        note(line)
    figures = []
    for name in names:
        with working(f"packing with {name}"):
            figures.append(packing_figures(jobs, nodes, name, seed, seeds))
    if jobs_out is not None:
        with writing(jobs_out):
            write_placements(jobs, figures, jobs_out)
    shown = [{key: value for key, value in each.items() if key != "runs"} for each in figures]
    _show(_document(shown, trace=jobs.source, cluster=cluster), shown, json, warnings=warnings)


@fleet.command
def lint(
    trace: Path,
    /,
    *,
    cluster: Annotated[str, Parameter(help="The cluster that the load is held against.")] = "",
    where: Annotated[str, Parameter(help="Which lines: workload=1,load=1.0")] = "",
    json: Annotated[bool, Parameter(negative="", help="Print the findings as JSON.")] = False,
) -> int:
    """Say what is wrong with a trace; status 3 where something cannot be right.

    Parameters
    ----------
    trace
        CSV, Parquet, YAML or `sacct -P` text.
    """
    from windtunnel.studies.fleet.jobs.lint import lint_jobs
    from windtunnel.studies.fleet.jobs.read import read_jobs
    from windtunnel.studies.fleet.site import parse_site

    site = parse_site(cluster) if cluster else None
    findings = lint_jobs(read_jobs(trace, where), site)
    if json:
        print_answer("fleet lint", {"trace": str(trace), "findings": [finding.to_dict() for finding in findings]})
    else:
        for finding in findings:
            print(f"{finding.severity}: {finding.text}; {finding.remedy}")
        if not findings:
            print("nothing found")
    return 3 if any(finding.severity == "error" for finding in findings) else 0


fleet.command(flows)
