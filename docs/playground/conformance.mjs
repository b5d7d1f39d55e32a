/**
 * The playground's files under test: `kvlab conformance run --exec "node docs/playground/conformance.mjs"`.
 *
 * Called as `node conformance.mjs TARGET INPUT OUTPUT`, as docs/conformance.md says. The exit code is
 * 77 for methods and options that these files do not have.
 */

import { readFileSync, writeFileSync } from "node:fs";
import process from "node:process";

import { attend, mapQueries } from "./attention.mjs";
import { LayerCache, State } from "./cache.mjs";
import { NotImplemented } from "./method.mjs";
import { evictionError, fastEvictionError } from "./methods/caote.mjs";
import { outlierScore } from "./methods/desirekv.mjs";
import { get, readValue } from "./methods/index.mjs";
import { Clock, Observation } from "./observation.mjs";
import { FULL_BITS, dequantize, pack, quantize } from "./quantization.mjs";
import { readSafetensors, writeSafetensors } from "./safetensors.mjs";
import { keepSet, take } from "./selection.mjs";
import { emptyCache, select, step } from "./step.mjs";
import { StoredVectors } from "./stored_vectors.mjs";
import { maxPool, meanPool, reduceRows } from "./windows.mjs";

const SKIPPED = 77;
const REMEMBERED = "remembered_";

/** Options that these files do not have; RaaS has a page of its own. */
const FOREIGN = ["page", "kv_heads", "precision", "when_full"];

// --- tensors and nested arrays ---------------------------------------------------------------------

/** Turn a tensor into nested arrays; the innermost are typed where the tensor holds floats. */
function nested({ shape, data }) {
  if (shape.length === 1) return data instanceof Float32Array ? Float64Array.from(data) : Array.from(data);
  const [count, ...rest] = shape, size = rest.reduce((product, axis) => product * axis, 1);
  return Array.from({ length: count }, (_, row) =>
    nested({ shape: rest, data: data.slice(row * size, (row + 1) * size) }));
}

/** Turn nested arrays into a tensor. */
function tensor(x) {
  const shape = [];
  for (let inner = x; inner?.length !== undefined; inner = inner[0]) shape.push(inner.length);
  const flat = (part, depth) => (depth === 1 ? Array.from(part, Number) : Array.from(part, (each) => flat(each, depth - 1)).flat());
  return { shape, data: flat(x, shape.length) };
}

// --- building blocks: x holds the inputs, p the parameters -------------------------------------------

const attention = (x, p) =>
  attend(x.queries, x.keys, x.values ?? x.keys, x.query_positions, x.positions, p.softcap);

/** Vectors that were stored as codes, of one row. */
const stored = (x, p, name, row) =>
  dequantize({ codes: x[`${name}codes`][row], scale: x[`${name}scale`][row], zero: x[`${name}zero`][row], group: p.group });

const transposed = (rows) => Array.from(rows[0], (_, column) => rows.map((row) => row[column]));

/** Codes, scales and zero points of every row. */
function coded(rows, p) {
  const found = rows.map((row) => quantize(row, p.bits, p.group));
  const part = (name) => found.map((each) => Array.from(each[name]));
  return { codes: part("codes"), scale: part("scale"), zero: part("zero") };
}

/** Attention of one token to entries that are stored as codes. */
function attendCoded(x, p) {
  const read = (which) => x[`${which}_codes`].map((_, g) => {
    const own = Object.fromEntries(["codes", "scale", "zero"].map((part) => [part, x[`${which}_${part}`][g]]));
    return own.codes.map((_, j) => stored(own, p, "", j));
  });
  const keys = read("key"), nowhere = keys.map((own) => own.map(() => 0));
  return { output: attend(x.queries, keys, read("value"), [0], nowhere, p.softcap).output };
}

const BLOCKS = {
  attend: (x, p) => ({ output: attention(x, p).output }),
  attention: (x, p) => ({ attention: attention(x, p).attention }),
  received_attention: (x, p) => ({ received: attention(x, p).attention.map((group) => reduceRows(group.flat(), "sum")) }),
  keep_set: (x, p) => ({ keep: keepSet(x.scores, x.safe, p.room) }),
  compact: ({ keep, ...x }) => Object.fromEntries(Object.entries(x).map(([name, each]) => [name, take(each, keep)])),
  quantize: (x, p) => coded(x.x, p),
  quantize_channels: (x, p) =>
    Object.fromEntries(Object.entries(coded(transposed(x.x), p)).map(([name, each]) => [name, transposed(each)])),
  dequantize: (x, p) => ({ x: x.codes.map((_, row) => stored(x, p, "", row)) }),
  quantize_dequantize: (x, p) => ({ x: x.x.map((row) => dequantize(quantize(row, p.bits, p.group))) }),
  pack: (x, p) => ({ packed: x.codes.map((codes) => pack(codes, p.bits)) }),
  attend_coded: attendCoded,
  eviction_error: (x, p) => ({
    error: x.h.map((rows, g) => rows.map((h) => (p.fast ? fastEvictionError : evictionError)(h, x.values[g], p.norm))),
  }),
  pool: (x, p) => ({
    pooled: x.x.map((own) => (p.pooling === "max" ? maxPool(own, p.kernel) : meanPool(own, p.kernel, p.border))),
  }),
  outlier_score: (x, p) => ({ score: x.x.map((row) => outlierScore(row, p.over)) }),
};

