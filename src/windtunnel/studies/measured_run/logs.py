"""Text logs as a run: lines of one or several frameworks, and the arguments that Megatron-Core prints of itself."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, pairwise
from statistics import median

from windtunnel.studies.measured_run.formats import FORMATS
from windtunnel.studies.measured_run.lines import Record, looks_timed, read_line
from windtunnel.studies.measured_run.run import OUTLIER, MeasuredRun, Step
from windtunnel.studies.training.launch.megatron.log import BLOCK_BEGINS, BLOCK_ENDS, ESCAPES, arguments_of

WORLD = re.compile(r"\bworld[ _]size(?: is)?[:=]? *(\d{1,7})\b")
BAR, TRAINER, DEEPSPEED, NAMED = "progress bar", "Hugging Face Trainer", "DeepSpeed", "named metrics"
KERAS = "Keras"
LOOP = "training loop"  # of nobody's framework
LEAST_TRUSTED = (BAR, LOOP, NAMED, TRAINER, "numbered lines")  # step times only where nothing else has any
MEANS = (TRAINER, "ms-swift", "modded-nanogpt", KERAS)  # what they say themselves is a mean since the start
LINE_MOST = 4_000  # characters that are read of a line: patterns look for their words from every place of it
SHOWN = 160  # characters of a line that was not understood
RISING = 4  # lines from which times that only rise are no step times
SHORT = 10.0  # the same where a bar's short log is all there is
EXACT = 20.0  # as many times as it is rounded to, time since the start has to go on before it tells a step's time
TICK = {form.name: form.tick for form in FORMATS if "elapsed" in form.fields}


def run_of_text(text: str, source: str) -> MeasuredRun:
    """What a log says."""
    records: list[Record] = []
    odd: list[str] = []
    lines = [line[:LINE_MOST] for line in text.replace("\r", "\n").splitlines()]
    arguments = arguments_of(lines)
    inside = False
    world: re.Match[str] | None = None
    for line in lines:
        if not line.strip():
            continue
        if inside or BLOCK_BEGINS.search(line):
            inside = not BLOCK_ENDS.search(line)
            continue
        world = world or (None if line.lstrip()[0] == "#" else WORLD.search(line))  # no comment of printed code
        record = read_line(line)
        if record is not None:
            records.append(record)
        elif looks_timed(line):
            odd.append(ESCAPES.sub("", line).strip()[:SHOWN])
    run = _joined(records, odd, arguments, source, arguments.get("world_size", world[1] if world else ""))
    if records or odd or arguments:
        return run
    first = next((line.strip()[:SHOWN] for line in lines if line.strip()), "it is empty")
    return replace(run, notes=(f"no line looks like a step: {first}",))


def _joined(records: list[Record], odd: list[str], arguments: dict[str, str], source: str, world: str) -> MeasuredRun:
    records, notes = _one_bar(records)
    records = _whole_steps(records, notes, odd)
    records, elapsed_forms = _by_elapsed(records)
    timed = Counter(record.format for record in records if _is_timed(record.step))
    by_clock = not timed
    if by_clock:  # then the times at which numbered steps were printed
        timed = Counter(record.format for record in records if _is_clocked(record))
    trusted = {name: count for name, count in timed.items() if name not in LEAST_TRUSTED} or dict(timed)
    if TRAINER in trusted and BAR in trusted:  # one mean with start and end in it; else a bar rounds and is smoothed
        del trusted[TRAINER if BAR in elapsed_forms else BAR]
    form = max(trusted, key=lambda name: (trusted[name], name), default="")
    if form == DEEPSPEED and _seconds(records, BAR) > _seconds(records, DEEPSPEED) > 0.0:
        form = BAR
        notes.append("step time of the progress bar: DeepSpeed's parts leave out what lies between them")
    is_mean = form in MEANS and form not in elapsed_forms
    if is_mean:
        records = _longest_of(records, form)
    steps: list[Step] = []
    phases: dict[str, float] = {}
    skipped = 0
    for record in records:
        if record.format == form and (_is_clocked(record) if by_clock else _is_timed(record.step)):
            steps.append(replace(record.step, phases={**phases, **record.step.phases}))
            phases = {}
            skipped += int(record.values.get("skipped", 0))
        elif record.step.phases:
            phases |= record.step.phases  # printed before or beside the step that they are of
    if form == LOOP and _is_of_several_steps(records):
        odd.append("`time` of lines that are several steps apart may be of one of them or of all")
        steps = []
    if form == LOOP and _rises([step.seconds for step in steps if step.seconds is not None]):
        odd.append("times that rise from line to line look like the time since the start")
        steps = []
    if not (steps or timed) and any("elapsed" in record.values for record in records):
        odd.append("a clock in whole seconds and a rate of two digits are rounded too much to tell a step's time")
    if phases and steps:
        steps[-1] = replace(steps[-1], phases={**steps[-1].phases, **phases})
    elif phases:
        steps = [Step(phases=phases)]
        notes.append("parts of micro-steps without a step: how many of them make a step is not said")
    numbers = [step.number for step in steps if step.number is not None]
    back = sum(b < a for a, b in pairwise(numbers))
    if back:
        notes.append(f"step numbers go back {back} times: restarts, or several jobs in one file")
    if skipped:
        notes.append(f"{skipped:,} iterations were skipped: loss scaling, which takes less time than an update")
    others = sorted(set(timed) - {form, BAR, NAMED})
    if others:
        notes.append(f"step times of {form}; those of {', '.join(others)} in the same file are not used")
    spread = {name: pair for record in records for name, pair in record.spread.items()}
    batches = [record.values["global_batch"] for record in records if "global_batch" in record.values]
    if len(set(batches[-len(batches) // 2 :])) > 1:
        notes.append("the global batch changes in the log: step times are of several batches")
    return MeasuredRun(
        source,
        form or next((record.format for record in records), ""),
        tuple(steps),
        _peaks(records, "allocated_bytes"),
        _peaks(records, "reserved_bytes"),
        spread,
        int(world) if world.isascii() and world.isdigit() else None,
        int(batches[-1]) if batches else None,
        arguments,
        is_mean=is_mean,
        notes=tuple(notes) + _retries(records),
        not_understood=tuple(odd),
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """Where the lines of one progress bar stand, and what they come to."""

    length: float
    lines: int
    first: int
    last: int
    rounds: int  # as often as it started
    steps: int  # as far as it came
    clock_s: float  # all rounds together

    def counts(self, other: Bar) -> bool:
        """Whether it goes on by one as the other has gone through: epochs, of the other's steps."""
        return other.length > self.length and other.rounds >= self.steps

    def encloses(self, other: Bar) -> bool:
        """Whether its clock runs on while the other starts."""
        return self.rounds == 1 and self.first < other.first < self.last


