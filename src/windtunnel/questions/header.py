"""The header of every answer, whichever study gave it: what was asked, by what, and how sure it is.

docs/result-schema.md says what each field is. The study's own part stands beside them in the same document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Literal

from windtunnel.notebook import Shown
from windtunnel.questions.typed import plain_fields

SCHEMA = "windtunnel.result/2"
Verdict = Literal["as expected", "faster", "slower"]


class Answer(Shown):
    """What a study answers, and what the header says of it."""

    warnings: Sequence[str] = ()  # what to mind

    @property
    def band(self) -> Mapping[str, object] | None:
        """`band_entry` of its first figure, where that has one."""
        return None

    @property
    def provenance(self) -> Mapping[str, object] | None:
        """What the figures rest on."""
        return None

    def to_dict(self) -> Mapping[str, object]:
        """The study's own part of the document, ready for JSON: its fields, but for those of `JSON_LEAVES_OUT`."""
        return plain_fields(self)


@lru_cache(maxsize=1)
def product_version() -> str:
    """Of the installed package, for what a result was made by."""
    try:
        return metadata.version("windtunnel")
    except metadata.PackageNotFoundError:  # run from a source tree that nobody installed
        return "not installed"


def header(
    study: str,
    spec: Mapping[str, object],
    reproduce: str | None,
    *,
    version: str | None = None,
    band: Mapping[str, object] | None = None,
    provenance: Mapping[str, object] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, object]:
    """The fields above, JSON-able. `version`: of the product that gave the answer, if not of this one."""
    return {
        "schema": SCHEMA,
        "version": version or product_version(),
        "study": study,
        "spec": dict(spec),
        "reproduce": reproduce,
        "band": None if band is None else dict(band),
        "provenance": None if provenance is None else dict(provenance),
        "warnings": list(warnings),
    }


def band_entry(figure: str, p5: float, p95: float) -> dict[str, object]:
    """The band of a figure, which is named by its path in the document, e.g. `plans[0].step_time_s`."""
    return {"of": figure, "p5": p5, "p95": p95}


def verdict_of(seconds: float, p5: float, p95: float) -> Verdict:
    """Of a time that was measured, against the band of the predicted."""
    if seconds > p95:
        return "slower"
    return "faster" if seconds < p5 else "as expected"
