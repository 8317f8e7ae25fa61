"""The shipped models have exactly the parameters that were published."""

from __future__ import annotations

import json

import pytest

from windtunnel.physics.model import catalogue_names, load_model
from windtunnel.physics.model.catalogue import FOLDER

# Total of all tensors in the published checkpoint (safetensors metadata on the Hugging Face model page), tied tensors
# once. GPT-NeoX-20B: arXiv 2204.06745 section 2.1; BLOOM: huggingface.js test of safetensors metadata; Grok-1: elements
# of the 770 tensors of the JAX checkpoint (the announced "314B" is lower than what was released).
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
    "deepseek-llm-7b": 6_910_365_696,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,  # main model; with multi-token prediction see below
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "mpt-7b": 6_649_286_656,
    "bloom-176b": 176_247_271_424,
    "grok-1": 315_684_820_992,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "tinyllama-1.1b": 1_100_048_384,
    "yi-6b": 6_061_035_520,
    "yi-34b": 34_388_917_248,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "codellama-34b": 33_743_970_304,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "gemma-2-2b": 2_614_341_888,
    "gemma-7b": 8_537_680_896,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mistral-large-123b": 122_610_069_504,
    "ministral-8b": 8_019_808_256,
    "phi-3.5-moe": 41_873_153_344,
    "phi-4-mini": 3_836_021_760,
    "starcoder2-15b": 15_957_889_024,
    "granite-3.3-8b": 8_170_864_640,
    "command-r-35b": 34_980_831_232,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "seed-oss-36b": 36_151_104_512,
    "glm-4-9b": 9_399_951_360,
    "solar-10.7b": 10_731_524_096,
    "falcon3-10b": 10_305_653_760,
    "olmo-2-7b": 7_298_617_344,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen1.5-7b": 7_721_324_544,
    "gpt-j-6b": 6_050_882_784,
    "pythia-12b": 11_846_072_320,
    "stablelm-3b": 2_795_443_200,
    "internlm2.5-7b": 7_737_708_544,
    "starcoder": 15_517_456_384,
    "bloom-7b1": 7_069_016_064,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "deepseek-coder-33b": 33_342_991_360,
    "aya-23-8b": 8_028_033_024,
    "falcon-180b": 178_557_088_768,
    "internlm2-20b": 19_861_149_696,
    "qwen2.5-vl-7b": 7_615_616_512,  # the text model is Qwen2.5's
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "llama-3.2-11b-vision": 10_670_220_835 - 895_028_755,  # its tower and what projects to the text model
    "qwen2.5-vl-3b": 3_754_622_976 - 668_684_288,  # its tower
    "qwen2.5-vl-32b": 33_452_718_336 - 688_841_984,
    "mistral-small-3.1-24b": 23_572_403_200,  # the text models are Mistral Small's
    "voxtral-small-24b": 23_572_403_200,
    "yi-34b-200k": 34_388_917_248,
    "phi-3.5-mini": 3_821_079_552,
    "gemma-3-1b": 999_885_952,
    "granite-4.0-micro": 3_402_836_480,
    "sarvam-105b": 106_031_767_424,
    "sarvam-30b": 32_152_650_368,
    "deepseek-moe-16b": 16_375_728_128,
    "sd3.5-large": 8_056_627_520,  # diffusers' class with this config; text encoders and the image's decoder apart
    "flux.1-dev": 11_901_408_320,
    "hunyuanvideo": 12_821_012_544,
    "qwen-image": 20_430_401_088,
    "wan2.1-t2v-14b": 14_288_491_584,
    "wan2.1-t2v-1.3b": 1_418_996_800,
}

