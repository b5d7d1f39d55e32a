/** Small things of which the page is made. Texts are set as text: markup in them stays text. */

const SVG = ["svg", "path"];

/** Make an element with attributes and children; a string among the children is a text. */
export function element(tag, attributes = {}, ...children) {
  const made = SVG.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Write a number with three digits. */
export function shortNumber(x) {
  if (x === Infinity) return "∞";
  if (x === 0 || Number.isInteger(x) && Math.abs(x) < 1e5) return String(x);
  return Math.abs(x) >= 1e-3 && Math.abs(x) < 1e4 ? String(Number(x.toPrecision(3))) : x.toExponential(1);
}

/** How a token is shown. */
export function shown(word) {
  return word.replaceAll("\n", "↵");
}
