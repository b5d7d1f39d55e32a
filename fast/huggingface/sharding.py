"""Which KV heads of a model this process holds: tensor parallelism, as transformers does it.

Every process keeps, scores and evicts the entries of its own heads. Nothing is exchanged for that,
so a policy whose heads decide together cannot run.
"""

from dataclasses import dataclass
from typing import Any

from kvlab.fast.engine.policy import Policy


@dataclass(frozen=True)
class Shard:
    """One of ``processes`` equal parts of the KV heads of every layer."""

    rank: int
    processes: int
    heads: int
    """KV heads of the whole model."""

    def first_head(self, held: int) -> int:
        """Return the number of the first of the ``held`` heads; 0 if that is all of them."""
        return self.rank * held if held < self.heads else 0


WHOLE = Shard(rank=0, processes=1, heads=0)
"""All heads in one process, however many there are."""


def kv_heads(config: Any) -> int:
    """Return the KV heads of every layer of a model of transformers."""
    text = config.get_text_config(decoder=True)
    return getattr(text, "num_key_value_heads", None) or text.num_attention_heads


def shard_of(model: Any) -> Shard:
    """Return the part of the model's KV heads that this process holds.

    Raises:
        ValueError: if the heads cannot be shared out evenly.
    """
    processes, mesh = getattr(model, "_tp_size", None), getattr(model, "_device_mesh", None)
    if processes is None or processes == 1 or mesh is None:
        return WHOLE
    heads = kv_heads(model.config)
    check_divisible(heads, processes)
    return Shard((mesh["tp"] if mesh.ndim > 1 else mesh).get_local_rank(), processes, heads)


def check_divisible(heads: int, processes: int) -> None:
    """Raise ValueError if so many KV heads cannot be shared out among the processes."""
    if heads % processes:
        raise ValueError(
            f"{processes} processes cannot share {heads} KV heads: their number must divide it"
        )


def check_heads(policy: Policy, shard: Shard) -> None:
    """Raise ValueError if heads in different processes would have to decide together."""
    if shard.processes > 1 and policy.couples_heads:
        raise ValueError(
            f"{policy.name} lets the KV heads of a layer decide together, and tensor parallelism "
            f"has them in {shard.processes} processes: take an option that decides per KV head, "
            "if there is one (kvlab methods NAME --divergences), or another method"
        )