# No exact count is published: the rounded one, and half a unit of its last digit (one unit where the source cuts off).
ROUNDED = {
    "gpt3-175b": (174.600e9, 0.05e9),  # arXiv 2005.14165 table D.1: 174,600 M
    "mpt-30b": (29.95e9, 0.01e9),  # model card: 29.95B, cut off
    "kimi-k2": (1.026e12, 0.001e12),  # model card: 1T; safetensors 1,026B
    "glm-4.5": (355e9, 3e9),  # arXiv 2508.06471 table 1: 355B, with a prediction layer that is apart here
    "glm-4.5-air": (106e9, 1e9),  # the same: 106B
    "gemma-3-4b": (0.675e9 + 3.209e9, 0.01e9),  # arXiv 2503.19786 table 1: embedding and the rest
    "gemma-3-12b": (1.012e9 + 10.759e9, 0.01e9),
    "gemma-3-27b": (1.416e9 + 25.600e9, 0.01e9),
    "minimax-01": (456e9, 0.5e9),  # arXiv 2501.08313: 456B, of which 45.9B meet a token
    "nemotron-h-8b": (8.1e9, 0.05e9),  # 8B by its name: what this config's matrices add up to
    "chatglm3-6b": (6.24e9, 0.05e9),  # 6B by its name, the same
    "baichuan2-13b": (13.9e9, 0.05e9),  # 13B by its name, the same
    "nemotron-4-15b": (12.5e9 + 3.2e9, 0.1e9),  # arXiv 2402.16819: 12.5B non-embedding and 3.2B embedding
    "nemotron-4-340b": (331.6e9 + 9.4e9, 0.1e9),  # arXiv 2406.11704: 331.6B non-embedding and 9.4B embedding
    # Of late 2026: the model cards' names and totals, text alone where there is a tower.
    "qwen3.5-397b-a17b": (397e9, 1e9),
    "qwen3.5-122b-a10b": (122e9, 0.5e9),
    "qwen3.5-35b-a3b": (35e9, 0.5e9),
    "qwen3.5-27b": (27e9, 0.5e9),
    "qwen3-coder-480b-a35b": (480e9, 0.5e9),
    "qwen3-vl-235b-a22b": (235e9, 0.5e9),
    "qwen3-next-80b-a3b": (80e9, 0.5e9),
    "deepseek-v3.2": (671e9 + 0.85e9, 0.5e9),  # V3 and the indexers
    "deepseek-v4-flash": (284e9, 0.5e9),
    "deepseek-v4-pro": (1.6e12, 0.05e12),
    "kimi-k2.5": (1.026e12, 0.001e12),
    "kimi-linear-48b-a3b": (49e9, 0.5e9),  # safetensors; the name says 48B
    "glm-5": (744e9, 0.5e9),
    "glm-5.2": (744e9, 1e9),
    "gemma-4-31b": (31e9, 0.5e9),
    "minimax-m2.5": (229e9, 1e9),
    "nemotron-3-nano": (31.6e9, 0.05e9),
    "nemotron-3-nano-omni": (31.6e9, 0.05e9),
    "nemotron-3-super": (120.6e9, 0.1e9),
    "nemotron-3-ultra": (550e9, 1e9),
    "mimo-v2-flash": (309e9, 0.5e9),
    "mistral-small-4": (119e9, 0.5e9),
    "hy3": (295e9, 0.5e9),
    "qwen3-vl-8b": (8.19e9, 0.01e9),  # the text model is Qwen3's
    "qwen3-vl-30b-a3b": (30.5e9, 0.1e9),
    "qwen3-vl-32b": (32.8e9, 0.1e9),
    "qwen2.5-vl-72b": (72.7e9, 0.1e9),  # Qwen2.5's
    "gemma-4-26b-a4b": (25.2e9, 0.1e9),  # 26B with its tower
    "nemotron-h-56b": (56e9, 0.5e9),
    "mimo-7b": (7.6e9, 0.1e9),
    "step-3.7-flash": (196e9, 0.5e9),
    "ministral-3-3b": (3.4e9, 0.05e9),
    "ministral-3-8b": (8.4e9, 0.1e9),
    "ministral-3-14b": (13.5e9, 0.05e9),
    "lfm2.5-1.2b": (1.17e9, 0.005e9),
    "opt-66b": (65.72e9, 0.01e9),  # 66B
    "moonlight-16b-a3b": (15.96e9, 0.005e9),  # safetensors; with the biases that choose experts
    "ernie-4.5-21b-a3b": (21.8e9, 0.1e9),
    "qwen3.5-9b": (9e9, 0.05e9),
    "qwen3.5-4b": (4.2e9, 0.05e9),
    "qwen3.5-0.8b": (0.8e9, 0.05e9),
    "exaone-4.0-32b": (30.95e9 + 1.05e9, 0.01e9),  # model card: 30.95B without the two matrices of the vocabulary
    "devstral-2-123b": (125e9, 0.5e9),  # safetensors; the name says 123B
    "olmo-3.1-32b": (32.2e9, 0.05e9),
    "olmo-3-7b": (7.3e9, 0.05e9),
    "laguna-xs.2": (33e9, 0.5e9),
    "solar-open-100b": (102.6e9, 0.1e9),
    "longcat-flash": (560e9, 1e9),
    "glm-4.7-flash": (30e9, 0.5e9),
    "internlm3-8b": (8.8e9, 0.05e9),
    "jamba-mini-1.6": (52e9, 0.5e9),
    "llama-3.2-90b-vision": (88.6e9 - 0.93e9, 0.05e9),  # its tower
    "minimax-m3": (428e9, 2e9),  # with its tower
    "qwen3.5-2b": (1.88e9, 0.005e9),  # safetensors 2.27B, less a tower of .33B and a prediction layer of .06B
    "apertus-8b": (8.05e9, 0.005e9),
    "apertus-70b": (70.6e9, 0.05e9),
    "nemotron-nano-9b-v2": (8.89e9, 0.005e9),
    "nemotron-nano-12b-v2": (12.3e9, 0.05e9),
    "ling-mini-2.0": (16.26e9, 0.01e9),
    "gemma-4-e4b": (8e9 - 0.47e9, 0.1e9),  # 7,996,156,490 with towers that see (.17B) and hear (.3B)
    "gemma-4-e2b": (5.12e9 - 0.47e9, 0.1e9),
    "gemma-3n-e4b": (7.85e9 - 1e9, 0.05e9),  # towers of .3B and .7B
    "glm-4.5v": (108e9, 1.5e9),  # with its tower
    "qwen3-omni-30b-a3b": (30.5e9, 0.1e9),
    "voxtral-mini-3b": (4.68e9 - 0.66e9, 0.01e9),  # its encoder
    "granite-4.0-h-tiny": (6.94e9, 0.01e9),
    "granite-4.0-h-1b": (1.46e9, 0.005e9),
    "granite-4.0-h-small": (32.2e9, 0.05e9),
    "falcon-h1-0.5b": (0.52e9, 0.005e9),
    "falcon-h1-7b": (7.59e9, 0.01e9),
    "falcon-h1-34b": (33.6e9, 0.05e9),
    "trinity-nano": (6.12e9, 0.05e9),
    "trinity-mini": (26.1e9, 0.05e9),
    "trinity-large": (398.6e9, 0.5e9),
    "hunyuan-a13b": (80.4e9, 0.05e9),
    "lfm2-8b-a1b": (8.34e9, 0.005e9),
    "dots.llm1": (142.8e9, 0.5e9),
    "k-exaone-236b-a23b": (236.6e9, 0.5e9),
    "dbrx": (131.6e9, 0.05e9),
    "mistral-medium-3.5-128b": (127.7e9 - 2.68e9, 0.05e9),  # its tower and what projects
    "mistral-large-3": (673e9, 0.5e9),
    "step3": (316e9, 0.5e9),
    "deepseek-v4.1-flash": (748.5e9, 0.05e9),  # with tables of n-grams
    "ling-flash-2.0": (103e9, 0.5e9),
    "ling-1t": (1e12, 0.005e12),
    "mimo-v2.5-pro": (1.02e12, 0.005e12),
    "ernie-4.5-300b-a47b": (300e9, 1.5e9),
    "afm-4.5b": (4.62e9, 0.005e9),
    "intern-s1": (235.1e9, 0.1e9),  # 241B with a tower of 6B
    "glm-4.6v": (108e9, 1.5e9),  # with its tower
    "grok-2": (270e9, 1e9),
    "snowflake-arctic": (479e9, 0.5e9),
    "llama-3.1-nemotron-ultra-253b": (253e9, 0.5e9),
    "kimi-k3": (2.8e12, 0.05e12),
    "llama-3.3-nemotron-super-49b": (49.9e9, 0.05e9),
}


