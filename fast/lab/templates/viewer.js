"use strict";

// ---- the timeline: see kvlab/reference/simulator/timeline.py for its schema ---------------------

const GONE = 0, WIDE = 1;
const timeline = JSON.parse(document.getElementById("timeline").textContent);
const said = JSON.parse(document.getElementById("said").textContent);

function unpack({ dtype, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  if (dtype === "uint8") return bytes;
  if (dtype === "uint16") return new Uint16Array(bytes.buffer);
  if (dtype === "uint32") return new Uint32Array(bytes.buffer);
  const upperHalves = new Uint16Array(bytes.buffer); // bfloat16
  return new Float32Array(Uint32Array.from(upperHalves, (half) => half << 16).buffer);
}

class Run {
  constructor(stored) {
    Object.assign(this, stored);
    this.steps = unpack(stored.steps);
    this.decisions = unpack(stored.decisions);
    this.snapshots = unpack(stored.snapshots);
    this.read = this.steps[this.steps.length - 1];
    this.birth = new Uint32Array(this.read); // index of the step that reads a token
    for (let step = 0, position = 0; step < this.steps.length; step++) {
      for (; position < this.steps[step]; position++) this.birth[position] = step;
    }
    this.bits = Float32Array.from(stored.states, ([keys, values]) => (keys + values) / 2);
    this.unpacked = new Map();
  }

  array(head, name) {
    const key = `${head} ${name}`;
    if (!this.unpacked.has(key)) this.unpacked.set(key, unpack(this.heads[head][name]));
    return this.unpacked.get(key);
  }

  life(head) {
    return [this.array(head, "events"), this.array(head, "event_steps"), this.array(head, "event_states")];
  }

  // The state of an entry after a step, and the step since which it is in it.
  state(head, position, step) {
    const [events, steps, states] = this.life(head);
    let found = { state: WIDE, since: this.birth[position] };
    for (let e = events[position]; e < events[position + 1] && steps[e] <= step; e++) {
      found = { state: states[e], since: steps[e] };
    }
    return found;
  }

  // Whether an entry was there when a step attended: before the step evicted any.
  attended(head, position, step) {
    const birth = this.birth[position];
    if (birth >= step) return birth === step;
    return this.state(head, position, step - 1).state !== GONE;
  }

  // What the latest snapshot up to a step knows of an entry; null if it was not there any more.
  known(head, position, step) {
    let index = this.snapshots.length - 1;
    while (index >= 0 && this.snapshots[index] > step) index--;
    if (index < 0 || !this.attended(head, position, this.snapshots[index])) return null;
    let place = this.snapshotStart(head, index);
    const at = this.snapshots[index];
    for (let other = 0; other < position; other++) place += this.attended(head, other, at);
    const found = { step: at };
    for (const name of ["attention", "score", "stamp", "interval"]) found[name] = this.array(head, name)[place];
    return found;
  }

  snapshotStart(head, index) {
    const key = `${head} starts`;
    if (!this.unpacked.has(key)) {
      const starts = [0];
      for (const at of this.snapshots) {
        let count = 0;
        for (let position = 0; position < this.steps[at]; position++) count += this.attended(head, position, at);
        starts.push(starts[starts.length - 1] + count);
      }
      this.unpacked.set(key, starts);
    }
    return this.unpacked.get(key)[index];
  }
}

const runs = timeline.runs.map((stored) => new Run(stored));
const whole = runs.find((run) => run.method === "full")?.read;

// ---- what is shown: one code per token ----------------------------------------------------------

const FUTURE = 255, UNREAD = 254, LEVELS = 8, JUST_NOW = 1 << 6;
const HUES = ["16 bit", "8 bit", "4 bit", "2 bit"];

function hue(bits) {
  return bits >= 12 ? 0 : bits >= 6 ? 1 : bits >= 3 ? 2 : 3;
}

function level(share) {
  return share === 0 ? 0 : Math.max(1, Math.round(LEVELS * share));
}

function className(code) {
  if (code === FUTURE) return "t f";
  if (code === UNREAD) return "t u";
  return `t h${code & 3} l${(code >> 2) & 15}${code & JUST_NOW ? " n" : ""}`;
}

// Fill `codes` for some heads after a step; return entries, mean bits and how many left just now.
function look(run, heads, step, codes) {
  const seen = run.steps[step], kept = new Uint16Array(seen), bits = new Float32Array(seen);
  const leaving = new Uint8Array(seen);
  let left = 0;
  for (const head of heads) {
    const [events, steps, states] = run.life(head);
    for (let position = 0; position < seen; position++) {
      let state = WIDE, e = events[position];
      for (; e < events[position + 1] && steps[e] <= step; e++) state = states[e];
      if (state !== GONE) {
        kept[position]++;
        bits[position] += run.bits[state];
      } else if (steps[e - 1] === step) {
        leaving[position] = 1;
        left++;
      }
    }
  }
  codes.fill(FUTURE);
  let entries = 0, stored = 0;
  for (let position = 0; position < seen; position++) {
    const count = kept[position];
    entries += count;
    stored += bits[position];
    codes[position] = (count ? hue(bits[position] / count) : 0) | (level(count / heads.length) << 2)
      | (leaving[position] ? JUST_NOW : 0);
  }
  return { entries: entries / heads.length, bits: stored / heads.length / seen, left: left / heads.length };
}

// ---- the picture of what is evicted: tokens from left to right, steps from top to bottom ---------------

const MOST_ROWS = 240;

function paint(run, heads, canvas) {
  const t = run.read, steps = run.steps.length, rows = Math.min(steps, MOST_ROWS);
  const row = (step) => Math.floor(step * rows / steps);
  const kept = new Float32Array((rows + 1) * t), bits = new Float32Array((rows + 1) * t);
  for (const head of heads) {
    const [events, eventSteps, states] = run.life(head);
    for (let position = 0; position < t; position++) {
      let state = WIDE, place = row(run.birth[position]) * t + position;
      kept[place]++;
      bits[place] += run.bits[WIDE];
      for (let e = events[position]; e < events[position + 1]; e++) {
        place = row(eventSteps[e]) * t + position;
        kept[place] += (states[e] !== GONE) - (state !== GONE);
        bits[place] += run.bits[states[e]] - run.bits[state];
        state = states[e];
      }
    }
  }
  const colors = ["--wide", "--eight", "--four", "--two"].map(rgb);
  canvas.width = t;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(t, rows);
  for (let place = 0; place < rows * t; place++) {
    if (place >= t) {
      kept[place] += kept[place - t];
      bits[place] += bits[place - t];
    }
    if (kept[place] < 0.5) continue;
    const color = colors[hue(bits[place] / kept[place])];
    image.data.set(color, 4 * place);
    image.data[4 * place + 3] = 255 * kept[place] / heads.length;
  }
  context.putImageData(image, 0, 0);
}

function rgb(variable) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

// ---- one method -----------------------------------------------------------------------------------

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function number(x) {
  if (x === 0) return "0";
  return Math.abs(x) >= 1e-3 && Math.abs(x) < 1e4 ? String(Number(x.toPrecision(3))) : x.toExponential(2);
}

// Index of the first of some ascending numbers that is not below a bound.
function firstFrom(ascending, bound) {
  let low = 0, high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < bound) low = middle + 1;
    else high = middle;
  }
  return low;
}

