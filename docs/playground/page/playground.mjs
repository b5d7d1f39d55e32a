/** The page: one model, one or two methods, a slider over what was read, and an address that holds it all. */

import { takesBudget } from "../methods/index.mjs";
import { budgetEntries } from "../selection.mjs";
import { Tokenizer } from "../tokenizer.mjs";
import { readConfig } from "../transformer.mjs";
import { readAddress, readPositions, writeAddress } from "./address.mjs";
import { element, shown } from "./elements.mjs";
import { Pane } from "./pane.mjs";
import { Run, startWorker } from "./run.mjs";

const FULL_SPEED = "full speed";
const SPEEDS = { "3 tokens/s": 3, "10 tokens/s": 10, [FULL_SPEED]: Infinity }; // tokens a second

class Playground {
  /** `stored` is what the site's hook wrote: model, problems, presets, questions; `source` the worker's. */
  constructor(root, stored, source) {
    Object.assign(this, { root, stored, presets: stored.presets });
    this.tokenizer = new Tokenizer(stored.tokenizer);
    this.words = this.tokenizer.words;
    this.config = readConfig(stored.config);
    this.state = readAddress(location);
    this.workers = [startWorker(source, stored), startWorker(source, stored)];
    for (const worker of this.workers) worker.onerror = ({ message }) => this.panes.forEach((pane) => pane.complain(message));
    this.chosen = -1;
    this.block = -1;
    this.playing = false;
    this.budget = null;
    this.build();
    this.readProblem();
    addEventListener("hashchange", () => this.revisit());
    if (this.state.step !== "") this.play(Number(this.state.step) || 0);
  }

  // --- what is on the page ---------------------------------------------------------------------------

  build() {
    this.buildToolbar();
    this.buildProblem();
    this.left = new Pane("method", "first method", this.workers[0], this);
    this.right = new Pane("with", "second method", this.workers[1], this);
    this.question = element("p", { class: "pg-question" });
    this.protected = element("p", { class: "pg-protected" });
    this.panesBox = element("div", { class: "pg-panes" }, this.left.root, this.right.root);
    this.root.replaceChildren(this.question, this.toolbar, this.protected, this.panesBox, this.problemBox, this.share());
    document.addEventListener("keydown", (event) => this.key(event));
  }

  buildToolbar() {
    this.runButton = element("button", { type: "button", id: "pg-run", onclick: () => this.toggle() }, "Run");
    this.slider = element("input", {
      type: "range", id: "pg-step", min: 0, max: 0, value: 0, "aria-label": "Tokens read", oninput: () => this.go(Number(this.slider.value)),
    });
    this.where = element("output", { for: "pg-step", "aria-live": "off" });
    const arrow = (text, label, by) => element("button", {
      type: "button", "aria-label": label, title: label, onclick: () => this.go(this.block + by),
    }, text);
    this.speed = element("select", { "aria-label": "Speed" });
    for (const name of Object.keys(SPEEDS)) this.speed.add(new Option(name, name));
    this.speed.value = FULL_SPEED;
    this.budgetSlider = element("input", {
      type: "range", id: "pg-budget", min: 2, max: 2, "aria-label": "Budget",
      oninput: () => this.tellBudget(Number(this.budgetSlider.value)),
      onchange: () => this.change({ budget: this.budgetSlider.value }),
    });
    this.budgetTold = element("output", { for: "pg-budget", "aria-live": "off" });
    this.second = element("button", { type: "button", onclick: () => this.compare() });
    this.toolbar = element("div", { class: "pg-toolbar", role: "group", "aria-label": "Controls" },
      element("div", { class: "pg-row" }, this.runButton, arrow("◀", "One token back", -1), this.slider,
        arrow("▶", "One token on", 1), this.where),
      element("div", { class: "pg-row" }, element("label", { class: "pg-grow" }, "Budget ", this.budgetSlider), this.budgetTold),
      element("div", { class: "pg-row" }, this.second, this.speed));
  }

  buildProblem() {
    this.problemList = element("select", {
      "aria-label": "Problem", onchange: () => this.change({ problem: this.problemList.value, text: "", protect: "" }),
    });
    this.stored.problems.forEach((_, index) => this.problemList.add(new Option(`problem ${index}`, index)));
    this.field = element("textarea", { rows: 5, spellcheck: "false", "aria-label": "Text of the problem" });
    this.problemError = element("p", { class: "pg-error", role: "alert", hidden: true });
    const use = element("button", {
      type: "button", onclick: () => this.change({ text: this.field.value, protect: "" }),
    }, "Use this text");
    this.problemBox = element("details", { class: "pg-problem" }, element("summary", {}, "Change the problem"),
      element("p", {}, "Choose a problem, or edit the text: words of the model’s vocabulary between blanks, ↵ for a new line."),
      this.problemList, this.field, use, this.problemError);
  }

