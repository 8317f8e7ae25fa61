"""Megatron-Core arguments as plan fields and model: from a shell script, or a plain list of arguments.

Options are found wherever they stand: in arrays (`GPT_MODEL_ARGS=( ... )`), in quoted strings, behind `torchrun`.
`$NAME` and `${NAME:-default}` are replaced by what the script assigns, last assignment first; nothing is executed. What
depends on more than that (`$((...))`, `$(...)`) is named as not understood. Switches that Megatron-Core leaves off when
they are not given are off.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.shell import expanded
from windtunnel.physics.model.catalogue import catalogued
from windtunnel.studies.training.launch.job_file import NO_EFFECT, Native
from windtunnel.studies.training.launch.megatron.writing import MODULES, RECIPES, STRATEGIES

IDLE = re.compile(f"--({'|'.join(NO_EFFECT['Megatron-LM'])})")
MODEL = {
    "--num-layers": "layers", "--hidden-size": "hidden", "--ffn-hidden-size": "ffn", "--num-attention-heads": "heads",
    "--num-query-groups": "kv_heads", "--kv-channels": "head_dim", "--num-experts": "experts",
    "--moe-router-topk": "topk", "--moe-ffn-hidden-size": "expert_ffn",
    "--moe-shared-expert-intermediate-size": "shared_size", "--vocab-size": "vocab", "--padded-vocab-size": "vocab",
}  # fmt: skip
MODEL_SWITCHES = (
    "--swiglu", "--untie-embeddings-and-output-weights", "--disable-bias-linear", "--add-qkv-bias", "--qk-layernorm",
    "--group-query-attention", "--normalization", "--squared-relu", "--apply-layernorm-1p",
)  # fmt: skip
LATENT = (  # DeepSeek's attention: such a model is named, its sizes are in the catalogue
    "--multi-latent-attention", "--q-lora-rank", "--kv-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim",
    "--v-head-dim", "--moe-layer-freq",
)  # fmt: skip
SHARED = {"--bf16", "--fp16", "--optimizer", "--sequence-parallel"}  # with programs of other kinds
SWIFT = re.compile(r"(?m)^[^#\n]*\bmegatron (sft|pt|rlhf)\b")  # Megatron-SWIFT (4.x), which means other things unsaid
IN_WORD = "\ue000"  # stands for a `#` inside of a word
GRANULARITY = "--recompute-granularity"
SWIFT_NAMES = {"--max-length": "--seq-length", "--num-train-epochs": "--train-iters"}
SWIFT_DEFAULTS: Mapping[str, list[str]] = {
    "--bf16": [], GRANULARITY: ["selective"], "--use-distributed-optimizer": [],
    "--global-batch-size": ["16"],
}  # fmt: skip
TOKENS_MOST = 100_000
LAYOUT_MOST, STAGES_MOST = 2_000, 20_000  # letters of a pipeline's layout, as given and written out


def read(text: str, n_gpus: int, where: str) -> Native:
    """The job that arguments state. Raises InputFileError on what is no shell text, SpecError on a value."""
    arguments = Arguments(shell_words(text, where), where)
    if not any(name.startswith("--") for name in arguments.options):
        raise InputFileError(where, "holds no --options", "give Megatron-Core arguments, or a plan in YAML")
    of_swift = SWIFT.search(text) is not None
    if of_swift:
        arguments.options = {
            **SWIFT_DEFAULTS,
            **{SWIFT_NAMES.get(name, name): of for name, of in arguments.options.items()},
        }
    fields = _fields(arguments, n_gpus)
    if not (arguments.names_read - SHARED | set(MODEL)) & arguments.options.keys():
        remedy = "give the launch file of Megatron-Core or of Hugging Face's Trainer, or name the model and give flags"
        raise InputFileError(where, "states no argument of Megatron-Core", remedy)
    sizes = {name: arguments.number(option) for option, name in MODEL.items() if option in arguments.options}
    model: str | dict[str, object] | None = _model(arguments, sizes)
    if of_swift:
        model = catalogued(arguments.word("--model", "") or "") or model
        arguments.names_read -= set() if model else {"--model"}
        if arguments.word("--tuner-type", arguments.word("--train-type")) == "lora":
            fields["lora_rank"] = arguments.count("--lora-rank", 8)
    latent = (f"the model's {LATENT[0]} is not read",) if LATENT[0] in arguments.options else ()
    unknown = (*arguments.unread(), *latent)
    stated = {} if model else {name: size for name, size in sizes.items() if size is not None}
    return Native("megatron", fields, model, unknown, where, stated)


def shell_words(text: str, where: str) -> list[str]:
    """The words of a script or a list of arguments, its variables in place. Raises InputFileError."""
    text = text.replace("\\\n", " ").replace("\\\r\n", " ")
    # A comment begins a word, at a blank or behind an operator: `data.jsonl#1000` holds none, as shlex thinks.
    text = re.sub(r"(?<=[^\s;&|()])#", IN_WORD, text)
    try:
        lexer = shlex.shlex(text, posix=True)
        lexer.whitespace_split, lexer.commenters = True, "#"
        raw = [word.replace(IN_WORD, "#") for word in lexer]
    except ValueError as error:
        raise InputFileError(where, f"cannot be read as shell text ({error})", "check its quotes") from None
    values: dict[str, str] = {}
    words: list[str] = []
    for word in raw:
        assigned = re.fullmatch(r"(?:export\s+)?([A-Za-z_]\w*)=\(?(.*)", word, re.DOTALL)
        if assigned and not word.startswith("-"):
            name, value = assigned.groups()
            if "--" not in value:
                values[name] = expanded(value, values)
                continue
            word = value
        words += word.split() if re.search(r"(^|\s)--", word) and re.search(r"\s", word) else [word]
        if len(words) > TOKENS_MOST:
            raise InputFileError(where, f"has more than {TOKENS_MOST:,} words", "give the arguments alone")
    return [expanded(word.rstrip(")"), values) if not word.startswith("$(") else word for word in words if word != "("]


class Arguments:
    """Options by name with their words; what is asked for is understood."""

    def __init__(self, words: list[str], where: str) -> None:
        self.where = where
        self.options: dict[str, list[str]] = {}
        self.names_read: set[str] = set()
        name = ""
        for word in words:
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                name = name.replace("_", "-")
                self.options[name] = [value] if equals else []
            elif name and not word.startswith("-"):
                self.options[name].append(word)
            else:
                name = ""

    def on(self, name: str) -> bool:
        """Whether a switch is there."""
        self.names_read.add(name)
        return name in self.options and self.options[name][:1] not in (["false"], ["False"])

    def word(self, name: str, default: str | None = None) -> str | None:
        """Its first word; the default where it is not there."""
        self.names_read.add(name)
        words = self.options.get(name)
        if words is None:
            return default
        if not words:
            raise SpecError(name, None, "needs a value", self.where)
        return words[0]

    def words(self, name: str) -> list[str]:
        """All its words."""
        self.names_read.add(name)
        return self.options.get(name, [])

    def number(self, name: str, default: int | None = None) -> int | None:
        """A whole number. Raises SpecError."""
        text = self.word(name)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,15}", text):
            raise SpecError(name, text, "is no whole number that can be read here: write it out", self.where)
        return int(text)

    def count(self, name: str, default: int) -> int:
        """The same, where there is always a number, of at least 1. Raises SpecError."""
        value = self.number(name, default)
        if value == 0:
            raise SpecError(name, 0, "give a whole number of at least 1", self.where)
        return default if value is None else value

    def unread(self) -> list[str]:
        """Options that nobody asked for and that may matter."""
        left = [name for name in self.options if name not in self.names_read and not IDLE.match(name)]
        return [" ".join([name, *self.options[name][:1]]) for name in left]


def _fields(arguments: Arguments, n_gpus: int) -> dict[str, object]:
    tp = arguments.count("--tensor-model-parallel-size", arguments.count("--tensor-parallel-size", 1))
    pp = arguments.count("--pipeline-model-parallel-size", 1)
    cp = arguments.count("--context-parallel-size", 1)
    fields: dict[str, object] = {"framework": "megatron", "tp": tp, "pp": pp, "cp": cp}
    kind = arguments.word("--cp-comm-type")
    if cp > 1:
        fields["cp_kind"] = "ulysses" if kind == "a2a" else "ring"
        if kind not in (None, "p2p", "a2a"):
            arguments.options[f"--cp-comm-type {kind}"] = []
    fields |= {"ep": arguments.count("--expert-model-parallel-size", 1)}
    etp = arguments.number("--expert-tensor-parallel-size")
    if etp is not None:
        fields["etp"] = etp
    fields |= _pipeline(arguments, pp)
    if tp > 1:
        fields["sequence_parallel"] = arguments.on("--sequence-parallel")
        fields["overlap_tp"] = arguments.on("--tp-comm-overlap")
    else:
        arguments.names_read |= {"--sequence-parallel", "--tp-comm-overlap"}
    fields["micro_batch"] = micro = arguments.count("--micro-batch-size", 1)
    for name, option in (("global_batch", "--global-batch-size"), ("seq_len", "--seq-length")):
        value = arguments.number(option)
        if value is not None:
            fields[name] = value
    if "global_batch" not in fields:  # Megatron-Core's default: one micro-batch for each replica
        fields["global_batch"] = micro * max(1, n_gpus // (tp * pp * cp))
    fields |= _shards(arguments, max(1, n_gpus // (tp * pp)))
    fields["overlap_ep"] = arguments.on("--overlap-moe-expert-parallel-comm")
    kind, backend = (
        arguments.word("--moe-token-dispatcher-type"),
        arguments.word("--moe-flex-dispatcher-backend"),
    )
    if kind == "allgather":  # not what is priced
        arguments.names_read.discard("--moe-token-dispatcher-type")
    elif kind == "flex" and (backend in ("deepep", "hybridep", "ncclep") or arguments.on("--moe-enable-deepep")):
        fields["dispatcher"] = backend or "deepep"
    elif kind == "alltoall":
        fields["dispatcher"] = kind
    fields |= _experts(arguments)
    fields["recompute"] = _recompute(arguments)
    if arguments.on("--optimizer-cpu-offload"):
        share = arguments.word("--optimizer-offload-fraction", "1.0")
        try:
            fields["offload_optimizer"] = float(share or 1.0)
        except ValueError:
            raise SpecError("--optimizer-offload-fraction", share, "give a number", arguments.where) from None
    arguments.names_read |= {"--cpu-offloading", "--cpu-offloading-activations", "--cpu-offloading-weights"}
    if offloaded := arguments.number("--cpu-offloading-num-layers"):
        fields["offload_activations"] = offloaded
    fields |= _graphs(arguments)
    if arguments.word("--transformer-impl") == "local":
        fields["compile"] = False
    if arguments.word("--attention-backend") == "unfused":
        fields["attention_impl"] = "unfused"
    return fields | _formats(arguments)


def _pipeline(arguments: Arguments, pp: int) -> dict[str, object]:
    fields: dict[str, object] = {}
    layout = arguments.word("--pipeline-model-parallel-layout")
    chunks = arguments.number("--num-virtual-stages-per-pipeline-rank")
    each = arguments.number("--num-layers-per-virtual-pipeline-stage")
    layers = arguments.number("--num-layers")
    if layout is not None:
        counts = _stages(layout)
        if counts is None or len(counts) % pp:
            arguments.options[f"--pipeline-model-parallel-layout {layout}"] = []
        else:
            fields["layers_per_stage"] = counts
            chunks = len(counts) // pp
    if chunks is None and each is not None:
        if layers is None:
            arguments.names_read.discard("--num-layers-per-virtual-pipeline-stage")
        elif layers % (pp * each):
            raise SpecError(
                "--num-layers-per-virtual-pipeline-stage",
                each,
                f"does not divide {layers} layers / {pp}",
                arguments.where,
            )
        else:
            chunks = layers // (pp * each)
    fields |= _ends(arguments, pp, layers, chunks or 1)
    if chunks is not None and chunks > 1 and pp > 1:
        fields["virtual_stages"] = chunks
        fields["overlap_p2p"] = not arguments.on("--no-overlap-p2p-communication")
        if group := arguments.number("--microbatch-group-size-per-virtual-pipeline-stage"):
            fields["micro_batch_group"] = group
    both = [arguments.on(f"--account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
    if all(both):
        fields["account_for_embedding"] = True
    elif any(both):
        arguments.options["--account-for-... of one end only"] = []
    return fields


def _ends(arguments: Arguments, pp: int, layers: int | None, chunks: int) -> dict[str, object]:
    """Layers of each stage where the first or the last rank has a number of its own, and the others share the rest."""
    names = [f"--decoder-{end}-pipeline-num-layers" for end in ("first", "last")]
    first, last = (arguments.number(name) for name in names)
    if pp == 1 or (first is None and last is None):
        return {}
    if layers is None:  # how many the others have is not known
        arguments.names_read.difference_update(names)
        return {}
    others = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if rest < 0 or (rest % others if others else rest):
        name, value = (names[0], first) if first is not None else (names[1], last)
        raise SpecError(name, value, f"leaves {rest} of {layers} layers for {others} stages", arguments.where)
    share = rest // others if others else 0
    counts = [share if first is None else first, *[share] * (pp - 2), share if last is None else last]
    if any(count % chunks for count in counts):
        raise SpecError(names[0], first, f"{chunks} virtual stages do not divide {counts} layers", arguments.where)
    return {"layers_per_stage": tuple(count // chunks for count in counts) * chunks}


def _stages(layout: str) -> tuple[int, ...] | None:
    """Layers of each stage of `Et*7|(t*8|)*6t*7mL`; None for what else a layout may hold.

    E: the embedding, L: the loss, m: a layer of multi-token prediction, which goes with the loss.
    """
    if len(layout) > LAYOUT_MOST:
        return None
    written = re.sub(r"[\s,\"']", "", layout)
    for inner, times in re.findall(r"\(([^()]*)\)\*(\d{1,3})", written):
        written = written.replace(f"({inner})*{times}", inner * int(times), 1)
    if len(written) > STAGES_MOST or not re.fullmatch(r"([ELmt](\*\d{1,4})?|\|)*", written):
        return None
    counts = [re.findall(r"t(?:\*(\d+))?", stage) for stage in written.split("|")]
    return tuple(sum(int(times or 1) for times in stage) for stage in counts)


def _shards(arguments: Arguments, ranks: int) -> dict[str, object]:
    strategy = arguments.word("--data-parallel-sharding-strategy", "no_shard")
    sharded = any([arguments.on("--use-megatron-fsdp"), arguments.on("--use-custom-fsdp")])
    zero = 1 if arguments.on("--use-distributed-optimizer") else 0
    if sharded:
        zero = {"no_shard": 0, "optim": 1, **{name: stage for stage, name in STRATEGIES.items()}}.get(strategy or "", 3)
    if arguments.on("--use-torch-fsdp2"):
        zero = 3
    fields: dict[str, object] = {"zero_stage": zero, "overlap_grad_reduce": arguments.on("--overlap-grad-reduce")}
    gathers = arguments.on("--overlap-param-gather")
    if zero:
        fields["overlap_param_gather"] = gathers
    instances = arguments.count("--num-distributed-optimizer-instances", 1)
    if instances > 1 and zero:
        fields["shard_group"] = max(1, ranks // instances)
    bucket = arguments.number("--ddp-bucket-size")
    return fields | ({} if bucket is None else {"bucket_parameters": bucket})


def _experts(arguments: Arguments) -> dict[str, object]:
    """How a GPU's experts are launched: by itself an expert behind the other (`SequentialMLP`).

    `--moe-grouped-gemm` is TransformerEngine's GroupedLinear, a product of cuBLAS for each; one kernel for all where
    its operation fuser or its grouped tensors are asked for (`transformer_config.py`).
    """
    gathered = [arguments.on(name) for name in ("--use-transformer-engine-op-fuser", "--moe-use-grouped-tensor")]
    if arguments.on("--moe-grouped-gemm"):
        return {"experts_impl": "grouped" if any(gathered) else "streams"}
    mixture = arguments.number("--num-experts") or arguments.count("--expert-model-parallel-size", 1) > 1
    return {"experts_impl": "sequential"} if mixture else {}


def _recompute(arguments: Arguments) -> str:
    kind = arguments.word(GRANULARITY)
    method, layers = arguments.word("--recompute-method"), arguments.number("--recompute-num-layers")
    modules = arguments.words("--recompute-modules")
    if arguments.on("--recompute-activations") and kind is None:
        kind = "selective"
    if kind == "full":
        if method == "uniform" and (layers or 1) > 1:  # one checkpoint for several layers: no field for that
            arguments.options[f"--recompute-num-layers {layers} of uniform"] = []
        return f"full:{layers}" if method == "block" and layers else "full"
    if kind != "selective":
        return "none"
    parts = {name: part for part, name in MODULES.items()}
    for name in modules:
        if name not in parts:
            arguments.options[f"--recompute-modules {name}"] = []
    chosen = sorted({parts[name] for name in modules if name in parts}) if modules else ["core_attention"]
    return "selective:" + ",".join(chosen) if chosen else "none"


def _graphs(arguments: Arguments) -> dict[str, object]:
    """What is launched as CUDA graphs. Most launches of a mixture are its experts': graphs without them are none."""
    impl = arguments.word("--cuda-graph-impl", "none")
    older = [arguments.on(name) for name in ("--enable-cuda-graph", "--external-cuda-graph")]
    modules = {*arguments.words("--cuda-graph-modules"), *arguments.words("--cuda-graph-scope")}
    graphs, whole = impl != "none" or any(older), "full_iteration" in {impl, *modules}
    mixture = arguments.number("--num-experts") or any(module.startswith("moe") for module in modules)
    if mixture and modules and not whole and "moe" not in modules:
        graphs = False
    fields: dict[str, object] = {"cuda_graphs": graphs}
    return fields | {"full_graph": True} if graphs and whole else fields


