/** Random eviction: the control beside which every score has to show that it knows something; as reference/methods/random.py. */

import { checkAtLeast } from "../checks.mjs";
import { Method, choice, requireBudget, whole } from "../method.mjs";
import { Edges, Entries, EveryBlock, Full, Policy, Score } from "../policy.mjs";
import { reduceRows } from "../windows.mjs";

const MULTIPLIERS = [0x7feb352d, 0x5bd1e995, 0x27d4eb2f];
const BITS = 24; // of a draw

/** Scatter a whole number over 0 … 2³² − 1, so that neighbours have nothing in common. */
function mixed(number) {
  const scattered = MULTIPLIERS.reduce((x, multiplier) => Math.imul(x ^ (x >>> 15), multiplier) >>> 0, number >>> 0);
  return (scattered ^ (scattered >>> 16)) >>> 0;
}

/** Return a draw from [0, 1) for a combination of whole numbers. */
function draw(...coordinates) {
  const total = coordinates.reduce((sum, coordinate) => mixed(sum + mixed(coordinate + 1)), 0);
  return (total >>> (32 - BITS)) / 2 ** BITS;
}

/** A random number per entry; with `joinsKvHeads` the mean of the heads' numbers, so that all keep the same entries. */
export class Draw extends Score {
  constructor(seed, drawn, joinsKvHeads = false) {
    super();
    Object.assign(this, { seed, anew: drawn === "each", joinsKvHeads });
    this.says = `Nothing: an entry gets a random number${this.anew ? ", anew at every decision" : " once for all"}${
      joinsKvHeads ? ", the same in all KV heads of a layer" : ""}.`;
  }

  score(state, seen) {
    const time = this.anew ? seen.clock.seen : 0;
    const drawn = seen.positions.map((own, g) =>
      own.map((position) => draw(this.seed, seen.layer, g, position, time))); // [Random 1]
    return this.joinsKvHeads ? drawn.map(() => reduceRows(drawn, "mean")) : drawn;
  }
}

const DRAWING = {
  draw: choice("each", ["each", "once"], "When an entry gets its number: at each decision anew, or once for all."),
  seed: whole(0, 0, 100, "Seed of the draw; layers, heads, entries and decisions draw independently."),
};

/** Another method with its score replaced: its protection, schedule and budget stay. */
export class MatchedControl extends Method {
  static id = "random";
  static options = DRAWING;

  constructor(given, base) {
    super(given);
    checkAtLeast(0, { seed: this.seed });
    this.base = base;
  }

  policy(budget) {
    const base = this.base.policy(budget);
    const score = new Draw(this.seed, this.draw, base.score.joinsKvHeads);
    return base.with({ name: `${MatchedControl.id}:${base.name}`, score });
  }
}

/** Evict at random. */
export class Random extends Method {
  static id = "random";
  static title = "Random";
  static options = {
    recent: whole(0, 0, 64, "Newest entries that are protected."),
    every: whole(1, 1, 32, "Generated tokens between two evictions."),
    ...DRAWING,
  };

  constructor(given) {
    super(given);
    checkAtLeast(0, { seed: this.seed });
  }

  policy(budget) {
    return new Policy({
      name: Random.id,
      score: new Draw(this.seed, this.draw),
      schedule: new EveryBlock(this.every),
      protect: new Edges({ recent: this.recent }),
      budget: new Entries(requireBudget(Random.id, budget)), // [Random 2]
      precision: new Full(),
    });
  }
}
