"""The registry of questions, and what every door makes of one: plain data, a hash, changes, a schema, an answer.

The registry holds words, not classes: `--help` of one verb imports that verb's question alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from windtunnel.errors import SpecError, remedy_of
from windtunnel.questions.about import About, OneOf, kind_of, phrase_of, word_of

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Verb:
    """What asks and answers a verb, both as `module:name`; a line of help; the version of its plain form.

    A `pure` one only answers: it writes no file, runs no program and looks at no clock, so it may stand in a file.
    """

    question: str
    answer: str
    text: str
    version: int = 1
    pure: bool = True


QUESTIONS: Mapping[str, Verb] = {
    "predict": Verb(
        "windtunnel.questions.predict:Predict",
        "windtunnel.studies.predict:answer",
        "Predict one training step: how long, where the time goes, whether it fits, and how sure that is.\n\n"
        "The exit status is 3 for a job that does not fit in memory.",
    ),
    "plan": Verb(
        "windtunnel.questions.search:Search",
        "windtunnel.studies.plan:answer",
        "Find the best plan for a model on a cluster, and prove it.\n\n"
        "Every field of a plan that is not given is searched over its legal values.",
    ),
    "survive": Verb(
        "windtunnel.questions.survive:Survive",
        "windtunnel.studies.survive:answer",
        "Say what failures cost a job at its scale, policy by policy: effective training time, where the rest goes,"
        " money.",
    ),
    "survive spot": Verb(
        "windtunnel.questions.survive:SurviveSpot",
        "windtunnel.studies.survive:answer_spot",
        "Say what spot machines give a job that lives on them, policy by policy.",
    ),
    "serve": Verb(
        "windtunnel.questions.serve:Serve",
        "windtunnel.studies.serving.study:answer",
        "Predict latency, throughput and attainment of a served model.",
    ),
    "serve plan": Verb(
        "windtunnel.questions.serve_plan:ServePlan",
        "windtunnel.studies.serving.study:answer_plan",
        "Find the highest rate that keeps the limits, or with --method the best placement for a rate.",
    ),
    "serve policies": Verb(
        "windtunnel.questions.serve_policies:ServePolicies",
        "windtunnel.studies.serving.policies:answer",
        "Compare batching policies and routers on the same requests.",
    ),
    "serve spot": Verb(
        "windtunnel.questions.serve_spot:ServeSpot",
        "windtunnel.studies.serving.study:answer_spot",
        "Serve on machines that come and go, under each policy.",
    ),
    "serve pool": Verb(
        "windtunnel.questions.serve_pool:ServePool",
        "windtunnel.studies.serving.study:answer_pool",
        "Serve several models on groups of machines, or from a pool of weights, as a file says.",
    ),
    "serve real": Verb(
        "windtunnel.questions.serve_real:ServeReal",
        "windtunnel.real.serving.compare:answer",
        "Serve a small real model on this machine under each policy, measured beside predicted.",
        pure=False,
    ),
    "serve listen": Verb(
        "windtunnel.questions.serve_listen:ServeListen",
        "",
        "Answer requests of OpenAI's API in simulated time.",
        pure=False,
    ),
    "rl": Verb(
        "windtunnel.questions.rl:Rl",
        "windtunnel.studies.rl.study:answer",
        "Predict a step of RL post-training (GRPO and its kin): how long, who waits for whom, what fits.",
    ),
    "fabric": Verb(
        "windtunnel.questions.fabric:Fabric",
        "windtunnel.studies.fabric:answer",
        "Say how long a collective takes on a cluster, size by size, and hold nccl-tests against it.",
    ),
    "rl plan": Verb(
        "windtunnel.questions.rl:RlPlan",
        "windtunnel.studies.rl.plan:answer",
        "Find the split of a cluster between generation and training that makes an RL step shortest, and prove it.",
    ),
    "fleet": Verb(
        "windtunnel.questions.fleet:Fleet",
        "windtunnel.studies.fleet.study:answer",
        "Run a trace of jobs under one policy or several.",
    ),
    "fleet when": Verb(
        "windtunnel.questions.fleet_when:FleetWhen",
        "windtunnel.studies.fleet.study:answer_when",
        "Say when one job will start and end, how sure that is, and why it waits.",
    ),
    "fleet pack": Verb(
        "windtunnel.questions.fleet_pack:FleetPack",
        "windtunnel.studies.fleet.study:answer_pack",
        "Pack pods on unlike nodes under each policy.",
    ),
    "fleet flows": Verb(
        "windtunnel.questions.fleet_flows:FleetFlows",
        "windtunnel.studies.fleet.study:answer_flows",
        "Coflows that share the ports of one switch: when each ends under a policy.",
    ),
    "fleet lint": Verb(
        "windtunnel.questions.fleet_lint:FleetLint",
        "windtunnel.studies.fleet.study:answer_lint",
        "Say what is wrong with a trace; status 3 where something cannot be right.",
    ),
    "fleet live": Verb(
        "windtunnel.questions.fleet_live:FleetLive",
        "",
        "Run the commands of a trace here under one policy, beside their simulation.",
        pure=False,
    ),
    "explain": Verb(
        "windtunnel.questions.explain:Explain",
        "windtunnel.studies.traces.explain:answer",
        "Say why a real job is slower than it should be: which worker, stage or kind of op, and what mending it gives.",
    ),
    "diagnose": Verb(
        "windtunnel.questions.diagnose:Diagnose",
        "windtunnel.studies.diagnose:answer",
        "Say whether a step that you measured is what it should be, where it is lost if not, and what to change.\n\n"
        "Works with a number (--measured 11.0s), better with a log, best with traces.",
    ),
    "check": Verb(
        "windtunnel.questions.check:Check",
        "windtunnel.studies.check:answer",
        "Say whether a launch file may be submitted: the exit status is 1 where a rule of --fail-if is broken.",
    ),
    "decide": Verb(
        "windtunnel.questions.decide:Decide",
        "windtunnel.studies.decide:answer",
        "Hold clusters and models against each other: step, days, cost with failures, energy, head-room, risk and"
        " break-even price in one table.",
    ),
    "watch": Verb(
        "windtunnel.questions.explain:Watch",
        "windtunnel.real.survive.watch.verdict:answer",
        "Name the rank that makes all others wait, or that is slow, from the logs that ranks write while they run.",
        pure=False,
    ),
    "compare": Verb(
        "windtunnel.questions.saved:Compare",
        "windtunnel.faces.report.comparison.compare:answer",
        "Show where two runs differ, and what explains it.",
    ),
    "whatif": Verb(
        "windtunnel.questions.saved:WhatIf",
        "windtunnel.faces.report.comparison.compare:answer_whatif",
        "Ask a saved run again with something changed, and show what that does.",
    ),
    "sweep": Verb(
        "windtunnel.questions.sweep:Sweep",
        "windtunnel.studies.sweeps.sweep:answer",
        "Run any question over many points: one row each in one Parquet file; a killed sweep goes on where it was.",
        pure=False,
    ),
    "sweep table": Verb(
        "windtunnel.questions.sweep:SweepTable",
        "windtunnel.studies.sweeps.table:answer",
        "Show the best rows of a table that a sweep wrote.",
    ),
    "techniques": Verb(
        "windtunnel.questions.sweep:Techniques",
        "windtunnel.studies.techniques.named:answer",
        "List the techniques: what each does and needs, its parameters, and what runs it in PyTorch.",
    ),
    "model": Verb(
        "windtunnel.questions.sweep:ModelFacts",
        "windtunnel.faces.cli.model:answer",
        "Say what a model is made of: parameters, layers, and what a decoder keeps of a token and of a sequence.",
    ),
    "launch": Verb(
        "windtunnel.questions.saved:Launch",
        "windtunnel.faces.cli.launch:answer",
        "Print what a framework is launched with for the plan of a run.",
    ),
    "capture": Verb(
        "windtunnel.questions.capture:Capture",
        "windtunnel.real.capture.question:answer",
        "Run an unmodified training script at its full scale on this machine, without GPUs, and keep what it executes."
        "\n\nThe launch line stays as it was for torchrun, but for its first word: windtunnel capture --nproc-per-node"
        " 8 train.py --config x. A few ranks are run on tensors without data, one after another; they stand for all"
        " others, which is checked with ranks drawn at random. Then: windtunnel predict captured/ --cluster SPEC.",
        pure=False,
    ),
    "run": Verb(
        "windtunnel.questions.capture:Run",
        "windtunnel.real.emulate.question:answer",
        "Run a training script as one real rank of a large job, or as a few; all other ranks are virtual.\n\n"
        "A real rank has real tensors, a real data loader and optimizer; each communication takes the time that it"
        " would with all its members, and leaves data of the right size and scale. The launch line changes in its first"
        " word: windtunnel run --world-size 1024 --rank 0 --cluster h100-sxm:1024 train.py --config x.",
        pure=False,
    ),
    "calibrate device": Verb(
        "windtunnel.questions.calibrate:CalibrateDevice",
        "windtunnel.real.calibrate.run:answer",
        "Measure the device at hand, and write a cluster for --cluster my-device.yaml:1.\n\n"
        "Interrupted, it goes on where it was when run again.",
        pure=False,
    ),
    "calibrate collectives": Verb(
        "windtunnel.questions.calibrate:CalibrateCollectives",
        "windtunnel.real.calibrate.collectives:answer",
        "Measure collectives between processes, and add them to a calibrated file.",
        pure=False,
    ),
    "calibrate show": Verb(
        "windtunnel.questions.calibrate:CalibrateShow",
        "windtunnel.real.calibrate.curves:answer",
        "Show a calibrated file: measured points against the curves that predictions use.",
    ),
    "runs list": Verb(
        "windtunnel.questions.saved:RunsList",
        "windtunnel.faces.report.run_list:answer",
        "List saved runs, newest first, or search them.",
    ),
    "runs tag": Verb(
        "windtunnel.questions.saved:RunsTag",
        "windtunnel.faces.report.run_list:answer_tag",
        "Give runs tags in place of those that they have.",
        pure=False,
    ),
    "runs delete": Verb(
        "windtunnel.questions.saved:RunsDelete",
        "windtunnel.faces.report.run_list:answer_delete",
        "Delete run folders.",
        pure=False,
    ),
    "validate": Verb(
        "windtunnel.questions.validate:Validate",
        "windtunnel.evidence.accuracy.study:answer",
        "Predict every run of a table of measured runs, and show how far off that is, source by source.",
    ),
}


def named(reference: str) -> Any:
    """What `module:name` names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def question_class(verb: str) -> type:
    """The question of a verb. Raises SpecError for a verb that has none."""
    if verb not in QUESTIONS:
        raise SpecError("question", verb, f"use one of {', '.join(QUESTIONS)}")
    found: type = named(QUESTIONS[verb].question)
    return found


