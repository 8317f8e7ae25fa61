r"""Lines of training logs: which framework prints what, under which name, in which unit.

A line is searched by name, never by column; `#` in a pattern stands for a number (1,024  4.71  1.07e+04
np.float64(2.5)). A unit is fixed where the framework fixes it, or read beside the number. What has no unit there is
not read. `elapsed` is the time since the start: between two lines it tells what a mean since the start and a smoothed
rate do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.studies.measured_run.metrics import GB, GIB, MIB, MS

# Commas only before three digits and behind a first digit other than 0: 0,512 and 1.234,5 are no numbers here.
WHOLE = r"(?<!\d)(?<!\d[.,])(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)"
NUMBER = rf"(?:np\.float\d+\()?['\"]?([-+]?(?:{WHOLE}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?![.,]?\d)"
THOUSANDS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}  # as nanotron and Levanter abridge
TIMES = {"us": 1e-6, "ms": MS, "s": 1.0}
# Where a format does not say its own.
STEP = r"(?i:(?<!(?:micro|outer)[ -])(?<![\w/])(?:global_)?(?:step|iter(?:ation)?)s?[=: ]*\[?#)"

Unit = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Format:
    """What one framework prints. `fields`: of Record's, a pattern with the number and its unit."""

    name: str
    sign: re.Pattern[str]
    fields: Mapping[str, tuple[re.Pattern[str], Unit]]
    parts: tuple[re.Pattern[str], float] | None = None  # name and seconds of parts of a step
    tick: float = 1.0  # seconds to which its time since the start is printed


def _format(
    name: str, sign: str, parts: tuple[str, float] | None = None, tick: float = 1.0, **fields: str | tuple[str, Unit]
) -> Format:
    """`fields`: a pattern, with the unit of its number where that is not 1; an empty one for what has no number."""
    own = {key: field for key, field in {"number": STEP, **fields}.items() if field}
    with_unit = {key: (field, 1.0) if isinstance(field, str) else field for key, field in own.items()}
    compiled = {key: (_pattern(text), unit) for key, (text, unit) in with_unit.items()}
    return Format(name, re.compile(sign), compiled, None if parts is None else (_pattern(parts[0]), parts[1]), tick)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("#", NUMBER))


