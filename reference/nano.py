"""KV-cache compression in one file: ``python -m kvlab.reference.nano``.

A language model keeps a key and a value of every token that it has read: the KV cache, which on
long texts is larger than the model. A compression method evicts entries of it. Each method answers
the same four questions: what is an entry worth (score), when does eviction happen (schedule), which
entries are protected, and how precisely is the rest kept (precision)? Read from top to bottom, all
in NumPy: a model, its cache and the step that all methods share, the methods, who solves what.

G: KV heads, each read by rho query heads. n: entries of the cache. m: tokens of a block, which is
the whole prompt and then one token at a time. d: channels. t: tokens seen so far.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

Array = np.ndarray

# --- 1. A model ----------------------------------------------------------------------------------


def softmax(x: Array, allowed: Array | bool = True) -> Array:
    """Return e^x / Σ e^x over the last axis, among what is allowed."""
    x = np.where(allowed, x, -np.inf)
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


class Model:
    """A decoder of the Llama family, read from a Hugging Face directory."""

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text())
        self.layers, self.d = config["num_hidden_layers"], config["head_dim"]
        self.heads, self.G = config["num_attention_heads"], config["num_key_value_heads"]
        self.eps, theta = config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]
        self.frequencies = (theta ** (-np.arange(0, self.d, 2) / self.d)).astype(np.float32)
        self.weights = read_safetensors(directory / "model.safetensors")
        self.vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]

    def tokens(self, text: str) -> list[int]:
        """Return the numbers of the words of a text."""
        return [self.vocabulary[word] for word in text.split(" ")]

    def forward(self, tokens: list[int], attend: Callable[..., Array], first: int) -> Array:
        """Return the logits after a block; attend(layer, q [G, rho, m, d], k and v [G, m, d])."""
        m, embedding = len(tokens), self.weights["model.embed_tokens.weight"]
        angles = np.arange(first, first + m, dtype=np.float32)[:, None] * self.frequencies
        x = embedding[tokens]
        for layer in range(self.layers):
            part = f"model.layers.{layer}"
            h = self.norm(x, f"{part}.input_layernorm")
            qkv = (self.linear(h, f"{part}.self_attn.{name}_proj") for name in "qkv")
            q, k, v = (each.reshape(m, -1, self.d).swapaxes(0, 1) for each in qkv)
            q = rotate(q, angles).reshape(self.G, -1, m, self.d)
            heads = attend(layer, q, rotate(k, angles), v)
            heads = heads.reshape(self.heads, m, self.d).swapaxes(0, 1).reshape(m, -1)
            x = x + self.linear(heads, f"{part}.self_attn.o_proj")
            h = self.norm(x, f"{part}.post_attention_layernorm")
            gate = self.linear(h, f"{part}.mlp.gate_proj")
            up = self.linear(h, f"{part}.mlp.up_proj")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, f"{part}.mlp.down_proj")
        return self.norm(x[-1], "model.norm") @ embedding.T

    def linear(self, x: Array, name: str) -> Array:
        """Return x·Wᵀ."""
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, x: Array, name: str) -> Array:
        """Divide by the root of the mean square."""
        size = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        return x / size * self.weights[f"{name}.weight"]


def rotate(x: Array, angles: Array) -> Array:
    """Turn the channels c and c + d/2 by the angle of the token's position (RoPE)."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles, dtype=np.float64), np.sin(angles, dtype=np.float64)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def read_safetensors(path: Path) -> dict[str, Array]:
    """Read a file of float32 tensors: a length, a header in JSON, and the numbers."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    numbers, tensors = np.frombuffer(raw[start:], dtype="<f4"), {}
    for name, about in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            first, last = (offset // 4 for offset in about["data_offsets"])
            tensors[name] = numbers[first:last].reshape(about["shape"]).astype(np.float64)
    return tensors


# --- 2. The cache, and the step that all methods share -------------------------------------------


class Layer:
    """The cache of one layer, in the order of the text, and what the newest block saw there."""

    def __init__(self, model: Model, method: "Method", number: int, prompt: int) -> None:
        G, H, d = model.G, model.heads, model.d
        self.number, self.prompt, self.t, self.generated = number, prompt, 0, -prompt
        self.keys = self.values = np.zeros((G, 0, d))
        self.positions = np.zeros((G, 0), dtype=int)  # places of the entries in the text
        self.state = {name: np.zeros((G, 0)) for name in method.columns}  # a number per entry
        self.queries = np.zeros((G, H // G, 0, d))  # the newest ones
        self.attention = np.zeros((G, H // G, 0, 0))  # of the block, [G, rho, m, n]
        self.confidence = np.zeros(0)  # the probability of each token; NaN: of the prompt

    def logits(self, queries: Array) -> Array:
        """Return q·k/√d of the queries and all keys."""
        return queries @ self.keys[:, None].swapaxes(-1, -2) / np.sqrt(queries.shape[-1])


def step(method: "Method", layer: Layer, q: Array, k: Array, v: Array) -> Array:
    """Append a block, attend, observe and, if it is time, evict. Return the attention's output."""
    G, m, _ = k.shape
    block = np.arange(layer.t, layer.t + m)
    layer.t, layer.generated = layer.t + m, layer.generated + m
    new = (layer.keys, k), (layer.values, v), (layer.positions, np.tile(block, (G, 1)))
    layer.keys, layer.values, layer.positions = (np.concatenate(x, axis=1) for x in new)
    for name, numbers in layer.state.items():
        layer.state[name] = np.concatenate([numbers, np.zeros((G, m))], axis=1)
    layer.queries = np.concatenate([layer.queries, q], axis=2)[:, :, -method.rows :]
    layer.attention = softmax(layer.logits(q), layer.positions[:, None, None] <= block[:, None])
    output = layer.attention @ layer.values[:, None]
    method.observe(layer)
    if method.due(layer):
        keep = method.store(layer, keep_set(method, layer))
        kept = np.arange(G)[:, None], np.nonzero(keep)[1].reshape(G, -1)  # heads, and places
        layer.keys, layer.values = layer.keys[kept], layer.values[kept]
        layer.positions = layer.positions[kept]
        for name, numbers in layer.state.items():
            layer.state[name] = numbers[kept]
    return output


