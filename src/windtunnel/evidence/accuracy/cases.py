"""From a row of the table to what is predicted: a model, a cluster, and one plan, or a few where something is unknown.

Nothing is guessed. What a row leaves open is swept over the few values that are in use, and the row then carries the
range of the answers; what cannot be represented is skipped with its reason. What a row says in words (`notes`,
`recompute`, `inter_link`) is read by the rules of `wording.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from windtunnel.errors import LayoutError, UserError
from windtunnel.evidence.accuracy import wording
from windtunnel.evidence.accuracy.fabric import cluster_of
from windtunnel.evidence.accuracy.nanotron import layers_per_stage
from windtunnel.evidence.accuracy.table import SWITCHES, Row
from windtunnel.evidence.accuracy.wording import UnreadableError

if TYPE_CHECKING:
    from windtunnel.physics.hardware import Cluster
    from windtunnel.physics.model import Model
    from windtunnel.studies.training.plan import Plan

COUNT_TOLERANCE = 0.025  # published sizes are rounded; a head of its own shows above this
AS_LLAMA = "taken as Llama's"
SWEPT_AT_MOST = 24  # plans of one row; more is not a sweep but a guess


@dataclass(frozen=True, slots=True)
class Case:
    """One row made predictable. Several plans: what the row leaves open, swept (`swept` names the fields)."""

    row: Row
    model: Model
    cluster: Cluster
    plans: tuple[Plan, ...]
    swept: tuple[str, ...]
    assumptions: tuple[str, ...]
    router_load: str | None = None  # how unevenly experts are chosen, where routing was real
    packed: bool = False  # from documents of unknown lengths, with no attention between them
    unread: tuple[str, ...] = ()  # cells that are not understood, and what they were taken for

    @property
    def plan(self) -> Plan:
        """The plan of a row that leaves nothing open; the first of the sweep otherwise."""
        return self.plans[0]


@dataclass(frozen=True, slots=True)
class Skip:
    """A row that gets no prediction, and why; `infeasible` where the layout itself says that it cannot run."""

    row: Row
    reason: str
    infeasible: bool = False


def case_of(row: Row) -> Case | Skip:
    """What to predict for one row, or why it cannot be."""
    try:
        return _case(row)
    except UnreadableError as reason:
        return Skip(row, str(reason))
    except LayoutError as error:
        return Skip(row, str(error), infeasible=True)
    except UserError as error:
        return Skip(row, str(error))


def _case(row: Row) -> Case:
    from windtunnel.studies.training.plan import Plan

    row = _with_batch(row)
    framework = wording.framework_of(row)
    model, assumed = _model(row)
    cluster, fabric_notes = cluster_of(row)
    row_fields, assumptions, unread = _plan_fields(row, framework, model)
    row_fields["precision"], instead = _able(str(row_fields["precision"]), cluster)
    if instead:
        row_fields["fp8_parameters"] = None if row_fields["precision"] == "bf16" else row_fields["fp8_parameters"]
        unread, assumptions = (*unread, instead), [*assumptions, instead]
    if assumed and assumed.endswith(AS_LLAMA):
        unread = (*unread, assumed)
    open_fields = dict(_open(row))
    if prod(map(len, open_fields.values())) > SWEPT_AT_MOST:
        raise UnreadableError(f"too much is unknown to sweep: {', '.join(open_fields)}")
    chosen = (dict(zip(open_fields, values, strict=True)) for values in product(*open_fields.values()))
    plans = tuple(Plan(**row_fields, **fields) for fields in chosen)
    swept = tuple(name for name, values in open_fields.items() if len(values) > 1)
    notes = (*fabric_notes, *((assumed,) if assumed else ()), *assumptions)
    if row.mtp_layers:
        model = model.with_changes(mtp_layers=row.mtp_layers)
    routed = wording.router_load_of(row)
    if routed:
        notes = (*notes, f"routing was real, and its loads are not stated: taken as --router-load {routed}")
    return Case(row, model, cluster, plans, swept, notes, routed, wording.is_packed(row), unread)


def _able(precision: str, cluster: Cluster) -> tuple[str, str]:
    """The row's format, or the next one that its GPU multiplies in, and a note."""
    from windtunnel.studies.training.plan import PEAK_DTYPE

    rates = cluster.gpu.flops_per_s
    if PEAK_DTYPE.get(precision, precision) in rates or precision not in (*PEAK_DTYPE, "fp16"):
        return precision, ""
    fewer = ("mxfp4", "nvfp4") if precision.endswith("fp4") else ()
    other = next(
        (dtype for dtype in (*fewer, "fp8-current", "mxfp8", "bf16") if PEAK_DTYPE.get(dtype, dtype) in rates), "bf16"
    )
    return other, f"{cluster.gpu.name} has no {precision} rate, taken as {other}"


