"""Command lines of `serve` and `fleet` from before they were verbs, as the verbs that ask the same today.

What has another name only is still taken. A word that stood for a mode is refused by the command line, which says the
whole line of today; old runs are read by it. Goes one minor release after the change, with `old.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from windtunnel.errors import SpecError, UserError
from windtunnel.files.bytes import first_bytes

Flags = list[tuple[str, str | None]]  # in order; None: a switch

SWITCHES = (
    *("--goodput", "--json", "--full", "--prefix-caching", "--no-prefix-caching"),
    *("--chunked-prefill", "--no-chunked-prefill", "--images", "--no-images", "--help"),
    *("--help-all", "-h"),
)
RENAMED = {"--gpu-hour": "--price", "--requests-out": "--rows", "--jobs-out": "--rows", "--page": "--report"}
LAYOUT = ("--tp", "--pp", "--dp", "--ep")
VERBS = {
    "serve": ("plan", "spot", "pool", "real", "listen", "policies"),
    "fleet": ("when", "pack", "flows", "lint", "live"),
}
WHERE_IT_RUNS = ("--executor", "--live-folder", "--out")  # no part of a question


def current(words: Sequence[str]) -> list[str]:
    """A command line with the names that flags have today. Raises UserError that says the line of a mode's verb."""
    words = _of_several(words)
    if not words or words[0] not in VERBS:
        return list(words)
    mode, line = _renewed(list(words))
    if mode:
        raise UserError(f"{mode} is a verb of its own now; write: windtunnel {shlex.join(line)}")
    return line


def renewed(words: Sequence[str]) -> list[str]:
    """A command line of before as the question of today: its modes as verbs, without where it runs."""
    words = _of_several(words)
    if not words or words[0] not in VERBS:
        return list(words)
    verb, places, flags = _parsed(_renewed(list(words))[1])
    return [*verb, *places, *_written([flag for flag in flags if flag[0] not in WHERE_IT_RUNS])]


TABLE = ".parquet"
OF_RUNS, OF_CALIBRATION = ("list", "tag", "delete"), ("device", "collectives", "show")
HELP = ("--help", "-h", "--help-all")


def _of_several(words: Sequence[str]) -> list[str]:
    """`explain --silent`, `sweep --show`, `runs` and `calibrate` of before, as the verbs of now: still taken."""
    verb, rest = list(words[:1]), list(words[1:])
    if verb == ["explain"] and "--silent" in rest:
        return ["watch", *(word for word in rest if word != "--silent"), "--over"]
    shown = any(word.partition("=")[0] == "--show" for word in rest)
    if verb == ["sweep"] and rest[:1] != ["table"] and (shown or (rest[:1] and rest[0].endswith(TABLE))):
        return ["sweep", "table", *rest]
    if verb == ["runs"] and rest[:1] not in [[name] for name in (*OF_RUNS, *HELP)]:
        return _of_runs(rest)
    if verb == ["calibrate"] and rest[:1] not in [[name] for name in (*OF_CALIBRATION, *HELP)]:
        for flag in ("--show", "--collectives"):
            parts = [word.partition("=") for word in rest]
            if flag in [name for name, _, _ in parts]:
                remaining = [value if name == flag else name + equals + value for name, equals, value in parts]
                return [*verb, flag.removeprefix("--"), *filter(None, remaining)]
        return [*verb, "device", *rest]
    return list(words)


def _of_runs(rest: list[str]) -> list[str]:
    by_flag: dict[str, list[str]] = {"--tag": [], "--delete": []}
    others: list[str] = []
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in by_flag:
            by_flag[name].append(value if equals else rest.pop(0) if rest else "")
        else:
            others.append(name + equals + value)
    if by_flag["--delete"] or "--yes" in others:
        return ["runs", "delete", *others, "--", *by_flag["--delete"], *by_flag["--tag"]]
    if by_flag["--tag"]:
        return ["runs", "tag", *others, "--", *by_flag["--tag"]]
    return ["runs", "list", *others]


ELSEWHERE = {  # of `fleet`: flags whose clocks went
    "--clock": "leave it out: published simulators' clocks are in validation/oracles",
    "--slot": "leave it out: a policy's slot is slot_s in its YAML file, --policy edf.yaml",
}


