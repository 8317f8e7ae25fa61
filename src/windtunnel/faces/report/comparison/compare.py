"""Two results side by side: how far apart they are, where in the step that lies, and what was asked differently.

The difference of the step times is split by breakdown category. Both breakdowns sum exactly to their steps, so the
differences sum exactly to the difference; the same holds for the memory of the fullest stage. What is computed is
subtraction only: compare(a, b) is minus compare(b, a), and compare(a, a) is zero.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from windtunnel.errors import SpecError, UserError
from windtunnel.faces.report.prediction.categories import label_of
from windtunnel.faces.report.prediction.spec_words import difference_words, disturbing, flatten, title
from windtunnel.faces.report.prediction.views import memory_parts
from windtunnel.faces.report.run_folder import load
from windtunnel.files.bytes import MIB, first_bytes, path_of
from windtunnel.files.sqlite import is_sqlite
from windtunnel.physics.step.result import Result, Status
from windtunnel.questions.asked.parts.scenario import NAMES
from windtunnel.questions.asked.saved import Compare, WhatIf
from windtunnel.questions.header import Answer
from windtunnel.studies.measured_run import MeasuredRun, read_run
from windtunnel.studies.measured_run.against import ClassTime, classes_against
from windtunnel.studies.measured_run.traced import read_traced
from windtunnel.studies.traces.by_class import StepTime
from windtunnel.units import format_bytes
from windtunnel.views import text as figures
from windtunnel.views.text import plain

_ABSENT = None
_LINK_NAMES = ("cluster.scale_up.name", "cluster.scale_out.name")
_COUNTED = ("active_parameters", "parameters")  # of the model: they follow from its shape
_AS_ANSWERED = (  # fields of a side, in their order
    *("content_hash", "status", "step_time_ns", "step_time_p5_ns", "step_time_p95_ns"),
    *("tokens_per_step", "tokens_per_s_per_gpu", "mfu"),
)
MEMORY_WORTH_SAYING = 0.1  # of the larger


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two results, as far as the comparison shows it."""

    title: str
    content_hash: str
    status: Status
    step_time_ns: int
    step_time_p5_ns: int
    step_time_p95_ns: int
    tokens_per_step: int
    tokens_per_s_per_gpu: float
    mfu: float
    peak_memory_bytes: int
    fullest_stage: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the spec that differs; None stands for unset or absent."""

    field: str
    a: object
    b: object


@dataclass(frozen=True, slots=True)
class Comparison(Answer):
    """`b` minus `a`. `causes_ns` sums exactly to `step_ns`, `memory_causes_bytes` to `memory_bytes`.

    When one of the two has no timing (an infeasible job that was not replayed), `timed` is False and there are no
    causes; the same for memory.
    """

    a: Side
    b: Side
    timed: bool
    step_ns: int
    causes_ns: Mapping[str, int]
    memory_bytes: int
    memory_causes_bytes: Mapping[str, int]
    spec: tuple[Difference, ...]
    explanation: str
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """JSON-able form, for `--json`; the header has the warnings."""
        return {name: value for name, value in asdict(self).items() if name != "warnings"}


@dataclass(frozen=True, slots=True)
class TraceComparison(Answer):
    """A predicted step and a traced one, class of op by class of op."""

    title: str
    content_hash: str
    traces: tuple[str, ...]
    classes: tuple[ClassTime, ...]
    steps: tuple[StepTime, ...] = ()  # of each rank

    def to_dict(self) -> dict[str, object]:
        """JSON-able form, for `--json`."""
        both = {"predicted_step_s": self.predicted_s, "measured_step_s": self.measured_s}
        classes = [asdict(class_time) | {"difference_s": class_time.difference_s} for class_time in self.classes]
        names = ("rank", "step", "length_s", "seconds")
        steps = [{name: getattr(step, name) for name in names} for step in self.steps]
        return {"title": self.title, "traces": list(self.traces), **both, "classes": classes, "steps": steps}

    @property
    def predicted_s(self) -> float:
        """The predicted step."""
        return sum(class_time.predicted_s for class_time in self.classes)

    @property
    def measured_s(self) -> float:
        """The traced step, mean over the ranks."""
        return sum(class_time.measured_s for class_time in self.classes)


def answer(question: Compare) -> Comparison | TraceComparison:
    """Two saved runs side by side, or a run and traces of the job. Raises UserError."""
    root = Path(question.runs)
    words = (question.run, question.against, *question.more)
    traces = tuple(word for word in words if is_trace(word))
    try:
        result = load(question.run, root)
        if question.more or question.against in traces:
            traces = words[1:]
            traced = read_traced(traces)
            steps = tuple(step for rank in sorted(traced) for step in traced[rank])
            return TraceComparison(title(result), result.content_hash, traces, classes_against(result, traced), steps)
        return compare(result, load(question.against, root))
    except UserError:
        _refuse_own_files(words, traces, root)
        raise


def _refuse_own_files(words: Sequence[str], traces: Sequence[str], root: Path) -> None:
    """Raises UserError for launch files and logs: it names the command that answers, with the files filled in."""
    files = [word for word in words if word not in traces and os.path.isfile(word) and not word.endswith(".json")]
    n_gpus = {word: run.n_gpus for word in files if (run := _log_of(word)) is not None}  # of logs
    launch = [shlex.quote(word) for word in files if word not in n_gpus]
    runs = [word for word in words if word not in (*traces, *files)]
    if not files:
        return
    gpus = next((count for count in n_gpus.values() if count), "N")
    if not n_gpus and not traces:
        text = f"`windtunnel predict {launch[0]} --cluster GPU:N` saves one, and compare takes saved ones"
        raise UserError(f"{files[0]} is no run: {text}")
    asked = f"{(launch or ['LAUNCH_FILE'])[0]} --cluster GPU:{gpus}"
    if runs and not launch:
        asked_with = shlex.split(load(runs[0], root).reproduce.removeprefix("windtunnel predict "))
        pairs = zip(["", *asked_with], asked_with, strict=False)  # diagnose measures, and takes no anchor
        asked = shlex.join(word for before, word in pairs if "--anchor" not in (before, word))
    measured = [f"--log {shlex.quote(word)}" for word in n_gpus] + [f"--trace {shlex.quote(word)}" for word in traces]
    raise UserError(f"{files[0]} is no run; what answers is `windtunnel diagnose {asked} {' '.join(measured)}`")


def _log_of(path: str) -> MeasuredRun | None:
    """What a log says of its steps; None for what is no log."""
    try:
        run = read_run([path])
    except UserError:
        return None
    return run if run.steps or run.not_understood else None


def is_trace(word: str) -> bool:
    """Whether a word names a trace, not a run."""
    path = path_of(word)
    if not os.path.isfile(path) or path.name == "result.json":
        return False
    if is_sqlite(path) or path.suffix == ".gz":
        return True
    return path.suffix == ".json" and b"traceEvents" in first_bytes(path, MIB)


def answer_whatif(question: WhatIf) -> Comparison:
    """A saved run beside what it becomes. Raises UserError."""
    return changed(question, *asked_again(question))


def asked_again(question: WhatIf) -> tuple[Result, Result]:
    """A saved run, and the answer to its question with something changed. Raises UserError."""
    from windtunnel.studies.whatif import ask_again

    if not question.set and not question.slow:
        raise UserError("nothing is different: add --set, such as cluster.nic=800Gb/s or slow.none, or --slow")
    before = load(question.run, Path(question.runs))
    return before, ask_again(before, *question.set, slow=question.slow, run=question.run)


def changed(question: WhatIf, before: Result, after: Result) -> Comparison:
    """Both side by side; with a warning where another version made the saved one."""
    made_by, now = before.spec.get("version"), after.spec["version"]
    by = f"{question.run} was made by version {made_by or 'unknown'}, this is {now}"
    warnings = (f"{by}: not all that differs is the change",) if made_by != now else ()
    return replace(compare(before, after), warnings=warnings)


def compare(a: Result, b: Result) -> Comparison:
    """What changes from `a` to `b`, and in which categories. Raises SpecError for what is no Result."""
    for name, result in (("a", a), ("b", b)):
        if not isinstance(result, Result):
            raise SpecError(name, result, "give a Result: windtunnel.load_result reads a kept one")
    timed = a.step_time_ns > 0 and b.step_time_ns > 0
    causes = _minus(b.breakdown_ns, a.breakdown_ns) if timed else {}
    memory = _minus(_memory(b), _memory(a)) if a.memory and b.memory else {}
    spec = _differences(a, b)
    side_a, side_b = _side(a), _side(b)
    return Comparison(
        a=side_a,
        b=side_b,
        timed=timed,
        step_ns=b.step_time_ns - a.step_time_ns if timed else 0,
        causes_ns=causes,
        memory_bytes=sum(memory.values()),
        memory_causes_bytes=memory,
        spec=spec,
        explanation=" ".join(_explain(a, b, causes if timed else None, spec)),
    )


def _side(result: Result) -> Side:
    peak = result.peak_memory if result.memory else None
    memory = (peak.device_bytes, peak.stage) if peak else (0, None)
    return Side(title(result), *(getattr(result, name) for name in _AS_ANSWERED), *memory)


def _memory(result: Result) -> dict[str, int]:
    return {category.key: n_bytes for category, n_bytes in memory_parts(result.peak_memory)}


def _minus(b: Mapping[str, int], a: Mapping[str, int]) -> dict[str, int]:
    return {key: b.get(key, 0) - a.get(key, 0) for key in sorted({*a, *b})}


def _differences(a: Result, b: Result) -> tuple[Difference, ...]:
    """What was asked differently: disturbances first, then the plan, names, and the numbers that follow from them."""
    flat_a, flat_b = _flat(a), _flat(b)
    pairs = [Difference(key, flat_a.get(key, _ABSENT), flat_b.get(key, _ABSENT)) for key in {*flat_a, *flat_b}]
    differing = [pair for pair in pairs if pair.a != pair.b or isinstance(pair.a, bool) != isinstance(pair.b, bool)]
    fields = {pair.field for pair in differing}
    return tuple(sorted((pair for pair in differing if not _follows(pair.field, fields)), key=_order))


def _flat(result: Result) -> dict[str, object]:
    # Through JSON: a result read from its folder has lists where a fresh one may have tuples.
    return {**disturbing(result), **flatten(json.loads(json.dumps(result.spec)))}


def _follows(field: str, differing: set[str]) -> bool:
    """Whether a field says nothing beyond the others: a source, or a link's name beside its numbers."""
    if "sources" in field.split("."):
        return True
    link = field.removesuffix("name")
    return field in _LINK_NAMES and any(other.startswith(link) and other != field for other in differing)