const MARGIN = 100, REST = 150; // pixels above and below the view; milliseconds without a step

// The tokens in view are drawn at every step; the others when they come into view or the steps rest.
class Pane {
  constructor(name, chosen, optional) {
    this.root = element("section", "pane");
    this.root.setAttribute("aria-label", `${name} method`);
    this.choice = element("select");
    this.choice.id = `${name}-method`;
    this.choice.setAttribute("aria-label", `${name} method`);
    runs.forEach((run, index) => this.choice.add(new Option(describe(run), index)));
    if (optional) this.choice.add(new Option("nothing", ""));
    this.choice.value = chosen;
    this.body = element("div", "pane");
    this.figures = element("p", "figures");
    this.says = element("p", "figures");
    this.failure = element("p", "failure");
    this.chart = element("div", "chart");
    this.chart.title = "Tokens from left to right, steps from top to bottom. Click to go to a step.";
    this.canvas = element("canvas");
    this.canvas.setAttribute("role", "img");
    this.line = element("div", "now");
    this.chart.append(this.canvas, this.line);
    const axis = element("p", "axis");
    axis.append(element("span", "", "All tokens (→) at every step (↓): coloured is kept; the line is now"), element("span", "", "last token →"));
    this.text = element("div", "text");
    this.text.id = `${name}-text`;
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "listbox");
    this.known = element("dl", "known");
    this.known.setAttribute("role", "status");
    this.body.append(this.says, this.failure, this.text, this.known, this.figures, this.chart, axis);
    this.root.append(this.choice, this.body);
    this.chosen = -1;
    this.resized = new ResizeObserver(() => this.measure());
    this.listen();
    this.select();
  }

  listen() {
    this.choice.addEventListener("change", () => { this.select(); legend(); go(now); });
    this.chart.addEventListener("click", (event) => {
      const box = this.chart.getBoundingClientRect();
      go(Math.floor((event.clientY - box.top) / box.height * this.run.steps.length));
      choose(Math.floor((event.clientX - box.left) / box.width * this.run.read));
    });
    this.text.addEventListener("scroll", () => this.scan());
    this.text.addEventListener("mouseover", (event) => {
      if (event.target.dataset.position) choose(Number(event.target.dataset.position));
    });
    this.text.addEventListener("click", (event) => {
      if (event.target.dataset.position) choose(Number(event.target.dataset.position));
    });
    this.text.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 }[event.key];
      if (way === undefined || !this.run) return;
      event.preventDefault();
      event.stopPropagation();
      const seen = this.run.steps[this.step];
      const next = Math.min(seen - 1, Math.max(0, (this.chosen < 0 ? 0 : this.chosen) + way));
      choose(next);
      this.reveal(next);
    });
  }

  select() {
    this.run = this.choice.value === "" ? null : runs[Number(this.choice.value)];
    this.body.hidden = this.run === null;
    this.body.style.display = this.run ? "" : "none";
    if (!this.run) return;
    const { run } = this;
    this.codes = new Uint8Array(run.texts.length);
    this.shown = new Uint8Array(run.texts.length).fill(FUTURE);
    this.view = [0, run.texts.length];
    this.text.setAttribute("aria-label", `Text under ${run.method}`);
    const meant = isProgram(run);
    this.text.classList.toggle("lines", meant);
    this.marks = run.shown.map((text) => (text === "" ? " none" : !meant && text.includes("\n") ? " break" : ""));
    if (run.prompt < run.texts.length) this.marks[run.prompt] += " written";
    if (run.failure) this.marks[run.failure.position] += " wrong";
    for (const position of run.failure?.lost ?? []) this.marks[position] += " lost";
    this.tellFailure();
    this.spans = run.shown.map((text, position) => {
      const span = element("span", className(FUTURE) + this.marks[position], text); // as text: markup in a token stays text
      span.dataset.position = position;
      span.id = `${this.text.id}-${position}`;
      span.setAttribute("role", "option");
      return span;
    });
    this.text.replaceChildren(...this.spans);
    this.resized.disconnect();
    this.resized.observe(this.text); // calls back before the next frame is drawn
    this.chosen = -1;
    this.paint();
  }

  tellFailure() {
    this.says.textContent = this.run.method.split("@")[0].split(":").map((name) => said[name] ?? "").join(" ");
    this.failure.hidden = !runs.some((run) => run.failure); // else the panes' lines would part
    this.failure.replaceChildren();
    if (!this.run.failure) {
      this.failure.textContent = this.run.solved ? "✓ It writes what the full cache writes." : "";
      return;
    }
    const { position, lost, attention, head, shown } = this.run.failure, named = (at) => quoted(this.run.shown[at]) + placeOf(this.run, at);
    this.failing = Math.min(this.run.steps.length - 1, firstFrom(this.run.steps, position + 1)); // the step that read it
    const jump = element("button", "", `✗ First wrong token: ${named(position)}`);
    jump.onclick = () => goTo(this.failing);
    const all = [...Array(this.run.layers.length * this.run.kv_heads).keys()];
    const losers = all.filter((head) => lost.some((at) => this.run.state(head, at, this.failing).state === GONE));
    this.failure.replaceChildren(jump, ` The full cache writes ${quoted(shown)}`
      + (lost.length ? `: there KV head ${head[1]} of layer ${this.run.layers[head[0]]} gives ${Math.round(100 * attention[0])} % of its attention to ${isProgram(this.run) ? lost.map(named).join(" or ") : between(this.run, lost)}. Here, at step ${this.failing}, ${losers.length} of ${all.length} heads, this one too, had lost ${lost.length > 1 ? "some of it" : "it"}.` : "."));
  }

  paint() {
    if (!this.run) return;
    paint(this.run, heads(this.run), this.canvas);
    this.canvas.setAttribute("aria-label", `${this.run.method}: which of ${this.run.read} tokens were kept at which of ${this.run.steps.length} steps`);
  }

  show(step) {
    const { run } = this;
    if (!run) return;
    this.step = Math.min(step, run.steps.length - 1);
    const found = look(run, heads(run), this.step, this.codes);
    if (this.step === run.steps.length - 1) this.codes.fill(UNREAD, run.read);
    this.draw(...this.view);
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.draw(0, this.spans.length), REST);
    const seen = run.steps[this.step];
    this.figures.textContent = `${number(found.entries)} of ${seen} entries per KV head${run.budget === null ? "" : ` (budget: ${run.budget}${whole ? `, ${Math.round(100 * run.budget / whole)} % of the full cache's ${whole} in the end` : ""})`} · ${Math.round(100 * found.bits / run.bits[WIDE])} % of the full cache's memory`
      + (found.left ? ` · ${number(found.left)} evicted now per head` : run.decisions[this.step] ? " · decided, evicted nothing" : "");
    if (step > this.step) this.figures.textContent += ` · ended at step ${this.step}`;
    this.line.style.top = `${100 * (this.step + 0.5) / run.steps.length}%`;
    this.tell();
  }

  draw(first, end) {
    for (let position = first; position < end; position++) {
      const code = this.codes[position];
      if (code === this.shown[position]) continue;
      this.shown[position] = code;
      const chosen = position === this.chosen ? " chosen" : "";
      this.spans[position].className = className(code) + this.marks[position] + chosen;
    }
  }

  // Where every token stands; no class moves one.
  measure() {
    if (!this.run) return;
    this.tops = Float32Array.from(this.spans, (span) => span.offsetTop);
    this.scan();
  }

  scan() {
    if (!this.tops) return; // nothing was measured yet
    const top = this.text.scrollTop, bottom = top + this.text.clientHeight;
    this.view = [firstFrom(this.tops, top - MARGIN), firstFrom(this.tops, bottom + MARGIN)];
    this.draw(...this.view);
  }

  follow() {
    if (this.run) this.reveal(this.run.steps[this.step] - 1);
  }

  // Scrolls the text alone: scrollIntoView would move the page around a frame, too.
  reveal(position) {
    const span = this.spans[position], box = this.text, above = span.offsetTop - box.scrollTop;
    const fits = span.offsetTop + 40 <= box.clientHeight; // then both columns begin with their first line
    if (fits ? !box.scrollTop : above >= 0 && above + 40 <= box.clientHeight) return;
    box.scrollTop = fits ? 0 : span.offsetTop - box.clientHeight / 2;
    this.scan(); // what comes into view is right at once
  }

  choose(position) {
    if (!this.run) return;
    this.spans[this.chosen]?.classList.remove("chosen");
    this.chosen = position < this.run.texts.length ? position : -1;
    if (this.chosen >= 0) {
      this.spans[this.chosen].classList.add("chosen");
      this.text.setAttribute("aria-activedescendant", this.spans[this.chosen].id);
    }
    this.tell();
  }

  tell() {
    if (!this.run || this.chosen < 0) {
      if (this.known.childElementCount !== 1) this.known.replaceChildren(element("dt", "", "Point at or tap a token: what is known of it stands here."));
      return;
    }
    const facts = tellAbout(this.run, heads(this.run), this.chosen, this.step);
    this.known.replaceChildren(...facts.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
  }
}

