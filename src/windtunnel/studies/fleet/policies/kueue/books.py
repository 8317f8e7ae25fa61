"""What queues of a tree of cohorts use, and what each may have beside it.

    local      = (quota of a subtree - lending limit)+, which its parent never sees; 0 without a limit
    quota      of a subtree = its own nominal + what its children's subtrees have beyond their local quota
    used       of a cohort = what its children use beyond their local quota
    available  = (local - used)+ + min(available to the parent, quota - local - (used - local)+ + borrowing limit)
    share      = (used - quota)+ / what the parent's subtree may have at most / weight, each the sum of all flavors

A queue of several flavors has a node for each, in cohorts of that flavor (`flavors.py`): none lends for another.
Source: Kueue, its concepts and KEP 79 and 1714.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windtunnel.studies.fleet.jobs.trace import Cohort, Quota

MARK = "\x1f"  # between the name of a queue or cohort and its flavor; no name has one
Share = tuple[bool, float]  # whether it borrows on a weight of 0, then how much; less comes first


class Node:
    """A queue or a cohort. GPUs; `parent` None: it shares with nobody above."""

    __slots__ = (
        *("borrowing", "cohorts", "kin", "lending", "local", "name", "parent", "queues", "quota", "used", "weight"),
    )

    def __init__(self, name: str, nominal: int, borrowing: int | None, lending: int | None, weight: float) -> None:
        self.name, self.quota, self.borrowing, self.lending, self.weight = name, nominal, borrowing, lending, weight
        self.parent: Node | None = None
        self.cohorts: list[Node] = []
        self.queues: list[Node] = []
        self.kin: list[Node] = []  # itself and what it has of other flavors, where it has any
        self.local = self.used = 0

    def settle(self) -> None:
        """Sum up the quotas below."""
        for cohort in self.cohorts:
            cohort.settle()
        self.quota += sum(node.quota - node.local for node in (*self.cohorts, *self.queues))
        self.local = 0 if self.lending is None else max(self.quota - self.lending, 0)

    def above(self) -> Iterator[Node]:
        """Its cohort, that one's, and so on to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def available(self) -> int:
        """GPUs that it may still get; negative where it has too many."""
        if self.parent is None:
            return self.quota - self.used
        more = self.parent.available
        if self.borrowing is not None:
            more = min(more, self.quota - self.local - max(self.used - self.local, 0) + self.borrowing)
        return max(self.local - self.used, 0) + more

    @property
    def most(self) -> int:
        """GPUs that it may have when nobody else has any."""
        if self.parent is None:
            return self.quota
        most = self.local + self.parent.most
        return most if self.borrowing is None else min(most, self.quota + self.borrowing)

    def reach(self, gpus: int) -> tuple[int, bool]:
        """Height of the lowest subtree whose quota holds so many more; whether that is less than the whole tree."""
        node, left = self, gpus
        while node.used + left > node.quota:
            if node.parent is None:
                return node.height, False
            left -= max(node.local - node.used, 0)
            node = node.parent
        return node.height, node.parent is not None

    @property
    def height(self) -> int:
        """Steps down to the farthest leaf."""
        return max((node.height + 1 for node in (*self.cohorts, *self.queues)), default=0)

    def add(self, gpus: int) -> None:
        """It uses more, or less."""
        beyond = max(self.used - self.local, 0)
        self.used += gpus
        change = max(self.used - self.local, 0) - beyond
        if self.parent is not None and change:
            self.parent.add(change)

    @property
    def borrows(self) -> bool:
        """Whether it uses more than its quota, of what others share."""
        return self.parent is not None and any(node.used > node.quota for node in self.kin or (self,))

    @property
    def share(self) -> Share:
        """What it borrows of what its cohort may have, by its weight."""
        if self.parent is None or not self.borrows:
            return False, 0.0
        over = whole = 0
        for node in self.kin or (self,):
            over += max(node.used - node.quota, 0)
            whole += 0 if node.parent is None else node.parent.most
        ratio = over * 1000 / whole if whole > 0 else 0.0
        return (True, ratio) if ratio and not self.weight else (False, ratio / (self.weight or 1.0))


class Books:
    """All queues by name, and the cohorts above them."""

    def __init__(self, quotas: Iterable[Quota], cohorts: Iterable[Cohort] = ()) -> None:
        self.queues: dict[str, Node] = {}
        self.cohorts: dict[str, Node] = {}
        parents = {}
        for cohort in cohorts:
            limits = cohort.nominal, cohort.borrowing_limit, cohort.lending_limit, cohort.weight
            self.cohorts[cohort.name] = Node(cohort.name, *limits)
            parents[cohort.name] = cohort.parent
        for name, parent in parents.items():
            if parent and name not in self._path(parent, parents):  # a cycle is cut where it closes
                self.cohorts[name].parent = self._cohort(parent)
                self._cohort(parent).cohorts.append(self.cohorts[name])
        for quota in quotas:
            if quota.flavors:  # those of each flavor are there too
                continue
            node = Node(quota.name, quota.nominal, quota.borrowing_limit, quota.lending_limit, quota.weight)
            node.local = 0 if quota.lending_limit is None else max(quota.nominal - quota.lending_limit, 0)
            self.queues[quota.name] = node
            if quota.cohort:
                node.parent = self._cohort(quota.cohort)
                node.parent.queues.append(node)
        for root in self.cohorts.values():
            if root.parent is None:
                root.settle()

        self.roots = [each for each in (*self.cohorts.values(), *self.queues.values()) if each.parent is None]
        kin: dict[str, list[Node]] = {}
        for node in (*self.cohorts.values(), *self.queues.values()):
            if MARK in node.name:
                node.kin = kin.setdefault(f"{node.name.partition(MARK)[0]} {node.name in self.queues}", [])
                node.kin.append(node)
        self.tops: dict[str, str] = {}  # of each queue, also without its flavor, the root of its tree without one
        for name, node in self.queues.items():
            self.tops[name] = [node, *node.above()][-1].name.partition(MARK)[0]
            self.tops[name.partition(MARK)[0]] = self.tops[name]

    def _cohort(self, name: str) -> Node:
        if name not in self.cohorts:
            self.cohorts[name] = Node(name, 0, None, None, 1.0)
        return self.cohorts[name]

    @staticmethod
    def _path(name: str, parents: dict[str, str]) -> list[str]:
        path = [name]
        while (name := parents.get(name, "")) and name not in path:
            path.append(name)
        return path
