"""Real processes under a policy: preempted, killed, and their scheduler killed; nothing runs twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")

# Steps of 50 ms with a checkpoint each; a lock that only one process of a job can hold; what was done, in a file.
WORKER = """
import fcntl, os, sys, time
folder, steps = os.environ["WINDTUNNEL_FOLDER"], int(sys.argv[1])
lock = open(os.path.join(folder, "lock"), "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(os.path.join(folder, "twice"), "w").close()
    sys.exit(1)
path = os.path.join(folder, "done")
with open(os.path.join(folder, "slots"), "w") as file:
    file.write(os.environ["CUDA_VISIBLE_DEVICES"])
done = int(open(path).read()) if os.path.exists(path) else 0
while done < steps:
    time.sleep(0.05)
    done += 1
    with open(path + ".new", "w") as file:
        file.write(str(done))
    os.replace(path + ".new", path)
"""


def jobs_file(folder, rows):
    (folder / "worker.py").write_text(WORKER)
    lines = [
        f"- {{job: {name}, submit_s: {submit}, gpus: {gpus}, duration_s: {steps * 0.05 + 0.1},"
        f" command: '{sys.executable} {folder}/worker.py {steps}'}}"
        for name, submit, gpus, steps in rows
    ]
    path = folder / "jobs.yaml"
    path.write_text("\n".join(lines))
    return path


def command(folder, jobs, policy="srtf", cluster="gpu:1x2"):
    words = [
        "fleet",
        "live",
        jobs,
        "--out",
        folder / "live",
        "--cluster",
        cluster,
        "--policy",
        policy,
        "--json",
    ]
    return [sys.executable, "-m", "windtunnel", *map(str, words)]


def until(happens, patience_s=30.0):
    end = time.monotonic() + patience_s
    while not happens():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def finished(folder, rows):
    for name, _, _, steps in rows:
        assert (folder / "live" / name / "done").read_text() == str(steps)
        assert not (folder / "live" / name / "twice").exists()


def test_a_short_job_preempts_and_the_long_one_goes_on_where_it_was(tmp_path):
    rows = [("long", 0, 2, 60), ("short", 1.0, 2, 5)]
    run = subprocess.run(command(tmp_path, jobs_file(tmp_path, rows)), capture_output=True, text=True, check=True)
    document = json.loads(run.stdout)
    by_name = {row["job"]: row for row in document["jobs"]}
    assert by_name["long"]["preemptions"] == 1
    assert 1.0 + by_name["short"]["jct_s"] < by_name["long"]["jct_s"]  # the long one, which came first, ended after it
    finished(tmp_path, rows)


def test_queues_run_live_and_fifo_needs_no_durations(tmp_path):
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text("".join(f"- {{job: {name}, submit_s: 0, gpus: 2, command: 'sleep 0.2'}}\n" for name in ("a", "b")))
    words = command(tmp_path, jobs)
    del words[words.index("--policy") : words.index("--policy") + 2]
    first, second = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["jobs"]
    assert first["state"] == second["state"] == "completed"
    assert second["jct_s"] > first["jct_s"] + 0.15
    refused = subprocess.run(command(tmp_path, jobs, policy="easy"), capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "duration_s of a is not given: easy orders jobs by it" in refused.stderr


def test_a_killed_job_is_resumed(tmp_path):
    rows = [("one", 0, 1, 60)]
    run = subprocess.Popen(command(tmp_path, jobs_file(tmp_path, rows)), stdout=subprocess.PIPE, text=True)
    done = tmp_path / "live" / "one" / "done"
    until(lambda: done.exists() and int(done.read_text()) > 5)
    os.killpg(int((tmp_path / "live" / "one" / "pid.1").read_text()), signal.SIGKILL)
    output, _ = run.communicate(timeout=60)
    row = json.loads(output)["jobs"][0]
    assert (row["state"], row["deaths"], row["starts"]) == ("completed", 1, 2)
    finished(tmp_path, rows)


def test_a_killed_scheduler_goes_on_and_nothing_runs_twice(tmp_path):
    rows = [("one", 0, 1, 80), ("two", 0, 1, 70), ("three", 0.2, 2, 5)]
    jobs = jobs_file(tmp_path, rows)
    first = subprocess.Popen(command(tmp_path, jobs, policy="tiresias"), stdout=subprocess.DEVNULL)
    until(lambda: all((tmp_path / "live" / name / "done").exists() for name in ("one", "two")))
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = subprocess.run(command(tmp_path, jobs, policy="tiresias"), capture_output=True, text=True, check=True)
    by_name = {row["job"]: row for row in json.loads(second.stdout)["jobs"]}
    assert all(row["state"] == "completed" for row in by_name.values())
    assert by_name["one"]["starts"] == 1  # adopted, not started again
    assert {(tmp_path / "live" / name / "slots").read_text() for name in ("one", "two")} == {"0", "1"}
    assert (tmp_path / "live" / "three" / "slots").read_text() == "0,1"
    finished(tmp_path, rows)


def test_a_job_that_always_dies_is_given_up(tmp_path):
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text("- {job: bad, submit_s: 0, gpus: 1, command: 'exit 3'}")
    run = subprocess.run(command(tmp_path, jobs, policy="tiresias"), capture_output=True, text=True, check=False)
    assert run.returncode == 1  # a job did not complete
    answer = json.loads(run.stdout)
    row = answer["jobs"][0]
    assert (row["state"], row["jct_s"]) == ("failed", None)
    assert (answer["jct_mean_s"], answer["simulated_jct_mean_s"]) == (None, None)


def test_means_are_of_the_jobs_that_completed(tmp_path):
    jobs = tmp_path / "jobs.yaml"
    bad = "{job: bad, submit_s: 0, gpus: 1, duration_s: 1000, command: 'exit 3'}"
    jobs.write_text(f"- {bad}\n- {{job: good, submit_s: 0, gpus: 1, duration_s: 0.2, command: 'sleep 0.2'}}\n")
    run = subprocess.run(command(tmp_path, jobs, policy="srtf"), capture_output=True, text=True, check=False)
    assert run.returncode == 1  # a job did not complete
    answer = json.loads(run.stdout)
    good = next(row for row in answer["jobs"] if row["job"] == "good")
    assert answer["jct_mean_s"] == good["jct_s"]
    assert answer["simulated_jct_mean_s"] == good["simulated_jct_s"] == 0.2
