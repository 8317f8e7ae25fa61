r"""Lines of training logs: which framework prints what, under which name, in which unit.

A line is searched by name, never by column; `#` in a pattern stands for a number (1,024  4.71  1.07e+04
np.float64(2.5)). A unit is fixed where the framework fixes it, or read beside the number. What has no unit there is
not read. `elapsed` is the time since the start: between two lines it tells what a mean since the start and a smoothed
rate do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from windtunnel.files.document import own_document
from windtunnel.studies.measured_run.metrics import GB, GIB, MIB, MS

# Commas only before three digits and behind a first digit other than 0: 0,512 and 1.234,5 are no numbers here.
WHOLE = r"(?<!\d)(?<!\d[.,])(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)"
NUMBER = rf"(?:np\.float\d+\()?['\"]?([-+]?(?:{WHOLE}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?![.,]?\d)"
THOUSANDS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}  # as nanotron and Levanter abridge
TIMES = {"us": 1e-6, "ms": MS, "s": 1.0}
# Where a format does not say its own.
STEP = r"(?i:(?<!(?:micro|outer)[ -])(?<![\w/])(?:global_)?(?:step|iter(?:ation)?)s?[=: ]*\[?#)"

Unit = float | Mapping[str, float]
UNITS: Mapping[str, Unit] = {
    **{"s": 1.0, "ms": MS, "MiB": MIB, "GiB": GIB, "GB": GB, "prefixed": THOUSANDS, "time": TIMES},
    "prefixed ms": {prefix: MS * thousands for prefix, thousands in THOUSANDS.items()},
}


@dataclass(frozen=True, slots=True)
class Format:
    """What one framework prints. `fields`: of Record's, a pattern with the number and its unit."""

    name: str
    sign: re.Pattern[str]
    fields: Mapping[str, tuple[re.Pattern[str], Unit]]
    parts: tuple[re.Pattern[str], float] | None = None  # name and seconds of parts of a step
    tick: float = 1.0  # seconds to which its time since the start is printed


def _format(
    name: str,
    sign: str,
    tick: float = 1.0,
    parts: tuple[str, str] | None = None,
    **fields: str | tuple[str, str] | None,
) -> Format:
    """An entry of formats.yaml."""
    compiled = {}
    for key, field in {"number": STEP, **fields}.items():
        if field is not None:
            text, unit = (field, "s") if isinstance(field, str) else field
            compiled[key] = (_pattern(text), UNITS[unit])
    timed = None if parts is None else (_pattern(parts[0]), TIMES[parts[1]])
    return Format(name, re.compile(sign), compiled, timed, tick)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("#", NUMBER))


_DOCUMENT = own_document(Path(__file__).with_name("formats.yaml").read_text("utf-8"))
FORMATS = tuple(_format(**entry) for entry in _DOCUMENT["formats"])