  share() {
    const said = element("span", { role: "status" });
    const button = element("button", {
      type: "button",
      onclick: () => navigator.clipboard.writeText(location.href).then(
        () => { said.textContent = " Copied."; },
        () => { said.textContent = " The address of this page holds what you see: copy it."; }),
    }, "Copy the address of this state");
    return element("p", {}, button, said);
  }

  // --- what is asked -----------------------------------------------------------------------------------

  get panes() {
    return this.state.with === "" ? [this.left] : [this.left, this.right];
  }

  get pinned() {
    return readPositions(this.state.protect).filter((position) => position < this.prompt.length + this.stored.most);
  }

  /** What every run is asked for, whatever its method. */
  get asked() {
    return { prompt: this.promptText, most: this.stored.most };
  }

  /** Change the state; a change of what is computed begins anew, and runs on if it ran before. */
  change(parts) {
    const running = this.left.run !== null;
    Object.assign(this.state, parts, { step: "" });
    this.remember();
    if ("problem" in parts || "text" in parts) this.readProblem();
    else this.prepare();
    if (running) this.play();
  }

  /** Change what is looked at, not what is computed. */
  look(parts) {
    Object.assign(this.state, parts);
    this.remember();
    this.panes.forEach((pane) => pane.drawTables());
  }

  remember() {
    location.replace(`#${writeAddress(this.state, location)}`);
  }

  /** The reader has changed the address. */
  revisit() {
    const found = readAddress(location);
    if (writeAddress(found, location) === writeAddress(this.state, location)) return;
    this.state = found;
    this.readProblem();
    if (found.step !== "") this.play(Number(found.step) || 0);
  }

  protect(position) {
    this.change({ protect: [...new Set([...this.pinned, position])].join(",") });
  }

  release(position) {
    this.change({ protect: this.pinned.filter((each) => each !== position).join(",") });
  }

  compare() {
    this.change({ with: this.state.with === "" ? "caote:h2o" : "" });
  }

  choose(position) {
    this.chosen = position;
    this.panes.forEach((pane) => pane.draw(this.block));
  }

  /** Name a token of the text. */
  nameOf(position) {
    const ids = [...this.prompt, ...(this.left.run ?? this.full).written()];
    return `${shown(this.words[ids[position]] ?? "?")} at ${position}`;
  }

  /** Read the problem and let the full cache solve it: the yardstick, and the length that 100 % stands for. */
  readProblem() {
    const problem = this.stored.problems[Number(this.state.problem)] ?? this.stored.problems[0];
    const text = this.state.text === "" ? problem.prompt : this.state.text;
    this.problemError.hidden = true;
    try {
      this.setPrompt(text);
    } catch (error) {
      this.problemError.hidden = false;
      this.problemError.textContent = error.message;
      this.problemBox.open = true;
      this.setPrompt(problem.prompt);
    }
    this.problemList.value = this.stored.problems.indexOf(problem);
    this.field.value = shown(text).replace(/ *↵ */g, " ↵ ").trim();
    this.chosen = -1;
    this.full?.drop();
    this.full = new Run(this.workers[0], { ...this.asked, method: "full", budget: null, pinned: [] }, () => this.measured());
    this.full.until(Infinity);
    this.budget = null;
    this.prepare();
  }

  setPrompt(text) {
    const lines = text.replaceAll("↵", "\n").split("\n").map((line) => line.trim().replace(/\s+/g, " "));
    this.promptText = lines.join(" \n ").replace(/^ +| +$/g, "").replace(/ {2,}/g, " ");
    this.prompt = this.tokenizer.encode(this.promptText);
  }

  /** Tokens that the full cache holds in the end. */
  get length() {
    return this.full.frames.at(-1)?.seen ?? this.prompt.length;
  }

  /** The full cache has read another token; once it is done, the budget is known. */
  measured() {
    if (!this.full.ended) return;
    try {
      this.budget = budgetEntries(this.state.budget, this.length);
    } catch {
      this.budget = budgetEntries("70%", this.length);
    }
    this.budget = Math.min(Math.max(this.budget, 2), this.length);
    this.prepare();
    if (this.playing) this.begin();
  }

  /** Show the state before anything ran. */
  prepare() {
    if (this.full.ended && /^\d+$/.test(this.state.budget)) {
      this.budget = Math.min(Math.max(Number(this.state.budget), 2), this.length);
    }
    this.block = -1;
    this.wanted = -1;
    this.right.root.hidden = this.state.with === "";
    this.second.textContent = this.state.with === "" ? "Compare two" : "Show one";
    if (this.budget !== null) {
      this.budgetSlider.max = this.length;
      this.budgetSlider.value = this.budget;
      this.tellBudget(this.budget);
    }
    this.budgetSlider.disabled = this.budget === null;
    this.panes.forEach((pane) => pane.reset());
    this.ask();
    this.drawProtected();
    this.tell();
  }

  tellBudget(entries) {
    this.budgetTold.textContent = `${entries} of ${this.length} entries (${Math.round(100 * entries / this.length)} %)`;
    this.budgetSlider.setAttribute("aria-valuetext", this.budgetTold.textContent);
    this.budgetSlider.closest(".pg-row").classList.toggle("pg-off", !this.panes.some((pane) => this.needsBudget(pane)));
  }

