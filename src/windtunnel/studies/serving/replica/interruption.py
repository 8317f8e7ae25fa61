"""A replica looked at or disturbed in the middle of an event: tokens so far, a client that hangs up, a machine lost.

A run of k decode steps is one event of the replica. By the time t of the clock the whole steps that have ended are

    d = the most steps with d first + growth d (d - 1) / 2 <= t - start

so each decoding sequence has d tokens more than the replica has counted. A step that runs goes on without a sequence
that leaves: its price was settled when it began.
"""

from __future__ import annotations

from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence


def tokens_given(replica: Replica, sequence: Sequence, done: int) -> int:
    """Output tokens that a sequence of this replica has, `done` steps into the run."""
    if sequence.last_ns < 0 and sequence.index in replica.running:
        return sequence.output - (sequence.end_step - replica.batch.steps - done)
    return sequence.generated


def blocks_held(replica: Replica, done: int) -> int:
    """KV blocks in use, `done` steps into the run."""
    return replica.pool.held + (replica.batch.blocks_for(done) if done else 0)


def cancel(replica: Replica, index: int, now_ns: int) -> bool:
    """A client hangs up: forget its request; True if it was there. Its blocks are free at once."""
    sequence = replica.running.get(index) or next(
        (sequence for sequence in replica.prefilling if sequence.index == index), None
    )
    if sequence is not None:
        replica.drop(sequence, now_ns)
        return True
    sequence = next((sequence for sequence in replica.waiting if sequence.index == index), None)
    if sequence is None:
        return False
    replica.admission.forget(sequence)
    replica.load -= 1
    return True


def unfinished(replica: Replica, now_ns: int) -> list[Sequence]:
    """What a replica loses when its machine goes: every request here, in the order of admission, then of arrival.

    Each has the tokens that it was given, and none of its cache: `known` is its prompt and those tokens, to be computed
    again elsewhere. The replica is of no further use.
    """
    done = replica.steps_done(now_ns)
    for sequence in replica.running.values():
        sequence.token_ticks = replica.last_token_ticks(sequence, done)
    here = [*replica.running.values(), *replica.prefilling, *replica.waiting]
    for sequence in here:
        sequence.generated = tokens_given(replica, sequence, done)
        sequence.lose_cache()
    replica.running.clear()
    replica.prefilling.clear()
    replica.waiting.clear()
    replica.load -= len(here)
    replica.next_ns = NEVER
    return here
