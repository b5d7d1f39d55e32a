/**
 * Runs the model beside the page. Messages to it:
 *
 * - `{ type: "load", config, tokenizer, weights }`: the model; weights are its safetensors in base64.
 * - `{ type: "run", id, method, budget, prompt, most, pinned }`: a run; of several, the first goes on first.
 * - `{ type: "until", id, count }`: let that run go on until so many blocks were read.
 * - `{ type: "drop", id }`: discard that run.
 *
 * Messages from it: `{ id, frame }` after every block, `{ id, end }` after the last one, and
 * `{ id, error }`.
 */

import { picture } from "./frames.mjs";
import { generate, likeliest } from "./generate.mjs";
import { get } from "./methods/index.mjs";
import { pin } from "./pinned.mjs";
import { readSafetensors } from "./safetensors.mjs";
import { Tokenizer } from "./tokenizer.mjs";
import { Transformer, readConfig } from "./transformer.mjs";

const runs = new Map(); // those that are not over, by id
let model = null, tokenizer = null, waking = false;
const alarm = new MessageChannel(); // unlike a timer, it costs no milliseconds between two tokens
alarm.port1.onmessage = () => { waking = false; readBlock(); };

const HANDLERS = {
  load({ config, tokenizer: file, weights }) {
    const bytes = Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0));
    model = new Transformer(readConfig(config), readSafetensors(bytes).tensors);
    tokenizer = new Tokenizer(file);
    runs.clear();
  },
  run(asked) {
    runs.set(asked.id, { id: asked.id, blocks: frames(asked), made: 0, until: 0 });
  },
  until({ id, count }) {
    if (runs.has(id)) runs.get(id).until = count;
  },
  drop({ id }) {
    runs.delete(id);
  },
};

self.onmessage = ({ data }) => {
  HANDLERS[data.type](data);
  wake();
};

/** Return the run that goes on, if there is one. */
function current() {
  return [...runs.values()].find(({ made, until }) => made < until);
}

function wake() {
  if (waking || !current()) return;
  waking = true;
  alarm.port2.postMessage(null);
}

/** Read one block of a run, tell the page, and come back. */
function readBlock() {
  const run = current();
  if (!run) return;
  const { id, blocks } = run;
  try {
    const { value, done } = blocks.next();
    if (done) runs.delete(id);
    else run.made++;
    self.postMessage(done ? { id, end: true } : { id, frame: value });
  } catch (error) {
    runs.delete(id);
    self.postMessage({ id, error: error.message });
  }
  wake();
}

/** Yield what the page shows after every block: `{ seen, next, likely, layers }`. */
function* frames({ method, budget, prompt, most, pinned }) {
  const policy = pin(get(method, budget), pinned);
  let layers = [], seen = 0;
  const watch = (layer, result) => { layers[layer] = picture(result); };
  for (const { tokens, next, logits } of generate(model, policy, tokenizer.encode(prompt), most, model.config.end, watch)) {
    seen += tokens.length;
    yield { seen, next, likely: likeliest(logits, 5), layers };
    layers = [];
  }
}
