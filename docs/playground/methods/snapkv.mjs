/** SnapKV: what the end of the prompt looks at; as reference/methods/snapkv.py. */

import { checkAtLeast, checkKernel } from "../checks.mjs";
import { Method, choice, requireBudget, whole } from "../method.mjs";
import { AfterPrefill, Edges, Entries, EveryBlock, Full, Policy, Score } from "../policy.mjs";
import { amongCandidates, maxPool, meanPool, reduceRows, rememberQueries, windowAttention } from "../windows.mjs";

/** Pooled attention of the last `window` queries. */
export class WindowAttention extends Score {
  constructor(window, kernel, pooling, border) {
    super();
    Object.assign(this, { window, kernel, pooling, border });
    this.says = `Attention of the last ${window} queries, smoothed over ${kernel} neighbours.`;
  }

  observe(state, seen) {
    return rememberQueries(state, seen, this.window);
  }

  score(state, seen, candidates) {
    const attention = windowAttention(state, seen, this.window);
    const lookedAt = attention.map((group) =>
      reduceRows(group.map((rows) => reduceRows(rows, "sum")), "mean")); // [SnapKV 1]
    return amongCandidates(lookedAt, candidates, (x) => this.pool(x)); // [SnapKV 2]
  }

  /** Smooth over neighbours in the cache. */
  pool(x) {
    return this.pooling === "max" ? maxPool(x, this.kernel) : meanPool(x, this.kernel, this.border);
  }
}

/** Compress the prompt once, by the attention of its last tokens. */
export class SnapKV extends Method {
  static id = "snapkv";
  static title = "SnapKV";
  static options = {
    window: whole(64, 1, 64, "Last queries that decide; as many newest entries are protected."),
    kernel: whole(5, 1, 15, "Neighbours of the pooling; odd."),
    pooling: choice("mean", ["mean", "max"], "What is taken of the neighbours."),
    border: choice("zero", ["zero", "shrink"], "What lies beyond the border of a mean: zeros, or nothing (shrink)."),
    schedule: choice("after_prefill", ["after_prefill", "every_block"],
      "after_prefill: decoding never evicts. every_block: a fixed budget at all times."),
    every: whole(1, 1, 32, "Generated tokens between two evictions under every_block."),
  };

  constructor(given) {
    super(given);
    checkAtLeast(1, { window: this.window });
    checkKernel(this.kernel);
  }

  policy(budget) {
    budget = requireBudget(SnapKV.id, budget);
    if (this.window >= budget) {
      throw new RangeError(`window = ${this.window} must be smaller than budget = ${budget}`);
    }
    return new Policy({
      name: SnapKV.id,
      score: new WindowAttention(this.window, this.kernel, this.pooling, this.border),
      schedule: this.schedule === "after_prefill" ? new AfterPrefill() : new EveryBlock(this.every),
      protect: new Edges({ recent: this.window }),
      budget: new Entries(budget),
      precision: new Full(),
    });
  }
}