def _order(pair: Difference) -> tuple[int, str]:
    last = pair.field.rpartition(".")[2]
    if pair.field in NAMES:
        return 0, f"{NAMES.index(pair.field)}"
    if pair.field.startswith("plan."):
        return 1, pair.field
    if last in ("name", "n_gpus"):
        return 2, pair.field
    return (4 if last in _COUNTED else 3), pair.field


def _explain(a: Result, b: Result, causes: Mapping[str, int] | None, spec: tuple[Difference, ...]) -> list[str]:
    sentences = [_fit_words(a, b)] if "infeasible" in (a.status, b.status) else []
    if causes is not None:
        step = b.step_time_ns - a.step_time_ns
        sentences.append(_time_words(a, step, causes))
        overlapping = a.step_time_p5_ns <= b.step_time_p95_ns and b.step_time_p5_ns <= a.step_time_p95_ns
        # Where only disturbances differ both are wrong by the same: their order is certain, whatever the bands.
        if step and overlapping and not (spec and all(pair.field in NAMES for pair in spec)):
            sentences.append("The p5–p95 bands overlap, so the order of the two is not certain.")
            sentences += _memory_words(a.peak_memory.device_bytes, b.peak_memory.device_bytes)
        if a.tokens_per_step != b.tokens_per_step or a.n_gpus != b.n_gpus:
            sentences.append("Steps or clusters differ in size: compare tokens/s/GPU rather than step times.")
    if spec:
        differences = [" ".join(difference_words(pair.field, pair.a, pair.b)) for pair in spec[:3]]
        rest = f" and {len(spec) - 3} more" if len(spec) > 3 else ""
        sentences.append(f"Asked differently: {', '.join(differences)}{rest}.")
    else:
        moved = [
            name for name, run in (("A", a), ("B", b)) if any(line.startswith("anchored") for line in run.warnings)
        ]
        by = f"; {moved[0]} is moved by what a run measured (--anchor)" if len(moved) == 1 else ""
        sentences.append(f"Both were asked for the same thing{by}.")
    return sentences


