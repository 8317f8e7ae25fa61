r"""Lines of training logs: which framework prints what, under which name, in which unit.

A line is searched by name, never by column; `#` in a pattern stands for a number (1,024  4.71  1.07e+04
np.float64(2.5)). A unit is fixed where the framework fixes it, or read beside the number. What has no unit there is
not read. `elapsed` is the time since the start: between two lines it tells what a mean since the start and a smoothed
rate do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from windtunnel.studies.measured_run.metrics import GB, GIB, METRICS, MIB, MS, OF_EVALUATION
from windtunnel.studies.measured_run.run import Step
from windtunnel.studies.training.launch.megatron_log import ESCAPES

# Commas only before three digits and behind a first digit other than 0: 0,512 and 1.234,5 are no numbers here.
WHOLE = r"(?<!\d)(?<!\d[.,])(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)"
NUMBER = rf"(?:np\.float\d+\()?['\"]?([-+]?(?:{WHOLE}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?![.,]?\d)"
THOUSANDS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}  # as nanotron and Levanter abridge
TIMES = {"us": 1e-6, "ms": MS, "s": 1.0}
SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
CLOCK = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
RANK = re.compile(r"\[(?:default|rank[- ]?|Rank )(\d+)(?:/\d+)?\]")

Unit = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Format:
    """What one framework prints. `names`: of Record's fields, a pattern with the number and its unit."""

    name: str
    sign: re.Pattern[str]
    fields: Mapping[str, tuple[re.Pattern[str], Unit]]
    parts: tuple[re.Pattern[str], float] | None = None  # name and seconds of parts of a step
    tick: float = 1.0  # seconds to which its time since the start is printed


@dataclass(frozen=True, slots=True)
class Record:
    """What one line says."""

    format: str
    step: Step
    values: Mapping[str, float] = field(default_factory=dict)  # global_batch, allocated_bytes, reserved_bytes, ...
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def _format(
    name: str, sign: str, parts: tuple[str, float] | None = None, tick: float = 1.0, **fields: tuple[str, Unit]
) -> Format:
    compiled = {key: (_pattern(text), unit) for key, (text, unit) in fields.items()}
    return Format(name, re.compile(sign), compiled, None if parts is None else (_pattern(parts[0]), parts[1]), tick)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("#", NUMBER))


