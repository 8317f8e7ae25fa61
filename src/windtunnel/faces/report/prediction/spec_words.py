"""What was predicted, in words: names and layout out of a Result's `spec`, whatever form its parts have.

`Result.spec` holds model, cluster and plan; disturbances stand in `Result.reproduce` only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from windtunnel.errors import UserError
from windtunnel.physics.step.result import Result
from windtunnel.questions import plain as plain_question
from windtunnel.questions.asked.parts.scenario import NAMES
from windtunnel.questions.old import question_of
from windtunnel.units import format_bytes, format_flops, format_rate, format_time
from windtunnel.views import Column, Table
from windtunnel.views.text import plain

_LAYOUT = {  # fields of a plan as a subtitle names them, and the values that it leaves out
    **{"tp": "tp", "pp": "pp", "virtual_stages": "vpp", "cp": "cp", "ep": "ep", "dp": "dp", "zero_stage": "zero"},
    **{"global_batch": "batch", "micro_batch": "micro-batch", "seq_len": "seq"},
    **{"precision": "", "schedule": "", "framework": "", "recompute": "recompute"},
}
_LAYOUT_LESS = {**dict.fromkeys(("pp", "virtual_stages", "cp", "ep", "dp"), 1), "recompute": "none"}
_UNITS: dict[str, Callable[[float], str]] = {  # endings of fields, and how such a number is written
    "_bytes_per_s": format_rate,
    "_bytes": format_bytes,
    "_per_s": format_flops,
    "_s": format_time,
}
_UNIT = re.compile(r"(_bytes_per_s|_bytes|(?<=flops)_per_s(?=\.|$)|_s)(?=\.\w+$|$)")


def flatten(spec: Mapping[str, object]) -> dict[str, object]:
    """Nested mappings as `plan.tp`-like keys, sorted; lists of mappings are numbered, other lists stay whole."""
    flat: dict[str, object] = {}

    def visit(prefix: str, value: object) -> None:
        if isinstance(value, Mapping) and value:
            for key in sorted(value, key=str):
                visit(f"{prefix}.{key}" if prefix else str(key), value[key])
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                visit(f"{prefix}.{number}", item)
        else:
            flat[prefix] = value

    visit("", spec)
    return flat if spec else {}


def spec_table(title: str, spec: Mapping[str, object]) -> Table:
    """A spec field by field, which a page shows when asked."""
    rows = [(plain(key), value_words(value)) for key, value in flatten(spec).items() if value is not None]
    return Table(title, (Column("field"), Column("value")), rows, folded=True)


def value_words(value: object) -> str:
    """One value of a spec as a person writes it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.12g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return plain(", ".join(value_words(item) for item in value)) or "-"
    return plain(value) or "-"


def difference_words(field: str, a: object, b: object) -> tuple[str, str]:
    """A field and how it changes, as a person writes both: `slow`, `gpu=1037:1.15 → none`."""
    name, words = plain(field), (value_words(a), value_words(b))
    measured = _UNIT.search(field)
    if measured and (a is None or _is_number(a)) and (b is None or _is_number(b)):
        in_units = _UNITS[measured[1]]
        if a is None or b is None or in_units(a) != in_units(b):  # else the difference is below what units show
            name = plain(field.replace(measured[1], "", 1))
            words = ("" if a is None else in_units(a), "" if b is None else in_units(b))
    absent = "none" if field in NAMES else "-"
    before, after = (absent if value in (None, []) else _short(text) for value, text in zip((a, b), words, strict=True))
    return name, f"{before} → {after}"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def model_name(result: Result) -> str:
    """Name of the model, or `model`."""
    return _first(result.spec, ("model.name", "model.model_type", "model")) or "model"


def gpu_name(result: Result) -> str:
    """Name of the GPU, or `GPUs`."""
    places = ("gpu.name", "gpu", "node.gpu.name", "node.gpu", "name")
    name = _first(result.spec, (*(f"cluster.{place}" for place in places), "cluster"))
    return name.partition(":")[0] or "GPUs"


def calibrated_words(result: Result) -> str:
    """What a calibrated device's numbers rest on: `97 % of it measured here, on NAME, DATE`; "" elsewhere."""
    flat = flatten(result.spec)
    if not flat.get("cluster.calibration.digest"):
        return ""
    share = sum(value for key, value in result.provenance.items() if key in ("measured", "interpolated"))
    points = flat.get("cluster.calibration.points")
    where = ", ".join(
        str(flat[f"cluster.calibration.{key}"]) for key in ("device", "date") if flat.get(f"cluster.calibration.{key}")
    )
    return f"{share:.0%} rests on {points:,} points measured on {where}"


def _first(spec: Mapping[str, object], places: Sequence[str]) -> str:
    values = (_at(spec, place) for place in places)
    return next((plain(value) for value in values if isinstance(value, str) and value.strip()), "")


def _at(spec: object, place: str) -> object:
    """What lies at `gpu.name`; None where nothing does."""
    for key in place.split("."):
        spec = spec.get(key) if isinstance(spec, Mapping) else None
    return spec


def title(result: Result) -> str:
    """One line: `llama-3.1-405b on 8,192 x h100-sxm`."""
    return f"{model_name(result)} on {gpus(result)}"


def gpus(result: Result) -> str:
    """How many of which: `8,192 × h100-sxm`, or every type of a cluster that has several."""
    parts = result.spec.get("mixed")
    if isinstance(parts, Sequence) and not isinstance(parts, str):
        return " + ".join(f"{part['n_gpus']:,} × {_at(part, 'gpu.name')}" for part in parts)
    return f"{result.n_gpus:,} × {gpu_name(result)}"


def layout(result: Result) -> tuple[tuple[str, str], ...]:
    """The plan's degrees and batch as (name, value), leaving out degrees of 1."""
    plan = result.spec.get("plan")
    if not isinstance(plan, Mapping):
        return ()
    kept = {key: plan[key] for key in _LAYOUT if plan.get(key) is not None and plan[key] != _LAYOUT_LESS.get(key)}
    return tuple((_LAYOUT[key], value_words(value)) for key, value in kept.items())


def disturbing(result: Result) -> dict[str, object]:
    """`slow` as a list of texts, the others as their text; what the question does not say is not there."""
    try:
        question = question_of({"question": result.question, "reproduce": result.reproduce})
    except UserError:
        return {}
    stated = plain_question(question).get("scenario", {})
    return {name: value if name == "slow" else str(value) for name, value in stated.items()}
