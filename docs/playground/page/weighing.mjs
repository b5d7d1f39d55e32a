/** Why one entry is evicted and another kept: the attention that each received, and how far its value lies from the output. */

import { CHOSEN, GONE } from "../frames.mjs";
import { element, shortNumber } from "./elements.mjs";

/** Positions that a head evicts. */
const going = (head) => new Set(head?.positions.filter((_, j) => head.fates[j] === GONE));

/** Positions that one of two heads evicts, and the other holds and does not evict. */
function parted(head, other) {
  if (!head || !other) return [];
  const only = (one, two) => [...going(one)].filter((position) => two.positions.includes(position) && !going(two).has(position));
  return [...only(head, other), ...only(other, head)];
}

/** The layer and KV head that say most: they evict the chosen token, the caches part there, or the reader asked for them. */
function telling(frame, other, chosen, asked) {
  const heads = frame.layers.flatMap((own, layer) => own.map((head, g) => {
    const there = other?.layers[layer][g];
    const says = 4 * (going(head).has(chosen) !== going(there).has(chosen)) + 2 * (parted(head, there).length > 0) + (`${layer} ${g}` === asked);
    return { layer, g, head, there, says };
  }));
  return heads.reduce((best, each) => (each.says > best.says ? each : best));
}

/**
 * Return a table of the entries that a decision is about, null where nothing was decided: what this cache evicts, what the other
 * one evicts, the chosen token, and what would move the output least. `asked` is a layer and a KV head, such as "1 0".
 */
export function weighing(frame, other, chosen, asked, nameOf) {
  const { layer, g, head, there } = telling(frame, other, chosen, asked);
  if (!head.weights.length) return null;
  const moved = Float32Array.from(head.weights, (weight, j) => weight / (1 - weight) * head.distances[j]);
  const open = [...head.positions.keys()].filter((j) => [CHOSEN, GONE].includes(head.fates[j]));
  const first = [chosen, ...parted(head, there)], of = (positions) => first.find((position) => positions.has(position)) ?? [...positions][0];
  const told = new Map();
  const tell = (position, says) => {
    const j = head.positions.indexOf(position);
    if (j >= 0) told.set(j, [...told.get(j) ?? [], says]);
  };
  const here = of(going(head)), beside = there ? of(going(there)) : -1;
  tell(here, here === beside ? "evicted in both caches" : "evicted here");
  if (beside !== here) tell(beside, "evicted by the other cache");
  tell(chosen, "chosen");
  tell(head.positions[open.reduce((least, j) => (moved[j] < moved[least] ? j : least), open[0])], "moves the output least");
  const columns = [head.weights, head.distances, moved].map((numbers) => [...told.keys()].map((j) => numbers[j]));
  const rows = [...told].map(([j, says], row) => element("tr", { class: head.fates[j] === GONE ? "pg-gone" : "" },
    element("th", { scope: "row" }, nameOf(head.positions[j]), element("small", {}, says.join(", "))),
    ...columns.map((numbers, column) => element("td", {
      class: "pg-score", style: `--width: ${(100 * numbers[row] / Math.max(...numbers)).toFixed(1)}%`,
    }, column ? shortNumber(numbers[row]) : `${(100 * numbers[row]).toFixed(2)} %`))));
  const names = ["entry", "attention so far", "× distance of its value from the output", "= output moves by"];
  return element("table", { class: "pg-table" }, element("caption", {}, `Layer ${layer}, KV head ${g}: ${going(head).size} of ${open.length} entries evicted`),
    element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))), element("tbody", {}, ...rows));
}
