/** The likeliest next tokens of the full cache and of a compressed one, side by side. */

import { element, shown } from "./elements.mjs";

/** Return a table of `{ token, probability }` of both, the likeliest first; the written token of each is the first. */
export function likelyTable(full, here, words, caption) {
  const percent = ({ probability }) => `${(100 * probability).toFixed(probability < 0.1 ? 1 : 0)} %`;
  const cells = (each) => each === undefined ? [element("td", { colspan: 2 })] : [
    element("td", { class: "pg-score", style: `--width: ${(100 * each.probability).toFixed(1)}%` }, shown(words[each.token])),
    element("td", {}, percent(each))];
  const rows = (full.length ? full : here).map((_, row) => element("tr", {}, ...cells(full[row]), ...cells(here[row])));
  const names = ["full cache", "this cache"].map((name) => element("th", { scope: "col", colspan: 2 }, name));
  return element("table", { class: "pg-table pg-likely" }, element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...names)), element("tbody", {}, ...rows));
}
