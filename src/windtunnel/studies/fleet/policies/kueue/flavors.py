"""Which of its queue's flavors a job takes, and on which nodes these are.

    fit            the flavor's quota, with what cohorts lend of it, holds the job
    reclaim        others would be stopped, all of other queues; `preempt`: some of its own
    no candidates  quota could hold it, and nobody may be stopped
    no fit         more than it may ever have, or it may stop nobody

Flavors are tried in the queue's order, those that the job may use. The search ends at the first that fits or where
others can be stopped, unless `whenCanBorrow` or `whenCanPreempt` says to try the next; then the best is taken: with
candidates before without, by the list above, then by how far up the tree it borrows (`preference` turns these two).
One that finds its topology full is asked again of the flavors after the last tried.

Each flavor of a queue is a queue of its own in the books, in a cohort of that flavor, so that quotas, limits and
preemption are of one flavor; between the two names is `MARK`. A job that waits is of the whole queue. Sources: Kueue
ff69552, its concepts, KEP 582 and 2724. Not here: sets of pods of one job on two flavors.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from windtunnel.studies.fleet.jobs.flavors import why_not
from windtunnel.studies.fleet.jobs.objects import items_at, mapping_at, text_at
from windtunnel.studies.fleet.jobs.trace import Cohort, Flavor, Quota
from windtunnel.studies.fleet.policies.kueue.books import MARK

if TYPE_CHECKING:
    from windtunnel.studies.fleet.site import Site

NO_FIT, NO_CANDIDATES, PREEMPT, RECLAIM, FIT = range(5)
Labels: TypeAlias = ItemsView[str, str]
FROM_FIRST = -1  # in place of the last flavor that was tried


@dataclass(frozen=True, slots=True)
class Assignment:
    """A flavor for a job: its queue, how it would get it, on which level of the tree, and the last that was tried."""

    queue: str
    mode: int
    level: int
    last: int = FROM_FIRST

    def better(self, other: Assignment | None, quota: Quota) -> bool:
        """Whether it is taken rather than another."""
        if self.mode == NO_FIT or other is None or other.mode == NO_FIT:
            return self.mode != NO_FIT
        return self._worth(quota) > other._worth(quota)

    def _worth(self, quota: Quota) -> tuple[bool, int, int]:
        known = self.mode != NO_CANDIDATES
        return (known, -self.level, self.mode) if quota.borrow_last else (known, self.mode, -self.level)

    def goes_on(self, quota: Quota) -> bool:
        """Whether the next flavor is tried too."""
        if self.mode <= NO_CANDIDATES or (self.mode < FIT and quota.preempt_next):
            return True
        return self.level > 0 and quota.borrow_next


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes of a flavor by number, with their GPUs, and those of the largest."""

    sizes: Mapping[int, int]
    per_node: int

    @classmethod
    def of(cls, nodes: Iterable[int], site: Site) -> Place:
        """Some nodes of a site."""
        sizes = {node: site.node_sizes[node] for node in nodes}
        return cls(sizes, max(sizes.values(), default=0))

    def holds(self, gpus: int) -> bool:
        """Whether a gang finds room where nothing else runs."""
        whole, rest = divmod(gpus, self.per_node) if self.per_node else (gpus, 0)
        counts = self.sizes.values()
        if sum(size == self.per_node for size in counts) < whole:
            return False
        return not rest or sum(size >= rest for size in counts) > whole


def by_flavor(quotas: Iterable[Quota], cohorts: Iterable[Cohort]) -> tuple[dict[str, Quota], tuple[Cohort, ...]]:
    """Queues by name and cohorts, with those of each flavor."""
    result, others = {quota.name: quota for quota in quotas}, list(cohorts)
    names = dict.fromkeys(chain(*(each.flavors for each in result.values()), *(each.flavors for each in others)))
    for quota in list(result.values()):
        for name, own in quota.flavors.items():
            result[_of(quota.name, name)] = replace(
                quota, name=_of(quota.name, name), cohort=_of(quota.cohort, name), whole_queue=quota.name, flavor=name,
                nominal=own.nominal, borrowing_limit=own.borrowing_limit, lending_limit=own.lending_limit,
                flavors={}, slices={},
            )  # fmt: skip
    apart = [
        replace(
            cohort, name=_of(cohort.name, name), parent=_of(cohort.parent, name), nominal=own.nominal,
            borrowing_limit=own.borrowing_limit, lending_limit=own.lending_limit, flavors={}, slices={},
        )
        for cohort in others
        for name in names
        for own in (cohort.flavors.get(name, Flavor()),)
    ]  # fmt: skip
    return result, (*(cohort for cohort in others if not cohort.flavors), *apart)


def _of(name: str, flavor: str) -> str:
    return f"{name}{MARK}{flavor}" if name else ""


def places_of(site: Site, quotas: Iterable[Quota]) -> dict[str, Place]:
    """Nodes of each flavor where the site has labels or kinds of nodes, else none; under an empty name all nodes.

    By labels: nodes that have all of its `nodeLabels`, but for those of a flavor that asks for more labels and has a
    taint (spot) which this one has not and does not tolerate. By kinds: those whose kind's words (h100) are among the
    words of its labels, else of its name; all nodes where none are.
    """
    flavors = {name: flavor.spec for quota in quotas for name, flavor in quota.flavors.items()}
    places = {"": Place.of(range(site.nodes), site)} if site.sizes else {}
    if site.labels or site.kinds:
        for name, spec in flavors.items():
            off = [_labels(other) for other in flavors.values() if _is_kept_off(spec, other)]
            places[name] = Place.of(_nodes(site, name, spec, off), site)
    return places


def _labels(spec: Mapping[str, object]) -> Labels:
    labels = mapping_at(spec, "nodeLabels")
    return {key: text_at(labels, key) for key in labels}.items()


def _is_kept_off(spec: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether a flavor's pods may not go to the nodes of another, which are some of those with its labels."""
    taints = [each for each in items_at(other, "nodeTaints") if each not in items_at(spec, "nodeTaints")]
    tolerated = {"tolerations": spec.get("tolerations")}
    return _labels(spec) < _labels(other) and bool(why_not(Flavor(spec={"nodeTaints": taints}), [tolerated]))


def _nodes(site: Site, name: str, spec: Mapping[str, object], off: Sequence[Labels]) -> Iterable[int]:
    if site.labels:
        nodes = ((node, has.items()) for node, has in enumerate(site.labels))
        return (node for node, has in nodes if _labels(spec) <= has and not any(its <= has for its in off))
    labels = " ".join(text for _, text in _labels(spec))
    words = [set(re.split(r"[^a-z0-9]+", text.lower())) for text in (labels, name)]
    of = {kind: set(re.split(r"[^a-z0-9]+", kind)) for kind, _ in site.kinds}
    named = next((found for each in words if (found := {kind for kind, its in of.items() if its <= each})), of.keys())
    return (node for node, kind in enumerate(site.node_kinds) if kind in named)
