"""Questions as tools of the Model Context Protocol: `windtunnel mcp` speaks it over stdin and stdout.

A tool is a row of the registry: its JSON schema is what it takes, its answer is the study's document. Nothing is
written, and no file is read but those of a folder that is named (`--files`): arguments that lead elsewhere are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import windtunnel
from windtunnel.errors import SpecError, UserError
from windtunnel.files.bytes import only_from
from windtunnel.questions import QUESTIONS, Question, noted, read, run, schema, spelled_out
from windtunnel.questions.document import as_text, document

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolRequestParams

TOOLS = {verb.replace(" ", "_"): verb for verb, row in QUESTIONS.items() if row.pure}
LONGEST = 1_000_000  # characters of one call's arguments
PARTS = re.compile(r"[,=:;\s]+")  # between which a text may name a file


def descriptions() -> list[dict[str, object]]:
    """Name, text and input schema of each tool."""
    tools: list[dict[str, object]] = []
    for name, verb in TOOLS.items():
        takes = schema(verb)
        takes["properties"].pop("question")
        takes["$defs"] = {part: _in_a_word(inner) for part, inner in takes.get("$defs", {}).items()}
        shown = _plain_schema(takes)
        assert isinstance(shown, dict)
        shown["$defs"] = _in_use(shown)
        tools.append({"name": name, "description": QUESTIONS[verb].text, "inputSchema": shown})
    return tools


def _in_a_word(part: Mapping[str, object]) -> Mapping[str, object]:
    """The schema of a part; of one that a word can say, the names of its fields alone: `read` checks what they hold."""
    kinds = part.get("anyOf")
    if not isinstance(kinds, list) or kinds[0].get("type") != ["string", "number"]:
        return part
    whole = kinds[1]
    text = f"{whole.get('description', '')} Fields: {', '.join(whole['properties'])}."
    return {"type": ["string", "number", "object"], "description": text.strip()}


def _plain_schema(schema: object, *, names: bool = False) -> object:
    """A schema without titles, and without the null that a field has which is left out. `names`: its keys are names."""
    if isinstance(schema, list):
        return [_plain_schema(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if names:
        return {name: _plain_schema(inner) for name, inner in schema.items()}
    shown: dict[str, object] = {}
    for key, value in schema.items():
        if key == "title" or (key == "default" and value is None):
            continue
        if key != "anyOf":
            shown[key] = _plain_schema(value, names=key in ("properties", "$defs"))
            continue
        kinds = [_plain_schema(kind) for kind in value if kind != {"type": "null"}]
        alone = kinds[0] if len(kinds) == 1 else None
        shown |= alone if isinstance(alone, dict) else {key: kinds}
    return shown


def _in_use(schema: Mapping[str, object]) -> dict[str, object]:
    """The definitions that a schema leads to."""
    parts = schema["$defs"]
    assert isinstance(parts, dict)
    reached: dict[str, object] = {}
    waiting = [json.dumps({name: value for name, value in schema.items() if name != "$defs"})]
    while waiting:
        for name in re.findall(r'"#/\$defs/(\w+)"', waiting.pop()):
            if name not in reached:
                reached[name] = parts[name]
                waiting.append(json.dumps(parts[name]))
    return reached


def answered(name: str, arguments: Mapping[str, object], folder: Path) -> dict[str, object]:
    """The answer of a tool; files are those of a folder. Raises UserError."""
    if name not in TOOLS:
        raise SpecError("tool", name, f"use one of {', '.join(TOOLS)}")
    try:
        size = len(json.dumps(arguments, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise SpecError("arguments", name, "give plain JSON") from None
    if size > LONGEST:
        raise SpecError("arguments", f"{size:,} characters", f"give at most {LONGEST:,}")
    from windtunnel.studies.serving.launch.question import is_line

    for text in _texts(arguments):
        if not is_line(text):  # its volumes, say, are no files of ours; what it gives the question is looked at below
            _check_path(text, folder)
    with chdir(folder), only_from(folder):
        data, notes = spelled_out({**arguments, "question": TOOLS[name]})
        for text in _texts(data):
            _check_path(text, folder)  # a file of the folder may name others
        return _document(read(data), notes)


def _document(question: Question, notes: tuple[str, ...] = ()) -> dict[str, object]:
    """The answer as the command line's JSON has it; that of `predict` as with `--brief`."""
    from windtunnel.questions.asked.predict import Predict

    if isinstance(question, Predict):
        from windtunnel.faces.report.prediction.document import brief, to_document
        from windtunnel.studies.predict import answer_at_first

        return brief(to_document(answer_at_first(question)[1]()))
    return document(question, noted(run(question), notes))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _check_path(text: str, folder: Path) -> None:
    """Raises SpecError for a text that names a file outside of the folder."""
    for part in PARTS.split(text):
        leads_out = part.startswith(("/", "~")) or "\\" in part or "\0" in part or ".." in part.split("/")
        if leads_out or not (folder / part).resolve().is_relative_to(folder.resolve()):
            raise SpecError("arguments", text, "name a file of the folder that was given with --files, or none")


def server(folder: Path) -> Server[object]:
    """The server. Raises UserError where the package is not installed."""
    try:
        from mcp.server.lowlevel import Server
        from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
    except ModuleNotFoundError:
        raise UserError("windtunnel mcp needs a package; install it with: pip install 'windtunnel[mcp]'") from None

    async def list_tools(_context: object, _request: object) -> ListToolsResult:
        return ListToolsResult(tools=[Tool.model_validate(description) for description in descriptions()])

    async def call_tool(_context: object, request: CallToolRequestParams) -> CallToolResult:
        try:
            answer, wrong = answered(request.name, request.arguments or {}, folder), False
        except UserError as error:
            answer, wrong = {"error": str(error)}, True
        text = as_text(answer)
        content = [TextContent(type="text", text=text)]
        result = {"content": content, "structuredContent": json.loads(text), "isError": wrong}
        return CallToolResult.model_validate(result)

    return Server("windtunnel", version=windtunnel.__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def speak(files: Path | None) -> None:
    """Answer over stdin and stdout until the client goes. Raises UserError."""
    if files is not None and not files.is_dir():
        raise SpecError("--files", str(files), "give a folder that is there")
    with TemporaryDirectory() as empty:
        folder = Path(empty) if files is None else files.resolve()
        speaker = server(folder)
        import anyio
        from mcp.server.stdio import stdio_server

        async def talk() -> None:
            async with stdio_server() as (coming, going):
                await speaker.run(coming, going, speaker.create_initialization_options())

        anyio.run(talk)
