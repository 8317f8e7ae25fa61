"""What a step is asked under: slow GPUs and links, noise, hot experts, documents of unequal lengths.

A scenario holds words and names of files, as the command line has them. `step/disturbances/` and `training/workload/`
read them and say what they do to a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from windtunnel.arguments import texts
from windtunnel.errors import SpecError


@dataclass(frozen=True, slots=True)
class Scenario:
    """Without arguments: nothing is disturbed, experts are even, sequences are whole."""

    slow: Sequence[str] = ()  # disturbances such as `gpu=1037:1.15`, or YAML files of them; kept as a tuple
    jitter: float | str = 0.0  # relative standard deviation of one pass: 0.02 or 2%
    router_load: str | Path | None = None  # popularity of experts: `zipf:0.5` or a CSV file
    lengths: str | Path | None = None  # CSV histogram of the documents that sequences are packed from
    samples: int = 0  # steps drawn where something is random; 0: as many as usual
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "slow", texts("slow", self.slow))
        for name in ("router_load", "lengths"):
            if not isinstance(getattr(self, name), str | Path | None):
                raise SpecError(name, getattr(self, name), "give text or a path")

    @property
    def disturbs(self) -> bool:
        """Whether the step is another than without it. Raises SpecError on a jitter that is no share."""
        return bool(self.slow or self.router_load or self.lengths or share_of("jitter", self.jitter))


class Parts(TypedDict, total=False):
    """The fields of a Scenario as keywords of the functions that take one."""

    slow: Sequence[str]
    jitter: float | str
    router_load: str | Path | None
    lengths: str | Path | None
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


def share_of(field: str, value: str | float) -> float:
    """A share, given as 0.02 or 2%. Raises SpecError on what is no number from 0 up."""
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise SpecError(field, value, "give a number such as 0.02 or 2%") from None
    if not 0.0 <= number < 1e6:
        raise SpecError(field, value, "give a number such as 0.02 or 2%")
    return number
