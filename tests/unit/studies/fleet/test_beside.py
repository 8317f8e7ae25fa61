"""Batch jobs beside a service: control groups of both versions, what is measured, and real processes under them."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windtunnel.errors import SpecError, UserError
from windtunnel.questions.asked.fleet.further import FleetBeside
from windtunnel.studies.fleet.live import beside, groups, machine, process
from windtunnel.studies.fleet.live.groups import PERIOD_US, Version1, Version2, root_group
from windtunnel.studies.fleet.live.latency import LatencyFile, Probe, late_from, p95_of


def test_late_is_what_few_requests_do_not_show_by_chance():
    draw = random.Random(7)
    alone = [draw.expovariate(1000.0) for _ in range(20000)]
    target_s = 1.1 * p95_of(alone)
    late = {number: late_from(alone, number, target_s) for number in (30, 300, 3000)}
    assert late[30] > late[300] > late[3000] > target_s
    samples = [p95_of([1.1 * draw.expovariate(1000.0) for _ in range(300)]) for _ in range(1000)]
    assert 0.02 < sum(sample > late[300] for sample in samples) / 1000 < 0.09  # one in twenty
    assert sum(1.2 * sample > late[300] for sample in samples) / 1000 > 0.5


def test_version_2_writes_the_kernels_words(tmp_path, monkeypatch):
    top = Version2([tmp_path])
    (tmp_path / "cgroup.subtree_control").write_text("")
    group = top.child("batch")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+io"  # one controller a write
    folder = tmp_path / "batch"
    (folder / "cpu.idle").write_text("0")
    group.limit_cores(1.5)
    assert (folder / "cpu.max").read_text() == f"{PERIOD_US * 3 // 2} {PERIOD_US}"
    group.limit_cores(None)
    assert (folder / "cpu.max").read_text() == f"max {PERIOD_US}"
    group.limit_memory(1 << 30)
    assert (folder / "memory.max").read_text() == "1073741824"
    (folder / "io.max").write_text("")
    monkeypatch.setattr(groups, "disks", lambda: ["254:0"])
    group.limit_disks(8e6)
    assert (folder / "io.max").read_text() == "254:0 rbps=8000000 wbps=8000000"
    group.limit_disks(None)
    assert (folder / "io.max").read_text() == "254:0 rbps=max wbps=max"
    assert group.disk_bytes() == 0
    (folder / "io.stat").write_text(
        "254:0 rbytes=10 wbytes=20 rios=3 wios=4 dbytes=5 dios=6\n8:0 rbytes=1 wbytes=2 rios=1\n"
    )
    assert group.disk_bytes() == 33
    group.stand_behind()
    assert (folder / "cpu.idle").read_text() == "1"
    group.freeze(on=True)
    assert (folder / "cgroup.freeze").read_text() == "1"
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert group.cpu_s() == 2.5
    assert group.entry() == f"echo 0 > '{folder}/cgroup.procs' || exit 126;"


def test_without_controllers_it_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(UserError, match="delegated"):
        root_group(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu io memory")
    (tmp_path / "cgroup.procs").write_text("")
    assert isinstance(root_group(tmp_path), Version2)


def test_latencies_that_a_service_writes(tmp_path):
    latencies = LatencyFile(tmp_path / "latencies")
    with latencies.path.open("a") as file:
        file.write("0.01\n0.02\n0.0")
        file.flush()
        assert latencies.take() == [0.01, 0.02]
        file.write("3\nfast\n")
        file.flush()
    with pytest.raises(SpecError, match="write seconds"):
        latencies.take()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("jobs: []", "no list"),
        ("jobs: [{job: a}]", "number 1"),
        ("jobs: [{command: x, gpus: 1}]", "number 1"),
        ("jobs: [{job: ../a, command: x}]", "a name of its own"),
        ("jobs: [{job: a, command: x}, {job: a, command: x}]", "a name of its own"),
        ('jobs: [{job: "a\\0", command: x}]', "a name of its own"),
        ('jobs: [{command: "x\\0"}]', "number 1"),
        (f"jobs: [{{job: {'a' * 300}, command: x}}]", "a name of its own"),
        ("jobs: [{command: x, cpus: 0}]", "cores above 0"),
        ("jobs: [{command: x, memory: much}]", "memory of 1"),
    ],
)
def test_a_bad_file_of_jobs_is_one_error(tmp_path, text, match):
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=match):
        beside.read_batch(path)


def may():
    try:
        root = root_group()
        root.child(f"windtunnel-test-{os.getpid()}").remove()
    except (UserError, OSError) as error:
        return str(error)
    return ""


live = pytest.mark.skipif(bool(may()), reason=f"control groups cannot be made here: {may()[:90]}")
BUSY = "while True: pass"


@pytest.fixture
def group():
    made = root_group().child(f"windtunnel-test-{os.getpid()}")
    yield made
    made.remove()


def started(group, code=BUSY):
    child = subprocess.Popen(["/bin/sh", "-c", f"{group.entry()} exec {sys.executable} -c '{code}'"])
    until = time.monotonic() + 10
    while child.pid not in group.processes() and child.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    return child


@live
def test_half_a_core_is_half_a_core_and_frozen_is_none(group):
    half = group.child("half")
    half.limit_cores(0.5)
    child = started(half)
    time.sleep(0.3)
    began, used = time.monotonic(), half.cpu_s()
    time.sleep(1.5)
    share = (half.cpu_s() - used) / (time.monotonic() - began)
    assert share < 0.55  # at most; less only where others have the cores
    half.freeze(on=True)
    until = time.monotonic() + 10
    while time.monotonic() < until:  # a kernel that is busy freezes late
        used = half.cpu_s()
        time.sleep(0.3)
        if half.cpu_s() == used:
            break
    assert half.cpu_s() == used
    assert half.processes() == [child.pid]
    half.remove()  # frozen as it is
    assert child.wait(timeout=10) == -9


WRITER = """
import os, sys
file = open(sys.argv[1], "wb")
for _ in range(32):
    file.write(bytes(1 << 20))
    file.flush()
    os.fsync(file.fileno())
