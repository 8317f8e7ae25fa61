"""Rows in the words of other tables: how many are answered, column by column.

    python validation/serving/words.py TABLE [--rows 2]

Of some rows one column at a time is written as other public tables write it: engines, releases, images, GPUs, formats,
caches, drafts, modes, lengths, models. Answered: a prediction comes out, right or wrong. A GPU without a data sheet
here or a model without shapes is refused, and says so. Heads that a row's tp does not divide are refused as engines do
(vLLM, `verify_with_parallel_config`: "Total number of attention heads (..) must be divisible by tensor parallel size"),
and are counted apart: nobody measures such a row.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np

from windtunnel.evidence.accuracy.serving import predict
from windtunnel.evidence.accuracy.serving.mlperf import is_mlperf
from windtunnel.evidence.accuracy.serving.rows import ServingRow, read_rows
from windtunnel.evidence.accuracy.serving.spelling import as_spelled

WORDS = {
    "engine": (
        "vLLM|VLLM|vllm-openai|SGLang|sglang-router|TRT-LLM|TensorRT-LLM|trtllm-serve|tensorrt_llm|llm-d|dynamo-vllm"
        "|ATOM"
    ),
    "engine_version": "v0.11.0|0.10.1.post1|0.12.0rc1|main|latest|nightly|unknown|n/a|nightly-2026-03-01|20260301",
    "image": (
        "vllm/vllm-openai:v0.12.0|lmsysorg/sglang:v0.5.9-cu129|rocm/vllm:latest"
        "|nvcr.io/nvidia/tensorrt-llm/release:1.2.0"
    ),
    "gpu": (
        "NVIDIA H100 80GB HBM3|H100 SXM5|h100-pcie|H100 NVL|NVIDIA H200|H200 NVL|NVIDIA B200|B300|GB200|GB300"
        "|A100-SXM4-80GB|NVIDIA A100-SXM4-40GB|a100 pcie|A10|A10G|A30|A40|NVIDIA L4|NVIDIA L40|L40S|L20|T4|Tesla T4"
        "|V100|Tesla V100-SXM2-16GB|RTX 3090|RTX 3090 Ti|NVIDIA GeForce RTX 4090|RTX 4080|rtx-5080|RTX 5090"
        "|RTX 5070 Ti|RTX A4000|RTX A5000|RTX A6000|NVIDIA RTX 6000 Ada Generation|RTX 4000 Ada|RTX 5000 Ada"
        "|RTX PRO 6000|NVIDIA RTX PRO 6000 Blackwell Server Edition|RTX PRO 6000 Blackwell Max-Q Workstation Edition"
        "|rtx-pro-5000|RTX PRO 4500|GB10|NVIDIA GB10|DGX Spark|Jetson Thor|H20|H20-3e|H800|A800|GH200|MI100|MI210"
        "|MI250|MI250X|MI300A|AMD Instinct MI300X|MI325X|MI350X|MI355X|R9700|7900 XTX|Strix Halo|Arc Pro B70|tpu-v5p"
        "|TPU v6e|Gaudi 3|Ascend 910B|Trainium2"
    ),
    "precision": (
        "BF16|FP8|float8|fp8_e4m3|w8a8|W4A16|AWQ|GPTQ-Int4|NVFP4|FP4|MXFP4|auto|half|fp16|bfloat16|int8|fp8-block"
    ),
    "kv_dtype": "fp8_e4m3|fp8_e5m2|auto|bf16|float16|nvfp4",
    "spec": "mtp|MTP-1|eagle3|nextn|none|off|False|0|3|yes",
    "mode": "aggregated|agg|disagg|disaggregated|P/D|pd|together",
    "isl": "1,024|2k|8K|",
    "osl": "1,024|1k|",
    "model": (
        "llama3-8b|Llama 3.1 8B|Llama-3.1-8B-Instruct|llama3.1 70b|Llama-3.3-70B|Llama2-70B"
        "|meta-llama/Llama-3.2-3B-Instruct|Llama-4-Scout-17B-16E-Instruct|codellama/CodeLlama-34b-Instruct-hf"
        "|lmsys/vicuna-13b-v1.5|TinyLlama/TinyLlama-1.1B-Chat-v1.0|huggyllama/llama-65b|Qwen2.5 7B"
        "|Qwen/Qwen2.5-72B-Instruct-AWQ|Qwen2.5-Coder-32B-Instruct|QwQ-32B|Qwen3-8B|Qwen3-30B-A3B"
        "|Qwen/Qwen3-235B-A22B-Instruct-2507-FP8|Qwen3-Coder-480B-A35B|Qwen3-Coder-30B-A3B-Instruct"
        "|Qwen3-Next-80B-A3B|Qwen3.5-397B-A17B|Qwen2.5-VL-7B-Instruct|DeepSeek R1|deepseek-ai/DeepSeek-V3-0324"
        "|DeepSeek-V3.2|DeepSeek-V4-Pro|DeepSeek-V2-Lite|DeepSeek-R1-Distill-Qwen-32B|DeepSeek-R1-Distill-Llama-70B"
        "|deepseek-coder-33b-instruct|nvidia/DeepSeek-R1-0528-FP4-v2|amd/DeepSeek-R1-0528-MXFP4-Preview|Mixtral 8x7B"
        "|mistralai/Mixtral-8x22B-Instruct-v0.1|mistralai/Mistral-7B-Instruct-v0.3|Mistral-Nemo-Instruct-2407"
        "|Mistral-Small-24B-Instruct-2501|Mistral-Large-Instruct-2411|Ministral-8B-Instruct-2410|gemma-2-9b-it"
        "|gemma-3-27b-it|gemma-7b|phi-4|Phi-3-mini-4k-instruct|gpt-oss 120b|openai/gpt-oss-20b|GLM-4.5-Air"
        "|zai-org/GLM-4.6-FP8|GLM-5|Kimi-K2-Instruct|Kimi-K2.5|MiniMax-M2|MiniMax-M2.5|facebook/opt-13b|opt-125m"
        "|facebook/opt-66b|tiiuae/falcon-40b|falcon-7b|01-ai/Yi-34B|bigcode/starcoder2-15b"
        "|ibm-granite/granite-3.3-8b-instruct|CohereForAI/c4ai-command-r-v01|c4ai-command-r-plus"
        "|Seed-OSS-36B-Instruct|SmolLM2-1.7B-Instruct|NVIDIA-Nemotron-3-Nano-30B-A3B|Nemotron-H-8B|OLMo-2-1124-7B"
        "|bloom-7b1|EleutherAI/gpt-j-6b|gpt-neox-20b|NousResearch/Hermes-3-Llama-3.1-8B|HuggingFaceH4/zephyr-7b-beta"
        "|baichuan-inc/Baichuan2-13B-Chat|THUDM/chatglm3-6b|internlm2_5-7b-chat"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--rows", type=int, default=2, help="that each word is written into")
    arguments = parser.parse_args()
    predict.MOST_REQUESTS, predict.LEAST_WAVES = 64, 1
    rows = [row for row in read_rows([arguments.table]) if not row.disaggregated and not is_mlperf(row)]
    rows = [row for row in rows if (row.number("concurrency") or 0) <= 16 and row.text("spec_level") == "A"]
    draw, asked, answered, impossible = np.random.default_rng(0), 0, 0, 0
    for column, listed in WORDS.items():
        refused: dict[str, str] = {}
        words = listed.split("|")
        for word in words:
            for place in draw.permutation(len(rows))[: arguments.rows]:
                changed = {**rows[place].fields, column: word}
                if column == "model":
                    changed |= {"model_family": "", "precision": "", "gemm_quant": "", "moe_quant": ""}
                one = predict.predicted(ServingRow(as_spelled(changed)))
                asked, answered = asked + 1, answered + (one.status != "refused")
                if one.status == "refused":
                    refused[word] = one.reason
                    impossible += bool(re.search(r"tp \d+ does not divide the \d+ heads", one.reason))
        print(f"{column}: {len(words)} words, {len(refused)} refused", flush=True)
        for word, reason in refused.items():
            print(f"    {word}: {reason[:150]}")
    able = asked - impossible
    print(f"answered {answered} of {asked}: {answered / asked:.1%}; of {able} that engines run {answered / able:.1%}")


if __name__ == "__main__":
    main()
