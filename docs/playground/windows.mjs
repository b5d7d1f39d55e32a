/** What several scores share: the last queries, attention of a window, pooling; as reference/windows.py. */

import { logits, softmax, visible } from "./attention.mjs";
import { checkChoice, checkKernel } from "./checks.mjs";

/** Reduce rows of equal length to one, element by element: their mean, maximum or sum. */
export function reduceRows(rows, how) {
  checkChoice(["mean", "max", "sum"], { reduce: how });
  const reduced = Float64Array.from(rows[0]);
  for (const row of rows.slice(1)) {
    row.forEach((x, j) => { reduced[j] = how === "max" ? Math.max(reduced[j], x) : reduced[j] + x; });
  }
  return how === "mean" ? reduced.map((x) => x / rows.length) : reduced;
}

/** Keep the last `size` queries and their positions in the state's stream. */
export function rememberQueries(state, seen, size) {
  const { queries: before, query_positions: places = [] } = state.stream;
  const queries = seen.queries.map((group, g) =>
    group.map((head, r) => [...(before ? before[g][r] : []), ...head].slice(-size)));
  const positions = [...places, ...seen.queryPositions].slice(-size);
  return state.withStream({ queries, query_positions: positions });
}

/** Return, per KV head and query head, the logits of the last `size` queries and what each may see. */
export function windowLogits(state, seen, size) {
  const positions = state.stream.query_positions.slice(-size);
  return state.stream.queries.map((group, g) => group.map((head) => head.slice(-size).map((query, i) => ({
    raw: seen.logits(query, g),
    mask: visible(positions[i], seen.positions[g]),
  }))));
}

/** Attention `[g][r][i]` of the last `size` queries over the present entries, or over `over` alone. */
export function windowAttention(state, seen, size, over = null) {
  return windowLogits(state, seen, size).map((group, g) => group.map((head) => head.map(({ raw, mask }) =>
    softmax(raw, over === null ? mask : mask.map((there, j) => there && over[g][j])))));
}

/** Average `kernel` neighbours; beyond the border lie zeros, or nothing ("shrink"). */
export function meanPool(x, kernel, border) {
  checkKernel(kernel);
  checkChoice(["zero", "shrink"], { border });
  return x.map((_, place) => {
    const near = neighbours(x, place, kernel);
    return near.reduce((sum, each) => sum + each, 0) / (border === "zero" ? kernel : near.length);
  });
}

/** Maximum over `kernel` neighbours. */
export function maxPool(x, kernel) {
  checkKernel(kernel);
  return x.map((_, place) => Math.max(...neighbours(x, place, kernel)));
}

/** Return the elements around a place, as far as there are any. */
function neighbours(x, place, kernel) {
  const reach = (kernel - 1) / 2;
  return x.slice(Math.max(0, place - reach), place + reach + 1);
}

/** Apply a function to the candidates' scores alone, in cache order; others keep their score. */
export function amongCandidates(scores, candidates, change) {
  return scores.map((own, g) => {
    const chosen = [...own.keys()].filter((j) => candidates[g][j]);
    const result = Float64Array.from(own);
    change(Float64Array.from(chosen, (j) => own[j])).forEach((x, place) => { result[chosen[place]] = x; });
    return result;
  });
}

/** Linear interpolation between order statistics, as NumPy's quantile. */
export function quantile(numbers, q) {
  const sorted = Float64Array.from(numbers).sort();
  const place = q * (sorted.length - 1), below = Math.floor(place), t = place - below;
  const a = sorted[below], b = sorted[Math.min(below + 1, sorted.length - 1)];
  return t < 0.5 ? a + (b - a) * t : b - (b - a) * (1 - t);
}
