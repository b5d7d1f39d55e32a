/**
 * The moving picture of the README and the first page: the tour of the playground, drawn as an SVG.
 * node docs/study/playing.mjs > docs/images/playing.svg
 * node docs/study/playing.mjs narrow > docs/images/narrow/playing.svg
 */

import { readFileSync } from "node:fs";
import process from "node:process";

import { picture } from "../playground/frames.mjs";
import { generate } from "../playground/generate.mjs";
import { get } from "../playground/methods/index.mjs";
import { holding, lookOf } from "../playground/page/text.mjs";
import { missed } from "../playground/page/run.mjs";
import { pin } from "../playground/pinned.mjs";
import { readSafetensors } from "../playground/safetensors.mjs";
import { jumps } from "../playground/tasks/jumps.mjs";
import { Tokenizer } from "../playground/tokenizer.mjs";
import { Transformer, readConfig } from "../playground/transformer.mjs";

const MODEL = new URL("../../reference/models/jumps/", import.meta.url);
const PROGRAM = "\n g6 b5 c1 f5 d0 h9 L9 c . + b . = . . L3 c . + b . = . . L1 d . + h . = . . L4 d . + f . = . . L7 h . + g . = . . "
  + "L2 d . + g . = . . L6 f . + g . = . . L8 f . + b . = . . L5 g . + b . = . . \n L3"; // of the tour
const BUDGET = 189; // 70 % of 270 entries
const [WIDTH, LINE, COLUMNS, TOP, CAPTION] = process.argv[2] === "narrow"
  ? [352, 21, [12], 122, { top: 26, line: 18, letters: [39, 46], sizes: [14, 13] }]
  : [780, 23, [24, 440], 92, { top: 34, line: 23, letters: [90, 90], sizes: [16, 14] }];
const LETTER = 7.85;
const BEFORE = 18; // tokens that are written before the cache is full
const PACE = 0.1, STILL = 4.5; // seconds of a token, and of what stands still

const json = (name) => JSON.parse(readFileSync(new URL(name, MODEL), "utf8"));
const tokenizer = new Tokenizer(json("tokenizer.json"));
const { tensors } = readSafetensors(new Uint8Array(readFileSync(new URL("model.safetensors", MODEL))));
const model = new Transformer(readConfig(json("config.json")), tensors);
const prompt = tokenizer.encode(PROGRAM);

/** Run a policy as the page does: `frames` as it draws them. */
function run(policy, most) {
  let layers = [], seen = 0;
  const frames = [];
  for (const { tokens, next } of generate(model, policy, prompt, most, model.config.end, (layer, result) => { layers[layer] = picture(result); })) {
    seen += tokens.length;
    frames.push({ seen, next, layers });
    layers = [];
  }
  return { frames };
}

const full = run(get("full"), 400), h2o = run(get("h2o", BUDGET), 140);
const wrong = h2o.frames.findIndex(({ next }, block) => next !== full.frames[block].next);
const lost = missed(h2o, full, wrong)[0].position;
const mended = run(pin(get("h2o", BUDGET), [lost]), wrong + 2);
if (mended.frames[wrong].next !== full.frames[wrong].next) throw new Error(`token ${lost} does not mend the answer`);

const first = BUDGET - prompt.length - BEFORE; // the block with which the picture begins
const words = [...prompt, ...h2o.frames.slice(0, wrong + 1).map(({ next }) => next)].map((id) => tokenizer.words[id]);
const right = tokenizer.words[full.frames[wrong].next];
const texts = jumps.readTokens(words), seconds = (wrong + 1 - first) * PACE, total = seconds + 2 * STILL;
const at = (time) => `${(100 * time / total).toFixed(2)}%`;
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("\n", "↵");

/** Where every token stands: lines fill one column, then the other. */
function places() {
  const lines = texts.reduce((found, _, position) => {
    if (position === 0 || jumps.begins(words[position])) found.push([]);
    found.at(-1).push(position);
    return found;
  }, []);
  const half = Math.ceil(lines.length / COLUMNS.length), found = [];
  lines.forEach((line, row) => {
    let x = COLUMNS[Math.floor(row / half)];
    for (const position of line) {
      const width = texts[position].replace("\n", "↵").length * LETTER + 5;
      found[position] = { x, y: TOP + row % half * LINE, width };
      x += width + (texts[position + 1]?.startsWith(",") ? 0 : 4);
    }
  });
  return { found, height: TOP + half * LINE + 6 };
}

const { found, height } = places(), styles = [], drawn = [];

/** Let a class of elements show what `moments` say, `[time, declaration]`; without motion, what stood when the answer was wrong. */
function animate(name, moments) {
  const still = moments.findLast(([time]) => time <= seconds + 0.1)[1];
  styles.push(`.${name}{${still}}`);
  if (moments.length < 2) return;
  styles.push(`@keyframes ${name}{${moments.map(([time, told]) => `${at(time)}{${told}}`).join("")}}`);
  styles.push(`@media (prefers-reduced-motion:no-preference){.${name}{animation:${name} ${total}s step-end infinite}}`);
}

