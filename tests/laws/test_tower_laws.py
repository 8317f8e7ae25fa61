"""Laws of training with images: none is the text model to the bit, more are never faster, what is frozen costs less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import windtunnel
from windtunnel.errors import UserError
from windtunnel.physics.model import Model, load_model, read_config
from windtunnel.physics.step.result import Result

MODEL = "qwen3-vl-8b"
LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp": {"framework": "fsdp"},
    "recomputed": {"framework": "fsdp", "recompute": "full"},
    "zero 1": {"framework": "megatron"},
    "tensor": {"framework": "megatron", "tp": 4, "precision": "fp8"},
    "pipeline": {"framework": "megatron", "tp": 2, "pp": 2, "virtual_stages": 2},
    "split backward": {"framework": "megatron", "pp": 2, "schedule": "zb-h1"},
    "context": {"framework": "megatron", "cp": 2},
    "adapters": {"framework": "fsdp", "lora_rank": 16},
}


def _predicted(layout: str, model: Model | str = MODEL, **changes: object) -> Result:
    plan = {"global_batch": 32, "seq_len": 4096, **LAYOUTS[layout], **changes}
    return windtunnel.predict(model, "b300-sxm:8", plan)


def _hearing() -> Model:
    """A text model of 8B beside Whisper's encoder, four rows to a token of it (Voxtral), and a vision tower."""
    text = load_model(MODEL)
    encoder = {"model_type": "voxtral_encoder", "hidden_size": 1280, "intermediate_size": 5120, "num_mel_bins": 128,
               "num_attention_heads": 20, "num_hidden_layers": 32}  # fmt: skip
    width = {"hidden_size": text.hidden_size, "intermediate_size": 256, "num_hidden_layers": 1, "vocab_size": 64,
             "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096}  # fmt: skip
    beside = read_config({"model_type": "voxtral", "text_config": width, "audio_config": encoder})
    return replace(text, sound=beside.sound)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_sound_is_never_faster_nor_smaller(layout: str) -> None:
    model = _hearing()
    found = [_predicted(layout, model, clips=n) for n in (0, 1, 4)]
    times, needs = [one.step_time_ns for one in found], [one.memory[0].peak_allocated_bytes for one in found]
    assert times[0] == _predicted(layout).step_time_ns
    assert times[0] < times[1] < times[2]
    assert needs == sorted(needs)
    assert _predicted(layout, model, clips=4, clip_rows=750).step_time_ns < times[2]


def test_sight_and_sound_add_up() -> None:
    """What each adds to a step alone they add together, but for what memory traffic and gathers share."""
    model, images, clips = _hearing(), {"images": 4, "image_patches": 1024}, {"clips": 4}
    text, seen, heard, both = (
        _predicted("fsdp", model, **more).step_time_ns for more in ({}, images, clips, {**images, **clips})
    )
    assert both - text == pytest.approx((seen - text) + (heard - text), rel=0.1)


def test_a_frozen_sound_tower_costs_its_forward_pass() -> None:
    model = _hearing()
    both, tower, none = (_predicted("zero 1", model, clips=8, frozen=name) for name in ("both", "tower", "none"))
    assert both.step_time_ns < tower.step_time_ns < none.step_time_ns
    assert model.sound is not None
    held = none.memory[0].categories["optimizer"] - tower.memory[0].categories["optimizer"]
    assert held == pytest.approx(12 * model.sound.encoder.parameters / 8, rel=1e-6)


def _text_alone() -> Model:
    return replace(load_model(MODEL), vision=None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_images_the_tower_is_not_there(layout: str) -> None:
    with_tower, without = _predicted(layout), _predicted(layout, _text_alone())
    assert with_tower.step_time_ns == without.step_time_ns
    assert with_tower.breakdown_ns == without.breakdown_ns
    assert with_tower.peak_memory.device_bytes == without.peak_memory.device_bytes
    assert with_tower.mfu == without.mfu


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_images_are_never_faster_nor_smaller(layout: str) -> None:
    found = [_predicted(layout, images=n, image_patches=1024) if n else _predicted(layout) for n in (0, 1, 4, 16)]
    times, needs = [one.step_time_ns for one in found], [one.memory[0].peak_allocated_bytes for one in found]
    assert times == sorted(times)
    assert times[0] < times[1] < times[3]
    assert needs == sorted(needs)
    larger = _predicted(layout, images=4, image_patches=4096)
    assert larger.step_time_ns > found[2].step_time_ns


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "adapters"])
def test_what_is_frozen_is_faster_and_smaller(layout: str) -> None:
    names = ("both", "tower", "none")
    both, tower, none = (_predicted(layout, images=8, image_patches=1024, frozen=name) for name in names)
    assert both.step_time_ns < tower.step_time_ns < none.step_time_ns
    assert (
        both.memory[0].peak_allocated_bytes < tower.memory[0].peak_allocated_bytes < none.memory[0].peak_allocated_bytes
    )
    text = _predicted(layout)
    assert tower.step_time_ns > text.step_time_ns


def test_a_frozen_tower_has_no_gradient_and_no_optimizer_state() -> None:
    text, images = _predicted("zero 1").memory[0].categories, {"images": 4, "image_patches": 1024}
    vision = load_model(MODEL).vision
    assert vision is not None
    frozen = _predicted("zero 1", frozen="tower", **images).memory[0].categories
    adapters = _predicted("zero 1", lora_rank=16, **images).memory[0].categories
    trained = _predicted("zero 1", **images).memory[0].categories
    # Parameters once in 16 bits; moments and master of what joins tower and text, shared by eight; nothing of the rest.
    assert frozen["parameters"] - text["parameters"] == pytest.approx(2 * vision.parameters, rel=1e-6)
    assert frozen["optimizer"] - text["optimizer"] == pytest.approx(12 * vision.projector_parameters / 8, rel=1e-6)
    assert trained["optimizer"] - text["optimizer"] == pytest.approx(12 * vision.parameters / 8, rel=1e-6)
    assert adapters["optimizer"] == _predicted("zero 1", lora_rank=16).memory[0].categories["optimizer"]


def test_only_the_first_stage_holds_the_tower() -> None:
    text, images = (_predicted("pipeline", **more) for more in ({}, {"images": 8, "image_patches": 1024}))
    assert images.memory[0].peak_allocated_bytes > text.memory[0].peak_allocated_bytes
    assert images.memory[1].categories["parameters"] == text.memory[1].categories["parameters"]
    assert images.memory[1].categories["optimizer"] == text.memory[1].categories["optimizer"]


@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        ("llama-3-8b", {"images": 1}, "llama-3-8b has no vision tower"),
        (MODEL, {"images": 1}, "say how many patches one has"),
        (MODEL, {"images": 17, "image_patches": 1024}, "4,352 tokens of images are in no sequence of 4,096"),
        (MODEL, {"frozen": "tower"}, "give images"),
        (MODEL, {"clips": 1}, "no sound tower that can be read"),
        ("gemma-4-31b", {"images": 1, "image_patches": 256}, "a vision tower that cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(model: str, plan: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        _predicted("fsdp", model, **plan)
