"""Prices of a step from somebody's own kernel tables, by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windtunnel.errors import InputFileError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import transformer
from windtunnel.studies.serving.step_time import kernel_tables
from windtunnel.studies.serving.step_time.kernel_tables import TablePrices, table_prices

CLUSTER = parse_cluster("h100-sxm:2")
MODEL = transformer(hidden=1024, layers=3, heads=8, vocab=1000, ffn=4096, name="org/Small-3B")
US = 1e-6
ATTENTION = """prefill_chunk,kv_prefill,n_decode,kv_decode,time_us
0,0,1,100,10
0,0,1,200,30
0,0,4,100,20
0,0,4,200,60
64,0,0,0,40
128,0,0,0,80
64,512,0,0,50
128,512,0,0,100
64,0,1,100,25
128,0,4,200,70
64,512,1,200,72
"""
LAYERS = """table,layer,size,time_us
dense,qkv,1,2
dense,qkv,9,10
dense,layernorm,1,1
dense,layernorm,9,1
dense,embedding,1,5
dense,embedding,9,5
dense,final_layernorm,1,3
dense,final_layernorm,9,3
per_sequence,sampler,1,7
per_sequence,sampler,3,9
"""


def prices(
    folder: Path, attention: str = ATTENTION, layers: str = LAYERS, skew: str = "", model: Any = MODEL, tp: int = 1
) -> TablePrices:
    (folder / "attention.csv").write_text(attention)
    (folder / "layers.csv").write_text(layers)
    if skew:
        (folder / "skew.csv").write_text(skew)
    return table_prices(folder, model, SimpleNamespace(tp=tp), CLUSTER)  # type: ignore[arg-type]


def test_a_step_is_its_layers_twice_what_runs_twice_and_once_what_stands_outside(tmp_path: Path) -> None:
    found = prices(tmp_path)
    assert found.dense(5.0) == pytest.approx((3 * (6 + 2 * 1) + 5 + 3) * US)
    assert found.head(2.0) == pytest.approx(8 * US)
    assert (found.group(5.0), found.exchange(5.0), found.handover(5.0), found.stages) == (0.0, 0.0, 0.0, 1)
    assert found.timed_on == ""
    two = prices(tmp_path, tp=2)
    bytes_total = 2.0 * 5 * 1024
    assert two.dense(5.0) - found.dense(5.0) == pytest.approx(3 * 2 * found.all_reduce(bytes_total, 2))
    assert two.dense(5.0) > found.dense(5.0)


def test_attention_is_read_from_decode_alone_and_prompts_alone(tmp_path: Path) -> None:
    """Mixed rows took 25 of 50, 70 of 140 and 72 of 80: half of the sum of their parts, in the median."""
    found = prices(tmp_path)
    decode = found.decode_surface()
    assert decode(1.0, 150.0) == pytest.approx(3 * 20 * US)
    assert decode(2.5, 100.0) == pytest.approx(3 * 15 * US)
    assert found.decode_nodes() == ((1.0, 4.0), (100.0, 200.0))
    assert found.together == pytest.approx(0.5)
    assert found.prefill(96, 0) == found.prefill(96, 1) == pytest.approx(3 * 0.5 * 60 * US)
    assert found.prefill(64, 512) == pytest.approx(3 * 0.5 * 50 * US)


def test_kernels_that_run_together_are_no_slower_than_one_after_the_other(tmp_path: Path) -> None:
    slow = ATTENTION.replace("100,25", "100,99").replace("200,70", "200,999").replace("200,72", "200,999")
    assert prices(tmp_path, slow).together == 1.0
    without = "".join(line for line in ATTENTION.splitlines(keepends=True)[:9])
    assert prices(tmp_path, without).together == 1.0


def test_contexts_that_differ_cost_more_than_their_mean(tmp_path: Path) -> None:
    header = "n,pc,t_mean_us,t_skew_us\n"
    found = prices(tmp_path, skew=header + "4,0,10,12\n4,0,10,14\n4,0,10,19\n4,64,10,90\n")
    assert found.decode_surface()(1.0, 100.0) == pytest.approx(3 * 1.4 * 10 * US)
    less = prices(tmp_path, skew=header + "4,0,10,8\n")
    assert less.decode_surface()(1.0, 100.0) == pytest.approx(3 * 10 * US)


def test_rows_are_of_this_model_this_gpu_and_these_ranks(tmp_path: Path) -> None:
    """Names differ in case, organisation and punctuation; one's own machine may be called anything, if it is alone."""

    def named(text: str, *columns: str) -> str:
        head, *rows = text.splitlines()
        return "\n".join([head + "".join(f",{c.partition('=')[0]}" for c in columns),
                          *(row + "".join(f",{c.partition('=')[2]}" for c in columns) for row in rows)])  # fmt: skip

    mine, other = named(LAYERS, "model=small_3b", "tp=1", "gpu=my box"), named(LAYERS, "model=large", "tp=1", "gpu=x")
    rows = "\n".join([*mine.splitlines(), *(line.replace(",5,", ",500,") for line in other.splitlines()[1:])])
    found = prices(tmp_path, named(ATTENTION, "model=SMALL-3B", "tp=1", "gpu=my box"), mine)
    assert found.dense(5.0) == pytest.approx((3 * 8 + 8) * US)
    assert found.timed_on == ", timed on my box"
    for layers in (rows, other, named(LAYERS, "tp=2")):  # of two machines neither is this one; another model; two ranks
        with pytest.raises(InputFileError, match="no layers rows"):
            prices(tmp_path, layers=layers)
    for asked, given, same in (
        ("1", "1", True), ("2", "12", False), ("h100-sxm", "nvidia/H100", True), ("h100", "h100-sxm", True),
        ("org/Small-3B", "small_3b", True), ("small", "large", False),
    ):  # fmt: skip
        assert kernel_tables._same(given, asked) is same


