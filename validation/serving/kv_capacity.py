"""Tokens of KV cache that engines print at start, predicted and compared.

    python validation/serving/kv_capacity.py TABLE.csv

A row is one start of an engine: model, GPU, release, layout, formats, and what its log says. What a row leaves open is
the engine's default. vLLM prints its concurrency at the longest request times that request's length.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from windtunnel.errors import UserError
from windtunnel.evidence.accuracy.serving.models import model_named
from windtunnel.evidence.accuracy.serving.rows import ServingRow, gpu_of, weights_of
from windtunnel.files.table import read_table
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment

NEAR = 0.03


def engine_started(fields: Mapping[str, str]) -> Engine:
    """The engine of a row. Raises UserError."""
    row = ServingRow(fields)
    if not row.text("gpu") or not row.text("weights"):
        raise UserError("the GPU or the weights are not stated")
    dense, routed = weights_of(ServingRow({**fields, "precision": row.text("weights")}))
    tp, dp, groups = (row.whole_number(name, 1) for name in ("tp", "attn_dp", "moe_ep"))
    numbers = {name: row.number(name) for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs")}
    layout = {} if groups == 1 else {"moe_tp": tp // groups, "moe_ep": groups}
    if dp > 1:  # tables count attention ranks in tp as well
        tp, layout = tp // dp, {"attn_dp": dp, "moe_tp": 1, "moe_ep": dp}
    deployment = Deployment(
        engine=f"{row.text('engine')}-{row.text('engine_version')}",
        tp=tp,
        weights=dense,
        expert_weights=routed,
        kv={"fp8": "fp8", "bf16": "bf16"}.get(row.text("kv_dtype").replace("_ds_mla", "").replace("_e4m3", "")),
        gpu_memory_utilization=row.number("memory_fraction"),
        **{name: None if value is None else round(value) for name, value in numbers.items()},
        **layout,
    )
    return engine_of(
        model_named(row.text("model"), row.text("model_family")), gpu_of(row.text("gpu"), tp * dp), deployment
    )


def main() -> None:
    """Each row, then how many are near."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    near = asked = 0
    for _, fields in read_table(parser.parse_args().table, "give a CSV").rows():
        printed = float(fields["kv_tokens_printed"])
        try:
            engine = engine_started(fields)
        except UserError as error:
            print(f"{fields['id']:42} refused: {error}")
            continue
        ratio = engine.cache_tokens / engine.deployment.attn_dp / printed
        kv = engine.memory
        asked, near = asked + 1, near + (abs(ratio - 1) <= NEAR)
        print(
            f"{fields['id']:42} {engine.cache_tokens / engine.deployment.attn_dp:12,.0f} {printed:12,.0f} x {ratio:.3f}"
            f"  GiB: weights {kv.weights / 2**30:.2f} ({fields['weights_gib_per_gpu']})"
            f" cache {kv.kv / 2**30:.2f} ({fields['available_kv_gib_per_gpu']})"
            f" activations {kv.activations / 2**30:.2f} reserved {kv.reserved / 2**30:.2f}"
        )
    print(f"{near} of {asked} within {NEAR:.0%}")


if __name__ == "__main__":
    main()
