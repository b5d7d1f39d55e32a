/** DesireKV: importance, sensitivity, and tokens after a moment of doubt; as reference/methods/desirekv.py. */

import { checkAtLeast, checkChoice } from "../checks.mjs";
import { Method, NotImplemented, choice, real, whole } from "../method.mjs";
import { Entries, EveryGenerated, Policy, Protect, Score } from "../policy.mjs";
import { FULL_BITS, WIDTHS } from "../quantization.mjs";
import { amongCandidates, meanPool, quantile, reduceRows, rememberQueries, windowAttention } from "../windows.mjs";

/** The generated entries that an event decides about. */
export class DecisionWindow {
  constructor(interval, selector, scope) {
    Object.assign(this, { interval, selector, scope });
  }

  /** Mark the P generated tokens before the selector, [t − R − P, t − R) at an event. */
  members(seen) {
    const { clock } = seen;
    const passed = Math.floor((clock.generated - this.selector) / this.interval);
    const before = Math.max(0, Math.floor((clock.generatedBefore - this.selector) / this.interval));
    const last = clock.prompt + passed * this.interval;
    const first = clock.prompt + (this.scope === "window" ? before * this.interval : 0);
    return seen.positions.map((own) => own.map((position) => position >= first && position < last));
  }
}

/** Tokens that follow a low-confidence step. */
export class Doubt {
  constructor(quantile, threshold, shift) {
    Object.assign(this, { quantile, threshold, shift });
  }

  /** Mark the window's entries whose predecessor was produced without confidence. */
  marks(seen, window) {
    if (this.quantile === null && this.threshold === null) return window.map((own) => own.map(() => false));
    const known = seen.positions.map((own) =>
      own.map((position) => seen.confidence[position - this.shift] ?? NaN)); // [DesireKV 9]
    const limit = this.threshold ?? this.limit(known[0].filter((x, j) => window[0][j] && !Number.isNaN(x)));
    return window.map((own, g) => own.map((member, j) => member && known[g][j] < limit));
  }

  /** The confidence below which the least confident share of the window lies. */
  limit(present) {
    return present.length ? quantile(present, this.quantile) : -Infinity;
  }
}

/** Everything that the event does not decide about; on request also the doubtful tokens. */
export class OutsideWindow extends Protect {
  constructor(window, doubt) {
    super();
    Object.assign(this, { window, doubt });
    this.says = `The prompt and the newest ${window.selector} entries are protected${
      window.scope === "window" ? ", and what was decided before" : ""}; so is a token that follows a moment of doubt.`;
  }

  safe(seen) {
    const members = this.window.members(seen);
    const doubtful = this.doubt?.marks(seen, members);
    return members.map((own, g) => own.map((member, j) => !member || Boolean(doubtful?.[g][j])));
  }

  count(prompt) {
    return prompt + this.window.selector;
  }
}

/** Pooled attention of the selector window, one value per token and layer. */
export class Importance extends Score {
  joinsKvHeads = true;

  constructor(window, radius, border, normalizeOver) {
    super();
    Object.assign(this, { window, radius, border, normalizeOver });
    this.says = `Attention of the newest ${window.selector} queries, mean over the layer, smoothed over ${2 * radius + 1} neighbours.`;
  }

  observe(state, seen) {
    return rememberQueries(state, seen, this.window.selector);
  }

  score(state, seen) {
    const members = this.window.members(seen);
    const over = this.normalizeOver === "candidates" ? members : null;
    const attention = windowAttention(state, seen, this.window.selector, over);
    const raw = reduceRows(attention.flat(2), "mean"); // [DesireKV 3]
    const pool = (x) => meanPool(x, 2 * this.radius + 1, this.border); // [DesireKV 4]
    return amongCandidates(members.map(() => raw), members, pool);
  }
}

/** The important half of a window, or another share of it. */
export class ShareOfWindow {
  constructor(share) {
    this.share = share;
    this.says = `Of every window ${Number((100 * share).toFixed(2))} % are kept.`;
  }

