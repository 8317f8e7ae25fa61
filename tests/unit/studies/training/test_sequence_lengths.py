"""Sequences of uneven documents: packing, draws, and the passes built for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from calibrated_cpu import calibrated_cpu
from hypothesis import given
from hypothesis import strategies as st
from packed_durations import op_durations

from windtunnel.errors import InputFileError, SpecError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model, transformer
from windtunnel.studies.training import read_plan
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.pass_lowering import build_segment
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind, schedule
from windtunnel.studies.training.workload.imbalance import mean_document, packed
from windtunnel.studies.training.workload.sequence_lengths import (
    Lengths,
    attention_shares,
    attention_variants,
    packed_shares,
    read_lengths,
    waited_shares,
)

MODEL = transformer(hidden=1024, layers=4, heads=8, vocab=4096, ffn=2048, name="small")


def layout_of(model=MODEL, gpus=8, **plan):
    return resolve(model, parse_cluster(f"h100-sxm:{gpus}"), read_plan({"global_batch": 32, "seq_len": 8192} | plan))


def lowered(layout):
    pieces, pricer = pieces_of(layout), Pricer(layout)
    chosen = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    return lower(layout, pieces, chosen, pricer), pieces, pricer


def lengths_of(**counts: float) -> Lengths:
    tokens = sorted(int(name[1:]) for name in counts)
    weight = np.array([counts[f"n{n}"] for n in tokens], float)
    return Lengths("", np.array(tokens), weight / weight.sum())


# ------------------------------------------------------------------------------------------------------------- files


def test_a_histogram_is_read(tmp_path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n4096,1\n128,3\n")
    lengths = read_lengths(path)
    assert lengths.tokens.tolist() == [128, 4096]
    assert lengths.weight.tolist() == [0.75, 0.25]
    assert lengths.mean_tokens == 1120


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("len,count\n1,1", 1),
        ("length,count\n0,1", 2),
        ("length,count\n5,1\n5,2", 3),
        ("length,count\n5,-1", 2),
        ("length,count\n5.5,1", 2),
        ("length,count\n5,0\n6,0", 3),
    ],
)
def test_what_is_unclear_is_refused_with_file_and_line(tmp_path, text, line) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(SpecError) as refused:
        read_lengths(path)
    assert refused.value.where == f"{path}:{line}"


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(InputFileError):
        read_lengths(tmp_path / "nowhere.csv")


# ----------------------------------------------------------------------------------------------------------- packing


def by_hand(documents: list[int], seq_len: int, sequences: int) -> list[float]:
    """Token by token."""
    tokens = [number for number, length in enumerate(documents) for _ in range(length)]
    shares = []
    for start in range(0, sequences * seq_len, seq_len):
        inside = tokens[start : start + seq_len]
        shares.append(sum(inside.count(number) ** 2 for number in set(inside)) / seq_len**2)
    return shares


@given(st.lists(st.integers(1, 25), min_size=30, max_size=60), st.integers(1, 10), st.integers(1, 3))
def test_packing_is_what_it_is_token_by_token(documents, seq_len, sequences) -> None:
    found = packed_shares(np.array(documents), seq_len, sequences)
    assert found == pytest.approx(by_hand(documents, seq_len, sequences))


@given(st.lists(st.integers(1, 300), min_size=40, max_size=60), st.integers(1, 40), st.data())
def test_cutting_documents_in_two_never_adds_attention(documents, seq_len, data) -> None:
    cut = [data.draw(st.integers(0, length)) for length in documents]
    halves = [part for length, at in zip(documents, cut, strict=True) for part in (at, length - at) if part]
    whole, finer = packed_shares(np.array(documents), seq_len, 1), packed_shares(np.array(halves), seq_len, 1)
    assert finer[0] <= whole[0] * (1 + 1e-12)
    assert 1 / seq_len <= finer[0] * (1 + 1e-12)
    assert whole[0] <= 1 + 1e-12


def test_documents_as_long_as_sequences_give_whole_ones() -> None:
    for length in (8192, 3 * 8192):
        assert (attention_shares(lengths_of(**{f"n{length}": 1}), layout_of(), 0) == 1.0).all()
    assert (attention_shares(lengths_of(n2048=1), layout_of(), 0) == 0.25).all()


def test_draws_are_seeded_and_each_replica_reads_its_own() -> None:
    lengths = lengths_of(n100=5, n1000=3, n8000=1)
    four, eight = layout_of(gpus=4, global_batch=16), layout_of(gpus=8, global_batch=32)
    shares = attention_shares(lengths, eight, 1)
    assert shares.shape == (8, 4)
    assert len(np.unique(shares, axis=0)) == 8
    assert (attention_shares(lengths, eight, 1) == shares).all()
    assert (attention_shares(lengths, four, 1) == shares[:4]).all()
    assert (attention_shares(lengths, eight, 2) != shares).all()
    assert (attention_shares(lengths, eight, 1, draw=1) != shares).all()


def test_the_mean_share_is_that_of_the_histogram() -> None:
    # Far from a sequence's ends a token lies in a document of mean len^2 / mean len tokens.
    lengths = lengths_of(n10=3, n50=2, n200=1)
    expected = (3 * 100 + 2 * 2500 + 40000) / (30 + 100 + 200) / 8192
    assert attention_shares(lengths, layout_of(), 0).mean() == pytest.approx(expected, rel=0.03)


def test_larger_micro_batches_are_more_alike() -> None:
    lengths = lengths_of(n100=5, n1000=3, n8000=1)
    spread = [attention_shares(lengths, layout_of(micro_batch=size, global_batch=256), 0).std() for size in (1, 4, 16)]
    assert spread[0] > 1.5 * spread[1] > 2.25 * spread[2]


def test_an_endless_number_of_documents_is_refused() -> None:
    with pytest.raises(SpecError, match="too many"):
        attention_shares(lengths_of(n1=1), layout_of(global_batch=2**18), 0)


def test_replicas_that_are_tied_wait_for_the_longest() -> None:
    shares = np.array([[0.1, 0.5], [0.2, 0.4], [0.3, 0.3], [0.9, 0.1]])
    assert waited_shares(shares, 2).tolist() == [[0.2, 0.5], [0.2, 0.5], [0.9, 0.3], [0.9, 0.3]]
    assert (waited_shares(shares, 1) == shares).all()


# ------------------------------------------------------------------------------------------------------------ passes


@pytest.mark.parametrize("plan", [{}, {"pp": 2, "cp": 2}, {"cp": 2, "cp_kind": "ulysses", "recompute": "full"}])
def test_passes_at_shares_that_were_built_are_exact(plan) -> None:
    layout = layout_of(**plan)
    step, pieces, pricer = lowered(layout)
    variants = attention_variants(step, pieces, pricer)
    assert variants(np.ones(1))[:, 0].tolist() == [segment.duration_ns for segment in step.segments]
    quarter = build_segment(pricer.with_documents(2048), pieces[0].blocks, Kind.FORWARD).duration_ns
    assert variants(np.array([[0.25]]))[step.segment_of[0, 0], 0, 0] == quarter
    found = variants(np.linspace(0, 1, 101))
    assert (np.diff(found, axis=1) >= 0).all()
    assert (found[:, 0] < found[:, -1]).all()


def test_between_them_they_are_close() -> None:
    step, pieces, pricer = lowered(layout_of(seq_len=32768))
    variants = attention_variants(step, pieces, pricer)
    for share in (0.04, 0.3, 0.7):
        exact = build_segment(pricer.with_documents(round(share * 32768)), pieces[0].blocks, Kind.FORWARD).duration_ns
        assert variants(np.array(share))[step.segment_of[0, 0]] == pytest.approx(exact, rel=0.05)


def test_windows_and_chunks_feel_documents_only_when_shorter() -> None:
    for name, reach in (("llama-4-scout", 8192), ("gpt-oss-20b", 128)):
        model = load_model(name).with_changes(layers=4)
        layout = layout_of(model, seq_len=16384, ep=1)
        pricer, block = Pricer(layout), pieces_of(layout)[0].blocks
        ops = [op for one in block for op in one.operations if op.kind == "attention"]
        local = [op for op in ops if op.shape[7] or op.shape[1] < 16384]
        assert local
        for op in local:
            alone = pricer.forward(op).seconds
            assert pricer.with_documents(max(reach, 8192)).forward(op).seconds == pytest.approx(alone, rel=0.05)
            assert pricer.with_documents(reach // 2).forward(op).seconds < alone


def test_on_a_measured_device_a_window_takes_its_share_of_what_all_keys_take() -> None:
    """Of 256 rows each sees itself and what is before it: up to 64 keys, in the mean 64 - 64 x 63 / 512 of 257 / 2."""
    plan = read_plan({"global_batch": 1, "seq_len": 256, "framework": "pytorch"})
    layout = resolve(MODEL.with_changes(layers=2), parse_cluster(calibrated_cpu()), plan)
    pricer = Pricer(layout)
    op = next(op for one in pieces_of(layout)[0].blocks for op in one.operations if op.kind == "attention")
    near = replace(op, shape=(*op.shape[:7], 64, *op.shape[8:]))
    share = (64 - 64 * 63 / 512) / (257 / 2)
    assert pricer.forward(near).seconds == pytest.approx(share * pricer.forward(op).seconds)


def test_unfused_attention_computes_what_the_mask_hides() -> None:
    layout = layout_of(attention_impl="unfused", seq_len=1024)
    variants = attention_variants(*lowered(layout))
    assert (variants.durations_ns == variants.durations_ns[:, -1:]).all()


@pytest.mark.parametrize("plan", [{}, {"pp": 2, "zero_stage": 1, "overlap_p2p": False}, {"pp": 2, "schedule": "zb-v"}])
def test_ops_take_what_their_passes_take(plan) -> None:
    model = transformer(hidden=4096, layers=4, heads=8, vocab=4096, ffn=16384, name="wide")  # several buckets per pass
    step, pieces, pricer = lowered(layout_of(model, **plan))
    variants = attention_variants(step, pieces, pricer)
    micro_batches = step.schedule.micro_batches
    assert (op_durations(step, variants(np.ones(micro_batches))) == step.duration_ns).all()
    shares = np.linspace(0.1, 1.0, micro_batches)
    taken = variants(shares)
    durations = op_durations(step, taken)
    passes = step.graph.category < len(step.segments)
    assert (durations[~passes] == step.duration_ns[~passes]).all()
    schedule_ = step.schedule
    segment = step.segment_of[schedule_.stage_of, schedule_.kind]
    parts = step.action_last - step.action_first + 1
    assert parts.max() > 1
    for action, first in enumerate(step.action_first):
        whole = durations[first : first + parts[action]].sum()
        assert whole == taken[segment[action], schedule_.micro_batch[action]]


@pytest.mark.parametrize("plan", [{}, {"pp": 2, "zero_stage": 1}, {"pp": 2, "schedule": "zb-v"}])
def test_what_samples_draw_is_what_single_replicas_take(plan) -> None:
    model = transformer(hidden=4096, layers=4, heads=8, vocab=4096, ffn=16384, name="wide")
    layout = layout_of(model, **plan)
    lengths = Lengths("", np.array([100, 700, 2000]), np.array([0.5, 0.3, 0.2]))
    even = mean_document(lengths, layout, seed=3)
    step, pieces, pricer = lowered(layout)
    pricer = pricer.with_documents(even)
    step = lower(layout, pieces, step.schedule, pricer)
    lanes, ops = 3, np.arange(step.graph.n_ops)
    drawn = packed(lengths, layout, step, pieces, pricer, seed=3).start(5, lanes)(0, layout.dp, ops)
    variants = attention_variants(step, pieces, pricer)
    for lane in range(lanes):
        shares = attention_shares(lengths, layout, 3, 5 + lane)
        for replica in range(layout.dp):
            exact = op_durations(step, variants(shares[replica]))
            assert step.duration_ns * drawn[replica, :, lane] == pytest.approx(exact, rel=1e-5, abs=2)
    assert (drawn != 1.0).any()