  needsBudget(pane) {
    try {
      return takesBudget(pane.spec);
    } catch {
      return false;
    }
  }

  /** Show the question of the method's page. */
  ask() {
    const name = this.state.method.split("@")[0];
    const asked = this.stored.questions[name] ?? this.stored.questions[name.split(":")[0]];
    this.question.hidden = asked === undefined;
    this.question.replaceChildren(element("strong", {}, "Try: "), asked ?? "");
  }

  drawProtected() {
    const chips = this.pinned.map((position) => element("button", {
      type: "button", title: "Protect it no longer", onclick: () => this.release(position),
    }, `${this.nameOf(position)} ✕`));
    this.protected.replaceChildren("Protected by you, besides the budget: ", ...chips);
    this.protected.hidden = chips.length === 0;
  }

  // --- running -------------------------------------------------------------------------------------------

  toggle() {
    if (this.playing) this.pause();
    else {
      this.play();
      if (this.left.text.root.getBoundingClientRect().bottom > innerHeight) this.toolbar.scrollIntoView();
    }
  }

  /** Run until the end, or until a block was read. */
  play(goal = Infinity) {
    this.playing = true;
    this.goal = goal;
    const last = Math.max(...this.panes.map((pane) => pane.known)) - 1;
    if (this.left.run && this.panes.every((pane) => pane.finished) && this.block >= last) this.prepare();
    if (this.budget !== null) this.begin();
    this.tell();
  }

  /** Let the workers go on, and follow them. */
  begin() {
    for (const pane of this.panes) {
      if (!pane.run) pane.start();
      pane.run?.until(Infinity);
    }
    this.began = performance.now();
    this.from = this.block;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame((time) => this.follow(time));
  }

  follow(time) {
    const rate = SPEEDS[this.speed.value], newest = Math.max(...this.panes.map((pane) => pane.known)) - 1;
    const due = rate === Infinity ? newest : this.from + Math.floor((time - this.began) / 1000 * rate);
    const block = Math.min(due, newest, this.goal);
    if (block > this.block) {
      this.show(block);
      this.panes.forEach((pane) => pane.text.follow(pane.text.spans.length - 1));
    }
    if (this.block >= this.goal || (this.panes.every((pane) => pane.finished) && this.block >= newest)) this.pause();
    else if (this.playing) this.frame = requestAnimationFrame((next) => this.follow(next));
  }

  pause() {
    this.playing = false;
    cancelAnimationFrame(this.frame);
    for (const pane of this.panes) pane.run?.until(pane.known);
    this.state.step = this.block < 0 ? "" : String(this.block);
    this.remember();
    this.show(this.block);
  }

  /** Show what was there after a block; compute it first, if need be. */
  go(block) {
    if (this.playing) this.pause();
    if (block < 0 || this.budget === null) return;
    for (const pane of this.panes) {
      if (!pane.run) pane.start();
      if (block >= pane.known) pane.run?.until(block + 1);
    }
    const newest = Math.max(...this.panes.map((pane) => pane.known)) - 1;
    this.wanted = block > newest && this.panes.some((pane) => !pane.finished) ? block : -1;
    this.show(Math.min(block, newest));
  }

  /** Something has come from a worker. */
  arrived() {
    const newest = Math.max(...this.panes.map((pane) => pane.known)) - 1;
    if (this.playing) return;
    if (this.wanted >= 0 && newest >= this.wanted) {
      this.wanted = -1;
      this.show(newest);
    } else this.show(this.block);
  }

  show(block) {
    this.block = block;
    this.panes.forEach((pane) => pane.draw(block));
    this.tell();
  }

  tell() {
    const newest = Math.max(...this.panes.map((pane) => pane.known)) - 1;
    this.slider.max = Math.max(0, newest);
    this.slider.value = Math.max(0, this.block);
    const seen = this.block < 0 ? 0 : this.prompt.length + this.block;
    this.where.textContent = `${seen} tokens read`;
    this.slider.setAttribute("aria-valuetext", this.where.textContent);
    const done = this.left.run && this.panes.every((pane) => pane.finished) && this.block >= newest;
    this.runButton.textContent = this.playing ? "Pause" : done ? "Run again" : this.left.run ? "Go on" : "Run";
    this.root.dataset.state = this.playing ? "running" : done ? "done" : "waiting";
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("select, button, input, textarea, summary, a, label, [role=listbox]")) return;
    const last = Number(this.slider.max);
    const moves = { ArrowLeft: this.block - 1, ArrowRight: this.block + 1, Home: 0, End: last };
    if (event.key === " ") this.toggle();
    else if (event.key in moves) this.go(moves[event.key]);
    else return;
    event.preventDefault();
  }
}

const root = document.getElementById("kvlab-playground");
globalThis.kvlabPlayground = new Playground(root, globalThis.kvlabModel, globalThis.kvlabWorker);
