"""Whole files: steady state, peaks, throughput with a plan, exports, collectives; hostile files are one error."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import pytest

from windtunnel.errors import UserError
from windtunnel.studies.measured_run import read_run, steady_of
from windtunnel.studies.measured_run.collectives import waits_for
from windtunnel.studies.measured_run.lines import read_line
from windtunnel.studies.measured_run.logs import run_of_text
from windtunnel.studies.measured_run.run import phases_of

MEGATRON = (
    " iteration {at:8d}/ 2000 | elapsed time per iteration (ms): {ms} | global batch size:   128 | lm loss: 2.6E+00 |"
)


def megatron(times_ms: list[float]) -> str:
    return "\n".join(MEGATRON.format(at=at, ms=ms) for at, ms in enumerate(times_ms, 1))


def written(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_warm_up_and_outliers_are_apart(tmp_path: Path) -> None:
    times = [79489.9, 11182.0, 10883.5] + [10800.0] * 9 + [30000.0] + [10800.0] * 9 + [30000.0] + [10800.0] * 9
    steady = steady_of(read_run([written(tmp_path, "a.log", megatron([*times, 30000.0]))]))
    assert steady.seconds == pytest.approx(10.8)
    assert (steady.warm_up, steady.set_aside, steady.every) == (3, 3, 10)
    assert steady.lost_s == pytest.approx(3 * (30.0 - 10.8) / 30)
    assert steady.drift == 0.0


def test_a_slower_and_slower_run_drifts(tmp_path: Path) -> None:
    steady = steady_of(read_run([written(tmp_path, "a.log", megatron([1000.0 + 10.0 * at for at in range(40)]))]))
    assert 0.15 < steady.drift < 0.3


def test_throughput_becomes_seconds_with_the_plan(tmp_path: Path) -> None:
    line = "[rank0]:[titan] 2025-06-04 08:5{}:10,000 - root - INFO - step: {}  memory: 30.99GiB(32.62%)  tps: {}"
    text = "\n".join(line.format(at, 10 * at, "8,192") for at in range(9))
    run = read_run([written(tmp_path, "t.log", text)]).with_seconds(8 * 8192.0, 8, 8)
    assert steady_of(run).seconds == pytest.approx(1.0)
    assert run.reserved_bytes == {0: round(30.99 * 2**30)}
    bare = read_run([written(tmp_path, "u.log", text.replace("tps: 8,192", ""))]).with_seconds(8 * 8192.0, 8, 8)
    assert steady_of(bare).seconds == pytest.approx(6.0)  # a minute for ten steps
    assert "clock" in bare.notes[-1]


def test_what_is_not_understood_is_named_and_never_guessed(tmp_path: Path) -> None:
    text = "Step 12 | Loss: 3.1 | Step Time: 15.2 | LR: 1e-4\n" * 9
    run = read_run([written(tmp_path, "x.log", text)])
    assert run.steps == ()
    assert len(run.not_understood) == 9
    with pytest.raises(UserError, match=r"Step Time: 15\.2"):
        steady_of(run)


@pytest.mark.parametrize(
    "line",
    [
        "[x] 2025-01-02 INFO: 6epoch:train:51-56batch: iter_time=0.001, optim_step_time=2.0e-04, train_time=0.013",
        "[2025-01-02 03:04:05] Ep. 1 : Up. 14000 : Sen. 965,843 : Cost 5.2 : Time 359.59s : 3007.81 words/s",
        "10\timages/sec: 204.8 +/- 0.1 (jitter = 0.6)\t9.228",
        "Epoch:[0/1] [200/128028]  eta: 1:28:44  loss: 0.1782  step_time: 0.041657  lr: 0.8794",
        "DEEPMD INFO Batch 100: total wall time = 18.41 s, step time = 0.1841 s, eta = 0:15:02",
    ],
)
def test_a_line_with_a_time_that_is_not_read_is_named(line: str, tmp_path: Path) -> None:
    run = read_run([written(tmp_path, "x.log", line + "\n")])
    assert run.steps == ()
    assert run.not_understood == (line[:160],)


def test_a_time_without_a_name_is_a_steps_only_where_each_step_is_printed(tmp_path: Path) -> None:
    line = "Step {}, Loss: 1.2, Time: 700.0ms\n"
    each = read_run([written(tmp_path, "a.log", "".join(line.format(at) for at in range(9)))])
    assert steady_of(each).seconds == pytest.approx(0.7)
    gap = read_run([written(tmp_path, "g.log", "".join(line.format(at) for at in range(9) if at != 4))])
    assert steady_of(gap).seconds == pytest.approx(0.7)  # a line that is missing is no other form
    tenth = read_run([written(tmp_path, "b.log", "".join(line.format(10 * at) for at in range(9)))])
    assert tenth.steps == ()
    assert "one of them or of all" in tenth.not_understood[-1]


def test_a_clock_that_starts_behind_the_first_steps_tells_nothing_of_them(tmp_path: Path) -> None:
    line = "step:{}/1000 val_loss:7.7 train_time:{}ms step_avg:250.0ms\n"
    run = read_run(
        [written(tmp_path, "m.log", "".join(line.format(at, 250 * max(0, at - 10)) for at in range(0, 900, 100)))]
    )
    assert [step.seconds for step in run.steps if step.seconds is not None] == pytest.approx([0.25] * 7)


def test_arguments_of_the_log_and_memory_by_rank(tmp_path: Path) -> None:
    text = (
        "------------------------ arguments ------------------------\n"
        "  tensor_model_parallel_size ...................... 8\n  world_size ...................... 64\n"
        "-------------------- end of arguments ---------------------\n"
        + megatron([1000.0] * 9)
        + "\n[Rank 8] (after 1 iterations) memory (MB) | allocated: 10 | max allocated: 20 | max reserved: 40"
    )
    run = read_run([written(tmp_path, "a.log", text)])
    assert run.arguments["tensor_model_parallel_size"] == "8"
    assert run.n_gpus == 64
    assert run.reserved_bytes == {8: 40 * 2**20}
    assert run.global_batch == 128


def test_deepspeed_parts_belong_to_their_step(tmp_path: Path) -> None:
    line = "[Rank 0] time (ms) | fwd: 100.0 | bwd: 200.0 | bwd_inner: 150.0 | bwd_allreduce: 50.0 | step: 20.0\n"
    run = read_run([written(tmp_path, "d.log", line * 9)])
    assert steady_of(run).seconds == pytest.approx(0.32)
    assert phases_of(run)["bwd_allreduce"] == pytest.approx(0.05)


def test_exports_of_trackers(tmp_path: Path) -> None:
    rows = "".join(f"{at},{2.5 * at},{2.5}\n" for at in range(12))
    table = written(tmp_path, "w.csv", "_step,_runtime,run7 - timing_s/step\n" + rows)
    assert steady_of(read_run([table])).seconds == 2.5
    clock = written(tmp_path, "c.csv", "_step,_runtime,loss\n" + rows)
    assert steady_of(read_run([clock]).with_seconds(1.0, 1, 1)).seconds == 2.5
    lines = "".join(json.dumps({"_step": at, "train_step_timing in s": 3.0}) + "\n" for at in range(9))
    assert steady_of(read_run([written(tmp_path, "h.jsonl", lines)])).seconds == 3.0
    state = {"global_step": 100, "log_history": [{"loss": 1.0, "step": 5}, {"train_runtime": 300.0, "step": 100}]}
    run = read_run([written(tmp_path, "trainer_state.json", json.dumps(state))])
    assert steady_of(run).seconds == 3.0
    assert run.is_mean


def event(step: int, wall_s: float, tag: str, value: float) -> bytes:
    scalar = bytes([0x0A, len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = bytes([0x0A, len(scalar)]) + scalar
    data = b"\x09" + struct.pack("<d", wall_s) + b"\x10" + bytes([step]) + bytes([0x2A, len(summary)]) + summary
    return struct.pack("<QI", len(data), 0) + data + b"\0" * 4


def test_tensorboard_without_tensorflow(tmp_path: Path) -> None:
    content = b"".join(event(at, 100.0 + at, "train_step_timing in s", 4.0) for at in range(9))
    path = written(tmp_path, "events.out.tfevents.1", content)
    run = read_run([path])
    assert [step.number for step in run.steps] == list(range(9))
    assert steady_of(run).seconds == 4.0
    assert read_run([tmp_path]).steps == run.steps  # as `tensorboard --logdir` takes it
    cut = written(tmp_path, "events.out.tfevents.2", content[:-20])
    assert len(read_run([cut]).steps) == 8
    with pytest.raises(UserError):
        read_run([written(tmp_path, "events.out.tfevents.3", b"\xff" * 60)])


def test_tensorboard_written_by_its_own_writer(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("tensorboard.summary")
    writer = tensorboard.Writer(str(tmp_path))
    for at in range(9):
        writer.add_scalar("train_step_timing in s", 2.0, at)
    writer.close()
    (path,) = tmp_path.glob("*tfevents*")
    assert steady_of(read_run([path])).seconds == 2.0


INSPECTED = {
    "header": {"id": "0xad56c683b0c4ef", "rank": 1, "n_ranks": 3, "nnodes": 3},
    "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1772585717263338},
    "coll_perf": {
        **{"coll": "AllReduce", "coll_sn": 8995, "coll_msg_size_bytes": 2360832, "coll_exec_time_us": 5663.0},
        **{"coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 0.416887, "coll_busbw_gbs": 0.555850},
    },
}


def test_collectives_say_whom_the_others_wait_for(tmp_path: Path) -> None:
    lines = []
    for number in range(20):
        for rank in range(4):
            one = json.loads(json.dumps(INSPECTED))
            one["header"]["rank"], one["coll_perf"]["coll_sn"] = rank, number
            one["coll_perf"]["coll_exec_time_us"] = 100.0 if rank == 2 else 900.0
            lines.append(json.dumps(one))
    run = read_run([written(tmp_path, "nccl.log", "\n".join(lines))])
    assert len(run.collectives) == 80
    assert waits_for(run.collectives) == (2, pytest.approx(800e-6), 20)
    assert waits_for(run.collectives[:1]) is None


def test_a_flight_recorder_is_read_and_never_run(tmp_path: Path) -> None:
    entry = {
        **{"collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1724779239936775119},
        **{"input_sizes": [[3, 4]], "input_dtypes": ["Float"], "state": "completed", "duration_ms": 39.0},
    }
    run = read_run([written(tmp_path, "dump_7", pickle.dumps({"version": "2.4", "entries": [entry]}))])
    assert (run.collectives[0].rank, run.collectives[0].size_bytes) == (7, 48)
    assert run.collectives[0].seconds == pytest.approx(0.039)

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "ran"),)

    with pytest.raises(UserError, match="plain data"):
        read_run([written(tmp_path, "dump_8", pickle.dumps({"entries": [Bomb()]}))])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.log", b"\0\1\2\3" * 100),
        ("a.json", b'{"traceEvents": []}'),
        ("a.csv", b"\xff\xfe,\n1,2\n"),
        ("a_1", b"\x80\x04\x95garbage"),
        ("a.gz", b"\x1f\x8bnothing"),
    ],
)
def test_hostile_files_are_one_error(name: str, content: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_run([written(tmp_path, name, content)])
    assert "\n" not in str(caught.value)


def test_of_several_progress_bars_that_of_training_is_read(tmp_path: Path) -> None:
    bars = [f" {at}/873 [{at // 12}:{at % 12 * 5:02}<52:46,  5.0s/it]" for at in range(281, 300)]
    text = "\n".join([" 2/3 [00:01<00:00,  1.68it/s]", *bars, " 40/50 [00:10<00:02,  4.1it/s]"])
    run = read_run([written(tmp_path, "a.log", text)])
    assert steady_of(run).seconds == pytest.approx(5.0)
    assert {step.seconds for step in run.steps} == {5.0}
    assert run.notes == ("of several progress bars, that of 873 steps is read",)


def test_lines_of_xtuner(tmp_path: Path) -> None:
    """As `Trainer._log_step` of xtuner 1.0 writes them; no published log was at hand."""
    line = (
        "[XTuner][RANK 0] Epoch 1 Step {}/100 data_time: 0.0123 lr: 6.000000e-05 time: {:.4f} text_tokens: 16384.0"
        " seqlen_tokens: 16384 approximate_total_consumed_tokens: 163840 total_loss: 1.204  grad_norm: 0.81000000"
        " max_memory: 61.20 GB reserved_memory: 70.50 GB tgs: 5120.0 seqlen_tgs: 5120.0 exp_tgs: 5000.1 eta: 0:05:00 "
    )
    run = read_run([written(tmp_path, "a.log", "\n".join(line.format(at, 3.2) for at in range(1, 12)))])
    assert run.format == "xtuner v1"
    assert steady_of(run).seconds == pytest.approx(3.2)
    assert phases_of(run)["data loader"] == pytest.approx(0.0123)
    assert (run.allocated_bytes[0], run.reserved_bytes[0]) == (round(61.20 * 2**30), round(70.5 * 2**30))


def test_memory_of_axolotl_is_read_and_its_steps_are_not(tmp_path: Path) -> None:
    line = (
        "{{'loss': 2.0, 'memory/max_active (GiB)': 34.89, 'memory/max_allocated (GiB)': 34.89,"
        " 'memory/device_reserved (GiB)': 41.26, 'tokens_per_second_per_gpu': {}}}"
    )
    run = read_run([written(tmp_path, "a.log", "\n".join(line.format(rate) for rate in (812.5, 820.1)))])
    assert (run.format, run.steps) == ("named metrics", ())
    assert run.reserved_bytes[0] == round(41.26 * 2**30)


def test_the_time_since_the_start_tells_what_a_smoothed_rate_does_not(tmp_path: Path) -> None:
    """27 s to compile and then 3.6 s a step: the bar's own rate is behind, the Trainer's mean has the start in it."""
    bars = [
        f" {at:3d}/100 [{(27 + 3.6 * at) // 60:02.0f}:{(27 + 3.6 * at) % 60:02.0f}<09:00, 27.20s/it]"
        for at in range(100)
    ]
    end = "{'train_runtime': 425.4295, 'train_samples_per_second': 5.641, 'train_steps_per_second': 0.235}"
    run = read_run([written(tmp_path, "a.log", "\n".join([*bars, end]))])
    assert run.format == "progress bar"
    assert not run.is_mean
    assert steady_of(run).seconds == pytest.approx(3.6, rel=0.03)
    alone = read_run([written(tmp_path, "b.log", "\n".join([*bars[:3], end]))])
    assert alone.is_mean
    assert steady_of(alone).seconds == pytest.approx(425.4295 / 100, rel=0.01)


def test_steps_of_modded_nanogpt_are_between_its_lines(tmp_path: Path) -> None:
    """Its batch grows: `step_avg` is a mean of all the steps before."""
    times = [34 * at for at in range(1, 101)] + [3400 + 87 * at for at in range(1, 301)]
    lines = [f"step:{at}/400 train_time:{ms}ms step_avg:{ms / at:.2f}ms" for at, ms in enumerate(times, 1)]
    run = read_run([written(tmp_path, "a.log", "\n".join(lines))])
    assert run.steps[-1].seconds == pytest.approx(0.087)
    assert steady_of(run).seconds == pytest.approx(0.087)


def test_a_mean_since_the_start_is_said_to_be_one(tmp_path: Path) -> None:
    line = (
        "{{'loss': 1.5, 'global_step/max_steps': '{}/94', 'elapsed_time': '{}', 'memory(GiB)': 5.64,"
        " 'train_speed(iter/s)': {}}}"
    )
    few = [line.format(1, "2s", 0.345807), line.format(5, "10s", 0.461462), line.format(10, "20s", 0.485796)]
    run = read_run([written(tmp_path, "a.log", "\n".join(few))])
    assert run.is_mean
    assert steady_of(run).seconds == pytest.approx(1 / 0.485796)
    assert run.reserved_bytes == {0: round(5.64 * 2**30)}
    many = [line.format(10 * at, f"{at // 3}m {20 * (at % 3)}s", 0.3) for at in range(1, 12)]
    clocked = read_run([written(tmp_path, "b.log", "\n".join(many))])
    assert not clocked.is_mean
    assert steady_of(clocked).seconds == pytest.approx(2.0)


def test_a_bar_that_is_slower_than_the_parts_of_deepspeed_has_the_whole_step(tmp_path: Path) -> None:
    text = "[Rank 0] time (ms) | fwd: 114577.10 | bwd: 117430.12 | bwd_allreduce: 286.16 | step: 105.42\n"
    run = read_run([written(tmp_path, "a.log", text + "  0%|          | 3/1562 [18:48<164:33:29, 379.99s/it]")])
    assert steady_of(run).seconds == pytest.approx(379.99)
    micro = read_run([written(tmp_path, "b.log", text + "  0%|          | 3/1562 [05:48<64:33:29, 116.0s/it]")])
    assert steady_of(micro).seconds == pytest.approx(232.11264)


def test_a_comment_of_printed_code_says_no_number_of_gpus(tmp_path: Path) -> None:
    run = read_run([written(tmp_path, "a.log", "    # Handle world_size=1: no messages\n" + megatron([1000.0] * 9))])
    assert run.n_gpus is None


def test_times_of_a_loop_that_only_rise_are_no_step_times(tmp_path: Path) -> None:
    lines = [f"step: {at} | loss: 3.1 | time: {12.5 * at}s | lr 1e-4" for at in range(1, 9)]
    with pytest.raises(UserError, match="since the start"):
        steady_of(read_run([written(tmp_path, "a.log", "\n".join(lines))]))


def trained_with_evaluations(step_s: float, every: int, eval_s: float, steps: int = 100, batches: int = 0) -> str:
    """As the Trainer prints its bars: no description, and those of an evaluation between."""
    lines, clock = [], 0.0
    for at in range(1, steps + 1):
        clock += step_s
        minutes, seconds = divmod(int(clock), 60)
        lines.append(f" {at}% {at}/{steps} [{minutes:02d}:{seconds:02d}<09:00,  {step_s:.2f}s/it]")
        if at % every == 0:
            clock += eval_s
            for batch in range(1, batches + 1):
                lines.append(
                    f" {batch}/{batches} [00:{int(batch * eval_s / batches):02d}<00:09,  {batches / eval_s:.2f}it/s]"
                )
    return "\n".join(lines)


def test_the_bar_of_training_is_the_one_whose_clock_runs_on(tmp_path: Path) -> None:
    bars = trained_with_evaluations(3.0, 10, 10.0, batches=40)
    end = "\n{'train_runtime': 400.0, 'train_samples_per_second': 5.6, 'train_steps_per_second': 0.25}"
    for text in (bars, bars + end):
        run = read_run([written(tmp_path, "a.log", text)])
        steady = steady_of(run)
        assert (run.format, run.is_mean) == ("progress bar", False)
        assert steady.seconds == pytest.approx(3.0, rel=0.03)
        assert run.notes[0] == "of several progress bars, that of 100 steps is read"
        assert (steady.set_aside, steady.every) == (9, 10)


def test_a_log_that_ends_in_an_evaluation_is_still_one_of_training(tmp_path: Path) -> None:
    bars = trained_with_evaluations(1.0, 10, 60.0, batches=40).splitlines()
    run = read_run([written(tmp_path, "a.log", "\n".join(bars[:98]))])  # in the second evaluation
    assert steady_of(run).seconds == pytest.approx(1.0)


def test_a_bar_of_epochs_is_not_that_of_steps(tmp_path: Path) -> None:
    """Undescribed bars: of shards that are loaded, of epochs, of the steps of each, of its evaluation."""
    lines = [f" 100% {at}/4 [00:{5 * at:02d}<00:09,  5.00s/it]" for at in range(1, 5)]
    for epoch in range(1, 4):
        lines += [f" {at}/60 [{2 * at // 60:02d}:{2 * at % 60:02d}<09:00,  2.10s/it]" for at in range(1, 61)]
        lines += [f" {at}/90 [00:{at // 2:02d}<00:09,  2.00it/s]" for at in range(1, 91)]
        lines += [f" {epoch}/3 [{3 * epoch:02d}:00<09:00, 180.00s/it]"]
    run = read_run([written(tmp_path, "a.log", "\n".join(lines))])
    assert steady_of(run).seconds == pytest.approx(2.0)
    assert run.notes[0] == "of several progress bars, that of 60 steps is read"


@pytest.mark.parametrize(
    ("step_s", "every", "eval_s"), [(1.0, 20, 60.0), (0.5, 5, 10.0), (3.0, 10, 30.0), (1.7, 25, 40.0)]
)
def test_evaluations_between_steps_of_a_bar_are_set_aside(
    step_s: float, every: int, eval_s: float, tmp_path: Path
) -> None:
    text = trained_with_evaluations(step_s, every, eval_s, steps=500)
    steady = steady_of(read_run([written(tmp_path, "a.log", text)]))
    assert steady.seconds == pytest.approx(step_s, rel=0.05)
    assert steady.set_aside >= 500 // every - 2


def test_a_pause_alone_tells_no_step(tmp_path: Path) -> None:
    lines = [f" {at}/100 [00:{27 + 3 * at if at else 0:02d}<09:00,  9.00s/it]" for at in range(4)]
    run = read_run([written(tmp_path, "a.log", "\n".join(lines))])
    assert steady_of(run).seconds == pytest.approx(9.0)


def test_keras_prints_a_mean_since_the_start_of_an_epoch(tmp_path: Path) -> None:
    fit = [f"{at}/99 ━━━━━━━━━━ 9s {100 + 64000 // at**2}ms/step - loss: 0.9" for at in range(1, 100)]
    text = "\n".join(["Epoch 1/2", *fit, "Epoch 2/2", *fit, fit[0], "10/10 ━━━━━━━━━━ 0s 20ms/step - loss: 0.8"])
    run = read_run([written(tmp_path, "a.log", text + "\n1/1 ━━━━━━━━━━ 0s 45ms/step")])
    assert run.is_mean
    assert steady_of(run).seconds == pytest.approx(0.106)


def test_lines_of_loops_that_judge_or_save_are_named_and_not_read(tmp_path: Path) -> None:
    saved, judged = "step: 3 | checkpoint saved | time: 33.0s", "step 3 | val loss 3.1 | time: 9000 ms"
    run = read_run([written(tmp_path, "a.log", "\n".join(["step: 3 | loss 3.1 | time: 1.5s", saved, judged, judged]))])
    assert [step.seconds for step in run.steps] == [1.5]
    assert run.not_understood == (saved, judged, judged)


def test_a_column_of_an_evaluation_is_no_step(tmp_path: Path) -> None:
    table = "_step,run-eval - validation_metrics/throughput(tps),run-eval - throughput(tps)\n"
    run = read_run([written(tmp_path, "a.csv", table + "".join(f"{at},{9000 + at},{4000 + at}\n" for at in range(9)))])
    assert [step.tokens_per_s_per_gpu for step in run.steps] == [4000.0 + at for at in range(9)]


def test_a_short_log_of_a_bar_is_read_by_its_clock_and_not_by_a_rate_with_its_first_step_in_it() -> None:
    bars = [" 1/18 [00:08<02:29,  8.77s/it]", " 2/18 [00:11<01:33,  5.82s/it]", " 3/18 [00:14<01:13,  4.87s/it]"]
    bars += [" 4/18 [00:17<01:02,  4.47s/it]", " 5/18 [00:20<00:53,  4.14s/it]"]
    assert {step.seconds for step in run_of_text("\n".join(bars), "a").steps} == {3.0}
    assert [step.seconds for step in run_of_text("\n".join(bars[:2]), "a").steps] == [8.77, 5.82]


def test_a_bar_that_is_rounded_too_much_is_named() -> None:
    run = run_of_text("[ 22/290 02:50 < 38:04, 0.12 it/s, Epoch 0.36/5]\n", "a")
    assert not run.steps
    assert "rounded too much" in run.not_understood[0]


@pytest.mark.parametrize(
    ("numbers", "step_s"),
    [
        *(("step {at}", 2.0), ("global_step {at}", 2.0), ("batch {at}", 2.0)),
        *(("step {whole} micro-step {part}", 8.0), ("step {whole} micro step {part}/4", 8.0)),
        *(((f"{word}{mark}step {{at}}"), None) for word in ("micro", "outer", "inner") for mark in ("-", " ", "_")),
        *(("Micro Iteration {at}", None), ("micro-batch {at}", None), ("epoch/step {at}", None)),
    ],
)
def test_the_clock_of_parts_of_steps_is_no_time_of_a_step(numbers: str, step_s: float | None) -> None:
    lines = [
        f"2026-11-30 10:{2 * at // 60:02}:{2 * at % 60:02} {numbers.format(at=at, whole=at // 4, part=at % 4)} loss 3.1"
        for at in range(40)
    ]
    run = run_of_text("\n".join(lines), "a.log").with_seconds(1e6, 128, 8)
    assert len(run.steps) == (0 if step_s is None else 40)
    assert step_s is None or steady_of(run).seconds == step_s


@pytest.mark.parametrize("word", ["micro-step 3", "micro step 3", "step 5 | micro_step 3", "micro-iteration: 3"])
def test_a_time_beside_a_micro_step_is_no_time_of_a_step(word: str) -> None:
    assert read_line(f"{word} | loss 3.1 | time: 0.5 s") is None
