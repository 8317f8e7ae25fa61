"""Live jobs that end by themselves while they are asked to stop, with real processes; journals cut off in a line."""

import time
from pathlib import Path

import pytest

from windtunnel.errors import SpecError, UserError
from windtunnel.process import processes
from windtunnel.studies.fleet.clock.decision import Decision
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.live import host, process
from windtunnel.studies.fleet.live.host import hosts_of
from windtunnel.studies.fleet.live.journal import Journal
from windtunnel.studies.fleet.live.scheduler import LiveJob, Scheduler
from windtunnel.studies.fleet.live.study import run_live
from windtunnel.studies.fleet.site import parse_site

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")


class LastFirst:
    """The job that came last gets all it asks for; the others wait."""

    def decide(self, snapshot):
        return Decision({job.index: job.gpus for job in snapshot.jobs[-1:]})


@pytest.mark.parametrize(("status", "starts"), [(0, 1), (3, 2)])
def test_a_job_that_ends_while_it_is_stopped_has_ended(tmp_path, monkeypatch, status, starts):
    stop = process.stop
    late = []

    def too_late(pid, born):
        until = time.monotonic() + 20
        while process.status(tmp_path / "early", "1") is None and time.monotonic() < until:
            time.sleep(0.01)
        late.append(process.status(tmp_path / "early", "1"))
        stop(pid, born)

    monkeypatch.setattr(process, "stop", too_late)
    text = f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/told"
    early = f'[ "$WINDTUNNEL_ATTEMPT" = 2 ] || {{ sleep 0.6; exit {status}; }}'
    jobs = [LiveJob(0, "early", 0.0, 2, early), LiveJob(1, "late", 0.2, 2, text)]
    Scheduler(jobs, (2,), LastFirst(), tmp_path).run()
    assert late == [status]
    assert (tmp_path / "told").read_text().strip() == "0,1"  # all slots of the job that had ended
    assert [job.attempt for job in jobs] == [starts, 1]
    assert [job.preemptions for job in jobs] == [0, 0]
    assert jobs[0].deaths == (status != 0)
    assert all(job.end_s is not None and not job.failed for job in jobs)
    again = [LiveJob(job.index, job.name, job.submit_s, job.gpus, job.command) for job in jobs]
    Scheduler(again, (2,), LastFirst(), tmp_path).run()  # the journal says that nothing is left to do
    assert [job.attempt for job in again] == [starts, 1]
    assert [job.end_s for job in again] == [job.end_s for job in jobs]


def test_what_is_written_after_a_line_that_was_cut_off_is_read_again(tmp_path):
    journal = Journal(tmp_path)
    journal.write(what="begin", origin=1.0)
    journal.close()
    with journal.path.open("a") as file:
        file.write('{"what": "sta')
    for count in (1, 2):
        journal = Journal(tmp_path)
        assert len(journal.entries()) == count
        journal.write(what="start", job="a")
        journal.close()
    journal.path.write_text('{"what": "begin"}\n{"what": "sta\n{"what": "stop"}\n')
    journal = Journal(tmp_path)
    with pytest.raises(UserError, match="line 2 is damaged"):
        journal.entries()
    journal.close()


@pytest.mark.parametrize("heeds", [True, False])
def test_stopping_waits_for_all_that_a_job_runs(tmp_path, monkeypatch, heeds):
    monkeypatch.setattr(process, "GRACE_S", 3.0 if heeds else 0.3)
    saves = f"sleep 0.5; echo x > {tmp_path}/saved; exit" if heeds else ""
    script = tmp_path / "job.sh"
    script.write_text(f"trap '{saves}' TERM; echo x > {tmp_path}/ready; while true; do sleep 0.05; done")
    pid = process.launch(tmp_path / "job", "1", f"sh {script}; true", {})
    until = time.monotonic() + 20
    while not (tmp_path / "ready").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.stop(pid, process.birth_of(pid))
    assert (tmp_path / "saved").exists() == heeds
    assert not [found for found, _, session in processes() if session == pid]
    assert process.status(tmp_path / "job", "1") is None


def test_what_a_killed_shell_leaves_is_ended_before_the_job_starts_again(tmp_path):
    once = f'[ "$WINDTUNNEL_ATTEMPT" = 2 ] || {{ echo $$ > {tmp_path}/pid; (sleep 60; true) & kill -9 $$; }}'
    jobs = [LiveJob(0, "a", 0.0, 1, once)]
    Scheduler(jobs, (1,), LastFirst(), tmp_path).run()
    assert (jobs[0].attempt, jobs[0].deaths) == (2, 1)
    gone = int((tmp_path / "pid").read_text())
    assert not [found for found, _, session in processes() if session == gone]


