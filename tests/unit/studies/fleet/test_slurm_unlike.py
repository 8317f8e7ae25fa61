"""Sites of Slurm whose nodes are unlike: sizes, types of GPUs, weights, CPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windtunnel.errors import SpecError
from windtunnel.studies.fleet.changed import changed_cluster
from windtunnel.studies.fleet.clock.on_clock import owners_of
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.emit import slurm_files
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.parts.profile import UNITS, Part
from windtunnel.studies.fleet.policies.slurm.backfill import Backfill
from windtunnel.studies.fleet.policies.slurm.cluster import Cluster, Partition
from windtunnel.studies.fleet.policies.slurm.files import read_cluster
from windtunnel.studies.fleet.policies.slurm.gres import Gres
from windtunnel.studies.fleet.policies.slurm.nodes import Free, Future, Gang, Holder
from windtunnel.studies.fleet.policies.slurm.preemption import victims
from windtunnel.studies.fleet.policies.slurm.rules import Rules
from windtunnel.studies.fleet.policies.slurm.state import State
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

CONF = """\
NodeName=h[1-2] CPUs=128 Gres=gpu:h100:8 Weight=20
NodeName=a[1-4] CPUs=64 Gres=gpu:a100:4 Weight=10
NodeName=login CPUs=8
PartitionName=all Nodes=ALL Default=YES
PartitionName=small Nodes=a[1-4]
"""
HEAD = "job,submit_s,gpus,duration_s,limit_s,queue,gpu_type,nodes\n"


def run(folder: Path, rows: str, conf: str = CONF, policy: str = "slurm", **options: object):
    (folder / "slurm.conf").write_text(conf)
    (folder / "jobs.csv").write_text(HEAD + rows)
    site = parse_site(str(folder / "slurm.conf"))
    return simulate(read_jobs(folder / "jobs.csv"), site, policy, Options(**options))


def test_nodes_are_read_each_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(CONF)
    site = parse_site(str(tmp_path / "slurm.conf"))
    assert (site.gpus, site.nodes, site.per_node, site.node_sizes) == (32, 6, 8, (8, 8, 4, 4, 4, 4))
    cluster = site.slurm_cluster
    assert cluster.types == ("h100", "h100", "a100", "a100", "a100", "a100")
    assert cluster.node_cpus == (128, 128, 64, 64, 64, 64)
    assert cluster.by_weight == (0b111100, 0b000011)
    assert cluster.of_type("a100") == 0b111100


@pytest.mark.parametrize(
    ("gpus", "nodes", "among", "each"),
    [
        (8, 0, 0b111111, 8),  # one of the large
        (16, 0, 0b111111, 8),
        (24, 0, 0b111111, 4),  # there are two of eight
        (16, 0, 0b111100, 4),
        (12, 3, 0b111111, 4),  # as it says
        (8, 1, 0b111111, 8),
        (6, 4, 0b111111, 8),  # that cannot be: as if it said nothing
        (99, 0, 0b111100, 4),  # never
    ],
)
def test_how_many_gpus_a_job_takes_of_a_node(gpus: int, nodes: int, among: int, each: int, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(CONF)
    rules = Rules(8, cluster=parse_site(str(tmp_path / "slurm.conf")).slurm_cluster)
    assert rules.gang(gpus, nodes, "", among) == Gang(gpus, each)


def test_a_job_lies_on_nodes_that_are_large_enough(tmp_path: Path) -> None:
    """All nodes are full at 1 s; two of 8 GPUs wait for the large ones, one of 16 in `small` for its four."""
    rows = "hold,0,16,30,60,all,h100,\nkeep,0,16,20,60,small,,\nwide,1,16,5,60,small,,\nlarge,2,8,5,60,all,,\n"
    assert run(tmp_path, rows).start_s.tolist() == [0, 0, 20, 30]


def test_a_type_is_waited_for_and_the_lightest_nodes_are_taken_first(tmp_path: Path) -> None:
    rows = "one,0,4,50,60,all,,\nh,1,16,5,60,all,h100,\nlater,2,4,5,20,all,h100,\n"
    assert run(tmp_path, rows).start_s.tolist() == [0, 1, 6]  # `one` is on a1, which weighs less
    heavy = run(tmp_path, rows, CONF.replace("Weight=10", "Weight=30"))
    assert heavy.start_s.tolist() == [0, 50, 30]  # `one` is on h1; `later` ends before the reservation of `h`


def test_a_job_has_as_many_nodes_as_it_asks_for(tmp_path: Path) -> None:
    """8 GPUs on two nodes leave 4 on each, where 8 on one leave a node of 8."""
    conf = "NodeName=n[1-2] CPUs=64 Gres=gpu:8\nPartitionName=all Nodes=ALL Default=YES\n"
    for nodes, start_s in (("", 1), ("2", 50)):
        rows = f"spread,0,8,50,60,all,,{nodes}\nnext,1,8,5,60,all,,1\n"
        assert run(tmp_path, rows, conf).start_s.tolist() == [0, start_s]


def test_a_typed_job_speaks_for_itself_alone(tmp_path: Path) -> None:
    """Workload 306, job 23: one of as many GPUs of a type that is taken waits behind it; it starts all the same."""
    rows = "hold,0,16,50,60,all,h100,\nkeep,0,12,50,90,small,,3\nh,1,16,5,60,all,h100,\n"
    rows += "any,2,4,5,60,all,,\nbehind,3,4,5,60,all,h100,\n"
    assert run(tmp_path, rows).start_s.tolist()[3] == 30  # the first pass of backfill


def test_jobs_that_have_no_room_anywhere_are_named(tmp_path: Path) -> None:
    rows = "ok,0,4,5,60,all,,\nwide,0,20,5,60,small,,\nv,0,1,5,60,all,v100,\nnowhere,0,8,5,60,small,h100,\n"
    outcome = run(tmp_path, rows)
    words = {outcome.jobs.name[each.job]: each.words for each in outcome.dropped}
    assert words["wide"] == "asks 20 GPUs, and its nodes have 16 whole ones, 4 a node at most"
    assert words["v"] == "asks 1 GPUs of v100, and slurm.conf has none for it"
    assert set(words) == {"wide", "v", "nowhere"}


def test_each_is_named_with_what_it_asks_for_itself(tmp_path: Path) -> None:
    """Types that nobody has, one with braces; more nodes than there are, on a site of like nodes too."""
    rows = "v,0,1,5,60,all,v100,\nx,0,1,5,60,all,{x},\n28,0,28,5,60,all,,\n"
    words = [each.words for each in run(tmp_path, rows).dropped]
    assert words[:2] == [f"asks 1 GPUs of {name}, and slurm.conf has none for it" for name in ("v100", "{x}")]
    assert words[2] == "asks 28 GPUs, as 8 on each node: 2 of its 6 nodes have so many"
    alike = "NodeName=n[1-4] CPUs=64 Gres=gpu:8\nPartitionName=all Nodes=ALL Default=YES\n"
    alike += "PartitionName=first Nodes=n1\n"
    outcome = run(tmp_path, "spread,0,16,50,60,all,,16\nwide,0,16,50,60,first,,\nnext,1,8,60,60,all,,\n", alike)
    assert [each.words for each in outcome.dropped] == [
        "asks 16 GPUs, as 1 on each node: 4 of its 4 nodes have so many",
        "asks 16 GPUs, and its nodes have 8 whole ones, 8 a node at most",
    ]
    assert outcome.start_s[2] == 1  # nobody waits behind one that never starts


def test_backfill_tells_types_apart(tmp_path: Path) -> None:
    """Backfill looks as far as the last that has room: one behind it wants the same GPUs of a type that has none."""
    conf = "NodeName=h CPUs=64 Gres=gpu:h100:8\nNodeName=a CPUs=64 Gres=gpu:a100:8\nPartitionName=all Nodes=ALL\n"
    rows = "hold,0,8,500,500,all,h100,\nfirst,1,16,5,60,all,,\na,2,8,50,60,all,a100,\nh,3,8,50,60,all,h100,\n"
    assert run(tmp_path, rows, conf).start_s.tolist()[2] == 30


def test_a_node_of_several_types_has_each_of_them(tmp_path: Path) -> None:
    conf = "NodeName=m CPUs=64 Gres=gpu:a100:2,gpu:v100:2\nNodeName=a CPUs=64 Gres=gpu:a100:4\n"
    outcome = run(tmp_path, "v,0,2,5,60,all,v100,\n", conf)
    assert (outcome.dropped, outcome.start_s.tolist()) == ((), [0])
    site = parse_site(str(tmp_path / "slurm.conf"))
    assert site.slurm_cluster.of_type("a100") == 0b11
    assert "gpu:a100:2,gpu:v100:2" in slurm_files(site.slurm_cluster, site)["slurm.conf"]


def test_slices_are_no_whole_gpus_and_lie_on_the_lightest_nodes(tmp_path: Path) -> None:
    cut = "Gres=gpu:a100:4,gpu:a100_1g.10gb:7"
    lines = f"NodeName=s1 CPUs=64 {cut} Weight=9\nNodeName=s2 CPUs=64 {cut} Weight=5\n"
    lines += "NodeName=s3 CPUs=64 Gres=gpu:a100:2\n"
    (tmp_path / "slurm.conf").write_text(lines)
    cluster = read_cluster([tmp_path / "slurm.conf"], "a100")
    assert cluster.sizes == (5, 5, 2)
    assert Rules(5, cluster=cluster).gang(8, 0, "", 0b111) == Gang(8, 4)  # 4 on each of two
    free = Gres(cluster, 3, 5)
    (part,) = free.slices
    assert free.choose((part, 2), 0b011) == ((1, (part, 2)),)
    shared = replace(cluster, divided=(), sizes=(), shares=2)
    room = Gres(shared, 3, 5)
    assert [node for node, _ in room.choose((Part(UNITS // 2), 1), 0b011) or ()] == [1]


def test_components_of_a_job_together_have_the_nodes_of_all(tmp_path: Path) -> None:
    head = "JobID|Submit|Start|End|Elapsed|AllocTRES|ReqTRES|NNodes|User|State\n"
    time = "2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T01:00:00|01:00:00"
    rows = [f"4+{at}|{time}|gres/gpu=8|gres/gpu:{kind}=8,node=2|2|u|COMPLETED\n" for at, kind in enumerate(("a", "b"))]
    (tmp_path / "log.txt").write_text(head + "".join(rows))
    (owner,) = owners_of(read_jobs(tmp_path / "log.txt"))
    assert (owner.nodes, owner.gpu) == (4, "")


@pytest.mark.parametrize(("policy", "options"), [("easy", {}), ("slurm", {"pool": True})])
def test_who_knows_one_size_of_nodes_says_so(policy: str, options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"unlike sizes are known to slurm alone.*give --policy slurm"):
        run(tmp_path, "a,0,4,5,60,all,,\n", CONF.replace("PartitionName", "#") if options else CONF, policy, **options)


def test_a_cluster_of_more_nodes_than_there_can_be_is_refused_before_it_is_laid_out() -> None:
    with pytest.raises(SpecError, match="give from 1 to"):
        parse_site("gpu:99999999999999x1")  # a list of its nodes would not fit in memory


def test_its_files_are_written_as_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(CONF)
    site = parse_site(str(tmp_path / "slurm.conf"))
    (tmp_path / "again.conf").write_text(slurm_files(site.slurm_cluster, site)["slurm.conf"])
    again = read_cluster([tmp_path / "again.conf"])
    for name in ("names", "sizes", "types", "cpus", "heavy", "partitions"):
        assert getattr(again, name) == getattr(site.slurm_cluster, name), name
    (tmp_path / "jobs.csv").write_text(HEAD + "a,0,1,5,60,all,,\n")
    jobs = read_jobs(tmp_path / "jobs.csv")
    with pytest.raises(SpecError, match="unlike sizes"):
        changed_cluster(["nodes=+1"], jobs, site)


def test_cpus_that_a_node_has_not_are_in_use() -> None:
    """Of two nodes with one free GPU that with fewer idle CPUs is the fullest, though less of it is in use."""
    free = Free([8, 8], 8, [128, 16])
    free.load(((0, 1),), 32)
    assert free.busy == [32, 112]
    assert free.choose(Gang(1, 8), 0b01) == ((0, 1),)
    assert free.choose(Gang(1, 8), 0b11) == ((1, 1),)


def test_nodes_are_taken_as_a_running_slurm_took_them() -> None:
    """Workload 302 of `slurm_2026_12_01`: 4 GPUs on each of six nodes, n5 to n8 being the lightest."""
    free = Free([8] * 4 + [4] * 4, 8, [64] * 4 + [32] * 4, [8] * 4 + [4] * 4, (0b11110000, 0b00001111))
    chosen = free.choose(Gang(24, 4), 0b11111111)
    assert chosen is not None
    assert [node + 1 for node, _ in chosen] == [5, 6, 7, 8, 1, 2]


def test_of_runs_that_are_enough_that_with_the_fewest_idle_cpus_is_taken() -> None:
    """Two runs of two nodes for 4 GPUs on each: the first has more CPUs idle; of less than enough the widest."""
    free = Free([8, 8, 0, 8, 8], 8, [64] * 5)
    free.load(((3, 1), (4, 1)), 40)
    chosen = free.choose(Gang(8, 4), 0b11111)
    assert chosen is not None
    assert [node for node, _ in chosen] == [3, 4]
    wide = free.choose(Gang(12, 4), 0b11111)
    assert wide is not None
    assert [node for node, _ in wide] == [0, 1, 3]


def test_a_job_that_waits_in_the_main_loop_keeps_the_nodes_of_its_partition(tmp_path: Path) -> None:
    """Workload 300, job 14: `h` stops partition `all`, whose light nodes are not left to a job of `small`."""
    rows = "hold,0,16,50,60,all,h100,\nkeep,0,12,50,60,small,,3\nh,1,8,5,120,all,h100,\na,2,16,5,60,all,a100,4\n"
    outcome = run(tmp_path, rows + "late,3,1,5,180,small,,\n")
    assert outcome.start_s.tolist()[4] == 55


def test_a_type_holds_where_a_job_lies_and_not_by_which_ends_it_is_foreseen() -> None:
    """Workload 306, job 48: another node of its partition, of another type, ends in the same window."""
    holders = [Holder(40 * NS, ((0, 8),), 1), Holder(55 * NS, ((1, 8),), 2)]
    found = Future(0, Free([0, 0], 8), holders).start(Gang(8, 8, 0b01), 0b11)
    assert found is not None
    assert found[0] == 55 * NS
    assert found[1].choose(Gang(8, 8, 0b01), 0b11) == ((0, 8),)


def test_jobs_that_end_together_are_foreseen_in_the_order_in_which_they_came() -> None:
    """`late` started first; both are planned to 60 s, and Slurm sorts its list of jobs, which is by submission."""
    rules = Rules(8, cluster=Cluster(nodes=2, per_node=8))
    late, early = (Running(at, submit * NS, 8, Rigid(60.0), limit_s=60.0) for at, submit in ((0, 5), (1, 2)))
    board = SimpleNamespace(running={0: late, 1: early}, moment=SimpleNamespace(ns=9 * NS))
    free = Free([0, 0], 8)
    placed = {0: (late, (), ((0, 8),)), 1: (early, (), ((1, 8),))}
    state = State(free, placed=placed)
    holders = Backfill(rules, [], board, state, None, None)._foreseen(()).holders
    assert [holder.nodes for holder in holders] == [0b10, 0b01]


MIXED = """\
NodeName=m[1-2] CPUs=64 Gres=gpu:a100:2,gpu:h100:2
NodeName=h1 CPUs=64 Gres=gpu:h100:4
PartitionName=all Nodes=ALL Default=YES
"""


def test_types_on_one_node_are_told_apart(tmp_path: Path) -> None:
    """m1 and m2 have 2 A100 and 2 H100 each, h1 has 4 H100: A100 of two jobs, the third waits though GPUs are free."""
    rows = (
        "a,0,2,50,60,all,a100,1\nb,1,2,50,60,all,a100,1\nc,2,2,50,60,all,a100,1\n"
        "d,3,4,50,60,all,h100,1\ne,4,2,50,60,all,h100,1\nf,5,4,50,60,all,a100,1\ng,6,4,9,60,all,,1\n"
    )
    outcome = run(tmp_path, rows, MIXED)
    assert outcome.start_s.tolist()[:5] == [0, 1, 50, 30, 30]  # c blocks the main loop; backfill looks each 30 s
    assert outcome.why[5] == "asks 4 GPUs, as 4 on each node: 0 of its 2 nodes have so many"
    cluster = read_cluster([tmp_path / "slurm.conf"])
    assert cluster.types == ("a100:2+h100:2", "a100:2+h100:2", "h100")
    assert cluster.mixed == ({"a100": 2, "h100": 2}, {"a100": 2, "h100": 2}, {"h100": 4})
    assert (cluster.of_type("a100"), cluster.of_type("h100")) == (0b011, 0b111)
    emitted = slurm_files(cluster, parse_site(str(tmp_path / "slurm.conf")))["slurm.conf"]
    assert "NodeName=m1,m2 CPUs=64 Gres=gpu:a100:2,gpu:h100:2 " in emitted


def test_gpus_without_a_type_beside_others_are_written_as_they_were_read(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("NodeName=m[1-2] CPUs=64 Gres=gpu:2,gpu:a100:2\nPartitionName=all Nodes=ALL\n")
    site = parse_site(str(tmp_path / "slurm.conf"))
    assert "Gres=gpu:2,gpu:a100:2 " in slurm_files(site.slurm_cluster, site)["slurm.conf"]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 4), st.integers(1, 20), st.sampled_from(["", "a100", "h100"])),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_type_of_a_node_is_held_twice(tmp_path: Path, rows: list[tuple[int, int, int, str]]) -> None:
    """Of each type no more GPUs run at once than the site has, and each job that fits an empty site runs."""
    text = "".join(
        f"j{at},{submit},{gpus},{lasts},60,all,{kind},1\n" for at, (submit, gpus, lasts, kind) in enumerate(rows)
    )
    outcome = run(tmp_path, text, MIXED)
    for kind, most in (("a100", 4), ("h100", 8), ("", 12)):
        held = [
            (start, end, gpus)
            for start, end, (_, gpus, _, of) in zip(outcome.start_s, outcome.end_s, rows, strict=True)
            if (kind in ("", of)) and start == start
        ]
        for begin, _, _ in held:
            assert sum(gpus for start, end, gpus in held if start <= begin < end) <= most
    ran = [start == start for start in outcome.start_s]
    assert ran == [kind != "a100" or gpus <= 2 for _, gpus, _, kind in rows]


def test_a_job_that_stopped_others_stops_no_more_until_that_must_be_over(tmp_path: Path) -> None:
    """KillWait and MessageTimeout are 40 s where slurm.conf does not say them; then it may stop others again."""
    partitions = {"low": Partition("low", 1), "high": Partition("high", 1, tier=2)}
    cluster = Cluster(nodes=1, per_node=8, partitions=partitions, preempts_by="partition", preempt="REQUEUE")
    low, high = (Running(at, 0, 8, Rigid(900.0), queue=queue) for at, queue in enumerate(("low", "high")))
    state = State(Free([0], 8), placed={0: (low, (), ((0, 8),))})
    rules = Rules(8, cluster=cluster)
    found = []
    for second in (1, 30, 40, 41):
        board = SimpleNamespace(running={0: low}, moment=SimpleNamespace(ns=second * NS))
        found.append([job.index for job in victims(rules, high, 1, board, state)])
    assert found == [[0], [], [], [0]]
    (tmp_path / "slurm.conf").write_text(f"KillWait=5\nMessageTimeout=60\n{CONF}")
    assert read_cluster([tmp_path / "slurm.conf"]).again_s == 65
