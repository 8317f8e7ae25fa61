"""The one-device truth: its model learns and has the parameters it is said to have, its memory is counted right."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "validation" / "one_device"
sys.path.insert(0, str(FOLDER))

from cases import Case, chosen_cases, read_cases  # noqa: E402
from compare import figures, wrong_pairs  # noqa: E402
from in_turns import Calibrating  # noqa: E402
from machine import counted  # noqa: E402

from windtunnel.physics.model import load_model  # noqa: E402

CASES = read_cases()
SMALL = {
    "llama": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48},
    "mixtral": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
                "num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128,
                 "hidden_act": "gelu"},
}  # fmt: skip


def small(kind: str, **changes: Any) -> Case:
    fields = {"model_type": kind, "num_hidden_layers": 2, "vocab_size": 64, **SMALL[kind]}
    return replace(Case(name="small", model=fields, precision="fp32", seq=16, batch=2), **changes)


def test_there_is_enough_variety() -> None:
    eager = [case for case in CASES.values() if not case.compile]
    assert len(eager) >= 28
    assert {case.precision for case in eager} == {"fp32", "bf16"}
    assert {case.model["model_type"] for case in eager} == {"llama", "mixtral", "nemotron"}
    assert {case.accumulate for case in eager} == {1, 4}
    assert {128, 2048} <= {case.seq for case in eager}
    assert sum(case.recompute for case in eager) >= 4
    assert len({(str(case.config), str(case.plan)) for case in eager}) == len(eager)


def test_a_name_chooses_one_run_and_a_text_chooses_several() -> None:
    assert [case.name for case in chosen_cases(["34m-fp32"])] == ["34m-fp32"]
    assert len(chosen_cases(["moe-"])) == sum("moe-" in name for name in CASES)


def test_a_step_counts_when_the_machine_was_as_usual_before_and_after_it() -> None:
    references = [1.0, 1.05, 1.5, 1.0, 1.09, 0.85]
    assert counted(references, 1.0) == [True, False, False, True, False]
    assert counted(references, float("nan")) == counted(references, 1.025)  # their own median
    assert counted(references, 1.5) == [False] * 5  # as it is for a moment only


@pytest.mark.parametrize("name", CASES)
def test_windtunnel_counts_the_parameters_of_the_model_that_is_trained(name: str) -> None:
    torch = pytest.importorskip("torch")
    from model import Transformer, parameters_in

    with torch.device("meta"):
        built = Transformer(CASES[name].config, CASES[name].seq)
    assert parameters_in(built) == load_model(CASES[name].config).parameters


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_one_that_windtunnel_reads(name: str) -> None:
    from windtunnel.studies.training import read_plan

    plan = read_plan(CASES[name].plan)
    assert plan.global_batch == CASES[name].batch * CASES[name].accumulate


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_learns_a_fixed_batch_and_recomputation_changes_nothing(kind: str, precision: str) -> None:
    pytest.importorskip("torch")
    plain = losses(small(kind, precision=precision))
    assert plain[-1] < plain[0] - 0.1
    assert losses(small(kind, precision=precision, recompute=True), steps=3) == pytest.approx(plain[:3], rel=1e-6)


def losses(case: Case, steps: int = 8) -> list[float]:
    import torch
    from model import build

    torch.manual_seed(5)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[case.precision]
    model = build(case.config, case.seq, dtype, recompute=case.recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens, targets = torch.randint(0, case.model["vocab_size"], (2, case.batch, case.seq))
    found = []
    for _ in range(steps):
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.append(loss.item())
    return found


def test_attention_is_causal_and_knows_positions() -> None:
    torch = pytest.importorskip("torch")
    from model import Attention, rotary_tables

    torch.manual_seed(3)
    attention = Attention(32, heads=4, kv_heads=2, head_dim=8)
    x = torch.randn(1, 6, 32)
    cos, sin = rotary_tables(6, 8, 10000.0)
    whole = attention(x, cos, sin)
    changed = x.clone()
    changed[:, 4:] += 1.0
    assert torch.allclose(attention(changed, cos, sin)[:, :4], whole[:, :4], atol=1e-6)
    swapped = x[:, [1, 0, 2, 3, 4, 5]]
    assert not torch.allclose(attention(swapped, cos, sin)[:, 5], whole[:, 5], atol=1e-5)


def test_each_token_gets_the_experts_with_its_highest_scores() -> None:
    torch = pytest.importorskip("torch")
    from model import Experts

    torch.manual_seed(3)
    mixture = Experts(16, 24, experts=4, chosen=2)
    x = torch.randn(1, 5, 16)
    scores = torch.softmax(mixture.router(x[0]), dim=-1)
    for row, token in enumerate(x[0]):
        best = torch.topk(scores[row], 2)
        share = best.values / best.values.sum()
        by_hand = sum(w * mixture.experts[int(i)](token) for w, i in zip(share, best.indices, strict=True))
        assert torch.allclose(mixture(x)[0, row], by_hand, atol=1e-6)


def test_both_memory_methods_give_what_can_be_counted_by_hand() -> None:
    torch = pytest.importorskip("torch")
    from memory import AllocatorMemory, StorageLedger
    from torch.profiler import record_function

    block = 1 << 20

    def work() -> None:
        x = torch.zeros(block // 4)  # 1
        y = x + 1  # 2
        z = torch.cat((x, y))  # 4
        del x, y  # 2
        view = z[: block // 4]  # still 2
        w = view * 2  # 3
        del z, view, w

    with AllocatorMemory() as memory:
        kept = torch.zeros(block // 4)
        with record_function("work"):
            work()
    assert memory.during("work") == {"start": block, "peak": 5 * block, "end": block}
    ledger = StorageLedger()
    ledger.begin([kept])
    with ledger:
        work()
    assert (ledger.peak, ledger.now) == (5 * block, block)
    assert ledger.counts()["aten.cat.default"] == 1


def test_the_allocator_sees_the_workspace_of_a_kernel_and_the_ledger_does_not() -> None:
    torch = pytest.importorskip("torch")
    from memory import AllocatorMemory, StorageLedger
    from torch.profiler import record_function

    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v = torch.randn(3, 1, 4, 256, 64)
    with AllocatorMemory() as memory, record_function("work"):
        attend(q, k, v, is_causal=True)
    ledger = StorageLedger()
    ledger.begin([q, k, v])
    with ledger:
        attend(q, k, v, is_causal=True)
    outputs = q.nbytes + 4 * 256 * 4  # and the log-sum-exp of each row
    assert ledger.peak - 3 * q.nbytes == outputs
    assert memory.during("work")["peak"] > outputs


def test_a_measured_run_says_what_it_must() -> None:
    pytest.importorskip("torch")
    from train import run_one

    found = run_one(small("llama", accumulate=4), steps=5, threads=1, device="cpu")
    assert found["parameters"] == load_model(small("llama").config).parameters
    assert found["loss_last"] < found["loss_first"]
    assert 0 < found["step_p10_s"] <= found["step_s"] <= found["step_p90_s"]
    assert set(found["phases_s"]) == {"forward", "backward", "optimizer"}
    assert sum(found["phases_s"].values()) == pytest.approx(found["step_s"], rel=0.5)
    assert found["ops_counts"]["aten.mm.default"] == 4 * 3 * (2 * 7 + 1)
    assert found["ledger_peak_bytes"] == pytest.approx(found["peak_allocated_bytes"], rel=0.02)
    moments = found["memory_moments"]
    assert moments["between_steps"] > 3 * 4 * found["parameters"]
    assert max(moments.values()) == found["peak_allocated_bytes"]


def test_parts_of_a_step_sum_to_the_step() -> None:
    from breakdown import parts_of

    class Event:
        def __init__(self, begun: int, ended: int, name: str, sequence: int = -1) -> None:
            self.span, self.called, self.sequence = (begun, ended), name, sequence

        def start_ns(self) -> int:
            return self.span[0]

        def end_ns(self) -> int:
            return self.span[1]

        def name(self) -> str:
            return self.called

        def sequence_nr(self) -> int:
            return self.sequence

    events = [
        Event(0, 100, "step"),
        Event(0, 40, "forward"),
        Event(10, 30, "part:norm"),
        Event(12, 28, "aten::mul", 7),
        Event(40, 80, "backward"),
        Event(45, 75, "autograd::engine::evaluate_function: MulBackward0", 7),
        Event(50, 60, "aten::mul"),
        Event(80, 95, "optimizer"),
    ]
    assert {key: round(seconds * 1e9) for key, seconds in parts_of(events).items()} == {
        ("between ops", "forward"): 20,
        ("norm", "forward"): 20,
        ("between ops", "backward"): 10,
        ("norm", "backward"): 30,
        ("optimizer", "optimizer"): 15,
        ("between ops", "between"): 5,
    }


def test_pairs_count_only_where_times_are_apart() -> None:
    lines = [
        {"name": "a", "measured_s": 1.0, "predicted_s": 1.2},
        {"name": "b", "measured_s": 1.1, "predicted_s": 1.0},
        {"name": "c", "measured_s": 1.3, "predicted_s": 1.1},
    ]
    assert wrong_pairs(lines) == ([("a", "c")], 2)
    assert figures([0.1, -0.3]).split() == ["mean", "20.0%", "worst", "30.0%", "bias", "-10.0%"]


@pytest.mark.long
def test_a_calibration_in_turns_goes_on_and_is_written_at_the_end(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "device.yaml"
    Calibrating(out, "cpu", 1, turns=100, turn_s=4.0).turn()  # 16 s of a longer budget
    assert not out.exists()
    assert (tmp_path / "device.yaml.journal").exists()
    Calibrating(out, "cpu", 1, turns=1, turn_s=1.0).finish()
    assert out.exists()


def test_a_calibration_in_turns_that_fails_says_why(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(SystemExit, match="abacus"):
        Calibrating(tmp_path / "device.yaml", "abacus", 1, turns=1, turn_s=15.0).turn()


def test_a_calibration_in_turns_that_is_done_is_not_begun_again(tmp_path: Path) -> None:
    calibrating = Calibrating(tmp_path / "device.yaml", "cpu", 1, turns=2, turn_s=15.0)
    begun = tmp_path / "begun"
    calibrating.command = [sys.executable, "-c", f"open({str(begun)!r}, 'a').write('once')"]
    calibrating.turn()
    calibrating.turn()
    calibrating.finish()
    assert begun.read_text() == "once"
