"""Published gains of techniques, predicted in their settings: each figure, its prediction, the error.

    python validation/techniques/published.py FOLDER

FOLDER holds lina_ratios.csv and stronghold_timings.csv (facts from the paper and the artifact, each with its source;
not part of this repository). Settings that a source leaves open are written down here, once, and are not tuned for a
row.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.model import Model, load_model
from windtunnel.physics.model.families import transformer
from windtunnel.physics.step.result import TechniqueGain
from windtunnel.studies.techniques import explained, predict_with
from windtunnel.studies.techniques.flat import FlatStep, Task, lower
from windtunnel.studies.techniques.flat.cut import chained
from windtunnel.studies.techniques.flat.play import play
from windtunnel.studies.techniques.megascale.features import FEATURES, MegaScalePlan, with_feature, without_features
from windtunnel.studies.techniques.parameters import LinaPlan
from windtunnel.studies.techniques.priced import TimelinePicture
from windtunnel.studies.techniques.prioritised_all_to_all.price import figures, rewrite
from windtunnel.studies.training import Plan, predict, read_plan
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece, pieces_of
from windtunnel.studies.training.workload.router_load import RouterLoad


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    path = folder / name
    if not path.exists():
        print(f"skipped: no {path}")
        return []
    return list(csv.DictReader(path.open()))


def line(what: str, published: float, predicted: float, unit: str = "") -> float:
    error = predicted / published - 1.0
    print(f"  {what:66} published {published:9.3f} predicted {predicted:9.3f} {unit:3} error {error:+7.1%}")
    return abs(error)


def gpt(layers: int) -> Model:
    """The artifact's GPT: hidden 2,048, 16 heads; 50,304 words make its 1.717 billion parameters at 32 layers."""
    return load_model(
        {"model_type": "gpt2", "n_embd": 2048, "n_layer": layers, "n_head": 16, "n_positions": 1024,
         "activation_function": "gelu_new", "tie_word_embeddings": True, "vocab_size": 50304}
    )  # fmt: skip


def stronghold(folder: Path) -> None:
    plan = read_plan(
        {"global_batch": 4, "micro_batch": 4, "seq_len": 1024, "precision": "fp32", "recompute": "full",
         "attention_impl": "unfused"}
    )  # fmt: skip
    machine = parse_cluster("v100-32gb:1")
    errors, memory = [], []
    best: dict[int, tuple[float, int]] = {}
    print("STRONGHOLD, ms an iteration (V100-32G, fp32, hidden 2,048, sequence 1,024, batch 4)")
    for row in rows(folder, "stronghold_timings.csv"):
        layers, published = int(row["layers"]), float(row["median_ms_per_iteration"])
        if row["method"] == "megatron-lm":
            line(
                f"{layers} layers, all on the device", published, 1e3 * predict(gpt(layers), machine, plan).step_time_s
            )
        if row["method"] != "stronghold":
            continue
        window = int(row["window"])
        result = predict_with(gpt(layers), machine, plan, [f"offload:window={window}"])
        errors.append(line(f"{layers} layers, window {window}", published, 1e3 * result.step_time_s))
        memory.append(abs(result.peak_memory.device_bytes / 2**20 / float(row["max_reserved_mb"]) - 1.0))
        best[layers] = min(best.get(layers, (9e9, 0)), (published, window))
    if errors:
        print(f"  mean {statistics.mean(errors):.1%}, worst {max(errors):.1%}")
        print(f"  reserved memory: mean {statistics.mean(memory):.1%}, worst {max(memory):.1%}")
    for layers, (_, window) in sorted(best.items()):
        chosen = predict_with(gpt(layers), machine, plan, ["offload"]).technique
        assert chosen is not None, "asked for"
        print(f"  {layers} layers: window by formula {chosen.parameters['window']}, best of the measured {window}")


