/** AhaKV: sharpened recent attention, weighted by values; as reference/methods/ahakv.py. */

import { dot, mapQueries, softmax, visible } from "../attention.mjs";
import { checkAtLeast, checkKernel } from "../checks.mjs";
import { Method, choice, real, requireBudget, whole } from "../method.mjs";
import { Edges, Entries, EveryBlock, Full, Policy, Score } from "../policy.mjs";
import { meanPool, reduceRows, rememberQueries } from "../windows.mjs";

/**
 * The step-gain softmax: sharper the more tokens compete for k places.
 *
 * λ = √(2·ln(i/k)/d) replaces 1/√d, so the usual scaled logits are multiplied by λ√d.
 */
export class StepGain {
  constructor(target, gain, inDecode, onLambda, floor) {
    Object.assign(this, { target, gain, inDecode, onLambda, floor });
  }

  /** Sharpened attention `[g][r][i]` of these queries over all present entries. */
  attention(queries, positions, seen) {
    return mapQueries(queries, (query, g, i) => {
      const raw = seen.logits(query, g), mask = visible(positions[i], seen.positions[g]);
      const factor = this.factor(raw, mask, positions[i], seen, query.length);
      return softmax(raw.map((x) => x * factor), mask);
    });
  }

  /** Gain on the usual logits of a row; 1 where no more than k tokens compete. */
  factor(raw, mask, position, seen, d) {
    if (this.gain === "none") return 1;
    const crowd = Math.max(this.competing(position, seen) / this.target, 1);
    if (crowd <= 1) return 1;
    let gain = this.onLambda * Math.sqrt(2 * Math.log(crowd) / d) * Math.sqrt(d); // [AhaKV 12]
    if (this.gain === "measured") {
      const deviation = spread(raw.filter((_, j) => mask[j]));
      const flat = deviation <= 1e-12 * raw.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
      gain = flat ? 1 : gain / deviation;
    }
    return Math.max(gain, this.floor);
  }

  /** Tokens that compete for the places: the position, the entries present, or k. */
  competing(position, seen) {
    if (position < seen.clock.prompt || this.inDecode === "absolute") return position + 1;
    return this.inDecode === "cache" ? seen.positions[0].length : this.target;
  }
}

/** Standard deviation. */
function spread(x) {
  const mean = x.reduce((sum, each) => sum + each, 0) / x.length;
  return Math.sqrt(x.reduce((sum, each) => sum + (each - mean) ** 2, 0) / x.length);
}

/** Step-gain attention of recent rows times the value prior. */
export class SharpenedRecentAttention extends Score {
  constructor(stepGain, { rows, accumulation, valuePrior, kernel, border }) {
    super();
    Object.assign(this, { stepGain, rows, accumulation, valuePrior, kernel, border });
    this.columns = accumulation === "all" ? ["accumulated"] : [];
    const counted = accumulation === "all" ? "all queries" : `the last ${rows} queries`;
    this.says = `Sharpened attention of ${counted}${valuePrior === "none" ? "" : ", times the size of the value"}.`;
  }

  observe(state, seen) {
    if (this.accumulation === "recent") return rememberQueries(state, seen, this.rows);
    const received = this.received(this.stepGain.attention(seen.queries, seen.queryPositions, seen));
    const accumulated = state.entries.accumulated.map((sums, g) => sums.map((sum, j) => sum + received[g][j]));
    return state.withEntries({ accumulated });
  }

  score(state, seen) {
    const accumulated = this.accumulated(state, seen);
    return seen.values.map((own, g) => {
      const prior = this.prior(own);
      return Float64Array.from(prior, (weight, j) => weight * accumulated[g][j]); // [AhaKV 15]
    });
  }

  /** S: the same number of rows for every candidate. */
  accumulated(state, seen) {
    if (this.accumulation === "all") return state.entries.accumulated;
    const { queries, query_positions: positions } = state.stream;
    return this.received(this.stepGain.attention(queries, positions, seen)); // [AhaKV 5]
  }

  /** Sum over queries, mean over the query heads of a KV head. */
  received(attention) {
    return attention.map((group) => reduceRows(group.map((rows) => reduceRows(rows, "sum")), "mean"));
  }

  /** Smoothed value norms of one KV head, relative to the largest; 1 if all are zero. */
  prior(values) {
    if (this.valuePrior === "none") return values.map(() => 1);
    const size = values.map((value) => (this.valuePrior === "squared" ? dot(value, value) : Math.sqrt(dot(value, value))));
    const smoothed = meanPool(size, this.kernel, this.border); // [AhaKV 13]
    const largest = Math.max(...smoothed);
    return smoothed.map((x) => (largest > 0 ? x / largest : 1)); // [AhaKV 14]
  }
}

/** Rate every candidate by the same number of recent rows, sharpened, times its value's size. */
export class AhaKV extends Method {
  static id = "ahakv";
  static title = "AhaKV";
  static options = {
    recent: whole(32, 1, 64, "Newest entries that are protected; as many rows are summed."),
    sinks: whole(0, 0, 32, "First tokens of the text that are protected."),
    gain: choice("step", ["step", "measured", "none"],
      "measured: divide by the logits' own standard deviation; none: ordinary softmax."),
    gain_in_decode: choice("absolute", ["absolute", "cache", "none"],
      "What competes while decoding: the position, the entries present, or no more than k."),
    gain_factor: real(1, 0, 4, "Factor on λ."),
    gain_floor: real(0, 0, 2, "Least gain where more than k tokens compete."),
    accumulation: choice("recent", ["recent", "all"], "recent: the last rows; all: every row since the entry was written."),
    value_prior: choice("squared", ["squared", "norm", "none"], "Factor on the sum: the squared norm of the value, its norm, or none."),
    kernel: whole(5, 1, 15, "Neighbours over which the prior is smoothed; odd."),
    border: choice("shrink", ["zero", "shrink"], "What lies beyond the ends of the text when the prior is smoothed: nothing (shrink), or zeros."),
    every: whole(1, 1, 32, "Generated tokens between two evictions."),
  };

  constructor(given) {
    super(given);
    checkAtLeast(1, { recent: this.recent });
    checkAtLeast(0, { gain_factor: this.gain_factor, gain_floor: this.gain_floor });
    checkKernel(this.kernel);
  }

  policy(budget) {
    budget = requireBudget(AhaKV.id, budget);
    return new Policy({
      name: AhaKV.id,
      score: new SharpenedRecentAttention(
        new StepGain(budget, this.gain, this.gain_in_decode, this.gain_factor, this.gain_floor),
        {
          rows: this.recent,
          accumulation: this.accumulation,
          valuePrior: this.value_prior,
          kernel: this.kernel,
          border: this.border,
        }),
      schedule: new EveryBlock(this.every),
      protect: new Edges({ sinks: this.sinks, recent: this.recent }),
      budget: new Entries(budget),
      precision: new Full(),
    });
  }
}
