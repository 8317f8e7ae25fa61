"""What a step is asked under: slow GPUs and links, noise, hot experts, documents of unequal lengths.

A scenario holds words and names of files, as the command line has them. `step/disturbances/` and `training/workload/`
read them and say what they do to a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

from windtunnel.errors import SpecError
from windtunnel.questions.about import STRICT, About
from windtunnel.questions.typed import texts
from windtunnel.units import parse_share


@dataclass(frozen=True, slots=True)
class Scenario:
    """Without arguments: nothing is disturbed, experts are even, sequences are whole."""

    __pydantic_config__: ClassVar = STRICT
    router_load: Annotated[
        str | None,
        About(
            "Popularity of experts: CSV with expert,tokens or layer,expert,tokens or step,layer,expert,tokens, or"
            " a power law zipf:EXPONENT.",
            rare=True,
        ),
    ] = field(default=None, kw_only=True)
    lengths: Annotated[
        str | None,
        About(
            "CSV with length,count of the documents that sequences are packed from; no attention between.", rare=True
        ),
    ] = field(default=None, kw_only=True)
    slow: Annotated[
        tuple[str, ...],
        About(
            "A disturbance, or a YAML file with a list of them; repeatable. gpu=1037:1.15, random=1%:1.2,"
            " stage=3:1.05, thermal=1037:1.2:300, link=node12.nic3:0.5, lost=node12.nic3, uplink=leaf2:0.5, ecmp=7,"
            " pause=0.5%:200ms, noise=2%."
        ),
    ] = ()
    jitter: Annotated[
        float, About("Relative standard deviation of each pass, e.g. 2% (0).", unit="share", rare=True)
    ] = 0.0
    samples: Annotated[
        int, About("Steps to sample where something is random (default 200).", least=0, most=1_000_000, rare=True)
    ] = 0
    seed: Annotated[int, About("Seed of what is drawn at random (0).", least=0, most=2**63 - 1, rare=True)] = 0

    def __post_init__(self) -> None:
        """Python may give one text for several, a share as text and files as paths."""
        object.__setattr__(self, "slow", texts("slow", self.slow))
        object.__setattr__(self, "jitter", parse_share(self.jitter, "jitter"))
        for name in ("router_load", "lengths"):
            value = getattr(self, name)
            if not isinstance(value, str | Path | None):
                raise SpecError(name, value, "give text or a path")
            object.__setattr__(self, name, None if value is None else str(value))

    @property
    def disturbs(self) -> bool:
        """Whether the step is another than without it."""
        return bool(self.slow or self.router_load or self.lengths or self.jitter)


class Parts(TypedDict, total=False):
    """The fields of a Scenario as keywords of the functions that take one."""

    router_load: str | Path | None
    lengths: str | Path | None
    slow: Sequence[str]
    jitter: float | str
    samples: int
    seed: int


CALM = Scenario()
NAMES = tuple(field.name for field in fields(Scenario))


def with_parts(scenario: Scenario, parts: Mapping[str, Any]) -> Scenario:
    """The scenario with some of its parts replaced. Raises SpecError for a keyword that is none of them."""
    if not isinstance(scenario, Scenario):
        raise SpecError("scenario", scenario, "give a Scenario, or its parts by name")
    for name, value in parts.items():
        if name not in NAMES:
            remedy = (
                f"is no keyword: fields of the plan go into its mapping (plan.{name}); known are {', '.join(NAMES)}"
            )
            raise SpecError(name, value, remedy)
    return replace(scenario, **parts)
