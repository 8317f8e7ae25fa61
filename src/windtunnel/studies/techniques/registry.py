"""The techniques by name: what each does, needs and takes, and which do not go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.questions.fields import Field, fields_of
from windtunnel.studies.techniques.megascale.features import MegaScalePlan
from windtunnel.studies.techniques.parameters import PIECES, LinaPlan, LocalPlan, OffloadPlan, PartitionPlan, SparsePlan
from windtunnel.units import parse_bytes, parse_count, parse_number

AUTO = ("auto", "none", "")
TRUE, FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


@dataclass(frozen=True, slots=True)
class Technique:
    """One technique."""

    name: str
    aliases: tuple[str, ...]
    does: str
    needs: str
    takes: type[Any]  # the dataclass of its parameters
    runs: str  # its real twin
    excludes: tuple[str, ...] = ()  # techniques that it does not go with


TECHNIQUES = (
    Technique(
        "megascale",
        ("overlaps",),
        "overlap set of MegaScale: tensor, pipeline and data parallelism beside compute; model features by name",
        "a plan with tp, pp or dp above 1 for the overlap in question",
        MegaScalePlan,
        "windtunnel.real.techniques.megascale.groups: communicators in a global order (gloo, NCCL)",
    ),
    Technique(
        "collective_partitioning",
        ("centauri",),
        "collectives by group and in pieces tied to compute; weight gradients fill gaps",
        "collectives in the step; by group: a data-parallel group across nodes with several ranks in each",
        PartitionPlan,
        "windtunnel.real.techniques.collective_partitioning: all-reduce by group, chunked linears",
    ),
    Technique(
        "prioritised_all_to_all",
        ("lina",),
        "all-to-all before gradients' all-reduce in micro-operations, pipelined with packed experts",
        "a model with experts, ep 2 or more",
        LinaPlan,
        "windtunnel.real.techniques.prioritised_all_to_all: one communicator thread with agreed order; packed experts",
    ),
    Technique(
        "sparse_gradients",
        ("threshold_gradients", "gradientflow", "dgc"),
        "only the largest chunks of a gradient are reduced, the rest is kept for later",
        "dp 2 or more, zero_stage 0 or 1",
        SparsePlan,
        "windtunnel.real.techniques.sparse_gradients: a DistributedDataParallel communication hook",
        excludes=("local_sgd",),
    ),
    Technique(
        "offload",
        ("stronghold", "window_offload"),
        "a working window of layers on the device, the rest in host memory, updated there layer by layer",
        "zero_stage 0 or 1; host memory for the layers' state",
        OffloadPlan,
        "windtunnel.real.techniques.offload: hooks on a module's layers",
        excludes=("collective_partitioning", "prioritised_all_to_all", "sparse_gradients", "local_sgd"),
    ),
    Technique(
        "local_sgd",
        ("learning_rate_decay", "two_dimensional_decay", "diloco"),
        "weights averaged every so many steps; the learning rate decays over rounds and local steps",
        "dp 2 or more, zero_stage 0",
        LocalPlan,
        "windtunnel.real.techniques.local_sgd: a training loop and its learning-rate policy",
        excludes=("sparse_gradients", "offload"),
    ),
)  # in the order in which they are applied, however they are given


def find_technique(word: str) -> Technique:
    """The technique of a name or another name of it. Raises UnknownNameError."""
    plain = word.strip().lower().replace("-", "_")
    for technique in TECHNIQUES:
        if plain == technique.name or plain in technique.aliases:
            return technique
    raise UnknownNameError(
        "technique", word, [name for technique in TECHNIQUES for name in (technique.name, *technique.aliases)]
    )


def parse_technique(text: str) -> tuple[Technique, Any]:
    """`NAME[:key=value,...]` as a technique and its parameters. Raises UserError with what is wrong."""
    word, _, rest = text.partition(":")
    technique = find_technique(word)
    words: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise SpecError("--technique", text, "write NAME:key=value,key=value")
        if key.strip() in words:
            raise SpecError("--technique", text, f"{key.strip()} is given twice")
        words[key.strip()] = value.strip()
    return technique, with_values(technique, words)


def with_values(technique: Technique, words: dict[str, str]) -> object:
    """The parameters of a technique from words. Raises UnknownNameError and SpecError."""
    fields = {field.path: field for field in fields_of(technique.takes)}
    values: dict[str, object] = {}
    for key, word in words.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise UnknownNameError(f"parameter of {technique.name}", key, fields)
        values[name] = _value(fields[name], word, f"{technique.name}:{name}")
    return technique.takes(**values)


def _value(field: Field, word: str, shown: str) -> object:
    if field.optional and word.lower() in AUTO:
        return None
    if field.type is bool:
        if word.lower() not in TRUE + FALSE:
            raise SpecError(shown, word, "give true or false")
        return word.lower() in TRUE
    if field.type is float:
        return parse_number(word, shown)
    if field.type is not int:
        return word
    if word == "0":
        return 0
    return parse_bytes(word, shown) if field.about.unit == "bytes" else parse_count(word, shown)


def legal(techniques: list[Technique]) -> None:
    """Raise SpecError, one clear line, where two of them do not go together or one comes twice."""
    names = [technique.name for technique in techniques]
    for number, technique in enumerate(techniques):
        if technique.name in names[:number]:
            raise SpecError("--technique", technique.name, "is given twice: give each technique once")
        for other in names:
            if other in technique.excludes:
                pair = f"{technique.name} with {other}"
                raise SpecError("--technique", pair, "these two do not go together: both decide what becomes of the "
                                "same state or traffic; leave one of them out")  # fmt: skip


def list_techniques() -> list[dict[str, object]]:
    """All techniques as plain data: what `windtunnel techniques` shows."""
    techniques: list[dict[str, object]] = []
    for technique in TECHNIQUES:
        parameters = [
            {
                "name": field.path,
                "default": "auto" if field.default is None else field.default,
                "help": field.about.text,
                "one_of": list(map(str, PIECES)) if field.path == "pieces" else list(field.choices),
            }
            for field in fields_of(technique.takes)
        ]
        excluded = sorted(
            {*technique.excludes, *(other.name for other in TECHNIQUES if technique.name in other.excludes)}
        )
        techniques.append(
            {
                "name": technique.name, "aliases": list(technique.aliases), "does": technique.does,
                "needs": technique.needs, "runs": technique.runs, "excludes": excluded, "parameters": parameters,
            }
        )  # fmt: skip
    return techniques
