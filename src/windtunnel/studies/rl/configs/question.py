"""A framework's settings as a question of `rl`, and what was not understood in them.

A table (`verl.yaml`, ...) names for each field of the question the setting that it comes from:

    key         one name, or several of which the first that is there counts;   product: of several
    only_if     a setting that must be on, `else` what counts where it is not;  only_with: a field that must be there
    times, over another field that it is multiplied with, or divided by;        default: where it is not set
    is          values and what they mean;                                      positive: yes where above 0
    any         of settings: yes where one is on or above 0, else `else`;       devices: GPUs listed in Python
    least       a number below it says nothing

`critic` names a setting (its names parted by |), what it is where it is not set, and the values by which a critic is
trained: it is not priced.
`harmless` matches settings that do not decide how long a step takes; all others that no field reads are named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError, SpecError, about_file
from windtunnel.files.document import own_document, value_of
from windtunnel.physics.model.catalogue import catalogued
from windtunnel.questions.changing import nested
from windtunnel.studies.rl.configs.settings import SCRIPTS, Settings, read_settings, referred

FOLDER = Path(__file__).parent
TRAINERS = {"fsdp": "fsdp", "megatron": "megatron", "archon": "torchtitan"}
PROMPT = 150
NOTHING: tuple[object, ...] = (None, False, [], "", "auto", 0)  # a setting that says nothing
MOST_DEVICES = 1 << 20
DEVICES = re.compile(r"list\(\s*range\((?P<range>[\d,\s]*)\)\s*\)|(?:list\(\s*)?\[(?P<list>[\d,\s]*)\]\s*\)?")
DEVICES_REMEDY = "give them as list(range(0,8)) or [0, 1]"
DEVICE = re.compile(r"\s*\d{1,7}\s*")
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?e[-+]?\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Imported:
    """What a file says."""

    framework: str
    data: Mapping[str, Any]  # of a question, nested
    unknown: tuple[str, ...]  # settings that nothing reads and that may matter
    model: str  # as the file names it
    path: str
    gpus: int | None = None  # of all pools, as the file says


def read_config(path: str) -> Imported:
    """A framework's own file. Raises InputFileError."""
    place = Path(path)
    try:
        settings = read_settings(place)
    except InputFileError:
        settings = _below(place, {})
        if not settings:
            raise
    name = _framework(settings)
    if name is None or "config" in settings:
        settings = _below(place, settings)
        name = _framework(settings)
    if name is not None:
        with about_file(path):
            return _imported(name, _table(name), settings, path)
    raise InputFileError(place, "is of no framework that is known", "give one of verl, NeMo RL, slime, ROLL, ...")


def _below(place: Path, settings: Settings) -> Settings:
    """A script's settings over those of the script or file that it starts."""
    return referred(place) | settings if place.suffix.lower() in SCRIPTS else settings


def _framework(settings: Settings) -> str | None:
    """Whose settings these are."""
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    return next((name for name in names if any(_is_there(word, settings) for word in _table(name)["known_by"])), None)


