"""Which flavors of Kueue the pods of a job may use, and why not the others.

A flavor is out where it lacks a resource that they ask for, where they do not tolerate a taint of its nodes (NoSchedule
or NoExecute; the flavor may bring the toleration itself), or where its labels are not those that their nodeSelector and
required nodeAffinity ask for. Of these, only keys that the flavor has as labels count, and a term without any of them
allows it. Source: Kueue ff69552, its concept of ResourceFlavor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windtunnel.studies.fleet.jobs.objects import Object, is_whole_gpu, items_at, mapping_at, text_at
from windtunnel.studies.fleet.jobs.trace import Flavor

NONE = "none"  # in place of a job's flavors: there is none that it may use
EFFECTS = ("NoSchedule", "NoExecute")
REQUIRED = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


def why_not(flavor: Flavor, pods: Sequence[Object]) -> str:
    """Why pods may not use a flavor, in words that follow its name; empty where they may."""
    labels = mapping_at(flavor.spec, "nodeLabels")
    for pod in pods:
        lacks = sorted(resources_of(pod) - set(flavor.resources)) if flavor.resources else []
        if lacks:
            return f"has no {lacks[0]}"
        tolerations = [*items_at(pod, "tolerations"), *items_at(flavor.spec, "tolerations")]
        for taint in items_at(flavor.spec, "nodeTaints"):
            if text_at(taint, "effect") in EFFECTS and not any(_tolerates(each, taint) for each in tolerations):
                return f"has the taint {text_at(taint, 'key')}={text_at(taint, 'value')}, which they do not tolerate"
        if not _selects(pod, labels):
            return "has other labels than they select"
    return ""


def resources_of(pod: Object) -> set[str]:
    """The names under which a pod asks for whole GPUs."""
    containers = [*items_at(pod, "containers"), *items_at(pod, "initContainers")]
    asked = [mapping_at(each, "resources", key) for each in containers for key in ("requests", "limits")]
    return {
        name for each in asked for name in map(str, each) if is_whole_gpu(name) and text_at(each, name) not in ("", "0")
    }


def _tolerates(toleration: Object, taint: Object) -> bool:
    key, effect = text_at(toleration, "key"), text_at(toleration, "effect")
    if effect not in ("", text_at(taint, "effect")) or key not in ("", text_at(taint, "key")):
        return False
    if text_at(toleration, "operator") == "Exists":
        return True
    return bool(key) and text_at(toleration, "value") == text_at(taint, "value")


def _selects(pod: Object, labels: Object) -> bool:
    selector = mapping_at(pod, "nodeSelector")
    if any(text_at(labels, key) != text_at(selector, key) for key in selector if key in labels):
        return False
    terms = [
        [each for each in items_at(term, "matchExpressions") if text_at(each, "key") in labels]
        for term in items_at(pod, *REQUIRED)
    ]
    return not all(terms) or not terms or any(all(_matches(each, labels) for each in term) for term in terms)


def _matches(expression: Object, labels: Mapping[str, object]) -> bool:
    """Whether one expression holds of a label that is there."""
    label, operator = text_at(labels, text_at(expression, "key")), text_at(expression, "operator")
    values = expression.get("values")
    texts = [str(each) for each in values] if isinstance(values, list) else []
    if operator in ("In", "NotIn"):
        return (label in texts) == (operator == "In")
    if operator in ("Gt", "Lt"):
        numbers = [int(text) for text in (label, *texts) if text.lstrip("-").isdecimal()]
        return len(numbers) == 2 and (numbers[0] > numbers[1] if operator == "Gt" else numbers[0] < numbers[1])
    return operator == "Exists"