@pytest.mark.parametrize(
    ("name", "layers", "width", "parameters"),
    [  # of the 2B: safetensors less the text model and its prediction layer, as above
        ("qwen3.5-0.8b", 12, 768, 0.10e9),
        ("qwen3.5-2b", 24, 1024, 0.33e9),
        ("qwen3.5-4b", 24, 1024, 0.33e9),
        ("qwen3.5-9b", 27, 1152, 0.46e9),
    ],
)
def test_smaller_models_have_smaller_towers(name: str, layers: int, width: int, parameters: float) -> None:
    vision = load_model(name).vision
    assert vision is not None
    assert (len(vision.encoder.layers), vision.encoder.hidden_size) == (layers, width)
    assert vision.parameters == pytest.approx(parameters, abs=0.005e9)


@pytest.mark.parametrize("name", [name for name in catalogue_names() if name.startswith(("qwen3.5-", "qwen3-vl-"))])
def test_engines_read_the_width_of_qwens_towers_and_find_no_number_of_layers(name: str) -> None:
    model = load_model(name)
    assert model.vision is not None
    assert model.tower == (24, model.vision.encoder.hidden_size)


# The checkpoints of these hold a vision tower as well.
MULTIMODAL = {"llama-4-scout": 108_641_793_536, "llama-4-maverick": 401_583_781_376}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_count(name: str) -> None:
    assert load_model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_round_to_the_published_count(name: str) -> None:
    value, tolerance = ROUNDED[name]
    assert load_model(name).parameters == pytest.approx(value, abs=tolerance)


