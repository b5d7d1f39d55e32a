/** Key norm: a short key is read often; as reference/methods/knorm.py. */

import { dot } from "../attention.mjs";
import { Method, requireBudget, whole } from "../method.mjs";
import { Edges, Entries, EveryBlock, Full, Policy, Score } from "../policy.mjs";

/** The negative length of the key. */
export class KeyNorm extends Score {
  says = "The shorter its key, the more an entry is worth; attention is not used.";
  signed = true;

  score(state, seen) {
    return seen.keys.map((own) => own.map((key) => -Math.sqrt(dot(key, key)))); // [Knorm 1]
  }
}

/** Keep the entries with the shortest keys. */
export class Knorm extends Method {
  static id = "knorm";
  static title = "Knorm";
  static options = {
    recent: whole(0, 0, 64, "Newest entries that are protected."),
    every: whole(1, 1, 32, "Generated tokens between two evictions."),
  };

  policy(budget) {
    return new Policy({
      name: Knorm.id,
      score: new KeyNorm(),
      schedule: new EveryBlock(this.every),
      protect: new Edges({ recent: this.recent }),
      budget: new Entries(requireBudget(Knorm.id, budget)), // [Knorm 2]
      precision: new Full(),
    });
  }
}