def run(question: Any) -> Any:
    """The study's answer to a question, which is read again first. Raises UserError."""
    return named(QUESTIONS[question.verb].answer)(read(plain(question)))


def ask(question: Mapping[str, Any]) -> Any:
    """The answer to a question as plain data: `{"question": "predict", "model": ..., "cluster": ..., "plan": {...}}`.

    The fields are those of `windtunnel schema VERB`. Raises UserError on the first mistake.
    """
    return run(read(question))


# ------------------------------------------------------------------------------------------------------ reflection


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a question or of a part of it."""

    path: str  # dotted
    type: Any  # without None and what stands beside it
    optional: bool
    about: About
    default: Any  # MISSING where there is none
    members: tuple[type, ...] = ()  # of a union of parts

    @property
    def name(self) -> str:
        """The last word of its path."""
        return self.path.rpartition(".")[2]

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is MISSING

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be; empty where it is no choice."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def parts(self) -> tuple[type, ...]:
        """The dataclasses that it may hold."""
        return self.members or ((self.type,) if is_dataclass(self.type) else ())


def fields_of(part: type, prefix: str = "") -> tuple[Field, ...]:
    """The fields of a question or a part, in order; `prefix` goes before their paths."""
    return _fields_of(part, prefix)


@cache
def _fields_of(part: type, prefix: str) -> tuple[Field, ...]:
    hints = get_type_hints(part, include_extras=True)
    return tuple(_field(field, hints[field.name], prefix) for field in fields(part))


def _field(field: Any, annotation: Any, prefix: str) -> Field:
    beside = getattr(annotation, "__metadata__", ())
    about = next((item for item in beside if isinstance(item, About)), About(""))
    bare = annotation.__origin__ if beside else annotation
    kinds = get_args(bare) if get_origin(bare) in (Union, UnionType) else (bare,)
    others = tuple(kind for kind in kinds if kind is not NoneType)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    members = others if any(isinstance(item, OneOf) for item in beside) else ()
    kind = others[0] if len(others) == 1 else Union[others]  # noqa: UP007  # of a tuple of types
    return Field(prefix + field.name, kind, NoneType in kinds, about, default, members)


def walk(part: type, prefix: str = "") -> Iterator[Field]:
    """The fields of a question or a part and of all parts in it."""
    for field in fields_of(part, prefix):
        yield field
        for inner in field.parts:
            yield from walk(inner, field.path + ".")


def key_names(part: type) -> dict[str, str]:
    """Each name that a key of a part may have, and the field that it means."""
    return {name: field.path for field in fields_of(part) for name in (field.path, *field.about.names)}


def pick(members: tuple[type, ...], given: Mapping[str, Any], path: str = "") -> type:
    """The member that these keys mean.

    Raises SpecError for a key that has no meaning beside another one, and says whose it is; `path` goes before it.
    """
    prefix = path + "." if path else ""
    if "kind" in given:
        for member in members:
            if kind_of(member) == given["kind"]:
                return member
        kinds = ", ".join(map(kind_of, members))
        raise SpecError(f"{prefix}kind", given["kind"], f"use one of {kinds}")
    keys = set(given)
    known = {member: set(key_names(member)) for member in members}
    needed = {
        member: {f.name for f in fields(member) if f.default is MISSING and f.default_factory is MISSING}
        for member in members
    }
    able = [member for member in members if keys <= known[member]]
    complete = [member for member in able if needed[member] <= {key_names(member)[key] for key in keys}]
    if complete:
        return min(complete, key=lambda member: len(known[member]))
    if able:
        return able[0]  # what it lacks is said when it is read
    likely = max(members, key=lambda member: (len(needed[member] & keys), len(known[member] & keys)))
    odd = next(key for key in given if key not in known[likely])
    homes = [member for member in members if odd in known[member]]
    if not homes:
        everything = sorted({field for member in members for field in known[member]})
        raise SpecError(prefix + odd, given[odd], _unknown_key(odd, everything))
    beside = next(key for key in given if key in known[likely] and key not in known[homes[0]])
    owner = phrase_of(homes[0])
    remedy = f"has no meaning beside {beside}: it belongs to {owner}; leave one of them out"
    raise SpecError(prefix + odd, given[odd], remedy)


def _unknown_key(key: str, known: list[str]) -> str:
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    return f"is not known; did you mean {near[0]}?" if near else f"is not known; known are {', '.join(known)}"


# ------------------------------------------------------------------------------------------------------ plain form


def plain(question: Any) -> dict[str, Any]:
    """The question as JSON data. What holds its default is left out, so that a field added later changes no hash."""
    return {"question": f"{question.verb}/{QUESTIONS[question.verb].version}", **plain_part(question)}


def plain_part(part: Any) -> dict[str, Any]:
    """The fields of a part that do not hold their defaults, as JSON data; the `kind` of a member of a union always."""
    values = ((field, getattr(part, field.path)) for field in fields_of(type(part)))
    kept = {field.path: _plain_value(value, field) for field, value in values if _is_stated(field, value)}
    return kept


def _is_stated(field: Field, value: Any) -> bool:
    return field.required or type(value) is not type(field.default) or value != field.default


def _plain_value(value: Any, field: Field | None = None) -> Any:
    if is_dataclass(value):
        inner = plain_part(value)
        if field is not None and field.members:
            return {"kind": kind_of(value), **inner}
        word = word_of(value)
        return inner[word] if word is not None and set(inner) == {word} else inner
    if isinstance(value, Mapping):
        return {str(key): _plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(inner) for inner in value]
    return value


def canonical(question: Any) -> str:
    """The plain form as one line of JSON that is the same for the same question, however it was built."""
    return json.dumps(plain(read(plain(question))), sort_keys=True, separators=(",", ":"))


def digest(question: Any) -> str:
    """12 hexadecimal digits that name the question."""
    return hashlib.sha256(canonical(question).encode()).hexdigest()[:12]


# --------------------------------------------------------------------------------------------------------- reading


def _adapter(kind: type) -> Any:
    return _adapters(kind)


@cache
def _adapters(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def read(data: Mapping[str, Any], where: str | None = None, verb: str | None = None) -> Any:
    """A question from plain data; `where` goes before errors, `verb` is asked where the data name none.

    Raises SpecError: the first mistake, in one line.
    """
    if not isinstance(data, Mapping):
        raise SpecError("question", data, "give a mapping of its fields", where)
    asked, _, version = str(data.get("question", verb or "")).partition("/")
    kind, latest = question_class(asked), QUESTIONS[asked].version
    if version and version != str(latest):
        newer = version.isascii() and version.isdigit() and int(version) > latest
        remedy = "it was written by a newer windtunnel: take that one" if newer else f"write {asked}/{latest}"
        raise SpecError("question", data["question"], remedy, where)
    return read_part(kind, {key: value for key, value in data.items() if key != "question"}, where)


def read_part(kind: type[Part], data: object, where: str | None = None, field: str = "") -> Part:
    """A question's part from plain data, as `read` does; `field`: what errors call the whole of it."""
    from pydantic import ValidationError

    try:
        settled = _settled(kind, data, field)
        text = json.dumps(settled, allow_nan=False)
        part: Part = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise _spec_error(error, kind, where) from None
    except SpecError as error:
        raise SpecError(error.field, error.value, error.remedy, where) from None
    except (TypeError, ValueError):
        path, value = _unwritable(settled)
        raise SpecError(path, value, "give a number, text, a list or a mapping", where) from None
    return part


