"""Free GPUs of own and borrowed servers, and where gangs go.

Base demands: up to one server's GPUs on the fitting server with least free (lowest id), larger ones on empty servers
for each full server (lowest ids) and the rest as a small gang on another; own servers before borrowed ones. Extra
workers: borrowed servers before own ones, on the server that they fill best, else from the fullest free, so on few.
"""

from __future__ import annotations

from bisect import bisect_left, insort

OWN, BORROWED = 0, 1
Held = list[tuple[int, int]]  # (server, GPUs)


class Servers:
    """`own` servers with ids from 0; those with higher ids can be borrowed, and given back when empty."""

    def __init__(self, own: int, per_server: int) -> None:
        self.own, self.per_server = own, per_server
        self.free: dict[int, int] = dict.fromkeys(range(own), per_server)
        self.by_free: tuple[list[list[int]], list[list[int]]] = (
            [[] for _ in range(per_server + 1)],
            [[] for _ in range(per_server + 1)],
        )
        self.by_free[OWN][per_server] = list(range(own))
        self.free_gpus = own * per_server

    def borrow(self, server: int) -> None:
        """A server joins, empty."""
        assert server >= self.own
        assert server not in self.free
        self.free[server] = self.per_server
        insort(self.by_free[BORROWED][self.per_server], server)
        self.free_gpus += self.per_server

    def give_back(self, server: int) -> None:
        """A server leaves; it must be empty."""
        assert self.free[server] == self.per_server, "a server that is in use was given back"
        self._move(server, None)
        del self.free[server]
        self.free_gpus -= self.per_server

    def fits(self, gpus: int) -> bool:
        """Whether a gang can be placed now."""
        if gpus > self.free_gpus:
            return False
        if gpus <= self.per_server:
            return any(side[count] for side in self.by_free for count in range(gpus, self.per_server + 1))
        full, rest = divmod(gpus, self.per_server)
        empty = sum(len(side[self.per_server]) for side in self.by_free)
        if empty < full:
            return False
        if not rest or empty > full:
            return True
        return any(side[count] for side in self.by_free for count in range(rest, self.per_server))

    def take(self, gpus: int) -> Held:
        """Place a gang that fits."""
        full, rest = divmod(gpus, self.per_server)
        placement: Held = []
        for _ in range(full if gpus > self.per_server else 0):
            side = self.by_free[OWN][self.per_server] or self.by_free[BORROWED][self.per_server]
            placement.append((side[0], self.per_server))
            self._use(side[0], self.per_server)
        small = rest if gpus > self.per_server else gpus
        if small:
            placement.append((self._best_fit(small, (OWN, BORROWED)), small))
            self._use(*placement[-1])
        return placement

    def take_extra(self, gpus: int) -> Held:
        """GPUs for extra workers; there must be as many free."""
        placement: Held = []
        while gpus:
            server = self._best_fit(gpus, (BORROWED, OWN))
            if server < 0:
                server = self._fullest_free()
            count = min(gpus, self.free[server])
            placement.append((server, count))
            self._use(server, count)
            gpus -= count
        return placement

    def take_again(self, placement: Held) -> bool:
        """The same GPUs as before, if they are all free."""
        if any(self.free.get(server, 0) < count for server, count in placement):
            return False
        for server, count in placement:
            self._use(server, count)
        return True

    def release(self, placement: Held) -> None:
        """They are free again."""
        for server, count in placement:
            self._use(server, -count)

    def _best_fit(self, gpus: int, sides: tuple[int, int]) -> int:
        for side in sides:
            for count in range(gpus, self.per_server + 1):
                if self.by_free[side][count]:
                    return self.by_free[side][count][0]
        return -1

    def _fullest_free(self) -> int:
        for side in (BORROWED, OWN):
            for count in range(self.per_server, 0, -1):
                if self.by_free[side][count]:
                    return self.by_free[side][count][0]
        raise AssertionError("more extra workers than free GPUs")

    def _use(self, server: int, gpus: int) -> None:
        self._move(server, self.free[server] - gpus)
        self.free_gpus -= gpus

    def _move(self, server: int, free: int | None) -> None:
        lists = self.by_free[OWN if server < self.own else BORROWED]
        before = lists[self.free[server]]
        del before[bisect_left(before, server)]
        if free is not None:
            assert 0 <= free <= self.per_server, "more GPUs of a server than it has"
            self.free[server] = free
            insort(lists[free], server)
