"""Models by their names: of the catalogue, of the hub, as frameworks write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.errors import InputFileError, SpecError, UnknownNameError, UserError
from windtunnel.physics.model import catalogue_names, load_model
from windtunnel.physics.model.catalogue import FOLDER, aliases, catalogued, hub_name


@pytest.mark.parametrize(
    "spec", ["llama-3.1-405b", "LLAMA-3.1-405B", "meta-llama/Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-405B"]
)
def test_names_ignore_case_and_organisation(spec: str) -> None:
    assert load_model(spec) is load_model("llama-3.1-405b")


def test_ids_of_the_hub_lead_back_to_their_models() -> None:
    ids = {name: hub_name(name) for name in catalogue_names()}
    assert {name for name, one in ids.items() if one is None} == {"gpt3-175b", "nemotron-4-15b"}
    assert all(load_model(one).name == name for name, one in ids.items() if one is not None)
    assert hub_name("meta-llama/Llama-3.1-8B-Instruct") == "meta-llama/Llama-3.1-8B-Instruct"
    assert load_model("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    assert hub_name("llama-3.3-70b") is None  # another checkpoint of llama-3.1-70b's shape


def test_aliases_lead_to_shipped_models_and_hide_none() -> None:
    names = set(catalogue_names())
    assert set(aliases().values()) <= names
    assert not set(aliases()) & names


def test_path_folder_and_mapping_give_the_same_model(tmp_path: Path) -> None:
    text = (FOLDER / "qwen3-8b.json").read_text()
    file = tmp_path / "config.json"
    file.write_text(text)
    by_file, by_folder, by_mapping = load_model(str(file)), load_model(str(tmp_path)), load_model(json.loads(text))
    assert by_file == by_folder == load_model(file)
    assert by_file.layers == by_mapping.layers == load_model("qwen3-8b").layers
    assert by_file.name == tmp_path.name


def test_a_folder_in_the_way_of_a_name_needs_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text((FOLDER / "gpt2-xl.json").read_text())
    monkeypatch.chdir(tmp_path)
    assert load_model("gpt2").n_layers == 12
    assert load_model("./gpt2").n_layers == 48


def test_unknown_names_say_what_is_near() -> None:
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-405b.*config\.json"):
        load_model("llama-3.1-450b")
    for spec in ("", "no/such", "x" * 10_000, "a\0b"):
        with pytest.raises(UnknownNameError):
            load_model(spec)
    with pytest.raises(SpecError):
        load_model(405)  # type: ignore[arg-type]


def test_missing_files_say_so(tmp_path: Path) -> None:
    for spec in (str(tmp_path / "none.json"), str(tmp_path), "./none", tmp_path / "a" / "b"):
        with pytest.raises(InputFileError, match="No such file"):
            load_model(spec)


@pytest.mark.parametrize(
    ("folder", "own", "name"),
    [
        ("weird", "meta-llama/Meta-Llama-3-8B", "Meta-Llama-3-8B"),
        ("my-model", "", "my-model"),
        ("my-model", None, "my-model"),
        ("models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f249a1", None, "Llama-3.1-8B"),
    ],
)
def test_a_config_is_named_by_its_model(tmp_path: Path, folder: str, own: str | None, name: str) -> None:
    source = json.loads((FOLDER / "llama-3-8b.json").read_text())
    source.pop("_source", None)
    place = tmp_path / folder
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({**source, **({} if own is None else {"_name_or_path": own})}))
    assert load_model(place / "config.json").name == name


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "llama-4-maverick"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"),
        ("zai-org/GLM-4.6-FP8", "glm-4.6"),
        ("Qwen/Qwen3-4B-Thinking-2507-GGUF", "qwen3-4b"),
        ("mlx-community/Qwen3-8B-4bit", "qwen3-8b"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5-NVFP4", "llama-3.3-nemotron-super-49b"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano"),
        ("tencent/Hy3-Preview", "hy3"),
        ("microsoft/Phi-4-reasoning-plus", "phi-4"),
        ("allenai/OLMo-2-0325-32B-Instruct", "olmo-2-32b"),
        ("allenai/Olmo-3-32B-Think", "olmo-3.1-32b"),
    ],
)
def test_a_checkpoint_by_the_hubs_name_has_the_shape_of_its_model(name: str, own: str) -> None:
    assert load_model(name).layers == load_model(own).layers


def test_a_name_that_is_unknown_is_held_against_names_without_their_organisation() -> None:
    with pytest.raises(UserError, match="did you mean"):
        load_model("Qwen3-31B")
    assert "did you mean kimi" in str(UnknownNameError("model", "moonshotai/Kimi-K9-Instruct", catalogue_names()))


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("llama31_405b", "llama-3.1-405b"),
        ("qwen25_7b", "qwen2.5-7b"),
        ("qwen3_06b", "qwen3-0.6b"),
        ("qwen3_30b_a3b", "qwen3-30b-a3b"),
        ("deepseek_v3_2", "deepseek-v3.2"),
        ("opt_13b", "opt-13b"),
        ("Qwen/Qwen2-57B", ""),
        ("llama3_18b", ""),
        ("gemma_29b", ""),
        ("qwen27b", ""),
    ],
)
def test_a_name_without_points_is_the_model_whose_size_it_spells(word: str, name: str) -> None:
    assert catalogued(word) == name