def _formats(arguments: Arguments) -> dict[str, object]:
    fields: dict[str, object] = {"precision": "fp32", "gradient_dtype": "fp32"}
    accumulates = arguments.on("--accumulate-allreduce-grads-in-fp32")
    reduces = arguments.on("--grad-reduce-in-bf16")
    if arguments.on("--fp16"):
        fields = {"precision": "fp16", "gradient_dtype": "fp32" if accumulates else "bf16"}
    if arguments.on("--bf16"):  # gradients in fp32 unless told otherwise (`validate_args`)
        fields = {"precision": "bf16", "gradient_dtype": "bf16" if reduces else "fp32"}
    if reduces:
        fields["gradient_dtype"] = "bf16"
    low, recipe = arguments.word("--fp8-format"), arguments.word("--fp8-recipe", "delayed")
    if low is not None:
        precisions = {name: precision for precision, name in RECIPES.items()} | {"blockwise": "fp8-current"}
        if recipe not in precisions:
            arguments.options[f"--fp8-recipe {recipe}"] = []
        fields["precision"] = precisions.get(recipe or "delayed", "fp8")
    if arguments.word("--fp4-format") is not None:
        arguments.names_read.add("--fp4-recipe")
        fields["precision"] = "nvfp4"
    low_parameters = any([arguments.on("--fp8-param-gather"), arguments.on("--fp8-param")])
    if low_parameters or low is not None:
        fields["fp8_parameters"] = low_parameters
    optimizer = arguments.word("--optimizer", "adam") or "adam"
    if optimizer == "dist_muon":  # each rank updates layers of its own
        optimizer, fields["zero_stage"] = "muon", 1
    if optimizer in ("adam", "sgd", "muon"):
        fields["optimizer"] = optimizer
    else:
        arguments.options[f"--optimizer {optimizer}"] = []
    moments = [arguments.word(name, "fp32") for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype")]
    arguments.names_read |= {"--use-precision-aware-optimizer", "--main-grads-dtype", "--main-params-dtype"}
    if arguments.on("--use-precision-aware-optimizer") and moments == ["bf16", "bf16"]:
        fields["optimizer_dtype"] = "bf16"
    elif moments != ["fp32", "fp32"]:
        arguments.options[f"--exp-avg-dtype {moments[0]}"] = []
    return fields


def _model(arguments: Arguments, sizes: Mapping[str, int | None]) -> dict[str, object] | None:
    """Keywords of `windtunnel.physics.model.transformer`; None where sizes are missing."""
    arguments.names_read |= {*MODEL, *MODEL_SWITCHES}
    if LATENT[0] in arguments.options:
        arguments.names_read |= set(LATENT)
        return None
    if any(sizes.get(name) is None for name in ("layers", "hidden", "heads")):
        return None
    gated = "--swiglu" in arguments.options
    hidden = sizes["hidden"] or 0
    ffn = sizes.get("ffn") or (-(-hidden * 8 // 3 // 64) * 64 if gated else 4 * hidden)
    family = "llama" if gated or "--disable-bias-linear" in arguments.options else "gpt"
    if "--add-qkv-bias" in arguments.options:
        family = "qwen2"
    if "--qk-layernorm" in arguments.options:
        family = "qwen3"
    experts = sizes.get("experts")
    model: dict[str, object] = {
        "layers": sizes["layers"],
        "hidden": hidden,
        "heads": sizes["heads"],
        "ffn": (sizes.get("expert_ffn") or ffn) if experts else ffn,
        "kv_heads": sizes.get("kv_heads") if "--group-query-attention" in arguments.options else None,
        "head_dim": sizes.get("head_dim"),
        "gated": gated,
        "family": family,
        "tied_embeddings": "--untie-embeddings-and-output-weights" not in arguments.options,
        "vocab": sizes.get("vocab"),
    }
    if experts:
        model |= {"experts": experts, "topk": sizes.get("topk") or 2, "shared_size": sizes.get("shared_size") or 0}
    return model
