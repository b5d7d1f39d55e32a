/** The problem that the model is given: a list of them, and a field in which the reader changes one. */

import { jumps } from "../tasks/jumps.mjs";
import { reasoning } from "../tasks/reasoning.mjs";
import { element } from "./elements.mjs";

const TASKS = { jumps, reasoning };

/** One problem of one model, by the name that addresses give it, such as "jumps-0". */
export class Problem {
  /** Find a problem by its name, the first of all if there is none; `models` is what the site's hook wrote. */
  static named(name, models) {
    const [model, index] = name.split("-");
    if (Object.hasOwn(models, model) && Object.hasOwn(models[model].prompts, index)) return new Problem(model, index, models);
    return new Problem(Object.keys(models)[0], "0", models);
  }

  constructor(model, index, models) {
    const { most, prompts, lengths, task } = models[model];
    Object.assign(this, { model, most, stored: prompts[index], length: lengths[index] });
    this.name = `${model}-${index}`;
    this.task = TASKS[task];
  }

  /** Return the prompt that a text of the reader stands for; without a text, the stored one. */
  prompt(text) {
    return text === "" ? this.stored : this.task.prompt(text);
  }

  /** Return the text that a reader sees and changes. */
  readable(text) {
    return text === "" ? this.task.readable(this.stored) : text;
  }
}

/** Controls of the problem; `changed({ problem, text })` is called with a reader's choice. */
export class ProblemControls {
  constructor(models, changed) {
    this.list = element("select", { "aria-label": "Problem", onchange: () => changed({ problem: this.list.value, text: "" }) });
    for (const [model, { task, prompts }] of Object.entries(models)) {
      const options = prompts.map((_, index) => new Option(`${TASKS[task].one} ${index}`, `${model}-${index}`));
      this.list.append(element("optgroup", { label: TASKS[task].title }, ...options));
    }
    this.asks = element("p");
    this.field = element("textarea", { rows: 13, spellcheck: "false", "aria-label": "Text of the problem" });
    this.error = element("p", { class: "pg-error", role: "alert", hidden: true });
    const use = element("button", { type: "button", onclick: () => changed({ text: this.field.value }) }, "Use this text");
    this.root = element("details", { class: "pg-problem" }, element("summary", {}, "Change the problem"),
      this.list, this.asks, this.field, use, this.error);
  }

  /** Show a problem and a reader's text of it; `error` says what is wrong with the text. */
  show(problem, text, error) {
    this.list.value = problem.name;
    this.asks.textContent = `${problem.task.asks} An empty field brings the problem of the list back.`;
    this.field.value = problem.readable(text);
    this.error.hidden = error === "";
    this.error.textContent = error;
    if (error !== "") this.root.open = true;
  }
}
