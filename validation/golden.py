"""About 300 questions over the verbs, and their answers byte by byte: what a change of structure must leave as it was.

    python validation/golden.py write DIR [KIND ...]    answers, one file each, into a new folder
    python validation/golden.py check DIR [KIND ...]    ask again, name every answer that differs; status 1 if one does

Kinds: predict (plans, captured folders, traces), serve, pool, survive, search (plan), fleet; all of them without one.
`check` asks the kinds that the folder has.
Values are unlike those of the tests. Captured folders are made once, by `write`, from the scripts in examples/, and
need torch; without torch those questions are left out. Errors and infeasible jobs are answers as well. Of a serving
question the stamps of every request count too.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import itertools
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = {
    "ddp": ("train_ddp.py", 24, ()),
    "fsdp": ("train_fsdp2.py", 48, ()),
    "tp": ("train_tp.py", 16, ("--tp", "4")),
    "3d": ("train_3d.py", 32, ("--pp", "4", "--tp", "2", "--batch", "32", "--micro-batches", "8")),
    "ep": ("train_ep.py", 16, ("--ep", "4")),
    "cp": ("train_cp.py", 8, ("--cp", "2")),
}
DENSE = (
    "llama-2-13b",
    "llama-3-8b",
    "qwen2.5-32b",
    "mistral-7b",
    "gpt3-175b",
    "bloom-176b",
    "mpt-30b",
    "nemotron-4-340b",
)
MIXED = ("mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b")
MACHINES = ("a100-80gb", "a100-40gb", "h100-sxm", "h200", "b200", "gb200", "mi300x", "l40s", "tpu-v6e", "h800")
SLOW = (
    "gpu=5:1.31",
    "stage=0:1.07",
    "random=3%:1.4",
    "thermal=9:1.3:120",
    "link=node1.nic2:0.4",
    "lost=node0.nic1",
    "uplink=leaf0:0.6",
    "ecmp=3",
    "pause=1%:70ms",
    "noise=4%",
)


def planned() -> Iterator[tuple[str, ...]]:
    """Plans drawn over everything that a plan may say; some are illegal, some do not fit."""
    draw = random.Random(20261122)
    for number in range(110):
        model = draw.choice(DENSE if number % 3 else MIXED)
        gpus = draw.choice((8, 24, 48, 96, 192, 384, 768, 3072))
        words = [model, "--cluster", f"{draw.choice(MACHINES)}:{gpus}"]
        words += ["--framework", draw.choice(("megatron", "torchtitan", "fsdp", "nanotron", "pytorch", "megatron"))]
        words += ["--tp", str(draw.choice((1, 2, 4, 8)))]
        pp = draw.choice((1, 1, 2, 3, 4, 8))
        words += ["--pp", str(pp), "--cp", str(draw.choice((1, 1, 1, 2)))]
        words += ["--seq", str(draw.choice((1536, 3072, 6144, 12288)))]
        words += [
            "--micro-batch",
            str(draw.choice((1, 1, 2, 3))),
            "--global-batch",
            str(gpus * draw.choice((3, 6, 12))),
        ]
        if model in MIXED:
            words += ["--ep", str(draw.choice((1, 2, 4, 8)))]
            if draw.random() < 0.3:
                words += ["--router-load", f"zipf:{draw.choice((0.2, 0.7))}"]
        if draw.random() < 0.5:
            words += ["--zero-stage", str(draw.randrange(4))]
        if draw.random() < 0.4:
            words += ["--recompute", draw.choice(("full", "full:3", "selective:attention", "selective:mlp,norms"))]
        if pp > 1 and draw.random() < 0.5:
            words += ["--schedule", draw.choice(("gpipe", "zb-h1", "dualpipe", "interleaved", "zb-v"))]
            words += ["--virtual-stages", str(draw.choice((1, 2)))]
        if draw.random() < 0.4:
            words += ["--precision", draw.choice(("fp8", "fp16", "mxfp8", "nvfp4", "fp32"))]
        for _ in range(draw.choice((0, 0, 0, 1, 2))):
            words += ["--slow", draw.choice(SLOW)]
        if draw.random() < 0.15:
            words += ["--jitter", "2.5%", "--samples", "37", "--seed", str(number)]
        if draw.random() < 0.15:
            words += ["--set", draw.choice(("cluster.nic=130Gb/s", "model.layers=13", "cluster.gpu.memory=61GiB"))]
        yield ("predict", *words)
    base = ("predict", "qwen2.5-32b", "--cluster", "h100-sxm:96", "--tp", "4", "--pp", "2", "--seq", "3072")
    for slow in itertools.chain(SLOW, ("gpu=200:1.2", "gpu=3", "nothing=1")):
        yield (*base, "--global-batch", "72", "--slow", slow)
    yield (*base, "--global-batch", "71")
    yield ("predict", "no-such-model", "--cluster", "h100-sxm:8", "--global-batch", "8", "--seq", "128")


def captured(folder: Path) -> Iterator[tuple[str, ...]]:
    """Predictions of what was captured, healthy and disturbed."""
    for name, (_, world, _) in SCRIPTS.items():
        where = str(folder / "captured" / name)
        for machine in ("h100-sxm", "a100-40gb", "b200"):
            yield ("predict", where, "--cluster", f"{machine}:{world}")
        for slow in SLOW[:7]:
            yield ("predict", where, "--cluster", f"h100-sxm:{world}", "--slow", slow)
        yield ("predict", where, "--cluster", f"h100-sxm:{world}", "--jitter", "3%", "--samples", "21", "--seed", "5")
        yield ("predict", where, "--cluster", f"h100-sxm:{world}", "--set", "cluster.gpu.memory=1GiB")
        yield ("predict", where, "--cluster", f"h100-sxm:{world + 8}")


def others(folder: Path) -> Iterator[tuple[str, ...]]:
    """Traces, what-if questions on saved runs, comparisons, tables."""
    traces = os.environ.get("WINDTUNNEL_STRAGGLER_TRACES")
    if traces:
        for name in ("SE", "ST"):
            yield ("explain", f"{traces}/trace-{name}.parquet", "--no-save")
    yield ("validate", str(REPOSITORY / "validation" / "measurements.csv"), "--level", "A", "--no-write")
    yield ("explain", str(REPOSITORY / "README.md"), "--no-save")
    yield ("compare", "no-such-run", "neither")
    yield ("version",)


def given_files(folder: Path) -> Path:
    """Recorded requests, machines that come and go, pools and a trace of jobs, drawn with fixed seeds."""
    given = folder / "given"
    if given.exists():
        return given
    given.mkdir(parents=True)
    draw = random.Random(7)
    at, rows = 0.0, ["arrival_s,input_tokens,output_tokens"]
    for _ in range(900):
        at += draw.expovariate(7.3)
        rows.append(f"{at:.6f},{draw.randrange(3, 2900)},{draw.randrange(1, 410)}")
    (given / "recorded.csv").write_text("\n".join(rows) + "\n")
    at, rows = 0.0, ["arrival_ms,input_tokens,output_tokens,block512_ids"]
    for number in range(500):
        at += draw.expovariate(0.004)
        depth, tree = draw.randrange(1, 9), draw.randrange(12)
        shared = draw.randrange(depth + 1)
        ids = [1000 * tree + level for level in range(shared)] + [
            10**6 + 100 * number + k for k in range(depth - shared)
        ]
        rows.append(f"{int(at)},{512 * depth + draw.randrange(500)},{draw.randrange(2, 230)},{' '.join(map(str, ids))}")
    (given / "prefixes.csv").write_text("\n".join(rows) + "\n")
    (given / "events.csv").write_text(
        "time_s,event,node\n0,add,a\n0,add,b\n0,add,c\n0,add,d\n47,remove,b\n90,add,e\n131,remove,a\n139,remove,c\n"
        "170,add,f\n171,add,g\n230,remove,d\n"
    )
    (given / "minutes.csv").write_text("minute,added,removed\n0,4,0\n1,0,2\n2,1,0\n3,1,1\n4,0,0\n5,0,1\n6,2,0\n")
    for name, text in POOL_FILES.items():
        (given / f"{name}.yaml").write_text(text)
    at, rows = 0, ["job,submit_s,gpus,duration_s"]
    for number in range(160):
        at += draw.randrange(400)
        rows.append(f"j{number},{at},{draw.choice((1, 1, 2, 4, 8, 16))},{draw.randrange(60, 20000)}")
    (given / "jobs.csv").write_text("\n".join(rows) + "\n")
    return given


POOL_FILES = {
    "several": """