// Whether people read lines of a program in the place of the tokens.
function isProgram(run) {
  return run.shown.some((text, position) => text !== run.texts[position]);
}

// The words of a text from the first to the last of some tokens, if these lie together.
function between(run, positions) {
  const first = Math.min(...positions), last = Math.max(...positions);
  if (last - first > 12) return positions.map((at) => quoted(run.shown[at])).join(", ");
  return quoted(run.shown.slice(first, last + 1).join(""));
}

function placeOf(run, position) {
  if (!isProgram(run)) return "";
  const begins = run.shown.slice(0, position + 1).findLast((text) => text.startsWith("\n"));
  if (!begins) return " at the beginning";
  return ` in line ${begins.trim().split(" ").pop()}${position < run.prompt ? " of the program" : ""}`;
}

function quoted(text) {
  return `“${text.trim() || "↵"}”`;
}

function describe(run) {
  const budget = run.budget === null ? "" : `, ${run.budget} entries`;
  const solved = run.solved === null ? "" : run.solved ? " — solves it ✓" : " — gets it wrong ✗";
  return run.method + budget + solved;
}

// ---- one token --------------------------------------------------------------------------------------

function tellAbout(run, chosenHeads, position, step) {
  const read = run.texts[position], meant = run.shown[position] === read ? "" : `${quoted(run.shown[position])}, which the model reads as `;
  const facts = [["token", `${meant}${JSON.stringify(read)}, position ${position}${position < run.prompt ? ", prompt" : ""}`]];
  if (position >= run.read) return [...facts, ["state", "written, never read"]];
  if (run.birth[position] > step) return [...facts, ["state", "not there yet"]];
  facts.push(["state", chosenHeads.length === 1 ? stateIn(run, chosenHeads[0], position, step) : stateOver(run, chosenHeads, position, step)]);
  const found = chosenHeads.map((head) => run.known(head, position, step)).filter((known) => known !== null);
  if (!found.length) return facts;
  const several = chosenHeads.length > 1, longest = Math.max(...found.map((known) => known.interval));
  const mean = found.reduce((sum, known) => sum + known.attention, 0) / found.length;
  const at = found[0].step;
  const then = at === step ? "" : `, last recorded at step ${at}`;
  facts.push([`attention${then}`, number(mean) + (several ? `, mean of the ${found.length === 1 ? "one head" : `${found.length} heads`} that had it; choose a layer and a head for its score` : "")]);
  if (!several) facts.push([`score${then}`, score(found[0].score)]);
  if (!/lazy_eviction|raas/.test(run.method)) return facts; // no other method uses these
  const last = Math.max(...found.map((known) => known.stamp));
  facts.push(
    [`last activation (attention from ${timeline.threshold} on)`, activation(last) + (several && last ? ", in some head" : "")],
    ["longest time between activations (LazyEviction's MRI)", longest ? `${longest} steps` : "no interval yet"],
  );
  return facts;
}

