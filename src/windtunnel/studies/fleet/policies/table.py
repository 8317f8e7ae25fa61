"""All policies by name, in the order in which messages and pages list them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windtunnel.studies.fleet.policies.beyond import hybrid, lyra, oversubscribe
from windtunnel.studies.fleet.policies.elastic import edf, elasticflow, gavel, optimus, pollux, sia
from windtunnel.studies.fleet.policies.kueue import fair
from windtunnel.studies.fleet.policies.kueue import policy as kueue
from windtunnel.studies.fleet.policies.rigid import auction, gandiva, gittins, queues, srtf, themis, tiresias
from windtunnel.studies.fleet.policies.slurm import policy as slurm
from windtunnel.studies.fleet.traits import Traits

# What happened, by the trace's own account.
CURRENT = Traits(name="current", asks="log", loop="log", needs=frozenset({"start"}), restarts=False)
POLICIES: Mapping[str, Traits] = {
    traits.name: traits
    for traits in (
        *queues.POLICIES,
        slurm.POLICY,
        kueue.POLICY,
        *fair.POLICIES,
        tiresias.POLICY,
        gittins.POLICY,
        srtf.POLICY,
        themis.POLICY,
        optimus.POLICY,
        pollux.POLICY,
        auction.POLICY,
        gavel.POLICY,
        sia.POLICY,
        CURRENT,
        edf.POLICY,
        elasticflow.POLICY,
        gandiva.POLICY,
        *lyra.POLICIES,
        *hybrid.POLICIES,
        *oversubscribe.POLICIES,
    )
}
OTHER_NAMES = {other: traits.name for traits in POLICIES.values() for other in traits.other_names}


def plain_name(name: str) -> str:
    """The name of a policy that may be called by another."""
    return OTHER_NAMES.get(name, name)


def names_of(fits: Callable[[Traits], bool] = lambda traits: True) -> tuple[str, ...]:
    """Names of policies whose traits fit."""
    return tuple(name for name, traits in POLICIES.items() if fits(traits))


def on_clock(traits: Traits) -> bool:
    """Whether it schedules traced or modelled jobs on one kind of GPU, by decisions on the clock."""
    return traits.loop == "clock" and not traits.kinds and not traits.divides
