/** R-KV: importance minus redundancy; as reference/methods/rkv.py. */

import { dot, softmax } from "../attention.mjs";
import { checkAtLeast, checkKernel } from "../checks.mjs";
import { Method, flag, real, requireBudget, whole } from "../method.mjs";
import { AfterPrefillThenEverySeen, Edges, Entries, Full, Policy, Score } from "../policy.mjs";
import { amongCandidates, maxPool, reduceRows, rememberQueries, windowLogits } from "../windows.mjs";

/** Attention of the last queries, less the similarity to other keys. */
export class ImportanceMinusRedundancy extends Score {
  signed = true;

  constructor(mix, window, kernel, similarity, firstColumnQuirk) {
    super();
    Object.assign(this, { mix, window, kernel, similarity, firstColumnQuirk });
    this.says = `${mix} × attention of the last ${window} queries, less ${Number((1 - mix).toFixed(6))} × likeness to other keys.`;
  }

  observe(state, seen) {
    return rememberQueries(state, seen, this.window);
  }

  score(state, seen, candidates) {
    const importance = this.importance(state, seen, candidates);
    return importance.map((own, g) => {
      const redundancy = this.redundancy(seen.keys[g]);
      return own.map((x, j) => this.mix * x - (1 - this.mix) * redundancy[j]); // [R-KV 4]
    });
  }

  /** Pooled attention of the last queries; the group is reduced on logits, by maximum. */
  importance(state, seen, candidates) {
    const attention = windowLogits(state, seen, this.window).map((group, g) => {
      const rows = group[0].map((_, i) => reduceRows(group.map((head) => head[i].raw), "max"));
      return reduceRows(rows.map((row) => softmax(row, candidates[g])), "mean");
    });
    return amongCandidates(attention, candidates, (x) => maxPool(x, this.kernel)); // [R-KV 1]
  }

  /** Say how similar each key of one head is to the others. */
  redundancy(keys) {
    const unit = keys.map((key) => {
      const norm = Math.sqrt(dot(key, key)) + 1e-8;
      return key.map((x) => x / norm);
    });
    const sums = new Float64Array(keys.length);
    unit.forEach((key, row) => {
      const cosine = unit.map((other, column) => (row === column ? 0 : dot(key, other)));
      const spared = cosine.findLastIndex((x) => x > this.similarity); // [R-KV 2]
      if (spared >= 0) cosine[spared] = 0;
      else if (this.firstColumnQuirk) cosine[0] = 0;
      cosine.forEach((x, column) => { sums[column] += x; });
    });
    return softmax(sums.map((sum) => sum / keys.length)); // [R-KV 3]
  }
}

/** Keep entries that are important and not redundant. */
export class RKV extends Method {
  static id = "rkv";
  static title = "R-KV";
  static options = {
    mix: real(0.07, 0, 1, "Weight λ of importance."),
    window: whole(8, 1, 32, "Last queries that decide; as many newest entries are protected."),
    kernel: whole(7, 1, 15, "Neighbours of the max pooling; odd."),
    similarity: real(0.5, 0, 1, "Cosine T from which on two keys count as similar."),
    every: whole(128, 1, 128, "Tokens seen between two evictions."),
    first_column_quirk: flag(false, "Spare the first entry where a key is similar to none, as the authors' code does."),
  };

  constructor(given) {
    super(given);
    checkAtLeast(1, { window: this.window, every: this.every });
    checkKernel(this.kernel);
    if (!(this.mix >= 0 && this.mix <= 1)) throw new RangeError(`mix = ${this.mix} must be between 0 and 1`);
  }

  policy(budget) {
    budget = requireBudget(RKV.id, budget);
    if (this.window >= budget) {
      throw new RangeError(`window = ${this.window} must be smaller than budget = ${budget}`);
    }
    return new Policy({
      name: RKV.id,
      score: new ImportanceMinusRedundancy(
        this.mix, this.window, this.kernel, this.similarity, this.first_column_quirk),
      schedule: new AfterPrefillThenEverySeen(this.every),
      protect: new Edges({ recent: this.window }),
      budget: new Entries(budget),
      precision: new Full(),
    });
  }
}
