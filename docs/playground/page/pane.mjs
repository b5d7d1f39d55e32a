/** One method at work: its controls, its text, what it lost, and why. */

import { get, takesBudget } from "../methods/index.mjs";
import { Unlimited } from "../policy.mjs";
import { MethodControls } from "./controls.mjs";
import { element, shortNumber, shown } from "./elements.mjs";
import { entriesTable, headsTable } from "./facts.mjs";
import { likelyTable } from "./likely.mjs";
import { Run, firstDifference, missed, strongest } from "./run.mjs";
import { TokenText, compared, holding, lookOf } from "./text.mjs";
import { weighing } from "./weighing.mjs";

const DRAWN = 0.2; // attention of a head from which on a line is drawn
const QUIET = 150; // milliseconds between two drawings of the tables while the text runs
const ROWS = 40; // of the table of entries while the text runs; all are shown when it stands

export class Pane {
  /**
   * `page` offers: state, words, config, problem, prompt (ids), full (the run of the full cache), presets,
   * change(parts), choose(position), and arrived() for what has come from the worker.
   */
  constructor(key, label, worker, page) {
    Object.assign(this, { key, label, worker, page, run: null, block: -1 });
    this.controls = new MethodControls(label, page.presets, (spec) => page.change({ [key]: spec }));
    this.error = element("p", { class: "pg-error", role: "alert", hidden: true });
    this.verdict = element("p", { class: "pg-verdict", role: "status" });
    this.missed = element("div", { class: "pg-missed" });
    this.figures = element("p", { class: "pg-figures" });
    this.bar = element("div", { class: "pg-bar", "aria-hidden": "true" }, element("i"));
    this.text = new TokenText(`pg-${key}`, `Text under the ${label}`, (position) => page.choose(position));
    new ResizeObserver(() => this.joinTokens?.()).observe(this.text.root); // tokens move where a table beside them comes or goes
    this.likely = element("div");
    this.weighed = element("div", { class: "pg-weighed" });
    this.facts = element("div", { class: "pg-facts" });
    this.entries = element("div", { class: "pg-scroll" });
    this.lists = { layer: this.headChoice("layer", "Layer "), head: this.headChoice("head", "KV head ") };
    this.details = element("details", { ontoggle: () => this.drawTables() },
      element("summary", {}, "Every entry of one head, its score, and why it is kept or evicted"),
      element("div", { class: "pg-row" }, ...Object.values(this.lists).map((list) => list.parentElement)), this.entries);
    this.answers = element("dl", { class: "pg-answers" });
    this.root = element("section", { class: "pg-pane", "aria-label": label }, this.controls.root, this.error,
      this.verdict, this.missed, this.figures, this.bar,
      element("div", { class: "pg-stage" }, this.text.root, this.weighed, this.likely), this.facts, this.details,
      element("details", {}, element("summary", {}, "The method’s four answers"), this.answers), this.controls.settings);
  }

  /** A list of layers or KV heads: which one the table of entries shows. */
  headChoice(name, label) {
    const list = element("select", { onchange: () => this.page.look({ [name]: list.value }) });
    element("label", {}, label, list);
    return list;
  }

  /** Offer the layers and KV heads of another model. */
  listHeads() {
    const { layers, kvHeads } = this.page.config;
    for (const [list, count] of [[this.lists.layer, layers], [this.lists.head, kvHeads]]) {
      list.replaceChildren(...Array.from({ length: count }, (_, index) => new Option(index, index)));
    }
  }

  get spec() {
    return this.page.state[this.key];
  }

  /** Entries that the method is given; null if it takes no budget. */
  get budget() {
    return takesBudget(this.spec) ? this.page.budget : null;
  }

  /** Show another method or problem: what was known is discarded. */
  reset() {
    this.run?.drop();
    this.run = null;
    this.block = -1;
    this.text.clear();
    this.complain("");
    for (const part of [this.missed, this.weighed, this.facts, this.entries, this.answers]) part.replaceChildren();
    this.verdict.textContent = "";
    try {
      this.controls.show(this.spec);
      this.explain();
    } catch (error) {
      this.complain(error.message);
    }
    this.draw(-1);
  }