"""


@live
def test_children_run_where_their_parent_may_narrower_and_wider(group):
    cores = sorted(os.sched_getaffinity(0))
    child = started(group.child("within"))
    group.run_on(cores[:1])
    if os.sched_getaffinity(child.pid) == set(cores) != set(cores[:1]):
        pytest.skip("no controller of which cores here")
    assert os.sched_getaffinity(child.pid) == set(cores[:1])
    group.run_on(cores)
    assert os.sched_getaffinity(child.pid) == set(cores)
    assert group.child("later").processes() == []
    late = started(group.child("later"))
    assert os.sched_getaffinity(late.pid) == set(cores)


def test_far_cores_come_before_those_that_share_with_the_services(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "TOPOLOGY", tmp_path)
    for core in range(8):
        (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    assert machine.cores_from(range(8), 2) == [0, 1, 2, 3, 6, 7, 4, 5]


def test_a_machine_without_disks_to_limit_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "BLOCK", tmp_path / "none")
    assert machine.disks() == []
    for name, number in (("sda", "8:0"), ("vda", "254:0")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "dev").write_text(number + "\n")
    (tmp_path / "zram0").mkdir()
    monkeypatch.setattr(machine, "BLOCK", tmp_path)
    assert machine.disks() == ["254:0", "8:0"]


@live
def test_a_writer_moves_no_more_than_it_may(group, tmp_path):
    slow = group.child("slow")
    slow.limit_disks(16 << 20)
    (tmp_path / "writer.py").write_text(WRITER)
    written = tmp_path / "written"
    began = time.monotonic()
    child = subprocess.Popen(["/bin/sh", "-c", f"{slow.entry()} exec {sys.executable} {tmp_path}/writer.py {written}"])
    assert child.wait(timeout=60) == 0
    if slow.disk_bytes() < 32 << 20:
        pytest.skip("its file lies on no disk of this machine that can be limited")
    assert time.monotonic() - began > 1.5  # 32 MiB in two seconds, and some at once


def test_a_machine_is_as_busy_as_it_is_not_idle():
    busy, whole = machine.machine_times()
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        pass
    now_busy, now_whole = machine.machine_times()
    assert now_whole - whole == pytest.approx(0.5 * os.cpu_count(), rel=0.2)
    assert now_busy - busy <= now_whole - whole + 0.03 * os.cpu_count()  # idle time comes in ticks
    assert now_busy - busy > 0.3  # this loop's core; a hypervisor's pauses count as neither


@live
def test_what_is_over_its_memory_is_stopped_by_the_kernel(group):
    small = group.child("small")
    small.limit_memory(64 << 20)
    child = started(small, 'x = bytearray(512 << 20); print("never")')
    assert child.wait(timeout=60) in (-9, 1)


SERVICE = """
import os, time
while True:
    began = time.monotonic()
    sum(range(20000))
    with open(os.environ["WINDTUNNEL_LATENCIES"], "a") as file:
        file.write(f"{time.monotonic() - began}\\n")
    time.sleep(0.004)
