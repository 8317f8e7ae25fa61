"""Queues of KAI-Scheduler and Volcano among Kubernetes objects, as quotas that share a cluster by weight.

    KAI      resources.gpu {quota, limit, overQuotaWeight}, parentQueue     quota -1: no end of it; limit -1: none
    Volcano  deserved, else guarantee; capability; weight; parent

Both give each queue what it is owed and divide the rest of the cluster by weight; what was taken beyond is taken back
from the queue that is furthest over. That is fair sharing in Kueue's words: a queue is a ClusterQueue whose cohort is
its parent, and `SHARED` is the cohort above all, which has what no queue is owed (`on_cluster` knows it). A queue
whose quota has no end is owed what the others' quotas leave, by weight.
Sources: kai-scheduler.run.ai v2 Queue, scheduling.volcano.sh v1beta1 Queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from windtunnel.files.table import number_of
from windtunnel.studies.fleet.jobs.objects import Object, is_whole_gpu, mapping_at, text_at
from windtunnel.studies.fleet.jobs.trace import WHOEVER, Cohort, Jobs, Notes, Quota

SHARED = "whole-cluster"
VOLCANO = "scheduling.volcano.sh/"
APIS = (VOLCANO, "scheduling.run.ai/", "kai.scheduler/")
ENDLESS = -1  # of a quota


def fair_queues_of_objects(objects: Sequence[Object], notes: Notes) -> tuple[tuple[Quota, ...], tuple[Cohort, ...]]:
    """Queues without queues below them, and the others as cohorts."""
    queues = {text_at(each, "metadata", "name"): each for each in objects if is_queue(each)}
    if not queues:
        return (), ()
    above = {name: _parent(each) for name, each in queues.items()}
    for name in queues:
        if name in _path(name, above):
            notes.add("is above itself through its parents: stands by itself", name)
            above[name] = ""
    owed = {name: _owed(name, each, notes) for name, each in queues.items()}
    inner = {parent for parent in above.values() if parent in queues}
    quotas, cohorts = [], [Cohort(SHARED)]
    for name, each in queues.items():
        parent = above[name] if above[name] in queues else SHARED
        nominal, limit = owed[name]
        if name in inner:
            below = sum(max(owed[child][0], 0) for child, its in above.items() if its == name)
            nominal = max(nominal - below, 0)  # none where its own has no end: its children's have theirs
            borrowing = None if limit is None else max(limit - below - nominal, 0)
            cohorts.append(Cohort(name, parent, nominal, borrowing, None, _weight(each)))
            continue
        if text_at(each, "spec", "reclaimable") == "false" or mapping_at(each, "spec").get("reclaimable") is False:
            notes.add("says that nobody reclaims from it: not modelled", name)
        borrowing = None if limit is None else max(limit - max(nominal, 0), 0)
        quotas.append(
            Quota(
                name, nominal, parent, borrowing, within="LowerPriority", reclaim=WHOEVER, weight=_weight(each)
            )
        )  # fmt: skip
    return tuple(quotas), tuple(cohorts)


def on_cluster(jobs: Jobs, gpus: int) -> Jobs:
    """The jobs with quotas and cohorts of such queues on so many GPUs: who is owed without an end, and what is left."""
    if SHARED not in {each.name for each in jobs.cohorts}:
        return jobs
    own = sum(each.nominal for each in jobs.cohorts if each.name != SHARED)
    rest = max(gpus - own - sum(max(quota.nominal, 0) for quota in jobs.quotas), 0)
    weights = sum(quota.weight for quota in jobs.quotas if quota.nominal == ENDLESS)
    quotas = tuple(
        replace(each, nominal=int(rest * each.weight / weights) if weights else 0) if each.nominal == ENDLESS else each
        for each in jobs.quotas
    )
    remaining = max(gpus - own - sum(quota.nominal for quota in quotas), 0)
    cohorts = tuple(replace(each, nominal=remaining) if each.name == SHARED else each for each in jobs.cohorts)
    return replace(jobs, quotas=quotas, cohorts=cohorts)


def is_queue(each: Object) -> bool:
    """Whether an object is a queue of KAI-Scheduler or Volcano; others have objects of that kind too."""
    return text_at(each, "kind") == "Queue" and text_at(each, "apiVersion").startswith(APIS)


def _path(name: str, above: Mapping[str, str]) -> list[str]:
    path: list[str] = []
    while (name := above.get(name, "")) and name not in path:
        path.append(name)
    return path


def _parent(queue: Object) -> str:
    return text_at(queue, "spec", "parentQueue") or text_at(queue, "spec", "parent")


def _owed(name: str, queue: Object, notes: Notes) -> tuple[int, int | None]:
    """GPUs that it is owed, and the most that it may have."""
    spec = mapping_at(queue, "spec")
    if text_at(queue, "apiVersion").startswith(VOLCANO):
        owed = _gpus(mapping_at(spec, "deserved")) or _gpus(mapping_at(spec, "guarantee", "resource")) or 0.0
        limit = _gpus(mapping_at(spec, "capability"))
    else:
        gpu = mapping_at(spec, "resources", "gpu")
        owed, limit = _number(text_at(gpu, "quota"), 0.0), _number(text_at(gpu, "limit"), -1.0)
        owed, limit = ENDLESS if owed < 0 else owed, None if limit < 0 else limit
    if owed != int(owed) or (limit is not None and limit != int(limit)):
        notes.add("has a quota of a part of a GPU, which counts rounded down", name)
    return int(owed), None if limit is None else int(limit)


def _gpus(resources: Object) -> float | None:
    """GPUs among resources; None where they say nothing of them."""
    amounts = [_number(text_at(resources, name), 0.0) for name in map(str, resources) if is_whole_gpu(name)]
    return sum(amounts) if amounts else None


def _weight(queue: Object) -> float:
    texts = text_at(queue, "spec", "resources", "gpu", "overQuotaWeight"), text_at(queue, "spec", "weight")
    return next((_number(text, 1.0) for text in texts if text), 1.0)


def _number(text: str, default: float) -> float:
    value = number_of(text) if text else default
    return value if abs(value) < 1e9 else default  # not where it is no number