  /** Say how the method answers the four questions; throws if it cannot work. */
  explain() {
    if (this.page.budget === null) return;
    const policy = get(this.spec, this.budget);
    policy.check(this.page.prompt.length);
    const all = policy.budget instanceof Unlimited;
    const said = [
      ["What is an entry worth?", all ? policy.budget.says : `${policy.score.says} ${policy.budget.says}`],
      ["When does it evict?", all ? "Never." : policy.schedule.says],
      ["Which entries are protected?", policy.protect.says],
      ["How precisely is it kept?", policy.precision.says],
    ];
    this.answers.replaceChildren(...said.flatMap(([question, answer]) =>
      [element("dt", {}, question), element("dd", {}, answer)]));
  }

  complain(message) {
    this.error.hidden = message === "";
    this.error.textContent = message;
  }

  /** Begin to run. */
  start() {
    if (!this.error.hidden) return;
    const asked = { ...this.page.asked, method: this.spec, budget: this.budget, pinned: this.page.pinned };
    this.run = new Run(this.worker, asked, (run) => {
      if (run.error) this.complain(run.error);
      this.page.arrived();
    });
  }

  /** Blocks that were read. */
  get known() {
    return this.run ? this.run.frames.length : 0;
  }

  /** What the other pane shows, as long as both have read the same text; null if there is none. */
  get beside() {
    const run = this.page.panes.find((pane) => pane !== this)?.run, parted = run && this.run ? firstDifference(this.run, run) : -1;
    return parted >= 0 && this.block > parted ? null : run?.frames[this.block] ?? null;
  }

  /** Whether nothing more will come. */
  get finished() {
    return !this.run || this.run.ended || this.run.error !== null;
  }

  /** Show what was there after a block, the last known one if it is not known yet. */
  draw(block) {
    this.block = Math.min(block, this.known - 1);
    const { words, prompt, pinned } = this.page, frame = this.run?.frames[this.block];
    const ids = [...prompt, ...(this.run?.written(this.block + 1) ?? [])];
    const wrong = this.difference(), held = frame ? holding(frame) : null, { beside } = this, there = beside ? holding(beside) : null;
    this.text.draw(ids.map((id) => words[id]), ids.length, this.page.problem.task, (position) => {
      const read = frame && position < frame.seen;
      const { classes, label } = read ? lookOf(held, position) : { classes: "pg-unread", label: "not read yet" };
      const pin = pinned.includes(position), differs = wrong >= 0 && position === prompt.length + wrong;
      const against = read && there ? compared(held, there, position) : { classes: "", label: "" };
      return {
        classes: `${classes}${against.classes}${pin ? " pg-pinned" : ""}${differs ? " pg-wrong" : ""}`,
        label: `${label}${against.label}${pin ? ", protected by you" : ""}${differs ? ", not what the full cache writes" : ""}`,
      };
    });
    this.drawFigures(frame, held);
    this.drawVerdict(wrong);
    this.drawLikely(wrong);
    this.text.mark(this.page.chosen);
    this.drawTables();
    this.joinTokens = () => this.drawAttention(frame, wrong);
    this.joinTokens();
  }

  drawFigures(frame, held) {
    if (!frame) {
      this.figures.textContent = `The prompt has ${this.page.prompt.length} tokens. Nothing was read yet.`;
      this.bar.firstChild.style.width = "0";
      return;
    }
    const sum = (x) => x.reduce((total, each) => total + each, 0), entries = sum(held.held) / held.heads;
    const bits = sum(held.bits) / (sum(held.held) || 1), left = sum(held.leaving) / held.heads;
    const extra = this.page.pinned.filter((position) => position < frame.seen).length;
    this.figures.textContent = `Cache: ${shortNumber(entries)} entries of ${frame.seen} tokens read`
      + (extra ? `, ${extra} of them protected by you besides the budget` : "")
      + (bits < 16 ? `, ${shortNumber(bits)} bits each` : "") + (left ? `; ${shortNumber(left)} evicted just now` : "");
    this.bar.firstChild.style.width = `${100 * entries * bits / 16 / this.page.length}%`;
  }

  /** Draw what the last token read attends to; while both caches read the same text, also what only the full one has. */
  drawAttention(frame, wrong) {
    const { full } = this.page, same = frame && (wrong < 0 || this.block <= wrong);
    const lost = same ? missed(this.run, full, this.block).map((each) => ({ ...each, lost: true })) : [];
    this.text.join(frame ? frame.seen - 1 : 0, frame ? [...strongest(frame, DRAWN, 6), ...lost] : []);
  }

