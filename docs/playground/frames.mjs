/** What the page shows of one step of one layer: every entry, its score, and what became of it. */

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
