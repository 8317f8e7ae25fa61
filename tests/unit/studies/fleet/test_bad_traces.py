"""Broken traces of every layout: one error with place and remedy, or every job accounted for; no hang, no crash."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputFileError, UserError
from windtunnel.faces.cli import main
from windtunnel.studies.fleet.jobs.lint import lint_jobs
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import STATES
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

SITE = parse_site("v100:16")
LAYOUTS = {  # a line of names and two good lines of each
    "ours": "job,submit_s,gpus,duration_s,deadline_s,user\na,0,8,100,900,ann\nb,5,1,30,,bob\n",
    "philly": "job,submit_s,duration_s,gpus,vc\n0,0,2240194,8,7f04ca\n9,664859,1780406,8,7f04ca\n",
    "itp": "cluster,job,submit_s,duration_s,gpus,model,batch_size,iterations,deadline_s\n"
    "01,0,1932025,2429,16,resnet50,256,45775,1933904\n01,1,2000581,1532,1,gpt2,128,11197,2002204\n",
    "pollux": "workload,load,job,submit_s,application,gpus,batch_size\n"
    "1,1.0,cifar10-0,107,cifar10,6,2048\n1,1.0,deepspeech2-1,110,deepspeech2,6,320\n",
    "elasticflow": "setting,job,submit_s,iterations,model,deadline_s,batch_size,gpus,duration_s\n"
    "fig8a,0,3715485,2011,cifar10,3719996,4096,1,5644\nfig8a,1,3717550,1548,ncf,3717583,32768,8,66\n",
    "openb": "list,pod,cpu_milli,memory_mib,gpus,gpu_milli,gpu_models,qos,phase,create_s,schedule_s,delete_s\n"
    "default,p-0,12000,16384,1,1000,,LS,Running,0,0,12537496\ndefault,p-1,6000,12288,1,460,,LS,Running,427,427,129\n",
    "sacct": "JobID|Submit|Start|End|Elapsed|AllocTRES|User|State\n"
    "7|2024-05-01T00:00:00|2024-05-01T00:01:00|2024-05-01T01:01:00|01:00:00|gres/gpu=4|ann|COMPLETED\n"
    "8|2024-05-01T00:00:30|Unknown|Unknown|1-00:00:01|gres/gpu:a100=2|bob|CANCELLED\n",
    "yaml": "- {job: a, submit_s: 0, gpus: 8, duration_s: 100}\n- {job: b, submit_s: 5, gpus: 1, duration_s: 30}\n",
    "kueue": 'kind: Workload\nmetadata: {name: w, creationTimestamp: "2024-05-01T00:00:00Z"}\nspec:\n'
    "  podSets: [{count: 2, template: {spec: {containers: [{resources: {requests: {nvidia.com/gpu: 4}}}]}}}]\n",
}
CELL = re.compile(r"[^,|\n{}\[\]]+")
BAD_CELLS = st.one_of(
    st.sampled_from(
        [
            *("", " ", "nan", "NaN", "inf", "-inf", "-1", "-0", "0", "1e30", "1e400", "9" * 40, "1.5", "x", "null"),
            *("true", "0x10", "1_000", "1,5", '"', "\x00", "\r", "\ufeff", "é", "\u0663", "1e15", "99999", "[]", "{"),
            *("- :", "&a", "2024-13-01T00:00:00", "0001-01-01", "gres/gpu=-1", "gres/gpu=" + "9" * 30, "99:99:99"),
        ]
    ),
    st.text(max_size=12),
    st.binary(max_size=8).map(lambda raw: raw.decode("latin-1")),
)


def suffix(layout):
    return ".yaml" if layout in ("yaml", "kueue") else ".csv"


def accounted_or_refused(path):
    """Reads, lints and runs a trace; what is refused is one message that says where and what to do."""
    try:
        jobs = read_jobs(path)
    except UserError as error:
        text = str(error)
        assert text.startswith(str(path))
        assert "\n" not in text
        remedy = r"[;,:?] ?\S"  # every message goes on with what to do
        assert re.search(remedy, text[len(str(path)) :])
        return None
    names = list(jobs.name)
    assert len(names) == len(set(names)) == len(jobs) > 0
    assert np.isfinite(jobs.submit_s).all()
    assert (jobs.gpus >= 0).all()
    for finding in lint_jobs(jobs, SITE):
        assert finding.text
        assert finding.remedy
        assert set(finding.jobs) <= set(names)
    try:
        run = simulate(jobs, SITE, "fifo", Options())
    except UserError:
        return None
    left_out = [STATES.index(name) for name in ("impossible", "dropped")]
    before_its_start = (run.state == STATES.index("cancelled")) & np.isnan(run.start_s)
    out = set(np.flatnonzero(np.isin(run.state, left_out) | before_its_start).tolist())
    assert out == set(run.why)
    assert (run.end_s[[at for at in range(len(jobs)) if at not in out]] >= 0).all()
    return run


@pytest.mark.parametrize("layout", LAYOUTS)
def test_good_traces_of_every_layout_are_read(tmp_path, layout):
    path = tmp_path / f"trace{suffix(layout)}"
    path.write_text(LAYOUTS[layout], encoding="utf-8")
    assert len(read_jobs(path)) == (1 if layout == "kueue" else 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=35, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_broken_cell_is_refused_or_its_job_accounted_for(tmp_path_factory, layout, data):
    text = LAYOUTS[layout]
    for _ in range(data.draw(st.integers(1, 2))):
        found = data.draw(st.sampled_from(list(CELL.finditer(text))))
        text = text[: found.start()] + data.draw(BAD_CELLS) + text[found.end() :]
    path = tmp_path_factory.getbasetemp() / f"cell-{layout}{suffix(layout)}"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    accounted_or_refused(path)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_broken_lines_are_refused_or_their_jobs_accounted_for(tmp_path_factory, layout, data):
    lines = LAYOUTS[layout].splitlines(keepends=True)
    action = data.draw(st.sampled_from(["drop", "double", "cut", "swap", "binary"]))
    at = data.draw(st.integers(0, len(lines) - 1))
    if action == "drop":
        del lines[at]
    elif action == "double":
        lines.insert(at, lines[at])
    elif action == "cut":
        lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
    elif action == "swap":
        lines[0], lines[at] = lines[at], lines[0]
    raw = "".join(lines).encode()
    if action == "binary":
        cut = data.draw(st.integers(0, len(raw)))
        raw = raw[:cut] + data.draw(st.binary(max_size=30)) + raw[cut:]
    path = tmp_path_factory.getbasetemp() / f"line-{layout}{suffix(layout)}"
    path.write_bytes(raw)
    accounted_or_refused(path)


def test_json_is_read_by_its_own_rules(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(b'\xef\xbb\xbf[\n\t{"job": "a", "submit_s": 0, "gpus": 8,\n\t "duration_s": 1e2}\n]\n')  # tabs
    assert read_jobs(path).duration_s.tolist() == [100.0]
    path.write_text('[{"job": "a",\n "submit_s": 0,}]')
    with pytest.raises(InputFileError, match=r"is not JSON \(.* line 2 column 16 .*\); give a trace"):
        read_jobs(path)


@pytest.mark.parametrize("name", ["t.csv", "t.yaml", "t.parquet", "t.txt", "t.json"])
@pytest.mark.parametrize("raw", [b"", b"\x00\xff\xfe" * 40, b"PAR1" + bytes(60) + b"PAR1", b"\n\n\n", b"\xef\xbb\xbf"])
def test_files_that_are_no_trace(tmp_path, name, raw):
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(InputFileError) as caught:
        read_jobs(path)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("layout", "column", "value", "message"),
    [
        ("philly", "gpus", "-8", "line 3: gpus = '-8' is less than 0"),
        ("itp", "duration_s", "long", "line 3: duration_s = 'long' is no number"),
        ("elasticflow", "iterations", "inf", "line 3: iterations = 'inf' is no number that a table can hold"),
        ("pollux", "submit_s", "", "line 3: submit_s = '' is missing"),
        ("philly", "submit_s", "1.7e12", "line 3: submit_s = '1.7e12' is more than 4e+09 s: is it in milliseconds?"),
        ("openb", "pod", "p-0", "lines 2 and 3 both name job 'p-0'"),
    ],
)
def test_the_message_names_line_column_and_value(tmp_path, layout, column, value, message):
    head, first, second = LAYOUTS[layout].splitlines()
    cells = second.split(",")
    cells[head.split(",").index(column)] = value
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([head, first, ",".join(cells)]) + "\n")
    with pytest.raises(UserError) as caught:
        read_jobs(path)
    assert message in str(caught.value)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["", "0", "7"])), min_size=1, max_size=9))
def test_no_job_is_left_out_silently(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "left-out.csv"
    lines = [f"j{at},{at},{gpus},{lasts}" for at, (gpus, lasts) in enumerate(rows)]
    path.write_text("job,submit_s,gpus,duration_s\n" + "\n".join(lines) + "\n")
    run = accounted_or_refused(path)
    if run is None:  # no job says how long it runs
        assert not any(lasts for _, lasts in rows)
        return
    lost = {at for at, (gpus, lasts) in enumerate(rows) if not 1 <= gpus <= 16 or not lasts}
    assert set(run.why) == lost
    assert all(run.why.values())


def test_a_run_longer_than_the_clock_counts_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("job,submit_s,gpus,duration_s\n" + "".join(f"{at},0,16,3e9\n" for at in range(4)))
    with pytest.raises(UserError, match="292 years before this job ends"):
        simulate(read_jobs(path), SITE, "fifo", Options())


@pytest.mark.parametrize("policy", ["gandiva", "tiresias"])
def test_rigid_policies_need_no_iterations(tmp_path, policy):
    path = tmp_path / "jobs.csv"
    path.write_text("job,submit_s,gpus,duration_s\na,0,1,500\nb,10.5,2,300.5\n")
    outcome = simulate(read_jobs(path), SITE, policy, Options())
    assert len(outcome.of_state("completed")) == 2


def test_a_policy_that_would_decide_for_ever_is_refused(tmp_path, capsys):
    trace = tmp_path / "long.csv"
    trace.write_text("submit_s,gpus,duration_s\n0,4,100\n10,4,4e9\n")
    assert main(["fleet", str(trace), "--cluster", "v100:8", "--policy", "themis"]) == 2
    message = capsys.readouterr().err
    assert "line 3: themis decides every 1200 s" in message
    assert "check the unit of duration_s" in message
    assert main(["fleet", str(trace), "--cluster", "v100:8", "--policy", "tiresias"]) == 0
