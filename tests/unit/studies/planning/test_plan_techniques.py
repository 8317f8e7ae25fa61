"""`plan` with techniques: what it finds is what `predict` says, and no slower than without."""

from __future__ import annotations

import shlex

import pytest

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.studies.planning.plan import plan
from windtunnel.studies.planning.techniques import chosen, together
from windtunnel.studies.techniques import predict_with

# One structure, on links so slow that what is sent decides.
FIXED = {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "zero_stage": 0, "recompute": "none", "cuda_graphs": False}
JOB = {"global_batch": 32, "seq_len": 1024, **FIXED}


def test_what_techniques_make_of_the_best_plan_is_predicted_and_reproducible() -> None:
    cluster = {"gpu": "h100-sxm", "n_gpus": 16, "nic": "25Gb/s"}
    model = "llama-3.2-1b"
    bare = plan(model, cluster, choices_within_s=0.0, top=1, **JOB)
    found = plan(model, cluster, choices_within_s=0.0, techniques="all", **JOB)
    best = found[0]
    assert best.step_time_s < bare[0].step_time_s
    assert best.techniques
    assert together(best.techniques)
    again = predict_with(model, parse_cluster(cluster), best.plan, best.techniques)
    assert again.step_time_s == best.step_time_s
    words = shlex.split(best.reproduce)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--technique"] == list(best.techniques)
    techniques = found.to_dict()["techniques"]
    assert techniques["predicted"] > 0
    assert "prioritised_all_to_all" in techniques["skipped"]  # the model has no experts
    # Every plan without a technique that was there is still there or was beaten.
    assert all(one.step_time_s <= bare[0].step_time_s for one in found.plans[:1])


def test_exact_leaves_out_what_changes_training() -> None:
    assert set(chosen(["all"])) - set(chosen(["exact"])) == {"sparse_gradients", "local_sgd"}
    assert chosen(["sparse_gradients:ratio=0.1", "all"])[0] == "sparse_gradients:ratio=0.1"
    assert "sparse_gradients:ratio=0.1" in chosen(["all", "sparse_gradients:ratio=0.1"])
    with pytest.raises(UnknownNameError):
        chosen(["faster"])


def test_techniques_are_not_ranked_under_trouble() -> None:
    with pytest.raises(SpecError, match="leave one out"):
        plan("llama-3-8b", "h100-sxm:8", global_batch=8, seq_len=512, techniques="all", mtbf_s=3600.0)