def _settled(part: type, data: object, path: str) -> dict[str, Any]:
    """Plain data with the words of parts spelled out, their fields by their own names and the members of unions named.

    Raises SpecError for a key that is not known.
    """
    prefix = path + "." if path else ""
    if not isinstance(data, Mapping):
        word = word_of(part)
        if word is None or isinstance(data, list | tuple | None):
            raise SpecError(path or part.__name__.lower(), data, "give a mapping of `key: value` lines")
        return {word: data}
    names, known = key_names(part), {field.path: field for field in fields_of(part)}
    settled: dict[str, Any] = {}
    for key, value in data.items():
        if key not in names:
            raise SpecError(f"{prefix}{key}", value, _unknown(part, str(key), prefix))
        field = known[names[key]]
        if field.path in settled:
            raise SpecError(f"{prefix}{key}", value, f"is given as {field.path} as well: leave one of them out")
        if value == {} and field.optional:
            value = None  # a part of which nothing is said
        if field.parts and value is not None:
            member = field.parts[0]
            if field.members:
                if not isinstance(value, Mapping):
                    raise SpecError(prefix + field.path, value, "give a mapping of `key: value` lines")
                member = pick(field.members, value, prefix + field.path)
                value = {inner: given for inner, given in value.items() if inner != "kind"}
            value = _settled(member, value, prefix + field.path)
            value = {kind_of(member): value} if field.members else value
        settled[field.path] = value
    return settled