FORMATS = (
    _format(
        "nanotron",
        r"elapsed_time_per_iteration_ms: ",
        seconds=(
            r"elapsed_time_per_iteration_ms: #([KM]?)",
            {prefix: MS * THOUSANDS[prefix] for prefix in ("", "K", "M")},
        ),
        tokens_per_s_per_gpu=(r"tokens_per_sec_per_gpu: #([KMG]?)", THOUSANDS),
        global_batch=(r"global_batch_size: #([KM]?)", THOUSANDS),
        reserved_bytes=(r"cuda_max_memory_reserved: #([KMGT]?)", THOUSANDS),
    ),
    _format(
        "Megatron-LM",
        r"elapsed time per iteration \(ms\): *\d|elapsed_time_per_iteration_ms=\d",
        seconds=(r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?ms\)?[:=] *#", MS),
        tokens_per_s_per_gpu=(
            r"(?i)(?:tokens/s(?:ec)?/gpu|\(tokens/s/gpu\)|tokens/s/gpu inst/harmonic mean|per_second_tgs)[:=] *#",
            1.0,
        ),
        global_batch=r"global[ _]batch[ _]size[:=] *#",
        skipped=r"number[ _]of[ _]skipped[ _]iterations[:=] *#",
    ),
    _format(
        "Megatron memory",
        r"after \d+ iterations\)? memory \(MB\)",
        number=r"after # iterations",
        allocated_bytes=(r"max allocated: #", MIB),
        reserved_bytes=(r"max reserved: #", MIB),
    ),
    _format(
        "Megatron memory",
        r"after \d+ iterations\) memory \(GB\)",
        number=r"after # iterations",
        allocated_bytes=(r"mem-max-allocated-gigabytes: #", GB),
        reserved_bytes=(r"mem-max-reserved-gigabytes: #", GB),
        retries=r"mem-alloc-reti?r(?:ie|e)s: #",
    ),
    _format(
        "torchtitan",
        r"\bstep: *\d+.*\bmemory: *[\d.]+GiB",
        reserved_bytes=(r"memory: *#GiB", GIB),
        tokens_per_s_per_gpu=r"\b(?:tps|wps): *#",
    ),
    _format(
        "NeMo",
        r"train_step_timing in s\"?[:=]",
        number=r"global_step\"?[:=] *#",
        seconds=r"train_step_timing in s\"?[:=] *#",
        allocated_bytes=r"max_memory_allocated[:=] *#",
        reserved_bytes=r"max_memory_reserved[:=] *#",
        tokens_per_s_per_gpu=r"tokens_per_sec_per_gpu[:=] *#",
        global_batch=r"global_batch_size[:=] *#",
    ),
    _format(
        "Hugging Face Trainer",
        r"train_(?:steps|samples)_per_second['\"]? *[:=]",  # with `=` in its table of metrics
        steps_per_s=r"train_steps_per_second['\"]? *[:=] *#",
        samples_per_s=r"train_samples_per_second['\"]? *[:=] *#",
    ),
    _format(
        "ms-swift",  # its speed is a mean since the start
        r"train_speed\((?:iter/s|s/it)\)['\"]?:",
        number=r"global_step/max_steps\]?['\"]?: *#/",
        seconds=r"train_speed\(s/it\)['\"]?: *#",
        steps_per_s=r"train_speed\(iter/s\)['\"]?: *#",
        elapsed=r"elapsed_time['\"]?: *['\"]([\ddhms ]+)",
    ),
    _format(
        "PaddleNLP",
        r"\binterval_steps_per_second:",
        steps_per_s=r"\binterval_steps_per_second: #",
        tokens_per_s_per_gpu=r"interval_tokens_per_second_per_device: #",
        allocated_bytes=(r"max_memory_allocated: #", GIB),
        reserved_bytes=(r"max_memory_reserved: #", GIB),
    ),
    _format("DeepSpeed", r"time \(ms\) \| ", (r"\| ([a-z][a-z_-]*): #", MS), number=""),
    _format(
        "DeepSpeed",
        r"CurrSamplesPerSec=|\d, SamplesPerSec=",
        number=r"(?:global_step=| )#(?:, RunningAvg)",
        samples_per_s=r"(?:Curr|, )SamplesPerSec=#",
    ),
    _format(
        "DeepSpeed pipeline",
        r"\bsteps: \d+ .*\biter time \(s\): ",
        seconds=r"\biter time \(s\): #",
        samples_per_s=r"\bsamples/sec: #",
    ),
    _format(
        "MaxText",
        r"completed step: *\d+, seconds:",
        seconds=r"seconds: *#",
        tokens_per_s_per_gpu=r"[Tt]okens/s/device: *#",
    ),
    _format(
        "mmengine",
        r"(?:(?:Iter|Epoch)\(train\)|Epoch \[\d+\]\[\d+/\d+\]\s+lr:|\"mode\": \"train\",) .*\btime\"?: ",
        number=r"(?:\[ *|\"iter\": )#(?:/\d+\]|,)",
        seconds=r"(?<!_)\btime\"?: *#",
        data_loader=r"data_time\"?: *#",
        reserved_bytes=(r"\bmemory\"?: *#", MIB),
    ),
    _format(
        "xtuner v1",  # `train/trainer.py` of xtuner 1.0: seconds, 2**30 bytes
        r"\bStep \d+/\d+ +data_time: ",
        seconds=r"(?<!_)\btime: *#",
        data_loader=r"data_time: *#",
        allocated_bytes=(r"max_memory: *# ?GB", GIB),
        reserved_bytes=(r"reserved_memory: *# ?GB", GIB),
    ),
    _format(
        "InternEvo",
        r"tgs \(tokens/gpu/second\)=",
        tokens_per_s_per_gpu=r"tgs/last_tgs_1=#",
        tgs=r"tgs \(tokens/gpu/second\)=#",
    ),
    _format("verl", r"timing_s/step:", (r"timing_s/([\w/@.-]+): *#", 1.0), seconds=r"timing_s/step: *#"),
    _format("NeMo RL", r"• Total step time: ", seconds=r"Total step time: *#s"),
    _format("NeMo RL", r"• [\w/ ]+: *[\d.]+s \(", (r"• ([\w/ ]+): *#s", 1.0)),
    _format(
        "nanoGPT",
        r"\bdt: *[\d.,]+ ?m?s\b",
        seconds=(r"\bdt: *# ?(m?s)\b", TIMES),
        tokens_per_s=r"tok/sec: *#",
    ),
    _format("nanoGPT", r"\biter \d+: loss [\d.]+, time [\d.]+ ?ms", seconds=(r", time # ?ms", MS)),
    _format(
        "NeMo Automodel",
        r"\| tps [\d.]+\([\d.]+/gpu\)",
        tokens_per_s_per_gpu=r"\(#/gpu\)",
        reserved_bytes=(r"\| mem # GiB", GIB),
    ),
    _format(
        "torchtune",
        r"\bStep \d+ \| .*\btokens_per_second_per_gpu:",
        tokens_per_s_per_gpu=r"tokens_per_second_per_gpu:#",
    ),
    _format(
        "modded-nanogpt",
        r"\bstep: ?\d+/\d+ .*\btrain_time: ?[\d.]+ms",
        tick=MS,
        seconds=(r"\bstep_avg: ?#ms", MS),
        elapsed=(r"\btrain_time: ?#ms", MS),
    ),
    _format(
        "modded-nanogpt",
        r"peak memory allocated: \d+ MiB reserved: \d+ MiB",
        allocated_bytes=(r"allocated: # MiB", MIB),
        reserved_bytes=(r"reserved: # MiB", MIB),
    ),
    _format(
        "detectron2",
        r"\beta: .*\biter(?:ation)?: *\d+.*\btime: ",
        seconds=r"(?<!_)\btime: *#",
        data_loader=r"\bdata(?:_time)?: *#",
        allocated_bytes=(r"\bmax[_ ]mem: *#", MIB),
    ),
    _format(
        "fairseq",
        r"\| train_inner \| .*\bwps=|\"wps\": .*\"wpb\": ",
        number=r"\bnum_updates\"?[=:] *#",
        steps_per_s=r"\bups\"?[=:] *#",
        tokens_per_s=r"\bwps\"?[=:] *#",
    ),
    _format(
        "lingua",
        r"\bstep: *\d+ .*\bwps: .*\biter: .*\bdata: ",
        tokens_per_s_per_gpu=r"\bwps: *#",
        data_loader=r"\bdata: *#",
    ),
    _format(
        "llm.c",  # and llama2.c
        r"(?:\bstep +\d+/\d+|^\d+) \| loss .*\| +[\d.]+ ?ms(?: \||$)",
        number=r"(?:\bstep +|^)#",
        seconds=(r"\| +# ?ms(?: \||$)", MS),
        tokens_per_s=r"# tok/s",
    ),
    _format(
        "open_clip",
        r"\bTrain Epoch: .*\bBatch \(t\): ",
        seconds=r"\bBatch \(t\): #",
        samples_per_s=r"\bBatch \(t\): [\d.]+, #/s",
        data_loader=r"\bData \(t\): #",
    ),
    _format(
        "torchvision",  # and DETR: the mean of the last 20 steps
        r"\bEpoch: \[\d+\] +\[ *\d+/\d+\] +eta: .*\btime: ",
        number=r"\] +\[ *#/",
        seconds=r"\btime: #",
        data_loader=r"\bdata: #",
        allocated_bytes=(r"\bmax mem: #", MIB),
    ),
    _format(
        "Keras",  # a mean since the epoch's start; without metrics behind it a prediction
        r"\d+/\d+ (?:\[[=>.]+\]|━+) .*/step - ",
        number=r"#/\d+ [\[━]",
        bar_length=r"\d+/# [\[━]",
        seconds=(r" (\d{2,})(us|ms|s)/step", TIMES),  # one digit is too few
    ),
    _format(
        "DeepSpeed-Chat", r"\|E2E latency=", (r"\|([A-Z]\w+ (?:time|latency))=#s", 1.0), seconds=r"\|E2E latency=#s"
    ),
    _format(
        "PyTorch examples",
        r"Epoch: \[\d+\]\[ *\d+/\d+\]\s+Time +[\d.]+ \(",
        number=r"\[ *#/\d+\]",
        seconds=r"Time +#",
        data_loader=r"Data +#",
    ),
    _format(
        "training loop",
        r"(?i)\bstep:? +\d.*(?:\bper-step time [\d.]+ ?m?s\b|[\d.]+ ?sec/step)",
        seconds=(r"(?i)(?:per-step time |[\[(])# ?(m?s)(?:\b|ec/step)", TIMES),
    ),
    _format(
        "Swin Transformer",  # and what descends from it
        r"\bTrain: \[\d+/\d+\]\[\d+/\d+\]\s+eta .*\btime ",
        number=r"\]\[#/",
        seconds=r"\btime #",
        allocated_bytes=(r"\bmem #MB", MIB),
    ),
    _format(
        "Paddle",  # of PaddleOCR, PaddleDetection, PaddleClas
        r"\b(?:avg_)?batch_cost: *[\d.]+ ?s\b",
        number=r"\b(?:[Ii]ter|global_step): *#",
        seconds=r"\b(?:avg_)?batch_cost: *# ?s\b",
        data_loader=r"\b(?:avg_)?reader_cost: *#",
        samples_per_s=r"\bips: *#",
    ),
    _format(
        "training loop",  # no mean, no part, and not litgpt's `iter time`, of a micro-batch
        r"(?i)(?:\b(?:step|iter(?:ation)?).*\b|^)(?:(?:step|iteration)[ _-]|iter_)time ?[:=]? *[\d.,]+ ?m?s(?:ec)?\b",
        seconds=(
            r"(?i)(?<![a-z.][ _])(?:train(?:ing)?[ _])?(?:(?:step|iteration)[ _-]|iter_)time ?[:=]? *# ?(m?s)(?:ec)?\b",
            TIMES,
        ),
    ),
    _format(
        "training loop",  # of DeepSpeed-Domino
        r"(?i)\b(?:step|iteration):? *\d.*\b(?:step|iteration)[ _-]time \(ms\): *\d",
        seconds=(r"(?i)\b(?:step|iteration)[ _-]time \(ms\): *#", MS),
    ),
    _format(
        "training loop",  # picotron, prime-rl and others
        r"(?i)\b(?:step|iter):? *\d+ *[|,].*(?:(?<=[|,]) time: [\d.]+ ?m?s\b|\btokens/(?:s|sec)/gpu:)",
        seconds=(r"(?i)[|,] time: # ?(m?s)\b", TIMES),
        unnamed=r"(?i)[|,] time: #",
        tokens_per_s_per_gpu=(r"(?i)tokens/(?:s|sec)/gpu: *#([KMGT]?)", THOUSANDS),
        tokens_per_s=r"Throughput: # tokens/s",
    ),
    _format(
        "training loop",
        r"(?i)\b(?:batch|step|iter(?:ation)?)[:= ]*\[?\d+.*\b(?:speed|throughput|rate)[:=] *[\d.,]+ samples/s",
        number=r"(?i)\b(?:batch|step|iter(?:ation)?)[:= ]*\[?#",
        # Of the job: not of a GPU.
        samples_per_s=r"(?i)\b(?:speed|throughput|rate)[:=] *# samples/s(?:ec(?:ond)?)?\b(?!/| per )",
    ),
    _format(
        "progress bar",
        r"\d+/\d+ \[[\d:]+<[\d:?]+, *[\d.]+ ?(?:s/(?:it|batch|step)|(?:it|batch|step)/s)",
        number=r" #/\d+ \[",
        seconds=r"<[\d:?]+, *# ?s/(?:it|batch|step)",
        steps_per_s=r"<[\d:?]+, *# ?(?:it|batch|step)/s",
        bar_length=r"\d+/# \[",
        elapsed=r" \d+/\d+ \[([\d:]+)<",
    ),
    _format(
        "progress bar",  # of Levanter
        r"Progress on:(?:train)? *[\d.]+k?it/[\d.]+k?it rate:[\d.]+ ?(?:s/it|it/s)",
        number=(r"Progress on:\w* *#(k?)it/", THOUSANDS),
        seconds=r"\brate:# ?s/it",
        steps_per_s=r"\brate:# ?it/s",
        bar_length=(r"it/#(k?)it", THOUSANDS),
        elapsed=r"\belapsed:([\d:]+)",
    ),
    _format(
        "progress bar",  # of the Hugging Face Trainer in a notebook
        r"\[ *\d+/\d+ [\d:]+ < [\d:]+, *[\d.]+ it/s",
        number=r"\[ *#/\d+ ",
        steps_per_s=r"< [\d:]+, *# it/s",
        bar_length=r"\[ *\d+/# ",
        elapsed=r"\d+/\d+ ([\d:]+) <",
    ),
    _format(
        "training loop",  # not `steps/s`, which may be of an environment
        r"(?i)\b(?:step|iter(?:ation)?|batch):? +\d.*(?:\bit(?:ers?)?/s(?:ec)?\b|\bs(?:ec)?/(?:it(?:er)?|batch)\b)",
        number=r"(?i)\b(?:step|iter(?:ation)?|batch):? +#",
        seconds=r"(?i)# ?s(?:ec)?/(?:it(?:er)?|batch)\b",
        steps_per_s=r"(?i)(?:\bit(?:ers?)?/s(?:ec)?:? |(?=[\d.]+ ?iters?/s))#",
    ),
)
