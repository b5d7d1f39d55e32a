"""What ``additional_config`` says, and what is refused before the model loads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.port import port
from kvlab.fast.engine.serving import Holding
from kvlab.fast.vllm import CONNECTOR, SCHEDULER, asked_of, points
from kvlab.reference import methods, policy as reference
from kvlab.reference.granularity import Pages

FLAG = f'--kv-transfer-config \'{{"kv_connector": "{CONNECTOR}", "kv_role": "kv_both"}}\''

EXAMPLE = '{"kvlab": {"method": "caote:h2o", "budget": 1024}}'


class UnsupportedError(ValueError):
    """A configuration of vLLM in which kvlab cannot evict blocks, or was never tried."""


@dataclass(frozen=True)
class Settings:
    """What to evict by."""

    method: str
    """In registry syntax, with ``page`` and ``kv_heads``."""
    budget: int
    """Entries that are kept, which `blocks` counts in whole blocks of ``block`` tokens."""
    block: int
    longest: int
    in_flight: int
    """Steps that may be scheduled before what an earlier one evicted is known."""
    prompt_block: int
    """Tokens of a prompt that are read as one block, as in `kvlab.compress`; no chunk of vLLM's
    crosses its end. ``longest``: a prompt is read whole."""

    @cached_property
    def specification(self) -> reference.Policy:
        """The policy, written as in the reference."""
        return methods.get(self.method, self.budget)

    @cached_property
    def policy(self) -> Policy:
        """The policy in PyTorch."""
        return port(self.specification)

    @property
    def blocks(self) -> int:
        """Blocks that a request keeps after a decision; the one that is being written counts."""
        return self.budget // self.block

    @cached_property
    def holding(self) -> Holding:
        """How many blocks texts hold."""
        given = self.block, self.blocks, self.prompt_block, self.in_flight
        return Holding(self.specification.schedule, *given)

    @property
    def per_layer(self) -> bool:
        """Whether each layer decides by itself, and has a table of blocks."""
        return not self.policy.joins_layers


def settings_of(config: Any) -> Settings | None:
    """Return what vLLM's configuration asks of kvlab; None if nothing.

    ValueError if it asks for what is not there, or cannot work; `UnknownVersionError` as `points`.
    """
    asked = asked_of(config)
    if asked is None:
        return None
    points.check()
    if not isinstance(asked, Mapping) or {*asked} - {"block_size"} != {"method", "budget"}:
        raise UnsupportedError(
            f'kvlab = {asked!r} must have a "method" and a "budget", and may have a "block_size", '
            'as in {"method": "caote:h2o", "budget": 1024}'
        )
    for reason in refusals(config):
        raise UnsupportedError(f"kvlab: {reason}")
    block, longest = config.cache_config.block_size, config.model_config.max_model_len
    given = completed(asked["method"], block), asked["budget"], block, longest
    in_flight = int(bool(config.scheduler_config.async_scheduling))
    settings = Settings(*given, in_flight, prompt_block(asked, config))
    check_policy(settings, config.cache_config.enable_prefix_caching)
    return settings


def prompt_block(asked: Mapping[str, Any], config: Any) -> int:
    """Return how many tokens of a prompt are read as one block; ValueError for what cannot be."""
    block, longest = config.cache_config.block_size, config.model_config.max_model_len
    size = asked.get("block_size", longest)
    if "block_size" in asked:
        if not isinstance(size, int) or isinstance(size, bool) or size < block or size % block:
            raise UnsupportedError(
                f"block_size = {size!r} must be a multiple of {block}, the tokens of vLLM's blocks"
            )
        if config.scheduler_config.scheduler_cls != SCHEDULER:
            raise UnsupportedError(f"block_size = {size} needs --scheduler-cls {SCHEDULER}")
    return size


def completed(method: str, block: int) -> str:
    """Return the method with options that tables of blocks allow; ValueError for others."""
    spec = methods.variants().get(method, method)
    composition, _, written = spec.partition("@")
    given = methods.read_options(spec, written)
    allowed = {"page": (block,), "kv_heads": ("model", "layer", "union")}
    for option, values in allowed.items():
        if given.setdefault(option, values[0]) not in values:
            raise UnsupportedError(
                f"{option} = {given[option]!r} of {method} must be "
                f"{' or '.join(map(repr, values))}: vLLM's tables have blocks of {block} tokens"
            )
    return f"{composition}@" + ",".join(f"{k}={v}" for k, v in given.items())


def check_policy(settings: Settings, prefixes: bool) -> None:
    """Raise ValueError unless vLLM can evict by it; ``prefixes``: whether its cache is searched."""
    policy, ours, longest = settings.specification, settings.policy, settings.longest
    in_blocks = settings.prompt_block < longest > settings.budget
    for wrong, must in (
        (not isinstance(policy.budget, Pages), "evict whole blocks down to a budget"),
        (policy.evict_before_attend or policy.reposition, "attend first and leave positions"),
        (ours.precision.quantises, "leave the precision as it is: vLLM stores entries"),
        (ours.needs.of_models, "read keys and queries alone"),
        (in_blocks and not settings.holding.within(longest), "evict within prompts for block_size"),
        (settings.per_layer and prefixes, "have kv_heads=model, or --no-enable-prefix-caching"),
    ):
        if wrong:
            raise UnsupportedError(f"method = {settings.method!r} must {must}")


def refusals(config: Any) -> Iterator[str]:
    """Yield why vLLM's configuration is refused."""
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    if getattr(config.kv_transfer_config, "kv_connector", None) != CONNECTOR:
        yield f"what is evicted reaches the scheduler through a connector, which needs {FLAG}"
    if config.speculative_config is not None:
        yield "speculative decoding takes tokens back, and evicted blocks do not come back"
    if model.get_total_num_kv_heads() % parallel.tensor_parallel_size:
        yield f"tensor_parallel_size = {parallel.tensor_parallel_size} must divide the KV heads"
    for kind in ("pipeline", "data", "decode_context", "prefill_context"):
        if getattr(parallel, f"{kind}_parallel_size", 1) > 1:
            yield f"{kind}_parallel_size must be 1: a decision needs all layers, heads and entries"
    if cache.cache_dtype not in ("auto", "float16", "bfloat16", "float32"):
        yield f"kv_cache_dtype = {cache.cache_dtype!r} must be auto, or 16 or 32 bits wide"
    if model.use_mla:
        yield f"{model.model} has MLA, whose latent vectors no score reads"
    if model.is_hybrid or model.is_encoder_decoder or model.runner_type != "generate":
        yield f"{model.model} must have attention layers alone, in a decoder that writes text"
    graphs = getattr(config.compilation_config.cudagraph_mode, "name", "NONE")
    if config.device_config.device_type != "cpu" and "FULL" in graphs:
        yield f"cudagraph_mode = {graphs} must be PIECEWISE or NONE: tables change between layers"