FORMATS = (
    _format(
        "nanotron",
        r"elapsed_time_per_iteration_ms: ",
        number=(r"\biteration: #", 1.0),
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
        number=(r"\biteration[=: ] *#", 1.0),
        seconds=(r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?ms\)?[:=] *#", MS),
        tokens_per_s_per_gpu=(
            r"(?i)(?:tokens/s(?:ec)?/gpu|\(tokens/s/gpu\)|tokens/s/gpu inst/harmonic mean|per_second_tgs)[:=] *#",
            1.0,
        ),
        global_batch=(r"global[ _]batch[ _]size[:=] *#", 1.0),
        skipped=(r"number[ _]of[ _]skipped[ _]iterations[:=] *#", 1.0),
    ),
    _format(
        "Megatron memory",
        r"after \d+ iterations\)? memory \(MB\)",
        number=(r"after # iterations", 1.0),
        allocated_bytes=(r"max allocated: #", MIB),
        reserved_bytes=(r"max reserved: #", MIB),
    ),
    _format(
        "Megatron memory",
        r"after \d+ iterations\) memory \(GB\)",
        number=(r"after # iterations", 1.0),
        allocated_bytes=(r"mem-max-allocated-gigabytes: #", GB),
        reserved_bytes=(r"mem-max-reserved-gigabytes: #", GB),
        retries=(r"mem-alloc-reti?r(?:ie|e)s: #", 1.0),
    ),
    _format(
        "torchtitan",
        r"\bstep: *\d+.*\bmemory: *[\d.]+GiB",
        number=(r"\bstep: *#", 1.0),
        reserved_bytes=(r"memory: *#GiB", GIB),
        tokens_per_s_per_gpu=(r"\b(?:tps|wps): *#", 1.0),
    ),
    _format(
        "NeMo",
        r"train_step_timing in s\"?[:=]",
        number=(r"global_step\"?[:=] *#", 1.0),
        seconds=(r"train_step_timing in s\"?[:=] *#", 1.0),
        tokens_per_s_per_gpu=(r"tokens_per_sec_per_gpu[:=] *#", 1.0),
        global_batch=(r"global_batch_size[:=] *#", 1.0),
    ),
    _format(
        "Hugging Face Trainer",
        r"train_steps_per_second['\"]?:",
        steps_per_s=(r"train_steps_per_second['\"]?: *#", 1.0),
        samples_per_s=(r"train_samples_per_second['\"]?: *#", 1.0),
    ),
    _format(
        "ms-swift",  # its speed is a mean since the start
        r"train_speed\((?:iter/s|s/it)\)['\"]?:",
        number=(r"global_step/max_steps\]?['\"]?: *#/", 1.0),
        seconds=(r"train_speed\(s/it\)['\"]?: *#", 1.0),
        steps_per_s=(r"train_speed\(iter/s\)['\"]?: *#", 1.0),
        elapsed=(r"elapsed_time['\"]?: *['\"]([\ddhms ]+)", 1.0),
    ),
    _format(
        "PaddleNLP",
        r"\binterval_steps_per_second:",
        number=(r"\bglobal_step: #", 1.0),
        steps_per_s=(r"\binterval_steps_per_second: #", 1.0),
        tokens_per_s_per_gpu=(r"interval_tokens_per_second_per_device: #", 1.0),
        allocated_bytes=(r"max_memory_allocated: #", GIB),
        reserved_bytes=(r"max_memory_reserved: #", GIB),
    ),
    _format(
        "DeepSpeed",
        r"time \(ms\) \| ",
        (r"\| ([a-z][a-z_-]*): #", MS),
    ),
    _format(
        "DeepSpeed",
        r"CurrSamplesPerSec=|\d, SamplesPerSec=",
        number=(r"(?:global_step=| )#(?:, RunningAvg)", 1.0),
        samples_per_s=(r"(?:Curr|, )SamplesPerSec=#", 1.0),
    ),
    _format(
        "DeepSpeed pipeline",
        r"\bsteps: \d+ .*\biter time \(s\): ",
        number=(r"\bsteps: #", 1.0),
        seconds=(r"\biter time \(s\): #", 1.0),
        samples_per_s=(r"\bsamples/sec: #", 1.0),
    ),
    _format(
        "MaxText",
        r"completed step: *\d+, seconds:",
        number=(r"completed step: *#", 1.0),
        seconds=(r"seconds: *#", 1.0),
        tokens_per_s_per_gpu=(r"[Tt]okens/s/device: *#", 1.0),
    ),
    _format(
        "mmengine",
        r"(?:(?:Iter|Epoch)\(train\)|Epoch \[\d+\]\[\d+/\d+\]\s+lr:) .*\btime: ",
        number=(r"\[ *#/\d+\]", 1.0),
        seconds=(r"(?<!_)\btime: *#", 1.0),
        data_loader=(r"data_time: *#", 1.0),
        reserved_bytes=(r"\bmemory: *#", MIB),
    ),
    _format(
        "xtuner v1",  # `train/trainer.py` of xtuner 1.0: seconds, 2**30 bytes
        r"\bStep \d+/\d+ +data_time: ",
        number=(r"\bStep #/", 1.0),
        seconds=(r"(?<!_)\btime: *#", 1.0),
        data_loader=(r"data_time: *#", 1.0),
        allocated_bytes=(r"max_memory: *# ?GB", GIB),
        reserved_bytes=(r"reserved_memory: *# ?GB", GIB),
    ),
    _format(
        "InternEvo",
        r"tgs \(tokens/gpu/second\)=",
        number=(r"\bstep=#", 1.0),
        tokens_per_s_per_gpu=(r"tgs/last_tgs_1=#", 1.0),
        tgs=(r"tgs \(tokens/gpu/second\)=#", 1.0),
    ),
    _format(
        "verl",
        r"timing_s/step:",
        (r"timing_s/([\w/@.-]+): *#", 1.0),
        number=(r"\bstep:#", 1.0),
        seconds=(r"timing_s/step: *#", 1.0),
    ),
    _format("NeMo RL", r"• Total step time: ", seconds=(r"Total step time: *#s", 1.0)),
    _format("NeMo RL", r"• [\w/ ]+: *[\d.]+s \(", (r"• ([\w/ ]+): *#s", 1.0)),
    _format(
        "nanoGPT",
        r"\bdt: *[\d.,]+ ?m?s\b",
        number=(r"\bstep:? *#", 1.0),
        seconds=(r"\bdt: *# ?(m?s)\b", TIMES),
        tokens_per_s=(r"tok/sec: *#", 1.0),
    ),
    _format(
        "nanoGPT",
        r"\biter \d+: loss [\d.]+, time [\d.]+ ?ms",
        number=(r"\biter #:", 1.0),
        seconds=(r", time # ?ms", MS),
    ),
    _format(
        "NeMo Automodel",
        r"\| tps [\d.]+\([\d.]+/gpu\)",
        number=(r"\| step #", 1.0),
        tokens_per_s_per_gpu=(r"\(#/gpu\)", 1.0),
        reserved_bytes=(r"\| mem # GiB", GIB),
    ),
    _format(
        "torchtune",
        r"\bStep \d+ \| .*\btokens_per_second_per_gpu:",
        number=(r"\bStep #", 1.0),
        tokens_per_s_per_gpu=(r"tokens_per_second_per_gpu:#", 1.0),
    ),
    _format(
        "modded-nanogpt",
        r"\bstep: ?\d+/\d+ .*\btrain_time: ?[\d.]+ms",
        tick=MS,
        number=(r"\bstep: ?#/", 1.0),
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
        number=(r"\biter(?:ation)?: *#", 1.0),
        seconds=(r"(?<!_)\btime: *#", 1.0),
        data_loader=(r"\bdata_time: *#", 1.0),
        allocated_bytes=(r"\bmax_mem: *#M", MIB),
    ),
    _format(
        "fairseq",
        r"\| train_inner \| .*\bwps=|\"wps\": .*\"wpb\": ",
        number=(r"\bnum_updates\"?[=:] *#", 1.0),
        steps_per_s=(r"\bups\"?[=:] *#", 1.0),
        tokens_per_s=(r"\bwps\"?[=:] *#", 1.0),
    ),
    _format(
        "lingua",
        r"\bstep: *\d+ .*\bwps: .*\biter: .*\bdata: ",
        number=(r"\bstep: *#", 1.0),
        tokens_per_s_per_gpu=(r"\bwps: *#", 1.0),
        data_loader=(r"\bdata: *#", 1.0),
    ),
    _format(
        "llm.c",
        r"\bstep +\d+/\d+ \| loss .*\| +[\d.]+ ms \| .*tok/s",
        number=(r"\bstep +#/", 1.0),
        seconds=(r"\| +# ms \|", MS),
        tokens_per_s=(r"# tok/s", 1.0),
    ),
    _format(
        "open_clip",
        r"\bTrain Epoch: .*\bBatch \(t\): ",
        seconds=(r"\bBatch \(t\): #", 1.0),
        samples_per_s=(r"\bBatch \(t\): [\d.]+, #/s", 1.0),
        data_loader=(r"\bData \(t\): #", 1.0),
    ),
    _format(
        "torchvision",  # and DETR: the mean of the last 20 steps
        r"\bEpoch: \[\d+\] +\[ *\d+/\d+\] +eta: .*\btime: ",
        number=(r"\] +\[ *#/", 1.0),
        seconds=(r"\btime: #", 1.0),
        data_loader=(r"\bdata: #", 1.0),
        allocated_bytes=(r"\bmax mem: #", MIB),
    ),
    _format(
        "Keras",  # a mean since the epoch's start; without metrics behind it a prediction
        r"\d+/\d+ (?:\[[=>.]+\]|━+) .*/step - ",
        number=(r"#/\d+ [\[━]", 1.0),
        bar_length=(r"\d+/# [\[━]", 1.0),
        seconds=(r" (\d{2,})(us|ms|s)/step", TIMES),  # one digit is too few
    ),
    _format(
        "DeepSpeed-Chat",
        r"\|E2E latency=",
        (r"\|([A-Z]\w+ (?:time|latency))=#s", 1.0),
        seconds=(r"\|E2E latency=#s", 1.0),
    ),
    _format(
        "PyTorch examples",
        r"Epoch: \[\d+\]\[ *\d+/\d+\]\s+Time +[\d.]+ \(",
        number=(r"\[ *#/\d+\]", 1.0),
        seconds=(r"Time +#", 1.0),
        data_loader=(r"Data +#", 1.0),
    ),
    _format(
        "training loop",
        r"(?i)\bstep:? +\d.*(?:\bper-step time [\d.]+ ?m?s\b|[\d.]+ ?sec/step)",
        number=(r"(?i)\bstep:? +#", 1.0),
        seconds=(r"(?i)(?:per-step time |[\[(])# ?(m?s)(?:\b|ec/step)", TIMES),
    ),
    _format(
        "training loop",
        r"(?i)\bstep.*\bstep[ _]time ?:? *[\d.,]+ ?m?s\b",
        number=(r"(?i)(?<!outer )\bstep:? +\[?#", 1.0),
        seconds=(r"(?i)(?<![a-z.][ _])(?:train(?:ing)?[ _])?step[ _]time ?:? *# ?(m?s)\b", TIMES),  # no mean, no part
    ),
    _format(
        "training loop",  # picotron, prime-rl and others
        r"(?i)\b(?:step|iter):? *\d+ *\|.*(?:(?<=\|) time: [\d.]+ ?m?s\b|\btokens/s/gpu:)",
        number=(r"(?i)\b(?:step|iter):? *#", 1.0),
        seconds=(r"(?i)\| time: # ?(m?s)\b", TIMES),
        tokens_per_s_per_gpu=(r"(?i)tokens/s/gpu: *#([KMGT]?)", THOUSANDS),
        tokens_per_s=(r"Throughput: # tokens/s", 1.0),
    ),
    _format(
        "training loop",
        r"(?i)\b(?:batch|step|iter(?:ation)?)[: ]*\[?\d+.*\bspeed: *[\d.]+ samples/s",
        number=(r"(?i)\b(?:batch|step|iter(?:ation)?)[: ]*\[?#", 1.0),
        samples_per_s=(r"(?i)\bspeed: *# samples/s", 1.0),
    ),
    _format(
        "progress bar",
        r"\d+/\d+ \[[\d:]+<[\d:?]+, *[\d.]+ ?(?:s/it|it/s)",
        number=(r" #/\d+ \[", 1.0),
        seconds=(r"<[\d:?]+, *# ?s/it", 1.0),
        steps_per_s=(r"<[\d:?]+, *# ?it/s", 1.0),
        bar_length=(r"\d+/# \[", 1.0),
        elapsed=(r" \d+/\d+ \[([\d:]+)<", 1.0),
    ),
    _format(
        "progress bar",  # of Levanter
        r"Progress on:(?:train)? *[\d.]+k?it/[\d.]+k?it rate:[\d.]+ ?(?:s/it|it/s)",
        number=(r"Progress on:\w* *#(k?)it/", THOUSANDS),
        seconds=(r"\brate:# ?s/it", 1.0),
        steps_per_s=(r"\brate:# ?it/s", 1.0),
        bar_length=(r"it/#(k?)it", THOUSANDS),
        elapsed=(r"\belapsed:([\d:]+)", 1.0),
    ),
)
# Bars of what is no training step: what is loaded, made or judged before and beside it, and parts of a step of RL.
OTHER_BARS = re.compile(
    r"(?i)(?<![\w-])(?:(?:down)?load(?:ing|ed)?|fetch(?:ing)?|map|filter(?:ing)?|tokeni[sz](?:e|ing|ation)|(?:pre)?process"
    r"(?:ing|ed)?|pack(?:ing)?|cast(?:ing)?|generat(?:e|ed|ing|ion)|prompts?|sampl(?:e|es|ing)|eval(?:uat\w+)?"
    r"|valid(?:at\w+)?|test(?:ing)?|sanity|predict(?:ing|ions?)?|captur(?:e|ing)|saving"
    r"|train epoch|train step of epoch)(?!\w)[\w .,=()\[\]/-]*:? *\d+%"
)
TRAINING_BAR = re.compile(r"(?i)(?:^|[^\w ]) *training\b[\w .,=()\[\]/-]*:? *\d+%")
JUDGING = r"(?<![a-z])(?:eval(?:uat\w+)?|valid(?:at\w+)?|val|test(?:ing)?)(?![a-z])"
# A line of an evaluation: it stands before the step's number.
JUDGING_STEP = re.compile(rf"(?i){JUDGING}[\]):|\s-]*(?:global[ _])?(?:step|iter|batch|epoch)")
# In a loop of nobody's framework also a line that tells of one, or of what is saved: its time is of that.
BESIDE_STEPS = re.compile(rf"(?i){JUDGING}|\b(?:checkpoint|ckpt|sav(?:ed|ing)\b)")
OWN_LOOPS = ("training loop", "nanoGPT")
NAMED = re.compile(
    rf"(?<!\w)((?:[\w.-]{{1,64}}/){{0,8}})({'|'.join(map(re.escape, METRICS))})['\"]? *[:=] *{NUMBER}"
    r"(?: ?(us|ms|s|sec|seconds?)\b|([a-zA-Z]+))?"
)
ROUNDING = 0.02  # of a rate that is printed with few digits, from which on it is not read
TIMER = re.compile(rf"^\W*([a-z][\w/-]*) \.{{3,}}: \({NUMBER}, {NUMBER}\)")
TIMERS_ONCE = ("setup", "load-checkpoint", "save-checkpoint", "evaluate", "iterators")
ABOUT_STEPS = ("step", "iter", "train", "batch", "loss", "latency", "throughput", "perf/", "timing", "samples")
HAS_TIME = re.compile(
    r"\bwps\b|\d ?m?s\b|\d ?(?:it|s|sec)/|\bms\b|\bsec|\btok|\btime|timing|perf/|(?:/|_per_)s(?:ec(?:ond)?)?\b"
)
HAS_NUMBER = re.compile(r"\d")
STEP_FIELDS = ("number", "seconds", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s")


def looks_timed(text: str) -> bool:
    """Whether a line that no framework here prints may say how long a step takes."""
    line = text.lower()
    return any(word in line for word in ABOUT_STEPS) and bool(HAS_NUMBER.search(line) and HAS_TIME.search(line))


def read_line(text: str) -> Record | None:
    """What a line says; None for what no framework here prints."""
    line = ESCAPES.sub("", text)
    if JUDGING_STEP.search(line):
        return None
    for form in FORMATS:
        if form.sign.search(line):
            record = _read(form, line)
            if record is not None:
                return record
    timer = TIMER.match(line)
    if timer and not any(word in timer[1] for word in TIMERS_ONCE):
        return Record("Megatron timers", Step(), spread={timer[1]: (_number(timer[2]) * MS, _number(timer[3]) * MS)})
    return _record("named metrics", line, _metrics(line), {})


def _read(form: Format, line: str) -> Record | None:
    if form.name == "progress bar" and OTHER_BARS.search(line) and not TRAINING_BAR.search(line):
        return None
    if form.name in OWN_LOOPS and BESIDE_STEPS.search(line):
        return None
    values: dict[str, float] = {}
    rounded = ""
    for name, (pattern, unit) in form.fields.items():
        match = pattern.search(line)
        if match and name == "steps_per_s" and _is_rounded(match[1]):
            rounded = match[1]
        elif match:
            values[name] = _number(match[1]) * (unit[match[2]] if isinstance(unit, Mapping) else unit)
    if rounded and values.get("elapsed"):  # then its clock has more digits, unless the run went on from a checkpoint
        rate = values.get("number", 0.0) / values["elapsed"]
        if abs(rate - _number(rounded)) <= _rounding(rounded):
            values["steps_per_s"] = rate
    parts: dict[str, float] = {}
    if form.parts is not None:
        pattern, factor = form.parts
        parts = {name.strip(): _number(text) * factor for name, text in pattern.findall(line)}
    beside = {name: value for name, value in _metrics(line).items() if name.endswith("_bytes")}
    return _record(form.name, line, beside | values, parts)


def _metrics(line: str) -> dict[str, float]:
    """Metrics that have the same name and unit wherever they are printed."""
    values: dict[str, float] = {}
    for path, name, text, seconds, other in NAMED.findall(line):
        field, unit = METRICS[name]
        if OF_EVALUATION.search(path) or (field == "steps_per_s" and _is_rounded(text)):
            continue
        if field == "seconds" and seconds:
            unit = TIMES[seconds if seconds in TIMES else "s"]
        elif (seconds or other) and not field.endswith("_bytes"):
            continue  # thousands, minutes: nobody here prints it so
        values[field] = _number(text) * unit
    return values


def _record(form: str, line: str, values: dict[str, float], parts: dict[str, float]) -> Record | None:
    """None for a line that has a number of a step and nothing else."""
    if "data_loader" in values:
        parts["data loader"] = values.pop("data_loader")
    if not values.keys() - {"number", "bar_length"} and not parts:
        return None
    if "tgs" in values:  # the step's own, where there is no newer name for it
        values.setdefault("tokens_per_s_per_gpu", values.pop("tgs"))
    if values.get("steps_per_s"):
        values["seconds"] = 1.0 / values.pop("steps_per_s")
    for names in (("fwd", "bwd", "step"), ("forward", "backward", "step")):
        if parts.keys() >= set(names):  # DeepSpeed's sums over the micro-steps of one step, before and since 0.14
            values["seconds"] = sum(parts[name] for name in names)
    own = {name: values.pop(name) for name in STEP_FIELDS if name in values}
    number = own.pop("number", None)
    rank = RANK.search(line)
    step = Step(
        None if number is None else int(number),
        clock_s=_clock(line),
        rank=None if rank is None else int(rank[1]),
        phases=parts,
        **{name: value for name, value in own.items() if value > 0.0},
    )
    return Record(form, step, values)


def _is_rounded(text: str) -> bool:
    """Whether what a rate was rounded by is too much of it: `0.005` steps a second are 182 to 222 seconds."""
    return _number(text) > 0.0 and _rounding(text) > ROUNDING * _number(text)


def _rounding(text: str) -> float:
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


def _number(text: str) -> float:
    """A number, or a time as bars and ms-swift write it: `1:02:03`, `4m 34s`."""
    if ":" in text or text.rstrip()[-1:].isalpha():
        units = re.findall(r"(\d+) *([dhms])", text)
        if units:
            return float(sum(int(count) * SECONDS[unit] for count, unit in units))
        total = 0
        for part in text.split(":"):
            total = 60 * total + int(part or 0)
        return float(total)
    return float(text.replace(",", ""))


def _clock(line: str) -> float | None:
    match = CLOCK.search(line)
    if match is None:
        return None
    *whole, part = match.groups()
    try:
        year, month, day, hour, minute, second = map(int, whole)
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp() + float(f"0.{part or 0}")
    except (ValueError, OverflowError):
        return None