@pytest.mark.parametrize("name", MULTIMODAL)
def test_llama_4_text_and_its_vision_tower_make_the_published_count(name: str) -> None:
    hidden, layers, ffn, patches, text = 1408, 34, 5632, (336 // 14) ** 2, 5120
    attention, block = 4 * (hidden * hidden + hidden), 2 * hidden * ffn + ffn + hidden
    tower = 3 * 14 * 14 * hidden + hidden + (patches + 1) * hidden + layers * (attention + block + 4 * hidden)
    tower += 4 * hidden  # norms before and after
    adapter, projector = 4 * hidden * 4096 + 4096 * 4096, 4096 * text
    assert load_model(name).parameters + tower + adapter + projector == MULTIMODAL[name]


def test_deepseek_v3_checkpoint_tensor_by_tensor() -> None:
    """safetensors total 684,531,386,000: with the prediction module, its copies of embedding and head, FP8 scales."""
    model = load_model("deepseek-v3")
    copies = 2 * model.vocab_size * model.hidden_size
    mixtures, layers = 58 + 1, 61 + 1
    scales = mixtures * 257 * 3 * (56 * 16) + 3 * 3 * (56 * 144)  # one per 128 x 128 block
    scales += layers * (56 * 12 + 12 * 192 + 56 * 5 + 4 * 256 + 128 * 56)
    assert model.mtp_layers == 1
    assert model.parameters + model.mtp_parameters + copies + scales == 684_531_386_000


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("mixtral-8x7b", 12.9, 0.05),  # arXiv 2401.04088: 13B; exactly 12.88
        ("deepseek-v2", 21.4, 0.05),  # arXiv 2405.04434: 21B
        ("deepseek-v3", 37.6, 0.06),  # arXiv 2412.19437: 37B
        ("qwen3-30b-a3b", 3.3, 0.06),  # arXiv 2505.09388: 3.3B
        ("qwen3-235b-a22b", 22.2, 0.05),  # arXiv 2505.09388: 22B
        ("kimi-k2", 32.9, 0.4),  # arXiv 2507.20534: 32.6B
        ("glm-4.5", 32 + 1.55, 0.5),  # arXiv 2508.06471: 32B without embedding and output matrix
        ("glm-4.5-air", 12 + 1.24, 0.5),  # 12B
        ("minimax-01", 45.9 + 2.46, 0.05),  # arXiv 2501.08313: 45.9B without embedding and output matrix
        ("llama-4-scout", 17.2, 0.05),  # model card: 17B
        ("llama-4-maverick", 17.2, 0.05),  # model card: 17B
        # Cards of 2025 and 2026, without embedding and output matrix.
        ("solar-open-100b", 12, 0.5),
        ("laguna-xs.2", 3, 0.5),
        ("glm-4.7-flash", 3 + 0.64, 0.5),
        ("jamba-mini-1.6", 12, 0.5),
        ("minimax-m3", 23 + 2.46, 0.6),
        ("kimi-k3", 104 + 1.17, 0.5),  # without the embedding alone
        ("ling-mini-2.0", 1.4, 0.05),
        ("ling-flash-2.0", 6.1, 0.06),
        ("ling-1t", 50, 1.1),
        ("mimo-v2.5-pro", 42, 0.5),
        ("mistral-large-3", 39 + 0.94, 0.5),
        ("step3", 38 + 0.92, 0.5),
        ("ernie-4.5-300b-a47b", 47, 0.5),
        ("sarvam-105b", 10.3 + 2.15, 0.06),
        ("grok-2", 115, 0.5),  # SGLang
        ("snowflake-arctic", 17, 0.5),
        ("deepseek-moe-16b", 2.8, 0.05),  # arXiv 2401.06066
        ("qwen3-omni-30b-a3b", 3.3, 0.1),
        ("granite-4.0-h-tiny", 1.5, 0.05),
        ("granite-4.0-h-small", 9, 0.5),
        ("trinity-mini", 3 + 0.41, 0.1),
        ("trinity-large", 13, 0.5),
        ("hunyuan-a13b", 13, 0.5),
        ("lfm2-8b-a1b", 1.5, 0.06),
        ("dots.llm1", 14, 0.05),
        ("k-exaone-236b-a23b", 23, 0.7),
        ("dbrx", 36, 0.5),
        ("longcat-flash", 31.3 + 0.8, 0.5),  # arXiv 2509.01322: 18.6B to 31.3B, here with no expert of zero
    ],
)
def test_active_parameters(name: str, billions: float, tolerance: float) -> None:
    assert load_model(name).active_parameters / 1e9 == pytest.approx(billions, abs=tolerance)


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61)])
def test_matmul_parameters_are_what_openai_calls_active(name: str, billions: float) -> None:
    """arXiv 2508.10925 table 1 counts the output matrix and leaves out the embedding."""
    assert load_model(name).matmul_parameters / 1e9 == pytest.approx(billions, abs=0.005)


def test_nemotron_4_splits_as_published() -> None:
    model = load_model("nemotron-4-340b")
    assert (model.embedding_parameters + model.head_parameters) / 1e9 == pytest.approx(9.4, abs=0.05)
    inside = sum(model.layer_parameters(i).total for i in range(model.n_layers))
    assert inside / 1e9 == pytest.approx(331.6, abs=0.05)


def test_every_file_of_the_catalogue_is_checked_here_and_names_its_source() -> None:
    assert set(catalogue_names()) == {*PUBLISHED, *ROUNDED, *MULTIMODAL}
    for name in catalogue_names():
        assert json.loads((FOLDER / f"{name}.json").read_text())["_source"]
        assert load_model(name).name == name