def _unknown(part: type, key: str, prefix: str) -> str:
    names = key_names(part)
    near = get_close_matches(key.lower(), names, n=1, cutoff=0.6)
    if not near:  # of another part, where it is the only one of its name
        near = [field.path for field in walk(part) if key in (field.name, *field.about.names)][:1]
    if near:
        return f"is not known; did you mean {prefix}{near[0]}?"
    return f"is not known; known are {', '.join(dict.fromkeys(names.values()))}"


def _spec_error(error: Any, kind: type, where: str | None) -> SpecError:
    first = error.errors(include_url=False)[0]
    path = _path(kind, first["loc"])
    cause = (first.get("ctx") or {}).get("error")
    if first["type"] == "missing":
        field = next((one for one in walk(kind) if one.path == path), None)
        members = " or ".join(phrase_of(member) for member in field.members) if field is not None else ""
        return SpecError(path, None, f"give {members}" if members else "it is needed", where)
    return SpecError(path, first["input"], str(cause) if isinstance(cause, ValueError) else remedy_of(first), where)


def _path(part: type, place: tuple[int | str, ...]) -> str:
    """The dotted path of pydantic's `loc`, in which its own words for members of unions stand."""
    path: list[str] = []
    outer: type | None = part
    rest = list(place)
    while rest and outer is not None:
        field = next(one for one in fields_of(outer) if one.path == rest[0])
        path.append(str(rest.pop(0)))
        outer = next((one for one in field.parts if not field.members or (rest and kind_of(one) == rest[0])), None)
        if field.members and rest:
            rest.pop(0)
    return ".".join([*path, *(str(word) for word in rest if isinstance(word, int) or word.isidentifier())])