def keep_set(method: "Method", layer: Layer) -> Array:
    """Mark what stays: the protected entries and the best of the others; of equals the later."""
    protected = method.protected(layer)
    keep = np.ones_like(protected)
    leave = int((~protected[0]).sum()) - method.room(protected)
    if leave > 0:
        worst_first = np.lexsort((method.score(layer), protected), axis=-1)
        np.put_along_axis(keep, worst_first[:, :leave], False, axis=-1)
    return keep


# --- 3. The methods ------------------------------------------------------------------------------


class Method:
    """Four answers; as they stand here, they keep everything."""

    columns: tuple[str, ...] = ()  # what is remembered of every entry

    def __init__(self, budget: int = 0, recent: int = 0, rows: int = 1) -> None:
        self.budget, self.recent, self.rows = budget, recent, rows  # rows: queries to remember

    def due(self, layer: Layer) -> bool:
        """When does eviction happen? After every block, if there is a budget."""
        return self.budget > 0

    def protected(self, layer: Layer) -> Array:
        """Which entries must stay? The newest."""
        n = layer.positions.shape[1]
        return np.broadcast_to(np.arange(n) >= n - self.recent, layer.positions.shape)

    def room(self, protected: Array) -> int:
        """How many others stay? As many as the budget leaves."""
        return self.budget - int(protected[0].sum())

    def observe(self, layer: Layer) -> None:
        """Take note of a block's attention."""

    def score(self, layer: Layer) -> Array:
        """What is an entry worth? ``[G, n]``; the highest stay. By default, its retention."""
        return self.retention(layer).mean(axis=1)

    def retention(self, layer: Layer) -> Array:
        """Return rows in proportion to attention, ``[G, rows, n]``; CAOTE is applied to them."""
        raise NotImplementedError

    def store(self, layer: Layer, keep: Array) -> Array:
        """How precisely is it kept? As it is. Return what is kept, perhaps with more entries."""
        return keep


class Random(Method):
    """The control: a draw. A score is worth its work if it beats a draw under equal protection."""

    def score(self, layer: Layer) -> Array:
        def scattered(x):  # neighbours have nothing in common
            for factor in (0x7FEB352D, 0x5BD1E995, 0x27D4EB2F):
                x = (x ^ (x >> 15)) * factor % 2**32
            return x ^ (x >> 16)

        total, heads = 0, np.arange(len(layer.positions))[:, None]
        for number in (0, layer.number, heads, layer.positions, layer.t):
            total = scattered((total + scattered(number + 1)) % 2**32)
        return (total >> 8) / 2.0**24


class H2O(Method):
    """Keep what has received most attention so far (arXiv 2306.14048)."""

    columns = ("received",)

    def observe(self, layer: Layer) -> None:
        layer.state["received"] += layer.attention.mean(axis=1).sum(axis=1)

    def retention(self, layer: Layer) -> Array:
        return layer.state["received"][:, None]


class TOVA(Method):
    """Keep what the newest token attends to, on average over all heads (arXiv 2401.06104)."""

    def score(self, layer: Layer) -> Array:
        return np.tile(self.retention(layer).mean(axis=(0, 1)), (len(layer.positions), 1))

    def retention(self, layer: Layer) -> Array:
        return layer.attention[:, :, -1]