groups:
  own: {cluster: "h100-sxm:3", gpu_hour: 2.7}
  spot: {cluster: "h100-sxm:5", gpu_hour: 0.9, notice: 3s, gpus: [[0s, 5], [21s, 1], [33s, 4], [60s, 5]]}
models:
  chat: {model: llama-3.1-8b, groups: [spot, own], replicas: 4, startup: 3s, slo: "ttft=900ms,tpot=31ms",
         workload: {prompt: 410, output: 130, rate: 17, requests: 900, cv: 2.0, length_ratio: 0.3}}
  code: {model: qwen3-8b, groups: [own, spot], startup: 2s, router: round-robin,
         autoscale: {least: 1, most: 3, target: 5, every: 700ms, idle: 4s},
         workload: {prompt: 900, output: 60, rate: 5, requests: 300, cv: 3, seed: 2}}
""",
    "apart": """
groups:
  all: {cluster: "h100-sxm:8"}
models:
  pair: {model: llama-3.1-8b, prefill: 2xtp1, decode: 1xtp2, slo: ttft=2s,
         workload: {prompt: 1300, output: 170, rate: 9, requests: 350, cv: 1.5, length_ratio: 0.5}}
  closed: {model: llama-3.1-8b, tp: 2, replicas: 2, router: prefix-aware, num_gpu_blocks: 900,
           workload: {prompt: 700, output: 220, concurrency: 31, waves: 5, length_ratio: 0.4}}