# Lina's runs. Section 7 gives means over three models: Transformer-XL of 24 layers, GPT-2 of 12, and BERT2GPT2, an
# encoder and a decoder of 12 (github huggingface/transformers; its cross-attention is left out here). Transformer-XL's
# size follows from table 1: with 4 and with 16 experts it has 117M and 419M parameters in 12 layers, so 2.10M an
# expert: hidden 512 and 2,048 inside, two matrices, which is the published enwik8 model of that name (github
# kimiyoung/transformer-xl, run_enwik8_base.sh); table 1 is read with that script's 22 sequences of 512 a GPU. Its 8
# heads also see 512 tokens of memory (the script's mem_len): as many scores as 16 heads have without; its product with
# relative positions is left out.
# Section 7 says no batch, but how much of 40 GB a run with 16 experts took (table 4): the most sequences that fit in
# it. Experts on a device as section 7.2 says. PyTorch 1.10: fp32 with TF32 multiplications, gradients in
# DistributedDataParallel's buckets of 25 MiB.
# DeepSpeed's MoE layer sends a token once for each of its experts, and multiplies tokens with a mask to get them there.
RELEASE = "deepspeed-0.6"
SEQUENCES, BUCKET = 22, 6_553_600
EXPERTS = (2, 4, 8, 16)
PRIORITY, UNPACKED = "lina:packing=1,micro_op=0,pipeline=false", "lina:packing=1"


@dataclass(frozen=True)
class Dense:
    """One of the paper's models before its feed-forwards become experts. `used`: share of 40 GB with 16 experts."""

    hidden: int
    layers: int
    heads: int
    vocab: int
    seq_len: int
    used: float


XL = Dense(512, 24, 16, 204, 512, 0.721)
MODELS = (XL, Dense(768, 12, 12, 50257, 1024, 0.838), Dense(768, 24, 12, 30522 + 50257, 512, 0.743))


def lina_model(dense: Dense, experts: int) -> Model:
    return transformer(
        hidden=dense.hidden, layers=dense.layers, heads=dense.heads, vocab=dense.vocab, ffn=4 * dense.hidden,
        experts=experts, topk=2, family="gpt", gated=False, max_sequence_length=1024,
    )  # fmt: skip


def lina_cluster(gpus: int) -> Cluster:
    """A100-40G with 100 Gb/s each: up to 4 GPUs one in each node, beyond that four in each.

    Were it 100 Gb/s for the four of a node, 16 GPUs would exchange for four times as long as 4; published
    are 1.1 to 1.4.
    """
    per_node = 1 if gpus <= 4 else 4
    return parse_cluster(
        {"gpu": {"base": "a100-40gb-sxm", "flops": {"fp32": "156 TFLOP/s"}}, "n_gpus": gpus,
         "gpus_per_node": per_node, "scale_up_domain": per_node,
         "scale_up": {"name": "NVLink 3", "protocol": "nvlink", "bandwidth": "300 GB/s", "latency": "0.6 us"},
         "scale_out": {"name": "InfiniBand", "protocol": "infiniband", "bandwidth": "100 Gb/s",
                       "latency": "2.7 us"},
         "host": {"pcie": "32 GB/s", "memory": "512 GiB", "cpu_speed": 0.75}}
    )  # fmt: skip


def lina_plan(dense: Dense, gpus: int, sequences: int) -> Plan:
    return read_plan(
        {"global_batch": sequences * gpus, "micro_batch": sequences, "seq_len": dense.seq_len, "ep": gpus,
         "zero_stage": 0, "precision": "fp32", "gradient_dtype": "fp32", "bucket_parameters": BUCKET,
         "attention_impl": "unfused", "release": RELEASE}
    )  # fmt: skip


@cache
def sequences_of(dense: Dense) -> int:
    """The most sequences a GPU whose step takes no more than the published memory."""
    model, machine, count = lina_model(dense, 16), lina_cluster(16), 0
    while True:
        held = predict(model, machine, lina_plan(dense, 16, count + 1)).peak_memory.device_bytes
        if held > dense.used * machine.gpu.memory_bytes:
            return count
        count += 1


