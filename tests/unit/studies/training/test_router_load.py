"""Router loads: files that are read or refused, what each rank gets, and what it does to ops and tensors."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from windtunnel.errors import InputFileError, SpecError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model, transformer
from windtunnel.physics.model.layers.layer import layer_operations
from windtunnel.physics.model.operations import Shard
from windtunnel.studies.training import predict, read_plan
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.workload import imbalance
from windtunnel.studies.training.workload.router_load import RouterLoad, parse_router_load, rank_loads_of

MOE = transformer(
    hidden=256, layers=4, heads=8, vocab=4096, ffn=256, experts=4, topk=2, family="mixtral", name="small-moe"
)
DEEPSEEK = load_model("deepseek-v2-lite").with_changes(layers=4)  # the first layer is dense


def layout_of(model=MOE, gpus=8, **plan):
    fields = {"global_batch": 32, "seq_len": 512, "ep": 4} | plan
    return resolve(model, parse_cluster(f"h100-sxm:{gpus}"), read_plan(fields))


def load_of(*rows: list[float], model=MOE) -> RouterLoad:
    """Tokens of each expert, layer by layer."""
    return RouterLoad("", tuple(np.array(row, float) / sum(row) for row in rows))


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "load.csv"
        path.write_text(text)
        return str(path)

    return write


# ------------------------------------------------------------------------------------------------------------- files


def test_one_popularity_for_all_layers(written) -> None:
    (load,) = parse_router_load(written("expert,tokens\n3,40\n0,10\n1,20\n2,30\n"), MOE)
    assert len(load.shares) == 4
    for shares in load.shares:
        assert shares.tolist() == [0.1, 0.2, 0.3, 0.4]


def test_one_popularity_for_all_is_none_for_dense_layers(written) -> None:
    rows = "\n".join(f"{expert},{expert + 1}" for expert in range(64))
    (load,) = parse_router_load(written(f"expert,tokens\n{rows}"), DEEPSEEK)
    assert [shares is None for shares in load.shares] == [True, False, False, False]


def test_one_popularity_per_layer_and_none_for_dense_layers(written) -> None:
    rows = [f"{layer},{expert},{layer + expert}" for layer in (1, 2, 3) for expert in range(64)]
    (load,) = parse_router_load(written("layer,expert,tokens\n" + "\n".join(rows)), DEEPSEEK)
    assert load.shares[0] is None
    assert load.rank_loads(0, 8).tolist() == [1.0] * 8
    assert load.shares[2][5] / load.shares[2][0] == pytest.approx(7 / 2)
    assert all(shares.sum() == pytest.approx(1.0) for shares in load.shares[1:])


def test_a_trace_gives_a_load_per_step(written) -> None:
    rows = [f"{s},{la},{e},{5 if e == s // 10 else 1}" for s in (20, 10) for la in range(4) for e in range(4)]
    loads = parse_router_load(written("step,layer,expert,tokens\n" + "\n".join(rows)), MOE)
    assert [load.step for load in loads] == [10, 20]
    assert [int(np.argmax(load.shares[0])) for load in loads] == [1, 2]
    assert loads[0].shares[0] == pytest.approx([1 / 8, 5 / 8, 1 / 8, 1 / 8])


@pytest.mark.parametrize(("text", "says"), [("", "is empty"), ("expert,tokens\n1,5,6", "line 2: has 3 fields")])
def test_what_is_no_table_is_refused(written, text: str, says: str) -> None:
    with pytest.raises(InputFileError, match=says):
        parse_router_load(written(text), MOE)


EVEN = "\n".join(f"{expert},1" for expert in range(4))
ROWS = "\n".join(f"{layer},{expert},1" for layer in range(4) for expert in range(4))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("expert,token\n0,1", 1, "first line must be"),
        (f"expert,tokens\n{EVEN}\n4,1", 6, "4 experts"),
        ("expert,tokens\n0,1\n1,1\n3,1", 4, "small-moe has 4 experts.* missing: 2"),
        ("expert,tokens\n0,1\n0,1", 3, "twice, first in line 2"),
        ("expert,tokens\n0,-1", 2, "from 0"),
        ("expert,tokens\n0,nan", 2, "from 0"),
        ("expert,tokens\n0,inf", 2, "from 0"),
        ("expert,tokens\n0,1_0", 2, "from 0"),
        ("expert,tokens\n0,many", 2, "from 0"),
        ("expert,tokens\n0,1e300", 2, "from 0"),
        ("expert,tokens\n-1,5", 2, "whole number"),
        ("expert,tokens\n1.0,5", 2, "whole number"),
        ("expert,tokens\n٣,5", 2, "whole number"),
        ("expert,tokens\n0,0\n1,0\n2,0\n3,0", 5, "none of them gets a token"),
        (f"layer,expert,tokens\n{ROWS}\n4,0,1", 18, "layers of small-moe with experts are 0 to 3"),
        ("layer,expert,tokens\n" + ROWS[: ROWS.index("3,0")], 13, "layer 3 is missing"),
        ("step,layer,expert,tokens\n7,0,0,1", 2, "layer 1 of step 7 is missing"),
    ],
)
def test_what_is_unclear_is_refused_with_file_and_line(written, text, line, says) -> None:
    path = written(text)
    with pytest.raises(SpecError, match=says) as refused:
        parse_router_load(path, MOE)
    assert refused.value.where == f"{path}:{line}"
    assert "\n" not in str(refused.value)


def test_a_layer_without_experts_cannot_be_loaded(written) -> None:
    with pytest.raises(SpecError, match="with experts are 1 to 3"):
        parse_router_load(written("layer,expert,tokens\n0,0,1"), DEEPSEEK)


@pytest.mark.parametrize("text", ["expert,tokens\n", "expert,tokens\n\n  \n", "\x00\x01"])
def test_files_that_hold_nothing_are_refused(written, text) -> None:
    with pytest.raises((InputFileError, SpecError)):
        parse_router_load(written(text), MOE)


def test_a_file_that_is_missing_or_binary_is_refused(tmp_path) -> None:
    (tmp_path / "load.csv").write_bytes(b"\xff\xfe\xfa")
    for name in ("nowhere.csv", "load.csv", "."):
        with pytest.raises(InputFileError):
            parse_router_load(str(tmp_path / name), MOE)


@pytest.mark.parametrize("text", ["zipf:", "zipf:-1", "zipf:nan", "zipf:x", "zipf:1e9"])
def test_an_exponent_is_a_number_from_zero(text) -> None:
    with pytest.raises(SpecError, match="exponent"):
        parse_router_load(text, MOE)


def test_a_dense_model_has_no_router() -> None:
    with pytest.raises(SpecError, match="no experts"):
        parse_router_load("zipf:1", load_model("llama-3-8b"))


# ------------------------------------------------------------------------------------------------------------- loads


def test_a_power_law_by_rank_of_popularity() -> None:
    (load,) = parse_router_load("zipf:1.5", DEEPSEEK, seed=3)
    orders = set()
    for shares in load.shares[1:]:
        ranked = np.sort(shares)[::-1]
        assert ranked / ranked[0] == pytest.approx(np.arange(1, 65) ** -1.5)
        orders.add(tuple(np.argsort(shares)))
    assert len(orders) == 3  # each layer has its own favourites
    (again,), (other,) = parse_router_load("zipf:1.5", DEEPSEEK, seed=3), parse_router_load("zipf:1.5", DEEPSEEK)
    assert all((a == b).all() for a, b in zip(load.shares[1:], again.shares[1:], strict=True))
    assert any((a != b).any() for a, b in zip(load.shares[1:], other.shares[1:], strict=True))


def test_the_hottest_rank_sets_the_time_and_the_fullest_the_memory() -> None:
    # Rank 1 is hottest in no layer, and holds most over the two layers of the first stage.
    load = load_of([4, 3, 0, 1], [0, 3, 4, 1], [1, 1, 1, 5], [1, 1, 1, 1])
    loads = rank_loads_of(load, layout_of(pp=2))
    assert loads.hottest == (2.0, 2.0, 2.5, 1.0)
    assert loads.fullest == (1.5, 1.5, 2.5, 1.0)
    assert loads.mean == pytest.approx(1.875)
    assert loads.worst == (2.5, 2, 3)


def test_experts_are_placed_in_blocks() -> None:
    load = load_of(*[[4, 2, 1, 1]] * 4)
    assert rank_loads_of(load, layout_of(ep=2)).hottest == (1.5,) * 4
    assert rank_loads_of(load, layout_of(ep=1)).hottest == (1.0,) * 4


def test_a_device_holds_the_layers_that_its_schedule_gives_it() -> None:
    load = load_of([5, 1, 1, 1], [1, 5, 1, 1], [6, 1, 1, 1], [1, 1, 6, 1])
    rank_loads = rank_loads_of(load, layout_of(pp=2, virtual_stages=2))  # layers 0 and 2, 1 and 3
    assert rank_loads.fullest == pytest.approx((2.5, 0.5, 24 / 9, 24 / 9), abs=1e-8)
    v_shaped = rank_loads_of(load, layout_of(pp=2, schedule="zb-v"))  # layers 0 and 3, 1 and 2
    assert v_shaped.fullest == pytest.approx((0.5, 0.5, 24 / 9, 24 / 9), abs=1e-8)


def test_of_recomputed_layers_only_the_one_at_work_is_there() -> None:
    load = load_of([4, 3, 0, 1], [0, 3, 4, 1], [4, 3, 0, 1], [0, 3, 4, 1])
    assert rank_loads_of(load, layout_of(pp=2, recompute="full")).fullest == (2.0,) * 4
    assert rank_loads_of(load, layout_of(pp=2, recompute="full:1")).fullest == (2.0, 2.0, 2.0, 2.0)
    assert rank_loads_of(load, layout_of(pp=2, offload_activations=2)).fullest == (2.0, 2.0, 1.5, 1.5)


def test_a_rank_without_tokens_still_has_tensors() -> None:
    load = load_of([9, 0, 0, 0], [0, 1, 0, 0], [9, 0, 0, 0], [1, 0, 0, 0])
    assert min(rank_loads_of(load, layout_of(pp=1)).fullest) > 0.0


# --------------------------------------------------------------------------------------------------------------- ops


@pytest.mark.parametrize("shard", [Shard(2, 1024, ep=4), Shard(2, 1024, tp=2, etp=2, ep=2, sequence_parallel=True)])
def test_what_a_load_changes_in_a_layer(shard) -> None:
    layer = MOE.layers[0]
    even, hot = (
        {op.name: op for op in layer_operations(layer, MOE, replace(shard, precision="fp8"), load)}
        for load in (1.0, 2.5)
    )
    given = {"experts_up", "experts_down", "expert_activation", "sort_by_expert"}
    moved = {"dispatch", "combine", "expert_gather", "expert_scatter"}
    for name, op in even.items():
        loaded = hot[name]
        assert loaded.flops == op.flops, name  # the mean over ranks
        if name in given:
            assert loaded.forward_bytes == pytest.approx(2.5 * op.forward_bytes)
            assert loaded.saved_bytes == pytest.approx(2.5 * op.saved_bytes)
            assert loaded.output_bytes == pytest.approx(2.5 * op.output_bytes)
            assert loaded.weight_elements == op.weight_elements
            if op.shape:
                assert loaded.shape == pytest.approx((op.shape[0], 2.5 * op.shape[1], *op.shape[2:]))
        elif name in moved:
            assert loaded.before == op.before
            assert (op.skew, loaded.skew) == (1.0, 2.5)
            share = 1.0 if name == "combine" else 2.5  # one's own tokens come back
            assert loaded.output_bytes == share * op.output_bytes
        elif name == "permute":  # pads the rows that arrive for low-precision GEMMs
            padding = op.forward_bytes - 2 * op.output_bytes
            assert loaded.forward_bytes == pytest.approx(op.forward_bytes + 1.5 * padding)
            assert padding > 0.0
        else:
            assert loaded == op


def test_memory_is_that_of_the_worst_step_of_a_trace(tmp_path):
    """The median step is calm; the one with a hot expert runs out of memory and ends the job."""
    rows = [
        (step, layer, expert, 1000 if step == 3 and expert == 0 else 10)
        for step in range(5)
        for layer in range(32)
        for expert in range(8)
    ]
    text = "\n".join(["step,layer,expert,tokens", *(",".join(map(str, row)) for row in rows)])
    (tmp_path / "trace.csv").write_text(text + "\n")
    plan = {"tp": 2, "pp": 2, "ep": 8, "global_batch": 256, "seq_len": 4096}
    calm = predict("mixtral-8x7b", "h100-sxm:64", plan)
    found = predict("mixtral-8x7b", "h100-sxm:64", plan, router_load=tmp_path / "trace.csv")
    assert found.step_time_ns == calm.step_time_ns
    assert (calm.status, found.status) == ("ok", "infeasible")
    assert found.infeasible is not None
    assert found.infeasible.needed_bytes > 2 * max(stage.device_bytes for stage in calm.memory)


def test_steps_of_a_router_trace_spread_and_a_single_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imbalance, "pieces_of", lambda layout, load: load)
    times = {"quick": 10, "slow": 30}

    def of(*loads: str) -> imbalance.Routed:
        return imbalance.routed(loads, None, lambda load: SimpleNamespace(makespan_ns=times[load]), 7)

    two, one = of("slow", "quick"), of("slow")
    assert (two.load, two.simulated.makespan_ns) == ("quick", 10)  # of two the lower is the median
    assert (two.samples.p5_ns, two.samples.p50_ns, two.samples.p95_ns) == (10, 10, 30)
    assert (one.load, one.samples) == ("slow", None)


def test_that_experts_are_even_is_all_that_a_router_load_takes_back() -> None:
    plan = read_plan({"global_batch": 16, "seq_len": 512, "ep": 4, "task": "forward"})
    even, uneven = (
        predict(MOE, parse_cluster("h100-sxm:8"), plan, router_load=load).warnings for load in (None, "zipf:0.5")
    )
    assert len(even) == len(uneven) == 2
    assert [one for one in even if "evenly" not in one] == [one for one in uneven if "busiest" not in one]
