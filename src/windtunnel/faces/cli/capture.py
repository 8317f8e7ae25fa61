"""`windtunnel capture [torchrun's options] train.py ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import counting, note, print_answer, stdout


def capture(
    *launch: Annotated[str, Parameter(help="torchrun's options, then the script (or -m MODULE) and its arguments.")],
    world_size: Annotated[
        int | None, Parameter(help="Ranks; else --nnodes x --nproc-per-node, or the cluster's GPUs.")
    ] = None,
    cluster: Annotated[str | None, Parameter(help="Cluster that ranks are counted on, e.g. h100-sxm:8192.")] = None,
    steps: Annotated[int, Parameter(help="Steps to run; the last is captured (2).")] = 2,
    device: Annotated[
        Literal["cuda", "cpu"], Parameter(help="What the script finds: pretended GPUs, or a CPU (cuda).")
    ] = "cuda",
    ranks: Annotated[str | None, Parameter(help="Only these ranks, e.g. 0,8,16-23.")] = None,
    representatives: Annotated[
        Literal["auto", "all"], Parameter(help="A few ranks that stand for all, or every rank (auto).")
    ] = "auto",
    verify: Annotated[
        int | None,
        Parameter(help="Ranks drawn at random that must equal their representative (4; all of up to 8 ranks)."),
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of that draw (0).")] = 0,
    answer: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            consume_multiple=False,
            help="What Python is told when it reads a tensor: loss=2.0, gradient-norm=1, flag=false, integer=1,"
            " true-share=1, or a line of the script, train.py:42=3; repeatable.",
        ),
    ] = (),
    timeout: Annotated[float, Parameter(help="Seconds for one rank (600).")] = 600.0,
    jobs: Annotated[int | None, Parameter(help="Ranks run at a time (one a core).")] = None,
    out: Annotated[Path, Parameter(help="Folder to write (captured).")] = Path("captured"),
    json: Annotated[bool, Parameter(negative="", help="Print what was found as JSON.")] = False,
) -> None:
    """Run an unmodified training script at its full scale on this machine, without GPUs, and keep what it executes.

    The launch line stays as it was for torchrun, but for its first word: windtunnel capture --nproc-per-node 8 train.py
    --config x. A few ranks are run on tensors without data, one after another; they stand for all others, which is
    checked with ranks drawn at random. Then: windtunnel predict captured/ --cluster SPEC.
    """
    from windtunnel.real.capture import question
    from windtunnel.real.capture.processes.scheduler import ScriptError

    try:
        with counting("running ranks") as bar:
            document = question.capture(
                *launch,
                world_size=world_size,
                cluster=cluster,
                steps=steps,
                device=device,
                ranks=ranks,
                representatives=representatives,
                verify=verify,
                seed=seed,
                answers=_answers(answer),
                timeout_s=timeout,
                jobs=jobs,
                out=out,
                report=lambda done, total, text: bar(done, total),
            )
    except ScriptError as error:
        if error.details:
            note(error.details.rstrip())
        raise
    if json:
        print_answer("capture", document, warnings=document["notes"])
        return
    from windtunnel.faces.report.captured import print_captured

    print_captured(document, str(out), cluster, stdout())
    note(f"wrote {out}")


def _answers(given: tuple[str, ...]) -> dict[str, str]:
    for text in given:
        if "=" not in text:
            raise SpecError("--answer", text, "give NAME=VALUE, e.g. loss=2.0, or train.py:42=false")
    parts = (text.rpartition("=") for text in given)
    return {name: value for name, _, value in parts}