def _need(row: Row, *names: str) -> None:
    absent = [name for name in names if getattr(row, name) in (None, "")]
    if absent:
        raise UnreadableError(f"not stated: {', '.join(absent)}")


def _model(row: Row) -> tuple[Model, str | None]:
    """The row's model, and what had to be assumed of it."""
    from windtunnel.physics.model import families

    if row.hidden is None and _catalogue_name(row):
        return _shipped(row), "sizes not stated, taken from the catalogue's model of that name"
    _need(row, "hidden", "layers", "heads", "ffn", "vocab", "seq_len")
    family = wording.family_of(row)
    if _catalogue_name(row) and (not row.model_family or family not in families()):
        try:
            return _shipped(row), None
        except UnreadableError:
            if family not in families() or row.moe:  # routing and latent attention are not what plain numbers say
                words = f"{row.model} with other sizes than the catalogue's, {AS_LLAMA}"
                return _from_numbers(row, "llama", None), words
    if family not in families():
        return _from_numbers(row, "llama", None), f"model family {row.model_family!r} not known, {AS_LLAMA}"
    tied = True if "tied embeddings" in row.notes.lower() else None
    model = _from_numbers(row, family, tied)
    if tied is None and row.params_b is not None:
        other = _from_numbers(row, family, not model.tied_embeddings)
        off, other_off = (abs(candidate.parameters / (row.params_b * 1e9) - 1) for candidate in (model, other))
        if off > COUNT_TOLERANCE and other_off < off / 2:
            return other, None
    return model, None


def _from_numbers(row: Row, family: str, tied: bool | None) -> Model:
    from windtunnel.physics.model import transformer

    experts = row.experts if row.moe else None
    return transformer(
        hidden=_int(row.hidden),
        layers=_int(row.layers),
        heads=_int(row.heads),
        vocab=_int(row.vocab),
        ffn=_int(row.ffn),
        kv_heads=row.kv_heads,
        head_dim=row.head_dim,
        gated=None if row.gated_mlp is None else bool(row.gated_mlp),
        experts=experts,
        topk=row.topk if experts else None,
        shared_size=row.shared_ffn or 0 if experts else 0,
        family=family,
        name=row.model or None,
        max_sequence_length=_int(row.seq_len),
        tied_embeddings=tied,
    )


def _catalogue_name(row: Row) -> str | None:
    """The catalogue's name of the row's model; None where it has none."""
    from windtunnel.physics.model import catalogue_names

    text = row.model.lower()
    same = re.search(r"\((.+) shape\)", text)
    name = re.sub(r"[\s_]+", "-", (same[1] if same else text.partition("(")[0]).strip()).removesuffix("-2-node")
    # Tables add the size to a name that already says which model it is: DeepSeek-V3-671B.
    shorter = re.sub(r"-\d+(\.\d+)?b(-a\d+(\.\d+)?b)?$", "", name)
    return next((word for word in (name, shorter) if word in catalogue_names()), None)


