"""Which engine and release a name means: `vllm-0.12`, or the tag of a container as public runs name them.

lmsysorg/sglang:v0.5.9-cu130                    sglang 0.5.9
nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc6    trtllm 1.2.0rc6
nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.0     vllm 0.12: the number is Dynamo's
rocm/atom:rocm7.1.1-...-atom0.1.1-MI350x        atom 0.1.1
vllm-nightly-20260602                           vllm of that day
sglang-glm5-hopper                              sglang, of a release that it does not say
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WORDS = {
    "trtllm": ("tensorrt-llm", "tensorrt_llm", "tensorrtllm", "trt-llm", "trtllm", "dynamo-trt"),
    "sglang": ("sglang", "sgl-dev"),
    "vllm": ("vllm",),
    "atom": ("atom",),
}
# Releases inside Dynamo's images: its release notes; `image` beside `engine_version` in published tables.
DYNAMO = {
    "trtllm": {"0.6": "1.1.0rc5", "0.7": "1.2.0rc2", "0.8": "1.2.0rc6", "0.9": "1.3.0rc1"},
    "vllm": {"0.8": "0.12"},
}
NUMBER = r"[-=@:_/]*(?:release:|openai:|rocm:)?v?(?!20\d{6})(\d+(?:\.\d+)*(?:[.-]?(?:rc|post)\d+)*)"
DAY = re.compile(r"(?<!\d)(20\d\d)-?([01]\d)-?([0-3]\d)(?!\d)")

IMAGE = re.compile(  # a registry, its port, a path, a tag or a digest
    r"\w[\w.-]{0,99}(:\d+)?/[\w./-]{0,99}?(vllm|sglang|sgl-dev|tensorrt-?llm)[\w./-]{0,99}[:@][\w.:-]{1,99}"
)


@dataclass(frozen=True, slots=True)
class EngineName:
    """An engine; its release, or the day of which it is, each "" where a name does not say.

    `bare`: the name is the engine's and nothing else.
    """

    engine: str
    release: str = ""
    day: str = ""
    bare: bool = False


def engine_in(text: str) -> EngineName | None:
    """What a name means; None where it names no engine."""
    plain = text.strip().lower().replace(" ", "-").replace("#", "/")
    alone = plain.removeprefix("dynamo-").removeprefix("mori-")
    for engine, words in WORDS.items():
        if alone in words or plain in words:
            return EngineName(engine, bare=True)
    matches: list[tuple[int, int, str, str]] = []
    for engine, words in WORDS.items():
        for word in words:
            for match in re.finditer(rf"(?<![a-z]){re.escape(word)}(?![a-z])", plain):
                number = re.match(NUMBER, plain[match.end() :])
                matches.append((int(number is not None), len(word), engine, number[1] if number else ""))
    runtime = re.search(r"(tensorrtllm|vllm|sglang)-runtime:v?(\d+\.\d+)", plain)
    if runtime is not None:
        engine = "trtllm" if runtime[1] == "tensorrtllm" else runtime[1]
        return EngineName(engine, DYNAMO.get(engine, {}).get(runtime[2], ""))
    if not matches:
        return None
    _, _, engine, release = max(matches, key=lambda match: match[:2])
    day = DAY.search(plain)
    return EngineName(engine, release, "" if day is None or release else "-".join(day.groups()))
