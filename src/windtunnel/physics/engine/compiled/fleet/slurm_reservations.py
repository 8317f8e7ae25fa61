"""What jobs have reserved, as steps of time: `times[i]` is when step i begins, `steps[i]` the nodes free in it."""

from __future__ import annotations

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array


@njit(cache=True)
def _step_of(times: Array, many: int, time: int) -> int:
    """The step that holds a time; 0 for what lies before."""
    low, high = 0, many
    while low < high:
        middle = (low + high) // 2
        if times[middle] <= time:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, 0)


@njit(cache=True)
def _cut(times: Array, steps: Array, many: int, time: int) -> int:
    """A step begins at a time; returns how many there are."""
    at = _step_of(times, many, time)
    if times[at] == time:
        return many
    for number in range(many, at + 1, -1):
        times[number] = times[number - 1]
        steps[number] = steps[number - 1]
    times[at + 1] = time
    steps[at + 1] = steps[at]
    return many + 1


@njit(cache=True)
def reserve(times: Array, steps: Array, many: int, nodes: Array, begin: int, end: int) -> int:
    """Nodes are held from one time to another; returns how many steps there are."""
    begin, end = max(begin, times[0]), max(end, times[0])
    many = _cut(times, steps, _cut(times, steps, many, begin), end)
    for at in range(_step_of(times, many, begin), _step_of(times, many, end)):
        for word in range(len(nodes)):
            steps[at, word] &= ~nodes[word]
    return many


@njit(cache=True)
def next_change(times: Array, steps: Array, many: int, nodes: Array, begin: int, end: int, left: Array) -> int:
    """When there may be others of these nodes than from `begin` to `end`, -1: never."""
    for word in range(len(left)):
        left[word] = nodes[word]
    for at in range(_step_of(times, many, begin), many - 1):
        for word in range(len(left)):
            if times[at] <= end:
                left[word] &= steps[at, word]
            if nodes[word] & steps[at + 1, word] & ~left[word]:
                return int(times[at + 1])
    return -1


@njit(cache=True)
def skip_to(times: Array, steps: Array, many: int, nodes: Array, since: int, limit: int, soonest: int) -> int:
    """The last time, of those when there may be others of these nodes, that lies before the job can begin at all."""
    at = _step_of(times, many, since)
    while at + 1 < many and times[at] <= since + limit:
        for word in range(len(nodes)):
            if nodes[word] & steps[at + 1, word] & ~steps[at, word]:
                if times[at + 1] >= soonest:
                    return since
                since = times[at + 1]
                break
        at += 1
    return since


@njit(cache=True)
def never_held(times: Array, steps: Array, many: int, nodes: Array, begin: int, end: int, left: Array) -> None:
    """Of these nodes those that are never held meanwhile, to `left`."""
    for word in range(len(left)):
        left[word] = nodes[word]
    for at in range(_step_of(times, many, begin), many):
        if times[at] > end:
            break
        for word in range(len(left)):
            left[word] &= steps[at, word]


@njit(cache=True)
def overlaps(times: Array, steps: Array, many: int, nodes: Array, begin: int, end: int) -> bool:
    """Whether some of these nodes are held between two times."""
    for at in range(_step_of(times, many, begin), many):
        if times[at] >= end:
            break
        for word in range(len(nodes)):
            if nodes[word] & ~steps[at, word]:
                return True
    return False
