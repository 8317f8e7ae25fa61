"""Two pools looked at or disturbed in the middle of an event, as `replica.interruption` does for one replica.

A client has the first token when the copy of the cache ends, so a request is without tokens while its prompt waits to
be pulled or is on its way. A copy that nobody waits for any more ends all the same; then both sides are free.
"""

from __future__ import annotations

from windtunnel.studies.serving.disaggregated.server import Disaggregated
from windtunnel.studies.serving.replica import interruption
from windtunnel.studies.serving.replica.handover import give_up, hand_back
from windtunnel.studies.serving.replica.sequence import Sequence


def step_ends_ns(server: Disaggregated, now_ns: int) -> int:
    """When the next step or copy ends after `now_ns`; `NEVER` where nothing goes on."""
    return min(server.next_ns, *(replica.step_ends_ns(now_ns) for replica in server.decode))


def cancel(server: Disaggregated, index: int, now_ns: int) -> bool:
    """A client hangs up: forget its request; True if it was there."""
    for place, replica in enumerate((*server.prefill, *server.decode)):
        if interruption.cancel(replica, index, now_ns):
            server.look_again(place, now_ns)
            return True
    for ready in server.ready:
        if ready[0].index == index:
            server.ready.remove(ready)
            give_up(server.prefill[ready[1]], ready[0], now_ns)
            server.look_again(ready[1], now_ns)
            return True
    if any(sequence.index == index for sequence in server.copying):
        server.unwanted.add(index)
        return True
    for place, replica in enumerate(server.decode):
        for sequence in replica.adopted:
            if sequence.index == index:
                hand_back(replica, sequence, now_ns)
                server.look_again(len(server.prefill) + place, now_ns)
                return True
    return False


def unfinished(server: Disaggregated, now_ns: int) -> list[Sequence]:
    """What goes with the machines: every request, with the tokens that its client has, to be computed elsewhere."""
    sequences = [sequence for replica in server.decode for sequence in interruption.unfinished(replica, now_ns)]
    sequences += [sequence for replica in server.decode for sequence in _homeless(replica.adopted, 1)]
    moving = [sequence for sequence in server.copying if sequence.index not in server.unwanted]
    sequences += _homeless(moving, 0) + _homeless([sequence for sequence, _, _ in server.ready], 0)
    sequences += [sequence for replica in server.prefill for sequence in interruption.unfinished(replica, now_ns)]
    server.stop()
    return sequences


def _homeless(here: list[Sequence], number: int) -> list[Sequence]:
    """Sequences without a cache; those in the handover count one token more than their client has, or none."""
    for sequence in here:
        sequence.generated += number - 1
        if sequence.generated == 0:
            sequence.first_ns = -1
        sequence.lose_cache()
    return here
