"""Kueue's topology: a job is in the domain that it requires, no GPU is given twice, and nobody waits where it fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputFileError
from windtunnel.studies.fleet.clock.decision import Owner
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.kueue.topology import Topology
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import Site, parse_site

TREE = Topology.of({"block": 4, "rack": 2})


def site_of(folder: Path, topology: str = "{block: 4, rack: 2}", gpus: int = 64) -> Site:
    (folder / "site.yaml").write_text(f"gpu: h100\ngpus: {gpus}\ngpus_per_node: 8\ntopology: {topology}\n")
    return parse_site(str(folder / "site.yaml"))


@given(
    st.lists(st.integers(0, 8), min_size=8, max_size=8),
    st.integers(1, 24),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["required rack", "required block", "required node", "preferred rack", "unconstrained"]),
)
@settings(max_examples=200)
def test_a_job_gets_what_it_asks_for_in_one_domain_or_waits_where_none_holds_it(
    free: list[int], gpus: int, pod: int, asked: str
) -> None:
    placement = TREE.place(gpus, Owner(topology=asked, pod_gpus=pod), free, 8)
    each = min(pod, gpus)
    rooms = [count // each for count in free]
    strength, _, name = asked.partition(" ")
    size = {"rack": 2, "block": 4, "node": 1}.get(name, 8)
    fits = max(sum(rooms[at : at + size]) for at in range(0, 8, size)) >= -(-gpus // each)
    anywhere = sum(rooms) >= -(-gpus // each)
    assert (placement is not None) == (fits if strength == "required" else anywhere)
    if placement is None:
        return
    assert sum(count for _, count in placement) == gpus
    assert all(0 < count <= free[node] for node, count in placement)
    domains = {node // size for node, _ in placement}
    assert len(domains) == 1 or (strength == "preferred" and not fits)


@pytest.mark.parametrize(
    ("asked", "gpus", "free", "nodes"),
    [
        # the rack with least room that holds two pods of 8; the node with most room first
        ("required rack", 16, [8, 8, 8, 8, 0, 0, 8, 0], (0, 1)),
        ("required rack", 8, [8, 8, 8, 8, 0, 0, 8, 0], (6,)),
        # no rack has three free nodes, so the block with least room that does; two of one rack, then the tightest
        ("preferred rack", 24, [8, 8, 8, 0, 8, 8, 8, 8], (0, 1, 2)),
        # more than a block: both are opened, and on the levels below Kueue forgets how many each was to have
        ("preferred rack", 40, [8, 8, 8, 0, 8, 8, 8, 8], (0, 1, 2, 4, 5)),
        ("unconstrained", 8, [8, 0, 8, 8, 0, 0, 0, 8], (0,)),
    ],
)
def test_places_by_hand(asked: str, gpus: int, free: list[int], nodes: tuple[int, ...]) -> None:
    placement = TREE.place(gpus, Owner(topology=asked, pod_gpus=8), free, 8)
    assert placement is not None
    assert tuple(node for node, _ in placement) == nodes


def workload(name: str, at: int, pods: int, topology: dict[str, object]) -> dict[str, object]:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    pod_set = {"count": pods, "template": {"spec": {"containers": [limits]}}, "topologyRequest": topology}
    made = {"name": name, "namespace": "a", "creationTimestamp": f"2026-01-01T00:00:{at:02d}Z"}
    return {
        "kind": "Workload",
        "metadata": {**made, "annotations": {"windtunnel/duration-s": "100"}},
        "spec": {"queueName": "lq", "podSets": [pod_set]},
    }


def test_requests_are_read_of_the_objects_and_kept(tmp_path: Path) -> None:
    quota = [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "64"}]}]
    items = [
        {"kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {"resourceGroups": [{"flavors": quota}]}},
        {"kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "a"}, "spec": {"clusterQueue": "cq"}},
        workload("one", 0, 1, {"required": "rack"}),
        workload("two", 1, 2, {"required": "rack"}),
        workload("three", 2, 3, {"required": "block"}),
        workload("waits", 3, 2, {"required": "rack"}),
        workload("goes", 4, 2, {"preferred": "rack"}),
        workload("never", 5, 3, {"required": "rack"}),
        workload("unknown", 6, 1, {"required": "zone"}),
    ]
    (tmp_path / "k8s.json").write_text(json.dumps({"items": items}))
    jobs = read_jobs(tmp_path / "k8s.json")
    assert jobs.columns["topology"][0] == "required rack"
    assert jobs.columns["pod_gpus"][0] == "8"
    outcome = simulate(jobs, site_of(tmp_path), "kueue", Options())
    start = dict(zip(jobs.name, outcome.start_s, strict=True))
    # one: a node of rack 0. two: rack 1. three: block 1, all but one node. waits: no rack has two nodes left
    assert {name.split("/")[-1]: start[name] for name in jobs.name[:5]} == {
        "one": 0, "two": 1, "three": 2, "waits": 101, "goes": 4,
    }  # fmt: skip
    why = outcome.why or {}
    assert why[5] == "asks 24 GPUs with the topology 'required rack': they fit in no such domain"
    assert why[6].startswith("wants 'zone', and the levels of the cluster are block, rack, node")
    (tmp_path / "flat").mkdir()
    flat = simulate(jobs, site_of(tmp_path / "flat", "{}"), "kueue", Options())
    assert not flat.why  # a cluster without levels: requests are not heeded, and a note says so


@pytest.mark.parametrize("topology", ["{block: 4, rack: 3}", "{rack: 0}", "[rack]", "{rack: many}", "{rack: true}"])
def test_a_topology_that_is_no_tree_is_refused(tmp_path: Path, topology: str) -> None:
    with pytest.raises(InputFileError, match="no tree"):
        site_of(tmp_path, topology)
