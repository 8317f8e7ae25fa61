"""A framework's own file as settings by dotted names: YAML, TOML and JSON, a launch script in shell, TRL's in Python.

    YAML     nested keys joined by dots; `defaults:` is read first; ${a.b}, ${oc.env:X,y}, ${mul:a,b} and ${div:a,b}
    Python   keywords of TRL's GRPOConfig, and the trainer's model, where they are constants
    shell    a.b=c (hydra; + and ++ before it), --a-b c and --a-b; variables, ${A:-b}, : "${A:=b}", $((a * b));
             also as `run:` of a YAML file that starts jobs (SkyPilot)

A script that only starts another one, or names its file with --config, says what it changes of that (`referred`).

Nothing is run. What cannot be resolved keeps its text, and is no number to whoever reads it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import read_text
from windtunnel.files.document import read_mapping, value_of
from windtunnel.studies.training.launch.trainer.reading import of_script

Settings = dict[str, object]
REFERRED = re.compile(r"""(?:\b(?:bash|sh)\s+|--config[ =])["']?([^\s"']+\.(?:sh|ya?ml|toml))\b""")
SCRIPTS = (".sh", ".bash", ".txt", ".slurm", ".sbatch")
INNER = re.compile(r"\s--[a-z][\w.]*\s")  # in a word that is a script itself, such as after `bash -c`
ABOVE_MOST = 8  # folders above a script in which the paths that it names may begin
REMEDY = "give the framework's YAML or TOML, or the shell script that launches it"
DEEPEST = 8  # `defaults:` of `defaults:`
EMPTY = re.compile(r"(\s*(#.*)?\n)*\s*(#.*)?")
NAME = r"[A-Za-z_]\w*"


def read_settings(path: Path, depth: int = 0) -> Settings:
    """Settings by dotted names. Raises InputFileError."""
    if path.suffix.lower() in SCRIPTS:
        return _of_shell(read_text(path, REMEDY), path)
    if path.suffix.lower() == ".py":
        return dict(of_script(read_text(path, REMEDY), str(path), ("GRPOConfig",)))
    data = read_mapping(path, REMEDY)
    script = data.get("run")
    if isinstance(script, str) and "\n" in script:
        return _of_shell(script, path)
    flat = _flat(data)
    below: Settings = {}
    for name in _defaults(data):
        place = path.parent / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
        if place.exists() and EMPTY.fullmatch(read_text(place, REMEDY)) is None:
            if depth == DEEPEST:
                raise InputFileError(path, f"has more than {DEEPEST} levels of defaults", "write them into one file")
            below |= read_settings(place, depth + 1)
    merged = below | {key: value for key, value in flat.items() if not key.startswith("defaults")}
    return merged if depth else {key: _resolved(value, merged) for key, value in merged.items()}


def referred(path: Path) -> Settings:
    """Settings of the script or file that a script names, where it is there; none else. Raises InputFileError."""
    for reference in REFERRED.findall(read_text(path, REMEDY)):
        tail = Path(re.sub(r"^(\$\{?\w+\}?/)+", "", reference))
        above = [path.parent, *path.parent.parents][:ABOVE_MOST]
        place = next((folder / tail for folder in above if (folder / tail).is_file()), None)
        if place is not None and not tail.is_absolute() and place.resolve() != path.resolve():
            return read_settings(place)
    return {}


def _defaults(data: Mapping[str, object]) -> list[str]:
    defaults = data.get("defaults")
    listed = defaults if isinstance(defaults, list) else [defaults]
    return [default.removesuffix("@_here_") for default in listed if isinstance(default, str) and default != "_self_"]


def _flat(data: Mapping[str, object], prefix: str = "") -> Settings:
    flat: Settings = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _resolved(value: object, settings: Settings, depth: int = 0) -> object:
    """A value with what it refers to in it."""
    if not isinstance(value, str) or "${" not in value or depth > DEEPEST:
        return value
    while (match := re.search(r"\$\{([^${}]*)\}", value)) is not None:
        inner = _reference(match[1], settings, depth)
        if match[0] == value:
            return inner
        value = value.replace(match[0], f"{inner}")
    return value


def _reference(text: str, settings: Settings, depth: int) -> object:
    kind, colon, rest = text.partition(":")
    if not colon:
        value = settings.get(text, f"<{text}>")
        return _resolved(value, settings, depth + 1)
    if kind in ("oc.env", "env"):
        return value_of(rest.partition(",")[2].strip())
    if kind in ("mul", "div", "add", "sub", "max", "min"):
        several = [_resolved(value_of(word.strip()), settings, depth + 1) for word in rest.split(",")]
        numbers = [operand for operand in several if isinstance(operand, int | float)]
        if len(numbers) == len(several) == 2:
            a, b = numbers
            done = {"mul": a * b, "add": a + b, "sub": a - b, "max": max(a, b), "min": min(a, b)}
            return done[kind] if kind in done else a // b if b else f"<{text}>"
    return f"<{text}>"


# -------------------------------------------------------------------------------------------------------- shell


def _of_shell(script: str, path: Path) -> Settings:
    lines = _closed(script.replace("\\\r\n", " ").replace("\\\n", " ").splitlines())
    values: dict[str, str] = {}
    settings: Settings = {}
    words: list[str] = []
    for line in lines:
        line = line.strip()
        default = re.match(rf':\s+"?\$\{{({NAME}):?=(.*)\}}"?$', line)
        if default:
            values.setdefault(default[1], _spelled(default[2].strip("\"'"), values))
            continue
        assigned = re.match(rf"(?:export\s+)?({NAME})=(?!\()(.*)$", line)
        if assigned:
            value = _spelled(_without_comment(assigned[2]), values).strip()
            if len(_words(value)) < 2:  # with more it is a command with a variable of its own before it
                values[assigned[1]] = value.strip("\"'")
                continue
        words += _words(_spelled(line, values))
    words = [each for word in words for each in (_words(word) if INNER.search(word) else [word])]
    for place, text in enumerate(words):
        setting = re.fullmatch(r"(?:\+{0,2}|~)([A-Za-z_][\w.-]*\.[\w.-]+)=(.*)", text, re.DOTALL)
        flag = re.fullmatch(r"--([A-Za-z][\w.-]*)(?:=(.*))?", text, re.DOTALL)
        if setting:
            settings[setting[1]] = value_of(setting[2])
        elif flag:
            after = words[place + 1] if place + 1 < len(words) else "--"
            alone = after.startswith("--") or "=" in after or after == ")"
            word = flag[2] if flag[2] is not None else "true" if alone else after
            settings[flag[1].replace("-", "_")] = value_of(word)
    if not settings:
        raise InputFileError(path, "holds no setting", REMEDY)
    return settings


def _words(line: str) -> list[str]:
    """Words as a shell parts them; none of a line that is more than words, which holds no setting of its own."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


def _closed(lines: Sequence[str]) -> Iterator[str]:
    """Lines, and those of a value in double quotes that begins on one and ends on another as one."""
    opened: list[str] = []
    for line in lines:
        begins = re.match(rf"\s*(?:export\s+)?{NAME}=\"[^\"]*$", line)
        if opened or begins:
            opened.append(line)
            if begins and len(opened) == 1:
                continue
            if line.count('"') % 2:
                yield " ".join(opened)
                opened = []
        else:
            yield line
    yield from opened


def _without_comment(text: str) -> str:
    quoted = text[:1] in ("'", '"') and text.count(text[0]) > 1
    return text if quoted and "#" not in text else re.sub(r"\s+#.*$", "", text)


def _spelled(text: str, values: Mapping[str, str]) -> str:
    """Text with its variables and sums worked out."""
    for _ in range(DEEPEST):
        before = text
        text = re.sub(
            rf"\$\{{({NAME})(?::?[-=]([^${{}}]*))?\}}", lambda match: _value(match[1], match[2], values), text
        )
        text = re.sub(rf"\$({NAME})", lambda variable: values.get(variable[1], f"<{variable[1]}>"), text)
        text = re.sub(r"\$\(\((.*?)\)\)(?!\))", lambda expression: _sum(expression[1], values), text)
        if text == before:
            break
    return text


def _value(name: str, other: str | None, values: Mapping[str, str]) -> str:
    if values.get(name) or (name in values and other is None):
        return values[name]
    return other.strip("\"'") if other is not None else f"<{name}>"


def _sum(text: str, values: Mapping[str, str]) -> str:
    """A whole number from + - * / % and brackets of whole numbers; the text where it is none."""
    text = re.sub(NAME, lambda match: values.get(match[0], match[0]), text)
    tokens = re.findall(r"\d+|[-+*/%()]|\S", text)
    try:
        value, rest = _terms(tokens)
    except (ValueError, ZeroDivisionError, IndexError):
        return f"<{text.strip()}>"
    return f"<{text.strip()}>" if rest else str(value)


def _terms(tokens: list[str]) -> tuple[int, list[str]]:
    value, rest = _factors(tokens)
    while rest and rest[0] in "+-":
        more, after = _factors(rest[1:])
        value = value + more if rest[0] == "+" else value - more
        rest = after
    return value, rest


def _factors(tokens: list[str]) -> tuple[int, list[str]]:
    value, rest = _atom(tokens)
    while rest and rest[0] in "*/%":
        more, after = _atom(rest[1:])
        value = value * more if rest[0] == "*" else value // more if rest[0] == "/" else value % more
        rest = after
    return value, rest


def _atom(tokens: list[str]) -> tuple[int, list[str]]:
    if tokens[0] == "(":
        value, rest = _terms(tokens[1:])
        if rest[:1] != [")"]:
            raise ValueError("a bracket is open")
        return value, rest[1:]
    return int(tokens[0]), tokens[1:]
