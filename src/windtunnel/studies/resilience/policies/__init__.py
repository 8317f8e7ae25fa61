"""Policies: what a job does when a machine fails. One file each; `policy.py` says what they have in common."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.errors import UnknownNameError
from windtunnel.studies.resilience.policies.byterobust import byterobust
from windtunnel.studies.resilience.policies.ft_hsdp import ft_hsdp
from windtunnel.studies.resilience.policies.policy import Job, Phases, Policy, Reaction
from windtunnel.studies.resilience.policies.relayout import oobleck, parcae, varuna
from windtunnel.studies.resilience.policies.restart import restart
from windtunnel.studies.resilience.policies.shrink import shrink
from windtunnel.studies.resilience.policies.standby import standby

POLICIES: dict[str, Callable[[Job], Policy]] = {
    "restart": restart,
    "standby": standby,
    "byterobust": byterobust,
    "shrink": shrink,
    "ft-hsdp": ft_hsdp,
    "oobleck": oobleck,
    "varuna": varuna,
    "parcae": parcae,
}
ALSO = {"trainmover": "standby", "torchft": "ft-hsdp"}


def policy_named(name: str, job: Job) -> Policy:
    """The policy that a user names. Raises UnknownNameError."""
    make = POLICIES.get(ALSO.get(name, name))
    if make is None:
        raise UnknownNameError("policy", name, (*POLICIES, *ALSO))
    return make(job)


__all__ = ["POLICIES", "Job", "Phases", "Policy", "Reaction", "policy_named"]