def _fit_words(a: Result, b: Result) -> str:
    if a.status == b.status:
        needs = [(name, result.infeasible) for name, result in (("A", a), ("B", b)) if result.infeasible]
        by = [f"{name} by {format_bytes(need.needed_bytes - need.capacity_bytes)}" for name, need in needs]
        return f"Neither A nor B fits{': ' * bool(by)}{', '.join(by)}."
    bad, name, other = (b, "B", "A") if b.status == "infeasible" else (a, "A", "B")
    reason = ""
    if bad.infeasible:
        over = format_bytes(bad.infeasible.needed_bytes - bad.infeasible.capacity_bytes)
        reason = f": {plain(bad.infeasible.reason)}, {over} too much on {bad.class_name(bad.infeasible.stage)}"
    return f"{name} does not fit{reason}; {other} does."


def _memory_words(a_bytes: int, b_bytes: int) -> list[str]:
    """What may decide between two that are as fast."""
    if abs(a_bytes - b_bytes) < MEMORY_WORTH_SAYING * max(a_bytes, b_bytes):
        return []
    less, more = (("A", a_bytes), ("B", b_bytes)) if a_bytes < b_bytes else (("B", b_bytes), ("A", a_bytes))
    return [f"{less[0]} needs less memory: {format_bytes(less[1])}, {more[0]} {format_bytes(more[1])}."]


