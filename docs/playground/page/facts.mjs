/** What is known of a token, and of every entry of a KV head: where it is, and why it is kept or evicted. */

import { CHOSEN, GONE, SAFE, UNDECIDED } from "../frames.mjs";
import { element, shortNumber } from "./elements.mjs";

/** Indices of a head's candidates, from the first to be evicted to the last. */
function candidates({ fates, scores }) {
  const found = [...fates.keys()].filter((j) => fates[j] === CHOSEN || fates[j] === GONE);
  return found.sort((a, b) => scores[a] - scores[b] || a - b);
}

/** Say where an evicted entry stood among the candidates. */
function fall({ fates, scores }, j, order) {
  const goes = order.filter((i) => fates[i] === GONE).length;
  return `score ${shortNumber(scores[j])}, number ${order.indexOf(j) + 1} of ${order.length} from below, and ${goes} had to be evicted`;
}

/** Say what became of entry j of a head, and why; `order` is that of the candidates. */
export function verdict(head, j, order = candidates(head)) {
  const { fates, scores, bits } = head;
  const width = bits[j] > 0 && bits[j] < 16 ? ` at ${shortNumber(bits[j])} bits` : "";
  if (fates[j] === UNDECIDED) return `kept${width}; nothing was decided`;
  if (fates[j] === SAFE) return `protected${width}`;
  if (Number.isNaN(scores[j])) return `kept${width}; there was room for all`;
  if (fates[j] === GONE) return `evicted: ${fall(head, j, order)}`;
  return `kept${width}: score ${shortNumber(scores[j])}, number ${order.length - order.indexOf(j)} of ${order.length} from the top`;
}

/** Say where a position stands in one head after a block. */
function standing(run, layer, g, position, block) {
  const head = run.frames[block].layers[layer][g], j = head.positions.indexOf(position);
  if (j >= 0) return verdict(head, j);
  const then = run.left[layer]?.[g]?.get(position);
  if (then === undefined) return "not read yet";
  const frame = run.frames[then], before = frame.layers[layer][g];
  return `evicted at token ${frame.seen - 1}: ${fall(before, before.positions.indexOf(position), candidates(before))}`;
}

/** Return a table of layers and KV heads with what became of a position in each. */
export function headsTable(run, position, block, caption) {
  const { layers } = run.frames[block];
  const names = layers[0].map((_, g) => element("th", { scope: "col" }, `KV head ${g}`));
  const rows = layers.map((heads, layer) => element("tr", {}, element("th", { scope: "row" }, String(layer)),
    ...heads.map((_, g) => {
      const said = standing(run, layer, g, position, block);
      return element("td", { class: /^evicted/.test(said) ? "pg-gone" : "" }, said);
    })));
  const header = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "layer"), ...names));
  return element("table", { class: "pg-table" }, element("caption", {}, caption), header, element("tbody", {}, ...rows));
}

/** Return a table of the entries of one head after a block, `most` at most: first what goes, last what is protected. */
export function entriesTable(head, text, caption, most) {
  const order = candidates(head), rest = [...head.fates.keys()].filter((j) => !order.includes(j));
  const finite = order.map((j) => head.scores[j]).filter(Number.isFinite);
  const low = Math.min(0, ...finite), span = Math.max(...finite, low) - low || 1;
  const rows = [...order, ...rest].slice(0, most).map((j) => {
    const score = head.scores[j], rated = order.includes(j) && !Number.isNaN(score);
    const width = rated ? 100 * (Math.min(score, low + span) - low) / span : 0;
    return element("tr", { class: head.fates[j] === GONE ? "pg-gone" : "" },
      element("th", { scope: "row" }, text(head.positions[j])),
      element("td", {}, String(head.positions[j])),
      element("td", { class: "pg-score", style: `--width: ${width.toFixed(1)}%` }, rated ? shortNumber(score) : "–"),
      element("td", {}, shortNumber(head.attention[j])),
      element("td", {}, verdict(head, j, order)));
  });
  const names = ["token", "position", "score", "attention now", "what becomes of it"];
  const header = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  return element("table", { class: "pg-table" }, element("caption", {}, caption), element("thead", {}, header), element("tbody", {}, ...rows));
}
