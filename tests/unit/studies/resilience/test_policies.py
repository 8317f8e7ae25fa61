"""What a failure takes away from a job, by policy."""

from __future__ import annotations

from windtunnel.studies.resilience import published
from windtunnel.studies.resilience.failures.process import Cause
from windtunnel.studies.resilience.policies import Job, policy_named


def job(machines: int) -> Job:
    """Machines of 8 GPUs, a replica on each, each of 8 stages."""
    return Job(8 * machines, 8, machines, 8, 10.0, published(), lambda left: left / machines)


def test_a_rack_takes_the_replicas_on_it_and_software_one() -> None:
    for hosts, replicas in ((0, 1), (1, 1), (3, 3)):
        assert policy_named("ft-hsdp", job(16)).units(Cause("any", "gpu", "job", 1e-6, hosts)) == replicas


def test_of_a_hang_byterobust_sends_away_the_machines_of_a_pipeline_of_which_there_are_no_more_than_stages() -> None:
    for machines, away in ((4, 4), (8, 8), (100, 8)):
        policy = policy_named("byterobust", job(machines))
        assert policy.units(Cause("hang", "gpu", "job", 1e-6, 1, "hang")) == away
        assert policy.units(Cause("gpu", "gpu", "job", 1e-6, 1)) == 1
