"""The answer to `predict`: of a model with a plan, of several types of GPU, with techniques, of a captured script."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError, UserError, about_file
from windtunnel.physics.hardware import Cluster, with_settings
from windtunnel.physics.hardware.mixed import parse_mixed
from windtunnel.physics.step.result import Result
from windtunnel.questions import plain, read
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.plan import Plan, Script
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.reading import plain_part
from windtunnel.questions.words import command
from windtunnel.studies.training import predict as step_of
from windtunnel.studies.training.plan import read_plan
from windtunnel.studies.training.question import cluster_of, model_of

if TYPE_CHECKING:
    from windtunnel.studies.measured_run import MeasuredRun
    from windtunnel.studies.measured_run.anchoring import Anchor

SCRIPT_HAS_IT = (
    "leave it out: the captured script has its layout, batch and lengths in it; capture it again with others, or let"
    " `windtunnel plan` cut it into --pp stages of --dp replicas"
)


def answer(question: Predict) -> Result:
    """The answer to a question, without advice. Raises UserError."""
    return answer_at_first(question)[0]


def answer_at_first(question: Predict, notes: tuple[str, ...] = ()) -> tuple[Result, Callable[[], Result]]:
    """The answer, and what makes of it the answer with the changes that were predicted to help.

    A captured script gets no advice: what would have to change there is its code. `notes`: warnings of whoever read the
    question's files. Raises UserError.
    """
    if is_captured(question.model.base):
        captured = _of_script(question)
        return captured, lambda: captured
    if isinstance(question.plan, Script):
        if question.plan.allocator is not None:
            remedy = "leave it out: a plan follows its framework; a captured folder takes it"
            raise SpecError("--allocator", question.plan.allocator, remedy)
        question, unknown = _with_own_plan(question)
        notes = (*notes, *unknown)
    assert isinstance(question.plan, Plan)
    plan = read_plan(question.plan)
    mixed = parse_mixed(question.cluster.base) if question.cluster.base is not None else None
    if mixed is not None:
        changes = len(plain_part(question.model)) > 1 or len(plain_part(question.cluster)) > 1
        odd = question.technique or question.anchor or question.scenario.samples or question.scenario.disturbs
        if changes or odd:
            why = "of several types of GPU: leave out techniques, anchors, --set, disturbances, routers and lengths"
            raise SpecError("--cluster", question.cluster.base, why)
        of_types = _as_asked(step_of(model_of(question.model, mixed.n_gpus), mixed, plan), question, notes)
        return of_types, lambda: of_types
    cluster = cluster_of(question.cluster)
    model = model_of(question.model, cluster.n_gpus)

    def again(machine: Cluster, other: Plan) -> Result:
        if not question.technique:
            return step_of(model, machine, other, scenario=question.scenario)
        from windtunnel.studies.techniques import predict_with

        return predict_with(model, machine, other, question.technique, scenario=question.scenario)

    result = _as_asked(again(cluster, plan), question, notes)
    move = _anchored(question, result)

    def with_advice() -> Result:
        from windtunnel.studies.planning.advice.advise import with_advice

        disturbed = bool(question.technique) or question.scenario.disturbs
        return move(with_advice(result, model, cluster, plan, again if disturbed else None))

    return move(result), with_advice


def _with_own_plan(question: Predict) -> tuple[Predict, tuple[str, ...]]:
    """A question without a plan, with that of the launch file that names its model; and what was not understood there.

    Raises UserError where its model is no such file.
    """
    from windtunnel.studies.training.launch import read_native
    from windtunnel.studies.training.question import states_model

    if not states_model(question.model.base):
        raise UserError("global_batch is not given: add --global-batch N, or put it in the plan file")
    stated = of_launch_file(question.model, question.cluster, plain_part(question.plan)).plan
    native = read_native(question.model.base, cluster_of(question.cluster).n_gpus)
    unknown = (f"{native.where}: not understood: {', '.join(native.unknown)}",) if native.unknown else ()
    return replace(question, plan=stated), unknown


def _anchored(question: Predict, result: Result) -> Callable[[Result], Result]:
    """What moves the answer by the runs that were measured."""
    if not question.anchor:
        return lambda result: result
    from windtunnel.studies.measured_run.anchoring import check_anchorable, with_anchors

    check_anchorable(result)
    anchors = [_anchor_of(path, question) for path in question.anchor]
    return lambda result: with_anchors(result, anchors)


def _anchor_of(path: str, question: Predict) -> Anchor:
    """A measured run beside what is predicted for it; what a log does not say of its job is as in the question."""
    from windtunnel.studies.measured_run.anchoring import (
        Anchor,
        check_anchorable,
        check_possible,
        is_anchor_file,
        read_anchor,
    )

    with about_file(path):
        if is_anchor_file(path):
            measured_s, own = read_anchor(path)
            anchor = Anchor(path, measured_s, answer(own))
            check_anchorable(anchor.predicted)
        else:
            anchor, own = _logged_anchor(path, question)
        check_possible(anchor, model_of(own.model, anchor.predicted.n_gpus))
    return anchor


def _logged_anchor(path: str, question: Predict) -> tuple[Anchor, Predict]:
    """Of a log, and the question that predicts its job. Raises UserError."""
    from windtunnel.studies.measured_run import read_run, steady_of
    from windtunnel.studies.measured_run.anchoring import REMEDY, Anchor, check_steady

    run, machine = read_run([path]), cluster_of(question.cluster)
    n_gpus = with_settings(machine, {"gpus": run.n_gpus or machine.n_gpus}).n_gpus  # else an error would blame --set
    fields = {**plain_part(question.plan), **logged_plan(run, n_gpus)}
    fields.pop("dp", None)  # follows from the GPUs of that job
    own = replace(question, cluster=replace(question.cluster, n_gpus=n_gpus), plan=read_plan(fields), anchor=())
    predicted = answer(own)
    tokens, sequences = float(predicted.tokens_per_step), predicted.spec["plan"]["global_batch"]
    steady = steady_of(run.with_seconds(tokens, sequences, n_gpus), REMEDY)
    check_steady(path, steady.lines, steady.spread)
    unsaid = [word for word, value in (("plan", run.arguments), ("GPUs", run.n_gpus)) if not value]
    where = f"{path} (which does not say its {' and '.join(unsaid)}: as asked)" if unsaid else path
    return Anchor(where, steady.seconds, predicted), own


def logged_plan(run: MeasuredRun, n_gpus: int) -> dict[str, object]:
    """What the log of a job says of its plan. Raises UserError."""
    from windtunnel.studies.training.launch.megatron import log as megatron_log

    fields = dict(megatron_log.read(run.arguments, n_gpus, run.source).fields) if run.arguments else {}
    if run.global_batch is not None:
        fields["global_batch"] = run.global_batch
    return fields


def of_launch_file(
    model: ModelPart,
    cluster: ClusterPart,
    fields: Mapping[str, object],
    logged: Mapping[str, object] = MappingProxyType({}),
) -> Predict:
    """The prediction of a job whose plan is stated by these fields, over those of the launch file that names its model.

    `logged`: what the job's log says of its plan, where neither says it. Raises UserError.
    """
    from windtunnel.studies.training.launch import read_native
    from windtunnel.studies.training.question import states_model

    stated: Mapping[str, object] = {}
    if states_model(model.base):
        stated = read_native(model.base, cluster_of(cluster).n_gpus).fields
    both = {**logged, **stated, **fields}
    missing = [name for name in ("global_batch", "seq_len") if name not in both]
    if missing:
        model_of(model, cluster_of(cluster).n_gpus)  # a name or a file that is wrong is told before what is missing
        flags = " ".join(f"--{name.replace('_', '-')} N" for name in missing)
        remedy = f"add {flags}, or name the launch file that says {'it' if len(missing) == 1 else 'both'}"
        also = ", nor is seq_len" if len(missing) > 1 else ""
        raise UserError(f"{missing[0]} is not given{also}: {remedy}")
    plan = read_plan(both)
    predict: Predict = read(plain(Predict(model=model, cluster=cluster, plan=plan)))
    return predict


def is_captured(word: str) -> bool:
    """Whether a word for a model names a captured folder; cheap for everything that is no folder."""
    path, at, _ = word.rpartition("@")
    if not (os.path.isdir(word) or (at and os.path.isdir(path))):
        return False
    from windtunnel.studies.programs.predict import names_captured

    return names_captured(word)


def _as_asked(result: Result, question: Predict, notes: tuple[str, ...]) -> Result:
    """A result that names model and cluster as the question does."""
    restated = replace(read(result.question), model=question.model, cluster=question.cluster, anchor=question.anchor)
    warnings = (*result.warnings, *notes)
    return replace(result, question=plain(restated), reproduce=command(restated), warnings=warnings)


def _of_script(question: Predict) -> Result:
    from windtunnel.studies.programs.predict import predict_captured

    if question.anchor:
        raise SpecError("--anchor", question.anchor[0], "an anchor moves the step of a plan: name a model instead")
    if question.technique:
        remedy = "techniques rewrite the step of a plan: name a model instead"
        raise SpecError("--technique", question.technique[0], remedy)
    if isinstance(question.plan, Plan):
        raise SpecError("--plan", "given", SCRIPT_HAS_IT)
    for name in ("router_load", "lengths"):
        value = getattr(question.scenario, name)
        if value is not None:
            raise SpecError(f"--{name.replace('_', '-')}", value, SCRIPT_HAS_IT)
    changes = plain_part(question.model)
    del changes["base"]
    for name, value in changes.items():
        raise SpecError("--set", f"model.{name}={value}", "of a captured script only cluster.* can be set")
    script = question.plan
    changed = len(plain_part(question.cluster)) > 1 or question.cluster.base is None
    return predict_captured(
        question.model.base,
        cluster_of(question.cluster) if changed else str(question.cluster.base),
        scenario=question.scenario,
        framework=script.framework or "pytorch",
        cuda_graphs=bool(script.cuda_graphs),
        allocator=script.allocator,
    )
