"""A config's fields, each read once with its type and range, so that what nobody read can be refused.

A reader asks for the fields that decide shapes. What it did not ask for is one of three: known to change no shape, and
ignored; unknown but null or false, and left out with a note; unknown with any other value, and an error: a field that
is silently ignored is a prediction that is silently wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from windtunnel.errors import SpecError
from windtunnel.physics.model.limits import SIZE_MAX, counted, showable

T = TypeVar("T")

_MISSING: object = object()

# Change no tensor shape and no matrix product, in any architecture read here.
# fmt: off
IRRELEVANT = frozenset((
    # what the file is about, and how the checkpoint is stored: the plan decides the precision of a run
    "architectures", "auto_map", "model_type", "torch_dtype", "dtype", "transformers_version", "quantization_config",
    "name_or_path", "problem_type", "task_specific_params", "id2label", "label2id",
    # token ids, tokenisation and generation
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id",
    "forced_eos_token_id", "use_cache", "generation_config", "cache_implementation", "return_dict", "output_attentions",
    "output_hidden_states", "output_router_logits", "output_scores", "return_dict_in_generate", "tokenizer_class",
    "diversity_penalty", "encoder_no_repeat_ngram_size", "length_penalty", "max_length", "min_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "repetition_penalty", "temperature",
    "top_k", "top_p", "typical_p", "do_sample", "early_stopping",
    # initialisation and dropout
    "initializer_range", "initializer_factor", "attention_dropout", "hidden_dropout", "hidden_dropout_prob",
    "classifier_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "emb_pdrop", "attention_probs_dropout_prob",
    # numerics, and how rotary angles are computed
    "rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta", "rope_scaling", "rope_parameters",
    "rope_interleave", "rotary_emb_base", "rotary_pct", "partial_rotary_factor", "pretraining_tp",
    # how a router weighs and balances, which moves no more and no fewer tokens in the mean
    "router_aux_loss_coef", "router_jitter_noise", "aux_loss_alpha", "seq_aux", "norm_topk_prob", "scoring_func",
    "routed_scaling_factor",
    # how the model is run, not what it is
    "gradient_checkpointing", "attn_implementation", "chunk_size_feed_forward", "swiglu_alpha", "swiglu_limit",
    # GPT-2's classification head
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
))
# Say nothing at these values, which transformers 5 writes into every config, and another model at any other.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,), "is_decoder": (False, True), "add_cross_attention": (False,), "pruned_heads": ({},),
    "use_bidirectional_attention": (False,), "cross_attention_hidden_size": (),
}
# fmt: on


class Fields:
    """Typed access to one config mapping. Every getter marks its key as read; `close` refuses what was not.

    A null in JSON counts as absent. All getters raise SpecError naming field, value and remedy.
    """

    def __init__(self, config: Mapping[str, object], where: str | None = None, prefix: str = "") -> None:
        self._config, self.where, self.prefix = config, where, prefix
        self._read: set[str] = set()
        for key in config:
            if not isinstance(key, str):
                raise SpecError("config", showable(key), "use text for the names of fields", where)

    def _get(self, key: str) -> object:
        self._read.add(key)
        value = self._config.get(key)
        return _MISSING if value is None else value

    def refuse(self, key: str, value: object, remedy: str) -> SpecError:
        """The error to raise about `key`."""
        return SpecError(self.prefix + key[:80], showable(value), remedy, self.where)

    def has(self, key: str) -> bool:
        """Whether the config gives `key` a value other than null."""
        return self._config.get(key) is not None

    def raw(self, key: str) -> object:
        """The field as it stands."""
        return self._config.get(key)

    def names(self) -> tuple[str, ...]:
        """The fields there are."""
        return tuple(self._config)

    def given(self, key: str) -> bool:
        """Whether the config names `key` at all, be it with null."""
        return key in self._config

    def count(
        self,
        key: str,
        default: int | None = None,
        *,
        most: int = SIZE_MAX,
        least: int = 1,
        what: str = "a whole number",
    ) -> int:
        """A whole number; without a default the field is required, and an error says to give `what`."""
        value = self._get(key)
        if value is _MISSING:
            if default is None:
                raise self.refuse(key, None, f"the model needs this field: give {what}")
            value = default
        return counted(self.prefix + key, value, most, least=least, where=self.where)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key)
        if value is _MISSING:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, value, "give true or false")
        return value

    def choice(self, key: str, default: str, known: tuple[str, ...]) -> str:
        """One of a few words."""
        value = self._get(key)
        if value is _MISSING:
            return default
        if not isinstance(value, str) or value not in known:
            raise self.refuse(key, value, f"give one of {', '.join(known)}")
        return value

    def must_be(self, key: str, allowed: tuple[object, ...], why: str) -> None:
        """Accept the field only where it is absent or holds a value that changes nothing."""
        value = self._get(key)
        if value is not _MISSING and not any(type(value) is type(a) and value == a for a in allowed):
            shown = " or ".join(str(a).lower() if isinstance(a, bool) else str(a) for a in allowed)
            raise self.refuse(key, value, f"{why}; give {shown}, or remove the field")

    def words(self, key: str, n: int, known: tuple[str, ...]) -> tuple[str, ...] | None:
        """A list of `n` words out of `known`; None where absent."""

        def word(item: object) -> str:
            if not isinstance(item, str) or item not in known:
                raise self.refuse(key, item, f"use only {', '.join(known)}")
            return item

        return self._list(key, n, word)

    def inner(self, key: str, *, required: bool = False) -> Fields:
        """A nested object as Fields of its own; empty where absent and not required."""
        value = self._get(key)
        if value is _MISSING:
            if required:
                raise self.refuse(key, None, "the model needs this object")
            value = {}
        if not isinstance(value, Mapping):
            raise self.refuse(key, value, "give an object with fields of its own")
        return Fields(value, self.where, f"{self.prefix}{key}.")

    def ignore(self, *keys: str) -> None:
        """Fields that change no shape in this architecture."""
        self._read.update(keys)

    def close(self) -> tuple[str, ...]:
        """Refuse any field that no reader asked for and that may change the answer; `_...` are comments.

        A field that nobody knows and that is null or false asks for nothing: it is left out, and a note says so.
        """
        unknown = sorted(k for k in self._config if k not in self._read and k not in IRRELEVANT and k[:1] != "_")
        unread = [k for k in unknown if self._config[k] is not None and self._config[k] is not False]
        unread = [k for k in unread if self._config[k] not in NEUTRAL.get(k, ())]
        if unread:
            more = f" (also unknown: {', '.join(key[:80] for key in unread[1:6])})" if unread[1:] else ""
            remedy = "this field is not understood for this model_type; if it changes no tensor shape, remove it" + more
            raise self.refuse(unread[0], self._config[unread[0]], remedy)
        unset = ", ".join(self.prefix + key[:80] for key in unknown if key not in NEUTRAL)
        return (f"fields of the config that are not known, null or false, and left out: {unset}",) if unset else ()

    def _list(self, key: str, n: int | None, item: Callable[[object], T]) -> tuple[T, ...] | None:
        value = self._get(key)
        if value is _MISSING:
            return None
        if not isinstance(value, list | tuple):
            raise self.refuse(key, value, "give a list")
        if n is not None and len(value) != n:
            raise self.refuse(key, value, f"the list has {len(value)} entries: give one per layer, {n}")
        return tuple(item(entry) for entry in value)