def _unwritable(value: Any, path: str = "") -> tuple[str, Any]:
    """Where the first value is that JSON does not know, and the value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, inner in inside:
        try:
            json.dumps(inner, allow_nan=False)
        except (TypeError, ValueError):
            return _unwritable(inner, f"{path}.{key}" if path else str(key))
    return path, value


# -------------------------------------------------------------------------------------------------------- changing


def changed(question: Part, changes: Mapping[str, Any]) -> Part:
    """The question with dotted paths replaced, read again: `{"plan.tp": 4, "cluster.nic": "800Gb/s"}`.

    None takes a path back to its default; a `+` behind a path adds to a list. A field of a part whose fields are flags
    may stand without the part (`tp`). A key of another member of a union turns the union to that member. Raises
    SpecError that names the path as it is given.
    """
    data = plain(question)
    given = set_paths(data, type(question), changes)
    try:
        found: Part = read(data)
    except SpecError as error:
        raise SpecError(as_given(error.field, given), error.value, error.remedy) from None
    return found


def set_paths(data: dict[str, Any], kind: type, changes: Mapping[str, Any]) -> dict[str, str]:
    """Sets dotted paths in a question's plain data. Of each by its fields' own names how it is given."""
    return {".".join(_set(data, kind, path, value)): path for path, value in changes.items()}


def as_given(path: str, given: Mapping[str, str]) -> str:
    """A path, as `given` has it or one that it lies in."""
    return next((named for whole, named in given.items() if f"{path}.".startswith(f"{whole}.")), path)


def _set(data: dict[str, Any], part: type, path: str, value: Any) -> list[str]:
    """Sets a path in plain data; the path by the fields' own names."""
    adds = path.endswith("+")
    head, *rest = path.removesuffix("+").split(".")
    names = key_names(part)
    if head not in names:
        homes = [field.path for field in fields_of(part) if field.about.inside and _holds(field, head)]
        if len(homes) != 1:
            raise SpecError(path, value, _unknown(part, head, ""))
        head, rest = homes[0], [head, *rest]
    outer, inside = part, data
    walked: list[str] = []
    while True:
        field = next((one for one in fields_of(outer) if one.path == key_names(outer).get(head)), None)
        if field is None:
            raise SpecError(path, value, _unknown(outer, head, ".".join(walked) + "." if walked else ""))
        walked.append(field.path)
        if not rest:
            break
        if field.parts:
            if field.members and rest == ["kind"]:
                member = pick(field.members, {"kind": value}, ".".join(walked))
                _inside(inside, field, member)
                return [*walked, "kind"]
            member = _member(inside, field, rest[0])
            inside, outer = _inside(inside, field, member), member
        elif get_origin(field.type) is dict:
            mapping = dict(inside.get(field.path) or {})
            mapping[".".join(rest)] = value
            inside[field.path] = mapping
            return [*walked, *rest]
        else:
            raise SpecError(path, value, f"{'.'.join(walked)} holds no {rest[0]}")
        head, *rest = rest
    if adds:
        if get_origin(field.type) is not tuple:
            raise SpecError(path, value, f"{'.'.join(walked)} is no list: leave out the +")
        value = [*inside.get(field.path, []), *(value if isinstance(value, list | tuple) else [value])]
    if value is None:
        inside.pop(field.path, None)
    else:
        inside[field.path] = value
    return walked


