"""`windtunnel predict MODEL --cluster SPEC ...`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import note, print_json, stdout, working
from windtunnel.faces.cli.plan_flags import Changes, PlanFlags
from windtunnel.questions.scenario import CALM, Scenario
from windtunnel.units import format_count, parse_share, parse_tokens

if TYPE_CHECKING:
    from windtunnel.physics.step.result import Result

INFEASIBLE = 3
OPS_IN_JSON = Path("json")  # as `--ops` says it


def predict(
    model: str,
    /,
    *,
    cluster: Annotated[str, Parameter(help="GPU and count, e.g. h100-sxm:8192, or a cluster file in YAML.")],
    plan: Annotated[
        Path | None,
        Parameter(
            help="Plan file in YAML, or the framework's own: torchtitan TOML, Megatron-Core arguments (.sh, .args),"
            " DeepSpeed JSON, Accelerate YAML; flags override it."
        ),
    ] = None,
    flags: PlanFlags = PlanFlags(),
    set: Changes = (),
    slow: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            help="A disturbance, or a YAML file with a list of them; repeatable. gpu=1037:1.15, random=1%:1.2,"
            " stage=3:1.05, thermal=1037:1.2:300, link=node12.nic3:0.5, lost=node12.nic3, uplink=leaf2:0.5, ecmp=7,"
            " pause=0.5%:200ms, noise=2%.",
        ),
    ] = (),
    router_load: Annotated[
        str | None,
        Parameter(
            help="Popularity of experts: CSV with expert,tokens or layer,expert,tokens or step,layer,expert,tokens, or"
            " a power law zipf:EXPONENT."
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        Parameter(help="CSV with length,count of the documents that sequences are packed from; no attention between."),
    ] = None,
    technique: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            help="What it would bring: NAME[:key=value,...], e.g. lina or sparse_gradients:ratio=0.01; repeatable;"
            " `windtunnel techniques` lists them.",
        ),
    ] = (),
    allocator: Annotated[
        str | None,
        Parameter(
            help="PyTorch's allocator settings for a captured script, as PYTORCH_ALLOC_CONF takes them, e.g."
            " expandable_segments:True (as captured)."
        ),
    ] = None,
    jitter: Annotated[str, Parameter(help="Relative standard deviation of each pass, e.g. 2% (0).")] = "0",
    samples: Annotated[int, Parameter(help="Steps to sample where something is random (default 200).")] = 0,
    seed: Annotated[int, Parameter(help="Seed of what is drawn at random (0).")] = 0,
    advice: Annotated[
        bool, Parameter(negative="--no-advice", help="Predict what would make it faster, or make it fit, as well.")
    ] = True,
    tokens: Annotated[
        str | None,
        Parameter(help="Tokens of the whole training, e.g. 15T: days, GPU-hours and, with --price, its cost."),
    ] = None,
    price: Annotated[float | None, Parameter(help="Of one GPU for an hour, e.g. 2.5.")] = None,
    report: Annotated[Path | None, Parameter(help="Write an HTML report here.")] = None,
    trace: Annotated[Path | None, Parameter(help="Write a timeline for Perfetto here (gzipped Chrome JSON).")] = None,
    ops: Annotated[
        Path | None,
        Parameter(help="Write a table of every op of the undisturbed step: a .parquet file, or json: into --json."),
    ] = None,
    launch_flags: Annotated[
        Literal["megatron", "torchtitan", "deepspeed", "accelerate"] | None,
        Parameter(help="Print the plan as that framework is launched with it, too."),
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the result as JSON.")] = False,
    out: Annotated[Path, Parameter(help="Where run folders go (runs).")] = Path("runs"),
    save: Annotated[bool, Parameter(negative="--no-save", help="Save a run folder.")] = True,
) -> int:
    """Predict one training step: how long, where the time goes, whether it fits, and how sure that is.

    The exit status is 3 for a job that does not fit in memory.

    Parameters
    ----------
    model
        Name of a shipped model, e.g. llama-3.1-405b, the path of a Hugging Face config.json, or a folder that
        `windtunnel capture` wrote.
    """
    outputs: dict[Path, str] = {}
    for name, path in (("--report", report), ("--trace", trace), ("--ops", None if ops == OPS_IN_JSON else ops)):
        if path is not None and (taken := outputs.setdefault(path.resolve(), name)) != name:
            raise SpecError(name, str(path), f"is the file of {taken} too; give each a name of its own")
    if price is not None and tokens is None:
        raise SpecError("--price", price, "give --tokens as well, e.g. --tokens 15T")
    if ops is not None:
        check_ops(ops, model, technique, json=json)
    if launch_flags is not None:
        from windtunnel.faces.cli.captured import is_captured_word

        if is_captured_word(model):
            raise SpecError("--launch-flags", launch_flags, "a captured script has its own flags: name a model instead")
    if tokens is not None:
        parse_tokens(tokens, "--tokens")
    with working(f"predicting without and with {', '.join(technique)}" if technique else "predicting"):
        result, advised = answered_at_first(
            model,
            cluster=cluster,
            plan=plan,
            flags=flags,
            set=set,
            technique=technique,
            allocator=allocator,
            scenario=Scenario(
                slow=slow,
                jitter=parse_share(jitter, "jitter"),
                router_load=router_load,
                lengths=lengths,
                samples=samples,
                seed=seed,
            ),
        )
    if json and advice:
        with working("trying changes of the plan"):
            result = advised()
    whole = None if tokens is None else training_run(result, tokens, price)
    rows = [] if ops is None else asked_ops(model, cluster, plan, flags, set)
    # Printed first: a finished answer is not lost where it cannot be written.
    if json:
        from windtunnel.faces.report.prediction.document import TRAINING_RUN, to_document

        more: dict[str, Any] = {} if whole is None else {TRAINING_RUN: whole}
        if ops == OPS_IN_JSON:
            more["ops"] = rows
        if launch_flags is not None:
            more["launch"] = launched(launch_flags, result)
        print_json(to_document(result) | more)
    else:
        from windtunnel.faces.report.prediction.console import print_advice, print_result

        print_result(result, stdout())
        if whole is not None:
            print(told_run(whole))
        for name, text in ({} if launch_flags is None else launched(launch_flags, result)).items():
            stdout().print(f"\n{name}:\n{text}", soft_wrap=True, markup=False, highlight=False, end="")
        if advice:  # behind the answer, which need not wait for a hundred others
            sys.stdout.flush()
            with working("trying changes of the plan"):
                result = advised()
            print_advice(result, stdout())
    written = []
    if report is not None:
        from windtunnel.faces.report.prediction.html import write_html

        write_html(result, report)
        written.append(report)
    if trace is not None:
        from windtunnel.faces.report.prediction.trace import write_trace

        write_trace(result, trace)
        written.append(trace)
    if ops is not None and ops != OPS_IN_JSON:
        from windtunnel.studies.training.op_table import write_ops

        write_ops(rows, ops)
        written.append(ops)
    if save:
        from windtunnel.faces.report.run_folder import save as save_run

        written.append(save_run(result, out))
    if samples and (result.disturbed is None or result.disturbed.samples is None):
        note("--samples changes nothing: nothing is random; add --jitter, --lengths, or --slow with noise or a pause")
    for path in written:
        note(f"wrote {path}")
    return INFEASIBLE if result.status == "infeasible" else 0


def check_ops(ops: Path, model: str, technique: Sequence[str], *, json: bool) -> None:
    """Refuse, before anything is predicted, a `--ops` that cannot be answered. Raises SpecError."""
    from windtunnel.faces.cli.captured import is_captured_word

    if ops != OPS_IN_JSON and ops.suffix != ".parquet":
        raise SpecError("--ops", str(ops), "name a .parquet file, or say json together with --json")
    if ops == OPS_IN_JSON and not json:
        raise SpecError("--ops", str(ops), "add --json, or name a .parquet file")
    if is_captured_word(model):
        raise SpecError(
            "--ops", str(ops), "leave it out: the table is of a model with a plan, not of a captured script"
        )
    if technique:
        raise SpecError("--ops", str(ops), "the table is of plans without a technique: leave one out")


def asked_ops(
    model: str, cluster: str, plan: Path | None, flags: PlanFlags, set: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows of `training.op_table` for what `predict` is asked."""
    from windtunnel.studies.training.op_table import op_rows
    from windtunnel.studies.training.question import Question

    question = Question.asked(model, cluster, plan, flags.given(), set)
    return op_rows(question.model, question.cluster, question.plan)


