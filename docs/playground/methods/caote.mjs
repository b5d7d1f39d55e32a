/** CAOTE and FastCAOTE: evict what changes the attention output least; as reference/methods/caote.py. */

import { distance, weightedValues } from "../attention.mjs";
import { checkKernel } from "../checks.mjs";
import { Method, choice, flag, real, whole } from "../method.mjs";
import { EveryBlock, Full, Nobody, Score } from "../policy.mjs";
import { amongCandidates, meanPool, reduceRows } from "../windows.mjs";

/** Divide a row by its sum; all zero becomes uniform. */
export function normalize(retention) {
  if (retention.some((x) => x < 0)) {
    throw new RangeError("CAOTE needs retention scores that are at least 0, got a negative one");
  }
  const total = retention.reduce((sum, x) => sum + x, 0);
  return Float64Array.from(retention, (x) => (total > 0 ? x / total : 1 / retention.length)); // [CAOTE 22]
}

/** Return Σh − h_j: of equal entries the same, and without cancellation. */
export function remainingMass(h) {
  const total = h.reduce((sum, x) => sum + x, 0), dominant = h.findIndex((x) => x > total / 2);
  const others = h.reduce((sum, x, j) => (j === dominant ? sum : sum + x), 0);
  return h.map((x, j) => (j === dominant ? others : total - x));
}

/**
 * c_j = h_j/(1 − h_j)·‖Σ h·v − v_j‖: the change of the output when entry j alone is evicted.
 *
 * The entry above one half, at most one, is computed from the output of the others, where the
 * printed formula loses its digits as h_j → 1; an entry with all the mass has infinite error.
 */
export function evictionError(h, values, norm = 2) {
  const output = weightedValues(h, values), rest = remainingMass(h);
  return h.map((weight, j) => {
    if (weight > 0.5) return dominantError(h, values, j, norm);
    return rest[j] > 0 ? weight / rest[j] * distance(output, values[j], norm) : 0; // [CAOTE 21]
  });
}

/** The error of the entry j that holds more than half of the mass. */
function dominantError(h, values, j, norm) {
  const others = h.map((weight, i) => (i === j ? 0 : weight));
  const mass = others.reduce((sum, x) => sum + x, 0);
  if (!(mass > 0)) return Infinity;
  const without = weightedValues(others.map((weight) => weight / mass), values);
  return h[j] * distance(without, values[j], norm);
}

/** FastCAOTE: the unweighted mean of all present values stands in for the output; with all the mass infinite, too. */
export function fastEvictionError(h, values, norm = 2) {
  const rest = remainingMass(h), mean = reduceRows(values, "mean");
  return h.map((weight, j) =>
    rest[j] > 0 ? weight / rest[j] * distance(mean, values[j], norm) : Infinity); // [CAOTE 23]
}

/** Exact change of the output when a whole set is evicted: ‖Σ_E h(v − X)‖/(1 − Σ_E h). */
export function jointError(h, values, evicted) {
  const output = weightedValues(h, values), pull = new Float64Array(output.length);
  let left = 0;
  h.forEach((weight, j) => {
    if (!evicted[j]) left += weight;
    else pull.forEach((x, c) => { pull[c] = x + weight * (values[j][c] - output[c]); });
  });
  return left > 0 ? Math.sqrt(pull.reduce((sum, x) => sum + x * x, 0)) / left : Infinity;
}

/** Root of the sum of squares over rows, element by element. */
function lengths(rows) {
  return reduceRows(rows.map((row) => row.map((x) => x * x)), "sum").map(Math.sqrt);
}

/** CAOTE applied to any score. */
export class EvictionError extends Score {
  constructor(base, options) {
    super();
    Object.assign(this, { base, ...options });
    this.columns = base.columns;
    this.ordinal = this.several !== "independent";
    this.joinsKvHeads = this.heads === "layer";
    this.says = `How far the attention output would move without the entry${
      this.fast ? " (the mean of all values stands for the output)" : ""}. Its weight: ${base.says}`;
  }

  observe(state, seen) {
    return this.base.observe(state, seen);
  }

  score(state, seen, candidates, room) {
    const weights = this.weights(state, seen, candidates);
    if (this.several !== "independent") {
      return weights.map((h, g) => this.eliminationOrder(h, seen.values[g], candidates[g], room));
    }
    const error = this.groupError(weights, seen.values);
    return this.pool === null ? error : amongCandidates(error, candidates, (x) => meanPool(x, this.pool, "zero"));
  }

  /** Rows `[g][k][j]` of the wrapped score, each adding up to 1. */
  weights(state, seen, candidates) {
    return this.base.retention(state, seen, candidates).map((rows, g) => {
      const counted = this.normalize_over === "candidates"
        ? rows.map((row) => row.map((x, j) => (candidates[g][j] ? x : 0))) : rows;
      return (this.heads === "attention" ? [reduceRows(counted, "mean")] : counted).map(normalize);
    });
  }