function stateIn(run, head, position, step) {
  const { state, since } = run.state(head, position, step);
  if (state === GONE) return `evicted at step ${since}, after token ${run.steps[since] - 1}`;
  const [keys, values] = run.states[state];
  return keys === values ? `kept at ${keys} bit` : `kept: key ${keys} bit, value ${values} bit`;
}

function stateOver(run, chosenHeads, position, step) {
  const counts = new Map();
  for (const head of chosenHeads) {
    const { state } = run.state(head, position, step);
    counts.set(state, (counts.get(state) || 0) + 1);
  }
  const words = [...counts].sort((a, b) => b[1] - a[1]).map(([state, count]) => {
    const [keys, values] = run.states[state];
    return state === GONE ? `evicted in ${count}` : `kept in ${count} at ${keys === values ? keys : `${keys}/${values}`} bit`;
  });
  return `${words.join(", ")} (of ${chosenHeads.length} heads)`;
}

function score(x) {
  if (Number.isNaN(x)) return "not rated yet";
  if (x === -Infinity) return "protected at the latest decision";
  return `${x === Infinity ? "∞" : number(x)} at the latest decision`;
}

function activation(stamp) {
  return stamp ? `generated token ${stamp}` : "none yet";
}

// ---- the controls -----------------------------------------------------------------------------------

