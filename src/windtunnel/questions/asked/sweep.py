"""What `sweep`, `sweep table`, `techniques` and `model` are asked: what there is in a file or a catalogue."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part


@part
class Sweep:
    """A question over many points. Where it runs, and where its table goes, is no part of it."""

    verb: ClassVar[str] = "sweep"
    positional: ClassVar[tuple[str, ...]] = ("study",)
    study: Annotated[str, About("A study in YAML (docs/planning.md).")]


@part
class SweepTable:
    """The best rows of a table that a sweep wrote."""

    verb: ClassVar[str] = "sweep table"
    positional: ClassVar[tuple[str, ...]] = ("table",)
    table: Annotated[str, About("A table that a sweep wrote.")]
    show: Annotated[str, About("The best Y at each X, e.g. mfu_vs_plan.tp (time_vs_gpus).")] = "time_vs_gpus"


@part
class Techniques:
    """What techniques there are."""

    verb: ClassVar[str] = "techniques"
    positional: ClassVar[tuple[str, ...]] = ("name",)
    name: Annotated[str | None, About("One technique alone.")] = None
    launch: Annotated[
        str | None,
        About("A launch file: which of them would help its job, predicted, with the line to add.", flag="for"),
    ] = None
    cluster: Annotated[str | None, About("With --for: GPU and count, e.g. h100-sxm:64.")] = None


@part
class ModelFacts:
    """What a model is made of."""

    verb: ClassVar[str] = "model"
    positional: ClassVar[tuple[str, ...]] = ("config",)
    config: Annotated[str, About("A model of the catalogue, or the path of a config.json.")]
