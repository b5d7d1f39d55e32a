/** A score of the reader's own: JavaScript that rates one entry at a time. */

import { distance, dot, weightedValues } from "../attention.mjs";
import { Method, requireBudget, text, whole } from "../method.mjs";
import { Edges, Entries, EveryBlock, Full, Policy, Score } from "../policy.mjs";
import { AccumulatedAttention } from "./h2o.mjs";

const OPENING = 2; // lines that browsers put before the text of a function
const FRAME = /(?:<anonymous>|> Function):(\d+)/; // of a stack, in the reader's code

/** What the reader's code may call. */
const HELPERS = {
  dot,
  distance,
  norm: (vector) => Math.sqrt(dot(vector, vector)),
  sum: (numbers) => numbers.reduce((total, x) => total + x, 0),
  average: (vectors, weights) => weightedValues(weights, vectors),
};

/** What is wrong with the reader's code, and in which line; the line is null if that is not known. */
export class CodeError extends Error {
  constructor(error) {
    const language = error instanceof SyntaxError ? " (a score is written in JavaScript)" : "";
    super(String(error?.message ?? error) + language);
    const line = Number(error?.stack?.match(FRAME)?.[1]) - OPENING;
    this.line = error instanceof CodeError ? error.line : line > 0 ? line : null;
    this.syntax = error instanceof SyntaxError;
  }
}

/** Write code as one word, so that a specification and an address can hold it. */
export function encode(code) {
  const bytes = String.fromCharCode(...new TextEncoder().encode(code));
  return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** Read what `encode` writes; throw if it is something else. */
export function decode(word) {
  try {
    const bytes = atob(String(word).replaceAll("-", "+").replaceAll("_", "/"));
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes, (letter) => letter.charCodeAt(0)));
  } catch {
    throw new RangeError("code must be what the lab of the playground wrote");
  }
}

/** Read the code without running it; throw if it is no JavaScript. */
export function parseCode(code) {
  return asCode(() => new Function(...Object.keys(HELPERS), `"use strict";${code}
return { score: typeof score === "function" && score, prepare: typeof prepare === "function" && prepare };`));
}

/** Run what may throw in the reader's code. */
function asCode(run) {
  try {
    return run();
  } catch (error) {
    throw new CodeError(error);
  }
}

/** What the reader's function returns. */
export class YourScore extends Score {
  says = "What your function returns.";
  columns = ["accumulated", "memory", "rated"];
  received = new AccumulatedAttention("mean");

  constructor(code) {
    super();
    this.parsed = parseCode(code);
  }

  /** The reader's functions; the code runs when the first entries are rated, never on the page. */
  get functions() {
    this.compiled ??= asCode(() => this.parsed(...Object.values(HELPERS)));
    if (!this.compiled.score) throw new CodeError("the code must have a function score(entry)");
    return this.compiled;
  }

  observe(state, seen) {
    const { entries } = this.received.observe(state, seen);
    const memory = entries.memory.map((own) => own.map((each) => each || {}));
    const rated = seen.positions.map((_, g) => this.rate(this.entries({ ...entries, memory }, seen, g)));
    return state.withEntries({ ...entries, memory, rated });
  }

  /** The entries of KV head g, as the reader's functions are given them. */
  entries({ accumulated, memory }, seen, g) {
    const heads = seen.attention[g], last = seen.clock.block - 1;
    return seen.positions[g].map((position, j) => ({
      received: accumulated[g][j],
      newest: heads.reduce((sum, rows) => sum + rows[last][j], 0) / heads.length,
      age: seen.clock.seen - 1 - position,
      position,
      key: seen.keys[g][j],
      value: seen.values[g][j],
      layer: seen.layer,
      head: g,
      memory: memory[g][j],
    }));
  }

  rate(entries) {
    const { score, prepare } = this.functions;
    const given = this.namesAreRight ? entries : entries.map(strict);
    const rated = asCode(() => {
      const shared = prepare ? prepare(given) : undefined;
      return given.map((entry) => {
        const found = score(entry, shared);
        if (typeof found === "number" && !Number.isNaN(found)) return found;
        score(strict(entry), prepare ? prepare(entries.map(strict)) : undefined); // a wrong name is told where it stands
        const { position, layer, head } = entry;
        throw new CodeError(`score returned ${String(found)} for token ${position} in layer ${layer}, head ${head}; it must return a number`);
      });
    });
    this.namesAreRight = true; // looking at every name takes time: the first entries tell
    return rated;
  }

  score(state) {
    return state.entries.rated;
  }
}

/** Return an entry that throws if it is asked for a field that it does not have. */
function strict(entry) {
  return new Proxy(entry, {
    get(fields, name) {
      if (name in fields || typeof name === "symbol") return fields[name];
      const names = Object.keys(fields), near = names.filter((field) => edits(name, field) <= 2);
      throw new RangeError(`entry has no field ${name}; ${near.length ? `did you mean ${near[0]}?` : `it has ${names.join(", ")}`}`);
    },
  });
}

/** Letters to add, remove or replace that make one word another. */
function edits(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, j) => j);
  for (const [i, letter] of [...one].entries()) {
    const next = [i + 1];
    for (let j = 0; j < other.length; j++) next.push(Math.min(row[j + 1] + 1, next[j] + 1, row[j] + (letter !== other[j])));
    row = next;
  }
  return row.at(-1);
}

/** Rate entries by the reader's code, and keep the best. */
export class Yours extends Method {
  static id = "yours";
  static title = "Your own score";
  static options = {
    sinks: whole(0, 0, 32, "First tokens of the text that are protected."),
    recent: whole(null, 0, 64, "Newest entries that are protected; not set: half of the budget.", { none: true }),
    every: whole(1, 1, 32, "Generated tokens between two evictions."),
    code: text(encode("function score(entry) {\n  return entry.received;\n}"), "The function, written in the lab below."),
  };

  policy(budget) {
    budget = requireBudget(Yours.id, budget);
    return new Policy({
      name: Yours.id,
      score: new YourScore(decode(this.code)),
      schedule: new EveryBlock(this.every),
      protect: new Edges({ sinks: this.sinks, recent: this.recent ?? Math.floor(budget / 2) }),
      budget: new Entries(budget),
      precision: new Full(),
    });
  }
}