const find = (id) => document.getElementById(id);
const asked = new URLSearchParams(`${location.search.slice(1)}&${location.hash.slice(1)}`);
const darkness = matchMedia("(prefers-color-scheme: dark)");
let now = 0, lastStep = 0, playing = null, wanted = asked.get("theme");

function heads(run) {
  const L = run.layers.length, G = run.kv_heads;
  const layers = find("layer").value === "all" ? [...Array(L).keys()] : [Number(find("layer").value)];
  const own = find("head").value === "all" ? [...Array(G).keys()] : [Number(find("head").value)];
  return layers.flatMap((layer) => own.map((head) => layer * G + head));
}

function go(step) {
  now = Math.min(lastStep, Math.max(0, step));
  find("step").value = now;
  show();
}

function goTo(step) {
  go(step);
  panes.forEach((pane) => pane.follow());
}

function show() {
  for (const pane of panes) pane.show(now);
  const seen = Math.max(...panes.map(({ run }) => (run ? run.steps[Math.min(now, run.steps.length - 1)] : 0)));
  const where = `step ${now} of ${lastStep} · ${seen} tokens read`;
  find("where").textContent = where;
  find("step").setAttribute("aria-valuetext", where);
}

function choose(position) {
  for (const pane of panes) pane.choose(position);
}

