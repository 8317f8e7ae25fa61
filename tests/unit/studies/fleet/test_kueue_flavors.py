"""Kueue's flavors: its own table cases, and laws of quotas, nodes and reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kueue_cases import LATER_S, SOMEWHERE, Endless

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.document import read_document
from windtunnel.studies.fleet.changed import changed_cluster
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.decision import Owner
from windtunnel.studies.fleet.clock.queue_policy import carry_out
from windtunnel.studies.fleet.clock.running import NS, Moment, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.emit import queues_text
from windtunnel.studies.fleet.jobs.flavors import why_not
from windtunnel.studies.fleet.jobs.kueue import quotas_of_objects
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Cohort, Flavor, Notes, Quota
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.kueue.books import MARK, Books
from windtunnel.studies.fleet.policies.kueue.flavors import (
    FIT,
    NO_CANDIDATES,
    NO_FIT,
    PREEMPT,
    RECLAIM,
    Assignment,
    Place,
    by_flavor,
    places_of,
)
from windtunnel.studies.fleet.policies.kueue.policy import Kueue
from windtunnel.studies.fleet.policies.kueue.state import State
from windtunnel.studies.fleet.policies.kueue.topology import Topology
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

FOUND = {"NoCandidates": NO_CANDIDATES, "Preempt": PREEMPT, "Reclaim": RECLAIM}
MODES = {"noFit": NO_FIT, "noPreemptionCandidates": NO_CANDIDATES, "preempt": PREEMPT, "reclaim": RECLAIM, "fit": FIT}
Case = Mapping[str, Any]


@dataclass(frozen=True)
class Told(Kueue):
    """Kueue to which a case says what a search for victims finds: on each flavor, (what, level)."""

    candidates: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def by_stopping(self, job: Running, state: State) -> tuple[int, int]:
        found, level = self.candidates.get(job.queue.partition(MARK)[2], ("Preempt", 0))
        return FOUND[found], level


def _with_flavors(words: Mapping[str, Any]) -> dict[str, Any]:
    """Words of a queue or cohort as fields; a flavor that is missing has no ResourceFlavor."""
    flavors = {
        each["name"]: Flavor(**{key: value for key, value in each.items() if key not in ("name", "missing")})
        for each in words["flavors"]
        if not each.get("missing")
    }
    return {**words, "flavors": flavors}


def assigned(case: Case) -> list[object]:
    """Flavor, mode and last flavor tried."""
    quotas = [Quota(name, **{"nominal": 0, **_with_flavors(words)}) for name, words in case["queues"].items()]
    cohorts = [Cohort(name, **_with_flavors(words)) for name, words in case.get("cohorts", {}).items()]
    of_flavors, apart = by_flavor(quotas, cohorts)
    policy = Told(0, of_flavors, case.get("fair", False), apart, candidates=case.get("candidates", {}))
    state = State(Books(of_flavors.values(), apart))
    for queue, flavor, amount in case["used"]:
        state.books.queues[f"{queue}{MARK}{flavor}"].add(amount)
    queue, amount = case["asks"]
    flavors = of_flavors[queue].flavors
    fits = [name for name, flavor in flavors.items() if not why_not(flavor, [case.get("pod", {})])]
    job = Running(0, 0, amount, Rigid(1.0), queue=queue, owner=Owner(flavors=",".join(fits) or "none"))
    choice = policy.assign(job, state) if flavors else None
    if choice is None:
        return [None, "NoFit", None]
    mode = "Fit" if choice.mode == FIT else "Preempt"
    return [choice.queue.partition(MARK)[2], mode, choice.last if case["assigned"][2] is not None else None]


def of_cycle(case: Case) -> tuple[dict[str, str], list[str]]:
    """Flavors of jobs that start in one decision, and who is stopped; who starts in a victim's place is no start."""
    quotas = [Quota(name, **{"nominal": 0, **_with_flavors(words)}) for name, words in case["queues"].items()]
    cohorts = [Cohort(name, **_with_flavors(words)) for name, words in case.get("cohorts", {}).items()]
    of_flavors, apart = by_flavor(quotas, cohorts)
    policy, names, moment = Kueue(0, of_flavors, case.get("fair", False), apart), [], Moment(2 * LATER_S * NS)
    board = Endless([1], moment, policy.line)

    def job(name: str, queue: str, amount: int, priority: int, at_s: float, flavor: str = "") -> Running:
        names.append(name)
        fits = [each for each, its in of_flavors[queue].flavors.items() if not why_not(its, [{}])]
        owner = Owner(flavors=flavor or ",".join(fits) or "none")
        made = Running(len(names) - 1, round((LATER_S + at_s) * NS), amount, Rigid(1e9), queue=queue, owner=owner)
        made.moment, made.priority, made.placed_ns = moment, float(priority), made.submit_ns
        made.rank = policy.rank(made)
        return made

    for row in case["running"]:
        one = job(*row)
        one.placement, one.counts = SOMEWHERE, (one.gpus,)
        board.take(one, one.placement)
    heads: dict[str, Running] = {}
    for row in case["waiting"]:
        one = job(*row)
        if one.queue not in heads or one.rank < heads[one.queue].rank:
            heads[one.queue] = one
    for one in heads.values():
        board.wait(one)
    starts, stops, made_room = {}, [], False
    for one, placement in policy.choose(board):
        flavor = one.queue.partition(MARK)[2]
        carry_out(board, one, placement)
        if placement is None:
            stops.append(names[one.index])
        elif not made_room:
            starts[names[one.index]] = flavor
        one.placement, one.counts, made_room = placement or (), (one.gpus,), placement is None
    return starts, sorted(stops)


