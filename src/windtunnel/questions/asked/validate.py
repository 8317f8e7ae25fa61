"""What `validate` is asked."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, part


@part
class Validate:
    """How far predictions are off, source by source."""

    verb: ClassVar[str] = "validate"
    positional: ClassVar[tuple[str, ...]] = ("tables",)
    tables: Annotated[
        tuple[str, ...],
        About(
            "CSV of measured runs, with the columns of validation/measurements.csv; one or several. A table of served"
            " deployments (id, model, gpu, engine, isl, osl, concurrency ...) is predicted as such, and so is one of RL"
            " steps (id, framework, model, gpu, n_gpus, rollouts_per_step, total_step_s ...)."
        ),
    ]
    level: Annotated[Literal["A", "B", "C"] | None, About("Only rows specified this well; all levels by default.")] = (
        None
    )
    source: Annotated[str | None, About("Only rows whose source contains this text.")] = None
    anchor: Annotated[
        Literal["none", "smallest"],
        About("smallest: the smallest run of each source, GPU, model and precision moves the others by nearness."),
    ] = "none"

    def __post_init__(self) -> None:
        if not self.tables:
            raise SpecError("tables", None, "name a CSV of measured runs")
