"""What is asked of saved runs: `compare`, `whatif`, `launch`, `runs list`, `runs tag`, `runs delete`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, part

RUN = "A run folder, its result.json, or the first digits of its hash."
Framework = Literal["megatron", "torchtitan", "deepspeed", "accelerate"]


@part
class OfRuns:
    """Where runs are."""

    runs: Annotated[str, About("Where run folders are (runs).")] = "runs"


@part
class Compare(OfRuns):
    """Where two runs differ, and what explains it."""

    verb: ClassVar[str] = "compare"
    positional: ClassVar[tuple[str, ...]] = ("run", "against", "more")
    run: Annotated[str, About(RUN)]
    against: Annotated[
        str,
        About("The run to hold against it; or a trace of the job: Kineto's, or an SQLite export of Nsight Systems."),
    ]
    more: Annotated[tuple[str, ...], About("Traces of further ranks.")] = ()


@part
class WhatIf(OfRuns):
    """A saved run with something changed."""

    verb: ClassVar[str] = "whatif"
    positional: ClassVar[tuple[str, ...]] = ("run",)
    run: Annotated[str, About(RUN)]
    set: Annotated[
        tuple[str, ...],
        About(
            "What is different: cluster.nic=800Gb/s, plan.tp=4, model.layers=64; slow.none mends everything,"
            " slow.without=gpu=1037:1.15 one thing. Repeatable."
        ),
    ] = ()
    slow: Annotated[tuple[str, ...], About("Something more that is slow, as in predict.")] = ()


@part
class Launch(OfRuns):
    """What a framework is launched with for the plan of a run."""

    verb: ClassVar[str] = "launch"
    positional: ClassVar[tuple[str, ...]] = ("run",)
    run: Annotated[str, About(RUN)]
    framework: Annotated[Framework, About("The framework: megatron, torchtitan, deepspeed or accelerate.", flag="as")]


@part
class RunsList(OfRuns):
    """Saved runs, newest first."""

    verb: ClassVar[str] = "runs list"
    positional: ClassVar[tuple[str, ...]] = ("words",)
    words: Annotated[
        tuple[str, ...], About("Runs that have each of these in what the list shows or in their tags.")
    ] = ()
    tagged: Annotated[str, About("Only runs with this tag.")] = ""


@part
class RunsTag(OfRuns):
    """Tags of runs, in place of those that they have."""

    verb: ClassVar[str] = "runs tag"
    positional: ClassVar[tuple[str, ...]] = ("tags",)
    tags: Annotated[tuple[str, ...], About("RUN=a,b by the first digits of a run; RUN= takes all tags.")]

    def __post_init__(self) -> None:
        if not self.tags:
            raise SpecError("tags", None, "give RUN=a,b by the first digits of a listed run")


@part
class RunsDelete(OfRuns):
    """Run folders to delete."""

    verb: ClassVar[str] = "runs delete"
    positional: ClassVar[tuple[str, ...]] = ("names",)
    names: Annotated[tuple[str, ...], About("Runs by their first digits.")]
    yes: Annotated[bool, About("Really delete.")] = False

    def __post_init__(self) -> None:
        if not self.names:
            raise SpecError("names", None, "give the first digits of listed runs")