def preferred(case: Case) -> bool:
    """Whether the first of two ways to get a flavor is taken rather than the second."""
    quota = Quota("cq", 0, borrow_last=case["borrow_last"])
    first, second = (Assignment("cq", MODES[mode], level) for mode, level in (case["a"], case["b"]))
    return first.better(second, quota)


def test_kueues_own_cases_of_flavors_are_decided_alike() -> None:
    cases = read_document(Path(__file__).with_name("kueue_flavor_cases.yaml"))
    assert isinstance(cases, list)
    alike = {True: 0, False: 0}
    for case in cases:
        if "assigned" in case:
            same = assigned(case) == case["assigned"]
        elif "preferred" in case:
            same = preferred(case) == case["preferred"]
        else:
            starts, stops = of_cycle(case)
            same = (starts, stops) == (case["starts"], case["stops"])
            assert starts == case.get("ours", starts)
        assert same != ("unlike" in case), (case["test"], case["case"])
        alike[same] += 1
    assert alike == {True: 87, False: 2}


# Laws

LIMIT = st.none() | st.integers(0, 8)
SPECS: tuple[tuple[str, dict[str, object]], ...] = (("x", {}), ("y", {}), ("z", {}))
SHARED_QUOTAS = st.tuples(
    *(
        st.builds(
            Quota,
            st.just(name),
            st.just(16),
            st.just(cohort),
            strict=st.booleans(),
            within=st.sampled_from(["Never", "LowerPriority", "LowerOrNewerEqualPriority"]),
            reclaim=st.sampled_from(["Never", "LowerPriority", "Any"]),
            borrow_within=st.sampled_from(["Never", "LowerPriority"]),
            flavors=st.fixed_dictionaries(
                {flavor: st.builds(Flavor, st.integers(4, 8), LIMIT, LIMIT, st.just(spec)) for flavor, spec in SPECS}
            ),
            borrow_next=st.booleans(),
            preempt_next=st.booleans(),
            borrow_last=st.booleans(),
        )
        for name, cohort in (("a", "c"), ("b", "c"), ("d", ""))
    )
)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(1, 20),
        st.integers(1, 4),
        st.sampled_from(["a", "b", "d"]),
        st.integers(0, 2),
        st.sampled_from(["", "x", "y", "x,z"]),
    ),
    min_size=1,
    max_size=14,
)
# Nodes 0 and 1 are x, 2 and 3 y, and z is on 1 and 2.
PLACES = {"x": Place({0: 8, 1: 8}, 8), "y": Place({2: 8, 3: 4}, 8), "z": Place({1: 8, 2: 8}, 8)}
NODES = [8, 8, 8, 4]


