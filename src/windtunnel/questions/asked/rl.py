"""What `rl` and `rl plan` are asked: a step of RL post-training (GRPO and its kin) on one cluster."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, part
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.parts.frameworks import habits_of
from windtunnel.questions.asked.parts.plan import Framework, Precision
from windtunnel.questions.asked.serve.parts import Weights

BATCH, POOLS, ROLLOUT, LEARNER, EXTRAS = "Batch", "Pools", "Generation", "Training", "Beside the step"
Pass = Literal["yes", "no"]
OWN_FILES = (".yaml", ".yml", ".toml", ".sh", ".bash", ".slurm", ".sbatch", ".py")


@part
class Rollout:
    """How answers are generated; what is left open follows the framework, and the layout what is fastest."""

    engine: Annotated[str | None, About("Engine and release (the framework's).", ROLLOUT, rare=True)] = None
    gen_tp: Annotated[int | None, About("Tensor parallelism of a generator (the fastest).", ROLLOUT, least=1)] = None
    gen_pp: Annotated[int, About("Pipeline parallelism of a generator (1).", ROLLOUT, least=1, rare=True)] = 1
    gen_ep: Annotated[
        int | None, About("Expert parallelism of a generator (the engine's).", ROLLOUT, least=1, rare=True)
    ] = None
    weights: Annotated[Weights, About("Format of the generators' weights (bf16).", ROLLOUT, rare=True)] = "bf16"
    gpu_memory_utilization: Annotated[
        float | None, About("Share of memory that the engine takes.", ROLLOUT, least=0.05, most=1, rare=True)
    ] = None
    eager: Annotated[bool, About("No captured graphs: decode steps launched kernel by kernel.", ROLLOUT, rare=True)] = (
        False
    )
    max_num_seqs: Annotated[int | None, About("Sequences of a generator's batch.", ROLLOUT, least=1, rare=True)] = None
    in_flight: Annotated[
        int | None, About("Prompts under way at a time (as many as the framework lets).", ROLLOUT, least=1, rare=True)
    ] = None
    speculative_tokens: Annotated[
        int | None, About("Tokens drafted per step (the recipe's, else 0).", ROLLOUT, least=0, most=16, rare=True)
    ] = None
    acceptance: Annotated[
        float | None, About("Chance that a drafted token is kept (0.6).", ROLLOUT, least=0, most=1, rare=True)
    ] = None
    turns: Annotated[
        int, About("Turns of a sample, tools between them (1).", ROLLOUT, least=1, most=1000, rare=True)
    ] = 1
    tool_wait: Annotated[
        float, About("Mean wait for a tool, e.g. 2s, exponential.", ROLLOUT, least=0, unit="time", rare=True)
    ] = 0.0
    tool_tokens: Annotated[int, About("Tokens that a tool adds to the context (0).", ROLLOUT, least=0, rare=True)] = 0


@part
class Learner:
    """How the policy is trained; a layout that is left open is the fastest that fits."""

    trainer: Annotated[
        Framework | None, About("Habits of the trainer (the framework's).", LEARNER, rare=True, meant=habits_of)
    ] = None
    train_batch: Annotated[
        int | None, About("Samples per optimizer step (all of a step's).", LEARNER, least=1, names=("global_batch",))
    ] = None
    row_tokens: Annotated[
        int | None,
        About("Tokens of a packed row (the longest sample's).", LEARNER, least=1, names=("max_tokens",), rare=True),
    ] = None
    tp: Annotated[int | None, About("Tensor-parallel degree of the trainer.", LEARNER, least=1)] = None
    pp: Annotated[int | None, About("Pipeline stages of the trainer.", LEARNER, least=1)] = None
    cp: Annotated[int | None, About("Context-parallel degree of the trainer.", LEARNER, least=1, rare=True)] = None
    ep: Annotated[int | None, About("Expert-parallel degree of the trainer.", LEARNER, least=1)] = None
    precision: Annotated[Precision, About("Format of the trainer's GEMMs (bf16).", LEARNER, rare=True)] = "bf16"
    recompute: Annotated[
        str | None, About("none, full, full:N or selective:PART (none where that fits, else full).", LEARNER, rare=True)
    ] = None
    offload_optimizer: Annotated[
        float, About("Share of the optimizer kept and stepped on the host (0).", LEARNER, least=0, most=1, rare=True)
    ] = 0.0
    old_logprob: Annotated[Pass | None, About("Log-probs of the old policy computed again.", LEARNER, rare=True)] = None
    reference: Annotated[Pass | None, About("Log-probs of a reference model (KL).", LEARNER, rare=True)] = None


@part
class Beside:
    """What else a step waits for."""

    reward: Annotated[
        float, About("Time to judge a sample, e.g. 5s, after its last token.", EXTRAS, least=0, unit="time", rare=True)
    ] = 0.0
    reward_workers: Annotated[int | None, About("Samples judged at a time (all).", EXTRAS, least=1, rare=True)] = None
    judge: Annotated[str | None, About("Model that judges, on GPUs of its own (none).", EXTRAS, rare=True)] = None
    judge_gpus: Annotated[int, About("GPUs of the judge (8).", EXTRAS, least=1, rare=True)] = 8
    judge_tokens: Annotated[int, About("Tokens of a verdict (256).", EXTRAS, least=1, rare=True)] = 256
    useful: Annotated[
        float, About("Share of prompts that a difficulty filter keeps (1).", EXTRAS, least=0.01, most=1, rare=True)
    ] = 1.0
    checkpoint_every: Annotated[int, About("Steps between checkpoints (none).", EXTRAS, least=0, rare=True)] = 0
    storage: Annotated[
        float, About("Bandwidth of the checkpoints' storage (20GB/s).", EXTRAS, least=1, unit="bandwidth", rare=True)
    ] = 20e9
    validate_every: Annotated[int, About("Steps between validations (none).", EXTRAS, least=0, rare=True)] = 0
    validate_samples: Annotated[int, About("Samples of a validation (500).", EXTRAS, least=1, rare=True)] = 500
    refit_rate: Annotated[
        float | None,
        About(
            "Bandwidth of a weight update, as measured (the framework's).", EXTRAS, least=1, unit="bandwidth", rare=True
        ),
    ] = None
    log: Annotated[str | None, About("Log of this run by its framework: its phases anchor the answer.", EXTRAS)] = None
    anchor: Annotated[
        str | None,
        About(
            "An anchor that another answer printed: generation=1.2,learner=0.9,refit=3,between=2, or step=1.1.",
            EXTRAS,
            rare=True,
        ),
    ] = None


MISSING = {
    "model": "MODEL without a flag (a name such as qwen3-8b, or a config.json)",
    "prompts": "--prompts N",
    "lengths": "--lengths mean=9000,cap=32768 (of the answers)",
}


@part
class Rl:
    """How long a step is, who waits for whom, and what fits."""

    verb: ClassVar[str] = "rl"
    positional: ClassVar[tuple[str, ...]] = ("model",)
    model: Annotated[
        ModelPart | None,
        About(
            "A model of the catalogue, a config.json, or the framework's own file as --config takes it (the config's)."
        ),
    ] = None
    cluster: Annotated[ClusterPart, About("GPU type and number, h100-sxm:128, or a cluster file.")]
    config: Annotated[
        str | None,
        About("The framework's own YAML, TOML or launch script: it says what is not said here."),
    ] = None
    framework: Annotated[
        str | None,
        About("Framework and release: verl, nemo-rl-0.6, slime, openrlhf, areal, skyrl, prime-rl, trl, roll (verl)."),
    ] = None
    prompts: Annotated[int | None, About("Prompts of a step (the config's).", BATCH, least=1, most=1_000_000)] = None
    samples: Annotated[int | None, About("Samples of a prompt (1).", BATCH, least=1, most=100_000)] = None
    lengths: Annotated[
        str | None,
        About("Answers: mean=9000,cap=32768, with sd= (of the logarithm) if known; or a CSV or JSONL of them.", BATCH),
    ] = None
    prompt_tokens: Annotated[int, About("Tokens of a prompt (150).", BATCH, least=1, rare=True)] = 150
    generate: Annotated[int | None, About("GPUs that generate, apart from those that train.", POOLS, least=1)] = None
    train: Annotated[int | None, About("GPUs that train, apart from those that generate.", POOLS, least=1)] = None
    hybrid: Annotated[bool, About("Trainers generate, too, until they have a batch.", POOLS, rare=True)] = False
    async_steps: Annotated[
        float,
        About(
            "Steps by which samples may be begun ahead, and older than the policy (0: in turn).",
            POOLS,
            least=0,
            most=1000,
        ),
    ] = 0.0
    partial: Annotated[
        bool | None, About("Answers under way survive a weight update (the framework's habit).", POOLS)
    ] = None
    rollout: Annotated[Rollout, About("", inside=True)] = field(default_factory=Rollout)
    learner: Annotated[Learner, About("", inside=True)] = field(default_factory=Learner)
    beside: Annotated[Beside, About("", inside=True)] = field(default_factory=Beside)
    price: Annotated[float | None, About("Of one GPU for an hour: cost of a step.", least=0, most=1e6, rare=True)] = (
        None
    )
    seed: Annotated[int, About("Seed of lengths (0).", least=0, rare=True)] = 0

    @property
    def own_file(self) -> str | None:
        """The framework's own file: of `config`, or named in the place of the model."""
        base = self.model.base if self.model is not None else ""
        return self.config or (base if base.lower().endswith(OWN_FILES) else None)

    def __post_init__(self) -> None:
        if self.own_file is None:
            missing = [name for name in ("model", "prompts", "lengths") if getattr(self, name) is None]
            if len(missing) > 1:
                remedy = f"add {' '.join(MISSING[name] for name in missing)}, or --config with the framework's own file"
                raise SpecError(f"{missing[0]} (and {', '.join(missing[1:])})", None, remedy)
            if missing:
                remedy = f"give {MISSING[missing[0]]}, or --config with the framework's own file"
                raise SpecError(missing[0], None, remedy)
            self._check_pools()

    def _check_pools(self) -> None:
        if (self.generate is None) != (self.train is None):
            raise SpecError("generate", self.generate, "give --generate and --train, or neither: then they share GPUs")
        if self.async_steps and self.generate is None:
            raise SpecError("async_steps", self.async_steps, "needs pools apart: add --generate N --train M")
        if self.hybrid and (self.generate is None or not self.async_steps):
            raise SpecError("hybrid", True, "needs pools apart and --async-steps 1 or more")


@part
class RlPlan(Rl):
    """How to divide a cluster: what is given is kept; `async_steps` is the most that is tried."""

    verb: ClassVar[str] = "rl plan"

    def _check_pools(self) -> None:
        if (self.generate is None) != (self.train is None):
            raise SpecError("generate", self.generate, "give --generate and --train, or neither: then they are sought")
        if self.own_file is not None:
            raise SpecError("config", self.own_file, "is for rl: name the fields here")
