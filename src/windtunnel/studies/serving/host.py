"""Engines on a host that gives them fewer CPUs than they have processes.

    processes    a worker per GPU; a scheduler and an API server per attention rank
    crowd        processes / CPUs, where above one: none of them sleeps while it waits, so each gets its share only

vLLM's documentation (optimization.md, "CPU resources for GPU deployments") counts the same processes. Then a step's
host time, and what reads prompts, take `crowd` times as long, and steps with prompts wait until all workers have
launched their kernels one after the other on the CPUs there are.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import Profile

# A core reads 0.21 to 0.27 million tokens a second: byte-level BPE of Hugging Face's tokenizers, 60,000 words, code and
# tokens drawn at random (measured here; half a million in others' logs).
READ_S = 4.7e-6
LAUNCH_S = 1.25e-4  # of a compiled layer with experts: some 28 kernels of 4.5 us


def crowd_of(deployment: Deployment) -> float:
    """Processes of a replica over the CPUs that they share; 1 where nothing is said, or each has its own."""
    if deployment.host_cpus is None:
        return 1.0
    return max(1.0, (deployment.gpus + 2 * deployment.attn_dp) / deployment.host_cpus)


def on_its_host(profile: Profile, deployment: Deployment) -> Profile:
    """A profile with the times of the host that a deployment says."""
    crowd = crowd_of(deployment)
    if deployment.host_cpus is None or crowd == 1.0:
        return profile
    launched = max(LAUNCH_S, profile.eager_layer_s) * max(1.0, deployment.gpus / deployment.host_cpus)
    return replace(
        profile,
        step_s=profile.step_s * crowd,
        sequence_s=profile.sequence_s * crowd,
        eager_layer_s=launched,
        prompt_token_s=0.0,
        read_token_s=READ_S * crowd / deployment.attn_dp,
    )