""",
    "to_zero": """
groups:
  spot: {cluster: "a100-80gb:4", notice: 0s, gpus: [[0s, 4], [9s, 0], [19s, 3]]}
models:
  batch: {model: llama-2-13b, startup: 4s, autoscale: {least: 0, most: 4, target: 3, every: 1s, idle: 5s},
          workload: {prompt: 610, output: 90, rate: 3, requests: 120}}
""",
    "weights": """
weights: {cluster: "a100-80gb:6", host_cache: 70 GB, cold_start: 4s, gpu_hour: 1.7}
models:
  chat: {model: llama-3.1-8b, copies: 13}
  code: {model: qwen3-8b, copies: 2}
workload: {prompt: 450, output: 23, rate: 5, requests: 800, zipf: 0.8}
""",
    "weights_closed": """
weights: {cluster: "h100-sxm:4", host_cache: 40 GB}
models:
  only: {model: llama-3.1-8b, copies: 9}
workload: {prompt: 200, output: 11, concurrency: 7, waves: 40, length_ratio: 0.5}
systems: [pool, cold]
""",
    "unknown": "groups: {all: {cluster: 'h100-sxm:2'}}\nmodels: {a: {model: llama-3.1-8b, replica: 2}}\n",
}


def served(folder: Path) -> Iterator[tuple[str, ...]]:
    """Serving: loops open, closed and recorded, engines, routers, drafts, pools apart, goodput, searches, spot."""
    given = given_files(folder)
    draw = random.Random(20261124)
    engines = ("vllm-0.12", "vllm-0.14", "sglang-0.5.5", "trtllm-1.0", "vllm-0.11", "trtllm-1.1", "sglang")
    models = ("llama-3.1-8b", "qwen3-32b", "llama-2-13b", "mixtral-8x7b", "qwen3-30b-a3b")
    for number in range(34):
        gpus = draw.choice((1, 2, 4))
        replicas = draw.choice((1, 1, 2, 3, 5))
        words = [
            draw.choice(models),
            "--cluster",
            f"{draw.choice(('h100-sxm', 'a100-80gb', 'h200', 'b200'))}:{8 * gpus}",
        ]
        words += ["--engine", engines[number % len(engines)], "--tp", str(gpus), "--replicas", str(replicas)]
        words += ["--router", draw.choice(("round-robin", "least-loaded", "prefix-aware"))]
        if replicas < 4 and draw.random() < 0.2:
            words += ["--pp", "2"]
        if draw.random() < 0.4:
            words += ["--concurrency", str(draw.choice((1, 5, 23, 90))), "--waves", str(draw.choice((3, 7)))]
        else:
            words += ["--rate", str(draw.choice((0.7, 3.1, 11, 43))), "--cv", str(draw.choice((0, 1, 2.5)))]
            words += ["--requests", str(draw.choice((90, 333)))]
        words += ["--prompt", str(draw.choice((17, 420, 2310, 9000))), "--output", str(draw.choice((1, 60, 333)))]
        if draw.random() < 0.6:
            words += ["--length-ratio", str(draw.choice((0.1, 0.6))), "--seed", str(number)]
        for chance, more in (
            (0.3, ("--num-gpu-blocks", "1200")),
            (0.2, ("--max-num-seqs", "13")),
            (0.2, ("--max-num-batched-tokens", "3000")),
            (0.2, ("--no-chunked-prefill",)),
            (0.2, ("--kv", "fp8")),
            (0.2, ("--speculative-tokens", "2", "--acceptance", "0.63")),
            (0.4, ("--slo", "ttft=700ms,tpot=23ms")),
            (0.2, ("--gpu-hour", "2.2")),
        ):
            words += more if draw.random() < chance else ()
        yield ("serve", *words)
    eight = ("serve", "llama-3.1-8b", "--cluster")
    recorded, prefixes = str(given / "recorded.csv"), str(given / "prefixes.csv")
    for engine in ("vllm-0.12", "sglang-0.5.5", "trtllm-1.0"):
        yield (*eight, "h100-sxm:1", "--engine", engine, "--workload", recorded)
        yield (*eight, "h100-sxm:4", "--engine", engine, "--workload", recorded, "--rate", "40", "--replicas", "3")
    for router in ("round-robin", "least-loaded", "prefix-aware"):
        for more in (("--rate", "9"), ("--concurrency", "40")):
            caching = ("--prefix-caching", "--num-gpu-blocks", "4100", "--router", router)
            yield (*eight, "h100-sxm:4", "--workload", prefixes, *more, *caching, "--replicas", "4")
    experts = ("serve", "deepseek-v3", "--cluster", "h200:8", "--engine", "trtllm-1.0", "--dp", "8", "--ep", "8")
    load = ("--rate", "6", "--prompt", "900", "--output", "140", "--requests", "220")
    yield (*experts, "--weights", "fp8_block", *load)
    for more in (
        ("--rate", "7", "--cv", "2"),
        ("--concurrency", "70"),
        ("--concurrency", "300", "--num-gpu-blocks", "600"),
    ):
        load = ("--prompt", "1400", "--output", "190", "--length-ratio", "0.3")
        yield (*eight, "h100-sxm:8", "--prefill", "2xtp1", "--decode", "2xtp2", *load, *more)
    yield (
        *eight,
        "h100-sxm:2",
        "--prefill",
        "3xtp1",
        "--decode",
        "1xtp1",
        "--rate",
        "3",
        "--prompt",
        "9",
        "--output",
        "2",
    )
    limits = ("--slo", "ttft=600ms,tpot=17ms", "--prompt", "700", "--output", "110", "--requests", "260")
    yield (*eight, "h100-sxm:1", *limits, "--goodput", "--attain", "0.93")
    yield (*eight, "h100-sxm:2", *limits, "--goodput", "--replicas", "2", "--gpu-hour", "3.1")
    yield (*eight, "h100-sxm:4", *limits, "--goodput", "--prefill", "1xtp1", "--decode", "1xtp2", "--attain", "0.9")
    yield (*eight, "h100-sxm:4", *limits, "--search", "distserve", "--rate", "9", "--attain", "0.9")
    several = ("serve", "llama-3.1-8b=3,qwen3-8b=1,llama-2-13b=1", "--cluster", "h100-sxm:8", *limits[2:])
    yield (*several, "--search", "alpaserve", "--rate", "2", "--slo", "ttft=3s,tpot=50ms")
    yield (*several, "--search", "muxserve", "--rate", "14")
    spot = ("--prompt", "480", "--output", "70", "--cv", "2.5", "--gpu-hour", "1.3", "--spot")
    for name, rate in (("events", "4.4"), ("minutes", "2.1")):
        words = ("serve", "llama-2-13b", "--cluster", "a100-80gb:48", "--rate", rate, "--requests", "700", *spot)
        yield (*words, str(given / f"{name}.csv"))
    yield ("serve", "llama-3.1-8b", "--cluster", "h100-sxm:48", "--rate", "9", "--requests", "900", *spot,
           str(given / "minutes.csv"), "--notice", "7s", "--spot-policy", "spotserve,restart")  # fmt: skip
    for words in (
        ("gpt3-175b", "--cluster", "h100-sxm:1", "--rate", "1", "--prompt", "9", "--output", "9"),
        ("llama-3.1-8b", "--cluster", "h100-sxm:1", "--replicas", "2", "--rate", "1", "--prompt", "9", "--output", "9"),
        ("llama-3.1-8b", "--cluster", "h100-sxm:1", "--goodput", "--prompt", "9", "--output", "9"),
        (
            "llama-3.1-8b",
            "--cluster",
            "h100-sxm:1",
            "--rate",
            "1",
            "--prompt",
            "140000",
            "--output",
            "9",
            "--requests",
            "4",
        ),
        (
            "llama-3.1-8b",
            "--cluster",
            "h100-sxm:1",
            "--prompt",
            "9",
            "--output",
            "9",
            "--rate",
            "1",
            "--slo",
            "ttft=0s",
        ),
    ):
        yield ("serve", *words)


def pooled(folder: Path) -> Iterator[tuple[str, ...]]:
    """Pools of several models, and of weights, from their files."""
    given = given_files(folder)
    for name in POOL_FILES:
        yield ("serve", str(given / f"{name}.yaml"))


def survived(folder: Path) -> Iterator[tuple[str, ...]]:
    """Failures of a job, and training on spot machines."""
    given = given_files(folder)
    short = ("survive", "--cluster", "h100-sxm:4096", "--seeds", "9", "--days", "11")
    for failures in ("llama3", "rsc-1", "production", "none"):
        yield (*short, "--failures", failures, "--policy", "restart,standby,byterobust,shrink,ft-hsdp,oobleck,parcae")
    yield (*short, "--checkpoint", "7min", "--standbys", "3", "--gpu-hour", "2.1", "--seed", "4")
    yield (*short, "--recovery", "load=130s", "--recovery", "schedule=3min", "--storage", "1TB/s", "--step-time", "7s")
    yield (*short, "--planned-every", "3h", "--policy", "restart,shrink")
    yield ("survive", "llama-3-8b", "--cluster", "h100-sxm:512", "--tp", "4", "--pp", "2", "--global-batch", "512",
           "--seq", "4096", "--seeds", "7", "--days", "9", "--policy", "restart,standby,shrink,ft-hsdp")  # fmt: skip
    for model in ("bert", "gpt-1.5b"):
        yield ("survive", model, "--spot", str(given / "minutes.csv"), "--policy", "parcae,varuna,on-demand")
    yield (*short, "--policy", "hope")
    yield (*short, "--standbys", "-3")


def sought(folder: Path) -> Iterator[tuple[str, ...]]:
    """Searches for a training plan."""
    for model, cluster, more in (
        ("llama-3-8b", "h100-sxm:16", ("--global-batch", "64", "--seq", "4096")),
        ("mixtral-8x7b", "h100-sxm:32", ("--global-batch", "96", "--seq", "3072")),
        ("llama-2-13b", "a100-40gb:24", ("--global-batch", "72", "--seq", "3072", "--framework", "torchtitan")),
    ):
        yield ("plan", model, "--cluster", cluster, *more)


def scheduled(folder: Path) -> Iterator[tuple[str, ...]]:
    """A trace of jobs under the policies of a fleet."""
    trace = str(given_files(folder) / "jobs.csv")
    for policy in ("fifo", "sjf", "easy", "srtf", "tiresias", "edf", "fifo,sjf", "nothing"):
        yield ("fleet", trace, "--cluster", "h100-sxm:32", "--policy", policy)
    yield ("fleet", trace, "--cluster", "t4:16x4", "--policy", "easy,tiresias", "--placement", "pool")
    yield (
        "fleet",
        trace,
        "--cluster",
        "t4:16x4",
        "--policy",
        "srtf",
        "--mtbf-node",
        "3d",
        "--repair",
        "2h",
        "--seed",
        "3",
    )
    yield ("fleet", trace, "--cluster", "t4:8x4", "--policy", "sjf", "--restart", "5min")


KINDS: dict[str, Callable[[Path], Iterator[tuple[str, ...]]]] = {
    "serve": served,
    "pool": pooled,
    "survive": survived,
    "search": sought,
    "fleet": scheduled,
}


def predicted(folder: Path) -> Iterator[tuple[str, ...]]:
    """The first kind: plans, traces and comparisons, then captured folders where there are any."""
    yield from planned()
    yield from others(folder)
    if (folder / "captured").exists():
        yield from captured(folder)


def answer(words: tuple[str, ...], folder: Path) -> str:
    """What the command prints, JSON where it has any, without run folders; its exit status last."""
    from windtunnel.faces.cli import main

    stamps = folder / "stamps.csv"
    if words[0] == "predict":
        words = (*words, "--json", "--no-save")
    elif words[0] == "explain":
        words = (*(word for word in words if word != "--no-save"), "--json")
    elif words[0] == "validate":
        words = (*(word for word in words if word != "--no-write"), "--json")
    elif words[0] in ("serve", "survive", "fleet", "plan"):
        words = (*words, "--json")
        if words[0] == "serve" and not {"--spot", "--search"} & {*words} and not words[1].endswith(".yaml"):
            words = (*words, "--requests-out", str(stamps))
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status: object = main(list(words))
        except Exception as fault:  # a fault of the product: an answer that is to go, and no reason to stop asking
            status = f"crash: {fault!r}"
    answered = _proven(out.getvalue()) if words[0] == "plan" else out.getvalue()
    text = f"{' '.join(words)}\n{answered}\n{error.getvalue()}\nexit status {status}\n"
    if stamps.exists():
        content = stamps.read_bytes()
        lines = content.decode().splitlines()
        text += "\n".join([*lines[:3], lines[-1], f"stamps {hashlib.sha256(content).hexdigest()}"]) + "\n"
        stamps.unlink()
    return text


def _proven(text: str) -> str:
    """Of a search what does not depend on the seconds that it had: the best plan, and what it costs."""
    found = json.loads(text)
    return json.dumps({key: found.get(key) for key in ("band", "plans")} | {"plans": found["plans"][:1]}, indent=1)


def capture_all(folder: Path) -> bool:
    """Capture the scripts of examples/ below `folder`; False where there is no torch."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        return False
    from windtunnel.faces.cli import main

    for name, (script, world, arguments) in SCRIPTS.items():
        where = folder / "captured" / name
        path = REPOSITORY / "examples" / "distributed" / script
        status = main(["capture", "--world-size", str(world), "--out", str(where), str(path), *arguments])
        assert status == 0, f"capturing {script} ended with {status}"
    return True


