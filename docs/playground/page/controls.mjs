/** Controls of a method: which one, what wraps it, and a slider, box or list for every option. */

import { METHODS, WRAPPERS, evicts, optionsOf, read, write } from "../methods/index.mjs";
import { element, shortNumber } from "./elements.mjs";

const STEPS = 1000;

/** Choose the method of a pane; `changed(spec)` is called with registry syntax. */
export class MethodControls {
  constructor(label, presets, changed) {
    Object.assign(this, { presets, changed });
    this.name = element("select", { "aria-label": `${label}: method`, onchange: () => this.choose() });
    for (const method of Object.values(METHODS)) this.name.add(new Option(method.title, method.id));
    this.wrapper = element("select", { "aria-label": `${label}: its score`, onchange: () => this.choose() });
    this.wrapper.add(new Option("original score", ""));
    for (const [name, says] of Object.entries(WRAPPERS)) this.wrapper.add(new Option(says, name));
    this.options = element("div", { class: "pg-options" });
    this.settings = element("details", { class: "pg-settings" }, element("summary", {}, "Settings of the method"), this.options);
    this.root = element("div", { class: "pg-method" }, this.name, this.wrapper);
  }

  /** Show a specification; throws if there is no such method. */
  show(spec) {
    this.chosen = read(spec);
    const { wrapper, name, options } = this.chosen;
    this.name.value = name;
    this.wrapper.value = wrapper ?? "";
    for (const option of this.wrapper.options) option.disabled = !canWrap(option.value, name);
    const offered = Object.entries(optionsOf(wrapper, name)).filter(([, { kind }]) => kind !== "text");
    const controls = offered.map(([option, schema]) =>
      this.control(option, schema, option in options ? options[option] : schema.default));
    const focused = this.options.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
    this.options.replaceChildren(...controls);
    if (focused) this.options.querySelector(`[aria-label="${focused}"]`).focus(); // keys go on moving the slider
    this.settings.hidden = controls.length === 0;
  }

  /** Take the settings that suit the embedded model for a method that was chosen in the list. */
  choose() {
    const name = this.name.value, wrapper = canWrap(this.wrapper.value, name) ? this.wrapper.value : "";
    const { options } = read(this.presets[name] ?? name);
    this.changed(write({ wrapper: wrapper || null, name, options }));
  }

  /** Give an option another value; one that has its standard value is not written. */
  set(option, schema, value) {
    const options = { ...this.chosen.options };
    if (value === schema.default) delete options[option];
    else options[option] = value;
    this.changed(write({ ...this.chosen, options }));
  }

  control(option, schema, value) {
    const set = (found) => this.set(option, schema, found);
    const name = option.replaceAll("_", " ");
    const made = { choice: choiceControl, flag: flagControl, whole: slider, real: slider }[schema.kind](name, schema, value, set);
    return element("div", { class: "pg-option" }, element("span", { class: "pg-name", "aria-hidden": "true" }, name), ...made,
      element("small", {}, schema.says));
  }
}

/** Whether a wrapper goes with a method. */
function canWrap(wrapper, name) {
  if (wrapper === "") return true;
  try {
    return evicts(`${wrapper}:${name}`);
  } catch {
    return false;
  }
}

function choiceControl(name, schema, value, set) {
  const list = element("select", { "aria-label": name, onchange: () => set(list.value) });
  for (const each of schema.values) list.add(new Option(each, each, false, each === value));
  return [list];
}

function flagControl(name, schema, value, set) {
  const box = element("input", { type: "checkbox", "aria-label": name, checked: value, onchange: () => set(box.checked) });
  return [box];
}

/** A slider; an option that may be none has a box that switches it on. */
function slider(name, schema, value, set) {
  const { from, to, kind, logarithmic } = schema, places = kind === "whole" ? to - from : STEPS;
  const place = (x) => (logarithmic ? Math.log(Math.max(x, from) / from) / Math.log(to / from) : (x - from) / (to - from)) * places;
  const number = (at) => {
    const x = logarithmic ? from * (to / from) ** (at / places) : from + at / places * (to - from);
    return kind === "whole" ? Math.round(x) : Number(x.toPrecision(2));
  };
  const output = element("output", {}, value === null ? "not set" : shortNumber(value));
  const range = element("input", {
    type: "range", min: 0, max: places, value: place(value ?? from), disabled: value === null,
    "aria-label": name, "aria-valuetext": output.textContent,
    oninput: () => { output.textContent = shortNumber(number(Number(range.value))); },
    onchange: () => set(number(Number(range.value))),
  });
  if (!schema.none) return [range, output];
  const box = element("input", {
    type: "checkbox", checked: value !== null, "aria-label": `set ${name}`,
    onchange: () => set(box.checked ? number(Number(range.value)) : null),
  });
  return [box, range, output];
}
