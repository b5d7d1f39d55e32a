"""Plausible bugs of whole caches and quantised storage, planted into `engine.py` line by line.

The part of `docs/conformance_bugs.md` about whole caches is made of this table.
"""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ENGINE = Path(__file__).with_name("engine.py")


@dataclass(frozen=True)
class CacheBug:
    """One wrong line, or two that belong together."""

    name: str
    group: str
    """Group of cases that notices it, without the prefix ``cache_``."""
    right: str
    wrong: str
    also: tuple[tuple[str, str], ...] = ()


def planted(bug: CacheBug | None) -> ModuleType:
    """Return a copy of the engine with a bug."""
    source = ENGINE.read_text(encoding="utf-8")
    for right, wrong in () if bug is None else ((bug.right, bug.wrong), *bug.also):
        assert source.count(right) == 1, f"{right!r} occurs {source.count(right)} times"
        source = source.replace(right, wrong)
    module = ModuleType("planted_engine")
    exec(compile(source, str(ENGINE), "exec"), module.__dict__)
    return module


POSITIONS = "positions = self.columns + np.arange(m) - self.padding[:, None]"
PLACES = "places = np.maximum(positions, 0).astype(np.float32)"
VISIBLE = "mask = (there != EMPTY) & (there <= query)"
WINDOW = "if self.slides(layer):\n            mask"
SINKS = "if sinks is not None:\n            total"
CAP = 'if self.given["softcap"] is not None:'
ALL = 'if self.given["budget"] is None:'
FREE = "free = np.flatnonzero(self.positions[n, g] == EMPTY)[: real.sum()]"
LEAVE = 'leave = len(held) - self.given["budget"]'
SUMS = "slots.sums += weights.mean(axis=2).sum(axis=2)"
SCALE = "scale = ((high - low) / (2**bits - 1)).astype(np.float16)"
DUE = "return generated // self.every > before // self.every"
PROMPT = "if self.columns <= self.prompt:\n            return True"
REAL = "real = positions[n] >= 0"
SUBTRACTED = "weights = np.exp(logits - largest)"
READ = """keys, values = self.keys.copy(), self.values.copy()
        for n, g in np.ndindex(*keys.shape[:2]):
            place = n * keys.shape[1] + g"""