// --- steps of a method -------------------------------------------------------------------------------

/** Rebuild what a block saw. */
function observationOf(x, p) {
  return new Observation({
    clock: new Clock(p.seen, p.block, p.prompt),
    layer: 0,
    queries: x.queries,
    attention: x.attention,
    keys: x.keys,
    values: x.values,
    positions: x.positions,
    bits: x.stored_bits ?? x.positions.map((own) => own.map(() => FULL_BITS)),
    confidence: x.confidence ?? new Float64Array(p.seen).fill(NaN),
    softcap: p.softcap ?? null,
  });
}

/** Rebuild what a score remembers. */
function stateOf(policy, x) {
  const entries = Object.fromEntries(policy.score.columns.map((name) => [name, x[name]]));
  const remembered = Object.entries(x).filter(([name]) => name.startsWith(REMEMBERED));
  return new State(entries, Object.fromEntries(remembered.map(([name, each]) => [name.slice(REMEMBERED.length), each])));
}

/** Widths and vectors as attention reads them. */
function storedParts(cache) {
  return {
    key_bits: cache.keys.bits, value_bits: cache.values.bits, keys: cache.keys.vectors, values: cache.values.vectors,
  };
}

/** What is kept at which precision. */
function store(x, p, policy) {
  const nothing = StoredVectors.empty(x.keys.length), seen = observationOf(x, p);
  const cache = new LayerCache(nothing.append(x.keys), nothing.append(x.values), x.positions, new State());
  const candidates = policy.protect.safe(seen).map((own) => own.map((mark) => !mark));
  const found = policy.precision.store(cache, seen, candidates, x.keep);
  return { keep: found.keep, ...storedParts(found.cache.compact(found.keep)) };
}

/** A whole stream, block by block. */
function run(x, p, policy) {
  policy.check(p.prompt);
  const heads = x.keys.length, tokens = x.keys[0].length, present = [];
  const output = mapQueries(x.queries, () => null);
  let cache = emptyCache(policy, heads), seen = 0;
  for (const m of x.blocks) {
    const first = seen;
    seen += m;
    const part = (own) => own.slice(first, seen);
    const result = step(policy, cache, {
      clock: new Clock(seen, m, p.prompt),
      layer: 0,
      queries: x.queries.map((group) => group.map(part)),
      keys: x.keys.map(part),
      values: x.values.map(part),
      confidence: x.confidence.slice(0, seen),
      softcap: p.softcap,
    });
    cache = result.cache;
    result.output.forEach((group, g) => group.forEach((head, r) =>
      head.forEach((vector, i) => { output[g][r][first + i] = vector; })));
    present.push(cache.positions.map((own) => Array.from({ length: tokens }, (_, position) => own.includes(position))));
  }
  return { output, present, ...storedParts(cache), ...cache.state.entries };
}

const STEPS = {
  observe: (x, p, policy) => policy.score.observe(stateOf(policy, x), observationOf(x, p)).entries,
  score: (x, p, policy) => ({ scores: policy.score.score(stateOf(policy, x), observationOf(x, p), x.candidates, p.room) }),
  select: (x, p, policy) => ({ keep: select(policy, stateOf(policy, x), observationOf(x, p)).keep }),
  keep: (x, p, policy) => {
    const seen = observationOf(x, p), safe = policy.protect.safe(seen);
    return { keep: keepSet(x.scores, safe, policy.budget.room(seen, safe)) };
  },
  store,
  run,
};

/** Compute what a target asks for. */
function answer(target, x, metadata) {
  const value = (text) => (text === "none" ? null : readValue(text));
  const p = Object.fromEntries(Object.entries(metadata).map(([name, text]) => [name, value(text)]));
  if (Object.hasOwn(BLOCKS, target)) return BLOCKS[target](x, p);
  const name = target.split(".").at(-1);
  if (!Object.hasOwn(STEPS, name)) throw new NotImplemented(`unknown target ${target}`);
  const own = metadata.method.startsWith("raas@") ? "page" : "";
  const foreign = FOREIGN.find((option) => option !== own && metadata.method.includes(`${option}=`));
  if (foreign !== undefined) throw new NotImplemented(`no option ${foreign}`);
  return STEPS[name](x, p, get(metadata.method, p.budget));
}

const [target, input, output] = process.argv.slice(2);
try {
  const { tensors, metadata } = readSafetensors(new Uint8Array(readFileSync(input)));
  const inputs = Object.fromEntries(Object.entries(tensors).map(([name, each]) => [name, nested(each)]));
  const found = Object.entries(answer(target, inputs, metadata)).map(([name, each]) => [name, tensor(each)]);
  writeFileSync(output, writeSafetensors(Object.fromEntries(found)));
} catch (error) {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = error instanceof NotImplemented ? SKIPPED : 1;
}
