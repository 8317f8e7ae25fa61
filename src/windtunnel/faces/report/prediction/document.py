"""The JSON form of a Result: versioned, self-checking, with a JSON Schema made from the Result itself.

The document is `Result.to_dict()` plus a few derived values for people who read it with `jq`, and a hash over the
rest, so that a cut-off or edited file is noticed. Canonical bytes: sorted keys, no spaces, no NaN.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from windtunnel.physics.step.result import BESIDE as BESIDE_ANSWER
from windtunnel.physics.step.result import Result
from windtunnel.questions.header import SCHEMA, band_entry, header

if TYPE_CHECKING:
    from pydantic import TypeAdapter

TRAINING_RUN = "training_run"  # beside the answer in `--json --tokens`
BESIDE = (TRAINING_RUN, "ops", "launch")  # and in `--rows json`, in `--launch-flags`
STUDY = "predict"
HEADER = ("study", "version", "band")  # of the header: its other fields are the result's own. From schema 2 on
FLOPS = ("flops_per_rank", "executed_flops_per_rank")
DERIVED = ("content_hash", "step_time_s", "peak_memory_bytes", *FLOPS)


class DocumentError(ValueError):
    """A document that is no Result. `problem` and `remedy` go into the message of whoever knows the file's name."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(f"{problem}; {remedy}")


def to_document(result: Result) -> dict[str, object]:
    """What `--json` prints, and, without advice, what `result.json` holds beside its question.

    A result of schema 1 stays one.
    """
    own = result.to_dict()
    del own["question"]
    return {
        **(_header(result) if result.schema == SCHEMA else {}),
        **own,
        "content_hash": result.content_hash,
        "step_time_s": result.step_time_s,
        "peak_memory_bytes": result.peak_memory.device_bytes if result.memory else 0,
        **{name: getattr(result, name) for name in FLOPS},
    }


def brief(document: Mapping[str, object]) -> dict[str, object]:
    """A document without what happens when inside the step, which is most of its bytes: it can be no run any more."""
    memory = [{name: value for name, value in stage.items() if name != "timeline"} for stage in document["memory"]]  # type: ignore[attr-defined]
    return {name: value for name, value in document.items() if name != "excerpt"} | {"memory": memory}


def _header(result: Result) -> dict[str, object]:
    band = band_entry("step_time_s", result.step_time_p5_ns / 1e9, result.step_time_p95_ns / 1e9)
    return header(STUDY, result.spec, result.reproduce, version=result.spec.get("version"), band=band)


def to_bytes(document: Mapping[str, object]) -> bytes:
    """Canonical UTF-8 JSON, one line."""
    return _canonical(document) + b"\n"


def from_bytes(data: bytes) -> Result:
    """The Result of a document. Raises DocumentError with what is wrong and what to do."""
    from pydantic import ValidationError

    again = "predict again to write a fresh one"
    try:
        parsed = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise DocumentError("is nested too deep for a result", again) from None
    except ValueError as error:
        whole = data.strip()
        cut = not whole or (whole[:1] == b"{" and whole[-1:] != b"}")
        raise DocumentError(f"{'is cut off' if cut else 'is not JSON'} ({error})", again) from None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("schema"), str):
        raise DocumentError("is not a windtunnel result (no `schema`)", "give the result.json of a run folder")
    _check_schema(parsed["schema"])
    if parsed.get("study", STUDY) != STUDY:
        problem = f"is an answer of `windtunnel {str(parsed['study'])[:40]}`, no prediction"
        raise DocumentError(problem, "give the result.json of a run folder")
    promised = parsed.get("content_hash")
    body = {key: value for key, value in parsed.items() if key not in (*HEADER, *DERIVED, *BESIDE)}
    try:
        text = _canonical({key: value for key, value in body.items() if key not in BESIDE_ANSWER})
        whole_text = _canonical(body) if any(body.get(key) for key in BESIDE_ANSWER) else text
        result = _reader().validate_json(whole_text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "document"
        raise DocumentError(f"is not a complete result ({place}: {first['msg'].lower()})", again) from None
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"holds text or numbers that JSON cannot carry ({error})", again) from None
    if promised is not None and promised != hashlib.sha256(text).hexdigest()[:12]:
        raise DocumentError("does not match its own content_hash: it was edited or damaged", again)
    return result


@cache
def _reader() -> TypeAdapter[Result]:
    """Built once: that takes longer than reading a document."""
    from pydantic import TypeAdapter

    return TypeAdapter(Result)


def json_schema() -> dict[str, object]:
    """JSON Schema (draft 2020-12) of `to_document`. Times are ns, sizes bytes, unless the name says otherwise."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(Result).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "windtunnel result"
    schema["properties"]["schema"] = {"const": SCHEMA}
    schema["properties"]["status"] = {"enum": ["ok", "infeasible"]}
    del schema["properties"]["question"]  # it stands in the run folder, beside the document
    schema["properties"] |= {
        "study": {"const": STUDY},
        "version": {"type": "string"},
        "band": {
            "type": "object",
            "properties": {"of": {"const": "step_time_s"}, "p5": {"type": "number"}, "p95": {"type": "number"}},
        },
        "content_hash": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
        "step_time_s": {"type": "number"},
        "peak_memory_bytes": {"type": "integer"},
        **{name: {"type": "number"} for name in FLOPS},
    }
    schema["required"] = sorted({*schema["required"], "schema", *HEADER, *DERIVED})
    return schema


def _canonical(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_schema(word: str) -> None:
    kind, _, version = SCHEMA.rpartition("/")
    found_kind, _, found_version = word.rpartition("/")
    if found_kind != kind or not found_version.isascii() or not found_version.isdigit():
        shown = word if len(word) <= 60 else word[:57] + "..."
        raise DocumentError(f"is not a windtunnel result (schema {shown!r})", "give the result.json of a run folder")
    if int(found_version[:9]) > int(version):
        raise DocumentError(
            f"has schema {found_version[:9]}, newer than the {version} that this release reads", "upgrade windtunnel"
        )
    if int(found_version) < 1:
        raise DocumentError(f"has schema {found_version}, this release reads 1 to {version}", "predict again")
