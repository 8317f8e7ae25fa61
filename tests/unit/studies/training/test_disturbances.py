"""The words that ask for disturbances: what they come to, and how mistakes are named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.step.disturbances.disturbances import SAMPLES, link_times, parse_disturbances
from windtunnel.questions.asked.parts.scenario import Scenario
from windtunnel.questions.old import question_of_command
from windtunnel.questions.reading import read
from windtunnel.questions.words import command

CLUSTER = parse_cluster("h100-sxm:64")


def one(text, cluster=CLUSTER, **more):
    (found,) = parse_disturbances(Scenario([text], **more), cluster).slow
    return found


def test_what_each_form_comes_to():
    gpu = one("gpu=5:1.15")
    assert (gpu.gpus, gpu.factor, gpu.link, gpu.kind) == ((5,), 1.15, False, "gpu")
    assert one("link=node2.nic3:0.5").gpus == (19,)
    assert one("link=node2.nic3:0.5").factor == 2.0
    assert len(one("random=25%:1.2").gpus) == 16
    assert (one("stage=3:1.05").stage, one("stage=3:1.05").factor) == (3, 1.05)
    assert (one("thermal=7:1.2:5min").gpus, one("thermal=7:1.2:300").seconds) == ((7,), 300.0)
    assert one("thermal=7:1.2:5min").seconds == 300.0
    lost = one("lost=node1.nic4")
    assert (lost.gpus, lost.factor, lost.link) == ((12, 13), 2.0, True)
    assert one("lost=node1.nic5").gpus == (13, 12)
    uplink = one("uplink=leaf2.0:0.25")
    assert (uplink.leaf, uplink.uplink, uplink.share, uplink.factor) == (2, 0, 0.25, 4.0)
    assert one("uplink=leaf2:0.25").uplink == -1
    assert (one("pause=0.5%:200ms").share, one("pause=0.5%:200ms").seconds) == (0.005, 0.2)
    assert one("noise=2%").share == 0.02


def test_what_is_random_is_drawn_by_the_seed():
    assert one("random=10%:1.2", seed=1) == one("random=10%:1.2", seed=1)
    assert one("random=10%:1.2", seed=1).gpus != one("random=10%:1.2", seed=2).gpus
    first, second = parse_disturbances(Scenario(["random=10%:1.2", "random=10%:1.2"]), CLUSTER).slow
    assert first.gpus == one("random=10%:1.2").gpus
    assert first.gpus != second.gpus


def test_only_what_is_random_is_sampled_unless_asked_for():
    assert not parse_disturbances(Scenario(["gpu=5:1.15"], samples=100), CLUSTER).sampled
    assert not parse_disturbances(Scenario(["thermal=5:1.15:60"]), CLUSTER).sampled
    assert parse_disturbances(Scenario(["thermal=5:1.15:60"], samples=7), CLUSTER).samples == 7
    for asked in ({"slow": ["pause=1%:1s"]}, {"slow": ["noise=1%"]}, {"slow": [], "jitter": "1%"}):
        disturbances = parse_disturbances(Scenario(**asked), CLUSTER)
        assert disturbances.sampled
        assert disturbances.samples == SAMPLES
    assert parse_disturbances(Scenario(["pause=1%:1s"], samples=9), CLUSTER).samples == 9


@pytest.mark.parametrize("jitter", [0.0, 0.02])
@pytest.mark.parametrize("samples", [0, 30])
def test_words_ask_for_the_same_again(jitter, samples):
    slow = [
        "gpu=5:1.15", "random=10%:1.2", "stage=1:1.5", "thermal=7:1.2:5 min", "link=node2.nic3:0.5", "lost=node1.nic4",
        "uplink=leaf2:0.25", "pause=0.5%:200 ms", "noise=2%",
    ]  # fmt: skip
    plan = {"global_batch": 64, "seq_len": 4096}
    for part in (slow, slow[:3], slow[3:4]):
        asked = parse_disturbances(Scenario(part, jitter, samples=samples, seed=3), CLUSTER)
        question = read({"question": "predict", "model": "llama-3-8b", "cluster": "h100-sxm:64", "plan": plan})
        line = command(replace(question, scenario=asked.scenario()))
        again = parse_disturbances(question_of_command(line).scenario, CLUSTER)
        assert again.slow == asked.slow
        assert again.jitter == asked.jitter
        assert again.sampled == asked.sampled
        assert again.samples == asked.samples or not asked.sampled


def test_a_file_is_a_list_of_words(tmp_path):
    path = tmp_path / "trouble.yaml"
    path.write_text("# a bad day\n- gpu=5:1.15\n- pause=0.5%:200ms\n")
    both = parse_disturbances(Scenario([str(path), "lost=node1.nic4"]), CLUSTER)
    assert both == parse_disturbances(Scenario(["gpu=5:1.15", "pause=0.5%:200ms", "lost=node1.nic4"]), CLUSTER)
    assert both.scenario().slow == ("gpu=5:1.15", "pause=0.5%:200ms", "lost=node1.nic4")


@pytest.mark.parametrize(
    ("content", "entry"),
    [
        ("- gpu=5:1.15\n- cpu=1:2\n", "entry 2"),
        ("- gpu=5:1.15\n- gpu=64:1.2\n", "entry 2"),
        ("- gpu: 5\n", "entry 1"),
        ("- 17\n", "entry 1"),
        ("- 2026-13-45\n", "entry 1"),
        ("slow:\n- gpu=5:1.15\n", "'slow'"),
        ("", "no list"),
        ("[]", "no list"),
        ("- [\n", "line"),
    ],
)
def test_a_bad_file_names_file_and_entry(tmp_path, content, entry):
    path = tmp_path / "trouble.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=entry) as caught:
        parse_disturbances(Scenario([str(path)]), CLUSTER)
    assert "trouble.yaml" in str(caught.value)


def test_a_missing_or_binary_file_is_named(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.yaml", "binary.yaml"):
        with pytest.raises(InputFileError, match=name):
            parse_disturbances(Scenario([str(tmp_path / name)]), CLUSTER)


@pytest.mark.parametrize(
    "text",
    [
        "", "gpu", "gpu=1", "gpu=1:", "gpu=1:2:3", "cpu=1:2", "gpu=64:1.2", "gpu=-1:1.2", "gpu=x:2", "gpu=1:0.5",
        "gpu=1:1e3", "gpu=1:2000", "gpu=1:nan", "gpu=1:inf", "gpu=1:1.2.3", "gpu=1:.", "gpu=\u0661:2",
        "random=0%:1.2", "random=101%:1.2", "random=x:1.2", "random=1%:0.9",
        "stage=x:1.2", "stage=0:0.5", "stage=1",
        "thermal=1:1.2", "thermal=64:1.2:60", "thermal=1:0.9:60", "thermal=1:1.2:0", "thermal=1:1.2:1 week",
        "thermal=1:1.2:-3", "thermal=1:1.2:1e9",
        "link=node9.nic0:0.5", "link=node1.nic8:0.5", "link=node1:0.5", "link=node1.nic1:0", "link=node1.nic1:1.5",
        "lost=node9.nic0", "lost=node1", "lost=node1.nic1:0.5",
        "uplink=leaf999:0.5", "uplink=leaf0.9999:0.5", "uplink=0:0.5", "uplink=leaf0:0", "uplink=leaf0:2",
        "pause=0.5%", "pause=101%:1s", "pause=x:1s", "pause=1%:0s", "pause=1%:x", "pause=-1%:1s",
        "noise=x", "noise=101%", "noise=-1%", "noise=1%:2",
    ],
)  # fmt: skip
def test_a_bad_word_is_named_with_a_remedy(text):
    with pytest.raises(SpecError) as caught:
        parse_disturbances(Scenario([text]), CLUSTER)
    assert caught.value.field == "slow"
    assert caught.value.value == text
    assert len(caught.value.remedy) > 10


def test_a_node_cannot_lose_all_its_nics():
    with pytest.raises(SpecError, match="cut off"):
        one("lost=node0.nic0", parse_cluster("h100-sxm:1"))
    everything = [f"lost=node1.nic{nic}" for nic in range(8)]
    parse_disturbances(Scenario(everything[:7]), CLUSTER)
    with pytest.raises(SpecError, match="cut off"):
        parse_disturbances(Scenario(everything), CLUSTER)


@pytest.mark.parametrize("more", [{"samples": -1}, {"samples": 10**7}, {"seed": -1}, {"jitter": "x"}, {"jitter": 2}])
def test_bad_numbers_are_named(more):
    with pytest.raises(SpecError, match=next(iter(more))):
        parse_disturbances(Scenario(["gpu=1:1.2"], **more), CLUSTER)


def test_a_lost_nic_is_carried_by_its_neighbour_on_its_own_node():
    """By itself on node 1 as on node 0; with its neighbour lost too, by the next: both at a third of its rate."""
    for node in (0, 1):
        first = 8 * node
        alone = link_times([one(f"lost=node{node}.nic4")], CLUSTER)
        assert alone == {first + 4: 2.0, first + 5: 2.0}
        two = [one(f"lost=node{node}.nic{nic}") for nic in (4, 5)]
        assert {gpu - first: times for gpu, times in link_times(two, CLUSTER).items()} == {4: 3.0, 5: 3.0, 6: 3.0}


def test_all_gpus_can_be_drawn():
    assert (np.array(one("random=100%:1.2").gpus) == np.arange(64)).all()
