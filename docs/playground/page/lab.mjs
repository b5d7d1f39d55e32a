/** The lab: a score of the reader's own on twenty programs, beside its control, H2O, CAOTE and the oracle. */

import { controlOf, parse, read, write } from "../methods/index.mjs";
import { Yours, decode, encode, parseCode } from "../methods/yours.mjs";
import { budgetEntries } from "../selection.mjs";
import { element } from "./elements.mjs";
import { ModelWorker, embeddedModel } from "./run.mjs";
import { STARTING_POINTS } from "./starting_points.mjs";
import { signTest, wilson } from "./statistics.mjs";

const MODEL = "jumps";
const MOST_WORKERS = 4;
const SHARES = [20, 30, 40, 50, 60, 70, 80]; // percent of the full cache
const PROTECTIONS = {
  "nothing": { recent: 0 },
  "the first token": { sinks: 1, recent: 0 },
  "the newest 16 entries": { recent: 16 },
  "the newest half of the budget": {},
  "the first token and the newest half": { sinks: 1 },
};
const ORACLE = "oracle";
const SIGNIFICANT = 0.05;

export class Lab {
  /** `page` offers: state, remember(), and view(state) for a run that the reader wants to see; `count` are the programs. */
  constructor(page, { prompts, solutions }, count) {
    this.page = page;
    this.programs = prompts.slice(0, count).map((prompt, index) => ({ prompt, solution: solutions[index] }));
    this.known = new Map(); // results of the methods that need no code, by method and budget
    this.workers = [];
    this.made = 0; // tries so far
    this.build();
  }

  build() {
    const button = (text, act, more = {}) => element("button", { type: "button", onclick: act, ...more }, text);
    this.start = element("select", { "aria-label": "Start from", onchange: () => this.take(STARTING_POINTS[this.start.value]) });
    this.start.add(new Option("Start from …", ""));
    for (const name of Object.keys(STARTING_POINTS)) this.start.add(new Option(name, name));
    this.lines = element("pre", { class: "pg-line-numbers", "aria-hidden": "true" });
    this.field = element("textarea", {
      rows: 13, cols: 20, spellcheck: "false", autocapitalize: "off", wrap: "off", "aria-label": "Your score, in JavaScript", oninput: () => this.edited(),
      onscroll: () => { this.lines.scrollTop = this.field.scrollTop; },
    });
    this.error = element("p", { class: "pg-error", role: "alert", hidden: true });
    this.protection = element("select", { onchange: () => this.edited() });
    for (const name of Object.keys(PROTECTIONS)) this.protection.add(new Option(name, name));
    this.share = element("select", { onchange: () => this.edited() });
    for (const share of SHARES) this.share.add(new Option(`${share} %`, share));
    this.runButton = button(`Run on ${this.programs.length} programs`, () => (this.running ? this.halt() : this.run()), { class: "pg-go" });
    this.progress = element("progress", { max: 1, value: 0, "aria-label": "Programs that were run", hidden: true });
    this.verdict = element("p", { class: "pg-verdict", role: "status" });
    this.table = element("div", { class: "pg-results" });
    this.root = element("section", { class: "pg-lab", id: "lab", "aria-label": "Write your own score" },
      element("h2", {}, "Write your own score"),
      element("p", {}, "Write a function in JavaScript that rates one entry: those rated highest stay. Can you beat CAOTE at 50 %, on 20 programs of about 260 tokens?"),
      element("div", { class: "pg-bench" },
        element("div", { class: "pg-editor" }, this.lines, this.field),
        element("div", { class: "pg-choices" }, this.start,
          element("label", {}, "Protected: ", this.protection), element("label", {}, "Budget: ", this.share),
          this.runButton, button("See it at work", () => this.see(this.spec)), this.error, this.progress, fields())),
      this.verdict, this.table);
  }

  /** Show the score that the address holds. */
  show() {
    const { score, share } = this.page.state;
    let options = {};
    try {
      ({ options } = read(score || Yours.id));
      if (read(score || Yours.id).name === Yours.id) this.field.value = decode(parse(score || Yours.id).code);
    } catch ({ message }) {
      this.complain(message);
    }
    const chosen = Object.entries(PROTECTIONS).find(([, { sinks, recent }]) => options.sinks === sinks && options.recent === recent);
    this.protection.value = chosen?.[0] ?? "the newest half of the budget";
    this.share.value = share;
    if (this.share.selectedIndex < 0) this.share.value = "50";
    this.number();
  }

  take(code) {
    if (code === undefined) return;
    this.field.value = code;
    this.start.selectedIndex = 0;
    this.edited();
  }

  /** The reader has changed something: the address follows, and results say that they are of another score. */
  edited() {
    if (this.running) this.halt();
    this.complain("");
    this.verdict.textContent = this.table.children.length ? "These results are from before your last change." : "";
    this.number();
    Object.assign(this.page.state, { score: this.spec, share: this.share.value });
    this.page.rememberSoon();
  }

