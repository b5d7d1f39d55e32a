"""Block-wise prefill and decoding of the NumPy transformer under a policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvlab.reference.attention import group_heads
from kvlab.reference.cache import LayerCache
from kvlab.reference.checks import check_at_least
from kvlab.reference.notation import Array, Float
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Policy
from kvlab.reference.step import Block, StepResult, apply_together, empty_cache, look, step
from kvlab.reference.transformer import Transformer

Watch = Callable[[Block, StepResult], None]
"""Called after every step of every layer."""


@dataclass(frozen=True)
class Session:
    """The state of one sequence between two blocks; `advance` returns the next session."""

    model: Transformer = field(repr=False)
    policy: Policy
    caches: tuple[LayerCache, ...] = field(repr=False)
    prompt: int
    """Tokens of the prompt."""
    confidence: Float[Array, " t"] = field(repr=False)
    """Per token seen: the largest probability of its distribution; NaN for given tokens."""

    @property
    def seen(self) -> int:
        """Tokens seen so far."""
        return len(self.confidence)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all layers as stored."""
        return sum(cache.nbytes for cache in self.caches)


@dataclass(frozen=True)
class Generation:
    """What `generate` wrote."""

    tokens: tuple[int, ...]
    session: Session


def start(model: Transformer, policy: Policy, prompt: int) -> Session:
    """Return an empty session for a prompt of ``prompt`` tokens."""
    policy.check(prompt)
    config = model.config
    caches = [empty_cache(policy, config.kv_heads, config.head_dim) for _ in range(config.layers)]
    return Session(model, policy, tuple(caches), prompt, np.zeros(0))


def advance(
    session: Session, tokens: Sequence[int], confidence: float = np.nan, watch: Watch | None = None
) -> tuple[Float[Array, "m vocab"], Session]:
    """Feed a block of token ids; return the logits after each, and the next session.

    The given session is left as it is, also if this step fails. ``confidence`` is the largest
    probability of the distribution that produced the tokens.
    """
    model, m = session.model, len(tokens)
    confidences = np.concatenate([session.confidence, np.full(m, confidence)])
    clock = Clock(seen=session.seen + m, block=m, prompt=session.prompt)
    caches, waiting = list(session.caches), []

    def attend(layer: int, queries: Array, keys: Array, values: Array, hidden: Array) -> Array:
        grouped = group_heads(queries, len(keys))
        given = clock, layer, grouped, keys, values, confidences, model.rotate
        own = model.projection(layer)
        block = Block(*given, hidden_states=hidden, layers=len(caches), projection=own)
        if session.policy.score.joins_layers:
            waiting.append((block, look(session.policy, caches[layer], block)))
            return waiting[-1][1].output.reshape(queries.shape)
        result = step(session.policy, caches[layer], block)
        end(block, result)
        return result.output.reshape(queries.shape)

    def end(block: Block, result: StepResult) -> None:
        caches[block.layer] = result.cache
        if watch is not None:
            watch(block, result)

    logits = model.forward(np.asarray(tokens, dtype=np.int64), session.seen, attend)
    if waiting:
        blocks, looked = zip(*waiting, strict=True)
        for block, result in zip(blocks, apply_together(session.policy, looked), strict=True):
            end(block, result)
    return logits, replace(session, caches=tuple(caches), confidence=confidences)


def prefill(
    model: Transformer,
    policy: Policy,
    prompt: Sequence[int],
    block_size: int | None = None,
    watch: Watch | None = None,
) -> tuple[Float[Array, " vocab"], Session]:
    """Feed the prompt in blocks of ``block_size`` tokens, or at once; return the last logits.

    Raises:
        ValueError: if the prompt is empty or ``block_size`` is below 1.
    """
    if len(prompt) == 0:
        raise ValueError("prompt must hold at least one token")
    size = len(prompt) if block_size is None else block_size
    check_at_least(1, block_size=size)
    session = start(model, policy, len(prompt))
    logits = np.zeros((1, model.config.vocab_size))
    for first in range(0, len(prompt), size):
        logits, session = advance(session, prompt[first : first + size], watch=watch)
    return logits[-1], session


def generate(
    model: Transformer,
    policy: Policy,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    block_size: int | None = None,
    watch: Watch | None = None,
    solution: Sequence[int] | None = None,
) -> Generation:
    """Continue a prompt greedily, or by sampling at a temperature above 0.

    All tokens are ids. The text ends with the token ``stop``, or with the first one that differs
    from the ``solution``; the prompt is read as by `prefill`.

    Raises:
        ValueError: on a negative temperature or number of tokens, and as `prefill`.
    """
    check_at_least(0, max_new_tokens=max_new_tokens, temperature=temperature)
    rng = np.random.default_rng(seed)
    logits, session = prefill(model, policy, prompt, block_size, watch)
    written: list[int] = []
    while len(written) < max_new_tokens:
        token, confidence = choose(logits, temperature, rng)
        written.append(token)
        if token == stop or len(written) == max_new_tokens:
            break
        if solution is not None and list(solution[: len(written)]) != written:
            break
        rows, session = advance(session, [token], confidence, watch)
        logits = rows[-1]
    return Generation(tuple(written), session)


def choose(
    logits: Float[Array, " vocab"], temperature: float, rng: np.random.Generator
) -> tuple[int, float]:
    """Return the next token and the largest probability of its distribution at temperature 1."""
    probabilities = np.exp(log_softmax(logits))
    confidence = float(probabilities.max())  # [DesireKV 9]
    if temperature == 0:
        return int(logits.argmax()), confidence
    weights = np.exp(log_softmax(logits / temperature))
    return int(rng.choice(len(logits), p=weights / weights.sum())), confidence


def log_softmax(logits: Float[Array, "... vocab"]) -> Float[Array, "... vocab"]:
    """Logarithm of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
