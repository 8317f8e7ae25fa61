"""What a line of a training log says: by the first known format that it has, as a timer, or by metrics' names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from windtunnel.studies.measured_run.formats import FORMATS, NUMBER, STEP, TIMES, Format
from windtunnel.studies.measured_run.metrics import METRICS, MS, OF_EVALUATION
from windtunnel.studies.measured_run.run import Step
from windtunnel.studies.training.launch.megatron.log import ESCAPES

SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
CLOCK = re.compile(  # glog's has no year
    r"(?:(\d{4})[-/](\d\d)[-/](\d\d)[ T]|\bI(\d\d)(\d\d) )(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?"
)
# An inner step may be a step, as DiLoCo's, or a part of one: its clock alone does not tell.
NUMBERED = re.compile(r"(?i)(?<!inner[ -])" + STEP.replace("step|", "step|batch|").replace("#", NUMBER) + r".*\bloss")
RANK = re.compile(r"\[(?:default|rank[- ]?|Rank )(\d+)(?:/\d+)?\]")
# Bars of what is no training step: what is loaded, made or judged before and beside it, and parts of a step of RL.
OTHER_BARS = re.compile(
    r"(?i)(?<![\w-])(?:(?:down)?load(?:ing|ed)?|fetch(?:ing)?|map|filter(?:ing)?|tokeni[sz](?:e|ing|ation)|(?:pre)?process"
    r"(?:ing|ed)?|pack(?:ing)?|cast(?:ing)?|generat(?:e|ed|ing|ion)|prompts?|sampl(?:e|es|ing)|eval(?:uat\w+)?"
    r"|valid(?:at\w+)?|test(?:ing)?|sanity|predict(?:ing|ions?)?|captur(?:e|ing)|saving|calculating|map50-95"
    r"|train epoch|train step of epoch)(?!\w)[\w .,=()\[\]/-]*:? *\d+%"
)
TRAINING_BAR = re.compile(r"(?i)(?:^|[^\w ]) *training\b[\w .,=()\[\]/-]*:? *\d+%")
JUDGING = r"(?<![a-z])(?:eval(?:uat\w+)?|valid(?:at\w+)?|val|test(?:ing)?)(?![a-z])"
# A line of an evaluation: it stands before the step's number.
JUDGING_STEP = re.compile(rf"(?i){JUDGING}[\[\]):|\s-]*(?:global[ _])?(?:step|iter|batch|epoch)")
# In a loop of nobody's framework also a line that tells of one, or of what is saved: its time is of that.
BESIDE_STEPS = re.compile(rf"(?i){JUDGING}|\b(?:checkpoint|ckpt|sav(?:ed|ing)\b)")
MICRO_STEP = re.compile(r"(?i)\bmicro[ _-]?(?:step|iter(?:ation)?)[=: ]*\[?\d")
OWN_LOOPS = ("training loop", "nanoGPT")
NAMED = re.compile(
    rf"(?<!\w)((?:[\w.-]{{1,64}}/){{0,8}})({'|'.join(map(re.escape, METRICS))})['\"]? *[:=] *{NUMBER}"
    r"(?: ?(us|ms|s|sec|seconds?)\b|([a-zA-Z]+))?"
)
ROUNDING = 0.02  # of a rate that is printed with few digits, from which on it is not read
TIMER = re.compile(rf"^\W*([a-z][\w/-]*) \.{{3,}}: \({NUMBER}, {NUMBER}\)")
TIMERS_ONCE = ("setup", "load-checkpoint", "save-checkpoint", "evaluate", "iterators")
ABOUT_STEPS = (
    "step", "iter", "train", "batch", "loss", "latency", "throughput", "perf/", "timing", "samples", "images/",
    "words/", "elapsed", "epoch",
)  # fmt: skip
HAS_TIME = re.compile(
    r"\bwps\b|\bdt\b|\d ?m?s\b|\d ?(?:it|s|sec)/|\bms\b|\bsec|\btok|(?<![a-z])time|latency|timing|perf/|_s[:=]"
    r"|(?:/|_per_)s(?:ec(?:ond)?)?\b"
)
HAS_NUMBER = re.compile(r"\d")
STEP_FIELDS = ("number", "seconds", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s")


@dataclass(frozen=True, slots=True)
class Record:
    """What one line says."""

    format: str
    step: Step
    values: Mapping[str, float] = field(default_factory=dict)  # global_batch, allocated_bytes, reserved_bytes, ...
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)


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
    return _record("named metrics", line, _metrics(line), {}) or _numbered(line)


def _numbered(line: str) -> Record | None:
    """A step with its loss and no time but the clock of its line."""
    step, clock_s = NUMBERED.search(line), clock_of(line)
    if step is None or clock_s is None or BESIDE_STEPS.search(line) or looks_timed(line):
        return None
    return Record("numbered lines", Step(int(_number(step[1])), clock_s=clock_s))


def _read(form: Format, line: str) -> Record | None:
    if form.name == "progress bar" and OTHER_BARS.search(line) and not TRAINING_BAR.search(line):
        return None
    if form.name in OWN_LOOPS and (BESIDE_STEPS.search(line) or MICRO_STEP.search(line)):
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
    if "update" in values:
        values["seconds"] = values.pop("update") + parts.get("data loader", 0.0)
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
        clock_s=clock_of(line),
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


def clock_of(text: str) -> float | None:
    """The date and time that a line or a cell holds, in seconds; glog's in a year that is not said."""
    match = CLOCK.search(text)
    if match is None:
        return None
    *date, glog_month, glog_day, hours, minutes, seconds, part = match.groups()
    try:
        year, month, day = map(int, date if date[0] else ("2000", glog_month, glog_day))
        hour, minute, second = int(hours), int(minutes), int(seconds)
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp() + float(f"0.{part or 0}")
    except (ValueError, OverflowError):
        return None