  number(wrong = null) {
    const lines = this.field.value.split("\n").map((_, index) =>
      element("span", { class: index + 1 === wrong ? "pg-wrong-line" : "" }, `${index + 1}\n`));
    this.lines.replaceChildren(...lines);
  }

  get options() {
    return PROTECTIONS[this.protection.value];
  }

  /** The reader's score as a method. */
  get spec() {
    return write({ wrapper: null, name: Yours.id, options: { ...this.options, code: encode(this.field.value) } });
  }

  /** Every row of the table: what it is called, and its method. */
  get rows() {
    const under = (wrapper, name) => write({ wrapper, name, options: this.options });
    return [
      ["Your score", this.spec], ["Random, its control", controlOf(this.spec)], ["H2O", under(null, "h2o")],
      ["CAOTE applied to H2O", under("caote", "h2o")], ["Oracle, which knows what is needed", ORACLE],
    ].map(([name, spec]) => ({ name, spec, wrong: this.known.get(`${spec} ${this.share.value}`) ?? [] }));
  }

  complain(message, line = null) {
    this.error.hidden = message === "";
    this.error.textContent = line === null ? message : `Line ${line}: ${message}`;
    this.number(line);
  }

  // --- running ---------------------------------------------------------------------------------------

  async run() {
    this.complain("");
    this.running = true;
    this.runButton.textContent = "Stop";
    try {
      parseCode(this.field.value);
      this.result = this.rows;
      this.draw();
      await this.load();
      await Promise.all(this.workers.map((worker, index) => this.work(worker, index)));
    } catch (error) {
      this.halt();
      this.complain(error.message, error.syntax ? await lineOf(this.field.value) : error.line ?? null);
    }
    this.rest();
  }

  /** Stop: whoever waits for a worker hears of it. */
  halt() {
    for (const worker of this.workers) worker.fail("");
    this.rest();
  }

  rest() {
    this.running = false;
    this.progress.hidden = true;
    this.runButton.textContent = `Run on ${this.programs.length} programs`;
  }

  async load() {
    if (this.workers.length) return;
    const model = await embeddedModel(MODEL);
    const count = Math.min(MOST_WORKERS, Math.max(1, (navigator.hardwareConcurrency ?? 2) - 1), this.programs.length);
    this.workers = Array.from({ length: count }, () => new ModelWorker());
    for (const worker of this.workers) worker.postMessage({ type: "load", ...model });
  }

  /** Let one worker try its share of the programs, row by row: it reads each of their prompts once. */
  async work(worker, first) {
    const { result } = this;
    for (const row of result) {
      for (let index = first; index < this.programs.length; index += this.workers.length) {
        if (row.wrong[index] !== undefined) continue;
        row.wrong[index] = await this.try(worker, row.spec, this.programs[index]);
        if (!this.running || result !== this.result) return;
        if (row.spec !== this.spec && this.count(row) === this.programs.length) this.known.set(`${row.spec} ${this.share.value}`, row.wrong);
        this.draw();
      }
    }
  }

  /** Programs that were run under a row's method. */
  count({ wrong }) {
    return wrong.filter((place) => place !== undefined).length;
  }

  /** Return the place of the first wrong token under a method. */
  try(worker, method, { prompt, solution }) {
    const id = `try ${++this.made}`, length = prompt.split(" ").length + solution.split(" ").length - 1;
    return new Promise((resolve, reject) => {
      const listener = ({ data }) => {
        if (data.id !== id) return;
        worker.removeEventListener("message", listener);
        if (data.error === undefined) resolve(data.wrong);
        else reject(Object.assign(new Error(data.error), { line: data.line }));
      };
      worker.addEventListener("message", listener);
      worker.postMessage({ type: "try", id, method, budget: budgetEntries(`${this.share.value}%`, length), prompt, solution });
    });
  }

  // --- what came out -----------------------------------------------------------------------------------

