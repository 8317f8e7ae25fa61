"""A form's fields as a question, and the question as a command, as Python and as YAML.

Fields of the plan are read off `Plan` itself, so that a new one appears in the page by itself. A file that was dropped
on the page is named by its name alone and lies in the folder of uploads; no other path can be named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from windtunnel.errors import SpecError, UserError
from windtunnel.physics.model.catalogue import hub_name
from windtunnel.physics.step.result import Result
from windtunnel.questions.asked.parts.plan import Plan
from windtunnel.questions.asked.parts.scenario import NAMES, Scenario
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.changing import as_given, set_paths
from windtunnel.questions.form import Input, inputs_of, value_of
from windtunnel.questions.reading import plain_part, read
from windtunnel.questions.words import settings
from windtunnel.units import parse_share

FILE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._+@ -]{0,120}"
    r"\.(json|yaml|yml|toml|csv|txt|gz|parquet|et|jsonl|sh|args|log|out|py|slurm|sbatch|conf)"
)
FIRST = ("tp", "pp", "cp", "ep", "global_batch", "micro_batch", "seq_len", "precision", "recompute", "zero_stage")
SECOND = ("virtual_stages", "schedule", "framework", "sequence_parallel")
SLIDERS = {"tp": 6, "pp": 7, "cp": 5, "micro_batch": 5}  # powers of two up to 2^N
START = {
    "model": "llama-3-70b",
    "gpu": "h100-sxm",
    "gpus": "512",
    "tp": "8",
    "pp": "4",
    "global_batch": "512",
    "seq_len": "8192",
}


@cache
def plan_fields() -> Mapping[str, Input]:
    """Every field of a plan by its name."""
    return {field.name: field for field in inputs_of(Plan)}


def plan_of(values: Mapping[str, str]) -> dict[str, object]:
    """The fields of a plan that a form fills, as plain data."""
    texts = {name: values.get(name, "").strip() for name in plan_fields()}
    return {name: value_of(plan_fields()[name], text) for name, text in texts.items() if text}


def file_or_name(field: str, text: str, uploads: Path) -> str:
    """A name of the catalogue as it is, the name of an uploaded file as its path. SpecError for any other path."""
    text = text.strip()
    if FILE.fullmatch(text):
        path = uploads / text
        if not path.is_file():
            raise SpecError(field, text, "no such file was dropped on the page; drop it here, or give a name")
        return str(path)
    if hub_name(text) == text:  # the hub's id of a shipped model is no path
        return text
    if "/" in text or "\\" in text or text.startswith((".", "~")):
        raise SpecError(field, text, "the page reads no files but those dropped on it; give a name, or drop the file")
    if not text:
        raise SpecError(field, None, "give a name, or drop a file on the page")
    return text


@dataclass(frozen=True)
class FormQuestion:
    """What a form asks."""

    model: str
    cluster: str
    plan: Mapping[str, object]
    sets: tuple[str, ...]
    scenario: Scenario
    plan_file: Path | None = None  # a plan in YAML or a framework's own, whose fields `plan` overrides

    def answer(self, advice: bool = False) -> Result:
        """Predict; `advice`: with the changes of the plan that help. Raises UserError."""
        from windtunnel.studies.predict import answer_at_first

        result, advised = answer_at_first(*self.question())
        return advised() if advice else result

    def question(self) -> tuple[Predict, tuple[str, ...]]:
        """The question, and what was not understood in a plan's file. Raises UserError."""
        from windtunnel.studies.training.question import plan_file

        changes = settings(self.sets)
        stated = plan_file(self.model, self.cluster, self.plan_file, changes)
        data = {
            "question": "predict",
            "model": self.model,
            "cluster": self.cluster,
            "plan": {**stated.fields, **self.plan},
            "scenario": plain_part(self.scenario),
        }
        paths = set_paths(data, Predict, changes)
        try:
            predict: Predict = read(data)
        except SpecError as error:
            name = as_given(error.field, paths)
            raise SpecError(name.removeprefix("plan."), error.value, error.remedy) from None
        return predict, stated.notes

    def plan_fields(self) -> dict[str, object]:
        """The fields of the plan; with a file, those that it says as well."""
        if self.plan_file is None and not is_stated(self.model):
            return dict(self.plan)
        return plain_part(self.question()[0].plan)

    def as_python(self) -> str:
        """The question as a call of the library."""
        arguments = [repr(self.model), repr(self.cluster), repr(self.plan_fields())]
        values = {name: getattr(self.scenario, name) for name in NAMES} | {"slow": list(self.scenario.slow)}
        arguments += [f"{name}={value!r}" for name, value in values.items() if value]
        return f"import windtunnel\n\nresult = windtunnel.predict({', '.join(arguments)})\n"

    def as_yaml(self) -> str:
        """The plan as a file."""
        from windtunnel.files.document import to_yaml

        return to_yaml(json.loads(json.dumps(self.plan_fields())))


def asked_of(values: Mapping[str, str], uploads: Path) -> FormQuestion:
    """The question that a form's fields ask. Raises SpecError, its field named as in the form."""
    model_text, file = values.get("model", ""), values.get("plan_file", "").strip()
    plan_file = Path(file_or_name("plan_file", file, uploads)) if file else None
    if file and not FILE.fullmatch(file):
        raise SpecError("plan_file", file, "drop a plan on the page, in YAML or the framework's own, and give its name")
    if plan_file is not None and not model_text.strip() and is_stated(file):
        model_text, plan_file = file, None  # the file states the model too
    model = file_or_name("model", model_text, uploads)
    gpu = file_or_name("gpu", values.get("gpu", ""), uploads)
    gpus = values.get("gpus", "").strip()
    if gpus and not (gpus.replace(",", "").isdigit() and int(gpus.replace(",", ""))):
        raise SpecError("gpus", gpus, "give a whole number from 1 up")
    cluster = f"{gpu}:{gpus.replace(',', '')}" if gpus else gpu
    slow = tuple(line.strip() for line in values.get("slow", "").splitlines() if line.strip())
    for line in slow:
        if "=" not in line:
            file_or_name("slow", line, uploads)
    sets = [f"cluster.nic={values['nic'].strip()}"] if values.get("nic", "").strip() else []
    sets += [line.strip() for line in values.get("set", "").splitlines() if line.strip()]
    router = values.get("router_load", "").strip() or None
    if router and not router.startswith("zipf:"):
        router = file_or_name("router_load", router, uploads)
    scenario = Scenario(slow, parse_share(values.get("jitter", "").strip() or 0.0, "jitter"), router_load=router)
    return FormQuestion(model, cluster, plan_of(values), tuple(sets), scenario, plan_file)


def is_stated(name: str) -> bool:
    """Whether a file of this name may state a model beside its plan: torchtitan's and Megatron's do."""
    return name.lower().endswith((".toml", ".sh", ".args", ".txt"))


def field_for(path: Path) -> str:
    """The field of the form that a dropped file belongs in."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return "router_load"
    if is_stated(path.name):
        return "plan_file"
    if suffix not in (".json", ".yaml", ".yml"):
        return ""
    from windtunnel.files.document import read_mapping
    from windtunnel.studies.training.launch import is_native
    from windtunnel.studies.training.plan import FIELDS, PLAN_FILE

    try:
        document = read_mapping(path, PLAN_FILE)
        native = is_native(path)
    except UserError:
        return "model" if suffix == ".json" else "gpu"  # whose reader says what is wrong with it
    if suffix == ".json" and {"model_type", "architectures", "hidden_size"} & set(document):
        return "model"
    plan = native or (bool(document) and set(document) <= set(FIELDS))
    return "plan_file" if plan else "gpu"
