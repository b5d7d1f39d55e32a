/**
 * Runs the model beside the page. Messages to it:
 *
 * - `{ type: "load", config, tokenizer, weights }`: the model; weights are its safetensors in base64.
 * - `{ type: "run", id, method, budget, prompt, most, pinned }`: a run; of several, the first goes on first.
 * - `{ type: "until", id, count }`: let that run go on until so many blocks were read.
 * - `{ type: "drop", id }`: discard that run.
 * - `{ type: "try", id, method, budget, prompt, solution }`: how far a method gets; "oracle" knows the solution.
 *
 * Messages from it: `{ id, frame }` after every block, `{ id, end }` after the last one, `{ id, wrong }` with the place of
 * the first wrong token of a try, −1 if there is none, and `{ id, error, line }`, where a line is one of the reader's code.
 * `{ idle }` says that nothing is left to do after so many messages; a try says `{}` at every token, as it is at work.
 */

import { Worth, picture } from "./frames.mjs";
import { generate, likeliest } from "./generate.mjs";
import { get } from "./methods/index.mjs";
import { pin } from "./pinned.mjs";
import { readSafetensors } from "./safetensors.mjs";
import { oraclePolicy } from "./tasks/jumps_oracle.mjs";
import { Tokenizer } from "./tokenizer.mjs";
import { Transformer, readConfig } from "./transformer.mjs";
import { PromptOnce, firstWrong } from "./trial.mjs";

for (const name of ["fetch", "XMLHttpRequest", "WebSocket", "EventSource", "importScripts", "indexedDB", "caches", "Worker", "BroadcastChannel"]) {
  Object.defineProperty(self, name, { value: undefined }); // code of an address has no business there
}
const prompts = new Map(); // models that have read a prompt, by the prompt
const runs = new Map(); // those that are not over, by id
let model = null, tokenizer = null, waking = false, heard = 0;
const alarm = new MessageChannel(); // unlike a timer, it costs no milliseconds between two tokens
alarm.port1.onmessage = () => { waking = false; readBlock(); };

const HANDLERS = {
  load({ config, tokenizer: file, weights }) {
    const bytes = Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0));
    model = new Transformer(readConfig(config), readSafetensors(bytes).tensors);
    tokenizer = new Tokenizer(file);
    runs.clear();
    prompts.clear();
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
  try({ id, method, budget, prompt, solution }) {
    if (!prompts.has(prompt)) prompts.set(prompt, new PromptOnce(model));
    answering(id, () => {
      const policy = method === "oracle" ? oraclePolicy(`${prompt} ${solution}`.split(" "), budget) : get(method, budget);
      const wrong = firstWrong(prompts.get(prompt), policy, tokenizer.encode(prompt), tokenizer.encode(solution), () => self.postMessage({}));
      self.postMessage({ id, wrong });
    });
  },
};

self.onmessage = ({ data }) => {
  heard++;
  HANDLERS[data.type](data);
  wake();
};

/** Do something for a run; what goes wrong in it is told. */
function answering(id, act) {
  try {
    act();
  } catch (error) {
    runs.delete(id);
    self.postMessage({ id, error: error.message, line: error.line ?? null });
  }
}

/** Return the run that goes on, if there is one. */
function current() {
  return [...runs.values()].find(({ made, until }) => made < until);
}

function wake() {
  if (waking) return;
  if (!current()) return self.postMessage({ idle: heard });
  waking = true;
  alarm.port2.postMessage(null);
}

/** Read one block of a run, tell the page, and come back. */
function readBlock() {
  const run = current();
  if (run) answering(run.id, () => {
    const { value, done } = run.blocks.next();
    if (done) runs.delete(run.id);
    else run.made++;
    self.postMessage(done ? { id: run.id, end: true } : { id: run.id, frame: value });
  });
  wake();
}

/** Yield what the page shows after every block: `{ seen, next, likely, layers }`. */
function* frames({ method, budget, prompt, most, pinned }) {
  const policy = pin(get(method, budget), pinned);
  const worth = new Worth();
  let layers = [], seen = 0;
  const watch = (layer, result) => {
    const rated = worth.of(layer, result);
    layers[layer] = picture(result).map((head, g) => ({ ...head, ...rated[g] }));
  };
  for (const { tokens, next, logits } of generate(model, policy, tokenizer.encode(prompt), most, model.config.end, watch)) {
    seen += tokens.length;
    yield { seen, next, likely: likeliest(logits, 5), layers };
    layers = [];
  }
}