  /** Show the likeliest next tokens, behind the first wrong token those in its place: there the texts part. */
  drawLikely(wrong) {
    const { words, full, prompt } = this.page, block = wrong >= 0 ? wrong : this.block;
    const of = (run) => run?.frames[block]?.likely ?? [];
    const caption = `The likeliest for token ${prompt.length + block}${wrong >= 0 ? ", the first wrong one" : ""}`;
    this.likely.replaceChildren(...(this.run && block >= 0 ? [likelyTable(of(full), of(this.run), words, caption)] : []));
  }

  /** Index of the first written token that is not the full cache's, as far as is shown; −1 if none. */
  difference() {
    if (!this.run || !this.page.full) return -1;
    const first = firstDifference(this.run, this.page.full);
    return first <= this.block ? first : -1;
  }

  drawVerdict(wrong) {
    const { words, full, prompt } = this.page;
    const done = this.run?.ended && full?.ended && this.block === this.known - 1;
    const compared = this.run && this.block >= 0 && this.block < full.frames.length;
    const state = !compared ? "" : wrong >= 0 ? `wrong ${wrong}` : done ? "right" : "so far";
    if (this.told === `${this.run?.id} ${state}`) return;
    this.told = `${this.run?.id} ${state}`;
    this.root.dataset.verdict = state.split(" ")[0];
    this.missed.replaceChildren();
    const texts = { "": "", right: "✓ It writes what the full cache writes.", "so far": "The same as the full cache so far." };
    this.verdict.textContent = texts[state] ?? "";
    if (wrong < 0) return;
    const word = (run) => shown(words[run.frames[wrong]?.next] ?? "nothing");
    this.verdict.textContent = `✗ Wrong from token ${prompt.length + wrong} on: it writes ${word(this.run)}, `
      + `the full cache writes ${word(full)}.`;
    this.drawMissed(wrong);
  }

  /** Offer to protect what the full cache looked at when it wrote the token that is missing here. */
  drawMissed(wrong) {
    const lost = missed(this.run, this.page.full, wrong);
    const there = element("button", { type: "button", onclick: () => this.page.go(wrong) }, "Go to that token");
    this.missed.replaceChildren(there);
    if (!lost.length) return;
    const buttons = lost.map(({ position, attention }) => element("button", {
      type: "button", onclick: () => this.page.protect(position),
    }, `${this.page.nameOf(position)}: ${Math.round(100 * attention)} % of the attention`));
    this.missed.replaceChildren("The full cache looks at these tokens here; some heads no longer have them. Protect one and run again: ",
      ...buttons, there);
  }

  /** Draw the tables of the chosen token and of one head, at most a few times a second. */
  drawTables() {
    const wait = this.page.playing ? QUIET : 0;
    clearTimeout(this.pending);
    if (wait && performance.now() - (this.drawn ?? 0) < wait) {
      this.pending = setTimeout(() => this.drawTables(), wait);
      return;
    }
    this.drawn = performance.now();
    const { chosen, words, prompt } = this.page, frame = this.run?.frames[this.block];
    const text = (position) => shown(words[[...prompt, ...(this.run?.written() ?? [])][position]] ?? "");
    const asked = `${this.page.state.layer} ${this.page.state.head}`, name = (position) => this.page.nameOf(position);
    const weighed = frame && !this.page.playing ? weighing(frame, this.beside, chosen, asked, name) : null;
    this.weighed.replaceChildren(...(weighed ? [weighed] : []));
    this.facts.replaceChildren();
    if (chosen >= 0 && frame && chosen < frame.seen) {
      if (!this.page.pinned.includes(chosen)) this.facts.append(this.protectButton(chosen));
      this.facts.append(headsTable(this.run, chosen, this.block, `${text(chosen)}, position ${chosen}`));
    }
    for (const [name, list] of Object.entries(this.lists)) {
      list.value = this.page.state[name];
      if (list.selectedIndex < 0) list.selectedIndex = 0;
    }
    const layer = this.lists.layer.selectedIndex, g = this.lists.head.selectedIndex, head = frame?.layers[layer][g];
    if (!this.details.open || !head) this.entries.replaceChildren();
    else this.entries.replaceChildren(entriesTable(head, text, `Layer ${layer}, KV head ${g}, ${frame.seen} tokens read`,
      this.page.playing ? ROWS : Infinity));
  }

  protectButton(position) {
    return element("button", { type: "button", class: "pg-protect", onclick: () => this.page.protect(position) },
      `Protect ${this.page.nameOf(position)} and run again`);
  }
}