def _whole_steps(records: list[Record], notes: list[str], odd: list[str]) -> list[Record]:
    """A step of litgpt is its micro-steps, up to the one with the optimizer in it, where a line stands for each.

    One that is printed alone holds the work of those before it, which nobody waited for: no step follows from it.
    """
    joined: list[Record] = []
    before, seconds = 0, 0.0  # NaN: begun before the first line, or within a gap
    for record in records:
        micro_step = round(record.values.get("micro_step", 0.0))
        if not micro_step:
            joined.append(record)
            continue
        seconds = (seconds if micro_step == before + 1 else math.nan) + record.values["micro_s"]
        before = micro_step
        if "updates" in record.values:
            if seconds == seconds:
                joined.append(replace(record, step=replace(record.step, seconds=seconds)))
            seconds = 0.0
    steps = sum("micro_step" in record.values for record in joined)
    if steps:
        notes.append("a step of litgpt is the sum of its micro-steps; pretrain's do not hold the data loader")
    elif before:
        odd.append(
            "litgpt printed no two micro-steps of a step in a row, and one alone tells no step's time: give what its"
            " TensorBoard or W&B logger wrote (--logger_name), which has clock and step"
        )
    return joined


def _one_bar(records: list[Record]) -> tuple[list[Record], list[str]]:
    """Of several progress bars that of training: not of epochs, nor of what is tokenised or evaluated beside it."""
    notes: list[str] = []
    for form in (BAR, KERAS):
        places: dict[float, list[int]] = {}
        for at, record in enumerate(records):
            if record.format == form:
                places.setdefault(record.values.get("bar_length", 0.0), []).append(at)
        if len(places) < 2:
            continue
        bars = [_bar(records, length, lines) for length, lines in places.items()]
        bars = [bar for bar in bars if not any(bar.counts(other) for other in bars)]
        outer = [bar for bar in bars if not any(other.encloses(bar) for other in bars)]
        training = max(outer, key=lambda bar: (bar.clock_s, bar.lines, bar.length))
        own_lines = set(places[training.length])
        records = [record for at, record in enumerate(records) if record.format != form or at in own_lines]
        notes.append(f"of several progress bars, that of {training.length:,.0f} steps is read")
    return records, notes


def _bar(records: Sequence[Record], length: float, lines: Sequence[int]) -> Bar:
    ticks = [(records[at].step.number or 0, records[at].values.get("elapsed", 0.0)) for at in lines]
    ends = [before for before, after in pairwise(ticks) if after[0] < before[0] or after[1] < before[1]] + [ticks[-1]]
    steps = max(number for number, _ in ticks)
    return Bar(length, len(lines), lines[0], lines[-1], len(ends), steps, sum(clock for _, clock in ends))


