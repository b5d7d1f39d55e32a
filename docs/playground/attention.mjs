/**
 * Attention over a cache, for grouped query heads; as reference/attention.py.
 *
 * Arrays are nested: `queries[g][r][i]` and `keys[g][j]` are vectors (Float64Array), `positions[g]`
 * are numbers, and `attention[g][r][i]` holds one probability per entry. g counts KV heads, r the
 * query heads that share one, i the queries of a block, j the entries of the cache.
 */

/** Put query head h = g·ρ + r under the KV head g that it reads. */
export function groupHeads(heads, kvHeads) {
  if (heads.length % kvHeads) {
    throw new RangeError(`query heads = ${heads.length} must be a multiple of kv_heads = ${kvHeads}`);
  }
  const rho = heads.length / kvHeads;
  return Array.from({ length: kvHeads }, (_, g) => heads.slice(g * rho, (g + 1) * rho));
}

/** Say of every entry whether a query at this position may read it. */
export function visible(queryPosition, positions) {
  return positions.map((position) => position <= queryPosition);
}

/** Dot product of two vectors. */
export function dot(a, b) {
  let sum = 0;
  for (let c = 0; c < a.length; c++) sum += a[c] * b[c];
  return sum;
}

/** Distance of two vectors in the norm of this order. */
export function distance(a, b, norm = 2) {
  let sum = 0;
  for (let c = 0; c < a.length; c++) {
    const size = Math.abs(a[c] - b[c]);
    if (norm === Infinity) sum = Math.max(sum, size);
    else sum += norm === 2 ? size * size : size ** norm;
  }
  if (norm === Infinity) return sum;
  return norm === 2 ? Math.sqrt(sum) : sum ** (1 / norm);
}

/** Scaled dot products q·k/√d of one query, squeezed into ±softcap if a model asks for it. */
export function logits(query, keys, softcap = null) {
  const scale = Math.sqrt(query.length), products = new Float64Array(keys.length);
  for (let j = 0; j < products.length; j++) products[j] = dot(query, keys[j]) / scale;
  return softcap === null ? products : products.map((x) => softcap * Math.tanh(x / softcap));
}

/** Softmax over the entries where `mask` is true; without a mask, over all. */
export function softmax(x, mask = null) {
  let largest = -Infinity;
  for (let j = 0; j < x.length; j++) {
    if (!Number.isFinite(x[j])) throw new RangeError("attention logits must be finite, got NaN or infinity");
    if ((mask === null || mask[j]) && x[j] > largest) largest = x[j];
  }
  if (largest === -Infinity) {
    throw new RangeError("attention mask leaves a query without any entry to attend to");
  }
  const weights = new Float64Array(x.length);
  let sum = 0;
  for (let j = 0; j < x.length; j++) {
    if (mask !== null && !mask[j]) continue;
    weights[j] = Math.exp(x[j] - largest);
    sum += weights[j];
  }
  for (let j = 0; j < weights.length; j++) weights[j] /= sum;
  return weights;
}

/** Attention output X = A·V of one query. */
export function weightedValues(attention, values) {
  const output = new Float64Array(values[0].length);
  for (let j = 0; j < values.length; j++) {
    const weight = attention[j], value = values[j];
    if (weight === 0) continue;
    for (let c = 0; c < output.length; c++) output[c] += weight * value[c];
  }
  return output;
}

/** Apply a function to every query of `queries[g][r][i]`; it is given the query, g and i. */
export function mapQueries(queries, each) {
  return queries.map((group, g) => group.map((head) => head.map((query, i) => each(query, g, i))));
}

/** Return the attention output and the attention probabilities of a block of queries. */
export function attend(queries, keys, values, queryPositions, positions, softcap = null) {
  const attention = mapQueries(queries, (query, g, i) =>
    softmax(logits(query, keys[g], softcap), visible(queryPositions[i], positions[g])));
  return { output: mapQueries(attention, (row, g) => weightedValues(row, values[g])), attention };
}