def _time_words(a: Result, step: int, causes: Mapping[str, int]) -> str:
    if not any(causes.values()):
        return "B takes the same time as A."
    with_it = sorted((key for key in causes if causes[key] * step > 0), key=lambda key: (-abs(causes[key]), key))
    against = sorted((key for key in causes if causes[key] * step < 0), key=lambda key: (-abs(causes[key]), key))
    if not step:
        moved = sorted((key for key in causes if causes[key]), key=lambda key: (-abs(causes[key]), key))
        return f"B takes the same time as A: {_listed(moved[:2], causes)} cancel out."
    largest, covered, whole = [], 0, sum(causes[key] for key in with_it)
    for key in with_it[:3]:
        largest.append(key)
        covered += causes[key]
        if abs(covered) >= 0.8 * abs(whole):
            break
    size = f"{abs(step) / a.step_time_ns * 100:.1f} % {'more' if step > 0 else 'less'} time per step than A"
    text = f"B takes {size} ({_signed(step)}): {_listed(largest, causes)}"
    if against and abs(causes[against[0]]) >= 0.05 * abs(step):
        text += f", against {_listed(against[:1], causes)}"
        covered += causes[against[0]]
    if abs(step - covered) >= 0.05 * abs(step):
        text += f"; all else {_signed(step - covered)}"
    return f"{text}."


def _listed(keys: list[str], causes: Mapping[str, int]) -> str:
    words = [f"{plain(label_of(key))} {_signed(causes[key])}" for key in keys]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _signed(ns: int) -> str:
    return figures.signed(figures.duration(abs(ns)), ns)