def lina_gain(
    dense: Dense, gpus: int, technique: str, sequences: int | None = None
) -> tuple[TechniqueGain, TimelinePicture]:
    """What it gains, and the timeline without it."""
    plan = lina_plan(dense, gpus, sequences or sequences_of(dense))
    found, drawn = explained(lina_model(dense, gpus), lina_cluster(gpus), plan, [technique])
    assert found.technique is not None, "asked for"
    assert drawn is not None, "tasks are rewritten"
    return found.technique, drawn[0]


def gains(experts: int, technique: str) -> list[TechniqueGain]:
    """Of the three models, one each."""
    return [lina_gain(dense, experts, technique)[0] for dense in MODELS]


def packing_of(dense: Dense, experts: int) -> int:
    """Two experts on a device, four where Transformer-XL has 16 (section 7.2)."""
    return 4 if experts == 16 and dense is XL else 2


def packed(experts: int) -> list[TechniqueGain]:
    """All of Lina."""
    return [lina_gain(dense, experts, f"lina:packing={packing_of(dense, experts)}")[0] for dense in MODELS]


def contended(drawn: TimelinePicture) -> list[float]:
    """Time over time alone of the backward pass' all-to-alls that meet an all-reduce."""
    found = []
    for number, task in enumerate(drawn.tasks):
        if task.role == "all_to_all" and task.phase == "backward":
            took = drawn.played.end_ns[number] - drawn.played.start_ns[number]
            found += [took / task.work_ns] if took > 1.01 * task.work_ns else []
    return found


def without_gradients(drawn: TimelinePicture) -> float:
    """How many times as long a step takes as one that reduces no gradients at all: the most that an order can bring."""
    tasks = [replace(task, work_ns=0) if task.role == "reduce" else task for task in drawn.tasks]
    return play(drawn.tasks, drawn.lanes).makespan_ns / play(tasks, drawn.lanes).makespan_ns


