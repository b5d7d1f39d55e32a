/** The text of a run, one element per token, coloured by how many heads keep its entry. */

import { GONE } from "../frames.mjs";
import { element, shown } from "./elements.mjs";

const LEVELS = 8;
const HIDDEN = { classes: "", label: "not written yet" };

/** A list box in which a token can be chosen by pointer and by arrow keys. */
export class TokenText {
  /** `chosen(position)` is called when a token is chosen. */
  constructor(id, label, chosen) {
    this.id = id;
    this.choose = chosen;
    this.root = element("div", { class: "pg-text", role: "listbox", tabindex: 0, "aria-label": label });
    this.root.addEventListener("click", ({ target }) => {
      if (target.dataset.position) chosen(Number(target.dataset.position));
    });
    this.root.addEventListener("keydown", (event) => this.move(event));
    this.clear();
  }

  clear() {
    this.lines = element("svg", { class: "pg-attention", "aria-hidden": "true" });
    this.spans = [];
    this.drawn = [];
    this.marked = -1;
    this.root.replaceChildren(this.lines);
    this.root.removeAttribute("aria-activedescendant");
  }

  move(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -Infinity, End: Infinity }[event.key];
    const count = this.spans.filter((span) => !span.hidden).length;
    if (way === undefined || !count) return;
    event.preventDefault();
    event.stopPropagation();
    const position = Math.min(count - 1, Math.max(0, Math.max(this.marked, 0) + way));
    this.choose(position);
    this.spans[position].scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** Add spans for the words that have none yet, those that begin a line behind a break; people read `task.readTokens`. */
  grow(words, task) {
    if (this.spans.length >= words.length) return;
    const texts = task.readTokens?.(words) ?? words;
    for (let position = this.spans.length; position < words.length; position++) {
      const span = element("span", {
        id: `${this.id}-${position}`, role: "option", "aria-selected": "false", "data-position": position, "data-token": words[position],
      }, shown(texts[position]));
      this.spans.push(span);
      if (task.begins?.(words[position])) this.root.append(element("br"));
      this.root.append(texts[position].startsWith(",") ? "" : " ", span);
    }
  }

  /** Show words of a task up to `count`; `look(position)` returns the classes and the label of each. */
  draw(words, count, task, look) {
    this.root.classList.toggle("pg-lines", Boolean(task.begins));
    this.grow(words, task);
    this.spans.forEach((span, position) => {
      const { classes, label } = position < count ? look(position) : HIDDEN;
      if (this.drawn[position] === classes + label) return; // what is drawn is remembered: to ask the page takes longer
      this.drawn[position] = classes + label;
      span.hidden = position >= count;
      span.className = classes;
      span.title = `${shown(words[position] ?? "")}: ${label}`;
      span.setAttribute("aria-label", span.title);
    });
  }

  /** Draw lines from one token to others, `{ position, attention, lost }`; they move with the text. */
  join(from, others) {
    const centre = ({ offsetLeft, offsetTop, offsetWidth, offsetHeight }) => [offsetLeft + offsetWidth / 2, offsetTop + offsetHeight / 2];
    const paths = others.filter(({ position }) => position !== from).map(({ position, attention, lost }) => {
      const [x, y] = centre(this.spans[from]), [toX, toY] = centre(this.spans[position]);
      const d = `M${x} ${y}Q${(x + toX) / 2 + 30} ${Math.min(y, toY) - 6} ${toX} ${toY}m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0 -5 0`;
      return element("path", { d, class: lost ? "pg-line-lost" : "", "stroke-width": 1 + 2.5 * attention, "data-position": position });
    });
    for (const [name, side] of [["width", "scrollWidth"], ["height", "scrollHeight"]]) this.lines.setAttribute(name, this.root[side]);
    this.lines.replaceChildren(...paths);
  }

  /** Mark the chosen token. */
  mark(position) {
    const span = this.spans[position];
    if (position === this.marked) return;
    this.spans[this.marked]?.setAttribute("aria-selected", "false");
    this.marked = span ? position : -1;
    if (!span) return;
    span.setAttribute("aria-selected", "true");
    this.root.setAttribute("aria-activedescendant", span.id);
  }

  /** Scroll the text alone so that a token is in view. */
  follow(position) {
    const span = this.spans[position], box = this.root;
    if (!span) return;
    const above = span.offsetTop - box.scrollTop, left = span.offsetLeft - box.scrollLeft;
    if (above < 0 || above + span.offsetHeight > box.clientHeight) box.scrollTop = span.offsetTop - box.clientHeight / 2;
    if (left < 0 || left + span.offsetWidth > box.clientWidth) box.scrollLeft = span.offsetLeft - box.clientWidth / 2;
  }
}

/** Count, for every position, the heads that hold it after a frame, and those that it just left. */
export function holding(frame) {
  const held = new Uint16Array(frame.seen), leaving = new Uint16Array(frame.seen), bits = new Float32Array(frame.seen);
  const heads = frame.layers.flat();
  for (const head of heads) {
    for (let j = 0; j < head.positions.length; j++) {
      const position = head.positions[j];
      if (head.fates[j] === GONE) leaving[position]++;
      else {
        held[position]++;
        bits[position] += head.bits[j];
      }
    }
  }
  return { held, leaving, bits, heads: heads.length };
}

/** Classes and label of a position that was read. */
export function lookOf({ held, leaving, bits, heads }, position) {
  const count = held[position], level = count === 0 ? 0 : Math.max(1, Math.round(LEVELS * count / heads));
  const width = count ? Math.round(bits[position] / count) : 16;
  const classes = `pg-l${level}${leaving[position] ? " pg-now" : ""}${width < 16 ? " pg-coded" : ""}`;
  const parts = [count === heads ? "kept" : count === 0 ? "evicted" : `kept by ${count} of ${heads} heads`];
  if (leaving[position] && count) parts.push(`${leaving[position]} evict it now`);
  if (width < 16) parts.push(`${width} bits`);
  return { classes, label: parts.join(", ") };
}

/** Classes and label of a position that one cache keeps in more heads than another one. */
export function compared(here, there, position) {
  const more = here.held[position] - there.held[position];
  if (more === 0) return { classes: "", label: "" };
  return { classes: more > 0 ? " pg-more" : " pg-fewer", label: `, ${Math.abs(more)} heads ${more > 0 ? "more" : "fewer"} than in the other cache` };
}
