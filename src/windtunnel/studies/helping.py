"""The answer to `techniques`: what there is; with `--for`, what each brings to a launch file's job, and its line."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.errors import SpecError, UserError
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.sweep import Techniques
from windtunnel.studies import predict
from windtunnel.studies.techniques.registry import find_technique, list_techniques

LINES = {  # in a script with a model, an optimizer and, for hooks, `ddp`, which is PyTorch's own
    "megascale": "megascale.make_groups(...), and the overlap flags of the framework",
    "collective_partitioning": "collective_partitioning.apply(ddp), of PyTorch's DistributedDataParallel",
    "prioritised_all_to_all": "lane = prioritised_all_to_all.apply(ddp), of PyTorch's DistributedDataParallel, and"
    " lane.close() behind the loop",
    "sparse_gradients": "sparse_gradients.apply(ddp, ratio=0.05), of PyTorch's DistributedDataParallel",
    "offload": 'model = offload.apply(model, device_memory="8 GiB"), before DistributedDataParallel(model)',
    "local_sgd": "local_sgd.apply(model, optimizer, local_steps=16), in place of DistributedDataParallel",
}

OF_LINE = {  # where the line brings a part of the technique: the parameters of that part
    "collective_partitioning": ":pieces=1,late_weights=false,overlap=false",
    "prioritised_all_to_all": ":pipeline=false,packing=1",
}


def answer(question: Techniques) -> dict[str, list[dict[str, object]]]:
    """All techniques, or the one that is named; for a job those that fit first, of these the best. Raises UserError."""
    only = None if question.name is None else find_technique(question.name).name
    listed = [list_technique for list_technique in list_techniques() if only in (None, list_technique["name"])]
    if question.launch is None:
        if question.cluster is not None:
            raise SpecError("--cluster", question.cluster, "it goes with --for: name the launch file too")
        return {"techniques": listed}
    if question.cluster is None:
        raise SpecError("--cluster", None, "give the GPUs of the launch file's job, e.g. h100-sxm:64")
    job = predict.of_launch_file(ModelPart(base=question.launch), ClusterPart(base=question.cluster), {})
    without = predict.answer(job)
    for technique in listed:
        name = str(technique["name"])
        technique |= {"step_time_without_s": without.step_time_s, "fits_without": without.infeasible is None}
        technique["line"] = f"from windtunnel.real.techniques import {name}; {LINES[name]}"
        try:
            result = predict.answer(replace(job, technique=(f"{name}{OF_LINE.get(name, '')}",)))
            whole = predict.answer(replace(job, technique=(name,))) if name in OF_LINE else result
        except UserError as error:
            technique["cannot"] = str(error)
        else:
            gain, fits = without.step_time_s / result.step_time_s, result.infeasible is None
            technique |= {"step_time_s": result.step_time_s, "gain": gain, "fits": fits}
            technique["gain_of_all"] = without.step_time_s / whole.step_time_s
    return {"techniques": sorted(listed, key=_merit, reverse=True)}


def _merit(entry: dict[str, object]) -> tuple[bool, float]:
    gain = entry.get("gain")
    return bool(entry.get("fits")), gain if isinstance(gain, float) else 0.0