  draw() {
    const { result, programs } = this, done = result.reduce((sum, row) => sum + this.count(row), 0);
    this.progress.hidden = false;
    this.progress.value = done / (result.length * programs.length);
    const names = ["score", "programs solved (95 % interval)", "right before the first error", "your score gets", "each program"];
    this.table.replaceChildren(element("table", { class: "pg-table" },
      element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...result.map((row) => this.row(row)))));
    this.verdict.textContent = this.judge();
  }

  row(row) {
    const run = row.wrong.filter((place) => place !== undefined), solved = run.filter((place) => place < 0).length;
    const [low, high] = run.length ? wilson(solved, run.length) : [0, 0], cell = (...parts) => element("td", {}, ...parts);
    const share = mean(this.programs.flatMap(({ solution }, index) => row.wrong[index] === undefined ? [] : [reached(row.wrong[index], solution)]));
    return element("tr", {}, element("th", { scope: "row" }, row.name),
      element("td", { class: "pg-score", style: `--width: ${percent(solved / (run.length || 1))}%` },
        run.length ? `${solved} of ${run.length}: ${percent(solved / run.length)} % (${percent(low)} to ${percent(high)})` : "–"),
      cell(run.length ? `${percent(share)} %` : "–"),
      cell(row === this.result[0] ? "" : this.compared(row).says), cell(this.marks(row), this.opener(row)));
  }

  /** A mark for every program: solved, or lost at a token. */
  marks({ wrong, name }) {
    const marks = this.programs.map((_, index) => {
      const place = wrong[index];
      return element("i", { class: place === undefined ? "" : place < 0 ? "pg-solved" : "pg-lost" }, place === undefined ? "·" : place < 0 ? "✓" : "✗");
    });
    return element("span", { class: "pg-marks", role: "img", "aria-label": `${name}, program by program` }, ...marks);
  }

  /** A button that shows the program in which a method was wrong first. */
  opener({ spec, wrong }) {
    const lost = [...wrong.entries()].filter(([, place]) => place >= 0).sort(([, a], [, b]) => a - b);
    if (spec === ORACLE || !lost.length) return "";
    const [index, place] = lost[0];
    return element("button", { type: "button", onclick: () => this.see(spec, index) }, `See program ${index}: wrong at token ${place + 1}`);
  }

  /** Show a method at work in the viewer. */
  see(method, index = 0) {
    this.page.view({ method, budget: `${this.share.value}%`, problem: `${MODEL}-${index}` });
  }

  /** Say in how many programs the reader's score gets further than another one. */
  compared(row) {
    const far = (place) => (place < 0 ? Infinity : place), [own] = this.result;
    const pairs = row.wrong.map((place, index) => [own.wrong[index], place]).filter((pair) => !pair.includes(undefined));
    const further = pairs.filter(([a, b]) => far(a) > far(b)).length, less = pairs.filter(([a, b]) => far(a) < far(b)).length;
    const p = signTest(further, less);
    const says = !pairs.length ? "" : further + less === 0 ? "equally far in each" : `further in ${further}, less far in ${less} (p ${p < 0.001 ? "< 0.001" : `= ${p.toFixed(3)}`})`;
    return { says, further, less, better: further > less && p < SIGNIFICANT, same: further + less === 0 };
  }

  /** Say in a sentence or two what the table shows, once it is complete. */
  judge() {
    const [own, control, h2o, caote] = this.result;
    if (this.result.some((row) => this.count(row) < this.programs.length)) return "";
    const { better, further, less } = this.compared(control);
    const first = `${better ? "Better" : "Not significantly better"} than random eviction with the same protection: further in ${further} programs, less far in ${less}.`;
    const rival = this.compared(caote), at = `CAOTE at ${this.share.value} %`;
    if (this.compared(h2o).same) return `${first} It evicts as H2O does: change the function, and run again.`;
    if (rival.same) return `${first} It gets as far as ${at} in every program.`;
    if (rival.better) return `${first} You beat ${at}!`;
    return `${first} ${rival.further > rival.less ? "Ahead of" : "Not yet ahead of"} ${at}${rival.further > rival.less ? ", though it may be luck: these are few programs" : ""}.`;
  }
}

const mean = (numbers) => numbers.reduce((sum, x) => sum + x, 0) / (numbers.length || 1);
const percent = (share) => Math.round(100 * share);

/** Share of a solution that was written before the first wrong token. */
function reached(wrong, solution) {
  return wrong < 0 ? 1 : wrong / solution.split(" ").length;
}

/** Find the line of a syntax error, without running the code; null if the browser does not say. */
function lineOf(code) {
  const url = URL.createObjectURL(new Blob([`throw 0; function code() {\n${code}\n}`], { type: "text/javascript" }));
  return new Promise((resolve) => {
    const worker = new Worker(url);
    worker.onerror = (event) => {
      event.preventDefault();
      worker.terminate();
      resolve(/SyntaxError/.test(event.message) ? Math.min(event.lineno - 1, code.split("\n").length) : null);
    };
  });
}

/** What the reader's functions are given, and what they may call. */
function fields() {
  const told = {
    "entry.received": "attention since it was written", "entry.newest": "attention of the newest token", "entry.age": "tokens since it was written",
    "entry.position": "its place in the text", "entry.key, entry.value": "vectors of 32 numbers", "entry.layer, entry.head": "where it is",
    "entry.memory": "an object of your own, kept with the entry", "prepare(entries)": "a second function: what it returns is the second argument of score",
    "norm(v), dot(v, w), distance(v, w)": "of vectors", "sum(numbers), average(vectors, weights)": "to call, too",
  };
  const list = Object.entries(told).flatMap(([name, says]) => [element("dt", {}, element("code", {}, name)), element("dd", {}, says)]);
  return element("details", {}, element("summary", {}, "What you can use"),
    element("p", {}, "score(entry) is called for every entry whenever tokens were read, in each layer and KV head."),
    element("dl", { class: "pg-answers" }, ...list));
}