BUGS = (
    # positions
    CacheBug(
        "tokens are numbered by the entries kept, not by the tokens seen",
        "prefix_evicted",
        POSITIONS,
        "positions = min(self.columns, self.given['budget'] or 999) + np.arange(m)[None]",
    ),
    CacheBug(
        "rotation stops at the budget",
        "prefix_evicted",
        PLACES,
        "places = np.clip(positions, 0, self.given['budget'] or 999).astype(np.float32)",
    ),
    CacheBug(
        "queries are rotated one position too far",
        "plain",
        'queries = rotated(self.heads(layer, "q", x), places,',
        'queries = rotated(self.heads(layer, "q", x), places + 1,',
    ),
    CacheBug(
        "keys are not rotated",
        "plain",
        'keys = rotated(self.heads(layer, "k", x), places, theta)',
        'keys = self.heads(layer, "k", x)',
    ),
    CacheBug(
        "keys of single tokens are not rotated",
        "plain",
        'keys = rotated(self.heads(layer, "k", x), places, theta)',
        'keys = rotated(self.heads(layer, "k", x), places * (x.shape[1] > 1), theta)',
    ),
    CacheBug(
        "neighbouring channels are rotated together instead of halves",
        "plain",
        "first, second = x[..., :half], x[..., half:]",
        "first, second = x[..., ::2], x[..., 1::2]",
    ),
    CacheBug(
        "rotation frequencies are spread over one channel too few",
        "plain",
        "-np.arange(half, dtype=np.float32) / half",
        "-np.arange(half, dtype=np.float32) / (half - 1)",
    ),
    CacheBug(
        "positions wrap at 128: eight bits",
        "long",
        PLACES,
        "places = np.maximum(positions, 0).astype(np.int8).astype(np.float32)",
    ),
    CacheBug(
        "positions begin at 0 again in every block of several tokens",
        "second_turn",
        POSITIONS,
        "positions = self.columns * (m == 1) + np.arange(m) - self.padding[:, None]",
    ),
    CacheBug(
        "a second turn begins one position too far",
        "second_turn",
        POSITIONS,
        f"{POSITIONS} + (m > 1 and self.columns >= self.prompt)",
    ),
    CacheBug(
        "positions count the padding",
        "left_padding",
        POSITIONS,
        "positions = self.columns + np.arange(m) + 0 * self.padding[:, None]",
    ),
    CacheBug(
        "every sequence has the padding of the first one",
        "left_padding",
        POSITIONS,
        POSITIONS.replace("self.padding", "np.full_like(self.padding, self.padding[0])"),
    ),
    CacheBug(
        "padding is forgotten after the prompt",
        "left_padding",
        POSITIONS,
        "positions = self.columns + np.arange(m) - self.padding[:, None] * (self.columns == 0)",
    ),
    # masks
    CacheBug(
        "a query sees the next token of its block",
        "plain",
        VISIBLE,
        "mask = (there != EMPTY) & (there <= query + 1)",
    ),
    CacheBug(
        "a query does not see its own entry",
        "plain",
        VISIBLE,
        "mask = (there != EMPTY) & ((there < query) | (query == 0))",
    ),
    CacheBug(
        "the tokens of a block see each other, later ones too",
        "plain",
        VISIBLE,
        "mask = (there != EMPTY) & (there <= positions.max() + 0 * query)",
    ),
    CacheBug(
        "the mask goes by slots, not by positions",
        "second_turn",
        VISIBLE,
        "mask = (there != EMPTY) & (np.arange(there.shape[-1]) <= query)",
    ),
    CacheBug(
        "evicted and empty slots stay visible",
        "in_place",
        VISIBLE,
        "mask = there <= query",
    ),
    CacheBug(
        "a chunk of the prompt sees itself alone",
        "chunks",
        VISIBLE,
        f"{VISIBLE} & ((m == 1) | (there >= positions.min()))",
    ),
    CacheBug(
        "the last entry of a full cache is cut from the mask",
        "budget_ge_length",
        VISIBLE,
        f"{VISIBLE} & ((there < query) | (there % 7 > 0))",
    ),
    CacheBug(
        "a second turn is not masked inside",
        "second_turn",
        VISIBLE,
        f"{VISIBLE} | ((there != EMPTY) & (self.columns > self.prompt))",
    ),
    CacheBug(
        "rows of padding are written into the cache",
        "left_padding",
        "real = positions[n] >= 0",
        "real = positions[n] >= -99",
        (
            (
                "self.positions[n, g, free] = positions[n, real]",
                "self.positions[n, g, free] = np.maximum(positions[n, real], 0)",
            ),
        ),
    ),
    CacheBug(
        "only the second half of the padding is masked",
        "left_padding",
        "real = positions[n] >= 0",
        "real = 2 * positions[n] >= positions[n, 0]",
        (
            (
                "self.positions[n, g, free] = positions[n, real]",
                "self.positions[n, g, free] = np.maximum(positions[n, real], 0)",
            ),
        ),
    ),
    # windows, sinks, softcap
    CacheBug(
        "the window is one entry too wide",
        "sliding_layers",
        'there > query - self.given["sliding_window"]',
        'there >= query - self.given["sliding_window"]',
    ),
    CacheBug(
        "the window is one entry too narrow",
        "sliding_layers",
        'there > query - self.given["sliding_window"]',
        'there > query - self.given["sliding_window"] + 1',
    ),
    CacheBug("every layer slides", "sliding_layers", "and layer % 2 == 1", "and layer >= 0"),
    CacheBug("the wrong layers slide", "sliding_layers", "layer % 2 == 1", "layer % 2 == 0"),
    CacheBug(
        "no window while single tokens come",
        "sliding_layers",
        WINDOW,
        WINDOW.replace(":", " and m > 1:"),
    ),
    CacheBug("no window in blocks", "sliding_layers", WINDOW, WINDOW.replace(":", " and m == 1:")),
    CacheBug(
        "the policy evicts from layers with a window",
        "sliding_layers",
        "if not self.slides(layer):\n            self.decide",
        "if True:\n            self.decide",
    ),
    CacheBug(
        "learned sinks are ignored",
        "learned_sinks",
        SINKS,
        SINKS.replace("sinks is not None", "False"),
    ),
    CacheBug(
        "learned sinks take part in blocks alone",
        "learned_sinks",
        SINKS,
        SINKS.replace(":", " and logits.shape[3] > 1:"),
    ),
    CacheBug(
        "the largest logit is not subtracted from the sink",
        "learned_sinks",
        "np.exp(sink - largest)",
        "np.exp(sink)",
    ),
    CacheBug("all layers have the sinks of the first", "learned_sinks", "sinks[layer]", "sinks[0]"),
    CacheBug(
        "sinks of the query heads in the wrong order",
        "learned_sinks",
        "sinks[layer].reshape(1, logits.shape[1], -1, 1, 1)",
        "sinks[layer].reshape(1, -1, logits.shape[1], 1, 1).swapaxes(1, 2)",
    ),
    CacheBug("softcap is ignored", "softcap", CAP, "if False:"),
    CacheBug("softcap in blocks alone", "softcap", CAP, CAP.replace(":", " and m > 1:")),
    CacheBug(
        "softcap squeezes the learned sinks, too",
        "softcap_sinks",
        "sink = sinks[layer]",
        "cap = self.given['softcap'] or 1e9\n"
        "            sinks = cap * np.tanh(sinks / cap)\n            sink = sinks[layer]",
    ),
    CacheBug(
        "learned sinks are left out where there is a softcap",
        "softcap_sinks",
        SINKS,
        SINKS.replace("sinks is not None", "sinks is not None and not self.given['softcap']"),
    ),
    CacheBug(
        "softcap without the division",
        "softcap",
        'np.tanh(logits / self.given["softcap"])',
        "np.tanh(logits)",
    ),
    # budgets and decisions
    CacheBug("the budget has no effect", "budgets", LEAVE, "leave = 0"),
    CacheBug("the budget is a constant", "budgets", LEAVE, "leave = len(held) - 12"),
    CacheBug("one entry too many stays", "budgets", LEAVE, f"{LEAVE} - 1"),
    CacheBug("one entry too few stays", "budgets", LEAVE, f"{LEAVE} + 1"),
    CacheBug(
        "a budget above the length evicts",
        "budget_ge_length",
        LEAVE,
        "leave = len(held) - min(self.given['budget'], 30)",
    ),
    CacheBug(
        "evicted entries keep their memory",
        "in_place",
        "min(t, budget + longest + self.every)",
        "2 * t",
    ),
    CacheBug(
        "the newest sink is evicted",
        "plain",
        'positions >= self.given["sinks"]',
        'positions >= self.given["sinks"] - 1',
    ),
    CacheBug(
        "a sink too many stays",
        "plain",
        'positions >= self.given["sinks"]',
        'positions > self.given["sinks"]',
    ),
    CacheBug(
        "one recent entry too few is safe",
        "in_place",
        'len(positions) - self.given["recent"]',
        'len(positions) - self.given["recent"] + 1',
    ),
    CacheBug(
        "nothing is evicted while the prompt comes in chunks",
        "chunks",
        ALL,
        'if self.given["budget"] is None or self.columns < self.prompt:',
    ),
    CacheBug(
        "nothing is evicted in blocks",
        "plain",
        ALL,
        'if self.given["budget"] is None or weights.shape[3] > 1:',
    ),
    CacheBug(
        "nothing is evicted after the prompt",
        "in_place",
        ALL,
        'if self.given["budget"] is None or self.columns > self.prompt:',
    ),
    CacheBug(
        "nothing is evicted after the block of a second turn",
        "second_turn",
        ALL,
        'if self.given["budget"] is None or weights.shape[3] > 1 and self.columns > self.prompt:',
    ),
    CacheBug(
        "a block adds its last row alone",
        "second_turn",
        SUMS,
        "slots.sums += weights.mean(axis=2)[:, :, -1]",
    ),
    CacheBug("sums are replaced, not added", "plain", "slots.sums += ", "slots.sums = "),
    CacheBug(
        "the largest query head counts", "plain", SUMS, SUMS.replace("weights.mean", "weights.max")
    ),
    CacheBug(
        "every head goes by the sums of the first",
        "plain",
        '"h2o": slots.sums[n, g]',
        '"h2o": slots.sums[n, 0]',
    ),
    CacheBug(
        "every sequence goes by the sums of the first",
        "left_padding",
        '"h2o": slots.sums[n, g]',
        '"h2o": slots.sums[0, g]',
    ),
    CacheBug("the best leave", "plain", "order[:leave]", "order[-leave:]"),
    CacheBug(
        "TOVA looks at the first row of a block",
        "chunks",
        "weights[:, :, :, -1]",
        "weights[:, :, :, 0]",
    ),
    CacheBug(
        "the sums of padded rows count",
        "left_padding",
        "mask = (there != EMPTY) & (there <= query)",
        "mask = (there != EMPTY) & ((there <= query) | (query < 0))",
    ),
    # decisions every N tokens
    CacheBug(
        "no decision where a block of several tokens skips the N-th",
        "intervals",
        DUE,
        "return generated % self.every == 0",
    ),
    CacheBug(
        "every N blocks count, not every N tokens",
        "intervals",
        DUE,
        "self.blocks = getattr(self, 'blocks', 0) + (m > 0)\n"
        "        return self.blocks // 4 % self.every == 0",
    ),
    CacheBug(
        "every block of several tokens decides, as those of the prompt do",
        "intervals",
        PROMPT,
        PROMPT.replace(":", " or m > 1:"),
    ),
    CacheBug(
        "the blocks of the prompt wait for the N-th token, too",
        "intervals",
        PROMPT,
        "if self.columns < self.prompt and self.columns % self.every:\n            return False",
    ),
    CacheBug(
        "the tokens of a second turn do not count as generated",
        "intervals",
        "generated = self.columns - self.prompt\n        before = generated - m",
        "given = sum(c for c in self.given['calls'][1:] if c > 1)\n"
        "        generated = self.columns - self.prompt - given\n        before = generated - 1",
    ),
    CacheBug(
        "a second turn begins the count anew",
        "intervals",
        PROMPT,
        f"{PROMPT}\n        if m > 1:\n            self.prompt = self.columns",
    ),
    CacheBug(
        "the tokens of the prompt count, too",
        "intervals",
        "generated = self.columns - self.prompt",
        "generated = self.columns",
    ),
    CacheBug(
        "a decision comes one token late",
        "intervals",
        "generated = self.columns - self.prompt",
        "generated = self.columns - self.prompt - 1",
    ),
    CacheBug("every token decides, whatever N is", "intervals", DUE, "return True"),
    CacheBug(
        "the longest padding is taken off the generated tokens of all rows",
        "intervals",
        "generated = self.columns - self.prompt",
        "generated = max(0, self.columns - self.prompt - self.padding.max())",
    ),
    # blocks of padding
    CacheBug(
        "a row whose block is padding alone becomes NaN, which a weight of 0 does not hide",
        "padded_blocks",
        SUBTRACTED,
        f"{SUBTRACTED}\n        weights[np.isneginf(logits).all(axis=(1, 2, 3, 4))] = np.nan",
        (
            (
                "self.values[n, g, free] = values[n, g, real]",
                "self.values[n, g, free if real.any() else slice(None)] = "
                "values[n, g, real if real.any() else -1]",
            ),
            ("weights, np.nan_to_num(values))", "weights, values)"),
        ),
    ),
    CacheBug(
        "a block of padding alone counts as tokens",
        "padded_blocks",
        POSITIONS,
        f"alone = (self.padding >= self.columns + m) * m\n        self.padding = "
        f"self.padding - alone\n        {POSITIONS} - alone[:, None]",
    ),
    CacheBug(
        "the last column of a block of padding alone is kept",
        "padded_blocks",
        REAL,
        f"{REAL}\n            real[-1] |= ~real.any()",
        (
            (
                "self.positions[n, g, free] = positions[n, real]",
                "self.positions[n, g, free] = np.maximum(positions[n, real], 0)",
            ),
        ),
    ),
    CacheBug(
        "a block in which the padding ends is taken for padding",
        "padded_blocks",
        REAL,
        "real = np.full(positions.shape[1], positions[n, 0] >= 0)",
    ),
    CacheBug(
        "padding ends with the first block at the latest",
        "padded_blocks",
        POSITIONS,
        "start = self.columns - self.padding[:, None]\n"
        "        positions = np.maximum(start, 0 if self.columns else start) + np.arange(m)",
    ),
    CacheBug(
        "in a later block in which the padding ends, tokens are rotated by their column",
        "padded_blocks",
        PLACES,
        "later = self.columns > positions.shape[1]\n"
        "        column = later * np.maximum(-positions[:, :1], 0)\n"
        "        places = (np.maximum(positions, 0) + column).astype(np.float32)",
    ),
    # blocks in which the budget is reached
    CacheBug(
        "a later block is cut where it reaches the budget, and its rest evicts token by token",
        "budget_in_block",
        "logits = self.block(tokens[:, first : first + size])",
        "part = tokens[:, first : first + size]\n"
        "            room = (self.given['budget'] or 999) - self.columns\n"
        "            later = 0 < room < part.shape[1] and self.columns >= self.prompt\n"
        "            cut = room if later else part.shape[1]\n"
        "            for piece in [part[:, :cut], *np.split(part[:, cut:], part.shape[1] - cut, 1)]"
        " if later else [part]:\n"
        "                logits = self.block(piece)",
    ),
    CacheBug(
        "whether to evict is asked before the block is written",
        "budget_in_block",
        "if leave <= 0:",
        "if leave <= 0 or len(held) - positions.shape[1] < self.given['budget']:",
    ),
    CacheBug(
        "a block of a later turn evicts as many as it has tokens",
        "budget_in_block",
        LEAVE,
        f"{LEAVE}\n            m = positions.shape[1]\n"
        "            leave = min(m, leave) if self.columns <= self.prompt or m == 1 else m",
    ),
    CacheBug(
        "old entries leave before a later block attends",
        "budget_in_block",
        "keys, values = slots.read()\n        N, H, m, d = queries.shape",
        "keys, values = slots.read()\n        N, H, m, d = queries.shape\n"
        "        if self.given['budget'] and m > 1 and self.columns > self.prompt:\n"
        "            there = slots.positions\n"
        "            there[there < self.columns - self.given['budget']] = EMPTY",
    ),
    CacheBug(
        "what a block received before the budget was reached is forgotten",
        "budget_in_block",
        SUMS,
        "rows = weights.mean(axis=2)\n"
        "        over = max(0, (slots.positions[0, 0] >= 0).sum() - self.given['budget'])\n"
        "        slots.sums += rows[:, :, -over:].sum(axis=2)",
    ),
    # slots and rings
    CacheBug(
        "a ring writes over entries that stay",
        "in_place",
        FREE,
        "free = positions[n][real] % self.keys.shape[2]",
    ),
    CacheBug(
        "slots are looked up in the first head", "in_place", FREE, FREE.replace("[n, g]", "[n, 0]")
    ),
    CacheBug(
        "slots are looked up in the first sequence",
        "left_padding",
        FREE,
        FREE.replace("[n, g]", "[0, g]"),
    ),
    CacheBug(
        "a slot that is used again keeps its sum", "in_place", "self.sums[n, g, free] = 0", "pass"
    ),
    CacheBug(
        "a block writes its first value alone",
        "plain",
        "self.values[n, g, free] = values[n, g, real]",
        "self.values[n, g, free[:1]] = values[n, g, real][:1]",
    ),
    CacheBug(
        "a single token's value is not written where the slot was used before",
        "in_place",
        "self.values[n, g, free] = values[n, g, real]",
        "self.values[n, g, free] = np.where(self.values[n, g, free] == 0, values[n, g, real],"
        " self.values[n, g, free])",
    ),
    CacheBug(
        "keys of a block are written in reverse",
        "plain",
        "self.keys[n, g, free] = keys[n, g, real]",
        "self.keys[n, g, free] = keys[n, g, real][::-1]",
    ),
    # beams
    CacheBug("keys do not follow the beams", "beams", "self.keys = self.keys[order]", "pass"),
    CacheBug("values do not follow the beams", "beams", "self.values = self.values[order]", "pass"),
    CacheBug(
        "positions do not follow the beams",
        "beams",
        "self.positions = self.positions[order]",
        "pass",
    ),
    CacheBug("sums do not follow the beams", "beams", "self.sums = self.sums[order]", "pass"),
    CacheBug(
        "beams are reordered in place, row by row",
        "beams",
        "self.keys = self.keys[order]",
        "for n, source in enumerate(order): self.keys[n] = self.keys[source]",
    ),
    CacheBug(
        "beams are reordered backwards",
        "beams",
        "slots.reorder(order)",
        "slots.reorder(np.argsort(order))",
    ),
    CacheBug(
        "beams are reordered in the first layer alone",
        "beams",
        "for slots in self.layers:\n            slots.reorder",
        "for slots in self.layers[:1]:\n            slots.reorder",
    ),
    # quantised storage
    CacheBug(
        "codes are packed with the first one in the highest bits",
        "quantised",
        "shifts = bits * np.arange(per_byte, dtype=np.uint8)",
        "shifts = bits * np.arange(per_byte, dtype=np.uint8)[::-1]",
    ),
    CacheBug(
        "codes are unpacked as four bits",
        "quantised",
        ">> shifts) & (2**bits - 1)",
        ">> shifts) & 15",
    ),
    CacheBug(
        "the scale divides by 2^bits", "quantised", SCALE, SCALE.replace("(2**bits - 1)", "2**bits")
    ),
    CacheBug(
        "the scale is rounded to 8 bits",
        "quantised",
        SCALE,
        f"{SCALE}\n    scale = (scale.view(np.uint16) & 0xFF00).view(np.float16)",
    ),
    CacheBug("the zero point is not added", "quantised", "codes * scale + zero", "codes * scale"),
    CacheBug(
        "the zero point is the maximum", "quantised", "zero = low.astype", "zero = high.astype"
    ),
    CacheBug("codes are rounded down", "quantised", "codes = np.rint(", "codes = np.floor("),
    CacheBug(
        "the largest code is never used",
        "quantised",
        "np.clip(codes, 0, 2**bits - 1)",
        "np.clip(codes, 0, 2**bits - 2)",
    ),
    CacheBug(
        "a group's minimum sees the groups before it",
        "quantised",
        "low, high = parts.min(axis=-1),",
        "low, high = np.minimum.accumulate(parts.min(axis=-1), axis=-1),",
    ),
    CacheBug(
        "scales are laid out group by group",
        "quantised",
        "scale = np.repeat(scale.astype(np.float32), group, axis=-1)",
        "scale = np.tile(scale.astype(np.float32), group)",
    ),
    CacheBug(
        "zero points are laid out group by group",
        "quantised",
        "zero = np.repeat(zero.astype(np.float32), group, axis=-1)",
        "zero = np.tile(zero.astype(np.float32), group)",
    ),
    CacheBug(
        "keys are quantised per token",
        "quantised",
        "np.ascontiguousarray(self.keys[n, g, block].T)",
        "np.ascontiguousarray(self.keys[n, g, block])",
        (
            (
                "restored(block, self.bits[0], self.group).T",
                "restored(block, self.bits[0], self.group)",
            ),
        ),
    ),
    CacheBug(
        "keys are quantised one token late", "quantised", "residual <= count", "residual < count"
    ),
    CacheBug("keys are never quantised", "quantised", "residual <= count", "residual < 0"),
    CacheBug(
        "values are quantised one token early",
        "quantised",
        "len(tokens) < count - residual",
        "len(tokens) < count - residual + 1",
    ),
    CacheBug(
        "values are never quantised",
        "quantised",
        "len(tokens) < count - residual",
        "len(tokens) < 0",
    ),
    CacheBug(
        "keys take the bits of the values",
        "quantised",
        "(key_bits, value_bits), group",
        "(value_bits, key_bits), group",
    ),
    CacheBug(
        "the residual is counted over the longest sequence",
        "quantised",
        "count, place = (self.positions[n, g] >= 0).sum(),",
        "count, place = (self.positions >= 0).any((0, 1)).sum(),",
    ),
    CacheBug(
        "every sequence reads the codes of the first",
        "quantised",
        READ,
        READ.replace("n * keys.shape[1] + g", "g"),
    ),
    CacheBug(
        "the full vectors stay beside the codes",
        "quantised",
        "return int(live * (raw.sum() + raw_values.sum()) + coded)",
        "return int(4 * live * raw.size + coded)",
    ),
    # pages, shared heads, codes
    CacheBug(
        "the page that is being written is counted with the padding",
        "pages",
        "safe = {(self.columns - self.padding[n] - 1) // self.page}",
        "safe = {(self.columns - 1) // self.page}",
    ),
    CacheBug(
        "a page is always worth its best entry",
        "pages",
        'np.max if self.given["page_score"] == "max" else np.mean',
        "np.max",
    ),
    CacheBug(
        "a page with a safe entry may leave",
        "pages",
        "safe |= {*pages[~self.candidates(there[held])]}",
        "safe |= set()",
    ),
    CacheBug(
        "the budget is counted in entries where pages leave",
        "pages",
        'room = self.given["budget"] // self.page - len(safe)',
        'room = self.given["budget"] - len(safe)',
    ),
    CacheBug(
        "each head decides alone where the layer should",
        "shared_heads",
        'if self.shared == "head":',
        "if True:",
    ),
    CacheBug(
        "the first head decides for its layer",
        "shared_heads",
        "return slots.sums[n].mean(axis=0)",
        "return slots.sums[n][0]",
    ),
    CacheBug(
        "the union is the entry's worst place in a head",
        "shared_heads",
        "best[order] = np.maximum(best[order], np.arange(len(order)))",
        "best[order] = np.minimum(np.abs(best[order]), np.arange(len(order)))",
    ),
    CacheBug(
        "every block gives the layer another scale",
        "codes",
        "if not self.scales[kind, n].any():",
        "if True:",
    ),
    CacheBug(
        "block scales are written in one order and read in another",
        "codes",
        "self.blocks[kind, n][new] = blocks[new]",
        "self.blocks[kind, n][new] = blocks[new][:, ::-1]",
    ),
    CacheBug(
        "all heads share the scale where each should have its own",
        "codes",
        'self.axes = (1, 2) if precision.endswith("_head") else (0, 1, 2)',
        "self.axes = (0, 1, 2)",
    ),
    CacheBug(
        "codes stay where they are while sequences change places",
        "codes",
        "self.codes, self.blocks = self.codes[:, order], self.blocks[:, order]",
        "self.raw = self.raw",
    ),
    CacheBug(
        "the vectors stay in memory beside their codes",
        "codes",
        "(there & ~self.raw).sum() * stored",
        "(there & ~self.raw).sum() * (stored + 4 * d)",
    ),
)
