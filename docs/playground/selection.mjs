/** What is kept: the only place that chooses entries; as reference/selection.py. */

/** Convert a budget into entries: "30%" is that share of `length`, rounded up. */
export function budgetEntries(budget, length) {
  const text = String(budget).trim();
  const share = text.endsWith("%");
  const digits = share ? text.slice(0, -1) : text;
  const number = /^\d+(\.\d+)?$/.test(digits) ? Number(digits) : NaN;
  // 70 % of 130 is 91 entries: the rounding of 0.7·130 in binary must not add one.
  const entries = share ? Math.ceil(Number((number * length / 100).toFixed(9))) : number;
  if (!Number.isInteger(entries)) {
    throw new RangeError(`budget = ${text} must be a number of entries or a percentage`);
  }
  if (entries < 1) throw new RangeError(`budget = ${text} must be at least 1 entry, got ${entries}`);
  return entries;
}

/** Indices in ascending order of their scores; of equal scores the earlier comes first. */
export function orderByScore(scores, indices) {
  const compare = (a, b) => (scores[a] < scores[b] ? -1 : scores[a] > scores[b] ? 1 : 0);
  return [...indices].sort(compare);
}

/** Rank entries from the first to evict, 0, to the last; of equal scores the later is kept. */
export function rank(scores) {
  const ranks = new Array(scores.length);
  orderByScore(scores, scores.keys()).forEach((index, place) => { ranks[index] = place; });
  return ranks;
}

/** Indices to keep in every KV head, ascending: the protected entries and the `room` best of the rest. */
export function keepSet(scores, safe, room) {
  const counts = safe.map((marks) => marks.filter(Boolean).length);
  if (counts.some((count) => count !== counts[0])) {
    throw new RangeError(`every KV head must protect equally many entries, got ${counts}`);
  }
  return scores.map((own, g) => {
    const candidates = [...own.keys()].filter((j) => !safe[g][j]);
    if (candidates.some((j) => Number.isNaN(own[j]))) throw new RangeError("scores must not be NaN");
    const leaving = orderByScore(own, candidates).slice(0, Math.max(0, candidates.length - room));
    const goes = new Set(leaving);
    return [...own.keys()].filter((j) => !goes.has(j));
  });
}

/** Gather `x[g][j]` by the keep set of every KV head. */
export function take(x, keep) {
  return x.map((own, g) => keep[g].map((j) => own[j]));
}
