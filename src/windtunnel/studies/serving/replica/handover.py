"""Caches that go from one replica to another: a prompt is computed in the first and decoded in the second.

The second takes blocks for a cache before it is copied (`can_hold`, `hold`), and the sequence into its batch when the
copy is there (`adopt`); the first keeps its own blocks until then (`give_up`).
"""

from __future__ import annotations

from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.sequence import Sequence
from windtunnel.studies.serving.step_time.times import SHIFT


def can_hold(replica: Replica, sequence: Sequence) -> bool:
    """Whether blocks and a place in the batch are there for a prompt that was computed elsewhere."""
    here = len(replica.running) + len(replica.adopted) + len(replica.prefilling) + replica.coming
    spare = replica.rules.watermark_blocks if here else 0  # alone it may have all, as where prompts are admitted
    left = replica.pool.free - _blocks(replica, sequence) - spare
    if left < 0 or here >= replica.rules.max_num_seqs or replica.waiting:
        return False
    return replica.blocks_under_way() <= left


def hold(replica: Replica, sequence: Sequence) -> None:
    """Take the blocks into which a prompt's cache will be copied."""
    replica.pool.take(_blocks(replica, sequence))
    replica.coming += 1
    replica.load += 1


def let_go(replica: Replica, sequence: Sequence, now_ns: int) -> None:
    """Free the blocks of a cache that was to come here: the queue may go on."""
    replica.pool.release(_blocks(replica, sequence), ())
    replica.coming -= 1
    replica.load -= 1
    replica.wake_if_idle(now_ns)


def adopt(replica: Replica, sequence: Sequence, now_ns: int) -> None:
    """Take in a sequence whose prompt was computed elsewhere; `hold` has taken its blocks here."""
    sequence.queued_ns = now_ns if sequence.queued_ns < 0 else sequence.queued_ns
    if sequence.generated == 1:  # its client has the first token since the copy ended
        sequence.token_ticks = sequence.first_ns << SHIFT
    replica.adopted.append(sequence)
    if replica.idle:
        replica.wake(now_ns)
    else:
        replica.cut(now_ns)


def hand_back(replica: Replica, sequence: Sequence, now_ns: int) -> None:
    """A sequence whose cache is here leaves before it joins the batch."""
    replica.adopted.remove(sequence)
    let_go(replica, sequence, now_ns)


def give_up(replica: Replica, sequence: Sequence, now_ns: int) -> None:
    """A prompt's cache has been copied away: its blocks here are free, and the queue may go on."""
    replica.cache.give_back(sequence, sequence.blocks)
    replica.wake_if_idle(now_ns)


def _blocks(replica: Replica, sequence: Sequence) -> int:
    return -(-sequence.known // replica.rules.block_size) + replica.rules.beside_blocks