def test_a_policy_with_an_interval_is_asked_at_multiples_of_it(tmp_path):
    asked = []

    class Noted(LastFirst):
        interval_s = 0.4

        def decide(self, snapshot):
            asked.append(snapshot.now_s)
            return super().decide(snapshot)

    jobs = [LiveJob(0, "a", 0.0, 1, "true"), LiveJob(1, "b", 0.0, 1, "true")]
    Scheduler(jobs, (1,), Noted(), tmp_path).run()
    assert jobs[0].start_s >= 0.4 > jobs[1].start_s  # b ended at once, and nobody was asked before the next multiple
    assert len({int(at // 0.4) for at in asked}) == len(asked) == 2


@pytest.mark.parametrize("policy", ["optimus", "pollux", "kueue", "kai", "volcano"])
def test_policies_that_size_jobs_or_need_quotas_are_refused(tmp_path, policy):
    path = tmp_path / "jobs.yaml"
    path.write_text("- {job: a, submit_s: 0, gpus: 1, duration_s: 1, command: 'true'}")
    with pytest.raises(
        SpecError, match=f"--policy = '{policy}': a live run has one of fifo, .*, tiresias, gittins, .*, gandiva$"
    ):
        run_live(read_jobs(path), parse_site("gpu:1"), [policy], tmp_path / "live")


def test_a_job_has_a_process_on_each_of_its_hosts_and_agents_may_die(tmp_path):
    hosts = hosts_of(("env", "env", ""))  # two agents and this process
    text = f'echo "$WINDTUNNEL_NODE/$WINDTUNNEL_NODES $CUDA_VISIBLE_DEVICES" >> {tmp_path}/told; sleep 0.4'
    dies = '[ "$WINDTUNNEL_ATTEMPT" = 2 ] || [ "$WINDTUNNEL_NODE" = 0 ] || exit 3; sleep 0.3'
    jobs = [LiveJob(0, "three", 0.0, 5, text), LiveJob(1, "dies", 0.2, 4, dies)]
    asked = []

    class Fifo:
        def decide(self, snapshot):
            if len(asked) == 1:
                hosts[1]._agent.kill()  # in the midst of the run: another takes its place
            asked.append(snapshot)
            return Decision({job.index: job.gpus for job in snapshot.jobs[:1]})

    Scheduler(jobs, (2, 2, 2), Fifo(), tmp_path, hosts=hosts).run()
    assert sorted((tmp_path / "told").read_text().split("\n")) == ["", "0/3 0,1", "1/3 0,1", "2/3 0"]
    assert [job.attempt for job in jobs] == [1, 2]  # one part died, so the other was stopped and both began anew
    assert [job.deaths for job in jobs] == [0, 1]
    assert all(job.end_s is not None for job in jobs)


def test_a_host_that_cannot_be_reached_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "PAUSE_S", 0.01)
    with pytest.raises(UserError, match="its agent does not answer"):
        Scheduler([LiveJob(0, "a", 0.0, 1, "true")], (1, 1), LastFirst(), tmp_path, hosts=hosts_of(("false", ""))).run()


def test_a_journal_of_a_later_version_loses_no_job(tmp_path):
    """Fields and kinds of entries that nobody knows here: what ran goes on, what ended stays, the rest begins."""
    folder = tmp_path / "live"
    names = ("runs", "ended", "died", "waits", "failed")
    rows = "".join(
        f"- {{job: {name}, submit_s: 0, gpus: 1, command: 'echo x >> $WINDTUNNEL_FOLDER/done; sleep 1'}}\n"
        for name in names
    )
    (tmp_path / "jobs.yaml").write_text(rows)
    pid = process.launch(folder / "runs", "1", "sleep 1; echo x >> $WINDTUNNEL_FOLDER/done", {})
    begun = time.time() - 60
    place = {"placement": [[0, 1]], "slots": [0], "spots": [], "slices": ["MIG-1"], "energy_j": 7.5}
    entries = [
        {"what": "begin", "origin": begun, "version": "9.9", "policy": {"name": "fifo"}},
        {"what": "heartbeat", "at": 1.0},
        *({"what": "start", "job": name, "attempt": 1, "at": 1.0, **place} for name in ("ended", "died", "failed")),
        {"what": "end", "job": "ended", "at": 2.0, "status": 0, "energy_j": 9.0},
        {"what": "death", "job": "died", "at": 2.0, "status": 1, "because": {"xid": 79}},
        {"what": "failed", "job": "failed", "at": 2.0, "status": 1},
        {"what": "start", "job": "runs", "attempt": 1, "at": 58.0, **place},
        {"what": "checkpoint", "job": "runs", "at": 59.0, "step": 12},
        {"what": "start", "job": "of another trace", "attempt": 1, "at": 59.0, **place, "placement": [[7, 1]]},
    ]
    journal = Journal(folder)
    for entry in entries:
        journal.write(**entry)
    journal.close()
    run = run_live(read_jobs(tmp_path / "jobs.yaml"), parse_site("gpu:1x2"), ["fifo"], folder)
    rows = {row["job"]: (row["state"], row["starts"]) for row in run.jobs}
    assert rows == {
        "runs": ("completed", 1), "ended": ("completed", 1), "died": ("completed", 2), "waits": ("completed", 1),
        "failed": ("failed", 1),
    }  # fmt: skip
    done = {name: (folder / name / "done").is_file() for name in names}
    assert done == {"runs": True, "ended": False, "died": True, "waits": True, "failed": False}
    assert all((folder / name / "done").read_text() == "x\n" for name in names if done[name])
    assert process.birth_of(pid) is None
