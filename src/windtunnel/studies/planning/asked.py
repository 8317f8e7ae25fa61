"""What a search for plans is asked, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from windtunnel.errors import SpecError, UserError
from windtunnel.files.document import read_mapping
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.hardware.cluster import cluster_with
from windtunnel.physics.hardware.mixed import MixedCluster
from windtunnel.physics.model import Model
from windtunnel.studies.planning.objectives.robust import Trouble
from windtunnel.studies.planning.oracle import Layout, Plan, Replayed, checked
from windtunnel.studies.planning.planned import Named
from windtunnel.studies.planning.search.ahead import Exact
from windtunnel.studies.training.plan import PLAN_FILE
from windtunnel.units import parse_count

OBJECTIVES = ("time", "cost", "memory", "energy")


@dataclass(frozen=True, slots=True)
class Asked:
    """`cluster`: of several types the slower one; `mixed`: all of them. Times in s."""

    model: Model
    cluster: Cluster
    mixed: MixedCluster | None
    sizes: Sequence[Cluster]
    constraints: Mapping[str, object]  # fields of a plan that are fixed
    objective: str
    top: int
    within_s: float | None
    choices_within_s: float | None
    head_room: float
    pareto: bool
    price: float | None
    trouble: Trouble
    techniques: tuple[str, ...]
    words: Named | None
    listener: Callable[[Layout, Replayed], None] | None
    exact: Exact
    front: bool  # whether plans of which none is better in all are asked for
    begun_s: float = field(default_factory=monotonic)


def fixed_fields(
    plan: Plan | str | Path | Mapping[str, object] | None, fields: Mapping[str, object]
) -> dict[str, object]:
    """The fields that are fixed. Raises as `predict` does on one that cannot be, and on a plan of another training."""
    if isinstance(plan, Plan):
        plan = plan.stated()
    elif isinstance(plan, str | Path):
        plan = read_mapping(plan, PLAN_FILE)
    elif plan is not None and not isinstance(plan, Mapping):
        raise SpecError("plan", plan, "give a mapping of its fields, or the path of a YAML file")
    constraints = {name: value for name, value in {**(plan or {}), **fields}.items() if value is not None}
    for name in ("global_batch", "seq_len"):
        if name not in constraints:
            raise UserError(f"{name} is not given: add --{name.replace('_', '-')} N, or put it in the plan file")
    checked_plan = checked(constraints)
    fixed = {name: getattr(checked_plan, name) for name in constraints}
    for name in ("lora_rank", "frozen"):
        if fixed.get(name):
            raise SpecError(name, fixed[name], "plans are searched for training of all weights: leave it out")
    if fixed.get("task", "train") != "train":
        raise SpecError("task", fixed["task"], "plans are searched for plain training: leave it out")
    return fixed


def sizes(cluster: Cluster, gpus: tuple[int, int] | None) -> list[Cluster]:
    """The cluster, or from the least number of its GPUs to the most by doubling. Raises SpecError."""
    if gpus is None:
        return [cluster]
    two = isinstance(gpus, Sequence) and not isinstance(gpus, str) and len(gpus) == 2
    least, most = (parse_count(gpu, "gpus") for gpu in gpus) if two else (1, 0)
    if least > most:
        text = f"{least}..{most}" if two else gpus
        raise SpecError("gpus", text, "give the least and the most, e.g. 512..4096")
    clusters, count = [], least
    while count <= most:
        clusters.append(cluster_with(cluster, n_gpus=count))
        count *= 2
    return clusters
