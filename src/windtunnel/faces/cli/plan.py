"""`windtunnel plan MODEL --cluster SPEC --global-batch N --seq N`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.flags import Below, Command, FlagValues, Outputs
from windtunnel.faces.cli.output import give, noted, texts, working
from windtunnel.faces.cli.predict import plan_below
from windtunnel.questions.asked.search import Search
from windtunnel.questions.header import band_entry

if TYPE_CHECKING:
    from windtunnel.studies.planning.oracle import Layout, Replayed

INFEASIBLE = 3  # as in predict
OUTPUTS = ("report", "rows", "full", "json")


def work_of_file(command_line: FlagValues) -> Below:
    """What files say below the flags: all of --plan; of a launch file in place of a model the work, not its layout."""
    below = plan_below(command_line, cut_by=frozenset({"pp", "dp"}))
    stated = below.parts.get("plan", {})
    if command_line.files.get("plan") is not None or not stated:
        return below
    from windtunnel.studies.planning.space.plan_space import SAVINGS, STRUCTURE, SWITCHES

    sought = {*STRUCTURE, *SAVINGS, *SWITCHES, "dp", "account_for_embedding", "micro_batch_group"}
    work = {name: value for name, value in stated.items() if name not in sought}
    text = f"the layout is sought anew; MODEL --plan {below.path} keeps what {below.path} says of it"
    return replace(below, parts={"plan": work}, notes=(*below.notes, text))


def plan(
    question: Search,
    outputs: Outputs,
    *,
    notes: tuple[str, ...] = (),
    launch_flags: Annotated[
        Literal["megatron", "torchtitan", "deepspeed", "accelerate"] | None,
        Parameter(help="Print the best plan as that framework is launched with it (that of the plan).", show=False),
    ] = None,
) -> int:
    """Search, print, write. The exit status is 3 where nothing fits."""
    begun_s = monotonic()
    from windtunnel.studies.plan import plans
    from windtunnel.studies.predict import is_captured

    if is_captured(question.model.base):
        return _cut(question, outputs, launch_flags)
    with working("planning"), _rows(outputs.rows, question) as rows:
        answer = plans(question, listener=rows, begun_s=begun_s)
    if launch_flags is not None and answer.plans:
        from windtunnel.studies.training.launch import launch_flags as written

        name, text, _ = written(launch_flags, answer[0].plan, answer[0].n_gpus, question.model.base)
        answer = replace(answer, launch={name: text})
    answer = replace(answer, warnings=(*notes, *answer.warnings))
    noted(answer)
    from windtunnel.faces.report.plans import plans_document

    title = f"Plans for {question.model.base} on {question.cluster.base}"
    give(question, answer.to_dict(), outputs, plans_document(answer, title), band=answer.band, warnings=answer.warnings)
    return INFEASIBLE if answer.status == "infeasible" else 0


def _cut(question: Search, outputs: Outputs, launch_flags: str | None) -> int:
    """Print the best cuts of a captured script. Raises SpecError on a flag that only a named model takes."""
    from windtunnel.studies.plan import cuts

    refused = {"--report": outputs.report, "--rows": outputs.rows, "--launch-flags": launch_flags}
    for name, value in refused.items():
        if value is not None:
            raise SpecError(name, str(value), "leave it out: a captured script is cut into stages and replicas")
    with working("planning"):
        document = cuts(question)
    from windtunnel.faces.report.plans import cuts_document

    band, assumed = band_of_best(document), texts(document["assumed"])
    give(question, document, outputs, cuts_document(document), band=band, warnings=assumed)
    return INFEASIBLE if document["status"] == "infeasible" else 0


def band_of_best(document: Mapping[str, Any]) -> dict[str, object] | None:
    """The band of the best plan's step, where there is one."""
    best = next(iter(document["plans"]), None)
    return None if best is None else band_entry("plans[0].step_time_s", best["p5_s"], best["p95_s"])


@contextmanager
def _rows(path: Path | None, question: Search) -> Iterator[Callable[[Layout, Replayed], None] | None]:
    """What writes a replayed plan to `path` as a row of a sweep's journal; nothing without a path."""
    if path is None:
        yield None
        return
    from windtunnel.studies.planning.planned import cluster_of_size
    from windtunnel.studies.sweeps.journal import Journal

    with Journal(path) as journal:

        def add_row(layout: Layout, replay: Replayed) -> None:
            seconds, gpus = replay.step_ns / 1e9, layout.cluster.n_gpus
            inputs = {"model": question.model.base, "cluster": cluster_of_size(question.cluster, gpus).base}
            outputs = {
                "step_time_s": seconds,
                "tokens_per_s": layout.plan.global_batch * layout.plan.seq_len / seconds,
                "n_gpus": gpus,
                "peak_memory_bytes": replay.peak_bytes,
            }
            inputs |= {f"plan.{name}": value for name, value in layout.user_plan.stated().items()}
            journal.add({"status": "ok", "inputs": inputs, "outputs": outputs})

        yield add_row


COMMANDS = (Command("plan", plan, OUTPUTS, reader=work_of_file),)
