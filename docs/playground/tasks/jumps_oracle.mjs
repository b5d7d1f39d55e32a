/** What the rest of a jump program's run needs of the cache; as reference/tasks/jumps_oracle.py. */

import { Edges, Entries, EveryBlock, Full, Policy, Score } from "../policy.mjs";

const END = "\n";
const STEP = 9; // tokens of a line of the program, and of a line that is written
const X = 1, Y = 4, Y_VALUE = 5, RESULT = 8; // places in a written line; the label is at 0

/** Which query copies from which entry, as pairs of positions, in the order of queries. */
export function sources(words) {
  const pairs = [], lineAt = new Map(), valueAt = new Map(), end = words.indexOf(END, 1);
  const facts = words.slice(1, end).findIndex((word) => !/^[a-x]\d$/.test(word));
  for (let at = 1; at <= facts; at++) valueAt.set(words[at][0], at);
  for (let at = 1 + facts; at < end; at += STEP) lineAt.set(words[at], at);
  for (let label = end + 1; label + STEP < words.length; label += STEP) {
    const line = lineAt.get(words[label]), x = words[line + X], y = words[line + Y];
    pairs.push([label + X, valueAt.get(x)], [label + Y, valueAt.get(y)]);
    for (let place = 0; place < STEP; place++) pairs.push([label + STEP - 2, line + place]);
    valueAt.set(y, label + Y_VALUE);
    valueAt.set(x, label + RESULT);
  }
  return pairs;
}

/** For every moment and every entry, the query that uses the entry next; of entries without one the oldest comes last. */
export function nextUse(words) {
  const t = words.length, unused = Int32Array.from(words, (_, position) => 2 * t - position);
  const following = words.map(() => Int32Array.from(unused));
  for (const [query, entry] of sources(words).reverse()) {
    for (let moment = entry; moment < query; moment++) following[moment][entry] = query;
  }
  return following;
}

/** Rates an entry higher if it is used sooner. */
class Foreseen extends Score {
  says = "The sooner an entry is used again, the more it is worth.";
  signed = true;

  constructor(words) {
    super();
    this.next = nextUse(words);
  }

  score(state, seen) {
    const moment = this.next[Math.min(seen.clock.seen, this.next.length) - 1];
    return seen.positions.map((own) => own.map((position) => -moment[position]));
  }
}

/** Return the policy that evicts what is used last; it knows prompt and solution, `words`. */
export function oraclePolicy(words, budget) {
  return new Policy({
    name: "oracle",
    score: new Foreseen(words),
    schedule: new EveryBlock(),
    protect: new Edges({ recent: STEP }),
    budget: new Entries(budget),
    precision: new Full(),
  });
}
