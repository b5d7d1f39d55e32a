/** Full cache: nothing is evicted; as reference/methods/full.py. */

import { Method, refuseBudget } from "../method.mjs";
import { Full, Never, Nobody, Policy, Score, Unlimited } from "../policy.mjs";

/** The newer, the better: for methods whose schedule and protection already decide. */
export class Recency extends Score {
  says = "The newer an entry, the more it is worth.";

  score(state, seen) {
    return seen.positions.map((own) => Float64Array.from(own));
  }
}

/** Keep every entry at 16 bits. */
export class FullCache extends Method {
  static id = "full";
  static title = "Full cache";
  static budgeted = false;
  static options = {};

  policy(budget = null) {
    refuseBudget(FullCache.id, budget);
    return new Policy({
      name: FullCache.id,
      score: new Recency(),
      schedule: new Never(),
      protect: new Nobody(),
      budget: new Unlimited(),
      precision: new Full(),
    });
  }
}
