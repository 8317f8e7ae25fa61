"""The words of a table as other tables write them: engines, releases, formats, drafting, modes, GPUs, numbers.

A word that is known stays what it is. What none of the rules reads stays too, and is refused where it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from windtunnel.files.table import plain_number
from windtunnel.studies.serving.engines.names import engine_in

ENGINES = re.compile(r"llm-?d")  # llm-d starts vLLM
NO_RELEASE = ("unknown", "n/a", "na", "none", "-")
MODES = re.compile(r"dis|pd|p/d|prefill")
DRAFTS = re.compile(r"mtp|eagle|nextn|medusa|draft|ngram|spec|true|on$|yes")
PLAIN = re.compile(r"none|off|false|no$|0$")
FORMATS = (  # the first that is found in a word, without its case and with - as _
    (re.compile(r"^(mxfp4|nvfp4|fp4|fp8_block|fp8_static|w4a16_mxfp4|w4a8_mxfp4_mxfp8)$"), r"\1"),
    (re.compile(r"nvfp4"), "nvfp4"),
    (re.compile(r"mxfp4"), "mxfp4"),
    (re.compile(r"w4a16|w4a8|w4afp8|awq|gptq|int4|^q4"), "int4"),
    (re.compile(r"fp4|w4a4"), "fp4"),
    (re.compile(r"fp8.*block|block.*fp8|fp8_pb|deepgemm"), "fp8_block"),
    (re.compile(r"fp8|float8|mxfp6"), "fp8"),  # no format of six bits here: of those above it the next
    (re.compile(r"int8|w8a8|w8a16|^q8"), "int8"),
    (re.compile(r"bf16|fp16|float16|half|fp32|float32"), "bf16"),
    (re.compile(r"^(auto|unknown|n_a|none|default)$"), ""),
)
CACHES = (
    (re.compile(r"8|fp4"), "fp8"),  # no cache of four bits here: of those above it the next
    (re.compile(r"16|32"), "bf16"),
    (re.compile(r"."), ""),
)
# InferenceX's short names, and MLPerf's.
MODELS = {
    "dsr1": "deepseek-ai/DeepSeek-R1-0528",
    "dsv4": "deepseek-ai/DeepSeek-V4-Pro",
    "gptoss": "openai/gpt-oss-120b",
    "gptoss120b": "openai/gpt-oss-120b",
    "llama70b": "meta-llama/Llama-3.3-70B-Instruct",
    "qwen3.5": "Qwen/Qwen3.5-397B-A17B",
    "glm5": "zai-org/GLM-5",
    "kimik2.5": "moonshotai/Kimi-K2.5",
    "minimaxm2.5": "MiniMaxAI/MiniMax-M2.5",
    "llama2-70b": "meta-llama/Llama-2-70b-chat-hf",
    "llama3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama3.1-405b": "meta-llama/Llama-3.1-405B-Instruct",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
}
NUMBERS = (
    *("isl", "osl", "concurrency", "ttft_ms", "tpot_ms", "d_output_tokens_per_s", "output_tokens_per_s"),
    "memory_fraction",
)
LENGTHS = ("isl", "osl")  # in tokens
FORMAT_COLUMNS = ("precision", "gemm_quant", "moe_quant")
BITS = re.compile(r"(nvfp4|mxfp4|fp4|fp8|awq|gptq|int4|int8|w4a16|w8a8)")


def as_spelled(fields: Mapping[str, str]) -> dict[str, str]:
    """A row's columns in the words that are known here."""
    original = {name: value or "" for name, value in fields.items()}
    cells = {name: "" if value.strip().lower() == "nan" else value.strip() for name, value in original.items()}
    changed = {name: _format(cells[name]) for name in FORMAT_COLUMNS if cells.get(name)}
    changed |= {name: plain_number(cells[name], tokens=name in LENGTHS) for name in NUMBERS if cells.get(name)}
    name = cells.get("model", "")
    changed["model"] = MODELS.get(re.sub(r"-99(\.9)?$", "", name.lower().replace("_", ".")), name)
    if not any(changed.get(format_column) for format_column in FORMAT_COLUMNS):  # a checkpoint's name says its format
        match = BITS.search(name.lower())
        changed["precision"] = _format(match[1]) if match else ""
    if cells.get("mode"):
        changed["mode"] = "disagg" if MODES.match(cells["mode"].lower()) else "agg"
    if cells.get("kv_dtype"):
        changed["kv_dtype"] = next(word for read, word in CACHES if read.search(cells["kv_dtype"].lower()))
    spec = cells.get("spec", "").lower()
    if spec:
        changed["spec"] = "mtp" if DRAFTS.match(spec) or spec[0] in "123456789" else "none" if PLAIN.match(spec) else ""
    return {**original, **changed, **_engine(cells)}


def _format(word: str) -> str:
    plain = word.lower().replace("-", "_").replace("/", "_")
    for read, name in FORMATS:
        match = read.search(plain)
        if match is not None:
            return match.expand(name)
    return word


def _engine(entry: Mapping[str, str]) -> dict[str, str]:
    """Columns `engine` and `engine_version`: where one says nothing, by what the image is called."""
    engine, release, image = entry.get("engine", ""), entry.get("engine_version", ""), entry.get("image", "")
    name = engine_in(ENGINES.sub("vllm", engine.lower())) or engine_in(entry.get("framework", "")) or engine_in(image)
    if name is None:
        return {}
    if release.lower() in NO_RELEASE:
        release = ""
    if "/" in release or ":" in release:
        image, release = release, ""
    tag = engine_in(image)
    inside = tag.release or tag.day if tag is not None and tag.engine == name.engine else ""
    return {"engine": name.engine, "engine_version": release or name.release or inside}
