"""What `diagnose` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, part
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.plan import OpenPlan, open_plan
from windtunnel.questions.asked.predict import PLAN_FILE

LOGS = (".log", ".out")  # of a job that printed its plan into it


@part
class Diagnose:
    """Whether what was measured is what it should be, and where it is lost if not."""

    verb: ClassVar[str] = "diagnose"
    positional: ClassVar[tuple[str, ...]] = ("model",)
    model: Annotated[
        ModelPart,
        About(
            "The launch file that the job was started with, a log of Megatron-LM (its plan is in it), the name of a"
            " shipped model, or a config.json."
        ),
    ]
    cluster: Annotated[ClusterPart, About("GPU and count, e.g. h100-sxm:512, or a cluster file in YAML.")]
    plan: Annotated[OpenPlan, About(PLAN_FILE, inside=True)] = field(default_factory=open_plan)
    measured: Annotated[float | None, About("Step time that was measured, e.g. 11.0s.", unit="time", least=1e-9)] = None
    log: Annotated[
        tuple[str, ...],
        About(
            "What the job printed or a tracker exported: a log of the usual frameworks, W&B or TensorBoard, dumps of"
            " NCCL Inspector or the flight recorder; repeatable."
        ),
    ] = ()
    trace: Annotated[
        tuple[str, ...], About("A Kineto trace or an SQLite export of Nsight Systems, one a rank; repeatable.")
    ] = ()
    healthy: Annotated[
        tuple[str, ...],
        About("The same traces of the same job when it was well: causes are told against them.", rare=True),
    ] = ()
    anchor: Annotated[tuple[str, ...], About("A run that was measured before, as in predict.", rare=True)] = ()
    launch: Annotated[
        str | None,
        About("The framework's own file that advice is a diff of (the launch file, where that is given).", rare=True),
    ] = None

    def __post_init__(self) -> None:
        if self.measured is None and not self.log and not self.trace and not self.model.base.lower().endswith(LOGS):
            log = next((path for path in self.anchor if path.lower().endswith(LOGS)), "FILE")
            raise SpecError("what was measured", None, f"give --log {log}, --trace FILE or --measured 11.0s")
