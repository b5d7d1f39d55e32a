/** The step of one layer: append, attend, observe and, if due, select, store and compact; as reference/step.py. */

import { attend, mapQueries, weightedValues } from "./attention.mjs";
import { LayerCache } from "./cache.mjs";
import { Observation } from "./observation.mjs";
import { keepSet } from "./selection.mjs";

/** Return the empty cache of one layer for a policy. */
export function emptyCache(policy, kvHeads) {
  return LayerCache.empty(kvHeads, policy.score.columns);
}

/**
 * Append a block, attend, observe and, if due, select, store and compact.
 *
 * `block` holds clock, layer, queries, keys, values, confidence, softcap and, for `reposition`,
 * rotate. Nothing is changed in place. `keep`, `safe` and `scores` are null where nothing was decided.
 */
export function step(policy, cache, block) {
  cache = cache.append(block.keys, block.values, block.clock.positions);
  let { output, seen } = observeAttention(policy, cache, block);
  const state = policy.score.observe(cache.state, seen);
  cache = cache.with({ state });
  if (!policy.schedule.due(block.clock)) return { output, cache, seen, keep: null, safe: null, scores: null };
  const { candidates, keep: chosen, safe, scores } = select(policy, state, seen);
  const stored = policy.precision.store(cache, seen, candidates, chosen);
  if (policy.evictBeforeAttend) output = attendSurvivors(seen, stored.keep);
  return { output, cache: stored.cache.compact(stored.keep), seen, keep: stored.keep, safe, scores };
}

/** Let the block's queries attend to all present entries. */
export function observeAttention(policy, cache, block) {
  const { clock } = block, n = cache.length;
  let keys = cache.keys.vectors, queries = block.queries;
  if (policy.reposition) {
    if (!block.rotate) throw new RangeError("reposition = true needs a model that hands over its rotary embedding");
    keys = keys.map((own, g) => own.map((key, j) => block.rotate(key, j - cache.positions[g][j])));
    queries = mapQueries(queries, (query, g, i) => block.rotate(query, n - clock.seen));
  }
  const values = cache.values.vectors;
  const { output, attention } = attend(queries, keys, values, clock.positions, cache.positions, block.softcap);
  const seen = new Observation({
    clock,
    layer: block.layer,
    queries,
    attention,
    keys,
    values,
    positions: cache.positions,
    bits: cache.keys.bits,
    confidence: block.confidence,
    softcap: block.softcap ?? null,
  });
  return { output, seen };
}

/** Return the candidates and the keep set: the protected entries and the best of the rest. */
export function select(policy, state, seen) {
  const safe = policy.protect.safe(seen);
  const room = policy.budget.room(seen, safe);
  const candidates = safe.map((marks) => marks.map((mark) => !mark));
  const most = Math.max(...candidates.map((marks) => marks.filter(Boolean).length));
  if (room >= most) {
    return { candidates, keep: safe.map((marks) => [...marks.keys()]), safe, scores: null };
  }
  const scores = policy.score.score(state, seen, candidates, room);
  return { candidates, keep: keepSet(scores, safe, room), safe, scores };
}

/** Attention output over the kept entries, renormalised; a query always keeps its own key. */
export function attendSurvivors(seen, keep) {
  return mapQueries(seen.attention, (row, g, i) => { // [CAOTE 7]
    const kept = new Set(keep[g]), own = seen.queryPositions[i];
    const survivors = row.map((weight, j) => (kept.has(j) || seen.positions[g][j] === own ? weight : 0));
    const sum = survivors.reduce((total, weight) => total + weight, 0);
    return weightedValues(survivors.map((weight) => weight / sum), seen.values[g]);
  });
}