/** How a token looks after each block, as moments. */
function life(position) {
  const moments = [];
  const add = (time, told) => { if (moments.at(-1)?.[1] !== told) moments.push([time, told]); };
  const look = (frame) => {
    if (position >= frame.seen) return "fill-opacity:0";
    const level = Number(/pg-l(\d)/.exec(lookOf(holding(frame), position).classes)[1]);
    return `fill-opacity:${[0, 0.1, 0.16, 0.22, 0.29, 0.36, 0.43, 0.5, 0.58][level]}`;
  };
  for (let block = first; block <= wrong; block++) add(block === first ? 0 : (block - first) * PACE, look(h2o.frames[block]));
  add(seconds + STILL, look(mended.frames[wrong]));
  return moments;
}

words.forEach((_, position) => {
  const { x, y, width } = found[position], text = escaped(texts[position]), last = position === words.length - 1;
  const shown = (position - prompt.length + 1 - first) * PACE; // when it is written
  animate(`b${position}`, life(position));
  let named = "";
  if (shown > 0 && !last) {
    named = ` class="t${position}"`;
    animate(`t${position}`, [[0, "opacity:0"], [shown, "opacity:1"]]);
  }
  drawn.push(`<rect class="b b${position}" x="${x}" y="${y - 15}" width="${width}" height="19" rx="3"/>`);
  if (!last) drawn.push(`<text${named} x="${x + 2.5}" y="${y}">${text}</text>`);
});

const phases = [[0, BEFORE * PACE], [BEFORE * PACE, seconds], [seconds, seconds + STILL], [seconds + STILL, total]];
const captions = [
  ["A language model runs a program and writes out every line.", "Green: in its cache. Sums keep the last digit. L<c>: the line whose number c holds."],
  [`The budget is full: ${BUDGET} of ${full.frames.at(-1).seen} entries. H2O evicts what received least attention.`,
    "Fainter: evicted by more heads. The newest stay. Sums keep the last digit."],
  [`✗ It writes ${words.at(-1)}. The full cache looks at ${words[lost]} in line ${words[lost - 1]}, and writes ${right}.`,
    "The dashed line leads to the token that some heads have lost."],
  [`✓ The same run with this one token protected: it writes ${right}.`, "Which tokens would you evict? Try it in the playground."],
];
/** Cut a caption into lines that fit. */
const fitting = (text, which) => text.match(new RegExp(`.{1,${CAPTION.letters[which]}}(?: |$)`, "gu"));
captions.forEach((sentences, phase) => {
  const [from, to] = phases[phase], moments = [[from, "opacity:1"], ...(to < total ? [[to, "opacity:0"]] : [])];
  animate(`c${phase}`, from > 0 ? [[0, "opacity:0"], ...moments] : moments);
  const tone = ["", "", " wrong", " right"][phase];
  const lines = sentences.flatMap((sentence, which) => fitting(sentence, which).map((text) => [text, which ? "less" : `say${tone}`]));
  drawn.push(`<g class="c${phase}">${lines.map(([text, look], row) => (
    `<text class="${look}" x="${COLUMNS[0]}" y="${CAPTION.top + row * CAPTION.line}">${escaped(text.trim())}</text>`)).join("")}</g>`);
});

const end = words.length - 1, { x, y } = found[end], ring = found[lost];
const beside = COLUMNS.length > 1; // the answer is in another column than the token: the line starts on its left
const [from, gutter] = beside ? [found[end - 1].x, COLUMNS[1] - 14] : [x + 26, WIDTH - 14];
animate("lost", [[0, "opacity:0"], [seconds, "opacity:1"], [seconds + STILL, "opacity:0"]]);
animate("pinned", [[0, "opacity:0"], [seconds + STILL, "opacity:1"]]);
drawn.push(`<g class="lost"><path class="line" d="M${from} ${y - 6}H${gutter}V${ring.y - 17}H${ring.x + ring.width}"/>`
  + `<rect class="ring" x="${ring.x - 2}" y="${ring.y - 17}" width="${ring.width + 4}" height="23" rx="4"/>`
  + `<text class="wrong" x="${x + 2.5}" y="${y}">${words.at(-1)} ✗</text></g>`,
`<g class="pinned"><rect class="ring kept" x="${ring.x - 2}" y="${ring.y - 17}" width="${ring.width + 4}" height="23" rx="4"/>`
  + `<text class="right" x="${x + 2.5}" y="${y}">${right} ✓</text></g>`);

process.stdout.write(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-labelledby="title">
<title id="title">A model writes out a program. Under H2O its cache loses one token, and the answer turns wrong; with this token protected it is right.</title>
<style>
:root{--paper:#fff;--ink:#1b1b1f;--less:#5f6368;--kept:#2e8b57;--wrong:#c62828;--right:#1b7a3d}
@media (prefers-color-scheme:dark){:root{--paper:#1e2129;--ink:#e8e8ea;--less:#a9adb8;--kept:#4fc389;--wrong:#ff7b72;--right:#6fdc9c}}
text{font:13px/1 ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:var(--ink)}
.say{font:600 ${CAPTION.sizes[0]}px system-ui,"DejaVu Sans",sans-serif}.less{font:${CAPTION.sizes[1]}px system-ui,"DejaVu Sans",sans-serif;fill:var(--less)}
.wrong{fill:var(--wrong);font-weight:700}.right{fill:var(--right);font-weight:700}
.b{fill:var(--kept)}.line,.ring{fill:none;stroke:var(--wrong);stroke-width:2}.line{stroke-dasharray:6 4}.kept{stroke:var(--right)}
${styles.join("\n")}
</style>
<rect width="${WIDTH}" height="${height}" rx="8" style="fill:var(--paper)"/>
${drawn.join("\n")}
</svg>
`);
