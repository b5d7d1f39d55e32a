"""A small serving engine in NumPy: batches, slots that are written in place, packed codes.

It shares no line with the reference, and passes: ``kvlab conformance run engine.py``. The tests
plant bugs into copies of this file, so every line that can go wrong in an engine stands alone.
"""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

EMPTY = -1
"""Position of a slot that holds nothing."""


@lru_cache(maxsize=1)
def checkpoint(directory):
    config = json.loads(Path(directory, "config.json").read_text())
    return config, load_file(Path(directory, "model.safetensors"))


def norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def rotated(x, positions, theta):
    """Rotate [N, heads, m, d] by positions [N, m]."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-np.arange(half, dtype=np.float32) / half)
    angles = positions[:, None, :, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Slots:
    """Entries of one layer in slots that are used again, for every sequence and head."""

    def __init__(self, N, G, d, capacity):
        self.keys = np.zeros((N, G, capacity, d), np.float32)
        self.values = np.zeros((N, G, capacity, d), np.float32)
        self.positions = np.full((N, G, capacity), EMPTY)
        self.sums = np.zeros((N, G, capacity), np.float32)

    def write(self, keys, values, positions):
        for n, g in np.ndindex(*keys.shape[:2]):
            real = positions[n] >= 0
            free = np.flatnonzero(self.positions[n, g] == EMPTY)[: real.sum()]
            self.keys[n, g, free] = keys[n, g, real]
            self.values[n, g, free] = values[n, g, real]
            self.positions[n, g, free] = positions[n, real]
            self.sums[n, g, free] = 0

    def read(self):
        return self.keys, self.values

    def evict(self, n, g, slots):
        self.positions[n, g, slots] = EMPTY

    def reorder(self, order):
        self.keys = self.keys[order]
        self.values = self.values[order]
        self.positions = self.positions[order]
        self.sums = self.sums[order]

    @property
    def nbytes(self):
        return self.keys.nbytes + self.values.nbytes


def quantised(x, bits, group):
    """Codes of groups of consecutive elements, packed into bytes, the first in the lowest bits."""
    parts = x.reshape(*x.shape[:-1], -1, group)
    low, high = parts.min(axis=-1), parts.max(axis=-1)
    scale = ((high - low) / (2**bits - 1)).astype(np.float16)
    zero = low.astype(np.float16)
    step = np.where(scale == 0, 1, scale).astype(np.float32)
    codes = np.rint((parts - zero[..., None].astype(np.float32)) / step[..., None])
    codes = np.clip(codes, 0, 2**bits - 1).astype(np.uint8).reshape(x.shape)
    per_byte = 8 // bits
    shifts = bits * np.arange(per_byte, dtype=np.uint8)
    packed = (codes.reshape(*x.shape[:-1], -1, per_byte) << shifts).sum(axis=-1).astype(np.uint8)
    return packed, scale, zero


def restored(stored, bits, group):
    packed, scale, zero = stored
    shifts = bits * np.arange(8 // bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & (2**bits - 1)
    codes = codes.reshape(*packed.shape[:-1], -1).astype(np.float32)
    scale = np.repeat(scale.astype(np.float32), group, axis=-1)
    zero = np.repeat(zero.astype(np.float32), group, axis=-1)
    return codes * scale + zero


class Coded(Slots):
    """Keys as codes per channel, values as codes per token; the newest ones as they are."""

    def __init__(self, N, G, d, capacity, key_bits, value_bits, group, residual):
        super().__init__(N, G, d, capacity)
        self.bits, self.group, self.residual = (key_bits, value_bits), group, residual
        self.key_codes = [[] for _ in range(N * G)]
        self.value_codes = [[] for _ in range(N * G)]

    def flush(self, n, g):
        """Quantise what is older than the residual; a coded vector is dropped, and read back."""
        count, place = (self.positions[n, g] >= 0).sum(), n * self.keys.shape[1] + g
        blocks, residual = self.key_codes[place], self.residual
        while (len(blocks) + 1) * residual <= count:
            block = slice(len(blocks) * residual, (len(blocks) + 1) * residual)
            channels = np.ascontiguousarray(self.keys[n, g, block].T)
            blocks.append(quantised(channels, self.bits[0], self.group))
            self.keys[n, g, block] = np.nan
        tokens = self.value_codes[place]
        while len(tokens) < count - residual:
            token = self.values[n, g, len(tokens)].copy()
            self.values[n, g, len(tokens)] = np.nan
            tokens.append(quantised(token, self.bits[1], self.group))

    def read(self):
        keys, values = self.keys.copy(), self.values.copy()
        for n, g in np.ndindex(*keys.shape[:2]):
            place = n * keys.shape[1] + g
            for number, block in enumerate(self.key_codes[place]):
                part = slice(number * self.residual, (number + 1) * self.residual)
                keys[n, g, part] = restored(block, self.bits[0], self.group).T
            for number, token in enumerate(self.value_codes[place]):
                values[n, g, number] = restored(token, self.bits[1], self.group)
        return keys, values

    def reorder(self, order):
        super().reorder(order)
        G = self.keys.shape[1]
        places = [n * G + g for n in order for g in range(G)]
        self.key_codes = [list(self.key_codes[place]) for place in places]
        self.value_codes = [list(self.value_codes[place]) for place in places]

    @property
    def nbytes(self):
        live = self.keys[0, 0, 0].nbytes
        raw = (~np.isnan(self.keys)).all(-1) & (self.positions >= 0)
        raw_values = (~np.isnan(self.values)).all(-1) & (self.positions >= 0)
        parts = [
            stored for each in (self.key_codes, self.value_codes) for row in each for stored in row
        ]
        coded = sum(part.nbytes for stored in parts for part in stored)
        return int(live * (raw.sum() + raw_values.sum()) + coded)


def small_floats(exponent_bits, mantissa_bits, largest):
    """All numbers of a format that are not negative, ascending: the place of each is its code."""
    steps, bias = 2**mantissa_bits, 2 ** (exponent_bits - 1) - 1
    codes = np.arange(2 ** (exponent_bits + mantissa_bits))
    exponents, fractions = codes // steps, codes % steps / steps
    normal = np.where(exponents > 0, 1 + fractions, 2 * fractions) * 2.0 ** (exponents - bias)
    return normal[normal <= largest]


E4M3, E5M2, E2M1 = small_floats(4, 3, 448), small_floats(5, 2, 57344), small_floats(2, 1, 6)


def coded(x, numbers):
    """Codes of the nearest numbers, of two equally near ones the even code; the sign in bit 7."""
    size = np.minimum(np.abs(x), numbers[-1])
    upper = np.searchsorted(numbers, size).clip(1)
    below, above = size - numbers[upper - 1], numbers[upper] - size
    up = (above < below) | ((above == below) & (upper % 2 == 0))
    return np.where(up, upper, upper - 1).astype(np.uint8) | (np.signbit(x) << 7).astype(np.uint8)


def number(codes, numbers):
    return np.where(codes & 128, -1, 1) * numbers[codes & 127]


class Floats(Slots):
    """Entries as floats of 8 or 4 bits once their block has been attended."""

    def __init__(self, N, G, d, capacity, precision):
        super().__init__(N, G, d, capacity)
        self.four = precision == "nvfp4"
        self.numbers = E2M1 if self.four else E5M2 if "e5m2" in precision else E4M3
        self.largest = 448 * 6 if self.four else self.numbers[-1]
        self.axes = (1, 2) if precision.endswith("_head") else (0, 1, 2)
        self.raw = np.zeros((N, G, capacity), bool)
        self.codes = np.zeros((2, N, G, capacity, d), np.uint8)
        self.blocks = np.zeros((2, N, G, capacity, -(-d // 16)), np.uint8)
        self.scales = np.zeros((2, N, G, 1, 1), np.float32)

    def write(self, keys, values, positions):
        before = self.positions.copy()
        super().write(keys, values, positions)
        self.raw = (self.positions != before) | self.raw

    def flush(self, n):
        """Store what came as codes; the first block of a sequence fixes its scales."""
        new = self.raw[n]
        for kind, vectors in enumerate((self.keys, self.values)):
            x = np.where(new[..., None], vectors[n], 0)
            if not self.scales[kind, n].any():
                size = np.abs(x).max(axis=self.axes, keepdims=True)
                self.scales[kind, n] = size / self.largest
            x = x.astype(float) / np.where(self.scales[kind, n] > 0, self.scales[kind, n], 1)
            if self.four:
                sizes = np.abs(x).reshape(*new.shape, -1, 16).max(axis=-1)
                blocks = coded(sizes / 6, E4M3)
                self.blocks[kind, n][new] = blocks[new]
                step = np.repeat(number(blocks, E4M3), 16, axis=-1)
                x = np.divide(x, step, out=np.zeros_like(x), where=step > 0)
            self.codes[kind, n][new] = coded(x, self.numbers)[new]
            vectors[n][new] = np.nan
        self.raw[n] = False

    def read(self):
        found = []
        for kind, vectors in enumerate((self.keys, self.values)):
            x = number(self.codes[kind], self.numbers) * self.scales[kind]
            if self.four:
                x = x * np.repeat(number(self.blocks[kind], E4M3), 16, axis=-1)
            found.append(np.where(self.raw[..., None], vectors, x).astype(np.float32))
        return found[0], found[1]

    def reorder(self, order):
        super().reorder(order)
        self.raw = self.raw[order]
        self.codes, self.blocks = self.codes[:, order], self.blocks[:, order]
        self.scales = self.scales[:, order]

    @property
    def nbytes(self):
        """Of entries that are there; a code of four bits takes half a byte in an engine."""
        there, d = self.positions != EMPTY, self.codes.shape[-1]
        stored = d // 2 + self.blocks.shape[-1] if self.four else d
        return int(2 * ((there & self.raw).sum() * 4 * d + (there & ~self.raw).sum() * stored))


class Engine:
    def __init__(self, given):
        self.config, self.weights = checkpoint(given["model"])
        self.given, self.name = given, given["method"].partition("@")[0]
        self.every = given.get("every", 1)
        self.page, self.shared = given.get("page", 1), given.get("kv_heads", "head")
        self.padding, self.columns, self.prompt = given["padding"], 0, given["calls"][0]
        config = self.config
        N, t = given["tokens"].shape
        budget = given["budget"] or t
        most = max(int(given["block_size"] or max(given["calls"])), 1)
        longest = min(int(max(given["calls"])), most)
        self.layers = []
        for layer in range(config["num_hidden_layers"]):
            capacity = t if self.slides(layer) else min(t, budget + longest + self.every)
            sizes = (N, config["num_key_value_heads"], config["head_dim"], capacity)
            options = ("key_bits", "value_bits", "group", "residual")
            if self.name == "kivi":
                self.layers.append(Coded(*sizes, *(given[name] for name in options)))
            elif given.get("precision", "full") != "full":
                self.layers.append(Floats(*sizes, given["precision"]))
            else:
                self.layers.append(Slots(*sizes))

    def slides(self, layer):
        return self.given["sliding_window"] is not None and layer % 2 == 1

    def call(self, tokens):
        """Count blocks from each row's first token; the last blocks of all rows end together."""
        held, m, logits = self.columns, tokens.shape[1], np.zeros((0, 1))
        size, before = self.given["block_size"] or m, np.maximum(self.padding - held, 0)
        blocks = -(-(m - before) // size)
        for left in range(blocks.max(), 0, -1):
            first = before + (blocks - left) * size
            last = np.minimum(first + size, m)
            begun = blocks >= left
            columns = last[:, None] - np.arange((last - first)[begun].max(), 0, -1)
            there = (columns >= first[:, None]) & begun[:, None]
            block = np.take_along_axis(tokens, np.where(there, columns, 0), axis=1)
            columns = held + columns
            self.columns = columns.max() + 1
            logits = self.block(block, columns, there)
        return logits[:, -1]

    def block(self, tokens, columns, there):
        positions = columns - self.padding[:, None]
        positions = np.where(there, positions, EMPTY)
        config, weights, eps = self.config, self.weights, self.config["rms_norm_eps"]
        hidden = weights["model.embed_tokens.weight"][tokens]
        for layer in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = norm(hidden, weights[f"{prefix}input_layernorm.weight"], eps)
            hidden = hidden + self.attention(layer, x, positions)
            x = norm(hidden, weights[f"{prefix}post_attention_layernorm.weight"], eps)
            gate = x @ weights[f"{prefix}mlp.gate_proj.weight"].T
            up = x @ weights[f"{prefix}mlp.up_proj.weight"].T
            hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ (
                weights[f"{prefix}mlp.down_proj.weight"].T
            )
        hidden = norm(hidden, weights["model.norm.weight"], eps)
        return hidden @ weights["model.embed_tokens.weight"].T

    def heads(self, layer, name, x):
        product = x @ self.weights[f"model.layers.{layer}.self_attn.{name}_proj.weight"].T
        return product.reshape(*x.shape[:2], -1, self.config["head_dim"]).swapaxes(1, 2)

    def attention(self, layer, x, positions):
        theta, slots = self.config["rope_parameters"]["rope_theta"], self.layers[layer]
        places = np.maximum(positions, 0).astype(np.float32)
        queries = rotated(self.heads(layer, "q", x), places, theta)
        keys = rotated(self.heads(layer, "k", x), places, theta)
        values = self.heads(layer, "v", x)
        slots.write(keys, values, positions)
        keys, values = slots.read()
        N, H, m, d = queries.shape
        G = keys.shape[1]
        grouped = queries.reshape(N, G, H // G, m, d)
        logits = np.einsum("ngrmd,ngsd->ngrms", grouped, np.nan_to_num(keys)) / np.sqrt(d)
        if self.given["softcap"] is not None:
            logits = self.given["softcap"] * np.tanh(logits / self.given["softcap"])
        there = slots.positions[:, :, None, None]
        query = positions[:, None, None, :, None]
        mask = (there != EMPTY) & (there <= query)
        if self.slides(layer):
            mask = mask & (there > query - self.given["sliding_window"])
        weights = self.softmax(layer, np.where(mask, logits, -np.inf))
        output = np.einsum("ngrms,ngsd->ngrmd", weights, np.nan_to_num(values))
        if not self.slides(layer):
            self.decide(slots, weights, positions)
        joined = output.reshape(N, H, m, d).swapaxes(1, 2).reshape(N, m, H * d)
        return joined @ self.weights[f"model.layers.{layer}.self_attn.o_proj.weight"].T

    def softmax(self, layer, logits):
        largest = np.maximum(logits.max(axis=-1, keepdims=True), -1e30)
        sinks, sink = self.given["learned_sinks"], -np.inf
        if sinks is not None:
            sink = sinks[layer].reshape(1, logits.shape[1], -1, 1, 1)
            largest = np.maximum(largest, sink)
        weights = np.exp(logits - largest)
        total = weights.sum(axis=-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sink - largest)
        return weights / np.where(total == 0, 1, total)

    def decide(self, slots, weights, positions):
        if self.name == "kivi":
            for n, g in np.ndindex(*slots.positions.shape[:2]):
                slots.flush(n, g)
        if isinstance(slots, Floats):
            for n in range(len(slots.positions)):
                slots.flush(n)
        if self.given["budget"] is None:
            return
        slots.sums += weights.mean(axis=2).sum(axis=2)
        if not self.due(positions.shape[1]):
            return
        last = weights[:, :, :, -1].mean(axis=2)
        for n, g in np.ndindex(*slots.positions.shape[:2]):
            there = slots.positions[n, g]
            held = np.flatnonzero(there != EMPTY)
            held = held[np.argsort(there[held])]
            if self.page > 1:
                slots.evict(n, g, self.pages_to_leave(slots, last, n, g, held))
                continue
            leave = len(held) - self.given["budget"]
            if leave <= 0:
                continue
            candidates = held[self.candidates(there[held])]
            score = {"h2o": slots.sums[n, g], "tova": last.mean(axis=1)[n]}.get(self.name, there)
            score = self.over_heads(slots, n, candidates, score)
            order = np.lexsort((there[candidates], score[candidates]))
            slots.evict(n, g, candidates[order[:leave]])

    def over_heads(self, slots, n, candidates, score):
        """Return one score for all heads of a layer, where they have to agree."""
        if self.shared == "head":
            return score
        if self.shared == "layer":
            return slots.sums[n].mean(axis=0)
        best = np.full(score.shape, -np.inf)
        for own, there in zip(slots.sums[n], slots.positions[n], strict=True):
            order = candidates[np.lexsort((there[candidates], own[candidates]))]
            best[order] = np.maximum(best[order], np.arange(len(order)))
        return best

    def pages_to_leave(self, slots, last, n, g, held):
        """Return the slots of the pages to evict: neither the newest nor a protected one."""
        there = slots.positions[n, g]
        pages = there[held] // self.page
        safe = {(self.columns - self.padding[n] - 1) // self.page}
        safe |= {*pages[~self.candidates(there[held])]}
        room = self.given["budget"] // self.page - len(safe)
        candidates = held[~np.isin(pages, [*safe])]
        score = slots.sums[n, g] if self.name == "h2o" else last.mean(axis=1)[n]
        score = self.over_heads(slots, n, candidates, score)
        joined = np.max if self.given["page_score"] == "max" else np.mean
        worth = {page: joined(score[held[pages == page]]) for page in {*pages} - safe}
        order = sorted(worth, key=lambda page: (worth[page], page))
        leave = order[: max(0, len(order) - room)]
        return held[np.isin(pages, leave)]

    def due(self, m):
        """After every block of the prompt; then whenever N more tokens were generated."""
        if self.columns <= self.prompt:
            return True
        generated = self.columns - self.prompt
        before = generated - m
        return generated // self.every > before // self.every

    def candidates(self, positions):
        """Mark what may be evicted, of positions that ascend."""
        if self.name == "streaming_llm":
            return positions >= self.given["sinks"]
        if self.name == "h2o":
            return np.arange(len(positions)) < len(positions) - self.given["recent"]
        return np.ones(len(positions), dtype=bool)

    def kept(self, t):
        marks = np.zeros(
            (len(self.padding), len(self.layers), self.layers[0].keys.shape[1], t), bool
        )
        for layer, slots in enumerate(self.layers):
            for n, g, slot in np.argwhere(slots.positions != EMPTY):
                marks[n, layer, g, slots.positions[n, g, slot]] = True
        return marks

    def reorder(self, order):
        self.padding = self.padding[order]
        for slots in self.layers:
            slots.reorder(order)


def whole_cache(**given):
    if given["method"].partition("@")[0] not in ("full", "streaming_llm", "h2o", "tova", "kivi"):
        raise NotImplementedError(given["method"])
    if given.get("precision", "full").startswith("turboquant"):
        raise NotImplementedError(given["precision"])
    engine, tokens = Engine(given), given["tokens"]
    logits, kept, nbytes = [], [], []
    for length, order in zip(given["calls"], given["continues"], strict=True):
        engine.reorder(order)
        logits.append(engine.call(tokens[:, engine.columns : engine.columns + length]))
        kept.append(engine.kept(tokens.shape[1]))
        nbytes.append(sum(slots.nbytes for slots in engine.layers))
    return {"logits": np.array(logits), "kept": np.array(kept), "bytes": np.array(nbytes)}


IMPLEMENTATIONS = {"*.whole_cache": whole_cache}