function play(on) {
  if (playing !== null) cancelAnimationFrame(playing);
  playing = null;
  if (on) {
    if (now === lastStep) go(0);
    if (narrow && !asked.has("embed")) panes[0].root.scrollIntoView(); // what plays is in sight
    let began = performance.now(), from = now;
    const frame = (time) => {
      const step = from + Math.floor((time - began) / 1000 * Number(find("speed").value));
      if (step > now) {
        go(step);
        panes.forEach((pane) => pane.follow());
      }
      if (now >= lastStep) play(false);
      else playing = requestAnimationFrame(frame);
    };
    find("speed").onchange = () => { began = performance.now(); from = now; };
    playing = requestAnimationFrame(frame);
  }
  find("play").textContent = on ? "Pause" : "Play";
  find("play").setAttribute("aria-pressed", String(on));
}

function dress(chosen) {
  wanted = chosen;
  document.documentElement.dataset.theme = theme();
  panes.forEach((pane) => pane.paint());
}

function fill(select, count, label) {
  select.add(new Option("all", "all"));
  for (let index = 0; index < count; index++) select.add(new Option(label(index), index));
  if ([...select.options].some((option) => option.value === asked.get(select.id))) select.value = asked.get(select.id);
}

function legend() {
  const drawn = panes.flatMap((pane) => pane.run ?? []);
  lastStep = Math.max(...drawn.map((run) => run.steps.length)) - 1;
  find("step").max = lastStep;
  const stored = drawn.flatMap((run) => run.states.flatMap(([keys], index) => (index !== GONE && keys ? hue(run.bits[index]) : [])));
  // Heads with 16 and 2 bit have the hue between.
  const entries = [...HUES.entries()].filter(([each]) => Math.min(...stored) <= each && each <= Math.max(...stored));
  const parts = entries.map(([each, words]) => [`t h${each} l8`, entries.length > 1 ? `kept at ${each ? "about " : ""}${words}` : "kept"]);
  parts.push(["t h0 l3", "kept by some heads"], ["t l0", "evicted"], ["t l0 n", "evicted at this step"], ["t h0 l3 n", "evicted at this step by some heads"]);
  if (drawn.some((run) => run.failure)) parts.push(["t wrong", "first wrong token"], ["t lost", "needed, and lost by some heads"]);
  parts.push(["t chosen", "chosen"]);
  find("legend").replaceChildren(...parts.map(([name, words]) => element("span", name, words)));
}