@lru_cache(maxsize=16)
def _table(name: str) -> dict[str, Any]:
    return own_document((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def _is_there(word: str, settings: Settings) -> bool:
    """Whether all of `a+b` are there; a name that ends with a dot is the beginning of one."""
    return all(
        any(key.startswith(part) for key in settings) if part.endswith(".") else part in settings
        for part in word.split("+")
    )


def _imported(name: str, table: Mapping[str, Any], settings: Settings, path: str) -> Imported:
    read: set[str] = set()
    values: dict[str, object] = {}
    for field, rule in table["fields"].items():
        value = _value(rule, settings, values, read)
        if value is not None:
            values[field] = value
    _place(values)
    model = str(values.pop("model", ""))
    gpus = _gpus(table["fields"], values, settings)
    data = _question(values)
    pools = data.get("generate"), data.get("train")
    if gpus is None and isinstance(pools[0], int) and isinstance(pools[1], int):
        gpus = pools[0] + pools[1]
    catalogue_name = catalogued(model)
    if catalogue_name:
        data["model"] = catalogue_name
    harmless = re.compile(re.sub(r"\s+", "", table["harmless"]))
    keys = (key for key in sorted(settings) if key not in read and settings[key] not in NOTHING)
    unknown = tuple(key for key in keys if not harmless.match(key))
    stated = {key: next((name for name in key.split("|") if name in settings), "") for key in table.get("critic", {})}
    critic = next(
        (
            name or key.partition("|")[0]
            for key, name in stated.items()
            if settings.get(name, table["critic"][key][0]) in table["critic"][key][1:]
        ),
        None,
    )
    if critic is not None:
        unknown = (f"{critic} (its critic is not priced)", *unknown)
    return Imported(name, {"framework": name, **data}, unknown, model, path, gpus)


def _gpus(
    rules: Mapping[str, Mapping[str, list[str | int]]], values: Mapping[str, object], settings: Settings
) -> int | None:
    """Of all pools; None where the file does not say."""
    everything = values.get("all")
    generate = None if values.get("colocated") is True else values.get("generate")  # else on the GPUs that train
    if isinstance(everything, int):
        return everything
    rule = rules.get("train", {})
    trained = _product(rule.get("product", ()), settings, set()) or _product(rule.get("else", ()), settings, set())
    return None if trained is None else trained + (generate if isinstance(generate, int) else 0)


def _value(rule: Mapping[str, Any], settings: Settings, values: Mapping[str, object], read: set[str]) -> object:
    if "only_with" in rule and rule["only_with"] not in values:
        return None
    if "product" in rule:
        return _product(rule["product"], settings, read) or _product(rule.get("else", ()), settings, read)
    if "any" in rule:
        read.update(name.partition("=")[0] for name in rule["any"])
        numbers = [_factor(name, settings) for name in rule["any"]]
        return "yes" if any(isinstance(number, int | float) and number > 0 for number in numbers) else rule["else"]
    if "devices" in rule:
        devices = _devices(rule["devices"], settings.get(rule["devices"]))
        if devices is not None:
            read.add(rule["devices"])
        return devices
    names = rule["key"] if isinstance(rule["key"], list) else [rule["key"]]
    if "only_if" in rule:
        read.update([rule["only_if"], *names])  # of no effect where that is off
        if settings.get(rule["only_if"]) is not True:
            names = [rule["else"]] if "else" in rule else []
    there = [name for name in names if settings.get(name) is not None]
    read.update(there)
    value = settings[there[0]] if there else rule.get("default")
    if value is None or (isinstance(value, str) and "<" in value.rstrip("/").rpartition("/")[2]):  # of a path its end
        return None
    if isinstance(value, str) and NUMBER.fullmatch(value):
        value = float(value)  # YAML 1.1 reads 1e-3 as text
    if "least" in rule and isinstance(value, int | float) and value < rule["least"]:
        return None
    if rule.get("positive"):
        return "yes" if isinstance(value, int | float) and value > 0 else "no"
    if "is" in rule:
        meanings = rule["is"]
        return meanings.get(value.lower() if isinstance(value, str) else value)
    for operation in ("times", "over"):
        other = values.get(rule.get(operation, ""))
        if isinstance(value, int) and isinstance(other, int):
            value = value * other if operation == "times" else max(1, value // other)
    return value


def _product(names: list[str | int] | tuple[str | int, ...], settings: Settings, read: set[str]) -> int | None:
    """Of settings, with `=1` behind them what they are by default, and numbers; None where one is missing."""
    factors = [_factor(name, settings) for name in names]
    if not names or not all(isinstance(factor, int) and not isinstance(factor, bool) for factor in factors):
        return None
    read.update(name.partition("=")[0] for name in names if isinstance(name, str))
    return prod(factor for factor in factors if isinstance(factor, int))


def _factor(name: str | int, settings: Settings) -> object:
    if isinstance(name, int):
        return name
    key, _, default = name.partition("=")
    setting = settings.get(key)
    return value_of(default) if setting is None and default else setting


def _devices(name: str, value: object) -> list[int] | None:
    """`list(range(0,16,2))`, `[0, 1]`, or a sum of such; None where it is no such thing. Nothing is run.

    Raises SpecError for a list that names no GPU, or that Python would not read either.
    """
    if value in NOTHING:
        return None
    devices: list[int] = []
    for part in str(value).split("+"):
        match = DEVICES.fullmatch(part.strip())
        if match is None:
            return None
        words = (match["list"] if match["range"] is None else match["range"]).split(",")
        if not words[-1].strip():
            words.pop()  # behind the last comma
        numbers = [int(word) for word in words if DEVICE.fullmatch(word)]
        steps = range(0)
        if match["range"] is None:
            devices += numbers
        elif 1 <= len(numbers) <= 3 and numbers[2:] != [0]:
            steps = range(*numbers)
        if len(numbers) < len(words) or len(devices) + len(steps) > MOST_DEVICES:
            raise SpecError(name, value, f"is no list of up to {MOST_DEVICES:,} GPUs: {DEVICES_REMEDY}")
        devices += steps
    if not devices:
        raise SpecError(name, value, f"names no GPU: {DEVICES_REMEDY}")
    return devices


def _place(values: dict[str, object]) -> None:
    """Pools from the GPUs of each side, and the samples of an optimizer step from those of a rank."""
    trained, generating = values.pop("train_devices", None), values.pop("generate_devices", None)
    each = values.pop("rank_batch", None)
    values.pop("grouped", None)
    if not isinstance(trained, list):
        return
    sizes = [values.get(f"learner.{name}") for name in ("tp", "pp", "cp")]
    if isinstance(each, int):
        replica = prod(size for size in sizes if isinstance(size, int))
        values["learner.train_batch"] = max(1, each * len(trained) // replica)
    if isinstance(generating, list):
        values["all"] = len({*trained, *generating})
        if set(trained) & set(generating):
            values["colocated"] = True
        else:
            values |= {"generate": len(generating), "train": len(trained)}


def _question(values: dict[str, Any]) -> dict[str, object]:
    """Fields that follow from several, and parts nested."""
    values = {name: value for name, value in values.items() if not (isinstance(value, int) and value < 0)}
    colocated, everything = values.pop("colocated", None), values.pop("all", None)
    generate = values.get("generate")
    if colocated is True:
        values.pop("generate", None)
        values.pop("train", None)
    elif isinstance(generate, int) and isinstance(everything, int) and everything > generate:
        values["train"] = everything - generate
    for side, name in (("generate", "rollout_backend"), ("train", "actor_backend")):
        backend = values.pop(name, None)
        if isinstance(backend, str):
            _backend(side, backend, values)
    if "generate" not in values or "train" not in values:
        for name in ("generate", "train", "async_steps", "partial", "rollout.in_flight"):
            values.pop(name, None)
    total, cap = values.pop("total", None), values.pop("cap", None)
    if not isinstance(cap, int) and isinstance(total, int):
        cap = max(1, total - PROMPT)
    if isinstance(cap, int):
        values["lengths"] = f"cap={cap}"
    device, accumulation = values.pop("device_batch", None), values.pop("accumulation", 1)
    steps, generated = values.pop("generation_steps", None), values.pop("generated", None)
    if isinstance(device, int) and isinstance(values.get("samples"), int):
        values["per_device"] = device * (steps if isinstance(steps, int) else accumulation)
        values["trained_per_device"] = device * accumulation
        if isinstance(generated, int):
            values["prompts"] = max(1, generated // values["samples"])
    parts = values.pop("mini_batches", None)
    if isinstance(parts, int) and parts and isinstance(values.get("prompts"), int):
        values["learner.train_batch"] = max(1, values["prompts"] * values.get("samples", 1) // parts)
    return nested(values)


def _backend(side: str, text: str, values: dict[str, object]) -> None:
    """`sglang:d4p1t1`, `megatron:(attn:d1p4t2|ffn:...)`: the first sizes are attention's."""
    engine, _, layout = text.partition(":")
    sizes = {letter: int(number) for letter, number in re.findall(r"([dptce])(\d+)", layout.partition("|")[0])}
    if not sizes:
        return
    values[side] = prod(sizes.get(letter, 1) for letter in "dptc")
    if side == "generate":
        values["rollout.gen_tp"] = sizes.get("t", 1)
        values["rollout.engine"] = engine if engine in ("vllm", "sglang") else "vllm"
    else:
        values |= {f"learner.{name}p": sizes.get(letter, 1) for letter, name in (("t", "t"), ("p", "p"), ("c", "c"))}
        values["learner.trainer"] = TRAINERS.get(engine, "fsdp")