def main(verb: str, folder: Path, kinds: tuple[str, ...]) -> int:
    """`write` or `check`; returns the exit status."""
    if verb == "write":
        folder.mkdir(exist_ok=False)
        if "predict" in kinds:
            capture_all(folder)
    os.chdir(folder)
    questions: list[tuple[str, tuple[str, ...]]] = []
    if "predict" in kinds:
        questions += [(f"{number:03d}", words) for number, words in enumerate(predicted(folder))]
    for kind in (kind for kind in KINDS if kind in kinds):
        questions += [(f"{kind}-{number:03d}", words) for number, words in enumerate(KINDS[kind](folder))]
    different = 0
    scratch = re.compile(re.escape(str(folder)))
    for name, words in questions:
        text, path = scratch.sub("DIR", answer(words, folder)), folder / f"{name}.txt"
        if verb == "write":
            path.write_text(text)
        elif (before := path.read_text()) != text:
            different += 1
            shown = list(
                difflib.unified_diff(before.splitlines(), text.splitlines(), "before", "after", lineterm="", n=0)
            )
            print(f"{name} {' '.join(words)}", *(line[:200] for line in shown[:8]), sep="\n  ")
    print(f"{len(questions)} questions, {different} answers differ")
    return int(different > 0)


if __name__ == "__main__":
    everything = ("predict", *KINDS)
    verb, place = (*sys.argv[1:3], "", "")[:2]
    kinds = tuple(sys.argv[3:])
    if verb not in ("write", "check") or not place or not {*kinds} <= {*everything}:
        sys.exit(__doc__)
    where = Path(place).resolve()
    if verb == "write":
        shutil.rmtree(where, ignore_errors=True)
    there = {path.name.partition("-")[0] if "-" in path.name else "predict" for path in where.glob("*.txt")}
    sys.exit(
        main(verb, where, kinds or (everything if verb == "write" else tuple(k for k in everything if k in there)))
    )