def _holds(field: Field, name: str) -> bool:
    return any(name in key_names(member) for member in field.parts)


def _inside(data: dict[str, Any], field: Field, member: type) -> dict[str, Any]:
    """The plain data of a part, which is put there where there is none, with the fields that `member` knows."""
    inner = data.get(field.path)
    if inner is None:
        inner = {}
    elif not isinstance(inner, dict):
        inner = {str(word_of(field.type)): inner}
    if field.members:
        inner = {name: value for name, value in inner.items() if name in key_names(member)}
        inner["kind"] = kind_of(member)
    data[field.path] = inner
    return inner


def _member(data: Mapping[str, Any], field: Field, key: str) -> type:
    """The part that is there, or the member of its union that knows `key`."""
    if not field.members:
        part: type = field.parts[0]
        return part
    inner = data.get(field.path)
    homes: list[type] = [member for member in field.members if key in key_names(member)]
    now = pick(field.members, inner) if inner else field.default.__class__
    found: type = now if now in homes or not homes else homes[0]
    return found


def schema(verb: str) -> dict[str, Any]:
    """JSON schema of a verb's question, as `read` takes it."""
    found: dict[str, Any] = _adapter(question_class(verb)).json_schema()
    for part in (part for field in walk(question_class(verb)) for part in field.parts if word_of(part)):
        inner = found["$defs"][part.__name__]
        if "anyOf" not in inner:
            found["$defs"][part.__name__] = {"anyOf": [{"type": ["string", "number"]}, inner]}
    found["properties"] = {"question": {"const": f"{verb}/{QUESTIONS[verb].version}"}, **found["properties"]}
    return found
