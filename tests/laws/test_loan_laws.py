"""What holds for loans: no lease overlaps another, work is kept, and greedy choices beside brute force."""

import itertools

import numpy as np
import pytest
from held_leases import Kind, Lease, first_overlap, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.fleet.loans.clock import NS, LoanClock, Training
from windtunnel.studies.fleet.loans.pool import ServingPool, lendable
from windtunnel.studies.fleet.policies.beyond.lyra import Lyra, extra_workers, reclaim
from windtunnel.studies.fleet.policies.rigid.queues import run_queue

OWN, POOL, PER = 2, 2, 4

jobs_strategy = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 8]), st.booleans()),
    min_size=1,
    max_size=20,
)
offers_strategy = st.lists(st.tuples(st.integers(0, 120), st.integers(0, POOL)), max_size=8).map(
    lambda offers: [(time * NS, count) for time, count in sorted(dict(offers).items())]
)
policy_strategy = st.builds(
    Lyra,
    loan=st.booleans(),
    elastic=st.booleans(),
    rescale_s=st.sampled_from([0.0, 2.0]),
    restart_s=st.sampled_from([0.0, 3.0]),
    checkpoint_s=st.sampled_from([0.0, 5.0, 1e6]),
)


def trainings(jobs, elastic):
    return [
        Training(
            index,
            submit * NS,
            gpus,
            2 * gpus if wide and elastic else gpus,
            work * NS,
            lambda held, gpus=gpus: held / gpus,
        )
        for index, (submit, work, gpus, wide) in enumerate(jobs)
    ]


class Leased(LoanClock):
    """The clock, with a lease for every stretch of time that it books."""

    def __init__(self, *given):
        super().__init__(*given)
        self.leases = []

    def _book(self, job, now_ns):
        for kind, held in ((None, job.base_gpus), (Kind.ELASTIC, job.extra)):
            for server, count in held if now_ns > job.booked_ns else ():
                pool, own = ("training", Kind.OWN) if server < self.own else ("serving", Kind.LOANED)
                path, holder = ("here", pool, f"server-{server}"), str(job.index)
                self.leases.append(Lease(path, count, holder, job.booked_ns, now_ns, pool, kind or own))
        super()._book(job, now_ns)


def ran(jobs, offers, policy):
    clock = Leased(trainings(jobs, policy.elastic), OWN, PER, policy, offers)
    clock.run()
    return clock, clock.leases


@settings(max_examples=120, deadline=None)
@given(jobs=jobs_strategy, offers=offers_strategy, policy=policy_strategy)
def test_no_lease_overlaps_another_and_borrowed_servers_are_held_while_lent(jobs, offers, policy):
    clock, leases = ran(jobs, offers, policy)
    leaves = {("here", "training", f"server-{at}"): PER for at in range(OWN)}
    leaves |= {("here", "serving", f"server-{at}"): PER for at in range(OWN, OWN + POOL)}
    assert first_overlap(leases, tree(leaves)) is None
    ends = [time for time, _ in clock.lent[1:]] + [1 << 62]
    for (time, count), until in zip(clock.lent, ends, strict=True):
        used = {
            lease.path for lease in leases if lease.pool == "serving" and lease.start_ns < until and lease.end_ns > time
        }
        inside = {
            lease.path
            for lease in leases
            if lease.pool == "serving" and max(lease.start_ns, time) < min(lease.end_ns, until)
        }
        assert len(inside) <= count
        assert used >= inside


@settings(max_examples=120, deadline=None)
@given(jobs=jobs_strategy, offers=offers_strategy, policy=policy_strategy)
def test_every_job_ends_and_gpu_time_is_work_pauses_and_losses(jobs, offers, policy):
    clock, leases = ran(jobs, offers, policy)
    for job in clock.jobs:
        assert job.end_ns is not None
        assert job.start_ns >= job.submit_ns
        least = job.work_ns * job.gpus  # speed is in proportion, so work is GPU time
        paused = (job.restarts * policy.restart_s + job.resizes * policy.rescale_s) * NS * job.most
        assert least + job.lost_ns * job.gpus - 16 <= job.gpu_ns <= least + job.lost_ns * job.gpus + paused * 2 + 16
        if policy.checkpoint_s == 0.0:
            assert job.lost_ns == 0
    held = sum(lease.gpu_s for lease in leases)
    assert held == pytest.approx(sum(job.gpu_ns for job in clock.jobs) / NS)


@settings(max_examples=60, deadline=None)
@given(jobs=jobs_strategy)
def test_with_neither_part_it_is_sjf_with_skipping(jobs):
    clock, _ = ran(jobs, [], Lyra(loan=False, elastic=False))
    submit, work, gpus = (np.array([job[part] for job in jobs], np.int64) for part in range(3))
    start, _ = run_queue("sjf-skip", submit * NS, work * NS, gpus, nodes=OWN, per_node=PER, pool=False)
    assert [job.start_ns for job in clock.jobs] == start.tolist()


