/** A policy under which some tokens are never evicted, on top of what it keeps: the page's experiment. */

import { Protect } from "./policy.mjs";

/** What a policy protects, and these positions. */
class Pinned extends Protect {
  constructor(base, positions) {
    super();
    this.base = base;
    this.positions = new Set(positions);
    this.says = `${base.says} Of yours, ${positions.length} are protected.`;
  }

  safe(seen) {
    return this.base.safe(seen).map((marks, g) =>
      marks.map((mark, j) => mark || this.positions.has(seen.positions[g][j])));
  }

  count(prompt) {
    return this.base.count(prompt);
  }
}

/** The budget of a policy, which pinned tokens do not use up. */
class BesidesPinned {
  constructor(base, protect) {
    Object.assign(this, { base, protect });
    this.says = base.says;
  }

  room(seen) {
    return this.base.room(seen, this.protect.safe(seen));
  }

  check(_, prompt) {
    this.base.check(this.protect, prompt);
  }
}

/** Return a policy that keeps the entries of these positions in every layer and head. */
export function pin(policy, positions) {
  if (!positions.length) return policy;
  return policy.with({
    protect: new Pinned(policy.protect, positions),
    budget: new BesidesPinned(policy.budget, policy.protect),
  });
}
