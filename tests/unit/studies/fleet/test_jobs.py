import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import UserError
from windtunnel.studies.fleet.jobs.lint import lint_jobs
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import STATES, aggregates
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

OURS = "job,submit_s,gpus,duration_s\na,0,8,100\nb,5,1,30\n"


LINES = st.lists(st.text(alphabet="ab01.,-|\"' \n\t", max_size=20), max_size=8).map("\n".join)


def write(folder, text, name="trace.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_our_layout(tmp_path):
    jobs = read_jobs(write(tmp_path, OURS))
    assert (list(jobs.name), jobs.gpus.tolist(), jobs.duration_s.tolist()) == (["a", "b"], [8, 1], [100, 30])
    assert jobs.line.tolist() == [2, 3]


def test_parquet_reads_like_csv(tmp_path):
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(write(tmp_path, OURS)), tmp_path / "trace.parquet")
    assert read_jobs(tmp_path / "trace.parquet").submit_s.tolist() == [0, 5]


def test_where_compares_numbers_as_numbers(tmp_path):
    rows = "1,1.0,a,1,bert,2\n1,2.0,a,1,bert,2\n2,1.0,a,7,ncf,1\n"
    path = write(tmp_path, "workload,load,job,submit_s,application,gpus\n" + rows)
    jobs = read_jobs(path, "workload=1,load=1")
    assert (jobs.submit_s.tolist(), list(jobs.model)) == ([1], ["bert"])
    with pytest.raises(UserError, match=r"several traces.*--where load=1\.0"):
        read_jobs(path, "workload=1")
    with pytest.raises(UserError, match="no line"):
        read_jobs(path, "workload=9")
    with pytest.raises(UserError, match="with a column of"):
        read_jobs(path, "nonsense=9")


def test_a_packed_trace_is_the_trace(tmp_path):
    (tmp_path / "jobs.csv.gz").write_bytes(gzip.compress(b"job,submit_s,duration_s,gpus\na,0,60,1\n"))
    jobs = read_jobs(tmp_path / "jobs.csv.gz")
    assert (jobs.name, jobs.duration_s.tolist()) == (["a"], [60.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("job,gpus\na,1\n", "has no column submit_s"),
        ("job,submit_s,gpus\n", "has no job"),
        ("job,submit_s,gpus\na,x,1\n", "line 2: submit_s = 'x' is no number"),
        ("job,submit_s,gpus\na,1,1\n\nb,,1\n", "line 4: submit_s = '' is missing"),
        ("job,submit_s,gpus\na,-1,1\n", "line 2: submit_s = '-1' is less than 0"),
        ("job,submit_s,gpus\na,nan,1\n", "line 2: submit_s = 'nan' is no number"),
        ("job,submit_s,gpus\na,1,1.5\n", "line 2: gpus = '1.5' is not a whole number"),
        ("job,submit_s,gpus\na,1\n", "line 2: has 2 fields, and the first line names 3"),
        ("job,submit_s,gpus\na,1,1\na,2,1\n", "lines 2 and 3 both name job 'a'"),
        ("job,job,gpus\na,1,1\n", "two columns 'job'"),
        ("job,submit_s,gpus\na,1e300,1\n", "is no number that a table can hold"),
    ],
)
def test_bad_traces_get_one_message_with_line_and_remedy(tmp_path, text, message):
    with pytest.raises(UserError) as caught:
        read_jobs(write(tmp_path, text))
    assert message in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(text=st.one_of(st.text(max_size=200), LINES))
@pytest.mark.parametrize("head", ["", "job,submit_s,gpus,duration_s\n", "JobID|Submit|Elapsed|AllocTRES\n"])
def test_fuzzed_traces_are_read_or_refused(tmp_path_factory, head, text):
    path = tmp_path_factory.mktemp("fuzz") / "trace.csv"
    path.write_bytes((head + text).encode("utf-8", "surrogatepass"))
    try:
        jobs = read_jobs(path)
    except UserError:
        return
    assert len(jobs) == len(jobs.submit_s) > 0


def test_sacct(tmp_path):
    text = (
        "JobID|Submit|Start|End|Elapsed|AllocTRES|User|State\n"
        "7|2024-05-01T00:00:00|2024-05-01T00:01:00|2024-05-01T01:01:00|01:00:00|cpu=8,gres/gpu=4|ann|COMPLETED\n"
        "7.batch|2024-05-01T00:00:00|2024-05-01T00:01:00|2024-05-01T01:01:00|01:00:00|cpu=8|ann|COMPLETED\n"
        "8|2024-05-01T00:00:30|Unknown|Unknown|1-00:00:01|gres/gpu:a100=2|bob|CANCELLED\n"
    )
    jobs = read_jobs(write(tmp_path, text, "sacct.txt"))
    assert list(jobs.name) == ["7", "8"]
    assert jobs.gpus.tolist() == [4, 2]
    assert jobs.duration_s.tolist() == [3600, 86401]
    assert jobs.start_s[0] - jobs.submit_s[0] == 60
    assert np.isnan(jobs.start_s[1])


