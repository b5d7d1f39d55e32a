/** H2O: heavy hitters by accumulated attention; as reference/methods/h2o.py. */

import { Method, choice, requireBudget, whole } from "../method.mjs";
import { Edges, Entries, EveryBlock, Full, Policy, Score } from "../policy.mjs";
import { reduceRows } from "../windows.mjs";

/** Sum of all attention that an entry has received since it was written. */
export class AccumulatedAttention extends Score {
  says = "All attention that an entry has received since it was written.";
  columns = ["accumulated"];

  constructor(reduce) {
    super();
    this.reduce = reduce;
  }

  observe(state, seen) {
    const accumulated = state.entries.accumulated.map((sums, g) => {
      const joined = seen.queryPositions.map((_, i) => reduceRows(seen.attention[g].map((rows) => rows[i]), this.reduce));
      const received = reduceRows(joined, "sum");
      return sums.map((sum, j) => sum + received[j]); // [H2O 1]
    });
    return state.withEntries({ accumulated });
  }

  score(state) {
    return state.entries.accumulated;
  }
}

/** Keep the entries that have received most attention, and the newest ones. */
export class H2O extends Method {
  static id = "h2o";
  static title = "H2O";
  static options = {
    recent: whole(null, 0, 64, "Newest entries that are protected; not set: half of the budget.", { none: true }),
    every: whole(1, 1, 32, "Generated tokens between two evictions."),
    reduce: choice("mean", ["mean", "max", "sum"], "How the query heads of a KV head join."),
  };

  policy(budget) {
    budget = requireBudget(H2O.id, budget);
    return new Policy({
      name: H2O.id,
      score: new AccumulatedAttention(this.reduce),
      schedule: new EveryBlock(this.every),
      protect: new Edges({ recent: this.recent ?? Math.floor(budget / 2) }),
      budget: new Entries(budget), // [H2O 2]
      precision: new Full(),
    });
  }
}