def every_gradient(dense: Dense, experts: int) -> tuple[float, ...]:
    """Were experts' gradients reduced over all GPUs too: backward all-to-alls' slowdown, what three rewrites gain.

    Priority alone, with micro-operations, and with experts packed; last, the backward all-to-all's own gain of that.
    """
    model, each = lina_model(dense, experts), 2 * dense.hidden * 4 * dense.hidden

    def shared(layout: Layout, router: RouterLoad | None) -> list[Piece]:
        """A layer's experts as parameters that all GPUs have."""
        return [
            replace(piece, blocks=tuple(
                replace(block, dense_parameters=block.dense_parameters + experts * each, expert_parameters=0.0)
                if block.expert_parameters else block for block in piece.blocks))
            for piece in pieces_of(layout, router)
        ]  # fmt: skip

    def buckets(task: Task) -> list[Task]:
        count = max(1, round(task.bytes_total / (4 * BUCKET))) if task.role == "reduce" else 1
        return [replace(task, work_ns=task.work_ns // count, bytes_total=task.bytes_total / count)] * count

    def step_of(degree: int) -> FlatStep:
        plan = lina_plan(dense, experts, sequences_of(dense)).with_fields({"ep": degree})
        with patch.object(lower, "pieces_of", shared):
            step = lower.lower_flat(model, lina_cluster(experts), plan)
        return step.rewritten(lambda tasks: chained(tasks, buckets))

    step = step_of(experts)
    order = rewrite(step, LinaPlan(packing=1, micro_op=0, pipeline=False))[0]
    pieces = rewrite(step, LinaPlan(packing=1, pipeline=False))[0]
    packed_step = rewrite(step_of(experts // packing_of(dense, experts)), LinaPlan(packing=1))[0]
    before, after = figures(step), figures(packed_step)
    gained = [step.seconds() / other.seconds() for other in (order, pieces, packed_step)]
    alone = after["all_to_all_backward_s"]
    return before["slowdown_backward"], *gained, before["all_to_all_backward_s"] / alone if alone else math.inf


def lina(folder: Path) -> None:
    published = {row["id"]: row["value"] for row in rows(folder, "lina_ratios.csv")}
    if not published:
        return
    tokens = [f"{sequences_of(dense)} x {dense.seq_len}" for dense in MODELS]
    print(f"Lina (means over Transformer-XL, GPT-2 and BERT2GPT2; tokens a GPU {', '.join(tokens)})")
    priority = {experts: gains(experts, PRIORITY) for experts in EXPERTS}
    four = packed(4)
    cases = [
        ("lina-01", "all of Lina, 2 experts", packed(2)),
        ("lina-02", "all of Lina, 16 experts", packed(16)),
        ("lina-03", "priority alone, 2 to 16 experts", [one for some in priority.values() for one in some]),
        ("lina-04", "no packing, 2 experts", gains(2, UNPACKED)),
        ("lina-05", "no packing, 4 experts", gains(4, UNPACKED)),
    ]
    for key, what, found in cases:
        line(f"{key} {what}", float(published[key]), statistics.mean(one.gain for one in found), "x")
    backward = statistics.mean(one.details["all_to_all_backward_gain"] for one in four)
    line("lina-06 backward all-to-all, 4 experts", float(published["lina-06"]), backward, "x")
    for packing, text in zip((1, 4), published["lina-07"].split(","), strict=True):
        busy = lina_gain(XL, 16, f"lina:packing={packing}")[0].details["pipelining_with"]
        line(
            f"lina-07 pipelining efficiency, Transformer-XL, 16 experts, packing {packing}",
            float(text),
            100 * busy,
            "%",
        )
    for experts, told in ((4, 1.37), (8, 1.73)):  # section 7.2.1
        line(f"all of Lina, {experts} experts", told, statistics.mean(one.gain for one in packed(experts)), "x")
    for experts in EXPERTS:
        most = [without_gradients(lina_gain(dense, experts, PRIORITY)[1]) for dense in MODELS]
        print(f"  {experts} experts, no gradients reduced at all: {', '.join(f'{one:.2f}' for one in most)} x")
    for experts in EXPERTS:
        means = [statistics.mean(column) for column in zip(*(every_gradient(d, experts) for d in MODELS), strict=True)]
        print(f"  {experts} experts, all gradients reduced over all GPUs: backward all-to-all {means[0]:.2f} x slower;")
        print(f"    gain of priority {means[1]:.2f} x, with micro-operations {means[2]:.2f} x, with all of it")
        print(f"    {means[3]:.2f} x, of the backward all-to-all {means[4]:.2f} x (lina-06 is of 4 experts)")
    for key, layers, gpus in (("lina-08", 12, 4), ("lina-09", 36, 4), ("lina-10", 24, 16)):
        given, drawn = lina_gain(replace(XL, layers=layers), gpus, PRIORITY, SEQUENCES)
        seconds = given.details["all_to_all_s_without"]
        ms, share = (float(part) for part in published[key].split(","))
        line(f"{key} all-to-all a step, {layers} layers on {gpus}", ms, 1e3 * seconds, "ms")
        line(f"{key} its share of the step", share, 100 * seconds / given.step_time_without_s, "%")
        if key == "lina-08":
            met = contended(drawn)
            if met:
                line("lina-11 slowdown of a backward all-to-all that meets an all-reduce", float(published["lina-11"]),
                     statistics.median(met))  # fmt: skip
            count = sum(task.role == "all_to_all" and task.phase == "backward" for task in drawn.tasks)
            print(f"  {len(met)} of {count} backward all-to-alls meet an all-reduce (lina-11)")


# MegaScale's tables 3 and 2. The baseline is Megatron-LM at commit 285068c8 (2023-01), 64,000 words; the last row has
# three times the batch. Table 2 has the first and the last row's runs at a batch of 768, in seconds.
BASELINE_MFU = 47.7
MFU_WITH = {
    "parallel_block": 52.3, "sliding_window": 53.3, "tp_overlap": 55.5, "pp_overlap": 58.0, "dp_overlap": 59.5,
    "efficient_operators": 61.2, "other": 62.3, "larger_batch": 65.3,
}  # fmt: skip
STEP_768_S, MFU_768, ALL_768_S = 40.0, 53.0, 32.0


def megascale() -> None:
    model, cluster = replace(load_model("gpt3-175b"), vocab_size=64_000), parse_cluster("a100-80gb:256")
    asked = MegaScalePlan("all", batch_factor=3)

    def steps(batch: int) -> list[float]:
        """Seconds without any feature, then with one more each, to the last but the larger batch."""
        plan = read_plan({"global_batch": batch, "seq_len": 2048, "tp": 8, "pp": 8, "virtual_stages": 6})
        having, plan = model, without_features(plan, FEATURES)
        found = [predict(having, cluster, plan)]
        for name in FEATURES[:-1]:
            having, plan = with_feature(having, plan, name, asked)
            found.append(predict(having, cluster, plan))
        if batch == 256:
            print(f"  baseline: published {BASELINE_MFU} % MFU, predicted {100 * (found[0].mfu or 0.0):.1f}")
        return [one.step_time_s for one in found]

    print(
        "MegaScale's ablation (175B, 256 A100, batch 256; tp 8, pp 8, 6 virtual stages): ratio of MFU, one feature more"
    )
    small, large = steps(256), steps(768)
    ratios = {name: small[i] / small[i + 1] for i, name in enumerate(FEATURES[:-1])}
    ratios |= {"other": 1.0, "larger_batch": 3 * small[-1] / large[-1]}
    before = BASELINE_MFU
    for name, after in MFU_WITH.items():
        line(name + (" (not priced)" if name == "other" else ""), after / before, ratios[name])
        print(f"  {'':66} {before * (ratios[name] - after / before):+.1f} points of MFU")
        before = after
    seconds = STEP_768_S / 3 * MFU_768  # of 256 sequences, times MFU
    saved, saved_768 = seconds / BASELINE_MFU - seconds / MFU_WITH["other"], STEP_768_S - ALL_768_S
    work = (saved_768 - saved) / 2
    print(f"  saved by all at batch 256 and 768: {saved:.2f} and {saved_768:.2f} s,")
    print(f"    so {work:.2f} s that grow with the batch and {saved - work:.2f} s that do not")
    for i, name in enumerate(FEATURES[:-1]):
        one, three = small[i] - small[i + 1], large[i] - large[i + 1]
        growing = (three - one) / 2
        print(f"    predicted, {name:20} {growing:5.2f} s that grow with the batch, {one - growing:5.2f} s that do not")


SERIAL = {"overlap_grad_reduce": False, "overlap_param_gather": False}


def centauri() -> None:
    print("Centauri: distribution over settings (published: up to 1.49 x step time; no table was read)")
    gains = []
    for model, cluster, plan in (
        ("llama-2-13b", "a100-80gb:32", {"tp": 8, "global_batch": 64, "seq_len": 4096, "overlap_tp": False}),
        ("llama-2-13b", "a100-80gb:32", {"tp": 4, "global_batch": 64, "seq_len": 4096, "overlap_tp": False}),
        ("llama-2-70b", "a100-80gb:64", {"tp": 8, "pp": 4, "global_batch": 64, "seq_len": 4096, "overlap_tp": False}),
        ("gpt2-xl", "a100-80gb:32", {"global_batch": 128, "micro_batch": 4, "seq_len": 1024, **SERIAL}),
        ("llama-2-7b", "a100-80gb:64", {"global_batch": 64, "seq_len": 2048, **SERIAL}),
        ("llama-2-7b", "a100-80gb:64", {"global_batch": 64, "seq_len": 4096, "zero_stage": 3, **SERIAL}),
        ("mixtral-8x7b", "a100-80gb:64", {"ep": 8, "tp": 2, "global_batch": 64, "seq_len": 4096}),
    ):  # fmt: skip
        found = predict_with(load_model(model), parse_cluster(cluster), read_plan(plan), ["centauri"]).technique
        assert found is not None, "asked for"
        gains.append(found.gain)
        print(f"  {model:14} {cluster:14} {plan!s:120.120} {found.gain:.3f} x")
    print(f"  from {min(gains):.2f} to {max(gains):.2f} x, median {statistics.median(gains):.2f}")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("give the folder with the published figures")
    folder = Path(sys.argv[1])
    stronghold(folder)
    lina(folder)
    megascale()
    centauri()


if __name__ == "__main__":
    main()
