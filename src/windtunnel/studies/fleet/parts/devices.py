"""A board whose GPUs may be divided: which GPU holds which parts.

GPUs are counted in `UNITS`. `free` of a node is what its undivided GPUs have; a GPU is divided when the first part
comes to it and whole again when the last has gone, so a job of whole GPUs never meets a part. Shares and slices of MIG
do not meet on one GPU, and of shares a job has one on each GPU. A gang of parts goes to the node that holds all with
fewest GPUs newly divided, then with least room; else to as few nodes as will do, those with most room first. A slice
of MIG begins as far up as it may, which leaves room for large ones.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain

from windtunnel.studies.fleet.clock.board import Board, Move, by_rank, next_in_queue
from windtunnel.studies.fleet.clock.decision import Placement, Spot
from windtunnel.studies.fleet.clock.running import Moment, Running
from windtunnel.studies.fleet.parts.profile import UNITS, Device, Part


class BoardOfParts(Board):
    """A board with the divided GPUs of each node, by numbers that are given once."""

    unit = UNITS

    def __init__(self, nodes: Sequence[int], moment: Moment, line: Callable[[Running], Hashable]) -> None:
        super().__init__(nodes, moment, line)
        self.divided: dict[int, dict[int, Device]] = {}
        self.numbers = 0
        self.spots: dict[int, tuple[Spot, ...]] = {}  # of jobs that run on parts

    def copy(self) -> BoardOfParts:
        """Another that changes by itself; its lines are not copied."""
        other = BoardOfParts((), self.moment, self.line)
        other.free, other.by_free = self.free.copy(), [nodes.copy() for nodes in self.by_free]
        other.free_gpus, other.numbers, other.running = self.free_gpus, self.numbers, self.running.copy()
        other.spots = self.spots.copy()
        other.divided = {node: devices.copy() for node, devices in self.divided.items()}
        return other

    def room(self, job: Running, per_node: int) -> Placement | None:
        """Where a gang goes, or None where it does not fit; of a gang of parts `spots` say on which GPUs."""
        if job.part is None:
            return self.gang(job.gpus, per_node)
        spots = self._spots(job.part, job.gpus // job.part.units)
        if spots is None:
            return None
        job.spots = spots
        counts = Counter(node for node, _, _ in spots)
        return tuple((node, count * job.part.units) for node, count in counts.items())

    def anywhere(self, job: Running) -> Placement | None:
        """The same, where whole GPUs may lie on any nodes."""
        if job.part is not None:
            return self.room(job, 0)
        return self.most_free_first(job.gpus) if job.gpus <= sum(self.free) else None

    def take(self, job: Running, placement: Placement) -> None:
        """A job gets GPUs, or parts of them."""
        if job.part is None:
            super().take(job, placement)
            return
        self.spots[job.index] = job.spots
        for node, number, start in job.spots:
            devices = self.divided.setdefault(node, {})
            if number not in devices:
                self._hold(((node, UNITS),), -1)
                self.free_gpus += UNITS
                devices[number] = Device(job.part.slices)
                self.numbers = max(self.numbers, number + 1)
            devices[number] = devices[number].change(job.part, start, 1)
        self.free_gpus -= job.gpus
        self.running[job.index] = job

    def give(self, job: Running, placement: Placement) -> None:
        """What a job held is free again."""
        if job.part is None:
            super().give(job, placement)
            return
        for node, number, start in self.spots.pop(job.index):
            devices = self.divided[node]
            devices[number] = devices[number].change(job.part, start, -1)
            if not devices[number].used:
                del devices[number]
                if not devices:
                    del self.divided[node]
                self._hold(((node, UNITS),), 1)
                self.free_gpus -= UNITS
        self.free_gpus += job.gpus
        del self.running[job.index]
        self.released.append((job, placement))

    def _spots(self, part: Part, count: int) -> tuple[Spot, ...] | None:
        """Where so many parts go."""
        fresh = -(-count // (part.most if part.slices else 1))
        wide = next((nodes[0] for nodes in self.by_free[fresh:] if nodes), None)
        near = self.divided.keys() | (set() if wide is None else {wide})
        fits = [spots for node in near if len(spots := self._on(node, part, count)) == count]
        if fits:
            return min(fits, key=self._cost)
        chosen: tuple[Spot, ...] = ()
        whole = {node for nodes in self.by_free[1:] for node in nodes}
        everywhere = [self._on(node, part, count) for node in whole | self.divided.keys()]
        for spots in sorted(everywhere, key=lambda spots: (-len(spots), spots[:1])):
            chosen += spots[: count - len(chosen)]
        return chosen if len(chosen) == count else None

    def _cost(self, spots: tuple[Spot, ...]) -> tuple[int, int, int]:
        """GPUs newly divided, what is free on the node, and its number."""
        node = spots[0][0]
        devices = self.divided.get(node, {})
        fresh = len({number for _, number, _ in spots} - devices.keys())
        return fresh, self.free[node] + sum(UNITS - device.used for device in devices.values()), node

    def _on(self, node: int, part: Part, count: int) -> tuple[Spot, ...]:
        """Where up to so many parts go on one node: first on what is divided most."""
        spots: list[Spot] = []
        divided = sorted(self.divided.get(node, {}).items(), key=lambda each: (-each[1].used, each[0]))
        whole = ((self.numbers + at, Device(part.slices)) for at in range(self.free[node] // UNITS))
        for number, device in chain(divided, whole):
            while len(spots) < count and (start := device.start(part)) is not None:
                spots.append((node, number, start))
                device = device.change(part, start, 1)
                if not part.slices:
                    break
            if len(spots) == count:
                break
        return tuple(spots)

    def _fits_again(self, job: Running, placement: Placement, spots: tuple[Spot, ...]) -> bool:
        """Whether a job that gave up its place could have the same again."""
        if job.part is None:
            return all(self.free[node] >= count for node, count in placement)
        devices: dict[tuple[int, int], Device] = {}
        whole = Counter[int]()
        for node, number, start in spots:
            device = devices.get((node, number)) or self.divided.get(node, {}).get(number)
            if device is None:
                device = Device(job.part.slices)
                whole[node] += UNITS
            if not device.holds(job.part, start):
                return False
            devices[node, number] = device.change(job.part, start, 1)
        return all(self.free[node] >= count for node, count in whole.items())

    def _with_room(self, job: Running, running: Sequence[Running]) -> tuple[BoardOfParts, Placement | None]:
        """The board where a job has a place: a free one, else one of as few of the lowest rank as will do."""
        placement, gone = self.anywhere(job), list[tuple[Running, tuple[Spot, ...]]]()
        board = self if placement else self.copy()
        for victim in reversed(running):
            if placement is not None or victim.rank < job.rank:
                break
            if victim.index in board.running:
                gone.append((victim, board.spots.get(victim.index, ())))
                board.give(victim, victim.placement)
                placement = board.anywhere(job)
        if placement is None:
            return self, None
        board.take(job, placement)
        for victim, spots in reversed(gone):
            if board._fits_again(victim, victim.placement, spots):
                victim.spots = spots
                board.take(victim, victim.placement)
        return board, placement

    def whatever_fits(self, running: Sequence[Running], free: int | None = None) -> Iterator[Move]:
        """Walking waiting jobs by rank, whatever finds a place runs, if need be at the cost of jobs of lower rank.

        A job whose place is taken looks for another when its rank has its turn; it stops, and starts there.
        """
        then, start, stop = self.copy(), list[tuple[Running, Placement, tuple[Spot, ...]]](), dict[int, Running]()
        again: list[Running] = []
        queue = self.queue()
        head = next(queue, None)
        while head is not None or again:
            if again and (head is None or again[0].rank < head.rank):
                job = again.pop(0)
                then, placement = then._with_room(job, running)
            else:
                assert head is not None
                job = head
                then, placement = then._with_room(job, running)
                head = next_in_queue(queue, size=placement is None)
            if placement is not None:
                start.append((job, placement, job.spots))
                for victim in running:
                    if victim.index not in then.running and victim.index not in stop:
                        stop[victim.index] = victim
                        insort(again, victim, key=by_rank)
        yield from ((job, None) for job in stop.values())
        for job, placement, spots in start:
            job.spots = spots
            yield job, placement