@settings(max_examples=40, deadline=None)
@given(jobs=jobs_strategy, offers=offers_strategy, policy=policy_strategy)
def test_the_same_run_twice_is_the_same(jobs, offers, policy):
    first, second = ran(jobs, offers, policy), ran(jobs, offers, policy)
    assert first[1] == second[1]
    assert first[0].lent == second[0].lent


servers_strategy = st.lists(st.dictionaries(st.integers(0, 6), st.integers(1, 4), max_size=3), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(servers=servers_strategy, share=st.floats(0, 1))
def test_reclaim_stops_exactly_the_jobs_of_the_servers_it_gives_back(servers, share):
    jobs_on = dict(enumerate(servers))
    count = round(share * len(servers))
    chosen, stopped = reclaim(jobs_on, count)
    assert len(set(chosen)) == len(chosen) == count
    assert set(stopped) == {job for server in chosen for job in jobs_on[server]}
    assert len(set(stopped)) == len(stopped)


@settings(max_examples=150, deadline=None)
@given(servers=servers_strategy, share=st.floats(0, 1))
def test_reclaim_beside_brute_force(servers, share):
    """No job is stopped where none has to be; and where each job is on one server, no choice stops fewer."""
    jobs_on = dict(enumerate(servers))
    count = round(share * len(servers))
    least = min(
        len({job for server in some for job in jobs_on[server]}) for some in itertools.combinations(jobs_on, count)
    )
    stopped = len(reclaim(jobs_on, count)[1])
    assert stopped >= least
    if least == 0:
        assert stopped == 0
    apart = {server: {(server, job): gpus for job, gpus in held.items()} for server, held in jobs_on.items()}
    fewest = sum(sorted(len(held) for held in apart.values())[:count])
    assert len(reclaim(apart, count)[1]) == fewest


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.lists(st.integers(-5, 50), min_size=1, max_size=4), min_size=1, max_size=4),
    room=st.integers(0, 12),
)
def test_the_knapsack_is_the_best_of_all_choices(values, room):
    def worth(choice):
        return sum(group[k - 1] if k else 0 for group, k in zip(values, choice, strict=True))

    found = extra_workers([[float(value) for value in group] for group in values], room)
    every = itertools.product(*(range(len(group) + 1) for group in values))
    assert sum(found) <= room
    assert worth(found) == max(worth(choice) for choice in every if sum(choice) <= room)


def a_pool(**changes):
    given = {
        "servers": 10,
        "times_s": [0.0, 100.0, 200.0, 300.0],
        "rates_per_s": [30.0, 60.0, 90.0, 20.0],
        "server_rate_per_s": 10.0,
        "attainment": lambda rate: 1.0 if rate <= 10.0 else 0.5,
        "headroom": 0.0,
        "interval_s": 50.0,
        "lookback_s": 0.0,
        "load_s": 0.0,
    }
    return ServingPool(**{**given, **changes})


def test_a_pool_lends_what_it_does_not_need_and_nobody_is_late():
    pool = a_pool()
    offers = pool.offers(0.0, 400.0)
    assert offers == [(0, 7), (100 * NS, 4), (200 * NS, 1), (300 * NS, 8)]
    assert pool.served(offers, 0.0, 400.0).missed == 0.0
    assert pool.served((), 0.0, 400.0).requests == pytest.approx(100 * (30 + 60 + 90 + 20))


def test_servers_that_load_weights_make_users_late_until_they_serve():
    pool = a_pool(load_s=20.0)
    served = pool.served(pool.offers(0.0, 400.0), 0.0, 400.0)
    assert served.missed == pytest.approx(0.5 * (20 * 60 + 20 * 90))


@settings(max_examples=100, deadline=None)
@given(rate=st.floats(0, 200), headroom=st.floats(0, 2))
def test_fewer_servers_are_lent_the_more_is_asked(rate, headroom):
    count = lendable(10, rate, 10.0, headroom)
    assert 0 <= count <= 10
    assert count >= lendable(10, rate + 5, 10.0, headroom)
    assert count >= lendable(10, rate, 10.0, headroom + 0.1)


def test_overlaps_are_found_at_every_depth():
    places = tree({("c", "n", "0"): 1.0, ("c", "n", "1"): 1.0})
    assert places["c", "n"] == 2.0
    half = Lease(("c", "n", "0"), 0.5, "a", 0, 10)
    assert first_overlap([half, Lease(("c", "n", "0"), 0.5, "b", 5, 15)], places) is None
    found = first_overlap([half, Lease(("c", "n", "0"), 0.6, "b", 5, 15)], places)
    assert found is not None
    assert (found.path, found.time_ns) == (("c", "n", "0"), 5)
    whole = Lease(("c", "n"), 2.0, "b", 5, 15)  # the node, of which half a device is held
    assert first_overlap([half, whole], places).path == ("c", "n")
    assert first_overlap([half, Lease(("c", "n"), 2.0, "b", 10, 15)], places) is None
    resold = Lease(("c", "n", "0"), 1.0, "b", 5, 15, kind=Kind.OVERSUBSCRIBED)
    assert first_overlap([Lease(("c", "n", "0"), 1.0, "a", 0, 10), resold], places) is None
    assert first_overlap([resold, resold], places) is not None