def _by_elapsed(records: list[Record]) -> tuple[list[Record], set[str]]:
    """Step times from the time since the start, for the frameworks that print it and where it goes on enough."""
    lines: dict[str, list[tuple[int, int, float]]] = {}
    for at, record in enumerate(records):
        number, elapsed = record.step.number, record.values.get("elapsed")
        if number is not None and elapsed is not None:
            lines.setdefault(record.format, []).append((at, number, elapsed))
    seconds_at: dict[int, float] = {}
    for form, places in lines.items():
        seconds_at |= _between(places, TICK[form], EXACT)
        if form == BAR and not seconds_at:  # a short log: its own rate has its first steps in it
            seconds_at |= _between(places, TICK[form], SHORT)
    forms = {records[at].format for at in seconds_at}
    timed = [
        replace(record, step=replace(record.step, seconds=seconds_at[at])) if at in seconds_at else record
        for at, record in enumerate(records)
        if at in seconds_at or record.format not in forms or "elapsed" not in record.values
    ]
    return timed, forms


def _between(lines: Sequence[tuple[int, int, float]], tick: float, exact: float) -> dict[int, float]:
    """Seconds a step of each line: as much time together as the rounding of the clock asks for, pauses apart."""
    gaps: list[tuple[int, int, float]] = []
    lines = list(dropwhile(lambda line: line[2] == 0.0, lines))  # a clock may start behind the first steps
    _, number, elapsed = lines[0] if lines else (0, 0, 0.0)
    for at, next_number, next_elapsed in lines[1:]:
        if next_number == number and next_elapsed >= elapsed:
            continue  # the same step again
        if next_number > number and next_elapsed >= elapsed:
            gaps.append((at, next_number - number, next_elapsed - elapsed))
        number, elapsed = next_number, next_elapsed
    rates = sorted(seconds / steps for _, steps, seconds in gaps)
    usual = rates[len(rates) // 4] if rates else 0.0  # an evaluation may be in every second gap
    pauses: dict[int, float] = {}
    seconds_at: dict[int, float] = {}
    waiting: list[int] = []
    all_steps, all_seconds = 0, 0.0
    for at, steps, seconds in gaps:
        if seconds > OUTLIER * usual * steps + 2.0 * tick:  # each end is rounded by up to a tick
            pauses[at] = seconds / steps
            continue
        waiting.append(at)
        all_steps, all_seconds = all_steps + steps, all_seconds + seconds
        if all_seconds >= exact * tick:
            seconds_at |= dict.fromkeys(waiting, all_seconds / all_steps)
            waiting, all_steps, all_seconds = [], 0, 0.0
    return seconds_at | pauses if seconds_at else {}


def _seconds(records: Iterable[Record], form: str) -> float:
    """The median of the step times that a framework says; 0 without one."""
    seconds = [record.step.seconds for record in records if record.format == form and record.step.seconds is not None]
    return median(seconds) if seconds else 0.0


def _is_of_several_steps(records: Iterable[Record]) -> bool:
    """Whether a time that no name says to be a step's stands on lines that are mostly not one step apart."""
    numbers = [
        record.step.number for record in records if "unnamed" in record.values and record.step.number is not None
    ]
    gaps = [b - a for a, b in pairwise(numbers) if b > a]  # ranks print the same step, a run goes on from a checkpoint
    return bool(gaps) and median(gaps) > 1


def _rises(times: Sequence[float]) -> bool:
    return len(times) >= RISING and all(a < b for a, b in pairwise(times)) and times[-1] > 2.0 * times[0]


def _longest_of(records: list[Record], form: str) -> list[Record]:
    """Of the means since a start the one of most steps, the last of several; the other frameworks' lines stay."""
    timed = {at for at, record in enumerate(records) if record.format == form and _is_timed(record.step)}
    longest = max(timed, key=lambda at: (records[at].step.number or 0, at))
    return [record for at, record in enumerate(records) if at == longest or at not in timed]


def _is_timed(step: Step) -> bool:
    rates = step.tokens_per_s_per_gpu or step.tokens_per_s or step.samples_per_s
    return step.seconds is not None or bool(rates)


def _is_clocked(record: Record) -> bool:
    return record.format != "Megatron memory" and record.step.number is not None and record.step.clock_s is not None


def _peaks(records: Iterable[Record], name: str) -> dict[int, int]:
    peaks: dict[int, int] = {}
    for record in records:
        if record.values.get(name):
            rank = record.step.rank or 0
            peaks[rank] = max(peaks.get(rank, 0), round(record.values[name]))
    return peaks


def _retries(records: Iterable[Record]) -> tuple[str, ...]:
    most = max((int(record.values.get("retries", 0)) for record in records), default=0)
    return (f"the allocator had to start over {most:,} times: memory is full",) if most else ()
