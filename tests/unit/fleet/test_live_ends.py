"""Live jobs that end by themselves while they are asked to stop, with real processes; journals cut off in a line."""

import time
from pathlib import Path

import pytest

from windtunnel.errors import UserError
from windtunnel.fleet.decision import Decision
from windtunnel.fleet.live import process
from windtunnel.fleet.live.journal import Journal
from windtunnel.fleet.live.scheduler import LiveJob, Scheduler

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
        while process.status(tmp_path / "early", 1) is None and time.monotonic() < until:
            time.sleep(0.01)
        late.append(process.status(tmp_path / "early", 1))
        stop(pid, born)

    monkeypatch.setattr(process, "stop", too_late)
    told = f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/told"
    early = f'[ "$WINDTUNNEL_ATTEMPT" = 2 ] || {{ sleep 0.6; exit {status}; }}'
    jobs = [LiveJob(0, "early", 0.0, 2, early), LiveJob(1, "late", 0.2, 2, told)]
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
