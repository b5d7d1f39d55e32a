"""Plausible bugs, each a change of a line of the reference, and the implementations they make.

A bug is planted in a copy of the reference that is imported anew, and the copy is put to the test
as anybody's kernel would be. `docs/conformance_bugs.md` is made of this table.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from cache_bugs import BUGS as CACHE_BUGS

import kvlab.reference
from kvlab.reference.conformance.report import ABOUT_GROUPS

PACKAGE = "kvlab.reference"
ROOT = Path(kvlab.reference.__file__).parent


@dataclass(frozen=True)
class Bug:
    """One wrong line, or two that belong together."""

    name: str
    """What somebody got wrong."""
    target: str
    """What notices it first: a building block, or a method."""
    file: str
    """Below ``reference/``."""
    right: str
    wrong: str
    also: tuple[tuple[str, str], ...] = ()
    """Further changes of the same file."""


ATTENTION, SELECTION, CACHE = "attention.py", "selection.py", "cache.py"
BLOCKS, TURBOQUANT = "conformance/blocks.py", "precisions/turboquant.py"
POLICY, STEP, WINDOWS, CODES = "policy.py", "layer_step.py", "windows.py", "quantization.py"

BUGS = (
    # attention
    Bug(
        "logits scaled by d instead of √d",
        "attend",
        ATTENTION,
        "/ np.sqrt(queries.shape[-1])",
        "/ queries.shape[-1]",
    ),
    Bug("logits not scaled", "attend", ATTENTION, " / np.sqrt(queries.shape[-1])", ""),
    Bug(
        "largest logit not subtracted: exp overflows",
        "attend",
        ATTENTION,
        "np.exp(x - x.max(axis=-1, keepdims=True))",
        "np.exp(x)",
    ),
    Bug(
        "causal mask <: a query does not see its own key",
        "attend",
        ATTENTION,
        "key_positions[:, None, None, :] <= query",
        "key_positions[:, None, None, :] < query",
    ),
    Bug(
        "causal mask off by one: a query sees the next key",
        "attention",
        ATTENTION,
        "key_positions[:, None, None, :] <= query",
        "key_positions[:, None, None, :] - 1 <= query",
    ),
    Bug(
        "mask by place in the cache instead of position",
        "attend",
        ATTENTION,
        "return key_positions[:, None, None, :] <=",
        "return np.arange(key_positions.shape[1])[None, None, None, :] <=",
    ),
    Bug(
        "softcap ignored",
        "attend",
        ATTENTION,
        "return products if softcap is None else",
        "return products if True else",
    ),
    Bug(
        "softcap without the division inside tanh",
        "attend",
        ATTENTION,
        "np.tanh(products / softcap)",
        "np.tanh(products)",
    ),
    Bug(
        "query heads of a group in the wrong order",
        "attend",
        ATTENTION,
        "products = queries @",
        "products = queries[:, ::-1] @",
    ),
    Bug(
        "every query head reads the first KV head",
        "attend",
        ATTENTION,
        "return attention @ values[:, None]",
        "return attention @ values[:1, None]",
    ),
    Bug(
        "probabilities rounded to 8 bits before they are added up",
        "attend",
        ATTENTION,
        "weights = np.exp(",
        "weights = 2.0**-8 * np.rint(2.0**8 * np.exp(",
        (("keepdims=True))\n    return weights", "keepdims=True)))\n    return weights"),),
    ),
    Bug(
        "masked logits −100 instead of −∞",
        "attend",
        ATTENTION,
        "x = np.where(mask, x, -np.inf)",
        "x = np.where(mask, x, -100.0)",
    ),
    Bug(
        "largest logit sought from 0 on: all weights vanish",
        "attend",
        ATTENTION,
        "x.max(axis=-1, keepdims=True)",
        "x.max(axis=-1, keepdims=True, initial=0.0)",
    ),
    Bug(
        "largest logit of the whole block subtracted from every row",
        "attend",
        ATTENTION,
        "x.max(axis=-1, keepdims=True)",
        "x.max(axis=(-2, -1), keepdims=True)",
    ),
    Bug(
        "largest logit sought among masked entries, too",
        "attend",
        ATTENTION,
        "    if mask is not None:\n",
        "    largest = x.max(axis=-1, keepdims=True)\n    if mask is not None:\n",
        (("np.exp(x - x.max(axis=-1, keepdims=True))", "np.exp(x - largest)"),),
    ),
    Bug(
        "positions compared in 16 bits",
        "attend",
        ATTENTION,
        "return key_positions[:, None, None, :] <= query_positions[None, None, :, None]",
        "return (key_positions[:, None, None, :].astype(np.int16)"
        " <= query_positions[None, None, :, None].astype(np.int16))",
    ),
    Bug(
        "positions compared in float16",
        "attend",
        ATTENTION,
        "return key_positions[:, None, None, :] <= query_positions[None, None, :, None]",
        "return (key_positions[:, None, None, :].astype(np.float16)"
        " <= query_positions[None, None, :, None].astype(np.float16))",
    ),
    # who stays
    Bug(
        "safe entries marked by the score 10⁴",
        "keep_set",
        SELECTION,
        "np.lexsort((scores, safe), axis=-1)",
        'np.argsort(np.where(safe, 1e4, scores), axis=-1, kind="stable")',
    ),
    Bug(
        "safe entries marked by the largest float32",
        "keep_set",
        SELECTION,
        "np.lexsort((scores, safe), axis=-1)",
        'np.argsort(np.where(safe, 3.4e38, scores), axis=-1, kind="stable")',
    ),
    Bug(
        "negative scores count as 0",
        "keep_set",
        SELECTION,
        "np.lexsort((scores, safe)",
        "np.lexsort((np.maximum(scores, 0), safe)",
    ),
    Bug(
        "of equal scores the earlier stays",
        "keep_set",
        SELECTION,
        "np.lexsort((scores, safe), axis=-1)",
        "np.lexsort((np.tile(-np.arange(safe.shape[1]), (len(safe), 1)), scores, safe), axis=-1)",
    ),
    Bug(
        "one entry too many stays",
        "keep_set",
        SELECTION,
        "max(0, candidates - room)",
        "max(0, candidates - room - 1)",
    ),
    Bug(
        "the lowest scores stay",
        "keep_set",
        SELECTION,
        "np.lexsort((scores, safe)",
        "np.lexsort((-scores, safe)",
    ),
    Bug(
        "safe entries compete with the others",
        "keep_set",
        SELECTION,
        "np.lexsort((scores, safe)",
        "np.lexsort((scores, np.zeros_like(safe))",
    ),
    Bug(
        "keep set in order of score instead of position",
        "keep_set",
        SELECTION,
        "return np.nonzero(stays)[1].reshape(G, -1)",
        "return np.nonzero(stays)[1].reshape(G, -1)[:, ::-1]",
    ),
    Bug(
        "−0 counts as less than 0: floats compared by their bits",
        "keep_set",
        SELECTION,
        "np.lexsort((scores, safe)",
        "np.lexsort((np.signbit(scores) * -1e-9 + scores, safe)",
    ),
    Bug(
        "scores compared in float16",
        "keep_set",
        SELECTION,
        "np.lexsort((scores, safe)",
        "np.lexsort((scores.astype(np.float16), safe)",
    ),
    Bug(
        "newest protected entries: one too few",
        "h2o",
        POLICY,
        "return (seen.positions < first) | (np.arange(n) >= n - self.recent)",
        "return (seen.positions < first) | (np.arange(n) > n - self.recent)",
    ),
    Bug(
        "a sink is evicted",
        "streaming_llm",
        POLICY,
        "if self.prompt else self.sinks\n",
        "if self.prompt else self.sinks - 1\n",
    ),
    Bug(
        "prompt pinned one token too far",
        "rpc",
        POLICY,
        "first = self.first(seen.clock.prompt)",
        "first = self.first(seen.clock.prompt + 1)",
    ),
    Bug(
        "budget one too large",
        "h2o",
        POLICY,
        "        return self.budget - protected\n",
        "        return self.budget - protected + 1\n",
    ),
    Bug(
        "nothing is evicted while the prompt is read",
        "h2o",
        POLICY,
        "return clock.prefilling or EveryDecode(self.decode_steps).due(clock)",
        "return EveryDecode(self.decode_steps).due(clock)",
    ),
    Bug(
        "lagged eviction one step early",
        "lazy_eviction",
        POLICY,
        "return crosses(clock.generated_before, clock.generated, self.steps)",
        "return crosses(clock.generated_before + 1, clock.generated + 1, self.steps)",
    ),
    Bug(
        "survivors not renormalised when eviction comes first",
        "caote:h2o",
        STEP,
        "weighted_values(survivors / survivors.sum(axis=-1, keepdims=True), seen.values)",
        "weighted_values(survivors, seen.values)",
    ),
    # what leaves
    Bug(
        "state not compacted",
        "h2o",
        CACHE,
        "name: array[kept]",
        "name: array[:, : keep.shape[1]]",
    ),
    Bug(
        "positions renumbered after an eviction",
        "h2o",
        CACHE,
        "            self.positions[kept],",
        "            np.tile(np.arange(keep.shape[1]), (len(keep), 1)),",
    ),
    Bug(
        "values not moved with their keys",
        "h2o",
        CACHE,
        "            self.values.take(keep),",
        "            self.values.take(np.tile(np.arange(keep.shape[1]), (len(keep), 1))),",
    ),
    Bug(
        "keep set of the first KV head used for all",
        "h2o",
        CACHE,
        "            self.keys.take(keep),",
        "            self.keys.take(np.tile(keep[:1], (len(keep), 1))),",
    ),
    Bug(
        "positions and stamps moved in 16 bits",
        "compact",
        "conformance/blocks.py",
        "exact(np.take_along_axis(x, rows",
        'exact(np.take_along_axis(x.astype(np.int16) if x.dtype.kind == "i" else x, rows',
    ),
    # quantisation
    Bug(
        "codes cut off instead of rounded",
        "quantize",
        CODES,
        "np.rint(np.clip(steps, 0, largest_code))",
        "np.floor(np.clip(steps, 0, largest_code))",
    ),
    Bug(
        "halves rounded up instead of to even",
        "quantize",
        CODES,
        "np.rint(np.clip(steps, 0, largest_code))",
        "np.floor(np.clip(steps, 0, largest_code) + 0.5)",
    ),
    Bug(
        "2^b levels instead of 2^b − 1 steps",
        "quantize",
        CODES,
        "largest_code = 2**bits - 1",
        "largest_code = 2**bits",
    ),
    Bug(
        "codes computed before the scale is rounded",
        "quantize",
        CODES,
        "step = _per_element(scale.astype(np.float64), group, length)",
        "step = _per_element(spread, group, length)",
    ),
    Bug(
        "zero point not rounded to float16",
        "quantize",
        CODES,
        "scale, zero = spread.astype(np.float16), low.astype(np.float16)",
        "scale, zero = spread.astype(np.float16), low - 2.0**-13",
    ),
    Bug(
        "a constant group divides zero by zero",
        "quantize",
        CODES,
        "np.divide(offset, step, out=np.zeros_like(offset), where=step > 0)",
        "np.divide(offset, step, out=np.full_like(offset, 1), where=step > 0)",
    ),
    Bug(
        "one scale for the whole vector instead of per group",
        "quantize",
        CODES,
        "starts = np.arange(0, length, group)",
        "starts = np.arange(0, length, group) * 0",
    ),
    Bug(
        "codes packed with the highest bit first",
        "pack",
        CODES,
        'np.packbits(planes.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")',
        'np.packbits(planes.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="big")',
    ),
    Bug(
        "read back without the zero point",
        "dequantize",
        CODES,
        "return scale * codes + zero",
        "return scale * codes",
    ),
    # pooling and reduction
    Bug(
        "mean at the border over the neighbours there are",
        "pool",
        WINDOWS,
        "return neighbours.sum(axis=-1) / kernel",
        "pass",
    ),
    Bug(
        "pooling looks back only", "pool", WINDOWS, "(kernel // 2, kernel // 2)", "(kernel - 1, 0)"
    ),
    Bug(
        "maximum pooled against zeros",
        "pool",
        WINDOWS,
        "windows_along_last(x, kernel, fill=-np.inf).max(axis=-1)",
        "windows_along_last(x, kernel, fill=0.9).max(axis=-1)",
    ),
    Bug(
        "pooling over all entries instead of the candidates",
        "snapkv",
        "methods/snapkv.py",
        "return among_candidates(looked_at, candidates, self.pool)",
        "return self.pool(looked_at)",
    ),
    # H2O, TOVA, SnapKV
    Bug(
        "group maximum instead of mean",
        "h2o",
        "methods/h2o.py",
        "reduce_group(seen.attention, self.reduce)",
        'reduce_group(seen.attention, "max")',
    ),
    Bug(
        "only the last row of a block is added up",
        "h2o",
        "methods/h2o.py",
        "self.reduce).sum(axis=1)",
        "self.reduce)[:, -1]",
    ),
    Bug(
        "sums start anew at every block",
        "h2o",
        "methods/h2o.py",
        'state.entries["accumulated"] + received',
        "received",
    ),
    Bug(
        "sums kept in float16",
        "h2o",
        "methods/h2o.py",
        'accumulated=state.entries["accumulated"] + received',
        'accumulated=(state.entries["accumulated"] + received).astype(np.float16).astype(float)',
        (("from dataclasses", "import numpy as np\nfrom dataclasses"),),
    ),
    Bug(
        "all rows of a block instead of the last",
        "tova",
        "methods/tova.py",
        "return seen.attention[:, :, -1, :]",
        "return seen.attention.mean(axis=2)",
    ),
    Bug(
        "the first KV head decides for the layer",
        "tova",
        "methods/tova.py",
        "last_row.mean(axis=(0, 1))",
        "last_row[0].mean(axis=0)",
    ),
    Bug(
        "observation window one query short",
        "snapkv",
        "methods/snapkv.py",
        "window_attention(state, seen, self.window)",
        "window_attention(state, seen, self.window - 1)",
    ),
    Bug(
        "group maximum instead of mean, in the window",
        "snapkv",
        "methods/snapkv.py",
        "attention.sum(axis=2).mean(axis=1)",
        "attention.sum(axis=2).max(axis=1)",
    ),
    # RaaS, R-KV, NACL, RPC
    Bug(
        "attention above instead of at least the threshold",
        "raas",
        "methods/raas.py",
        "(attention.max(axis=1) >= self.threshold)",
        "(attention.max(axis=1) > self.threshold)",
    ),
    Bug(
        "a new token is not stamped",
        "raas",
        "methods/raas.py",
        "used |= seen.positions == position",
        "pass",
    ),
    Bug(
        "stamped by the group's mean instead of its maximum",
        "raas",
        "methods/raas.py",
        "(attention.max(axis=1) >= self.threshold)",
        "(attention.mean(axis=1) >= self.threshold)",
    ),
    Bug(
        "page bound from the keys' maximum alone",
        "raas",
        "methods/raas.py",
        "np.maximum(queries * highest, queries * lowest)",
        "queries * highest",
    ),
    Bug(
        "the first similar key is spared instead of the last",
        "rkv",
        "methods/rkv.py",
        "row[similar[-1]] = 0.0",
        "row[similar[0]] = 0.0",
    ),
    Bug(
        "a key counts as similar to itself",
        "rkv",
        "methods/rkv.py",
        "np.fill_diagonal(cosine, 0.0)",
        "pass",
    ),
    Bug(
        "redundancy added instead of subtracted",
        "rkv",
        "methods/rkv.py",
        "self.mix * importance - (1 - self.mix)",
        "self.mix * importance + (1 - self.mix)",
    ),
    Bug(
        "importance over all entries instead of the candidates",
        "rkv",
        "methods/rkv.py",
        "softmax(raw.max(axis=1), candidates[:, None, :])",
        "softmax(raw.max(axis=1))",
    ),
    Bug(
        "noise subtracted instead of added",
        "nacl",
        "methods/nacl.py",
        "proxy / self.temperature + self.drawn",
        "proxy / self.temperature - self.drawn",
    ),
    Bug(
        "the random part takes the best entries again",
        "nacl",
        "methods/nacl.py",
        'proxy / self.temperature + self.drawn(seen)["noise"]',
        "proxy / self.temperature",
    ),
    Bug(
        "proxies see each other without a causal mask",
        "nacl",
        "methods/nacl.py",
        "        if self.causal:",
        "        if not self.causal:",
    ),
    Bug(
        "one compression too many is counted",
        "rpc",
        "methods/rpc.py",
        "return compressions * int(",
        "return (compressions + 1) * int(",
    ),
    Bug(
        "selector attention over all entries",
        "rpc",
        "methods/rpc.py",
        "self.selector, over=candidates)",
        "self.selector)",
    ),
    # LazyEviction
    Bug(
        "activated above instead of at least α",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        "(received[:, row] >= self.threshold)",
        "(received[:, row] > self.threshold)",
    ),
    Bug(
        "the latest interval instead of the longest",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        "np.maximum(interval, step - stamp)",
        "step - stamp",
    ),
    Bug(
        "interval one step short",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        "np.maximum(interval, step - stamp)",
        "np.maximum(interval, step - stamp - 1)",
    ),
    Bug(
        "a never activated entry gets H1 and H2",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        "np.where(recurs, h1 + h2, limit)",
        "h1 + h2",
    ),
    Bug(
        "H2 of MRI instead of MRI − 1",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        "decreasing(self.h2)(interval - 1.0)",
        "decreasing(self.h2)(interval + 0.0)",
    ),
    Bug(
        "H1 without the factor 2 of the sigmoid",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        "2 * np.exp(-np.logaddexp(0.0, x))",
        "np.exp(-np.logaddexp(0.0, x))",
    ),
    Bug(
        "counters kept in float16",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        "state.entries[name].copy() for name",
        "state.entries[name].astype(np.float16).astype(np.int64) for name",
    ),
    Bug(
        "group mean instead of maximum",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        "reduce_group(seen.attention, self.reduce)",
        'reduce_group(seen.attention, "mean")',
    ),
    Bug(
        "a new entry is stamped with its own step",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        "else step - 1",
        "else step",
    ),
    Bug(
        "entries are scored before the step is observed",
        "lazy_eviction",
        "methods/lazy_eviction.py",
        'elapsed = seen.clock.generated - state.entries["stamp"]',
        'elapsed = seen.clock.generated - 1 - state.entries["stamp"]',
    ),
    # CAOTE
    Bug(
        "1/(1 − α) missing",
        "eviction_error",
        "methods/caote.py",
        "error = ratio * np.linalg.norm",
        "error = h * np.linalg.norm",
    ),
    Bug(
        "printed formula where one entry has all the mass",
        "eviction_error",
        "methods/caote.py",
        "dominant, rest = h > 0.5,",
        "dominant, rest = h > 2,",
    ),
    Bug(
        "1 − α in float32",
        "eviction_error",
        "methods/caote.py",
        "dominant, rest = h > 0.5,",
        "dominant, rest = h > 2,",
        (
            (
                "return np.where(dominant, others, total - h)",
                "return (np.float32(1) - h.astype(np.float32)).astype(float)",
            ),
        ),
    ),
    Bug(
        "‖v‖ instead of ‖X − v‖",
        "eviction_error",
        "methods/caote.py",
        "np.linalg.norm(output - values, ord=norm",
        "np.linalg.norm(values, ord=norm",
    ),
    Bug(
        "squared norm",
        "eviction_error",
        "methods/caote.py",
        "error = ratio * np.linalg.norm(output - values, ord=norm, axis=-1)",
        "error = ratio * np.linalg.norm(output - values, ord=norm, axis=-1) ** 2",
    ),
    Bug(
        "FastCAOTE with the weighted mean of the values",
        "eviction_error",
        "methods/caote.py",
        "mean = values.mean(axis=-2, keepdims=True)",
        "mean = (h[..., None] * values).sum(axis=-2, keepdims=True)",
    ),
    Bug(
        "retention not normalised",
        "caote:h2o",
        "methods/caote.py",
        "h = normalize(retention)\n",
        "h = retention / retention.max()\n",
    ),
    Bug(
        "errors of a query group added up instead of L2",
        "caote:tova",
        "methods/caote.py",
        "return np.linalg.norm(per_head, axis=1)",
        "return per_head.sum(axis=1)",
    ),
    Bug(
        "the rest not renormalised after each eviction",
        "caote:h2o",
        "methods/caote.py",
        "left = normalize(np.where(evicted, 0.0, h))",
        "left = np.where(evicted, 0.0, h)",
    ),
    Bug(
        "newest entries of the wrapped method not protected",
        "caote:h2o",
        "methods/caote.py",
        'base.protect if self.protect == "inherit" else Nobody()',
        "Nobody()",
    ),
    # AhaKV
    Bug(
        "step gain without the square root",
        "ahakv",
        "methods/ahakv.py",
        "np.sqrt(2 * np.log(excess) / d) * np.sqrt(d)",
        "2 * np.log(excess)",
    ),
    Bug(
        "logarithm to the base 2", "ahakv", "methods/ahakv.py", "np.log(excess)", "np.log2(excess)"
    ),
    Bug(
        "step gain multiplies 1/√d instead of replacing it",
        "ahakv",
        "methods/ahakv.py",
        "np.sqrt(2 * np.log(excess) / d) * np.sqrt(d)",
        "np.sqrt(2 * np.log(excess) / d)",
    ),
    Bug(
        "competing tokens: position instead of position + 1",
        "ahakv",
        "methods/ahakv.py",
        "competing = positions + 1.0",
        "competing = positions + 0.0",
    ),
    Bug(
        "value norm not squared",
        "ahakv",
        "methods/ahakv.py",
        'size = norm**2 if self.value_prior == "squared" else norm',
        "size = norm",
    ),
    Bug(
        "value prior not divided by its maximum",
        "ahakv",
        "methods/ahakv.py",
        "np.divide(smoothed, largest, out=ones, where=largest > 0)",
        "smoothed",
    ),
    # KIVI, DDKS, DesireKV
    Bug(
        "residual of the values one token short",
        "kivi",
        "methods/kivi.py",
        "value_due = index < n - self.residual",
        "value_due = index <= n - self.residual",
    ),
    Bug(
        "keys quantised per token instead of per channel",
        "kivi",
        "methods/kivi.py",
        "cache.keys.quantize_channels(",
        "cache.keys.quantize_tokens(",
    ),
    Bug(
        "demoted values stay at 16 bits",
        "ddks",
        "methods/ddks.py",
        "values = cache.values.quantize_tokens(demoted, self.bits, self.group)",
        "values = cache.values",
    ),
    Bug(
        "balance upside down",
        "ddks",
        "methods/ddks.py",
        "np.divide(largest_query, largest_key,",
        "np.divide(largest_key, largest_query,",
    ),
    Bug(
        "demoted entries compete again",
        "ddks",
        "methods/ddks.py",
        "return self.protect.safe(seen) | (seen.bits < FULL_BITS)",
        "return self.protect.safe(seen)",
    ),
    Bug(
        "the unconfident token is protected, not the one after",
        "desirekv",
        "methods/desirekv.py",
        "before = seen.positions - self.shift",
        "before = seen.positions",
    ),
    Bug(
        "high and low precision exchanged",
        "desirekv",
        "methods/desirekv.py",
        "((high, self.high_bits), (~high, self.low_bits))",
        "((high, self.low_bits), (~high, self.high_bits))",
    ),
    Bug(
        "outliers beyond 3 interquartile ranges",
        "outlier_score",
        "methods/desirekv.py",
        "reach = 1.5 * (third - first)",
        "reach = 3.0 * (third - first)",
    ),
    Bug(
        "outliers averaged over the whole group",
        "outlier_score",
        "methods/desirekv.py",
        'count = outlier.sum(axis=-1) if over == "outliers" else block.shape[-1]',
        "count = block.shape[-1]",
    ),
    Bug(
        "decision window reaches into the selector",
        "desirekv",
        "methods/desirekv.py",
        "last = clock.prompt + passed * self.interval",
        "last = clock.prompt + passed * self.interval + 1",
    ),
    Bug(
        "sensitive from the threshold on instead of above it",
        "desirekv",
        "methods/desirekv.py",
        "return np.tile(relative > limit,",
        "return np.tile(relative >= limit,",
    ),
    Bug(
        "a zero is divided by the number of outliers where there are none",
        "outlier_score",
        "methods/desirekv.py",
        "total / np.maximum(count, 1)",
        "total / count",
    ),
    Bug(
        "the mean is pooled over three neighbours at least",
        "pool",
        WINDOWS,
        '    check_choice(("zero", "shrink"), border=border)',
        '    check_choice(("zero", "shrink"), border=border)\n    kernel = max(kernel, 3)',
    ),
    # pages, shared heads, precisions
    Bug(
        "pages are read in the order in which they lie in the memory",
        "attend_pages",
        BLOCKS,
        "named = pages[table[table >= 0]]",
        "named = pages[np.sort(table[table >= 0])]",
    ),
    Bug(
        "pages that were freed are still read",
        "attend_pages",
        BLOCKS,
        "named = pages[table[table >= 0]]",
        "named = pages[table]",
        (("there = np.flatnonzero(table >= 0)", "there = np.arange(len(table))"),),
    ),
    Bug(
        "after pages have left, positions go by the place in the table",
        "attend_pages",
        BLOCKS,
        "positions = (there[:, None] * page",
        "positions = (np.arange(len(there))[:, None] * page",
    ),
    Bug(
        "survivors are moved in place from the last on, over entries that still have to move",
        "compact_pages",
        BLOCKS,
        "rows[:kept] = moved",
        "for i in range(kept - 1, -1, -1):\n            rows[i] = rows[keep[:, i], range(G)]",
    ),
    Bug(
        "all heads move the entries of the first one",
        "compact_pages",
        BLOCKS,
        "rows[keep[g], g]",
        "rows[keep[0], g]",
    ),
    Bug(
        "pages that are left over stay in the table",
        "compact_pages",
        BLOCKS,
        "exact(table[: -(-kept // ",
        "exact(table[: 1 - (-kept // ",
    ),
    Bug(
        "every scale of the cache is 1",
        "encode",
        "codes.py",
        "scale = (size / largest).astype(np.float32)",
        "scale = np.ones_like(size, dtype=np.float32)",
    ),
    Bug(
        "one scale is read for all heads",
        "encode",
        "codes.py",
        "axis=(1, 2) if per_head else (0, 1, 2)",
        "axis=(0, 1, 2)",
    ),
    Bug(
        "block scales are read in the wrong order",
        "encode",
        "precisions/nvfp4.py",
        "np.repeat(scales, BLOCK, axis=1)",
        "np.repeat(scales[:, ::-1], BLOCK, axis=1)",
    ),
    Bug(
        "a block of zeros is divided by its scale",
        "encode",
        "precisions/nvfp4.py",
        "np.divide(x, divisor, out=np.zeros_like(x), where=divisor > 0)",
        "x / divisor",
    ),
    Bug(
        "later vectors change the scale of the layer",
        "encode",
        BLOCKS,
        "scale = code.scale(first)",
        "scale = code.scale(x)",
    ),
    Bug(
        "vectors are coded without dividing them by their length",
        "encode",
        TURBOQUANT,
        "np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)",
        "x",
    ),
    Bug(
        "vectors are not rotated back when they are read",
        "encode",
        TURBOQUANT,
        "[indices] @ rotation(d, self.seed)",
        "[indices]",
    ),
    Bug(
        "the norm of the residual is left out when a vector is read",
        "encode",
        TURBOQUANT,
        "correction = np.sqrt(np.pi / 2) / d * gamma * (",
        "correction = np.sqrt(np.pi / 2) / d * (",
    ),
    Bug(
        "the page that is being written may be evicted",
        "tova",
        "granularity.py",
        "return newest | page_has(",
        "return page_has(",
    ),
    Bug(
        "the first KV head decides for its layer",
        "h2o",
        "granularity.py",
        "joined = scores.mean(axis=0)",
        "joined = scores[0]",
    ),
    Bug(
        "every block gives the layer another scale",
        "full",
        "stored_vectors.py",
        "scale = code.scale(self.vectors) if self.scale is None else self.scale",
        "scale = code.scale(self.vectors)",
    ),
    Bug(
        "a single survivor is not moved",
        "compact",
        "conformance/blocks.py",
        '    rows = inputs["keep"]',
        '    rows = inputs["keep"] * (inputs["keep"].shape[1] > 1)',
    ),
)

SIZED_BUGS = (
    Bug(
        "the second split of 256 entries is forgotten",
        "attend",
        ATTENTION,
        "return attention @ values[:, None]",
        "forgotten = np.arange(attention.shape[-1]) // 256 == 1\n"
        "    return np.where(forgotten, 0, attention) @ values[:, None]",
    ),
    Bug(
        "query heads from the ninth of a group on read the first KV head",
        "attend",
        ATTENTION,
        "return attention @ values[:, None]",
        "first, rest = attention[:, :8], attention[:, 8:]\n"
        "    return np.hstack([first @ values[:, None], rest @ values[:1, None]])",
    ),
    Bug(
        "queries from the 65th of a block on see every entry",
        "attend",
        ATTENTION,
        "<= query_positions[None, None, :, None]",
        "<= np.append(query_positions[:64], query_positions[64:] + 10**9)[None, None, :, None]",
    ),
    Bug(
        "a selection looks at 1,024 entries alone",
        "keep_set",
        SELECTION,
        "np.lexsort((scores, safe), axis=-1)",
        "np.lexsort((np.where(np.arange(n) < 1024, scores, -np.inf), safe), axis=-1)",
    ),
    Bug(
        "a group's minimum sees 32 elements alone",
        "quantize",
        CODES,
        "low = np.minimum.reduceat(x, starts, axis=-1)",
        "seen = np.where(np.arange(length) % group < 32, x, np.inf)\n"
        "    low = np.minimum.reduceat(seen, starts, axis=-1)",
    ),
)
"""Bugs that show at sizes of kernels alone."""


def table() -> str:
    """Return the list of bugs as the documentation shows it."""
    lines = [
        "# Bugs that the conformance kit finds",
        "",
        f"{len(BUGS)} plausible bugs, each a change of a line of the reference. Every one makes "
        "the kit fail, and the",
        "unchanged reference passes: `tests/conformance/test_mutants.py` plants them one by one. "
        "The list is written by",
        "`python tests/conformance/mutants.py > docs/conformance_bugs.md`.",
        "",
        "| bug | what notices | planted in |",
        "|---|---|---|",
        *(f"| {bug.name} | `{bug.target}` | `{bug.file}` |" for bug in BUGS),
        "",
        "## Whole caches",
        "",
        f"{len(CACHE_BUGS)} plausible bugs of engines, each a change of a line of a small engine "
        "in NumPy that passes without it",
        "(`tests/conformance/engine.py`). `tests/conformance/test_whole_caches.py` plants them one "
        "by one.",
        "",
        "| bug | group that notices | what the group stresses |",
        "|---|---|---|",
        *(
            f"| {bug.name} | `{group}` | {ABOUT_GROUPS[group]['stresses']} |"
            for bug in CACHE_BUGS
            for group in [f"cache_{bug.group}"]
        ),
    ]
    return "\n".join(lines) + "\n"


@cache
def compiled(origin: str) -> CodeType:
    """Return the code of an unchanged file; all copies share it."""
    return compile(Path(origin).read_text(encoding="utf-8"), origin, "exec")


@cache
def compiled_text(text: str) -> CodeType:
    """Return the code of a method that `dataclasses` writes; all copies share it, too."""
    return compile(text, "<dataclass>", "exec")


def execute(text: str, names: dict[str, Any], into: dict[str, Any]) -> None:
    """Stand in for ``exec`` in `dataclasses`, where compiling takes most of an import's time."""
    exec(compiled_text(text), names, into)


