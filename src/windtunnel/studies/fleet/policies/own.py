"""Policies that a user brings: one of ours with other parameters, from a YAML file, or an object of their own.

In Python anything with `decide(snapshot) -> Decision` will do. Its `name` stands in tables (else its class's). Jobs run
their traced durations on the GPUs that they ask for; where `chooses_gpus` is true each has `work`, which knows its
speed on any number of them, as Optimus needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.document import read_mapping
from windtunnel.files.table import LONGEST_S
from windtunnel.studies.fleet.clock.decision import Policy, Rounds
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.table import POLICIES, names_of, plain_name
from windtunnel.studies.fleet.site import Site

GIVEN = (
    "kinds",
    "nodes",
    "per_node",
    "unit",
    "seed",
    "sample",
    "cluster",
    "topology",
    "quotas",
    "cohorts",
    "places",
    "known",
)  # fields that follow from the site, --seed or the trace


@dataclass(frozen=True)
class Own:
    """`like`: the built-in policy whose jobs it schedules; `decider`: the user's object, else `like` is changed."""

    name: str
    like: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    decider: Policy | None = None

    def make_policy(self, site: Site, options: Options) -> Policy | None:
        """The policy; None where it is `like` as it stands. Raises SpecError."""
        if self.decider is not None or not self.parameters:
            return self.decider
        policy: Policy = _with(POLICIES[self.like].make_policy(site, options), self.parameters, self.like)
        return policy


def own_of(policy: Policy | Own) -> Own:
    """A user's object, as `simulate` takes it. Raises SpecError for what decides nothing."""
    if isinstance(policy, Own):
        return policy
    if not callable(getattr(policy, "decide", None)):
        raise SpecError("policy", policy, "give a name, or an object with decide(snapshot) -> Decision")
    name = str(getattr(policy, "name", type(policy).__name__))
    return Own(name, "optimus" if getattr(policy, "chooses_gpus", False) else "srtf", decider=policy)


def policy_of_text(text: str) -> str | Own:
    """What `--policy` says: a YAML file read, or a name as it stands. Raises InputFileError and SpecError."""
    return read_policy(Path(text)) if text.lower().endswith((".yaml", ".yml")) and "=" not in text else text


def title(text: str) -> str:
    """What tables call a policy of `--policy`. Raises InputFileError and SpecError."""
    policy = policy_of_text(text)
    return plain_name(policy) if isinstance(policy, str) else policy.name


def read_policy(path: Path) -> Own:
    """A policy from YAML. Raises InputFileError and SpecError."""
    data = read_mapping(path, "give policy: NAME and its parameters")
    like = data.pop("policy", None)
    if not isinstance(like, str):
        raise InputFileError(path, "does not say which policy", "give policy: tiresias, or another name")
    name, like = str(data.pop("name", path.stem)), like.lower()
    names = names_of(lambda traits: traits.make is not None and not traits.compiled)
    if data and like not in names:
        remedy = f"{like} has no parameters; those that have: {', '.join(names)}"
        raise SpecError(next(iter(data)), data[next(iter(data))], remedy, str(path))
    return Own(name, like, data)


def _with(policy: Any, parameters: Mapping[str, object], name: str) -> Any:
    """The policy with other parameters. Raises SpecError."""
    inner: Any = policy.inner if isinstance(policy, Rounds) else policy
    defaults = {each.name: getattr(inner, each.name) for each in fields(inner) if each.init and each.name not in GIVEN}
    if isinstance(policy, Rounds):
        defaults["interval_s"] = policy.interval_s
    for key, value in parameters.items():
        if key not in defaults:
            has = ", ".join(defaults) or "none"
            raise SpecError(key, value, f"{name} has the parameters: {has}")
    chosen = {key: _as(defaults[key], value, key) for key, value in parameters.items()}
    if not isinstance(policy, Rounds):
        return replace(policy, **chosen)
    interval_s = chosen.pop("interval_s", policy.interval_s)
    return Rounds(replace(inner, **chosen), interval_s)


def _as(example: object, value: object, key: str) -> Any:
    """The value, of the kind of the parameter's own. Raises SpecError."""
    if isinstance(example, bool):
        if isinstance(value, bool):
            return value
        raise SpecError(key, value, "give true or false")
    if isinstance(example, tuple):
        words = [each for each in example if isinstance(each, str)]
        if words:
            if isinstance(value, list) and value and all(each in words for each in value):
                return tuple(value)
            raise SpecError(key, value, f"give a list of {', '.join(words)}")
        if isinstance(value, list) and value:
            return tuple(_as(0.0, each, key) for each in value)
        raise SpecError(key, value, "give a list of numbers")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise SpecError(key, value, "give a number from 0 on")
    if key.endswith("_s") and value > LONGEST_S:
        raise SpecError(key, value, f"give at most {LONGEST_S:.0f} seconds")
    if key.endswith("_s") and example and value < 1:  # at 0 it is asked without end
        raise SpecError(key, value, "give 1 or more")
    if isinstance(example, int):
        if isinstance(value, int):
            return value
        raise SpecError(key, value, "give a whole number")
    return float(value)
