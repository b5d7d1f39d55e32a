/** LazyEviction: tokens become important again; as reference/methods/lazy_eviction.py. */

import { checkAtLeast } from "../checks.mjs";
import { Method, choice, flag, real, requireBudget, whole } from "../method.mjs";
import { Edges, Entries, EveryDecode, Full, Policy, Score } from "../policy.mjs";
import { reduceRows } from "../windows.mjs";

/** Maps of [0, ∞) onto (0, 1] that fall from 1: the forms of Appendix D and Table 5. */
const DECREASING = {
  sigmoid: (x) => 2 / (1 + Math.exp(x)),
  exp: (x) => Math.exp(-x),
  tanh: (x) => 1 - Math.tanh(x),
  inverse: (x) => 1 / (1 + x),
  log: (x) => 1 / (1 + Math.log1p(x)),
  none: () => 0,
};

/** How soon is an entry expected to matter again, judged by its own history? */
export class Recurrence extends Score {
  columns = ["stamp", "interval", "activated"];

  constructor(options) {
    super();
    this.options = options;
    this.says = `How soon an entry is expected to matter again, by the intervals between its activations; attention of at least ${
      options.threshold} activates.`;
  }

  observe(state, seen) {
    if (seen.clock.prefilling) return state;
    const heads = seen.positions.map((_, g) => this.track(state, seen, g));
    const column = (name) => heads.map((own) => own[name]);
    return state.withEntries({
      stamp: column("stamp"), interval: column("interval"), activated: column("activated"),
    });
  }

  /** Follow the entries of one KV head, one generated token after the other. */
  track(state, seen, g) {
    const { threshold, stamp_start: start, reduce } = this.options;
    const [stamp, interval, activated] = this.columns.map((name) => [...state.entries[name][g]]);
    seen.queryPositions.forEach((position, row) => {
      const step = position + 1 - seen.clock.prompt;
      const received = reduceRows(seen.attention[g].map((rows) => rows[row]), reduce);
      seen.positions[g].forEach((p, j) => {
        if (p === position) stamp[j] = start === "birth" ? step : step - 1;
        if (!(received[j] >= threshold && p <= position)) return;
        const counts = start !== "first_activation" || activated[j];
        if (counts) interval[j] = Math.max(interval[j], step - stamp[j]); // [LazyEviction 1]
        stamp[j] = step;
        activated[j] = 1;
      });
    });
    return { stamp, interval, activated };
  }

  score(state, seen) {
    const { stamp, interval } = state.entries;
    return stamp.map((own, g) => Float64Array.from(own, (last, j) => {
      const elapsed = seen.clock.generated - last, longest = interval[g][j], divisor = Math.max(longest, 1);
      const h1 = this.elapsedScore(elapsed, divisor);
      const limit = this.options.zero_interval === "limit" && elapsed === 0 ? h1 : 0;
      const importance = longest > 0 ? h1 + this.intervalScore(divisor) : limit; // [LazyEviction 2]
      return this.options.guard && elapsed < longest ? importance + 2 : importance;
    }));
  }

  /** H1: falls as the time since the last activation outgrows the longest interval. */
  elapsedScore(elapsed, interval) {
    return DECREASING[this.options.h1]((this.options.official ? 1 : 0) + elapsed / interval);
  }

  /** H2: falls with the longest interval. */
  intervalScore(interval) {
    const { h2, h2_reading: reading } = this.options;
    if (h2 === "none" || reading === "code") return DECREASING[h2](interval - 1);
    if (reading === "acl") return DECREASING[h2](interval + 1);
    return interval > 1 ? DECREASING[h2](1 / (interval - 1)) : 0;
  }
}

/** Evict only every W steps, and by how often and how recently entries came back. */
export class LazyEviction extends Method {
  static id = "lazy_eviction";
  static title = "LazyEviction";
  static options = {
    window: whole(25, 1, 64, "Generated tokens between two evictions; as many newest entries are protected."),
    threshold: real(5e-4, 1e-5, 0.5, "Attention from which on an entry is activated.", { logarithmic: true }),
    h1: choice("sigmoid", Object.keys(DECREASING), "Form of H1, which falls with the time since the last activation."),
    h2: choice("sigmoid", Object.keys(DECREASING), "Form of H2, which falls with the longest interval."),
    h2_reading: choice("code", ["code", "printed", "acl"],
      "Argument of H2: MRI − 1, 1/(MRI − 1) as printed, or MRI + 1."),
    official: flag(false, "Add 1 inside H1, as the authors' code does."),
    stamp_start: choice("before_birth", ["before_birth", "birth", "first_activation"],
      "What an entry's stamp is before its first activation: the step before birth, or birth; first_activation: none."),
    zero_interval: choice("worthless", ["worthless", "limit"],
      "What an entry without an interval is worth: nothing, or H1's limit, which is 1 if it was activated just now."),
    guard: flag(false, "Never evict an entry with Δ < MRI while another candidate has Δ ≥ MRI."),
    reduce: choice("max", ["mean", "max", "sum"], "How the query heads of a KV head join before the threshold."),
  };

  constructor(given) {
    super(given);
    checkAtLeast(1, { window: this.window });
    checkAtLeast(0, { threshold: this.threshold });
  }

  policy(budget) {
    return new Policy({
      name: LazyEviction.id,
      score: new Recurrence({ ...this }),
      schedule: new EveryDecode(this.window),
      protect: new Edges({ recent: this.window }),
      budget: new Entries(requireBudget(LazyEviction.id, budget)), // [LazyEviction 5]
      precision: new Full(),
    });
  }
}
