"""`windtunnel survive [MODEL] --cluster SPEC ...` and `windtunnel survive --spot TRACE.csv ...`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import note, print_answer, stdout, working
from windtunnel.faces.cli.plan_flags import PlanFlags
from windtunnel.output_file import write_atomically

if TYPE_CHECKING:
    from windtunnel.physics.hardware import Cluster
    from windtunnel.real.survive.question import Shape

SPOT = Group("Spot machines", sort_key=6)


def survive(
    model: str | None = None,
    /,
    *,
    cluster: Annotated[str | None, Parameter(help="GPU and count, e.g. h100-sxm:16384, or a cluster file.")] = None,
    plan: Annotated[Path | None, Parameter(help="Plan file in YAML; flags override it.")] = None,
    flags: PlanFlags = PlanFlags(),
    set: Annotated[
        tuple[str, ...], Parameter(name="--set", negative="", help="Change one number, as in predict.")
    ] = (),
    days: Annotated[float | None, Parameter(help="Wall time of the run in days (54).")] = None,
    policy: Annotated[
        str,
        Parameter(
            help="Policies with commas between them: restart, standby, byterobust, shrink, ft-hsdp, oobleck, varuna,"
            " parcae; with --spot: parcae, varuna, on-demand (restart,standby,shrink,parcae)."
        ),
    ] = "",
    failures: Annotated[
        str | None,
        Parameter(help="llama3, rsc-1, rsc-2, production, none, a YAML file, or a CSV log with --observed (llama3)."),
    ] = None,
    observed: Annotated[
        str | None, Parameter(help="GPUs and days that a CSV log was kept for, e.g. 1024:30 or 1024x8:30.")
    ] = None,
    checkpoint: Annotated[str, Parameter(help="Work between checkpoints, e.g. 10min, or auto (auto).")] = "auto",
    standbys: Annotated[str, Parameter(help="Machines kept warm, or auto (auto).")] = "auto",
    recovery: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="A time of a recovery, e.g. schedule=2min or load=90s; repeatable."),
    ] = (),
    planned_every: Annotated[
        str | None, Parameter(help="Planned changes of one machine too, so far apart on average, e.g. 2h (none).")
    ] = None,
    storage: Annotated[
        str | None,
        Parameter(help="Bandwidth of the file system, e.g. 2TB/s; loading is computed with it (0.25 GB/s a GPU)."),
    ] = None,
    step_time: Annotated[str | None, Parameter(help="Step time where no model is given (10s).")] = None,
    gpu_hour: Annotated[float | None, Parameter(help="Dollars for one GPU-hour; no money without it.")] = None,
    seeds: Annotated[int, Parameter(help="Runs to sample (200).")] = 200,
    seed: Annotated[int, Parameter(help="Seed of what is drawn at random (0).")] = 0,
    spot: Annotated[
        Path | None,
        Parameter(group=SPOT, help="CSV of spot machines: time_s,event,node or minute,added,removed."),
    ] = None,
    tables: Annotated[
        Path | None,
        Parameter(group=SPOT, help="Folder with parcae_throughput.csv and parcae_constants.csv (the trace's)."),
    ] = None,
    forecast: Annotated[
        Literal["known", "persistence"] | None,
        Parameter(group=SPOT, help="What parcae knows: the future (known), or that nothing changes (persistence)."),
    ] = None,
    look_ahead: Annotated[int | None, Parameter(group=SPOT, help="Minutes that parcae looks ahead (12).")] = None,
    spot_gpu_hour: Annotated[
        float | None, Parameter(group=SPOT, help="Dollars for one GPU-hour of a spot machine; --gpu-hour: on-demand.")
    ] = None,
    decisions_out: Annotated[
        Path | None, Parameter(group=SPOT, help="Write minute,d,p of the first policy here.")
    ] = None,
    failures_out: Annotated[Path | None, Parameter(help="Write the failure process as YAML here.")] = None,
    report: Annotated[Path | None, Parameter(help="Write an HTML report here.")] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the answer as JSON.")] = False,
) -> None:
    """Say what failures cost a job at its scale, policy by policy: effective training time, where the rest goes,
    money.

    Parameters
    ----------
    model
        Name or config.json of a model, as in predict; with --spot a model of the tables, e.g. bert. Without one, step
        time and state are assumed.
    """
    names = [name.strip() for name in policy.split(",") if name.strip()]
    of_study = {
        "cluster": cluster, "plan": plan, "days": days, "failures": failures, "observed": observed,
        "checkpoint": None if checkpoint == "auto" else checkpoint,
        "standbys": None if standbys == "auto" else standbys,
        "recovery": recovery or None, "planned-every": planned_every, "storage": storage, "step-time": step_time,
        "set": set or None, "seeds": None if seeds == 200 else seeds, "failures-out": failures_out, "report": report,
        **{name.replace("_", "-"): value for name, value in flags.given().items()},
    }  # fmt: skip
    of_spot = {
        "decisions-out": decisions_out, "spot-gpu-hour": spot_gpu_hour, "tables": tables, "forecast": forecast,
        "look-ahead": look_ahead,
    }  # fmt: skip
    if spot is not None:
        _refuse(of_study, "leave it out: with --spot the trace and its tables say all of the job")
        from windtunnel.faces.report.survival.console import print_spot
        from windtunnel.studies.resilience.spot import survive_spot

        with working("surviving"):
            spots = survive_spot(
                spot, names, model=model, tables=tables, forecast=forecast or "known", look_ahead=look_ahead,
                seed=seed, usd_per_gpu_hour=gpu_hour, usd_per_spot_gpu_hour=spot_gpu_hour,
            )  # fmt: skip
        if model is None and len(spots.models) > 1:
            others = ", ".join(name for name in spots.models if name != spots.model)
            note(f"model {spots.model}; name another as the first word: {others}")
        if decisions_out is not None:
            write_atomically(decisions_out, spots.decisions_csv().encode())
            note(f"wrote {decisions_out}")
        if json:
            print_answer("survive --spot", spots.to_dict(), provenance={"machines": str(spot)})
        else:
            print_spot(spots, stdout())
        return
    _refuse(of_spot, "it needs --spot TRACE.csv")
    if cluster is None:
        raise SpecError("--cluster", None, "name the cluster, e.g. h100-sxm:16384, or give --spot TRACE.csv")
    from windtunnel.questions.header import band_entry
    from windtunnel.real.survive.question import DEFAULT_POLICIES, asked_of
    from windtunnel.studies.resilience import survive as survived

    with working("predicting"):
        machine, shape = _job(model, cluster, plan, flags, set, step_time)
        asked = asked_of(
            shape,
            machine,
            days=54.0 if days is None else days,
            policies=tuple(names) or DEFAULT_POLICIES,
            failures=failures or "llama3",
            observed=observed,
            checkpoint=checkpoint,
            standbys=standbys,
            recovery=recovery,
            storage=storage,
            gpu_hour=gpu_hour,
            planned_every=planned_every,
            seeds=seeds,
            seed=seed,
        )
    if failures_out is not None:
        from windtunnel.studies.resilience import process_to_yaml

        write_atomically(failures_out, process_to_yaml(asked.process).encode())
        note(f"wrote {failures_out}")
    with working("surviving"):
        answer = survived(asked)
    if report is not None:
        from windtunnel.faces.report.survival.page import write_survival

        write_survival(answer, report)
        note(f"wrote {report}")
    if json:
        print_answer(
            "survive",
            answer.to_dict(),
            band=band_entry("ettr", answer.entries[0].ettr_p5, answer.entries[0].ettr_p95),
            provenance={"failures": asked.process.source},
        )
    else:
        from windtunnel.faces.report.survival.console import print_survival

        print_survival(answer, stdout())


def _refuse(options: Mapping[str, object], remedy: str) -> None:
    for name, value in options.items():
        if value is not None:
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            raise SpecError(f"--{name}", str(shown) if isinstance(shown, Path) else shown, remedy)


def _job(
    model: str | None,
    cluster: str,
    plan: Path | None,
    flags: PlanFlags,
    sets: tuple[str, ...],
    step_time: str | None,
) -> tuple[Cluster, Shape]:
    """The machine, and the job on it: predicted where a model is named, assumed where none is."""
    from windtunnel.real.survive.question import assumed, predicted
    from windtunnel.studies.training.question import Question, changed_cluster, settings_of

    if model is None:
        settings = settings_of(sets)
        _refuse(
            {"plan": plan, "set": sets if any(settings[part] for part in settings if part != "cluster") else None},
            "it needs a model: without one the job is assumed",
        )
        machine = changed_cluster(cluster, settings["cluster"])
        return machine, assumed(machine, flags.given(), step_time)
    if step_time is not None:
        raise SpecError("--step-time", step_time, "leave it out: the step is predicted for the model")
    question = Question.asked(model, cluster, plan, flags.given(), sets)
    return question.cluster, predicted(question.model, question.cluster, question.plan)