class Watched(Kueue):
    """Holds what it leaves running against the quotas of each flavor and the flavors' nodes."""

    def choose(self, board):
        yield from super().choose(board)
        books = board.memory.books
        used: dict[str, int] = {}
        for job in board.running.values():
            name = job.queue.partition(MARK)[2]
            assert name in self.usable(job.queue.partition(MARK)[0], job.gpus, job.owner)
            assert not self.places or {node for node, _ in job.placement} <= set(self.places[name].sizes)
            used[job.queue] = used.get(job.queue, 0) + job.held_gpus
        for name, node in books.queues.items():
            assert node.used == used.get(name, 0)
            if node.parent is None or node.borrowing is not None:
                assert node.used <= node.quota + (node.borrowing or 0)
        for node in books.roots:
            assert node.used <= node.quota


def jobs_of(rows) -> list[Running]:
    return [
        Running(at, submit * NS, wide, Rigid(float(lasts)), None, None, float(priority), queue, Owner(flavors=flavors))
        for at, (submit, lasts, wide, queue, priority, flavors) in enumerate(sorted(rows))
    ]


def policy_on(kind, quotas, *, fair: bool, qps: float, places=PLACES) -> Kueue:
    of_flavors, cohorts = by_flavor(quotas, ())
    return kind(8, of_flavors, fair, cohorts, qps=qps, burst=2, places=places)


def ends(jobs: list[Running]) -> list[tuple[int | None, ...]]:
    return [(job.start_ns, job.end_ns, job.restarts, job.gpu_ns) for job in jobs]


class Naive:
    """The same policy, asked of all jobs each time."""

    def __init__(self, policy: Kueue) -> None:
        self.decide = policy.decide


@given(ROWS, SHARED_QUOTAS, st.booleans(), st.sampled_from([0.0, 2.0, 50.0]), st.sampled_from([PLACES, {}]))
@settings(max_examples=60)
def test_quotas_hold_for_each_flavor_on_its_nodes_and_naive_is_fast(rows, quotas, fair, qps, places) -> None:
    jobs = jobs_of(rows)
    policy = policy_on(Watched, quotas, fair=fair, qps=qps, places=places)
    Clock(jobs, NODES, policy).run()
    never = {at for at, _ in policy.never((job.queue, job.gpus, job.owner, None) for job in jobs_of(rows))}
    assert [job.end_ns is not None for job in jobs] == [at not in never for at in range(len(jobs))]
    if qps:  # an answer to a snapshot has no delays
        return
    again = jobs_of(rows)
    Clock(again, NODES, Naive(policy_on(Kueue, quotas, fair=fair, qps=qps, places=places))).run()
    assert ends(again) == ends(jobs)


@given(ROWS, SHARED_QUOTAS, st.booleans(), st.sampled_from([0.0, 2.0, 50.0]))
@settings(max_examples=40)
def test_one_flavor_is_none(rows, quotas, fair, qps) -> None:
    told = {name: replace(flavor, spec={"nodeLabels": {"gpu": name}}) for name, flavor in quotas[0].flavors.items()}
    one = [replace(quota, flavors={"x": replace(told["x"], nominal=quota.nominal)}) for quota in quotas]
    limits = {name: getattr(told["x"], name) for name in ("borrowing_limit", "lending_limit")}
    none = [replace(quota, flavors={}, **limits) for quota in quotas]
    jobs, plain = jobs_of([(*row[:5], "") for row in rows]), jobs_of([(*row[:5], "") for row in rows])
    Clock(jobs, NODES, policy_on(Kueue, one, fair=fair, qps=qps, places={})).run()
    Clock(plain, NODES, policy_on(Kueue, none, fair=fair, qps=qps, places={})).run()
    assert ends(jobs) == ends(plain)