def _renewed(words: list[str]) -> tuple[str, list[str]]:
    """The mode word that was found, or nothing, and the line of today."""
    verb, places, flags = _parsed(words)
    for name, value in flags if verb[0] == "fleet" else ():
        if name in ELSEWHERE:
            raise SpecError(name, value, ELSEWHERE[name])
    if len(verb) > 1:
        flags = [("--rows" if verb[1] == "flows" and name == "--out" else name, value) for name, value in flags]
        return "", [*verb, *places, *_written(_renamed(flags))]
    mode, verb, places, flags = (_of_serve if verb == ["serve"] else _of_fleet)(places, flags)
    return mode, [*verb, *places, *_written(_renamed(flags))]


def _parsed(words: list[str]) -> tuple[list[str], list[str], Flags]:
    """The verb's words, places, and flags with their values."""
    verb, rest = words[:1], words[1:]
    if rest and rest[0] in VERBS[verb[0]]:
        verb.append(rest.pop(0))
    places: list[str] = []
    flags: Flags = []
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            places.append(word)
        elif equals:
            flags.append((name, value))
        else:
            takes = name not in SWITCHES or rest[:1] in (["true"], ["false"], ["on"], ["off"])
            flags.append((name, rest.pop(0) if takes and rest else None))
    return verb, places, flags


def _written(flags: Flags) -> list[str]:
    words: list[str] = []
    for name, value in flags:
        if value is not None and value.startswith("-"):
            words.append(f"{name}={value}")
        else:
            words += [name] if value is None else [name, value]
    return words


def _renamed(flags: Flags) -> Flags:
    renamed_flags: Flags = []
    for name, value in flags:
        if name == "--slo" and value is not None and "=" in value:
            for part in value.split(","):
                limit, _, most = part.partition("=")
                renamed_flags.append((f"--{limit.strip().lower()}", most.strip()))
        elif name == "--requests" and value is not None and not value.isdigit() and not _is_number(value):
            renamed_flags.append(("--workload", value))
        else:
            renamed_flags.append((RENAMED.get(name, name), value))
    return renamed_flags


def _is_number(text: str) -> bool:
    try:
        float(text or "0")
    except ValueError:
        return False
    return True


def _take(flags: Flags, *names: str) -> tuple[list[str | None], Flags]:
    """The last value of each of these flags, and the flags without them."""
    last = {name: value for name, value in flags if name in names}
    return [last.get(name) for name in names], [flag for flag in flags if flag[0] not in names]


Mode = tuple[str, list[str], list[str], Flags]


def _is_manifest(path: str) -> bool:
    """Whether a file is of Kubernetes, which `serve` reads itself."""
    return b"apiVersion:" in first_bytes(Path(path), 64 * 1024)


def _of_serve(places: list[str], flags: Flags) -> Mode:
    names = {name for name, _ in flags}
    if places and places[0].endswith((".yaml", ".yml")) and not _is_manifest(places[0]):
        return places[0], ["serve", "pool"], places, flags
    if "--real" in names:
        (model,), flags = _take(flags, "--real")
        return "--real", ["serve", "real"], [model or ""], flags
    if "--listen" in names:
        (address,), flags = _take(flags, "--listen")
        # A number of requests meant nothing there.
        flags = [(name, value) for name, value in flags if name != "--requests" or not (value or "").isdigit()]
        return "--listen", ["serve", "listen"], [*places, address or ""], flags
    if "--spot" in names:
        (machines,), flags = _take(flags, "--spot")
        flags = [("--policy" if name == "--spot-policy" else name, value) for name, value in flags]
        return "--spot", ["serve", "spot"], [*places, machines or ""], flags
    if "--search" in names:
        flags = [("--method" if name == "--search" else name, value) for name, value in flags]
        if ("--method", "distserve") not in flags:  # which refused a layout; the others did not look at it
            flags = [flag for flag in flags if flag[0] not in LAYOUT]
        return "--search", ["serve", "plan"], places, flags
    if "--goodput" in names:
        return "--goodput", ["serve", "plan"], places, _take(flags, "--goodput")[1]
    return "", ["serve"], places, flags


def _of_fleet(places: list[str], flags: Flags) -> Mode:
    cluster = next((value or "" for name, value in flags if name == "--cluster"), "")
    names = {name for name, _ in flags}
    if "--live" in names:
        (jobs,), flags = _take(flags, "--live")
        flags = [("--out" if name == "--live-folder" else name, value) for name, value in flags]
        return "--live", ["fleet", "live"], [*places, jobs or ""], flags
    if "--when" in names:
        (job,), flags = _take(flags, "--when")
        return "--when", ["fleet", "when"], [*places, job or ""], flags
    if cluster.lower().endswith(".csv"):
        return cluster, ["fleet", "pack"], places, flags
    return "", ["fleet"], places, flags
