/** What the page shows of one step of one layer: every entry, its score, and what became of it. */

import { distance, weightedValues } from "./attention.mjs";
import { normalize } from "./methods/caote.mjs";
import { reduceRows } from "./windows.mjs";

/** What became of an entry: nothing was decided, it is protected, it was chosen, or it is evicted. */
export const UNDECIDED = 0;
export const SAFE = 1;
export const CHOSEN = 2;
export const GONE = 3;

/**
 * Picture the result of a step, per KV head: `positions`, `fates`, `scores` (NaN where nothing was
 * rated), `bits` (mean of key and value, 0 for what is evicted) and `attention` of the block's last query.
 */
export function picture({ seen, cache, keep, safe, scores }) {
  return seen.positions.map((positions, g) => {
    const fates = new Uint8Array(positions.length), bits = new Float32Array(positions.length);
    const staying = keep === null ? [...positions.keys()] : keep[g];
    if (keep !== null) fates.fill(GONE);
    staying.forEach((j, place) => {
      if (keep !== null) fates[j] = safe[g][j] ? SAFE : CHOSEN;
      bits[j] = (cache.keys.bits[g][place] + cache.values.bits[g][place]) / 2;
    });
    return {
      positions: Uint16Array.from(positions),
      fates,
      bits,
      scores: scores === null ? new Float32Array(positions.length).fill(NaN) : Float32Array.from(scores[g]),
      attention: Float32Array.from(reduceRows(seen.attention[g].map((rows) => rows[rows.length - 1]), "mean")),
    };
  });
}

/**
 * What CAOTE multiplies, whatever method decides, per KV head: `weights`, every entry's share of the attention that all have
 * received since they were written, and `distances` of its value from the output that these give. Empty where nothing was rated.
 */
export class Worth {
  received = []; // [layer][g], by position

  of(layer, { seen, scores }) {
    const before = this.received[layer];
    const sums = seen.positions.map((positions, g) => {
      const heads = seen.attention[g], rows = reduceRows(heads.flat(), "sum");
      return new Map(positions.map((position, j) => [position, (before?.[g].get(position) ?? 0) + rows[j] / heads.length]));
    });
    this.received[layer] = sums;
    return seen.values.map((values, g) => {
      if (scores === null) return { weights: [], distances: [] };
      const weights = normalize([...sums[g].values()]), output = weightedValues(weights, values);
      return { weights: Float32Array.from(weights), distances: Float32Array.from(values, (value) => distance(output, value)) };
    });
  }
}
