"""A real job, recorded here: two processes of PyTorch's DistributedDataParallel over gloo, under torch.profiler."""

from __future__ import annotations

import json
import os
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked import windtunnel

from windtunnel.studies.traces.read import read_trace
from windtunnel.studies.traces.stragglers.counterfactuals import explain
from windtunnel.studies.traces.stragglers.explanation import Explanation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

folder, port = sys.argv[1:]
other = os.fork()
rank = int(other == 0)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=2)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
job = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.3)
optimizer = torch.optim.SGD(job.parameters(), lr=0.01)
batch = 1024 if rank == 1 else 64
with profile(
    activities=[ProfilerActivity.CPU], record_shapes=True, schedule=schedule(wait=1, warmup=1, active=3),
    on_trace_ready=lambda recorded: recorded.export_chrome_trace(f"{folder}/rank{rank}.json.gz"),
) as recording:
    for _ in range(5):
        job(torch.randn(batch, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        recording.step()
dist.destroy_process_group()
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("gloo")
    script = folder / "job.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = windtunnel(str(folder), port, cwd=folder, env={**os.environ}, timeout=240, module=str(script))
    assert done.returncode == 0, done.stderr[-2000:]
    return [folder / f"rank{rank}.json.gz" for rank in range(2)]


@pytest.fixture(scope="module")
def found(traces: list[Path]) -> Explanation:
    return explain(read_trace(traces), without=["rank=1"])


def test_the_rank_with_the_larger_batch_is_blamed(found: Explanation) -> None:
    assert found.by_worker[0].name == "rank 1"
    assert found.verdict.startswith("A slow worker is to blame: rank 1")
    assert found.asked is not None
    assert found.asked.saved_ns == found.by_worker[0].saved_ns > 0


def test_collectives_of_both_ranks_meet_and_nothing_else_is_said(found: Explanation) -> None:
    (note,) = [note for note in found.notes if "% of the measured time" not in note]
    assert "no GPU work in the trace" in note
    assert "all-reduce" in {part.name for part in found.by_kind}


def test_the_replay_is_about_the_recorded_time(found: Explanation) -> None:
    assert found.replayed_ns == pytest.approx(found.measured_ns, rel=0.3)


def test_half_of_the_job_is_said_to_be_half(traces: list[Path]) -> None:
    notes = explain(read_trace(traces[:1])).notes
    assert any("have no trace here, first rank 1" in note for note in notes)


def test_a_second_of_skew_changes_nothing(traces: list[Path], found: Explanation, tmp_path: Path) -> None:
    import gzip

    document = json.loads(gzip.decompress(traces[1].read_bytes()))
    for event in document["traceEvents"]:
        if isinstance(event.get("ts"), float):
            event["ts"] += 1e6
    skewed = tmp_path / "skewed.json"
    skewed.write_text(json.dumps(document))
    other = explain(read_trace([traces[0], skewed]))
    assert any("was +" in note or "was -" in note for note in other.notes)
    assert other.slowdown == pytest.approx(found.slowdown, rel=1e-3)
