"""`windtunnel.capture`: what the verb does, for Python; its words and options, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from windtunnel.errors import LayoutError, SpecError
from windtunnel.questions.asked.capture import Capture
from windtunnel.questions.typed import check
from windtunnel.real.capture.arguments import parse_launch, parse_ranks
from windtunnel.real.capture.launch import Options, capture_job
from windtunnel.real.capture.processes.scheduler import Report

_VALUE = re.compile(r"true|false|[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?inf|nan")


def capture(
    *launch: str | Path,
    world_size: int | None = None,
    cluster: str | None = None,
    steps: int = 2,
    device: Literal["cuda", "cpu"] = "cuda",
    ranks: str | Sequence[int] | None = None,
    representatives: Literal["auto", "all"] = "auto",
    verify: int | None = None,
    seed: int = 0,
    answers: Mapping[str, float | bool | str] | None = None,
    timeout_s: float = 600.0,
    jobs: int | None = None,
    out: str | Path = "captured",
    report: Report | None = None,
) -> dict[str, object]:
    """Run an unmodified training script at its full scale, without GPUs, and keep one step; the folder's document.

    `launch`: torchrun's options, the script and its arguments, a word each: `capture("train.py", "--lr", "1e-3",
    world_size=64)`. `world_size`: ranks; or the GPUs of `cluster`, or what torchrun's options say. `steps`: to run, of
    which the last is kept. `device`: what the script finds. `ranks`: only these, `[0, 8]` or "0,8,16-23".
    `representatives`: a few ranks that stand for all, or every rank. `verify`: ranks drawn at random, from `seed`, that
    must equal their representative; None: 4, all of a job of up to 8. `answers`: what Python is told when it reads a
    tensor, `{"loss": 2.0, "train.py:42": False}`. `timeout_s`: seconds for one rank; `jobs`: ranks at a time. `out`:
    the folder, for `windtunnel.predict_captured(out, cluster)`. `report(done, total, text)` is called as ranks end.

    Raises:
        UserError: a launch that cannot be; ScriptError, one of them: a script that cannot be captured. Whatever the
            end, no process and no temporary file is left.
    """
    check(
        locals(),
        world_size=int | None,
        cluster=str | None,
        steps=int,
        verify=int | None,
        seed=int,
        timeout_s=float,
        jobs=int | None,
        out=str | PathLike,
    )
    size, per_node = world_size, None
    if cluster is not None:
        from windtunnel.physics.hardware import parse_cluster

        machine = parse_cluster(cluster)
        per_node = machine.gpus_per_node
        if size is not None and size != machine.n_gpus:
            problem = f"--world-size {size} clashes with --cluster {cluster} of {machine.n_gpus} GPUs"
            raise LayoutError(problem, "leave out --world-size, or make them equal")
        size = machine.n_gpus
    for name, value, choices in (
        ("--device", device, ("cuda", "cpu")),
        ("--representatives", representatives, ("auto", "all")),
    ):
        if value not in choices:
            raise SpecError(name, value, f"give {' or '.join(choices)}")
    options = Options(
        steps=steps,
        device=device,
        ranks=parse_ranks(ranks) if ranks is None or isinstance(ranks, str) else tuple(dict.fromkeys(ranks)),
        representatives=representatives,
        verify=verify,
        seed=seed,
        answers=_answers(answers or {}),
        timeout_s=timeout_s,
        jobs=jobs,
    )
    line = parse_launch([str(word) for word in launch], world_size=size, local_world_size=per_node)
    return capture_job(line, options, Path(out), report)


def answer(
    question: Capture, *, jobs: int | None = None, out: Path = Path("captured"), report: Report | None = None
) -> dict[str, object]:
    """Capture what the question asks into a folder; its document. Raises as `capture` does."""
    return capture(
        *question.launch,
        world_size=question.world_size,
        cluster=question.cluster,
        steps=question.steps,
        device=question.device,
        ranks=question.ranks,
        representatives=question.representatives,
        verify=question.verify,
        seed=question.seed,
        answers=question.answer_of,
        timeout_s=question.timeout,
        jobs=jobs,
        out=out,
        report=report,
    )


def _answers(entry: Mapping[str, float | bool | str]) -> dict[str, str]:
    answers = {}
    for name, value in entry.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not name or not _VALUE.fullmatch(text):
            raise SpecError("--answer", f"{name}={text}", "give NAME=VALUE, e.g. loss=2.0, or train.py:42=false")
        answers[name] = text
    return answers
