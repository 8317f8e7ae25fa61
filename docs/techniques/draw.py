"""The pictures of these pages: `python docs/techniques/draw.py` writes them anew, each a step without and with."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "validation" / "techniques"))
from lanes import Bar, lanes_svg

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.techniques import explained
from windtunnel.studies.techniques.flat import lower_flat
from windtunnel.studies.techniques.megascale import features
from windtunnel.studies.techniques.priced import TimelinePicture
from windtunnel.studies.training import read_plan

MIXTURE = {"global_batch": 64, "micro_batch": 1, "seq_len": 4096, "ep": 8, "tp": 2}
DENSE = {"global_batch": 64, "micro_batch": 4, "seq_len": 1024, "zero_stage": 0, "overlap_grad_reduce": True}
CLUSTER = "a100-80gb:64"
WHAT = {  # file -> (model, layers, cluster, plan, technique)
    "prioritised_all_to_all": ("mixtral-8x7b", 3, CLUSTER, MIXTURE, "lina:packing=1"),
    "collective_partitioning": ("mixtral-8x7b", 3, CLUSTER, MIXTURE, "centauri"),
    "sparse_gradients": ("gpt2-xl", 8, "a100-80gb:16", {**DENSE, "overlap_grad_reduce": False}, "sparse_gradients"),
    "local_sgd": ("gpt2-xl", 8, "a100-80gb:16", {**DENSE, "overlap_grad_reduce": False}, "local_sgd"),
    "offload": (
        "gpt2-xl", 8, "v100-32gb:1",
        {"global_batch": 4, "micro_batch": 4, "seq_len": 1024, "precision": "fp32", "recompute": "full"},
        "offload:window=3",
    ),
}  # fmt: skip


def bars_of(drawn: TimelinePicture) -> list[Bar]:
    """Bars of one timeline; between steps nothing is shown."""
    found = [
        Bar(task.lane.replace("_", " "), drawn.played.start_ns[n], drawn.played.end_ns[n], task.name, kind_of(task))
        for n, task in enumerate(drawn.tasks)
        if task.name != "between steps"
    ]
    return sorted(found, key=lambda bar: bar.lane)


def kind_of(task) -> str:
    if task.role:
        return task.role
    return "compute" if task.lane == "compute" else "update" if "update" in task.lane else "copy"


def overlaps() -> dict[str, list[Bar]]:
    """MegaScale's overlap set is a change of the plan: both plans are lowered."""
    model, cluster = load_model("gpt3-175b").with_changes(layers=2), parse_cluster("a100-80gb:16")
    plan = features.without_features(
        read_plan({"global_batch": 4, "seq_len": 2048, "tp": 8, "zero_stage": 1}), features.OVERLAPS
    )
    found = {}
    for words, names in (("without megascale", ()), ("with megascale", features.OVERLAPS)):
        for name in names:
            model, plan = features.with_feature(model, plan, name, features.MegaScalePlan())
        step = lower_flat(model, cluster, plan)
        found[words] = bars_of(TimelinePicture(step.one_batch, step.play(), step.lanes))
    return found


def main() -> None:
    (Path(__file__).parent / "megascale.svg").write_text(lanes_svg(overlaps()))
    for name, (model, layers, cluster, plan, technique) in WHAT.items():
        built = load_model(model).with_changes(layers=layers)
        _, drawn = explained(built, parse_cluster(cluster), read_plan(plan), [technique])
        assert drawn is not None, "a technique of tasks"
        parts = {f"without {name}": bars_of(drawn[0]), f"with {technique}": bars_of(drawn[1])}
        (Path(__file__).parent / f"{name}.svg").write_text(lanes_svg(parts))


if __name__ == "__main__":
    main()
