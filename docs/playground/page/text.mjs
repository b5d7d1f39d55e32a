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
    this.spans = [];
    this.drawn = [];
    this.marked = -1;
    this.root.replaceChildren();
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

  /** Add spans for the words that have none yet, those that begin a line behind a break. */
  grow(words, begins) {
    for (let position = this.spans.length; position < words.length; position++) {
      const span = element("span", {
        id: `${this.id}-${position}`, role: "option", "aria-selected": "false", "data-position": position,
      }, shown(words[position]));
      this.spans.push(span);
      if (begins?.(words[position])) this.root.append(element("br"));
      this.root.append(span, " ");
    }
  }

  /** Show words up to `count`; `look(position)` returns the classes and the label of each, `begins(word)` where lines begin. */
  draw(words, count, begins, look) {
    this.root.classList.toggle("pg-lines", begins !== null);
    this.grow(words, begins);
    this.spans.forEach((span, position) => {
      const { classes, label } = position < count ? look(position) : HIDDEN;
      if (this.drawn[position] === classes + label) return; // what is drawn is remembered: to ask the page takes longer
      this.drawn[position] = classes + label;
      span.hidden = position >= count;
      span.className = classes;
      span.title = label;
      span.setAttribute("aria-label", `${shown(words[position] ?? "")}: ${label}`);
    });
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
    if (span.offsetTop + span.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = span.offsetTop - box.clientHeight / 2;
    if (span.offsetLeft + span.offsetWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = span.offsetLeft;
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