  /** Error of each entry over the query group; L2 is the exact change of all its outputs. */
  groupError(weights, values) {
    const measure = this.fast ? fastEvictionError : evictionError;
    const perHead = weights.map((rows, g) => rows.map((h) => measure(h, values[g], this.norm))); // [CAOTE 8]
    if (this.heads === "layer") {
      const shared = lengths(perHead.flat());
      return perHead.map(() => shared);
    }
    if (this.heads === "max" || this.heads === "mean") return perHead.map((rows) => reduceRows(rows, this.heads));
    return perHead.map(lengths);
  }

  /** Evict one after the other; survivors rank above all that were evicted, the last of these highest. */
  eliminationOrder(h, values, candidates, room) {
    const order = new Float64Array(candidates.length).fill(Infinity);
    const evicted = candidates.map(() => false);
    const turns = candidates.filter(Boolean).length - room;
    for (let turn = 0; turn < turns; turn++) {
      const open = [...candidates.keys()].filter((j) => candidates[j] && !evicted[j]);
      const errors = this.errorsWithout(h, values, evicted, open);
      const victim = open[errors.indexOf(Math.min(...errors))];
      evicted[victim] = true;
      order[victim] = turn;
    }
    return order;
  }

  /** Error of each open entry, once others are evicted. */
  errorsWithout(h, values, evicted, open) {
    if (this.several === "joint_greedy") {
      return open.map((entry) => Math.hypot(...h.map((row) =>
        jointError(row, values, evicted.map((gone, j) => gone || j === entry)))));
    }
    const left = h.map((row) => normalize(row.map((x, j) => (evicted[j] ? 0 : x))));
    const [error] = this.groupError([left], [values]);
    return open.map((entry) => error[entry]);
  }
}

/** Correct a score (in caote:h2o H2O's) by how much the output changes without the entry. */
export class Caote extends Method {
  static id = "caote";
  static title = "CAOTE";
  static fast = false;
  static options = {
    norm: real(2, 1, 8, "Order of the norm in which the change of the output is measured."),
    heads: choice("l2", ["l2", "mean", "max", "attention", "layer"], "How errors of a query group combine."),
    several: choice("independent", ["independent", "sequential", "joint_greedy"],
      "How to choose several entries to evict at once."),
    normalize_over: choice("present", ["present", "candidates"],
      "Entries over which the wrapped score is divided by its sum."),
    pool: whole(null, 1, 15, "Kernel of a mean pooling of the finished score.", { none: true }),
    protect: choice("inherit", ["inherit", "none"], "Whether the wrapped method's protection holds."),
    evict_before_attend: flag(false, "Attend over the survivors only, as the paper's Eq. 5-7 do."),
    every: whole(1, 1, 32, "Generated tokens between two evictions."),
  };

  constructor(given, base) {
    super(given);
    this.base = base;
    this.budgeted = base.constructor.budgeted;
    if (this.pool !== null) checkKernel(this.pool);
    if (!(this.norm >= 1)) throw new RangeError(`norm = ${this.norm} must be at least 1`);
    if (this.several !== "independent") this.checkSeveral();
  }

  /** Throw if an option does not allow several entries to be chosen together. */
  checkSeveral() {
    if (this.heads === "layer") throw new RangeError("heads = layer needs several = independent");
    if (this.pool !== null) throw new RangeError(`pool = ${this.pool} needs several = independent`);
    if (this.several !== "joint_greedy") return;
    if (this.norm !== 2 || !["l2", "attention"].includes(this.heads)) {
      throw new RangeError("several = joint_greedy needs norm = 2 and heads = l2 or attention");
    }
    if (this.constructor.fast) throw new RangeError("several = joint_greedy is exact and has no fast form");
  }

  policy(budget) {
    const base = this.base.policy(budget), name = this.constructor.id;
    if (!(base.precision instanceof Full)) {
      throw new RangeError(`CAOTE wraps methods that keep 16 bit, not ${base.name}`);
    }
    if (base.score.signed || base.score.ordinal) {
      throw new RangeError(`CAOTE needs retention scores that are at least 0 and no ranks; those of ${base.name} are not`);
    }
    const { fast } = this.constructor;
    return base.with({
      name: `${name}:${base.name}`,
      score: new EvictionError(base.score, {
        fast,
        norm: this.norm,
        heads: this.heads,
        several: this.several,
        normalize_over: this.normalize_over,
        pool: this.pool,
      }),
      schedule: new EveryBlock(this.every),
      protect: this.protect === "inherit" ? base.protect : new Nobody(),
      evictBeforeAttend: this.evict_before_attend,
    });
  }
}

/** CAOTE with the mean of all values in place of the output. */
export class FastCaote extends Caote {
  static id = "fast_caote";
  static title = "FastCAOTE";
  static fast = true;
}
