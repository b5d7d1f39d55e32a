/**
 * A method is four answers: score, schedule, protect, precision; and the step that asks them.
 *
 * As reference/policy.py. Every part has `says`, the sentence that the page shows of it.
 */

import { attend, logits, mapQueries, weightedValues } from "./attention.mjs";
import { checkAtLeast, checkProtected } from "./checks.mjs";
import { LayerCache } from "./cache.mjs";
import { keepSet } from "./selection.mjs";

/** Where in the token stream a block stands; all counts are tokens of the sequence. */
export class Clock {
  constructor(seen, block, prompt) {
    Object.assign(this, { seen, block, prompt });
  }

  /** Absolute positions of the block's tokens. */
  get positions() {
    return Array.from({ length: this.block }, (_, i) => this.seen - this.block + i);
  }

  /** Whether the block belongs to the prompt. */
  get prefilling() {
    return this.seen <= this.prompt;
  }

  /** Whether this is the last block of the prompt. */
  get prefillEnds() {
    return this.seen === this.prompt;
  }

  /** Tokens seen after the prompt. */
  get generated() {
    return Math.max(0, this.seen - this.prompt);
  }

  /** Tokens seen after the prompt when the block began. */
  get generatedBefore() {
    return Math.max(0, this.seen - this.block - this.prompt);
  }
}

/** What one block of queries saw in one layer, all present entries included. */
export class Observation {
  constructor(parts) {
    Object.assign(this, parts);
  }

  /** Logits of one query over the present entries of KV head g, as the model computes them. */
  logits(query, g) {
    return logits(query, this.keys[g], this.softcap);
  }

  /** Absolute positions of the block's queries. */
  get queryPositions() {
    return this.clock.positions;
  }
}

/** What is an entry worth? Higher is kept. */
export class Score {
  /** Names of what the score remembers of every entry; all start at 0. */
  columns = [];
  /** Whether scores are an order, in which distances mean nothing. */
  ordinal = false;
  /** Whether scores may be negative. */
  signed = false;

  /** Update the state with one block; called on every block, due or not. */
  observe(state, seen) {
    return state;
  }

  /** Rate the entries `[g][j]`; scores of entries that are no candidates are ignored. */
  score(state, seen, candidates, room) {
    throw new Error("a score has to rate entries");
  }

  /** What CAOTE wraps: rows `[g][k][j]` of weights in proportion to which entries are read. */
  retention(state, seen, candidates) {
    return this.score(state, seen, candidates, 0).map((own) => [own]);
  }
}

/** A KV-cache compression method: a composition of answers, and nothing else. */
export class Policy {
  evictBeforeAttend = false;
  reposition = false;

  constructor(parts) {
    Object.assign(this, parts);
    this.check(0);
  }

  /** Return the policy with some parts replaced. */
  with(parts) {
    return new Policy({ ...this, ...parts });
  }

  /** Throw if the policy cannot work with a prompt of so many tokens. */
  check(prompt) {
    this.budget.check(this.protect, prompt);
  }
}

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

/** Return the candidates and the keep set: the safe entries and the best of the rest. */
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

// --- schedules -----------------------------------------------------------------------------------

/** Whether a count that went from `before` to `after` reached offset + k·period, k ≥ 1. */
export function crosses(before, after, period, offset = 0) {
  return Math.floor((after - offset) / period) > Math.floor(Math.max(0, before - offset) / period);
}

const everyTokens = (count) => (count === 1 ? "after every generated token" : `every ${count} generated tokens`);

/** Nothing is ever selected. */
export class Never {
  says = "Never.";

  due() {
    return false;
  }
}

/** Every so many generated tokens; never in prefill. */
export class EveryDecode {
  constructor(steps = 1) {
    checkAtLeast(1, { every: steps });
    this.steps = steps;
    this.says = `It looks ${everyTokens(steps)}, not while the prompt is read.`;
  }

  due(clock) {
    return crosses(clock.generatedBefore, clock.generated, this.steps);
  }
}

/** After every block of prefill and every so many generated tokens. */
export class EveryBlock {
  constructor(decodeSteps = 1) {
    this.decoding = new EveryDecode(decodeSteps);
    this.says = `It looks when the prompt was read, and ${everyTokens(decodeSteps)}.`;
  }