  room(seen, safe) {
    return Math.trunc(safe[0].filter((mark) => !mark).length * this.share);
  }

  check() {}
}

/** Mean distance of a block's outliers to its mean; 0 without outliers. */
export function outlierScore(block, over = "outliers") {
  const first = quantile(block, 0.25), third = quantile(block, 0.75);
  const reach = 1.5 * (third - first);
  const mean = block.reduce((sum, x) => sum + x, 0) / block.length;
  const outliers = [...block].filter((x) => x < first - reach || x > third + reach); // [DesireKV 6]
  const total = outliers.reduce((sum, x) => sum + Math.abs(x - mean), 0);
  return total / Math.max(over === "outliers" ? outliers.length : block.length, 1);
}

/** Quantisation sensitivity of each token in one layer, relative to the window's largest. */
export function sensitivity(keys, window, group, over = "outliers") {
  const perHead = keys.map((own) => own.map((key) => {
    const blocks = [];
    for (let start = 0; start < key.length; start += group) blocks.push(key.slice(start, start + group)); // [DesireKV 5]
    return blocks.reduce((sum, block) => sum + outlierScore(block, over), 0) / blocks.length;
  }));
  const perToken = reduceRows(perHead, "mean"); // [DesireKV 7]
  const largest = Math.max(0, ...perToken.filter((_, j) => window[0][j]));
  return perToken.map((x) => (largest > 0 ? x / largest : 0)); // [DesireKV 8]
}

/** Sensitive or doubtful entries at `highBits`, the rest of the important at `lowBits`. */
export class BitsBySensitivity {
  constructor(options) {
    Object.assign(this, options);
    this.says = `Sensitive and doubtful entries are kept at ${this.highBits} bits, other important ones at ${this.lowBits}.`;
  }

  store(cache, seen, candidates, keep) {
    const members = this.window.members(seen), doubtful = this.doubt.marks(seen, members);
    const sensitive = this.sensitive(seen, members);
    const kept = members.map((own, g) => {
      const stays = new Set(keep[g]);
      return own.map((_, j) => stays.has(j) || doubtful[g][j]);
    });
    for (const [tier, bits] of [[true, this.highBits], [false, this.lowBits]]) {
      const chosen = members.map((own, g) => own.map((member, j) =>
        member && kept[g][j] && (sensitive[j] || doubtful[g][j]) === tier));
      cache = quantizeEntries(cache, chosen, bits, this.valueBits ?? bits, this.group);
    }
    return { cache, keep: kept.map((own) => [...own.keys()].filter((j) => own[j])) };
  }

  /** Mark the tokens above the threshold, or above the quantile of the window. */
  sensitive(seen, members) {
    const relative = sensitivity(seen.keys, members, this.group, this.over);
    const limit = this.threshold ?? quantile(relative.filter((_, j) => members[0][j]), this.quantile);
    return Array.from(relative, (x) => x > limit);
  }
}

/** Lower the precision of entries; an entry that is stored at fewer bits already stays so. */
function quantizeEntries(cache, entries, keyBits, valueBits, group) {
  const lowered = (storage, bits) => {
    if (bits >= FULL_BITS) return storage;
    const wider = entries.map((own, g) => own.map((mark, j) => mark && storage.bits[g][j] > bits));
    return storage.quantizeTokens(wider, bits, group);
  };
  return cache.with({ keys: lowered(cache.keys, keyBits), values: lowered(cache.values, valueBits) });
}