def launched(kind: str, result: Result) -> dict[str, str]:
    """File name -> text: the predicted plan as a framework is launched with it."""
    from windtunnel.studies.training.launch import launch_flags

    plan = dict(result.spec.get("plan") or {})
    if not any(layer["feed_forward"]["kind"] == "moe" for layer in result.spec["model"]["layers"]):
        plan["etp"] = None
    name, text, _ = launch_flags(kind, plan, result.n_gpus, result.spec["model"]["name"])
    return {name: text}


def training_run(result: Result, tokens: str, price: float | None) -> dict[str, float]:
    """Days, GPU-hours and cost of a whole training at the predicted step, with its band; failures not counted."""
    count = parse_tokens(tokens, "--tokens")
    if not result.tokens_per_step:
        raise SpecError("--tokens", tokens, "leave it out: how many tokens a step of this script has is not known")
    if price is not None and not 0.0 <= price < 1e6:
        raise SpecError("--price", price, "give the price of one GPU for an hour, 0 or more")
    steps = -(-count // result.tokens_per_step)
    found: dict[str, float] = {"tokens": count, "steps": steps}
    bands = {"": result.step_time_ns, "_p5": result.step_time_p5_ns, "_p95": result.step_time_p95_ns}
    for name, step_ns in bands.items():
        hours = steps * step_ns / 3.6e12
        found[f"days{name}"], found[f"gpu_hours{name}"] = hours / 24.0, hours * result.n_gpus
        if price is not None:
            found[f"cost{name}"] = hours * result.n_gpus * price
    return found


def told_run(whole: Mapping[str, float]) -> str:
    """A whole training, a line for each figure."""
    lines = [
        f"Whole training: {format_count(whole['tokens'])} tokens in {whole['steps']:,.0f} steps, without failures",
        f"  {whole['days']:,.1f} days (p5–p95 {whole['days_p5']:,.1f} – {whole['days_p95']:,.1f})",
        f"  {format_count(whole['gpu_hours'])} GPU-hours",
    ]
    if "cost" in whole:
        lines.append(f"  cost {whole['cost']:,.0f} ({whole['cost_p5']:,.0f} – {whole['cost_p95']:,.0f})")
    return "\n".join(lines)


def answered(model: str, /, *, cluster: str, advice: bool = True, **asked: Any) -> Result:
    """The answer to `predict` with these arguments, as `answered_at_first` takes them; `advice`: with its advice."""
    result, advised = answered_at_first(model, cluster=cluster, **asked)
    return advised() if advice else result


def answered_at_first(
    model: str,
    /,
    *,
    cluster: str,
    plan: Path | None = None,
    flags: PlanFlags = PlanFlags(),
    set: Sequence[str] = (),
    technique: Sequence[str] = (),
    allocator: str | None = None,
    scenario: Scenario = CALM,
) -> tuple[Result, Callable[[], Result]]:
    """The answer to `predict`, and what makes of it the answer with the changes that were predicted to help.

    A captured script gets no advice: what would have to change there is its code.
    """
    from windtunnel.faces.cli.captured import answered_captured, is_captured_word
    from windtunnel.physics.hardware.mixed import parse_mixed
    from windtunnel.studies.training.question import Question

    if is_captured_word(model):
        if technique:
            raise SpecError("--technique", technique[0], "techniques rewrite the step of a plan: name a model instead")
        captured = answered_captured(
            model, cluster=cluster, plan=plan, flags=flags.given(), set=set, scenario=scenario, allocator=allocator
        )
        return captured, lambda: captured
    if allocator is not None:
        raise SpecError(
            "--allocator", allocator, "leave it out: a plan follows its framework; a captured folder takes it"
        )
    mixed = parse_mixed(cluster)
    if mixed is not None:
        if technique or set or scenario.samples or scenario.disturbs:
            why = "of several types of GPU: leave out techniques, --set, disturbances, routers and lengths"
            raise SpecError("--cluster", cluster, why)
        question = Question.asked(model, cluster, plan, flags.given(), set, mixed.alike()[0])
        from windtunnel.studies.training import predict as step_of

        of_types = question.as_named(step_of(question.model, mixed, question.plan))
        return of_types, lambda: of_types
    question = Question.asked(model, cluster, plan, flags.given(), set)

    if not technique:
        result, with_them = question.answer(scenario), None
    else:
        from windtunnel.studies.techniques import predict_with

        def with_them(asked: Question) -> Result:
            return asked.as_named(predict_with(asked.model, asked.cluster, asked.plan, technique, scenario=scenario))

        result = with_them(question)

    def advised() -> Result:
        from windtunnel.studies.planning import advice

        return advice.advised(result, question, scenario, with_them)

    return result, advised