  due(clock) {
    return clock.prefilling || this.decoding.due(clock);
  }
}

/** Once, when the prompt is complete. */
export class AfterPrefill {
  says = "It looks once, when the prompt was read.";

  due(clock) {
    return clock.prefillEnds;
  }
}

/** When the prompt is complete, then whenever the tokens seen reach a multiple of `tokens`. */
export class AfterPrefillThenEverySeen {
  constructor(tokens) {
    checkAtLeast(1, { every: tokens });
    this.tokens = tokens;
    this.says = `It looks when the prompt was read, then whenever the tokens seen reach a multiple of ${tokens}.`;
  }

  due(clock) {
    const decoding = !clock.prefilling && crosses(clock.seen - clock.block, clock.seen, this.tokens);
    return clock.prefillEnds || decoding;
  }
}

/** First at `interval + selector` generated tokens, then every `interval`. */
export class EveryGenerated {
  constructor(interval, selector) {
    checkAtLeast(1, { interval, selector });
    if (selector >= interval) {
      throw new RangeError(`selector = ${selector} must be smaller than interval = ${interval}`);
    }
    Object.assign(this, { interval, selector });
    this.says = `It looks at ${interval + selector} generated tokens, then every ${interval}.`;
  }

  due(clock) {
    return crosses(clock.generatedBefore, clock.generated, this.interval, this.selector);
  }
}

// --- protection ----------------------------------------------------------------------------------

/** Who is safe? */
export class Protect {
  /** Entries that are always safe once they exist, for a prompt of this length. */
  count() {
    return 0;
  }
}

/** Every entry may leave. */
export class Nobody extends Protect {
  says = "Nobody is safe.";

  safe(seen) {
    return seen.positions.map((own) => own.map(() => false));
  }
}

/** The first `sinks` tokens of the text and the last `recent` entries. */
export class Edges extends Protect {
  constructor({ sinks = 0, recent = 0 }) {
    super();
    checkAtLeast(0, { sinks, recent });
    Object.assign(this, { sinks, recent });
    const parts = [sinks && `the first ${sinks} tokens`, recent && `the newest ${recent} entries`];
    const named = parts.filter(Boolean).join(" and ");
    this.says = named ? `${named[0].toUpperCase()}${named.slice(1)} are safe.` : "Nobody is safe.";
  }

  safe(seen) {
    return seen.positions.map((own) =>
      own.map((position, j) => position < this.sinks || j >= own.length - this.recent));
  }

  count() {
    return this.sinks + this.recent;
  }
}

/** All tokens of the prompt and the last `recent` entries. */
export class PromptAndRecent extends Protect {
  constructor(recent = 0) {
    super();
    checkAtLeast(0, { recent });
    this.recent = recent;
    this.says = `The whole prompt is safe${recent ? `, and the newest ${recent} entries are` : ""}.`;
  }

  safe(seen) {
    return seen.positions.map((own) =>
      own.map((position, j) => position < seen.clock.prompt || j >= own.length - this.recent));
  }

  count(prompt) {
    return prompt + this.recent;
  }
}

// --- budgets -------------------------------------------------------------------------------------

/** Everything stays. */
export class Unlimited {
  says = "Every entry may stay.";

  room(seen, safe) {
    return safe[0].length;
  }

  check() {}
}

/** At most `budget` entries per KV head and layer. */
export class Entries {
  constructor(budget) {
    checkAtLeast(1, { budget });
    this.budget = budget;
    this.says = `At most ${budget} entries stay in each KV head of each layer.`;
  }

  room(seen, safe) {
    const count = Math.max(...safe.map((marks) => marks.filter(Boolean).length));
    checkProtected(this.budget, count);
    return this.budget - count;
  }

  check(protect, prompt) {
    checkProtected(this.budget, protect.count(prompt));
  }
}

// --- precision -----------------------------------------------------------------------------------

/** Everything that is kept stays at 16 bits. */
export class Full {
  says = "What stays is kept at full precision.";

  store(cache, seen, candidates, keep) {
    return { cache, keep };
  }
}