function theme() {
  if (wanted === "dark" || wanted === "light") return wanted;
  return darkness.matches ? "dark" : "light";
}

const narrow = innerWidth < 720;
if (narrow && !asked.has("embed")) find("options").open = find("colours").open = false;
document.documentElement.dataset.theme = theme();
document.documentElement.classList.toggle("embedded", asked.has("embed"));
const program = runs.some(isProgram);
find("about").textContent = [
  `${program ? "A small model runs a program" : `What ${timeline.model} ${runs.some((run) => run.prompt < run.texts.length) ? "reads and writes" : "reads"}`}, under one method in each ${narrow ? "panel" : "column"}.`,
  "Green: every head has the token's key and value in its KV cache. Paler: some heads have evicted them. Struck out: all have.",
  program ? "Sums keep the last digit. L<c>: the line whose number c holds. Each token is written as what it means: “, then” is a “.” to the model." : "",
  "Press Play or pull the slider; point at a token, or tap it, to see what is known of it.",
  runs.some((run) => run.failure) ? "The page opens where an answer turns wrong." : "",
].filter(Boolean).join(" ");
find("made").textContent = `Made by kvlab ${timeline.kvlab}.`;
fill(find("layer"), runs[0].layers.length, (index) => runs[0].layers[index]);
fill(find("head"), runs[0].kv_heads, (index) => index);

const pick = (name, otherwise) => (asked.has(name) && Number(asked.get(name)) < runs.length ? Number(asked.get(name)) : otherwise);
const panes = [new Pane("left", pick("left", 0)), new Pane("right", pick("right", runs.length > 1 ? 1 : ""), true)];
find("panes").append(...panes.map((pane) => pane.root));
legend();
if (lastStep < 30) find("speed").value = "2";

find("step").addEventListener("input", () => goTo(Number(find("step").value)));
find("play").addEventListener("click", () => play(playing === null));
find("theme").addEventListener("click", () => dress(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
for (const id of ["layer", "head"]) {
  find(id).addEventListener("change", () => { panes.forEach((pane) => pane.paint()); show(); });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const field = event.target.closest("select, button, input"); // the slider leaves only space to us
  if (field && !(field.type === "range" && event.key === " ")) return;
  const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: lastStep };
  if (event.key === " ") play(playing === null);
  else if (event.key in moves) go(moves[event.key]);
  else return;
  event.preventDefault();
});
darkness.addEventListener("change", () => dress(wanted));
addEventListener("message", (event) => { // from the page around a frame
  if (["light", "dark"].includes(event.data?.kvlabTheme)) dress(event.data.kvlabTheme);
});
const failing = panes.map((pane) => pane.failing).filter((step) => step !== undefined);
goTo(asked.has("step") ? Number(asked.get("step")) || 0 : failing.length ? Math.min(...failing) : 0);
if (asked.has("token")) choose(Number(asked.get("token")) || 0);
else {
  const needed = panes.map(({ run }) => run?.failure?.lost[0]).find((position) => position !== undefined);
  if (needed !== undefined) {
    if (!narrow) choose(needed); // what is known of it would hide the text
    for (const pane of panes) if (pane.run) pane.reveal(needed);
  }
}