def test_a_share_is_of_all_flavors() -> None:
    flavors = {"x": Flavor(4), "y": Flavor(4)}
    books = Books(by_flavor([Quota(name, 8, "c", flavors=flavors) for name in "ab"], ())[0].values())
    x, y = (books.queues[f"a{MARK}{name}"] for name in "xy")
    x.add(6)
    y.add(4)
    assert x.share == y.share == (False, 2 * 1000 / 16)  # 2 of 8 x and 8 y
    assert (y.available, books.tops["a"], books.tops[y.name]) == (4, "c", "c")


# Files

H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
PREFERENCE = "PreemptionOverBorrowing"
PRODUCT = "nvidia.com/gpu.product"
SPOT = {"key": "spot", "value": "true", "effect": "NoSchedule"}
FLAVORS: dict[str, dict[str, object]] = {
    "h100-reserved": {"nodeLabels": {PRODUCT: H100, "pool": "reserved"}},
    "h100-spot": {"nodeLabels": {PRODUCT: H100, "pool": "spot"}, "nodeTaints": [SPOT]},
    "a100": {"nodeLabels": {PRODUCT: A100}},
}


def objects(*jobs: dict[str, object], **spec: object) -> list[dict[str, object]]:
    rows = [
        {"name": name, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": quota}]}
        for name, quota in (("h100-reserved", 16), ("h100-spot", "10000000000"), ("a100", 8))
    ]
    found = [{"kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec} for name, spec in FLAVORS.items()]
    queue = {"resourceGroups": [{"flavors": rows}], **spec}
    return [*found, {"kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": queue}, *jobs]


def job_of(name: str, gpus: int = 8, pods: int = 1, **pod: object) -> dict[str, object]:
    asked = {"resources": {"requests": {"nvidia.com/gpu": gpus}}}
    labels = {"kueue.x-k8s.io/queue-name": "cq"}
    return {
        "kind": "Job",
        "metadata": {
            "name": name,
            "creationTimestamp": f"2026-01-01T00:00:0{'abcdef'.index(name)}Z",
            "labels": labels,
            "annotations": {"windtunnel/duration-s": "60"},
        },
        "spec": {"parallelism": pods, "template": {"spec": {"containers": [asked], **pod}}},
    }


def local_queue() -> dict[str, object]:
    return {"kind": "LocalQueue", "metadata": {"name": "cq"}, "spec": {"clusterQueue": "cq"}}


def written(path: Path, items: list[dict[str, object]]) -> Path:
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


def node(gpus: int, **labels: str) -> dict[str, object]:
    named = {PRODUCT if key == "product" else key: value for key, value in labels.items()}
    return {"kind": "Node", "metadata": {"labels": named}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


JOBS = (
    job_of("a", pods=2),
    job_of("b"),
    job_of("c", tolerations=[{"key": "spot", "operator": "Exists"}]),
    job_of("d", nodeSelector={PRODUCT: A100}),
    job_of("e", nodeSelector={PRODUCT: "NVIDIA-L4"}),
)


@pytest.mark.parametrize("resource", ["gpu.intel.com/xe", "metax-tech.com/gpu", "cambricon.com/mlu"])
def test_a_node_has_the_whole_gpus_of_any_vendor(tmp_path: Path, resource: str) -> None:
    own = node(0) | {"status": {"allocatable": {resource: "4", "gpu.intel.com/xe_monitoring": "1"}}}
    assert parse_site(str(written(tmp_path / "nodes.json", [own]))).gpus == 4


def test_who_may_use_a_flavor_is_read_of_taints_and_labels(tmp_path: Path) -> None:
    jobs = read_jobs(written(tmp_path / "k8s.json", objects(local_queue(), *JOBS)))
    both = "h100-reserved,a100"
    assert jobs.columns["flavors"] == [both, both, "", "a100", "none"]
    (said,) = [each.reason for each in jobs.not_understood]
    assert said.startswith(
        "may use no flavor of cq: h100-reserved has other labels than they select, h100-spot has the"
    )
    (quota,) = jobs.quotas
    amd = {"containers": [{"resources": {"limits": {"amd.com/gpu": 1}}}]}
    assert why_not(quota.flavors["a100"], [amd]) == "has no amd.com/gpu"
    assert [(name, each.nominal) for name, each in quota.flavors.items()] == [
        ("h100-reserved", 16), ("h100-spot", 10**9), ("a100", 8),
    ]  # fmt: skip


def test_jobs_run_on_nodes_of_their_flavor(tmp_path: Path) -> None:
    jobs = read_jobs(written(tmp_path / "k8s.json", objects(local_queue(), *JOBS)))
    reserved, spot = ({"product": H100, "pool": pool} for pool in ("reserved", "spot"))
    nodes = [node(4, product=A100), node(8, **reserved), node(8, **reserved), node(8, **spot), node(8, product=A100)]
    off = node(8, **reserved)
    nodes.append({**off, "spec": {"unschedulable": True}})
    site = parse_site(str(written(tmp_path / "nodes.json", nodes)))
    assert (site.gpus, site.sizes) == (36, (4, 8, 8, 8, 8))
    outcome = simulate(jobs, site, "kueue", Options())
    assert outcome.start_s.tolist()[:4] == [0, 1, 2, 61]  # d waits for b, which has the 8 A100 of one node
    assert outcome.extra == {"gpu_hours_on_h100-reserved": 0.266667, "gpu_hours_on_a100": 0.266667,
                             "gpu_hours_on_h100-spot": 0.133333}  # fmt: skip
    assert "may use no flavor of cq" in outcome.why[4]
    with pytest.raises(SpecError, match="known to kueue alone"):
        simulate(jobs, site, "easy", Options())
    (tmp_path / "site.yaml").write_text("nodes: nodes.json\ngpu: mixed\n")
    assert parse_site(str(tmp_path / "site.yaml")).labels == site.labels
    kinds = simulate(jobs, parse_site("a100:1x8+h100:3x8"), "kueue", Options())
    assert kinds.start_s.tolist()[:4] == [0, 1, 2, 61]
    assert kinds.extra == outcome.extra
    with pytest.raises(SpecError, match="knows one kind of GPU"):
        simulate(replace(jobs, quotas=(Quota("cq", 24),)), parse_site("a100:1x8+h100:3x8"), "kueue", Options())
    with pytest.raises(InputFileError, match="no node with GPUs"):
        parse_site(str(written(tmp_path / "none.json", [node(0)])))


def test_a_flavor_keeps_off_the_tainted_nodes_of_a_narrower_one(tmp_path: Path) -> None:
    """Spot nodes often have the label of all of their GPUs: pods that do not tolerate their taint go elsewhere."""
    taints = [{"key": "spot", "value": "true", "effect": "NoSchedule"}]
    wide, spot = {"nodeLabels": {"gpu": "h100"}}, {"nodeLabels": {"gpu": "h100", "cap": "spot"}, "nodeTaints": taints}
    site = parse_site(str(written(tmp_path / "nodes.json", [node(8, gpu="h100", cap="spot"), node(8, gpu="h100")])))

    def nodes(spec: Mapping[str, object], other: Mapping[str, object] = spot) -> list[int]:
        quota = Quota("cq", 16, flavors={"wide": Flavor(8, spec=spec), "spot": Flavor(8, spec=other)})
        return list(places_of(site, [quota])["wide"].sizes)

    assert nodes(wide) == [1]
    assert nodes({**wide, "tolerations": [{"key": "spot", "operator": "Exists"}]}) == [0, 1]
    assert nodes({**wide, "nodeTaints": taints}) == [0, 1]
    assert nodes(wide, {"nodeLabels": spot["nodeLabels"]}) == [0, 1]
    assert nodes(spot, wide) == [0]


def test_flavors_are_written_and_read_back(tmp_path: Path) -> None:
    fungible = {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "MayStopSearch", "preference": PREFERENCE}
    jobs = read_jobs(written(tmp_path / "k8s.json", objects(local_queue(), *JOBS, flavorFungibility=fungible)))
    (tmp_path / "back.yaml").write_text(
        queues_text(jobs.quotas, jobs.cohorts)
        + "".join(f"---\n{json.dumps(each)}\n" for each in (local_queue(), *JOBS))
    )
    back = read_jobs(tmp_path / "back.yaml")
    assert (back.quotas, back.cohorts, back.columns) == (jobs.quotas, jobs.cohorts, jobs.columns)
    (quota,) = back.quotas
    assert (quota.borrow_next, quota.preempt_next, quota.borrow_last) == (True, False, True)


def test_a_change_names_a_flavor(tmp_path: Path) -> None:
    jobs = read_jobs(written(tmp_path / "k8s.json", objects(local_queue(), *JOBS)))
    site = parse_site("gpu:5x8")
    changed, _ = changed_cluster(["quota.cq.flavors.a100.nominal=+8"], jobs, site)
    assert changed.quotas[0].flavors["a100"].nominal == 16
    with pytest.raises(SpecError, match="has the flavors h100-reserved, h100-spot, a100"):
        changed_cluster(["quota.cq=64"], jobs, site)
    with pytest.raises(SpecError, match="has the nodes of Kubernetes"):
        changed_cluster(["nodes=+1"], jobs, parse_site(str(written(tmp_path / "nodes.json", [node(8)]))))


def test_a_flavor_that_is_missing_is_nobodys(tmp_path: Path) -> None:
    items = [each for each in objects(local_queue(), *JOBS) if each.get("metadata") != {"name": "h100-spot"}]
    jobs = read_jobs(written(tmp_path / "k8s.json", items))
    assert list(jobs.quotas[0].flavors) == ["h100-reserved", "a100"]
    assert any("has the flavor h100-spot, whose ResourceFlavor" in each.reason for each in jobs.not_understood)


@pytest.mark.parametrize("qps", [0.0, 50.0])
def test_a_topology_that_is_full_sends_a_job_to_the_next_flavor(qps: float) -> None:
    """Two racks of 2 nodes for each of two flavors; of the first, each rack has a node in use."""
    flavors = {name: Flavor(64, spec={"topologyName": "racks"}) for name in ("x", "y")}
    places = {"x": Place(dict.fromkeys(range(4), 8), 8), "y": Place(dict.fromkeys(range(4, 8), 8), 8)}
    quotas, cohorts = by_flavor([Quota("cq", 128, flavors=flavors)], ())
    racks = Topology.of({"rack": 2})
    policy = Kueue(8, quotas, False, cohorts, topology=racks, places=places, qps=qps)
    owners = [Owner(topology="required rack", flavors="x")] * 3 + [Owner(topology="required rack")]
    rows = [(0, 8, 1.0), (0, 16, 9.0), (0, 8, 9.0), (2, 16, 1.0)]
    jobs = [
        Running(at, submit * NS, gpus, Rigid(lasts), None, None, 0.0, "cq", owner)
        for at, ((submit, gpus, lasts), owner) in enumerate(zip(rows, owners, strict=True))
    ]
    clock = Clock(jobs, [8] * 8, policy)
    clock.run(round(2.2 * NS))
    assert [node for node, _ in jobs[3].placement] == [4, 5]
    assert [node for node, _ in jobs[1].placement] == [2, 3]


@pytest.mark.parametrize(
    ("text", "gpus"), [("96", 96), ("1k", 1000), ("2k", 2000), ("1G", 10**9), ("9223372036854775807", 10**9)]
)
def test_a_quota_is_read_as_kubernetes_writes_it(text: str, gpus: int) -> None:
    """A quota of 1,000 GPUs comes back from the cluster as 1k, which was read as none."""
    resource = {"name": "nvidia.com/gpu", "nominalQuota": text}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "any", "resources": [resource]}]}]
    queue = {"kind": "ClusterQueue", "metadata": {"name": "research"}, "spec": {"resourceGroups": groups}}
    assert [quota.nominal for quota in quotas_of_objects([queue], Notes())] == [gpus]
