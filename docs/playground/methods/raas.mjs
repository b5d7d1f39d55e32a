/** RaaS: the age of the last use; as reference/methods/raas.py. */

import { checkAtLeast, checkProtected } from "../checks.mjs";
import { Method, flag, real, requireBudget, whole } from "../method.mjs";
import { Edges, Entries, EveryDecode, Full, Policy, Protect, Score } from "../policy.mjs";
import { rank } from "../selection.mjs";
import { reduceRows } from "../windows.mjs";

/** Generated step at which an entry was last attended to; prompt entries start at 0. */
export class LastUse extends Score {
  columns = ["stamp"];

  constructor(threshold, share) {
    super();
    Object.assign(this, { threshold, share });
    const used = share === null ? `attention of at least ${threshold}` : `a place in the top ${100 * share} %`;
    this.says = `The generated token that last used the entry; ${used} counts as use.`;
  }

  observe(state, seen) {
    if (seen.clock.prefilling) return state;
    const stamp = state.entries.stamp.map((own, g) => {
      const stamps = [...own], positions = seen.positions[g];
      seen.queryPositions.forEach((position, row) => {
        const step = position + 1 - seen.clock.prompt;
        const used = this.used(seen.attention[g].map((rows) => rows[row]), positions.map((p) => p <= position));
        positions.forEach((p, j) => {
          if (used[j] || p === position) stamps[j] = step; // [RaaS 1]
        });
      });
      return stamps;
    });
    return state.withEntries({ stamp });
  }

  /** Mark what counts as used: above the threshold, or the top share of the group's mean. */
  used(rows, present) {
    if (this.share === null) {
      const largest = reduceRows(rows, "max");
      return present.map((there, j) => there && largest[j] >= this.threshold);
    }
    const stamped = Math.ceil(this.share * present.filter(Boolean).length);
    const ranks = rank(reduceRows(rows, "mean").map((x, j) => (present[j] ? x : -1)));
    return present.map((there, j) => there && ranks[j] >= present.length - stamped);
  }

  score(state) {
    return state.entries.stamp; // [RaaS 2]
  }
}

/** Generated step at which a page of consecutive positions was last among the best. */
export class PageUse extends Score {
  columns = ["stamp"];

  constructor(page, stampedPages) {
    super();
    Object.assign(this, { page, stampedPages });
    this.says = `The generated token for which the entry's page of ${page} was last among the best.`;
  }

  observe(state, seen) {
    if (seen.clock.prefilling) return state;
    const stamp = state.entries.stamp.map((own, g) => {
      const stamps = [...own], pages = seen.positions[g].map((position) => Math.floor(position / this.page));
      seen.queryPositions.forEach((position, row) => {
        const step = position + 1 - seen.clock.prompt;
        const present = [...new Set(pages.filter((_, j) => seen.positions[g][j] <= position))];
        const begun = pages.map((page, j) => (seen.positions[g][j] <= position ? page : -1));
        const ranks = rank(present.map((page) => this.bound(seen, g, row, begun, page)));
        const best = new Set(present.filter((_, k) => ranks[k] >= present.length - this.stampedPages));
        best.add(Math.floor(position / this.page));
        pages.forEach((page, j) => { if (best.has(page)) stamps[j] = step; });
      });
      return stamps;
    });
    return state.withEntries({ stamp });
  }

  /** Upper bound of any unscaled q·k inside a page, maximum over the query group. */
  bound(seen, g, row, pages, page) {
    const keys = seen.keys[g].filter((_, j) => pages[j] === page);
    const highest = reduceRows(keys, "max");
    const lowest = reduceRows(keys.map((key) => key.map((x) => -x)), "max").map((x) => -x);
    return Math.max(...seen.queries[g].map((head) =>
      head[row].reduce((sum, q, c) => sum + Math.max(q * highest[c], q * lowest[c]), 0))); // [RaaS 3]
  }

  score(state) {
    return state.entries.stamp;
  }
}

/** The page that is being written, and the prompt if it is pinned. */
export class OpenPage extends Protect {
  constructor(page, pinPrompt) {
    super();
    Object.assign(this, { page, pinPrompt });
    this.says = `The newest page is protected${pinPrompt ? ", and the pages of the prompt are" : ""}.`;
  }

  safe(seen) {
    const newest = Math.floor((seen.clock.seen - 1) / this.page);
    const pinned = this.pinPrompt ? Math.ceil(seen.clock.prompt / this.page) : 0;
    return seen.positions.map((own) => own.map((position) => {
      const page = Math.floor(position / this.page);
      return page === newest || page < pinned;
    }));
  }

  count(prompt) {
    return ((this.pinPrompt ? Math.ceil(prompt / this.page) : 0) + 1) * this.page;
  }
}

/** Whole pages only. */
export class Pages {
  constructor(budget, page) {
    Object.assign(this, { budget, page });
    this.says = `At most ${Math.floor(budget / page)} pages of ${page} positions are kept.`;
  }

  room(seen, safe) {
    const safePages = new Set(seen.positions[0].filter((_, j) => safe[0][j]).map((p) => Math.floor(p / this.page)));
    return Math.max(0, Math.floor(this.budget / this.page) - safePages.size) * this.page;
  }

  check(protect, prompt) {
    const pages = Math.floor(this.budget / this.page);
    if (pages < 2) throw new RangeError(`budget = ${this.budget} must hold at least 2 pages of ${this.page}`);
    checkProtected(pages * this.page, protect.count(prompt));
  }
}

/** Keep what was used recently; the prompt is pinned. */
export class RaaS extends Method {
  static id = "raas";
  static title = "RaaS";
  static options = {
    threshold: real(1e-4, 1e-5, 0.5, "Attention from which on an entry counts as used.", { logarithmic: true }),
    share: real(null, 0.05, 1, "Stamp this share of the entries at every step instead of using the threshold.", { none: true }),
    pin_prompt: flag(true, "Whether all tokens of the prompt are protected."),
    every: whole(1, 1, 32, "Generated tokens between two evictions."),
    page: whole(null, 1, 16, "Decide over pages of so many positions; not set: entries.", { none: true }),
  };

  constructor(given) {
    super(given);
    checkAtLeast(0, { threshold: this.threshold });
    if (this.share !== null && !(this.share > 0 && this.share <= 1)) {
      throw new RangeError(`share = ${this.share} must be above 0 and at most 1`);
    }
    if (this.page !== null) checkAtLeast(1, { page: this.page });
  }

  policy(budget) {
    budget = requireBudget(RaaS.id, budget);
    const common = { name: RaaS.id, schedule: new EveryDecode(this.every), precision: new Full() };
    if (this.page !== null) {
      return new Policy({
        ...common,
        score: new PageUse(this.page, Math.floor(Math.floor(budget / this.page) / 2)),
        protect: new OpenPage(this.page, this.pin_prompt),
        budget: new Pages(budget, this.page),
      });
    }
    return new Policy({
      ...common,
      score: new LastUse(this.threshold, this.share),
      protect: new Edges({ prompt: this.pin_prompt }),
      budget: new Entries(budget),
    });
  }
}