class CAOTE(Method):
    """Evict what changes the output least if a method's rows h are the attention (2504.14051).

    If entry j is evicted and h renormalised, the output X = Σ h·v moves by exactly
    h_j/(1 − h_j)·‖X − v_j‖. FastCAOTE takes the plain mean of the values v for X.
    """

    def __init__(self, inner: H2O | TOVA, fast: bool = False) -> None:
        super().__init__(inner.budget, inner.recent)
        self.inner, self.fast, self.columns = inner, fast, inner.columns
        self.observe = inner.observe

    def score(self, layer: Layer) -> Array:
        h, v = self.inner.retention(layer), layer.values[:, None]
        h = h / h.sum(axis=-1, keepdims=True)  # Eq. 22
        X = v.mean(axis=2, keepdims=True) if self.fast else h[:, :, None] @ v
        rest = np.where(h < 1, 1 - h, np.nan)  # what has all the mass must stay
        error = h / rest * np.linalg.norm(X - v, axis=-1)  # Eq. 8; FastCAOTE: Eq. 23
        return np.nan_to_num(np.linalg.norm(error, axis=1), nan=np.inf)  # over a KV head's rows


class LazyEviction(Method):
    """Every W = ``recent`` tokens, evict by the intervals of activations (arXiv 2506.15969)."""

    columns = ("stamp", "interval")
    threshold = 0.01  # α: the paper's 0.0005 calls every entry of so short a text active

    def due(self, layer: Layer) -> bool:
        return layer.generated > 0 and layer.generated % self.recent == 0

    def observe(self, layer: Layer) -> None:
        if layer.generated > 0:
            stamp, interval = layer.state["stamp"], layer.state["interval"]
            stamp[:, -1] = layer.generated - 1
            active = layer.attention[:, :, -1].max(axis=1) >= self.threshold
            longest = np.maximum(interval, layer.generated - stamp)  # Eq. 1
            interval[active], stamp[active] = longest[active], layer.generated

    def score(self, layer: Layer) -> Array:
        interval = np.maximum(layer.state["interval"], 1)
        elapsed = layer.generated - layer.state["stamp"]
        h1 = 2 / (1 + np.exp(elapsed / interval))  # falls as an entry stays away for too long
        h2 = 2 / (1 + np.exp(interval - 1))  # falls with the longest interval
        return np.where(layer.state["interval"] > 0, h1 + h2, 0.0)  # Eq. 2


class AhaKV(Method):
    """Rate all by the same recent rows, with a gain, times their values (arXiv 2506.03762)."""

    def score(self, layer: Layer) -> Array:
        logits = layer.logits(layer.queries)
        rows = np.arange(layer.t - logits.shape[2], layer.t)
        excess = np.maximum((rows + 1) / self.budget, 1.0)
        gain = np.where(excess > 1, np.sqrt(2 * np.log(excess)), 1.0)[:, None]  # Eq. 12
        causal = layer.positions[:, None, None] <= rows[:, None]
        received = softmax(logits * gain, causal).sum(axis=2).mean(axis=1)  # Eq. 5
        prior = pooled((layer.values**2).sum(axis=-1), 5) / pooled(np.ones(received.shape), 5)
        return prior / prior.max(axis=-1, keepdims=True) * received  # Eq. 13, 14, 15