/** Evict what is unimportant, and give bits to what is sensitive or follows a doubt. */
export class DesireKV extends Method {
  static id = "desirekv";
  static title = "DesireKV";
  static budgeted = false;
  static options = {
    interval: whole(1024, 4, 128, "Generated tokens P between two events."),
    selector: whole(32, 1, 64, "Newest queries R that decide, and are kept."),
    radius: whole(3, 0, 8, "Half-width of the pooling."),
    border: choice("zero", ["zero", "shrink"], "What lies beyond the border of the pooling: zeros, or nothing (shrink)."),
    normalize_over: choice("candidates", ["candidates", "present"], "Keys over which the selector's softmax runs."),
    scope: choice("window", ["window", "all"], "window: decide once about each P entries; all: about all generated ones again."),
    low_bits: whole(4, 2, 16, "Bits of important entries that are not sensitive; 16: not quantised."),
    high_bits: whole(8, 2, 16, "Bits of sensitive and of doubtful entries; 16: not quantised."),
    value_bits: whole(null, 2, 16, "Bits of values; not set: those of the entry's key.", { none: true }),
    group: whole(64, 1, 64, "Channels of a block of Eq. 5, and of those that share a scale."),
    importance_quantile: real(0.5, 0, 1, "Share of the window that is unimportant."),
    sensitivity_quantile: real(0.5, 0, 1, "Share of the window that is not sensitive."),
    sensitivity_threshold: real(null, 0, 1, "Threshold of the relative sensitivity, instead of the quantile.", { none: true }),
    outlier_mean: choice("outliers", ["outliers", "block"], "Average the distances over the outliers, or over the block."),
    doubt_quantile: real(0.1, 0, 1, "Share of the window's least confident steps after which tokens are protected."),
    doubt_threshold: real(null, 0, 1, "Confidence below which the next token is protected, instead of the quantile.", { none: true }),
    doubt_shift: whole(1, 0, 1, "1: the token after the unconfident token is protected; 0: the unconfident token itself."),
    importance: choice("attention", ["attention", "random"], "random, the ablation DesireKV-I, is not offered here."),
    sensitivity: choice("outliers", ["outliers", "attention", "random"], "attention, and random, the ablation DesireKV-S, are not offered here."),
    protection: choice("confidence", ["confidence", "none"], "none: the ablation DesireKV-P."),
    seed: whole(0, 0, 100, "Seed of the ablations' draws."),
  };

  constructor(given) {
    super(given);
    checkAtLeast(0, { radius: this.radius });
    checkAtLeast(1, { group: this.group });
    const widths = [...WIDTHS, FULL_BITS];
    checkChoice(widths, { low_bits: this.low_bits, high_bits: this.high_bits });
    checkChoice([null, ...widths], { value_bits: this.value_bits });
    checkChoice([0, 1], { doubt_shift: this.doubt_shift });
    for (const name of ["importance_quantile", "sensitivity_quantile", "doubt_quantile"]) {
      if (!(this[name] >= 0 && this[name] <= 1)) throw new RangeError(`${name} = ${this[name]} must be between 0 and 1`);
    }
    if (this.importance === "random" || this.sensitivity === "random") {
      throw new NotImplemented("NumPy's random numbers are not drawn here");
    }
    if (this.sensitivity === "attention") throw new NotImplemented("attention does not give bits here");
  }

  policy(budget = null) {
    if (budget !== null && this.scope !== "all") {
      throw new RangeError("desirekv takes a budget only with scope = all");
    }
    const window = new DecisionWindow(this.interval, this.selector, this.scope);
    const doubt = this.protection === "none"
      ? new Doubt(null, null, this.doubt_shift)
      : new Doubt(this.doubt_quantile, this.doubt_threshold, this.doubt_shift);
    return new Policy({
      name: DesireKV.id,
      score: new Importance(window, this.radius, this.border, this.normalize_over),
      schedule: new EveryGenerated(this.interval, this.selector),
      protect: new OutsideWindow(window, budget === null ? null : doubt),
      budget: budget === null ? new ShareOfWindow(1 - this.importance_quantile) : new Entries(budget),
      precision: new BitsBySensitivity({
        window,
        doubt,
        lowBits: this.low_bits,
        highBits: this.high_bits,
        valueBits: this.value_bits,
        group: this.group,
        quantile: this.sensitivity_quantile,
        threshold: this.sensitivity_threshold,
        over: this.outlier_mean,
      }),
    });
  }
}
