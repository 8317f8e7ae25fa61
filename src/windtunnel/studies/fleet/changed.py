"""What if: a cluster, its quotas or its Slurm changed, as `--change PATH=VALUE` says. docs/fleet.md lists the paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar, get_type_hints

from windtunnel.errors import SpecError
from windtunnel.questions.asked.fleet.further import FleetWhen
from windtunnel.questions.asked.fleet.study import Fleet
from windtunnel.questions.changing import changed
from windtunnel.questions.words import settings
from windtunnel.studies.fleet.jobs.trace import Jobs, Quota
from windtunnel.studies.fleet.policies.slurm.cluster import Cluster
from windtunnel.studies.fleet.site import Site, checked

HERE = ("nodes", "quota", "slurm")
Asked = TypeVar("Asked", Fleet, FleetWhen)


def as_changed(question: Asked) -> Asked:
    """The question with the fields that its changes name; those of the cluster and of quotas stay. Raises SpecError."""
    outside = [text for text in question.change if text.partition("=")[0].split(".")[0].strip() not in HERE]
    inside = tuple(text for text in question.change if text not in outside)
    return changed(replace(question, change=inside), settings(outside))


def changed_cluster(changes: Sequence[str], jobs: Jobs, site: Site) -> tuple[Jobs, Site]:
    """Jobs with their quotas and the site as changes make them. Raises SpecError."""
    for text in changes:
        path, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise SpecError("--change", text, "write PATH=VALUE such as nodes=+32")
        head, *rest = path.split(".")
        if head == "nodes" and not rest:
            site = _with_nodes(site, value, text)
        elif head == "quota" and rest:
            jobs = _with_quota(jobs, rest, value, text)
        elif head == "slurm" and rest:
            if not site.slurm:
                raise SpecError("--change", text, "give Slurm's files as --cluster: slurm.conf, or a site.yaml")
            cluster = _set(site.slurm_cluster, rest, value, text)
            assert isinstance(cluster, Cluster)
            site = replace(site, changed=cluster)
        else:
            raise SpecError("--change", text, "write nodes=+32, quota.QUEUE=256 or slurm.qos.NAME.priority=10")
    return jobs, site


def _with_nodes(site: Site, value: str, text: str) -> Site:
    if site.kinds:
        raise SpecError("--change", text, f"{site.text} has nodes of several kinds: change --cluster")
    if site.labels:
        raise SpecError("--change", text, f"{site.text} has the nodes of Kubernetes: add nodes there")
    if site.sizes:
        raise SpecError("--change", text, f"{site.text} has nodes of unlike sizes: add NodeName lines there")
    nodes = int(_number(site.nodes, value, text, whole=True))
    grown = checked(replace(site, nodes=nodes, text=f"{site.text}, {nodes} nodes"))
    if not site.slurm:
        return grown
    cluster = site.slurm_cluster
    before, after = (1 << cluster.nodes) - 1, (1 << nodes) - 1
    partitions = {
        name: replace(partition, nodes=after if partition.nodes == before else partition.nodes & after)
        for name, partition in cluster.partitions.items()
    }
    names = (*cluster.names[:nodes], *(f"new{at + 1}" for at in range(cluster.nodes, nodes)))
    more = nodes - cluster.nodes
    cpus, types, heavy = ((*each[:nodes], *each[-1:] * more) for each in (cluster.cpus, cluster.types, cluster.heavy))
    changed = replace(cluster, nodes=nodes, names=names, partitions=partitions, cpus=cpus, types=types, heavy=heavy)
    return replace(grown, changed=changed)


def _with_quota(jobs: Jobs, path: list[str], value: str, text: str) -> Jobs:
    name, *rest = path
    by_name = {quota.name: quota for quota in jobs.quotas}
    if name not in by_name:
        has = ", ".join(by_name) or "none"
        raise SpecError("--change", text, f"{jobs.source} has the queues: {has}")
    if by_name[name].flavors and (not rest or rest[0] in ("nominal", "borrowing_limit", "lending_limit")):
        flavors = ", ".join(by_name[name].flavors)
        raise SpecError(
            "--change", text, f"{name} has the flavors {flavors}: write quota.{name}.flavors.FLAVOR.nominal="
        )
    quota = _set(by_name[name], rest or ["nominal"], value, text)
    assert isinstance(quota, Quota)
    by_name[name] = quota
    return replace(jobs, quotas=tuple(by_name.values()))


def _set(part: object, path: Sequence[str], value: str, text: str) -> object:
    """A part with what its path names set. Raises SpecError."""
    head, rest = path[0], path[1:]
    if isinstance(part, Mapping):
        if head not in part and (rest or not all(isinstance(each, float) for each in part.values())):
            raise SpecError("--change", text, f"there is no {head}; there are: {', '.join(part) or 'none'}")
        before = part.get(head, 0.0)
        if is_dataclass(before) and not rest:
            raise SpecError("--change", text, f"say which part of {head}")
        return {**part, head: _set(before, rest, value, text) if rest else _number(before, value, text)}
    if isinstance(part, tuple):
        names = [f"{each.account}:{each.user}" if each.user else each.account for each in part]
        if head not in names or not rest:
            raise SpecError("--change", text, f"name one of {', '.join(names) or 'none'}, and its share")
        at = names.index(head)
        return (*part[:at], _set(part[at], rest, value, text), *part[at + 1 :])
    assert is_dataclass(part)
    assert not isinstance(part, type)
    field_names = [each.name for each in fields(part)]
    if head not in field_names:
        raise SpecError("--change", text, f"there is no {head}; there are: {', '.join(field_names) or 'none'}")
    before = getattr(part, head)
    if is_dataclass(before) or isinstance(before, Mapping | tuple):
        if not rest:
            raise SpecError("--change", text, f"say which part of {head}")
        return replace(part, **{head: _set(before, rest, value, text)})
    if rest:
        raise SpecError("--change", text, f"{head} has no parts")
    return replace(part, **{head: _value(get_type_hints(type(part))[head], before, value, text)})


def _value(kind: object, before: object, value: str, text: str) -> object:
    """A text as a field takes it. Raises SpecError."""
    kinds = getattr(kind, "__args__", (kind,))
    if value.lower() in ("none", "null") and type(None) in kinds:
        return None
    if bool in kinds:
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise SpecError("--change", text, "give true or false")
    if kind == frozenset[str]:
        return frozenset(value.split("+"))
    if str in kinds:
        return value
    return _number(before, value, text, whole=int in kinds)


def _number(before: object, value: str, text: str, *, whole: bool = False) -> float:
    """A number, or with a sign one more or less than there is. Raises SpecError."""
    try:
        number: float = int(value.replace(",", "")) if whole else float(value)
    except ValueError:
        raise SpecError("--change", text, "give a whole number" if whole else "give a number") from None
    if value[0] in "+-":
        if not isinstance(before, int | float):
            raise SpecError("--change", text, "there is none yet: give the number itself")
        number += before
    if not 0 <= number < float("inf"):
        raise SpecError("--change", text, "give a number that leaves 0 or more")
    return number
