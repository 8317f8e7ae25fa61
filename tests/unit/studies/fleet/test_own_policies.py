from dataclasses import dataclass

import numpy as np
import pytest

import windtunnel
from windtunnel.errors import InputFileError, SpecError
from windtunnel.faces.cli import main
from windtunnel.studies.fleet.clock.decision import Decision
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import held_at_once
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.own import policy_of_text
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

TRACE = """job,submit_s,gpus,duration_s
a,0,8,3600
b,10,8,1800
c,20,4,600
d,30,2,7000
"""


@dataclass(frozen=True)
class LargestFirst:
    """What a user might write."""

    def decide(self, snapshot):
        free, chosen = snapshot.capacity, {}
        for job in sorted(snapshot.jobs, key=lambda job: (not job.placement, -job.gpus)):
            if job.gpus <= free:
                chosen[job.index] = job.gpus
                free -= job.gpus
        return Decision(chosen)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_a_policy_of_ones_own_runs_beside_ours(trace):
    result = windtunnel.fleet(trace, "a100:8", [LargestFirst(), "fifo"])
    assert list(result.figures) == ["LargestFirst", "fifo"]
    own, fifo = result.outcomes
    assert own.start_s.tolist()[:3] == fifo.start_s.tolist()[:3]
    assert np.array_equal(own.end_s - own.start_s, own.jobs.duration_s)
    with pytest.raises(SpecError, match="give a name, or an object with decide"):
        windtunnel.fleet(trace, "a100:8", object())


def test_options_hold_unless_something_else_is_given_by_name(trace):
    counted = windtunnel.fleet(trace, "a100:8", "fifo", options=Options(pool=True)).outcomes[0]
    assert np.array_equal(windtunnel.fleet(trace, "a100:8", "fifo", pool=True).outcomes[0].node, counted.node)
    on_nodes = windtunnel.fleet(trace, "a100:8", "fifo", options=Options(pool=True), pool=False).outcomes[0]
    assert not np.array_equal(on_nodes.node, counted.node)


@pytest.mark.parametrize(
    ("wrong", "said"), [((None, "a100:8"), "trace"), ((5, "a100:8"), "trace"), ((0, 8), "cluster")]
)
def test_what_is_no_trace_and_no_cluster_is_said(trace, wrong, said):
    with pytest.raises(SpecError, match=f"^{said}"):
        windtunnel.fleet(wrong[0] if wrong[0] != 0 else trace, wrong[1])


def test_a_file_gives_a_policy_its_parameters(trace, tmp_path):
    path = tmp_path / "short-queue.yaml"
    path.write_text("policy: tiresias\nthresholds_gpu_s: [3600]\n")
    jobs, site = read_jobs(trace), parse_site("a100:8")
    short, usual = (simulate(jobs, site, policy, Options()) for policy in (policy_of_text(str(path)), "tiresias"))
    assert short.policy == "short-queue"
    assert short.restarts.sum() > usual.restarts.sum()
    path.write_text("policy: Tiresias\nname: as it is\nthresholds_gpu_s: [57600]\n")
    same = simulate(jobs, site, policy_of_text(str(path)), Options())
    assert (same.policy, same.end_s.tolist()) == ("as it is", usual.end_s.tolist())
    path.write_text("policy: fifo\n")
    assert simulate(jobs, site, policy_of_text(str(path)), Options()).end_s.tolist() == [3600, 5400, 6000, 12400]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy: tiresias\nqueues: 3\n", "queues.*tiresias has the parameters: thresholds_gpu_s"),
        ("policy: tiresias\nthresholds_gpu_s: 7\n", "give a list of numbers"),
        ("policy: themis\ninterval_s: -1\n", "give a number from 0 on"),
        ("policy: themis-auction\nlease_s: 0\n", "lease_s = 0: give 1 or more"),
        ("policy: fifo\nthresholds_gpu_s: [7]\n", "fifo has no parameters"),
        ("policy: kueue\nquotas: 3\n", "kueue has the parameters: fair_sharing"),
        ("policy: kueue\nstrategies: [x]\n", "give a list of LessThanOrEqualToFinalShare, LessThanInitialShare"),
        ("policy: nobody\n", "give one of"),
    ],
)
def test_what_a_policy_file_cannot_say(trace, tmp_path, text, message):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        simulate(read_jobs(trace), parse_site("a100:8"), policy_of_text(str(path)), Options())
    path.write_text("name: nothing\n")
    with pytest.raises(InputFileError, match="does not say which policy"):
        policy_of_text(str(path))


def test_files_of_slurm_and_kueue_are_no_policies(trace):
    for word in ("slurm=slurm.conf", "kueue=kueue.yaml"):
        with pytest.raises(SpecError, match=r"the cluster's \(--cluster slurm.conf\), Kueue's objects"):
            simulate(read_jobs(trace), parse_site("a100:8"), policy_of_text(word), Options())


def test_gpus_held_at_once_by_the_traces_own_account(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("job,submit_s,start_s,gpus,duration_s\na,0,0,8,10\nb,0,10,4,10\nc,0,12,6,3\nd,0,,64,3\n")
    assert held_at_once(read_jobs(path)) == 10


def test_policies_that_tables_call_the_same_are_refused(trace, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("policy: tiresias\nname: srtf\nthresholds_gpu_s: [7]\n")
    for both in ("easy,backfill", "fifo,fifo", f"srtf,{tmp_path / 'mine.yaml'}"):
        assert main(["fleet", str(trace), "--cluster", "a100:8", "--policy", both, "--json"]) == 2
        assert "name each policy once" in capsys.readouterr().err