class Planted(MetaPathFinder, Loader):
    """Loads the package, one of its modules from changed source."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    def find_spec(self, fullname: str, path, target=None) -> ModuleSpec | None:
        """Find what lies in the package alone."""
        if not fullname.startswith(f"{PACKAGE}."):
            return None
        found = PathFinder.find_spec(fullname, path)
        assert found is not None and found.origin is not None
        locations = found.submodule_search_locations
        return spec_from_file_location(
            fullname, found.origin, loader=self, submodule_search_locations=locations
        )

    def exec_module(self, module: ModuleType) -> None:
        """Run the source, changed where the bug is."""
        changed = module.__name__ == self.name
        code = compile(self.source, "<bug>", "exec") if changed else compiled(str(module.__file__))
        exec(code, module.__dict__)


def changed_source(bug: Bug) -> str:
    """Return a file of the reference with the bug; each text to change occurs once."""
    source = (ROOT / bug.file).read_text(encoding="utf-8")
    for right, wrong in ((bug.right, bug.wrong), *bug.also):
        assert source.count(right) == 1, (bug.name, right, source.count(right))
        source = source.replace(right, wrong)
    return source


@contextmanager
def imported_anew(finder: MetaPathFinder) -> Iterator[None]:
    """Forget the package, import it through a finder, without checks of types; then restore it."""
    ours = {name: m for name, m in sys.modules.items() if f"{name}.".startswith(f"{PACKAGE}.")}
    finders = sys.meta_path[:]
    for name in ours:
        del sys.modules[name]
    sys.meta_path[:] = [finder, *(f for f in finders if "jaxtyping" not in type(f).__module__)]
    try:
        yield
    finally:
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{PACKAGE}.")]:
            del sys.modules[name]
        sys.modules.update(ours)
        sys.modules["kvlab"].reference = ours[PACKAGE]  # type: ignore[attr-defined]


class Copy:
    """The reference, imported anew, as an implementation under test."""

    precision = "float32"

    def __init__(self, bug: Bug | None) -> None:
        name, source = "nothing", ""
        if bug is not None:
            name = f"{PACKAGE}.{bug.file.removesuffix('.py').replace('/', '.')}"
            source = changed_source(bug)
        once = patch("dataclasses.exec", execute, create=True)
        with imported_anew(Planted(name, source)), once:
            targets = importlib.import_module(f"{PACKAGE}.conformance.targets")
            importlib.import_module(f"{PACKAGE}.methods").discover()
            importlib.import_module(f"{PACKAGE}.precisions").families()
        self.described = targets.described

    def offers(self, target: str) -> bool:
        """Everything."""
        return True

    def answer(self, case) -> dict[str, np.ndarray]:
        """Return what the copy computes, rounded as a kernel in float32 would."""
        with np.errstate(all="ignore"):
            expected = self.described(case).compute(case.inputs, case.parameters, case.method)
        return {
            name: each.value.astype(np.float32) if each.kind == "numbers" else each.value
            for name, each in expected.items()
        }


if __name__ == "__main__":
    print(table(), end="")
