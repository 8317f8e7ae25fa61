"""Failure processes from the catalogue, from a YAML file of the same form, or from a CSV of counts.

name: mine
source: where the numbers are from
observed: {gpus: 1024, gpus_per_node: 8, days: 30}      # for causes given as a count
causes:
  - {name: GPU, component: gpu, count: 12, per: gpu}                        # per: gpu | node | job
  - {name: host, component: host, per_1000_node_days: 2.3, per: node, hosts: 1, symptom: explicit}
lemons: {share_of_hosts: 0.01, share_of_failures: 0.7, source: ...}         # optional, as bursts and slow are
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from windtunnel.errors import InputFileError, SpecError, UnknownNameError
from windtunnel.files.document import form_of, read_form, to_yaml
from windtunnel.studies.resilience.failures.process import (
    DAY_S,
    Bursts,
    Cause,
    FailureProcess,
    Lemons,
    Per,
    SlowHosts,
    Symptom,
)
from windtunnel.units import parse_time

CATALOGUE = ("llama3", "rsc-1", "rsc-2", "production")
SHAPE = "see docs/resilience.md for the form of a failure file"


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Observation(_Form):
    gpus: int = Field(ge=1)
    gpus_per_node: int = Field(default=8, ge=1)
    days: float = Field(gt=0)


class _Cause(_Form):
    name: str
    component: str = "unknown"
    per: Per = "node"
    count: float | None = Field(default=None, ge=0)
    per_1000_node_days: float | None = Field(default=None, ge=0)
    per_day: float | None = Field(default=None, ge=0)  # of one GPU, node or job
    hosts: int = Field(default=1, ge=0)
    symptom: Symptom = "explicit"


class _Lemons(_Form):
    share_of_hosts: float = Field(gt=0, lt=1)
    share_of_failures: float = Field(ge=0, lt=1)
    source: str = ""

    def build(self) -> Lemons:
        return Lemons(self.share_of_hosts, self.share_of_failures)


class _Bursts(_Form):
    share: float = Field(ge=0, lt=1)
    mean_delay: str = "5 min"
    source: str = ""

    def build(self) -> Bursts:
        return Bursts(self.share, parse_time(self.mean_delay, "bursts.mean_delay"))


class _Slow(_Form):
    per_1000_node_days: float = Field(ge=0)
    slower: float = Field(ge=0)
    shortest: str = "30 s"
    longest: str = "10 h"
    source: str = ""

    def build(self) -> SlowHosts:
        shortest, longest = parse_time(self.shortest, "slow.shortest"), parse_time(self.longest, "slow.longest")
        if not 0 < shortest <= longest <= 3650 * DAY_S:
            raise SpecError("slow", f"{self.shortest} to {self.longest}", "give more than 0 to at most ten years")
        return SlowHosts(self.per_1000_node_days / 1000 / DAY_S, self.slower, shortest, longest)


class _File(_Form):
    name: str
    source: str
    observed: _Observation | None = None
    causes: tuple[_Cause, ...]
    lemons: _Lemons | None = None
    bursts: _Bursts | None = None
    slow: _Slow | None = None


def read_failures(word: str | Path) -> FailureProcess:
    """The process that a word names: `llama3`, `rsc-1`, `rsc-2`, `production`, `none`, or the path of a YAML file.

    Raises UnknownNameError for a word that is neither, InputFileError for a file that is not of the form above.
    """
    text = str(word)
    if text == "none":
        return FailureProcess("none", "nothing fails", ())
    if text in CATALOGUE:
        file = files("windtunnel.studies.resilience.failures") / "catalogue" / f"{text}.yaml"
        return _build(form_of(file.read_text(encoding="utf-8"), text, own=True), text)
    if not text.lower().endswith((".yaml", ".yml")) and not os.path.exists(text):
        raise UnknownNameError("failure process", text, (*CATALOGUE, "none"), "or give the path of a YAML file")
    return _build(read_form(text, SHAPE), text)


def _build(document: Mapping[str, object], where: str) -> FailureProcess:
    try:
        form = _File.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputFileError(where, f"{place}: {first['msg']}", SHAPE) from None
    causes = tuple(_cause(cause, form.observed, where) for cause in form.causes)
    more = {name: part.build() for name in ("lemons", "bursts", "slow") if (part := getattr(form, name)) is not None}
    return FailureProcess(form.name, form.source, causes, **more)


def _cause(cause: _Cause, observed: _Observation | None, where: str) -> Cause:
    measures = [name for name in ("count", "per_1000_node_days", "per_day") if getattr(cause, name) is not None]
    if len(measures) != 1:
        _refuse(where, cause.name, "give exactly one of count, per_1000_node_days and per_day")
    if cause.count is not None:
        if observed is None:
            _refuse(where, cause.name, "a count needs `observed: {gpus, gpus_per_node, days}`")
        exposure = {"gpu": observed.gpus, "node": -(-observed.gpus // observed.gpus_per_node), "job": 1}[cause.per]
        rate = cause.count / (exposure * observed.days * DAY_S)
    elif cause.per_1000_node_days is not None:
        if cause.per != "node":
            _refuse(where, cause.name, "per_1000_node_days goes with `per: node`")
        rate = cause.per_1000_node_days / 1000 / DAY_S
    else:
        assert cause.per_day is not None
        rate = cause.per_day / DAY_S
    return Cause(cause.name, cause.component, cause.per, rate, cause.hosts, cause.symptom)


def _refuse(where: str, name: str, remedy: str) -> NoReturn:
    raise InputFileError(where, f"cause {name!r} cannot be read", remedy)


def process_to_yaml(process: FailureProcess) -> str:
    """A file that `read_failures` reads back to the same process."""
    lemons, bursts, slow = process.lemons, process.bursts, process.slow
    keys = ("name", "component", "per", "hosts", "symptom")
    causes = [
        {**{key: getattr(cause, key) for key in keys}, "per_day": cause.rate_per_s * DAY_S} for cause in process.causes
    ]
    document: dict[str, object] = {"name": process.name, "source": process.source, "causes": causes}
    if lemons.share_of_hosts:
        document["lemons"] = asdict(lemons)
    if bursts.share:
        document["bursts"] = {"share": bursts.share, "mean_delay": f"{bursts.mean_delay_s!r} s"}
    if slow.rate_per_node_s:
        document["slow"] = {
            "per_1000_node_days": slow.rate_per_node_s * 1000 * DAY_S,
            "slower": slow.slower,
            "shortest": f"{slow.shortest_s!r} s",
            "longest": f"{slow.longest_s!r} s",
        }
    return to_yaml(document)
