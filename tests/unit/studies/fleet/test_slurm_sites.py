"""Sites of Slurm with GPUs in slices: who may answer for them, and what is wrong with the files that tell of them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_parts import write
from test_slurm_parts import CONF, site_of

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.live.study import run_live
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.slurm.files import read_cluster
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.study import fleet
from windtunnel.studies.fleet.when import when

JOBS = "job,submit_s,gpus,duration_s,command\na,0,4,50,true\nb,0,2,50,true\nc,0,2,50,true\nd,1,1,50,true\n"


def test_when_knows_slices_as_a_run_does(tmp_path: Path) -> None:
    """They were whole GPUs there: the last job started at once."""
    jobs, site = read_jobs(write(tmp_path, JOBS)), parse_site(site_of(tmp_path))
    answer = when(jobs, site, "slurm", Options(), "d", draws=2, spread=0.0)
    assert (answer.start_s, answer.start_band_s) == (50.0, (50.0, 50.0, 50.0))
    assert "0 of 8 are free" in answer.why.text
    assert sorted((holder.job, holder.gpus) for holder in answer.why.holders) == [("a", 4), ("b", 2), ("c", 2)]


def test_who_knows_no_slices_says_so(tmp_path: Path) -> None:
    """Beside slurm another policy had four GPUs more, without a word."""
    trace, site = write(tmp_path, JOBS), site_of(tmp_path)
    with pytest.raises(SpecError, match=r"--policy = 'fifo'.*slices.*leave it out"):
        fleet(trace, site, ["slurm", "fifo"])
    with pytest.raises(SpecError, match=r"--cluster.*devices"):
        run_live(read_jobs(trace), parse_site(site), ["slurm"], tmp_path)


@pytest.mark.parametrize(
    ("gres", "words"),
    [
        ("Name=gpu Count=abc", r"gres.conf: line 2: count = 'abc' is no count; write"),
        ("Name=gpu Count=" + "9" * 5000, "line 2: count = '9+' has a number beyond 64 bits"),
        ("Name=gpu File=/dev/nvidia[0-7", r"line 2: file = .* is no list of names; write ranges as n\[1-3,7\]"),
        ("NodeName=n[1-] Name=gpu Type=a Count=2", "line 2: nodename"),
    ],
)
def test_bad_lines_of_gres_conf_are_named(tmp_path: Path, gres: str, words: str) -> None:
    with pytest.raises(InputFileError, match=words):
        parse_site(site_of(tmp_path, gres_conf=f"AutoDetect=off\n{gres}\n"))


@pytest.mark.parametrize("names", ["n[1,,2]", "n[-]", "n[1-]", "n[3-1]", "n[1-2", "n[1-2-3]"])
def test_bad_ranges_of_slurm_conf_are_named(tmp_path: Path, names: str) -> None:
    with pytest.raises(InputFileError, match=r"slurm.conf: line 3: nodename = 'n\["):
        parse_site(str(write(tmp_path, f"ClusterName=x\\\n y\nNodeName={names} Gres=gpu:4\n", "slurm.conf")))
    text = f"NodeName=n1 Gres=gpu:4\nPartitionName=p Nodes={names}\n"
    with pytest.raises(InputFileError, match=r"line 2: nodes = 'n\["):
        parse_site(str(write(tmp_path, text, "slurm.conf")))


def test_odd_digits_of_sacctmgr(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"qos.txt: line 2: GrpJobs = '9+' has a number beyond 64 bits"):
        parse_site(site_of(tmp_path, qos_txt=f"Name|GrpJobs\nnormal|{'9' * 5000}\n"))
    assert (
        parse_site(site_of(tmp_path, qos_txt="Name|GrpJobs\nnormal|\u00b2\n")).slurm_cluster.qos["normal"].limits.jobs
        is None
    )


def test_shards_are_of_each_gpu_alike(tmp_path: Path) -> None:
    """Nodes without shards had those of the others, and 3 on 4 GPUs were none."""

    def shares(first: str, second: str) -> int:
        text = f"NodeName=n1 Gres=gpu:4{first}\nNodeName=n2 Gres=gpu:4{second}\n"
        return parse_site(str(write(tmp_path, text, "slurm.conf"))).shares

    assert shares(",shard:1K", ",shard:1024") == 256
    for first, second, words in (
        (",shard:16", "", "unlike shards of GPUs: 0 on each of n2, 4 on each of n1"),
        (",shard:3", ",shard:3", "line 1: nodename = 'n1' has 3 shards on 4 GPUs; give a multiple"),
        (",shard:8K", ",shard:8K", "up to 1,000 on each"),
    ):
        with pytest.raises(InputFileError, match=words):
            shares(first, second)


def test_slices_need_the_name_of_a_gpu_that_has_them(tmp_path: Path) -> None:
    """Profiles of one name are not alike on all: limits counted the wrong one."""
    site_of(tmp_path)
    with pytest.raises(
        UserError, match=r"slurm.conf: line 1: gpu is not given: .* say so in site.yaml: gpu: a100-80gb"
    ):
        parse_site(str(tmp_path / "slurm.conf"))
    with pytest.raises(
        UserError, match=r"line 1: gpu = 'a100': .*3g.20gb, which a100-40gb-sxm has.*gpu: a100-40gb-sxm"
    ):
        parse_site(site_of(tmp_path, CONF.replace("3g.40gb", "3g.20gb")))
    with pytest.raises(UserError, match=r"line 1: Gres = '1g.10gb:7000000': a GPU holds 7 of them"):
        parse_site(site_of(tmp_path, CONF.replace("1g.10gb:7", "1g.10gb:7000000")))


def test_files_are_read_once_and_a_line_of_gres_conf_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 nodes with a line each took 20 s, and each use of the cluster read all files again."""
    gres = "".join(f"NodeName=n{at} Name=gpu Type=a100_1g.10gb Count=14\n" for at in range(1, 2001))
    begin = time.process_time()
    site = parse_site(site_of(tmp_path, "NodeName=n[1-2000] Gres=gpu:2\n", gres_conf=gres))
    assert time.process_time() - begin < 10
    calls: list[object] = []
    monkeypatch.setattr(
        "windtunnel.studies.fleet.policies.slurm.files.read_cluster",
        lambda *args: calls.append(args) or read_cluster(*args),
    )
    again = replace(site)
    assert again.slurm_cluster is again.slurm_cluster
    assert len(calls) == 1