def pooled(x: Array, width: int) -> Array:
    """Average ``width`` neighbours; beyond the ends lie zeros."""
    ends = [(0, 0)] * (x.ndim - 1) + [(width // 2, width // 2)]
    return np.lib.stride_tricks.sliding_window_view(np.pad(x, ends), width, axis=-1).mean(axis=-1)


class DesireKV(Method):
    """Of every ``interval`` tokens before the newest, evict half, round the rest (AAAI 2026)."""

    interval, group = 32, 32  # group: channels that share a scale

    def due(self, layer: Layer) -> bool:
        older = layer.generated - self.recent
        return older > 0 and older % self.interval == 0

    def protected(self, layer: Layer) -> Array:
        last = layer.t - self.recent
        return (layer.positions < last - self.interval) | (layer.positions >= last)

    def room(self, protected: Array) -> int:
        return int((~protected[0]).sum() * 0.5)

    def score(self, layer: Layer) -> Array:
        window = ~self.protected(layer)
        attention = softmax(layer.logits(layer.queries), window[:, None, None])
        importance = np.zeros(window.shape)
        importance[:, window[0]] = attention.mean(axis=(0, 1, 2))[window[0]]  # Eq. 3
        importance[:, window[0]] = pooled(importance[:, window[0]], 7)  # Eq. 4
        return importance

    def store(self, layer: Layer, keep: Array) -> Array:
        window = ~self.protected(layer)
        confidence = layer.confidence[np.maximum(layer.positions[0] - 1, 0)]
        doubtful = window & (confidence < np.nanquantile(confidence[window[0]], 0.1))  # Eq. 9
        blocks = layer.keys.reshape(*layer.keys.shape[:2], -1, self.group)  # Eq. 5
        first, third = np.quantile(blocks, [0.25, 0.75], axis=-1, keepdims=True)
        reach = 1.5 * (third - first)
        outlier = (blocks < first - reach) | (blocks > third + reach)  # Eq. 6
        distance = np.abs(blocks - blocks.mean(axis=-1, keepdims=True)) * outlier
        mean = distance.sum(axis=-1) / np.maximum(outlier.sum(axis=-1), 1)
        sensitivity = mean.mean(axis=(0, 2))  # Eq. 7
        sensitive = sensitivity > np.quantile(sensitivity[window[0]], 0.5)
        keep = keep | doubtful
        for bits, chosen in ((8, sensitive | doubtful), (4, ~(sensitive | doubtful))):
            lowered = keep & window & chosen
            layer.keys[lowered] = rounded(layer.keys[lowered], bits, self.group)
            layer.values[lowered] = rounded(layer.values[lowered], bits, self.group)
        return keep


def rounded(x: Array, bits: int, group: int) -> Array:
    """Round to 2^bits levels between the least and the largest of each group of channels."""
    groups = x.reshape(*x.shape[:-1], -1, group)
    low, high = (f(groups, axis=-1, keepdims=True) for f in (np.min, np.max))
    scale, low = (np.float64(np.float16(x)) for x in ((high - low) / (2**bits - 1), low))
    levels = np.divide(groups - low, scale, out=np.zeros_like(groups), where=scale > 0)
    return (np.rint(np.clip(levels, 0, 2**bits - 1)) * scale + low).reshape(x.shape)


# --- 4. Which method solves what -----------------------------------------------------------------


def generate(model: Model, method: Method, prompt: list[int], most: int, end: int) -> list[int]:
    """Continue a prompt with the likeliest tokens, up to ``most`` or the token ``end``."""
    layers = [Layer(model, method, number, len(prompt)) for number in range(model.layers)]
    written, tokens, probability = [], prompt, np.nan
    while len(written) < most and end not in written:
        for layer in layers:
            layer.confidence = np.concatenate([layer.confidence, [probability] * len(tokens)])
        logits = model.forward(tokens, lambda i, *qkv: step(method, layers[i], *qkv), layers[0].t)
        following = softmax(logits)
        tokens, probability = [int(following.argmax())], following.max()
        written += tokens
    return written


METHODS: dict[str, Callable[[int], Method]] = {
    "full": lambda budget: Method(),
    "random:h2o": lambda budget: Random(budget, recent=budget // 2),  # the control of h2o
    "h2o": lambda budget: H2O(budget, recent=budget // 2),
    "caote:h2o": lambda budget: CAOTE(H2O(budget, recent=budget // 2)),
    "fast_caote:h2o": lambda budget: CAOTE(H2O(budget, recent=budget // 2), fast=True),
    "caote:h2o@recent=0": lambda budget: CAOTE(H2O(budget)),  # without the protection
    "tova": TOVA,
    "caote:tova": lambda budget: CAOTE(TOVA(budget)),
    "lazy_eviction": lambda budget: LazyEviction(budget, recent=25),
    "ahakv": lambda budget: AhaKV(budget, recent=16, rows=16),
    "desirekv": lambda budget: DesireKV(recent=8, rows=8),  # its own rule says how much stays
}


def main() -> None:
    """Let every method run the same programs; one is solved if all that is written is right."""
    from kvlab.reference.models import embedded_directory
    from kvlab.reference.tasks import jumps

    model, budgets = Model(embedded_directory("jumps")), (111, 156)
    programs = jumps.held_out(4, size=jumps.Size(fewest=14, most=16))
    texts = [(model.tokens(each.prompt), model.tokens(each.solution)) for each in programs]
    print(f"solved of {len(texts)} programs, by entries kept of 222:", *budgets)
    for name, method in METHODS.items():
        print(f"{name:20}", end="", flush=True)
        for budget in budgets:
            right = (generate(model, method(budget), p, len(s), s[-1]) == s for p, s in texts)
            print(f"{sum(right):4}", end="", flush=True)
        print()
    print("h2o, random:h2o, caote:h2o and fast_caote:h2o protect the newest half of their budget")


if __name__ == "__main__":
    main()
