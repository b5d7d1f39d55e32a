/** What a file in methods/ has to offer: hyper-parameters that make a policy; as reference/method.py. */

import { Edges } from "./policy.mjs";

/**
 * Hyper-parameters of one method, by the option names of the registry syntax `name@option=value`.
 *
 * A subclass has `id` and `title`, `options` made by the functions below, and `policy(budget)`.
 */
export class Method {
  /** Whether a budget has to be given; other methods state their memory by their own parameters. */
  static budgeted = true;

  constructor(given = {}) {
    for (const [name, option] of Object.entries(this.constructor.options)) {
      this[name] = name in given ? option.check(name, given[name]) : option.default;
    }
  }
}

/** Numbers that a slider offers, which are fewer than those that are allowed. */
const offered = (from, to) => ({ from, to });

/** Return a number, or null where an option has none. */
function number(name, value, none, allowed, what) {
  return none && (value === null || value === "none") ? null : expect(name, value, allowed(value), what);
}

/** An option that counts something. */
export function whole(standard, from, to, says, { none = false } = {}) {
  const check = (name, value) => number(name, value, none, Number.isInteger, "a whole number");
  return { kind: "whole", default: standard, ...offered(from, to), says, none, check };
}

/** An option that is any number; `logarithmic` says how a slider moves. */
export function real(standard, from, to, says, { none = false, logarithmic = false } = {}) {
  const allowed = (value) => typeof value === "number" && !Number.isNaN(value);
  const check = (name, value) => number(name, value, none, allowed, "a number");
  return { kind: "real", default: standard, ...offered(from, to), says, none, logarithmic, check };
}

/** An option that is one of some values. */
export function choice(standard, values, says) {
  const check = (name, value) => expect(name, value, values.includes(value), `one of ${values.join(", ")}`);
  return { kind: "choice", default: standard, values, says, check };
}

/** An option that is a text, which is written elsewhere on the page; addresses may give a number in its place. */
export function text(standard, says) {
  const check = (name, value) => String(value);
  return { kind: "text", default: standard, says, check };
}

/** An option that is true or false. */
export function flag(standard, says) {
  const check = (name, value) => expect(name, value, typeof value === "boolean", "true or false");
  return { kind: "flag", default: standard, says, check };
}

/** Return a value that is allowed; throw otherwise. */
function expect(name, value, allowed, what) {
  if (!allowed) throw new RangeError(`${name} = ${value} must be ${what}`);
  return value;
}

/** A method under which further entries are protected: options of every method. */
export class WithSafe extends Method {
  static options = {
    sinks: whole(0, 0, 32, "First tokens of the text that are protected."),
    recent: whole(0, 0, 64, "Newest entries that are protected."),
    pin_prompt: flag(false, "Whether all tokens of the prompt are protected."),
  };

  constructor(given, base) {
    super(given);
    this.base = base;
  }

  policy(budget) {
    const policy = this.base.policy(budget);
    const edges = new Edges({ sinks: this.sinks, recent: this.recent, prompt: this.pin_prompt });
    return policy.with({ protect: policy.protect.also(edges) });
  }
}

/** Return the budget; throw if none was given or it is below one entry. */
export function requireBudget(name, budget) {
  if (budget === null) throw new RangeError(`${name} needs a budget: a number of entries, at least 1`);
  if (!(budget >= 1)) throw new RangeError(`budget = ${budget} must be at least 1`);
  return budget;
}

/** Throw if a budget was given to a method that evicts nothing. */
export function refuseBudget(name, budget) {
  if (budget !== null) {
    throw new RangeError(`${name} evicts nothing and takes no budget, got budget = ${budget}`);
  }
}

/** What is asked for exists in the reference and not in these files. */
export class NotImplemented extends Error {}
