"""`--change`: what if a cluster, its quotas or its Slurm were others; `--emit`: what was found, as configuration."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.errors import SpecError
from windtunnel.files.document import read_documents
from windtunnel.questions import plain, read
from windtunnel.questions.asked.fleet.study import Fleet
from windtunnel.studies.fleet.changed import as_changed, changed_cluster
from windtunnel.studies.fleet.emit import emitted, slurm_files
from windtunnel.studies.fleet.jobs.kueue import cohorts_of_objects, quotas_of_objects
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Cohort, Notes, Quota
from windtunnel.studies.fleet.policies.slurm.cluster import Association, Cluster, Qos
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.study import answer

LOG = "job,submit_s,gpus,duration_s,limit_s\na,0,8,10,10\nb,1,8,10,10\n"
CONF = """\
NodeName=n[1-4] CPUs=64 Gres=gpu:8
PartitionName=wide Nodes=ALL Default=YES
PartitionName=fast Nodes=n[3-4] PriorityTier=5 MaxTime=00:10:00 QOS=low
SchedulerParameters=bf_interval=1,bf_resolution=1,bf_window=600,defer
PriorityType=priority/multifactor
PriorityWeightQOS=1000
PriorityWeightFairshare=7
PriorityWeightTRES=gres/gpu=3
PreemptType=preempt/qos
PreemptMode=REQUEUE
AccountingStorageEnforce=limits,qos
"""
QOS = """\
Name|Priority|GraceTime|Preempt|PreemptMode|GrpTRES|MaxTRESPU|MaxJobsPU
low|1|00:00:10||cluster|gres/gpu=16||
high|10|00:00:00|low|cancel|||2
"""
ASSOC = "Account|ParentName|User|Share|GrpTRES\nroot|||1|\na|root||3|gres/gpu=8\na||ann|1|\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log.csv").write_text(LOG)
    for name, text in (("slurm.conf", CONF), ("qos.txt", QOS), ("assoc.txt", ASSOC)):
        (tmp_path / name).write_text(text)
    (tmp_path / "site.yaml").write_text("slurm: [slurm.conf, qos.txt, assoc.txt]\n")
    return tmp_path / "log.csv"


def test_policies_stand_side_by_side_before_and_after(log: Path) -> None:
    question = Fleet(trace=str(log), cluster="gpu:1x8", policy="fifo", change=("nodes=+1", "policy=easy"))
    assert read(plain(question)) == question
    found = answer(question)
    assert [each["policy"] for each in found.figures] == ["fifo", "easy changed"]
    assert [each["mean_wait_s"] for each in found.figures] == [4.5, 0.0]
    log_too = replace(question, policy="current,fifo", change=("nodes=+1",))
    log.write_text(LOG.replace("limit_s", "start_s"))
    assert [each["policy"] for each in answer(log_too).figures] == ["current", "fifo", "fifo changed"]
    with pytest.raises(SpecError, match="does not change"):
        answer(replace(log_too, policy="current"))
    banded = answer(replace(question, seeds=2))
    assert [each["mean_wait_s"] for each in banded.figures] == [4.5, 0.0]


def test_slurm_and_quotas_change_by_their_own_names(log: Path) -> None:
    jobs = replace(read_jobs(log), quotas=(Quota("vision", 8, "all", borrowing_limit=4), Quota("nlp", 8, "all")))
    site = parse_site(str(log.with_name("site.yaml")))
    changes = (
        "nodes=+2",
        "quota.vision=+4",
        "quota.vision.borrowing_limit=none",
        "slurm.qos.high.limits.user_gpus=16",
        "slurm.associations.a:ann.share=4",
        "slurm.settings.depth=50",
    )
    jobs, site = changed_cluster(changes, jobs, site)
    assert jobs.quotas[0] == Quota("vision", 12, "all")
    cluster = site.slurm_cluster
    assert (site.nodes, cluster.nodes, cluster.cpus, cluster.names[-1]) == (6, 6, (64,) * 6, "new6")
    assert (cluster.partitions["wide"].nodes, cluster.partitions["fast"].nodes) == (0b111111, 0b1100)
    assert cluster.qos["high"].limits.user_gpus == 16
    assert [each.share for each in cluster.associations] == [1, 3, 4]
    assert cluster.settings["depth"] == 50


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ("nodes=few", "whole number"),
        ("nodes=-9", "leaves 0"),
        ("quota.vison=3", "has the queues: none"),
        ("slurm.qos.hgh.priority=3", "low, high"),
        ("slurm.qos.high=3", "which part"),
        ("slurm.qos.high.prio=3", "priority"),
        ("nodes", "PATH=VALUE"),
    ],
)
def test_what_cannot_be_changed_is_said(log: Path, change: str, remedy: str) -> None:
    with pytest.raises(SpecError, match=remedy):
        changed_cluster((change,), read_jobs(log), parse_site(str(log.with_name("site.yaml"))))
    with pytest.raises(SpecError, match="polcy"):
        as_changed(Fleet(trace=str(log), change=("polcy=easy",)))


def test_what_is_written_reads_back_the_same(log: Path, tmp_path: Path) -> None:
    site = parse_site(str(log.with_name("site.yaml")))
    jobs, site = changed_cluster(("nodes=+1", "slurm.qos.low.limits.jobs=3"), read_jobs(log), site)
    folder = tmp_path / "again"
    folder.mkdir()
    for name, text in emitted("slurm", jobs, site).items():
        (folder / name).write_text(text)
    assert parse_site(str(folder / "site.yaml")).slurm_cluster == site.slurm_cluster
    plain_site = parse_site("gpu:2x8")
    (folder / "slurm.conf").write_text(emitted("slurm", jobs, plain_site)["slurm.conf"])
    assert parse_site(str(folder / "slurm.conf")).gpus == 16

    quotas = (
        Quota("vision", 8, "all", 4, 2, True, "LowerPriority", "Any", "LowerPriority", 10.0, 2.0),
        Quota("alone", 3),
    )
    cohorts = (Cohort("all", "root", 2, lending_limit=1), Cohort("root", weight=0.5))
    told = replace(jobs, quotas=quotas, cohorts=cohorts)
    (folder / "queues.yaml").write_text(emitted("kueue", told, site)["queues.yaml"])
    objects = [each for each in read_documents(folder / "queues.yaml") if isinstance(each, dict)]
    assert quotas_of_objects(objects, Notes()) == quotas
    assert cohorts_of_objects(objects) == cohorts
    with pytest.raises(SpecError, match="no ClusterQueues"):
        emitted("kueue", jobs, site)
    assert json.loads(json.dumps(emitted("slurm", jobs, site)))


def test_names_of_files_are_no_commands_in_what_is_written(log: Path, tmp_path: Path) -> None:
    """load.sh is run by an operator: sacctmgr gets each name as one word, whatever is in it."""
    name = f"a; touch {tmp_path / 'made'} $(touch {tmp_path / 'too'}) 'b"
    cluster = Cluster(
        qos={name: Qos(name, stops=frozenset({name}))},
        associations=(Association("root"), Association(name, parent=name), Association(name, user=name)),
    )
    script = tmp_path / "load.sh"
    script.write_text(slurm_files(cluster, parse_site("gpu:2x8"))["load.sh"])
    tool = tmp_path / "sacctmgr"
    tool.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >> "$SAID"\n')
    tool.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SAID": str(tmp_path / "said")}
    subprocess.run(["/bin/sh", script], env=environment, check=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in ("made", "too")) == []
    said = (tmp_path / "said").read_text().splitlines()
    assert {name, f"preempt={name}", f"parent={name}", f"account={name}"} <= set(said)
