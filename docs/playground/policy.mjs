/**
 * A method is four answers: score, schedule, protect, precision; as reference/policy.py.
 *
 * Every part has `says`, the sentence that the page shows of it.
 */

import { checkAtLeast, checkProtected } from "./checks.mjs";

/** What is an entry worth? Higher is kept. */
export class Score {
  /** Names of what the score remembers of every entry; all start at 0. */
  columns = [];
  /** Whether scores are an order, in which distances mean nothing. */
  ordinal = false;
  /** Whether scores may be negative. */
  signed = false;
  /** Whether an entry has the same score in all KV heads of a layer. */
  joinsKvHeads = false;

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
    this.says = `It decides ${everyTokens(steps)}, not while the prompt is read.`;
  }

  due(clock) {
    return crosses(clock.generatedBefore, clock.generated, this.steps);
  }
}

/** After every block of prefill and every so many generated tokens. */
export class EveryBlock {
  constructor(decodeSteps = 1) {
    this.decoding = new EveryDecode(decodeSteps);
    this.says = `It decides when the prompt was read, and ${everyTokens(decodeSteps)}.`;
  }

  due(clock) {
    return clock.prefilling || this.decoding.due(clock);
  }
}

/** Once, when the prompt is complete. */
export class AfterPrefill {
  says = "It decides once, when the prompt was read.";

  due(clock) {
    return clock.prefillEnds;
  }
}

/** When the prompt is complete, then whenever the tokens seen reach a multiple of `tokens`. */
export class AfterPrefillThenEverySeen {
  constructor(tokens) {
    checkAtLeast(1, { every: tokens });
    this.tokens = tokens;
    this.says = `It decides when the prompt was read, then whenever the tokens seen reach a multiple of ${tokens}.`;
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
    this.says = `It decides at ${interval + selector} generated tokens, then every ${interval}.`;
  }

  due(clock) {
    return crosses(clock.generatedBefore, clock.generated, this.interval, this.selector);
  }
}

// --- protection ----------------------------------------------------------------------------------

/** Which entries are protected? */
export class Protect {
  /** Entries that are always protected once they exist, for a prompt of this length. */
  count() {
    return 0;
  }

  /** Return a protection under which the edges of the text are protected, too. */
  also(edges) {
    return new Both(this, edges);
  }
}

/** Every entry may be evicted. */
export class Nobody extends Protect {
  says = "Nothing is protected.";

  safe(seen) {
    return seen.positions.map((own) => own.map(() => false));
  }

  also(edges) {
    return edges;
  }
}

/** The first `sinks` tokens of the text, the last `recent` entries and, with `prompt`, the whole prompt. */
export class Edges extends Protect {
  constructor({ sinks = 0, recent = 0, prompt = false }) {
    super();
    checkAtLeast(0, { sinks, recent });
    Object.assign(this, { sinks, recent, prompt });
    const first = prompt ? "the whole prompt" : sinks && `the first ${sinks} tokens`;
    const named = [first, recent && `the newest ${recent} entries`].filter(Boolean).join(" and ");
    this.says = named ? `Protected: ${named}.` : "Nothing is protected.";
  }

  safe(seen) {
    const first = this.first(seen.clock.prompt);
    return seen.positions.map((own) => own.map((position, j) => position < first || j >= own.length - this.recent));
  }

  count(prompt) {
    return this.first(prompt) + this.recent;
  }

  /** Position before which all tokens are protected. */
  first(prompt) {
    return this.prompt ? Math.max(this.sinks, prompt) : this.sinks;
  }

  also(edges) {
    return new Edges({
      sinks: Math.max(this.sinks, edges.sinks),
      recent: Math.max(this.recent, edges.recent),
      prompt: this.prompt || edges.prompt,
    });
  }
}

/** Every entry that either of two protections marks. */
export class Both extends Protect {
  constructor(one, other) {
    super();
    Object.assign(this, { one, other });
    this.says = `${one.says} ${other.says}`;
  }

  safe(seen) {
    const others = this.other.safe(seen);
    return this.one.safe(seen).map((marks, g) => marks.map((mark, j) => mark || others[g][j]));
  }

  count(prompt) {
    return Math.max(this.one.count(prompt), this.other.count(prompt));
  }
}

// --- budgets -------------------------------------------------------------------------------------

/** Every entry is kept. */
export class Unlimited {
  says = "Every entry is kept.";

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
    this.says = `A decision leaves at most ${budget} entries in each KV head of each layer.`;
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
  says = "Every kept entry has 16 bits.";

  store(cache, seen, candidates, keep) {
    return { cache, keep };
  }
}

// --- the composition -------------------------------------------------------------------------------

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