def _shipped(row: Row) -> Model:
    """The catalogue's model of that name, for families that plain numbers cannot describe (MLA, mixed layers)."""
    from windtunnel.physics.model import load_model

    name = _catalogue_name(row)
    assert name is not None  # has been asked
    model = load_model(name).with_changes(mtp_layers=0)  # trained where the row says so
    last = model.layers[-1]  # of the repeated kind; DeepSeek's first ones are dense
    block = last.feed_forward
    if row.hidden is None:
        return model
    shape: tuple[object, ...] = (model.hidden_size, last.attention.heads, block.kind == "moe")
    stated: tuple[object, ...] = (row.hidden, row.heads, row.moe)
    if row.moe:
        shape, stated = (*shape, block.experts, block.experts_per_token), (*stated, row.experts, row.topk)
    if shape != stated or row.ffn not in {layer.feed_forward.size for layer in model.layers}:
        raise UnreadableError(f"{row.model}: the row's shape is not that of the catalogue's {model.name}")
    # Depth-reduced proxies and smaller vocabularies keep everything else.
    return model.with_changes(
        layers=row.layers, vocab_size=row.vocab, max_sequence_length=max(model.max_sequence_length, _int(row.seq_len))
    )


def _plan_fields(row: Row, framework: str, model: Model) -> tuple[dict[str, Any], list[str], tuple[str, ...]]:
    """Plan fields that the row settles, what had to be assumed for that, and which cells are not understood."""
    _need(row, "tp", "pp", "n_gpus", "seq_len", "precision", "global_batch")
    assumptions = _check_batch(row)
    fields: dict[str, Any] = {
        "framework": framework,
        "release": wording.release_of(row),
        "tp": row.tp,
        "pp": row.pp,
        "cp": row.cp or 1,
        "dp": row.dp,
        "seq_len": row.seq_len,
        "global_batch": row.global_batch,
        "precision": wording.precision_of(row),
        "fp8_parameters": wording.gathers_fp8(row, framework),
        "attention_impl": wording.attention_of(row),
        "loss": wording.loss_of(row),
        "etp": wording.expert_tensor_of(row),
    }
    adapters, unsaid = wording.adapters_of(row)
    fields.update(adapters)
    assumptions += unsaid
    if wording.is_packed(row):
        assumptions.append(
            "lengths of packed documents not stated: from none of the attention to that of whole sequences"
        )
    stated, unread = wording.columns_of(row)
    fields.update({"optimizer_dtype": stated["optimizer_dtype"]} if "optimizer_dtype" in stated else {})
    fields.update(wording.fields_of_notes(row))
    fields.update(_columns(row) | stated)
    assumptions += unread
    if not row.framework:
        assumptions.append(f"framework not stated, taken as {framework}")
    if not row.offload:
        assumptions.append("offload not stated, taken as none")
    if row.cp is None and row.tp and row.pp and row.dp and row.n_gpus != row.tp * row.pp * row.dp:
        raise UnreadableError("context-parallel degree not stated")
    if framework == "nanotron":
        fields["layers_per_stage"] = layers_per_stage(model, _int(row.pp))
    return fields, assumptions, tuple(unread)


def _columns(row: Row) -> dict[str, object]:
    """Plan fields that have a column of their own."""
    stated: dict[str, object] = {name: bool(getattr(row, name)) for name in SWITCHES if getattr(row, name) is not None}
    if row.bucket_parameters is not None:
        stated["bucket_parameters"] = row.bucket_parameters
    if row.etp is not None and row.moe:
        stated["etp"] = row.etp
    return stated


def _with_batch(row: Row) -> Row:
    """The row with its batch, where its parts say it."""
    parts = (row.micro_batch, row.grad_accum, row.dp)
    return replace(row, global_batch=prod(map(_int, parts))) if row.global_batch is None and None not in parts else row


