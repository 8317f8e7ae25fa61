"""The answer to `techniques`: what there is; with `--for`, what each brings to a launch file's job, and its line."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.errors import SpecError, UserError
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.sweep import Techniques
from windtunnel.studies import predict
from windtunnel.studies.techniques.registry import find_technique, list_techniques

LINES = {  # in a script with a model, an optimizer and, for hooks, `ddp = DistributedDataParallel(model)`
    "megascale": "windtunnel.real.techniques.megascale.make_groups(...), and the overlap flags of the framework",
    "collective_partitioning": "partitioning.apply(ddp)",
    "prioritised_all_to_all": "lane = prioritised_all_to_all.apply(ddp), and lane.close() behind the loop",
    "sparse_gradients": "sparse_gradients.apply(ddp, ratio=0.05)",
    "offload": 'model = offload.apply(model, device_memory="8 GiB"), before DistributedDataParallel(model)',
    "local_sgd": "local_sgd.apply(model, optimizer, local_steps=16), in place of DistributedDataParallel",
}


def answer(question: Techniques) -> dict[str, list[dict[str, object]]]:
    """All techniques, or the one that is named; for a job the best first. Raises UserError."""
    only = None if question.name is None else find_technique(question.name).name
    listed = [list_technique for list_technique in list_techniques() if only in (None, list_technique["name"])]
    if question.launch is None:
        if question.cluster is not None:
            raise SpecError("--cluster", question.cluster, "it goes with --for: name the launch file too")
        return {"techniques": listed}
    if question.cluster is None:
        raise SpecError("--cluster", None, "give the GPUs of the launch file's job, e.g. h100-sxm:64")
    job = predict.of_launch_file(ModelPart(base=question.launch), ClusterPart(base=question.cluster), {})
    without_s = predict.answer(job).step_time_s
    for technique in listed:
        name = str(technique["name"])
        technique |= {"step_time_without_s": without_s, "line": LINES[name]}
        try:
            with_s = predict.answer(replace(job, technique=(name,))).step_time_s
        except UserError as error:
            technique["cannot"] = str(error)
        else:
            technique |= {"step_time_s": with_s, "gain": without_s / with_s}
    return {"techniques": sorted(listed, key=_gain, reverse=True)}


def _gain(entry: dict[str, object]) -> float:
    gain = entry.get("gain")
    return gain if isinstance(gain, float) else 0.0
