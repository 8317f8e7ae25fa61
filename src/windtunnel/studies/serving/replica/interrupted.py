"""A replica looked at or disturbed in the middle of an event: tokens so far, a client that hangs up, a machine lost.

A run of k decode steps is one event of the replica. By the time t of the clock the whole steps that have ended are

    d = the most steps with d first + growth d (d - 1) / 2 <= t - start

so each decoding sequence has d tokens more than the replica has counted. A step that runs goes on without a sequence
that leaves: its price was settled when it began.
"""

from __future__ import annotations

from windtunnel.studies.serving.replica.replica import MIXED, RUN, SHIFT, Replica
from windtunnel.studies.serving.replica.runs import steps_until, ticks_of
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence
from windtunnel.studies.serving.step_time.times import TICKS_PER_NS


def steps_done(replica: Replica, now_ns: int) -> int:
    """Whole steps of the run under way that have ended by `now_ns`; 0 outside a run."""
    if replica._mode != RUN:
        return 0
    steps, first, growth = replica._run
    past = (now_ns << SHIFT) - replica._clock
    return 0 if past < first else min(steps, steps_until(past + 1, first, growth) - 1)


def step_ends_ns(replica: Replica, now_ns: int) -> int:
    """When the step ends that runs at `now_ns`; `NEVER` where none does."""
    if replica._mode != RUN:
        return replica.next_ns
    steps, first, growth = replica._run
    done = min(steps, steps_done(replica, now_ns) + 1)
    ticks = replica._clock + ticks_of(done, first, growth)
    return (ticks + TICKS_PER_NS - 1) >> SHIFT


def tokens_given(replica: Replica, one: Sequence, done: int) -> int:
    """Output tokens that a sequence of this replica has, `done` steps into the run."""
    if one.last_ns < 0 and one.index in replica.decoding:
        return one.output - (one.end_step - replica._steps - done)
    return one.generated


def blocks_held(replica: Replica, done: int) -> int:
    """KV blocks in use, `done` steps into the run."""
    return replica.pool.held + (replica.blocks_for(done) if done else 0)


def cancel(replica: Replica, index: int, now_ns: int) -> bool:
    """A client hangs up: forget its request; True if it was there. Its blocks are free at once."""
    for one in replica.waiting:
        if one.index == index:
            replica.outstanding_tokens -= one.known - one.computed
            replica.waiting.remove(one)
            replica.load -= 1
            if replica._gate is not None:
                replica._gate.waiting[one.rank] -= 1
            replica._gone(one)
            if not replica.waiting:
                replica._gather_until = -1
            return True
    for one in replica.partial:
        if one.index == index:
            replica.outstanding_tokens -= one.known - one.computed
            replica.partial.remove(one)
            replica.load -= 1
            replica._chunks = [(other, n) for other, n in replica._chunks if other is not one]
            replica._give_back(one, one.blocks)
            replica._gone(one)
            return True
    found = replica.decoding.get(index)
    if found is None:
        return False
    if replica._mode == RUN:
        replica._cut(now_ns << SHIFT)  # the step that runs is the last it takes part in
    if replica._mode == MIXED and replica._beside:
        if (found.context + replica._steps - found.joined) % replica.rules.block_size == 0:
            replica.pool.release(1, ())  # taken for the token that it will not get
        replica._beside -= 1
    replica._leave(found)
    replica._gone(found)
    replica.load -= 1
    return True


def unfinished(replica: Replica, now_ns: int) -> list[Sequence]:
    """What a replica loses when its machine goes: every request here, in the order of admission, then of arrival.

    Each has the tokens that it was given, and none of its cache: `known` is its prompt and those tokens, to be computed
    again elsewhere. The replica is of no further use.
    """
    done = steps_done(replica, now_ns)
    for one in replica.decoding.values():
        one.token_ticks = replica.last_token_ticks(one, done)
    here = [*replica.decoding.values(), *replica.partial, *replica.waiting]
    for one in here:
        one.generated = tokens_given(replica, one, done)
        one.lose_cache()
    replica.decoding.clear()
    replica.partial.clear()
    replica.waiting.clear()
    replica.load -= len(here)
    replica.next_ns = NEVER
    return here