def _check_batch(row: Row) -> list[str]:
    """Refuses a batch that does not add up; where only the accumulation steps do not, the batch counts."""
    parts = (row.micro_batch, row.grad_accum, row.dp)
    if None not in parts and row.global_batch is not None:
        whole = _int(row.micro_batch) * _int(row.grad_accum) * _int(row.dp)
        if whole != row.global_batch and row.global_batch % (_int(row.micro_batch) * _int(row.dp)) == 0:
            return [f"grad_accum {row.grad_accum} does not agree with global_batch {row.global_batch}, which is taken"]
        if whole != row.global_batch:
            raise UnreadableError(
                f"micro_batch {row.micro_batch} x grad_accum {row.grad_accum} x dp {row.dp} = {whole}, "
                f"but global_batch is {row.global_batch}"
            )
    return []


def _open(row: Row) -> Iterable[tuple[str, Sequence[Any]]]:
    """Fields with the values they may have: one value where the row knows."""
    laid_out = wording.columns_of(row)[0].get("layers_per_stage")
    if isinstance(laid_out, tuple):
        yield "virtual_stages", (len(laid_out) // _int(row.pp),)
    else:
        vpp = row.vpp if row.vpp is None or (row.pp or 1) > 1 else 1
        yield "virtual_stages", _interleavings(_int(row.layers), row.pp or 1) if vpp is None else (vpp,)
    yield "micro_batch", _micro_batches(row) if row.micro_batch is None else (row.micro_batch,)
    yield "zero_stage", (0, 1) if row.zero_stage is None else (row.zero_stage,)
    if (row.tp or 1) == 1:
        yield "sequence_parallel", (False,)
    else:
        yield "sequence_parallel", (True, False) if row.sp is None else (bool(row.sp),)
    yield "ep", (row.ep or 1 if row.moe else 1,) if row.ep is not None or not row.moe else _expert_degrees(row)
    if wording.shards_unknown(row):
        yield "shard_group", tuple(sorted({min(row.gpus_per_node or 8, _replicas(row)), _replicas(row)}))
    yield "recompute", wording.recomputes_of(row)[0]
    yield "task", wording.tasks_of(row)
    yield from wording.recipe_choices(row).items()


def _interleavings(layers: int, pp: int) -> tuple[int, ...]:
    if pp == 1:
        return (1,)
    # Even stages, or even with embedding and head counted as a layer each, as Megatron-Core lays them out.
    sizes = [v for v in (1, 2, 3, 4, 5, 6, 8, 12) if layers % (pp * v) == 0 or (layers + 2) % (pp * v) == 0]
    return tuple(sizes[:4]) or (1,)


def _replicas(row: Row) -> int:
    """Data-parallel ranks, context-parallel ones among them."""
    return max(1, _int(row.n_gpus) // (_int(row.tp) * _int(row.pp)))


def _expert_degrees(row: Row) -> tuple[int, ...]:
    """Cut over a node, and over all ranks that there are experts for; not cut, unless DeepEP took tokens to others."""
    ranks = _int(row.tp) * _replicas(row)
    widest = next(size for size in range(min(ranks, _int(row.experts)), 0, -1) if _fits(row, size, ranks))
    node = min(row.gpus_per_node or 8, widest)
    least = widest if "deepep" in (row.attention_impl or "").lower() else 1
    return tuple(sorted({least, widest, node if _fits(row, node, ranks) else least}))


def _fits(row: Row, size: int, ranks: int) -> bool:
    return ranks % size == 0 and _int(row.experts) % size == 0


def _micro_batches(row: Row) -> tuple[int, ...]:
    dp = row.dp or _int(row.n_gpus) // (_int(row.tp) * _int(row.pp) * (row.cp or 1))
    if dp < 1 or _int(row.global_batch) % dp:
        raise UnreadableError(f"global_batch {row.global_batch} cannot be cut over {dp} data-parallel ranks")
    share = _int(row.global_batch) // dp
    return tuple(size for size in (1, 2, 4, 8) if share % size == 0)


def _int(value: int | None) -> int:
    assert value is not None  # _need has been asked
    return value