"""
JOB = """
import os, pathlib, time
done = pathlib.Path(os.environ["WINDTUNNEL_FOLDER"], "done")
while time.process_time() < 0.4: pass
done.write_text("yes")
"""


@live
def test_jobs_run_beside_a_service_and_nothing_is_left(tmp_path):
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "job.py").write_text(JOB)
    names = ("a", "b", "c")
    rows = "\n".join(f"  - {{job: {name}, command: '{sys.executable} {tmp_path}/job.py'}}" for name in names)
    (tmp_path / "jobs.yaml").write_text(f"jobs:\n{rows}\n  - {{job: bad, command: exit 3, cpus: 0.1}}")
    question = FleetBeside(
        jobs=str(tmp_path / "jobs.yaml"),
        service=f"{sys.executable} {tmp_path}/service.py",
        alone=2.0,
        p95=10.0,
        longest=60.0,
    )
    run = beside.answer_beside(question, tmp_path / "out")
    assert {row["job"]: row["state"] for row in run.jobs} == {**dict.fromkeys(names, "completed"), "bad": "failed"}
    assert all((tmp_path / "out" / "jobs" / name / "done").read_text() == "yes" for name in names)
    assert run.batch_cpu_s >= 1.2
    assert run.p95_alone_s < 10.0
    assert beside.own_name() not in {made.name for made in root_group().children()}


@live
def test_a_service_that_never_answers_is_one_error_and_its_group_is_gone(tmp_path):
    (tmp_path / "jobs.yaml").write_text("jobs: [{command: 'true'}]")
    question = FleetBeside(jobs=str(tmp_path / "jobs.yaml"), service="echo no; exit 4", alone=0.5)
    with pytest.raises(UserError, match="ended with 4"):
        beside.answer_beside(question, tmp_path / "out")
    assert "no" in (tmp_path / "out" / "service" / "log.1").read_text()
    assert beside.own_name() not in {made.name for made in root_group().children()}


@live
def test_a_frozen_job_ends_with_the_group_above_it(group):
    inner = group.child("batch").child("job")
    child = started(inner)
    inner.freeze(on=True)
    group.child("batch").freeze(on=True)
    group.child("batch").remove()
    assert child.wait(timeout=10) == -9


@live
def test_a_service_that_dies_midway_is_one_error_and_jobs_may_save(tmp_path):
    begun = tmp_path / "begun"  # an idle job starts late where others want the cores
    (tmp_path / "service.py").write_text(SERVICE.replace("while True:", f"while not os.path.exists({str(begun)!r}):"))
    saves = f"trap 'echo saved > {tmp_path}/saved; exit 0' TERM; touch {begun}; while true; do sleep 0.05; done"
    (tmp_path / "jobs.yaml").write_text(f"jobs: [{{command: {saves!r}}}]".replace("\\'", "''"))
    question = FleetBeside(
        jobs=str(tmp_path / "jobs.yaml"), service=f"{sys.executable} {tmp_path}/service.py", alone=2.0, p95=10.0
    )
    with pytest.raises(UserError, match="the service ended with 0"):
        beside.answer_beside(question, tmp_path / "out")
    assert (tmp_path / "saved").read_text() == "saved\n"


@pytest.mark.parametrize("url", ["http://[::1/", "http://a..b/", "https://a/", "a", "http://:80/", "http://a:b/"])
def test_a_bad_address_is_one_error(url):
    with pytest.raises(SpecError, match="--probe"):
        Probe(url, 0.02)


def test_a_folder_that_cannot_be_is_one_error(tmp_path):
    (tmp_path / "out").write_text("")
    (tmp_path / "jobs.yaml").write_text("jobs: [{command: 'true'}]")
    with pytest.raises(SpecError, match="--out"):
        beside.answer_beside(FleetBeside(jobs=str(tmp_path / "jobs.yaml"), service="true"), tmp_path / "out")


STREAM = """
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b"more")
            time.sleep(0.01)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_a_stream_without_an_end_is_let_go():
    with subprocess.Popen([sys.executable, "-c", STREAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        probe = Probe(f"http://127.0.0.1:{int(server.stdout.readline())}/\u00fc b", 0.02)
        time.sleep(0.3)
        began = time.monotonic()
        probe.close()
        assert not probe.thread.is_alive()
        assert time.monotonic() - began < 5.0
        server.kill()


def test_a_service_is_asked_over_one_connection_and_each_answer_counts():
    text = STREAM.replace("while True:", "for _ in range(2):").replace("time.sleep(0.01)", "print(self.client_address)")
    text = text.replace("    def do_GET", '    protocol_version = "HTTP/1.1"\n    def do_GET')
    text = text.replace("self.end_headers()", 'self.send_header("Content-Length", "8"); self.end_headers()')
    with subprocess.Popen([sys.executable, "-uc", text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        probe = Probe(f"http://127.0.0.1:{int(server.stdout.readline())}/", 0.02)
        time.sleep(1.0)
        latencies = probe.take()
        probe.close()
        server.kill()
        callers = set(server.stdout.read().splitlines())
    assert len(latencies) >= 5
    assert max(latencies) < 5.0  # none was lost
    assert len(callers) == 1


SLOW = """
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    def do_GET(self):
        time.sleep(0.05)
        self.send_response(204)
        self.end_headers()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@live
def test_a_service_that_is_asked_too_fast_is_one_error(tmp_path):
    with subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        (tmp_path / "jobs.yaml").write_text("jobs: [{command: 'true'}]")
        question = FleetBeside(
            jobs=str(tmp_path / "jobs.yaml"),
            service="sleep 60",
            probe=f"http://127.0.0.1:{port}/",
            every=0.01,
            alone=4.0,
        )
        with pytest.raises(UserError, match="cannot keep up alone"):
            beside.answer_beside(question, tmp_path / "out")
        server.kill()


@live
def test_groups_of_a_controller_that_was_killed_are_taken_away(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = root_group().child(f"{beside.PREFIX}{dead.pid}-{process.birth_of(1)}")
    child = started(left)
    with beside.own_group(root_group()):
        assert child.wait(timeout=10) == -9
        assert left.name not in {made.name for made in root_group().children()}


def test_version_1_knows_its_hierarchies():
    folders = [Path("/x") / name / "g" for name in Version1.ORDER]
    assert Version1(folders).entry().count("cgroup.procs") == 6