def test_a_mixtures_layer_is_read_at_the_experts_that_its_tokens_reach(tmp_path: Path) -> None:
    model = transformer(hidden=1024, layers=3, heads=8, vocab=1000, ffn=512, experts=8, topk=2, name="mix")
    head = LAYERS.splitlines()[0] + ",activated_experts\n"
    dense = "".join(f"{row},\n" for row in LAYERS.splitlines()[1:])
    moe = "".join(f"moe,experts,{size},{10 * reached + size},{reached}\n" for size in (4, 16) for reached in (8, 2, 5))
    found = prices(tmp_path, layers=head + dense + moe, model=model)
    for tokens in (4, 16):
        reached = 8 * (1 - (1 - 2 / 8) ** tokens)
        assert found.dense(tokens) - prices(tmp_path, layers=LAYERS).dense(tokens) == pytest.approx(
            3 * (10 * reached + tokens) * US
        )


def test_beside_one_file_those_of_its_folder_that_say_kernels_are_read(tmp_path: Path) -> None:
    whole = prices(tmp_path)
    (tmp_path / "layers.csv").rename(tmp_path / "more_kernels.csv")
    (tmp_path / "notes.csv").write_text("who,what\nnobody,nothing\n")
    alone = table_prices(tmp_path / "attention.csv", MODEL, SimpleNamespace(tp=1), CLUSTER)  # type: ignore[arg-type]
    assert [alone.dense(size) for size in (1.0, 5.0)] == [whole.dense(size) for size in (1.0, 5.0)]


def test_tables_that_are_not_there_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="holds no table"):
        table_prices(tmp_path / "nothing", MODEL, SimpleNamespace(tp=1), CLUSTER)  # type: ignore[arg-type]
    with pytest.raises(InputFileError, match="no attention rows"):
        prices(tmp_path, attention=LAYERS)
    rows = ATTENTION.splitlines()
    for begin in ("0,0,", "64,"):  # decode alone; and prompts, of which nothing is left then
        kept = [row for row in rows if not row.startswith((begin, "128,") if begin == "64," else begin)]
        with pytest.raises(InputFileError, match="decode alone, or of prompts alone"):
            prices(tmp_path, attention="\n".join(kept))
