/** TOVA: token omission via attention; as reference/methods/tova.py. */

import { Method, flag, requireBudget, whole } from "../method.mjs";
import { Entries, EveryBlock, Full, Nobody, Policy, Score } from "../policy.mjs";
import { reduceRows } from "../windows.mjs";

/** Attention that the newest token pays. */
export class LastRowAttention extends Score {
  constructor(perHead) {
    super();
    this.perHead = perHead;
    this.joinsKvHeads = !perHead;
    this.says = `Attention that the newest token pays to an entry, mean over ${
      perHead ? "the query heads of a KV head" : "all heads of the layer"}.`;
  }

  score(state, seen) {
    const lastRow = this.retention(state, seen);
    if (this.perHead) return lastRow.map((heads) => reduceRows(heads, "mean"));
    const shared = reduceRows(lastRow.flat(), "mean"); // [TOVA 1]
    return lastRow.map(() => shared);
  }

  /** Each query head's own row: a distribution, as CAOTE's theorem needs it. */
  retention(state, seen) {
    return seen.attention.map((group) => group.map((rows) => rows[rows.length - 1]));
  }
}

/** Evict the entry with the least attention of the newest token; no entry is protected. */
export class TOVA extends Method {
  static id = "tova";
  static title = "TOVA";
  static options = {
    every: whole(1, 1, 32, "Generated tokens between two evictions."),
    per_head: flag(false, "Let every KV head keep its own entries instead of one keep set per layer."),
  };

  policy(budget) {
    return new Policy({
      name: TOVA.id,
      score: new LastRowAttention(this.per_head),
      schedule: new EveryBlock(this.every),
      protect: new Nobody(),
      budget: new Entries(requireBudget(TOVA.id, budget)),
      precision: new Full(),
    });
  }
}