def test_sacct_jobs_end_as_they_did(tmp_path):
    hour = "2024-05-01T00:00:00|2024-05-01T01:00:00|01:00:00"
    text = (
        "JobID|Submit|Start|End|Elapsed|AllocTRES|State\n"
        f"1|2024-05-01T00:00:00|{hour}|gres/gpu=4|COMPLETED\n"
        f"2|2024-05-01T00:00:00|{hour}|gres/gpu=4|NODE_FAIL\n"
        f"3|2024-05-01T00:00:00|{hour}|gres/gpu=4|CANCELLED by 1000\n"
        "4|2024-05-01T00:00:00|Unknown|2024-05-01T00:10:00|00:00:00|gres/gpu=64|CANCELLED by 1000\n"
    )
    jobs = read_jobs(write(tmp_path, text, "sacct.txt"))
    for policy in ("fifo", "srtf", "current"):
        outcome = simulate(jobs, parse_site("gpu:1x8"), policy, Options())
        figures = aggregates(outcome, 8)
        assert [STATES[at] for at in outcome.state] == ["completed", "failed", "cancelled", "cancelled"]
        assert outcome.why == {3: "was cancelled before it started"}
        assert (figures["completed_jobs"], figures["failed_jobs"], figures["cancelled_jobs"]) == (1, 1, 2)
        assert figures["jct_mean_s"] == 3600
        assert figures["utilisation"] == pytest.approx(1.5 if policy == "current" else 0.75)
        assert figures["littles_law_residual"] < 1e-9


def test_kubernetes_manifests(tmp_path):
    text = """
kind: Workload
metadata: {name: w, creationTimestamp: "2024-05-01T00:00:00Z", annotations: {windtunnel/duration-s: "60"}}
spec:
  podSets:
  - count: 2
    template: {spec: {containers: [{resources: {requests: {nvidia.com/gpu: 4}}}]}}
---
kind: Job
metadata: {name: v, creationTimestamp: "2024-05-01T00:00:10Z"}
spec:
  activeDeadlineSeconds: 90
  tasks: [{replicas: 3, template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: "1"}}}]}}}]
"""
    jobs = read_jobs(write(tmp_path, text, "jobs.yaml"))
    assert (jobs.gpus.tolist(), jobs.submit_s.tolist(), jobs.duration_s.tolist()) == ([8, 3], [0, 10], [60, 90])


def test_the_linter_names_what_cannot_be(tmp_path):
    text = "job,submit_s,gpus,duration_s,deadline_s\na,10,64,100,5\nb,20,0,30,\nc,30,8,1e9,40\nd,15,8,0,\n"
    found = {each.kind: each for each in lint_jobs(read_jobs(write(tmp_path, text)), parse_site("v100:16"))}
    expected = {"too-large", "late-before-start", "no-gpu", "overload", "zero-duration", "long", "unsorted", "hopeless"}
    assert set(found) >= expected
    assert found["too-large"].jobs == ("a",)
    assert "line 2" in found["too-large"].text
    clean = read_jobs(write(tmp_path, OURS))
    assert lint_jobs(clean, parse_site("v100:256")) == []


@pytest.mark.parametrize(
    ("text", "nodes", "per_node"),
    [
        ("t4:64", 16, 4),
        ("t4:16x4", 16, 4),
        ("v100:72", 9, 8),
        ("h100-sxm:1024", 128, 8),
        ("odd:1x3", 1, 3),
        ("16xh100", 2, 8),
        ("4 x p5.48xlarge", 4, 8),
    ],
)
def test_sites(text, nodes, per_node):
    site = parse_site(text)
    assert (site.nodes, site.per_node) == (nodes, per_node)


@pytest.mark.parametrize("text", ["", "t4", "t4:0", "t4:x", "t4:65", "t4:99999999999", "h10:64", "nodes.csv"])
def test_bad_sites(text):
    with pytest.raises(UserError):
        parse_site(text)


def test_sacct_jobs_that_are_not_done_complete_nothing(tmp_path):
    text = (
        "JobID|Submit|Start|Elapsed|AllocTRES|ReqTRES|State\n"
        "1|2024-05-01T00:00:00|2024-05-01T00:00:00|01:00:00|gres/gpu=4||COMPLETED\n"
        "2|2024-05-01T00:00:00|2024-05-01T00:00:00|00:30:00|gres/gpu=4||RUNNING\n"
        "3|2024-05-01T00:00:00|Unknown|00:00:00||gres/gpu=4|PENDING\n"
        "4|2024-05-01T00:00:00|Unknown|00:00:00|||CANCELLED by 7\n"
    )
    jobs = read_jobs(write(tmp_path, text, "sacct.txt"))
    site = parse_site("gpu:8")
    for policy in ("current", "easy"):
        figures = aggregates(simulate(jobs, site, policy, Options()), 8)
        counts = [figures[f"{state}_jobs"] for state in ("completed", "unfinished", "dropped", "cancelled")]
        assert counts == [1, 1, 1, 1]
        assert figures["jct_mean_s"] == 3600
        assert figures["utilisation"] == 0.75  # the running one holds its GPUs for as long as it has run
    assert [(finding.kind, finding.jobs) for finding in lint_jobs(jobs, site)] == [("no-duration", ("3",))]


def test_lint_counts_no_load_of_jobs_that_no_run_takes(tmp_path):
    text = "submit_s,gpus,duration_s\n0,8,10\n100,8,10\n50,64,100\n"
    found = lint_jobs(read_jobs(write(tmp_path, text)), parse_site("v100:8"))
    assert "overload" not in {one.kind for one in found}
