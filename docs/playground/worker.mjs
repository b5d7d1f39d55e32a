/**
 * Runs the model beside the page. Messages to it:
 *
 * - `{ type: "load", config, tokenizer, weights }`: the model; weights are its safetensors in base64.
 * - `{ type: "run", id, method, budget, prompt, most, pinned }`: begin anew.
 * - `{ type: "until", id, count }`: let that run go on until so many blocks were read.
 *
 * Messages from it: `{ id, frame }` after every block, `{ id, end }` after the last one, and
 * `{ id, error }`.
 */

import { picture } from "./frames.mjs";
import { generate } from "./generate.mjs";
import { get } from "./methods/index.mjs";
import { pin } from "./pinned.mjs";
import { readSafetensors } from "./safetensors.mjs";
import { Tokenizer } from "./tokenizer.mjs";
import { Transformer, readConfig } from "./transformer.mjs";

let model = null, tokenizer = null, current = null, waking = false;
const alarm = new MessageChannel(); // unlike a timer, it costs no milliseconds between two tokens
alarm.port1.onmessage = () => { waking = false; readBlock(); };

const HANDLERS = {
  load({ config, tokenizer: file, weights }) {
    const bytes = Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0));
    model = new Transformer(readConfig(config), readSafetensors(bytes).tensors);
    tokenizer = new Tokenizer(file);
  },
  run(asked) {
    current = { id: asked.id, blocks: frames(asked), made: 0, until: 0 };
  },
  until({ id, count }) {
    if (current?.id === id) current.until = count;
  },
};

self.onmessage = ({ data }) => {
  HANDLERS[data.type](data);
  wake();
};

function wake() {
  if (waking || !current || current.made >= current.until) return;
  waking = true;
  alarm.port2.postMessage(null);
}

/** Read one block of the current run, tell the page, and come back. */
function readBlock() {
  if (!current || current.made >= current.until) return;
  const { id, blocks } = current;
  try {
    const { value, done } = blocks.next();
    if (done) current = null;
    else current.made++;
    self.postMessage(done ? { id, end: true } : { id, frame: value });
  } catch (error) {
    current = null;
    self.postMessage({ id, error: error.message });
  }
  wake();
}

/** Yield what the page shows after every block: `{ seen, next, layers }`. */
function* frames({ method, budget, prompt, most, pinned }) {
  const policy = pin(get(method, budget), pinned);
  let layers = [], seen = 0;
  const watch = (layer, result) => { layers[layer] = picture(result); };
  for (const { tokens, next } of generate(model, policy, tokenizer.encode(prompt), most, model.config.end, watch)) {
    seen += tokens.length;
    yield { seen, next, layers };
    layers = [];
  }
}
