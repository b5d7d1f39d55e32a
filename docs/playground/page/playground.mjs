/** The page: one problem, one or two methods, a slider over what was read, and an address that holds it all. */

import { carriesCode, controlOf, takesBudget } from "../methods/index.mjs";
import { budgetEntries } from "../selection.mjs";
import { Tokenizer } from "../tokenizer.mjs";
import { readConfig } from "../transformer.mjs";
import { readAddress, readPositions, writeAddress } from "./address.mjs";
import { element, shown } from "./elements.mjs";
import { Lab } from "./lab.mjs";
import { Pane } from "./pane.mjs";
import { Problem, ProblemControls } from "./problem.mjs";
import { ModelWorker, Run, embeddedModel, firstDifference, missed } from "./run.mjs";
import { Tour } from "./tour.mjs";

const FULL_SPEED = "full speed";
const LONGEST = 512; // tokens of a reader's problem; a program of 30 lines has fewer
const PAIR = "Corners mark tokens that one cache keeps in more heads than the other: blue where it keeps more. Choose one at the "
  + "step at which it is evicted: what decided, attention or value?";
const PAUSE = 200; // milliseconds; browsers allow few changes of the address in a second
const SPEEDS = { "3 tokens/s": 3, "10 tokens/s": 10, "30 tokens/s": 30, [FULL_SPEED]: Infinity }; // tokens a second

class Playground {
  /** `site` is what the site's hook wrote: models with their problems, presets, questions; `source` the worker's. */
  constructor(root, site, source) {
    Object.assign(this, { root, site, presets: site.presets });
    const plain = location.search + location.hash === "";
    this.state = { ...readAddress(location), ...(plain ? site.tour : {}) };
    ModelWorker.source = source;
    this.workers = Array.from({ length: 3 }, () => new ModelWorker()); // of the full cache and of two methods
    this.prompt = [];
    this.block = -1;
    this.playing = false;
    this.unasked = false; // whether what plays began by a change, not by the reader's wish
    this.budget = null;
    this.build();
    addEventListener("hashchange", () => this.revisit());
    this.open(plain);
  }

  /** Show the problem and the token that the address names; if it names none, begin to run, or the tour. Code waits for the reader. */
  async open(tour = null) {
    const { step, score } = this.state, toLab = score !== "" || location.hash === "#lab";
    this.lab.show();
    await this.readProblem();
    if (!this.full) return;
    if (toLab && step === "") this.lab.root.scrollIntoView();
    else if (this.panes.some((pane) => carriesCode(pane.spec))) return;
    else if (step !== "") this.play(Number(step) || 0);
    else if (tour) this.tour.show(0);
    else if (tour === false) this.demonstrate();
  }

  // --- what is on the page ---------------------------------------------------------------------------

  build() {
    this.buildToolbar();
    this.problemControls = new ProblemControls(this.site.models, (parts) => this.change({ ...parts, protect: "", token: "" }));
    this.taskTold = element("p", { class: "pg-task" });
    this.left = new Pane("method", "first method", this.workers[1], this);
    this.right = new Pane("with", "second method", this.workers[2], this);
    this.question = element("p", { class: "pg-question" });
    this.protected = element("p", { class: "pg-protected" });
    this.panesBox = element("div", { class: "pg-panes" }, this.left.root, this.right.root);
    this.tour = new Tour(this, this.site.tour);
    this.lab = new Lab(this, this.site.models.jumps, this.site.tried);
    this.viewer = element("div", { class: "pg-viewer" }, this.tour.root, this.question, this.toolbar, this.protected, this.panesBox,
      this.comparisons, this.taskTold, this.problemControls.root, this.share());
    this.root.replaceChildren(this.viewer, this.lab.root);
    document.addEventListener("keydown", (event) => this.key(event));
  }

