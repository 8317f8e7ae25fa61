"""`windtunnel plan MODEL --cluster SPEC --global-batch N --seq N`."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.asked import ASKED
from windtunnel.faces.cli.output import note, print_answer, stdout, working
from windtunnel.faces.cli.plan_flags import Changes, PlanFlags
from windtunnel.units import parse_time

if TYPE_CHECKING:
    from windtunnel.studies.planning.oracle import Layout, Replayed

INFEASIBLE = 3  # as in predict
WITHIN = "60s"


def plan(
    model: str,
    /,
    *,
    cluster: Annotated[str, Parameter(help="GPU and count, e.g. h100-sxm:8192, or a cluster file in YAML.")],
    plan: Annotated[
        Path | None,
        Parameter(help="Plan file, in YAML or the framework's own: its fields are fixed; flags override it."),
    ] = None,
    flags: PlanFlags = PlanFlags(),
    set: Changes = (),
    top: Annotated[int, Parameter(help="How many plans (5).")] = 5,
    within: Annotated[
        str, Parameter(help="Search for so long at most, then say the proven gap; techniques come after it (60s).")
    ] = WITHIN,
    objective: Annotated[Literal["time", "cost", "memory", "energy"], Parameter(help="What is least (time).")] = "time",
    gpus: Annotated[str | None, Parameter(help="Other numbers of GPUs, by doubling, e.g. 512..4096.")] = None,
    pareto: Annotated[bool, Parameter(negative="", help="Also the plans that are best for some other taste.")] = False,
    price: Annotated[float | None, Parameter(help="Price of one GPU for an hour, in any currency.")] = None,
    slow: Annotated[
        tuple[str, ...], Parameter(negative="", help="A disturbance that plans are ranked under, as in predict.")
    ] = (),
    mtbf: Annotated[str | None, Parameter(help="Mean time between failures of the whole job, e.g. 6h.")] = None,
    techniques: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            help="Try techniques on the best plans: all, exact (what is trained stays the same), or names with"
            " parameters as predict --technique takes them.",
        ),
    ] = (),
    report: Annotated[Path | None, Parameter(help="Write an HTML report here.")] = None,
    tried: Annotated[
        Path | None, Parameter(help="Write each plan that is replayed here, one JSON a line, while the search runs.")
    ] = None,
    launch_flags: Annotated[
        Literal["megatron", "torchtitan", "deepspeed", "accelerate"] | None,
        Parameter(help="Print the best plan as that framework is launched with it (that of the plan)."),
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the answer as JSON.")] = False,
) -> int:
    """Find the best plan for a model on a cluster, and prove it.

    Every field of a plan that is not given is searched over its legal values.

    Parameters
    ----------
    model
        Name of a shipped model, e.g. llama-3.1-405b, the path of a Hugging Face config.json, or a folder that
        `windtunnel capture` wrote: then its units are cut into stages.
    """
    from windtunnel.faces.cli.captured import is_captured_word

    if is_captured_word(model):
        from windtunnel.faces.cli.captured_plan import plan_script

        others = {"--plan": plan, "--set": set, "--gpus": gpus, "--slow": slow, "--mtbf": mtbf, "--price": price}
        others |= {"--techniques": techniques, "--report": report, "--launch-flags": launch_flags}
        others |= {"--pareto": pareto or None, "--objective": None if objective == "time" else objective}
        others |= {"--tried": tried, "--within": None if within == WITHIN else within}
        return plan_script(model, cluster, flags.given(), others, top=top, json=json)
    from windtunnel.faces.cli.captured_plan import band_of_best
    from windtunnel.physics.hardware.mixed import parse_mixed
    from windtunnel.studies.planning import plan as find
    from windtunnel.studies.planning.ahead import working_ahead
    from windtunnel.studies.training.question import Question

    mixed = parse_mixed(cluster)
    asked = Question.asked(model, cluster, plan, flags.given(), set, None if mixed is None else mixed.alike()[0])
    head, colon, count = cluster.rpartition(":")
    spec = f"{head}:{{gpus}}" if colon and count.isdigit() and mixed is None else cluster
    sets = [word for text in set for word in ("--set", text)]
    with _nothing_collected(), working_ahead() as exact, working("planning"), _told(tried, model, spec) as told:
        found = find(
            asked.model,
            mixed or asked.cluster,
            asked.plan,
            top=top,
            within_s=_left_s(within),
            objective=objective,
            gpus=None if gpus is None else _range(gpus),
            pareto=pareto,
            price_per_gpu_hour=price,
            slow=slow,
            mtbf_s=None if mtbf is None else parse_time(mtbf, "--mtbf"),
            techniques=techniques,
            named=" ".join([shlex.quote(model), *map(shlex.quote, sets), "--cluster", spec]),
            told=told,
            exact=exact,
        )
    document = found.to_dict()
    if launch_flags is not None and document["plans"]:
        from windtunnel.studies.training.launch import launch_flags as written

        best = document["plans"][0]
        name, text, _ = written(launch_flags, best["plan"], best["n_gpus"], asked.model.name)
        document["launch"] = {name: text}
    for line in asked.notes:
        note(line)
    if report is not None:
        from windtunnel.faces.report.planning.html import write_plans_html

        write_plans_html(document, report, title=f"{model} on {cluster}")
        note(f"wrote {report}")
    if json:
        print_answer("plan", document, band=band_of_best(document), warnings=asked.notes)
    else:
        from windtunnel.faces.report.planning.console import print_plans

        print_plans(document, stdout())
    return INFEASIBLE if document["status"] == "infeasible" else 0


def _left_s(within: str) -> float:
    """Of the time that was given, what loading and reading the question have left."""
    asked = ASKED.get()
    used = 0.0 if asked is None else monotonic() - asked.begun_s
    return max(0.0, parse_time(within, "--within") - used)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """A search keeps nearly all that it makes: collecting took a tenth of its time and freed nothing."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


@contextmanager
def _told(path: Path | None, model: str, cluster: str) -> Iterator[Callable[[Layout, Replayed], None] | None]:
    """What writes a replayed plan to `path` as a row of a sweep's journal; nothing without a path."""
    if path is None:
        yield None
        return
    from windtunnel.studies.sweeps.journal import Journal

    with Journal(path) as journal:

        def told(layout: Layout, replay: Replayed) -> None:
            asked = layout.asked.stated()
            seconds, gpus = replay.step_ns / 1e9, layout.cluster.n_gpus
            inputs = {"model": model, "cluster": cluster.replace("{gpus}", str(gpus))}
            outputs = {
                "step_time_s": seconds,
                "tokens_per_s": layout.plan.global_batch * layout.plan.seq_len / seconds,
                "n_gpus": gpus,
                "peak_memory_bytes": replay.peak_bytes,
            }
            inputs |= {f"plan.{name}": value for name, value in asked.items()}
            journal.add({"status": "ok", "inputs": inputs, "outputs": outputs})

        yield told


def _range(text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    if not (text.isascii() and low.isdigit() and (high.isdigit() or not dots)):
        raise SpecError("--gpus", text, "give the least and the most, e.g. 512..4096")
    return int(low), int(high or low)
