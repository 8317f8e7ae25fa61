"""What `calibrate device`, `calibrate collectives` and `calibrate show` are asked."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, part

QUICK_S, FULL_S = 120.0, 900.0


@part
class Measured:
    """How long is measured, and what."""

    positional: ClassVar[tuple[str, ...]] = ()
    quick: Annotated[bool, About("Two minutes. This is the default.")] = False
    full: Annotated[bool, About("Fifteen minutes: more shapes.")] = False
    budget: Annotated[
        float | None, About("Seconds, in place of --quick and --full.", least=1, most=86400, rare=True)
    ] = None
    threads: Annotated[int | None, About("Threads of the CPU; all by default.")] = None
    only: Annotated[tuple[str, ...], About("Only this op, or collective; repeatable.")] = ()

    def __post_init__(self) -> None:
        if self.quick and self.full:
            raise SpecError("full", True, "give --quick or --full, not both")

    @property
    def budget_s(self) -> float:
        """Seconds."""
        return (FULL_S if self.full else QUICK_S) if self.budget is None else self.budget


@part
class CalibrateDevice(Measured):
    """What the device at hand takes for each op."""

    verb: ClassVar[str] = "calibrate device"
    device: Annotated[str | None, About("cpu or cuda:0; a GPU if there is one. CUDA is not yet run on a GPU.")] = None


@part
class CalibrateCollectives(Measured):
    """What collectives between processes of this machine take."""

    verb: ClassVar[str] = "calibrate collectives"
    world_size: Annotated[int, About("Processes (2).", least=2, most=256)] = 2
    backend: Annotated[Literal["gloo", "nccl"], About("Library (gloo); NCCL: not yet run.")] = "gloo"
    pinned: Annotated[bool, About("Each process keeps to its own share of the cores.")] = False


@part
class CalibrateShow:
    """What a calibrated file holds."""

    verb: ClassVar[str] = "calibrate show"
    positional: ClassVar[tuple[str, ...]] = ("file",)
    file: Annotated[str, About("A file that `windtunnel calibrate device` wrote.")]