  buildToolbar() {
    this.runButton = element("button", {
      type: "button", id: "pg-run", onclick: () => { this.toggle(); if (this.playing) this.reveal(); },
    }, "Run");
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
      type: "range", id: "pg-budget", min: 2, max: 2, disabled: true, "aria-label": "Budget",
      oninput: () => this.tellBudget(Number(this.budgetSlider.value)),
      onchange: () => this.change({ budget: this.budgetSlider.value }),
    });
    this.budgetTold = element("output", { for: "pg-budget", "aria-live": "off" }, "The model is being loaded.");
    this.second = element("button", { type: "button", onclick: () => this.compare(this.state.with === "" ? this.other : "") });
    this.against = element("button", {
      type: "button", title: "Random eviction under the same protection, schedule and budget", onclick: () => this.compare(this.control),
    }, "Compare with its control");
    this.toolbar = element("div", { class: "pg-toolbar", role: "group", "aria-label": "Controls" },
      element("div", { class: "pg-row" }, this.runButton, arrow("◀", "One token back", -1), this.slider,
        arrow("▶", "One token on", 1), this.where),
      element("div", { class: "pg-row" }, element("label", { class: "pg-grow" }, "Budget ", this.budgetSlider), this.budgetTold));
    this.comparisons = element("div", { class: "pg-row" }, this.second, this.against, this.speed,
      element("button", { type: "button", onclick: () => this.tour.show(0) }, "Tour in six steps"));
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
    return readPositions(this.state.protect).filter((position) => position < this.prompt.length + (this.problem?.most ?? 0));
  }

  /** The matched control of the first method: the second follows it once it is chosen; null if there is none. */
  get control() {
    try {
      return controlOf(this.state.method);
    } catch {
      return null;
    }
  }

  /** Position of the token that the reader points at; −1 if there is none. */
  get chosen() {
    return readPositions(this.state.token)[0] ?? -1;
  }

  /** What every run is asked for, whatever its method. */
  get asked() {
    return { prompt: this.promptText, most: this.problem.most };
  }

  /** Change the state; a change of what is computed begins anew, and runs on if it ran before. */
  async change(parts, running = this.left.run !== null) {
    const control = this.control;
    Object.assign(this.state, parts, { step: "" });
    if (!("with" in parts) && control !== null && this.state.with === control) this.state.with = this.control ?? "";
    this.remember();
    if ("problem" in parts || "text" in parts) await this.readProblem();
    else this.prepare();
    if (running) this.play(Infinity, true);
  }

  /** Bring the page to a state, standing still. */
  async take(state) {
    if (this.playing) this.pause();
    const other = Object.entries({ with: "", text: "", ...state }).filter(([name, value]) => this.state[name] !== value);
    if (other.length) await this.change(Object.fromEntries(other), false);
  }

  /** Show where a method goes wrong. */
  async view(state) {
    this.tour.root.hidden = true;
    await this.take({ protect: "", token: "", ...state });
    this.viewer.scrollIntoView();
    await this.compute();
    this.go(this.wrong >= 0 ? this.wrong : this.left.known - 1);
  }

  /** Let the first method run to its end unseen. */
  async compute() {
    if (!this.left.run) this.left.start();
    for (; !this.left.finished || !(this.full.ended || this.full.error); await new Promise((resolve) => setTimeout(resolve, PAUSE / 10))) this.left.run?.until(Infinity);
  }

  /** The block after which the first method writes its first wrong token; −1 if there is none so far. */
  get wrong() {
    return this.left.run ? firstDifference(this.left.run, this.full) : -1;
  }

  /** Position of the token whose loss explains the first wrong token best; −1 if there is none. */
  get lost() {
    return this.left.run ? missed(this.left.run, this.full, this.wrong)[0]?.position ?? -1 : -1;
  }

  /** Change what is looked at, not what is computed. */
  look(parts) {
    Object.assign(this.state, parts);
    this.remember();
    this.panes.forEach((pane) => pane.drawTables());
  }

  remember() {
    clearTimeout(this.remembering);
    history.replaceState(null, "", `#${writeAddress(this.state, location)}`); // unlike location.replace, no hashchange
  }

  /** Write the state into the address once the reader pauses. */
  rememberSoon() {
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => this.remember(), PAUSE);
  }

  /** The reader has changed the address. */
  revisit() {
    const found = readAddress(location);
    if (writeAddress(found, location) === writeAddress(this.state, location)) return;
    this.state = found;
    this.open();
  }

  protect(position) {
    this.pin([...new Set([...this.pinned, position])]);
  }

  release(position) {
    this.pin(this.pinned.filter((each) => each !== position));
  }

  /** Run anew with these tokens protected; the button that asked for it goes, and the focus moves on. */
  pin(positions) {
    this.change({ protect: positions.join(",") });
    this.runButton.focus({ preventScroll: true });
  }

  /** A method to set beside the first one. */
  get other() {
    return this.state.method.split("@")[0] === "caote:h2o" ? "h2o" : "caote:h2o";
  }

  /** Set a method beside the first one, or none; the tour, which speaks of one, ends, and so does the reader's protection. */
  async compare(spec) {
    this.tour.root.hidden = true;
    await this.change({ with: spec, protect: "" });
    this.right.root.scrollIntoView({ block: "nearest" });
  }

  choose(position) {
    this.state.token = String(position);
    this.rememberSoon();
    this.panes.forEach((pane) => pane.draw(this.block));
  }

  /** Name a token of the text. */
  nameOf(position) {
    const run = this.left.run?.frames.length + this.prompt.length > position ? this.left.run : this.full;
    const words = [...this.prompt, ...run.written()].map((id) => this.words[id]);
    const { task } = this.problem, text = (task.readTokens?.(words) ?? words)[position] ?? "?";
    return `“${shown(text)}”${task.placeOf?.(words, position) ?? ""}, token ${position}`;
  }

  /** Read the problem and let the full cache solve it: the yardstick, and the length that 100 % stands for. */
  async readProblem() {
    const problem = Problem.named(this.state.problem, this.site.models);
    if (!await this.load(problem.model)) return;
    this.problem = problem;
    let error = "";
    try {
      this.setPrompt(problem.prompt(this.state.text));
    } catch ({ message }) {
      error = `${message}; the problem of the list is used instead`;
      this.setPrompt(problem.stored);
    }
    this.taskTold.textContent = problem.task.says;
    this.problemControls.show(problem, this.state.text, error);
    this.full?.drop();
    this.given = error === "" && this.state.text === "" ? problem.length ?? null : null;
    this.full = new Run(this.workers[0], { ...this.asked, method: "full", budget: null, pinned: [] }, () => this.measured());
    this.full.until(Infinity);
    this.prepare();
  }

  setPrompt(text) {
    const prompt = this.tokenizer.encode(text);
    if (prompt.length > LONGEST) throw new RangeError(`the problem has ${prompt.length} tokens, more than the ${LONGEST} that this page takes`);
    this.prompt = prompt;
    this.promptText = text;
  }

  /** Load an embedded model, and say whether it is still the one that is asked for. */
  async load(name) {
    this.awaited = name;
    const model = await embeddedModel(name).catch(({ message }) => this.left.complain(message));
    if (!model) this.budgetTold.textContent = "The model could not be loaded.";
    if (!model || name !== this.awaited) return false;
    if (name === this.loaded) return true;
    this.loaded = name;
    this.tokenizer = new Tokenizer(model.tokenizer);
    this.words = this.tokenizer.words;
    this.config = readConfig(model.config);
    for (const worker of this.workers) worker.postMessage({ type: "load", ...model });
    for (const pane of [this.left, this.right]) pane.listHeads();
    return true;
  }

  /** Tokens that the full cache holds in the end; null if that has to be measured. */
  get length() {
    return this.full.ended ? this.full.frames.at(-1).seen : this.given;
  }

  /** The full cache has read another token; once it is done, the budget of a reader's problem is known. */
  measured() {
    if (!this.full.ended) return;
    if (this.length === this.given) return this.panes.forEach((pane) => pane.draw(this.block));
    this.prepare();
    if (this.playing) this.begin();
  }

  /** Entries of the budget; null until the length is known. */
  findBudget() {
    const { length } = this, entries = (text) => Math.min(Math.max(budgetEntries(text, length), 2), length);
    if (length === null) return null;
    try {
      return entries(this.state.budget);
    } catch {
      return entries("70%");
    }
  }

  /** Show the state before anything ran. */
  prepare() {
    this.budget = this.findBudget();
    this.block = -1;
    this.wanted = -1;
    this.right.root.hidden = this.state.with === "";
    this.second.textContent = this.state.with === "" ? "Compare two" : "Show one";
    this.against.hidden = this.control === null || this.state.with === this.control;
    if (this.budget !== null) {
      this.budgetSlider.max = this.length;
      this.budgetSlider.value = this.budget;
      this.tellBudget(this.budget);
    } else this.budgetTold.textContent = "The full cache is measured first.";
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
    const asked = this.state.with ? PAIR : this.site.questions[name] ?? this.site.questions[name.split(":")[0]];
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
    if (this.playing && !this.unasked) this.pause();
    else {
      if (this.unasked) this.prepare();
      this.play();
    }
  }

  /** Whether the tour stands at the lower edge of a small screen. */
  get narrow() {
    return !this.tour.root.hidden && getComputedStyle(this.tour.root).position === "fixed";
  }

  /** Scroll so far that the text is in view, below the tour if that stands above it. */
  reveal() {
    const tour = this.tour.root, shown = this.left.text.root.getBoundingClientRect().bottom;
    if (this.narrow) {
      const hidden = this.left.likely.getBoundingClientRect().bottom - tour.getBoundingClientRect().top;
      if (hidden > 0) scrollBy(0, hidden);
    } else if (shown > innerHeight) (tour.hidden ? this.toolbar : tour).scrollIntoView();
  }

  /** Run slowly until a block, or the first wrong token; a reader who wants no motion has to ask for it. */
  demonstrate(goal = Infinity) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    if (this.left.run) this.prepare();
    this.play(goal);
    this.rate = SPEEDS["30 tokens/s"];
  }

  /** Run until the end, or until a block was read; `unasked` if the reader did not ask for it. */
  play(goal = Infinity, unasked = false) {
    this.playing = true;
    this.unasked = unasked;
    this.rate = null;
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
    const rate = this.rate ?? SPEEDS[this.speed.value], newest = Math.max(...this.panes.map((pane) => pane.known)) - 1;
    const due = rate === Infinity ? newest : this.from + Math.floor((time - this.began) / 1000 * rate);
    const runs = this.rate ? [this.full, ...this.panes.map((pane) => pane.run)].filter((run) => run && !run.ended && !run.error) : [];
    if (this.rate && this.wrong >= 0) this.goal = Math.min(this.goal, this.wrong);
    const block = Math.min(due, newest, this.goal, ...runs.map(({ frames }) => frames.length - 1)); // what is shown slowly waits for all
    if (block > this.block) {
      this.show(block);
      this.panes.forEach((pane) => pane.text.follow(pane.text.spans.length - 1));
    }
    const there = this.panes.every((pane) => pane.finished || pane.known > this.goal); // one pane may be faster than the other
    if ((this.block >= this.goal && there) || (this.panes.every((pane) => pane.finished) && this.block >= newest)) this.pause();
    else if (this.playing) this.frame = requestAnimationFrame((next) => this.follow(next));
  }

  pause() {
    this.playing = this.unasked = false;
    cancelAnimationFrame(this.frame);
    for (const pane of this.panes) pane.run?.until(pane.known);
    this.show(this.block);
    this.remember();
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
    this.panes.forEach((pane) => pane.text.follow(this.prompt.length + this.block));
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
    if (this.playing) return;
    this.state.step = block < 0 ? "" : String(block);
    this.rememberSoon();
  }

  tell() {
    const newest = Math.max(...this.panes.map((pane) => pane.known)) - 1;
    this.slider.max = Math.max(0, newest);
    this.slider.value = Math.max(0, this.block);
    const seen = this.block < 0 ? 0 : this.prompt.length + this.block;
    this.where.textContent = `${seen} tokens read`;
    this.slider.setAttribute("aria-valuetext", this.where.textContent);
    const done = this.left.run && this.panes.every((pane) => pane.finished) && this.block >= newest;
    this.runButton.textContent = this.playing ? this.unasked ? "Run again" : "Pause" : done ? "Run again" : this.left.run ? "Go on" : "Run";
    this.root.dataset.state = this.playing ? "running" : done ? "done" : "waiting";
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.shiftKey || event.target.closest?.("select, button, input, textarea, summary, a, label, [role=listbox], [contenteditable]")) return;
    const { top, bottom } = this.root.getBoundingClientRect(); // who reads what stands below scrolls as on any page
    if (top > innerHeight || bottom < innerHeight / 2) return;
    const moves = { ArrowLeft: this.block - 1, ArrowRight: this.block + 1 };
    if (event.key === " ") this.toggle();
    else if (event.key in moves) this.go(moves[event.key]);
    else return;
    event.preventDefault();
  }
}

const root = document.getElementById("kvlab-playground");
globalThis.kvlabPlayground = new Playground(root, globalThis.kvlabSite, globalThis.kvlabWorker);
