"""Links that gangs share on the fleet's clock: how their traffic fits decides where they go, and how long steps get.

A gang that lies on several domains (racks of the cluster's lowest level, else nodes) sends over the link of each. With
`placement compatible` gangs that might go to several places go where the mean score of their links is highest
(`score.py`); places whose jobs and links would form a loop come last, since around a loop shifts cannot all be kept.
Jobs are shifted then, as their links want it; otherwise all begin at once. A job is as slow as on its slowest link.
Source: CASSINI (NSDI 2024), sections 4.1 and 4.2: candidates, affinity graph; in our words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from itertools import islice
from statistics import mean

import numpy as np

from windtunnel.errors import SpecError, UserError
from windtunnel.studies.fleet.clock.board import Board
from windtunnel.studies.fleet.clock.decision import Placement
from windtunnel.studies.fleet.clock.running import Moment, Running
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.sharing.score import Pattern, fit_of, slowdowns
from windtunnel.studies.fleet.site import Site

CANDIDATES = 10  # places that are compared, as in the paper
GIGABIT = 1e9 / 8  # bytes


class Links:
    """Which jobs send over which links. `capacity`: bytes per second; `domain`: nodes behind a link."""

    def __init__(self, capacity: float, domain: int, patterns: Mapping[int, Pattern], *, compatible: bool) -> None:
        self.capacity, self.domain, self.patterns, self.compatible = capacity, domain, patterns, compatible
        self.links: dict[int, tuple[int, ...]] = {}  # of jobs that send
        self.jobs: dict[int, tuple[int, ...]] = defaultdict(tuple)  # on each link
        self.fit = cache(lambda patterns: fit_of(patterns, capacity))
        self.slower = cache(lambda patterns, shifted: self._slower(patterns, shifted=shifted))

    def path_of(self, job: int, placement: Placement) -> tuple[int, ...]:
        """The links over which a job would send."""
        domains = {node // self.domain for node, _ in placement} if job in self.patterns else set()
        return tuple(sorted(domains)) if len(domains) > 1 else ()

    def worth(self, job: int, placement: Placement) -> tuple[bool, float]:
        """Whether no loop would form, and the mean score of the job's links."""
        links = self.path_of(job, placement)
        scores = [self.fit(self._patterns((*self.jobs[link], job))).score for link in links]
        loops = self._loops({**self.links, job: links})
        return not loops & set(links), round(mean(scores), 9) if scores else 1.0

    def move(self, job: int, placement: Placement) -> set[int]:
        """A job is somewhere else, or nowhere; returns those whose speed may be another."""
        before, after = self.links.pop(job, ()), self.path_of(job, placement)
        if after:
            self.links[job] = after
        for link in before:
            self.jobs[link] = tuple(other for other in self.jobs[link] if other != job)
        for link in after:
            self.jobs[link] = tuple(sorted((*self.jobs[link], job)))
        return {job, *(other for link in (*before, *after) for other in self.jobs[link])}

    def stretch(self, job: int) -> float:
        """A job's step over its step alone."""
        links = self.links.get(job, ())
        loops = self._loops(self.links) if self.compatible and links else set()
        return max((self._on(link, job, shifted=self.compatible and link not in loops) for link in links), default=1.0)

    def _on(self, link: int, job: int, *, shifted: bool) -> float:
        jobs = self.jobs[link]
        return 1.0 if len(jobs) == 1 else float(self.slower(self._patterns(jobs), shifted)[jobs.index(job)])

    def _patterns(self, jobs: Sequence[int]) -> tuple[Pattern, ...]:
        return tuple(self.patterns[job] for job in jobs)

    def _slower(self, patterns: Sequence[Pattern], *, shifted: bool) -> list[float]:
        shifts = self.fit(patterns).shifts_s if shifted else None
        return slowdowns(patterns, self.capacity, shifts or [0.0] * len(patterns))

    @staticmethod
    def _loops(links_of: Mapping[int, tuple[int, ...]]) -> set[int]:
        """Shared links of components of jobs and links that have a loop."""
        shared = defaultdict[int, int](int)
        for links in links_of.values():
            for link in links:
                shared[link] += 1
        above: dict[Hashable, Hashable] = {}

        def root(of: Hashable) -> Hashable:
            while of in above:
                of = above[of]
            return of

        closing = []
        for job, links in links_of.items():
            for link in links:
                ends = root(("job", job)), root(link)
                if shared[link] < 2:
                    continue
                if ends[0] == ends[1]:
                    closing.append(link)
                else:
                    above[ends[0]] = ends[1]
        looped = {root(link) for link in closing}
        return {link for link, count in shared.items() if count > 1 and root(link) in looped}


def links_of(jobs: Jobs, site: Site, *, compatible: bool) -> Links | None:
    """The links of a site whose file tells them, for jobs that tell their traffic. Raises UserError."""
    if not site.link or not any(jobs.columns.get("period_s", ())) or site.unit > 1:
        if compatible:
            remedy = "needs `link` in --cluster's file and period_s, busy_s in a trace of whole GPUs"
            raise SpecError("--placement", "compatible", remedy)
        return None
    period, busy, rate = (jobs.further(name) for name in ("period_s", "busy_s", "rate_gbps"))
    rates = np.where(np.isnan(rate), site.link, rate * GIGABIT)
    patterns = {}
    for at in np.flatnonzero(~np.isnan(period)).tolist():
        if not 0 < busy[at] <= period[at] < np.inf or not 0 < rates[at] <= site.link:
            text = f"period_s {period[at]:g}, busy_s {busy[at]:g}, rate_gbps {rates[at] / GIGABIT:g}"
            raise UserError(f"{jobs.where(at)}: {text}: give a busy time within the period, and a rate within the link")
        patterns[at] = Pattern("", float(period[at]), float(busy[at]), float(rates[at]))
    return Links(site.link, site.topology[-1][1] if site.topology else 1, patterns, compatible=compatible)


class BoardOfLinks(Board):
    """A board that compares places of a gang by the traffic on their links."""

    def __init__(self, nodes: Sequence[int], moment: Moment, line: Callable[[Running], Hashable], links: Links) -> None:
        super().__init__(nodes, moment, line)
        self.links = links

    def room(self, job: Running, per_node: int) -> Placement | None:
        """Where a gang goes: where it would go anyway, unless its traffic fits better elsewhere."""
        plain = self.gang(job.gpus, per_node)
        if plain is None or not self.links.path_of(job.index, plain):
            return plain
        whole, rest = divmod(job.gpus, per_node)
        idle = self._with(per_node)
        domains = [node // self.links.domain for node in idle]
        starts = [at for at in range(len(idle) - whole + 1) if at == 0 or domains[at] > domains[at - 1]]
        inside = [at for at in starts if domains[at] == domains[at + whole - 1]]
        places = [plain]
        for at in {*starts[:: -(-len(starts) // CANDIDATES) or 1], *inside[:1]}:
            nodes = idle[at : at + whole]
            others = (node for count in range(rest, per_node + 1) for node in self._with(count) if node not in nodes)
            place = tuple((node, per_node) for node in nodes)
            places += [(*place, (last, rest)) for last in islice(others, CANDIDATES)] if rest else [place]
        return max(places, key=lambda place: self.links.worth(job.index, place))
