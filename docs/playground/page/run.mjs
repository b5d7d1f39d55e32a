/** A run of the model in a worker, and what is known of it so far. */

import { GONE } from "../frames.mjs";
import { carriesCode } from "../methods/index.mjs";
import { element } from "./elements.mjs";

const LOOKED_AT = 0.05; // attention of a head from which on it counts as a look

/**
 * A worker that holds a model. It is begun when it is first needed. One that is silent for too long over a reader's code,
 * where a loop may be endless, is stopped and begun anew: then `{ error }` is told of all that it was asked for.
 */
export class ModelWorker extends EventTarget {
  static source = ""; // it comes with the page, because a page opened as a file may load no worker
  static patience = 5; // seconds

  asked = new Map(); // method by id of what is at work
  model = null;
  worker = null;
  silent = 0;
  clock = null;

  postMessage(message) {
    const { type, id, method } = message;
    if (type === "load") this.model = message;
    if (type === "run" || type === "try") this.asked.set(id, method);
    if (type === "drop") this.asked.delete(id);
    if (!this.worker && type !== "run" && type !== "try") return;
    if (!this.worker) this.begin();
    this.post(message);
    this.watch();
  }

  post(message) {
    this.posted++;
    this.worker.postMessage(message);
  }

  begin() {
    this.posted = 0;
    this.worker = new Worker(URL.createObjectURL(new Blob([ModelWorker.source], { type: "text/javascript" })));
    this.worker.onmessage = ({ data }) => this.take(data);
    this.worker.onerror = ({ message }) => this.fail(message);
    this.post(this.model);
  }

  take(data) {
    this.silent = 0;
    if (data.idle === this.posted) this.rest();
    if (data.end || data.error || "wrong" in data) this.asked.delete(data.id);
    if ("id" in data) this.tell(data);
  }

  tell(data) {
    this.dispatchEvent(new MessageEvent("message", { data }));
  }

  /** Count seconds without a word; a machine that slept counts one. */
  watch() {
    if (this.clock) return;
    this.silent = 0;
    this.clock = setInterval(() => {
      if (![...this.asked.values()].some(carriesCode) || ++this.silent < ModelWorker.patience) return;
      this.fail(`nothing came for ${ModelWorker.patience} seconds, so it was stopped; is there an endless loop?`);
    }, 1000);
  }

  rest() {
    clearInterval(this.clock);
    this.clock = null;
  }

  /** Give up what was asked for. */
  fail(error) {
    const left = [...this.asked.keys()];
    this.stop();
    for (const id of left) this.tell({ id, error, line: null });
  }

  /** End the worker, whatever it does; the next message begins another. */
  stop() {
    this.rest();
    this.asked.clear();
    this.worker?.terminate();
    this.worker = null;
  }
}

/** Return an embedded model, `{ config, tokenizer, weights }`; it is a script, since a page opened as a file may fetch none. */
export async function embeddedModel(name) {
  const models = (globalThis.kvlabModels ??= {});
  if (!models[name]) {
    await new Promise((resolve, reject) => {
      const missing = () => reject(new Error(`model-${name}.js is not beside this page`));
      document.head.append(element("script", { src: `model-${name}.js`, onload: resolve, onerror: missing }));
    });
  }
  return models[name];
}

/** One generation: `frames[i]` is what the i-th block saw, `left[layer][g]` when each entry went. */
export class Run {
  static made = 0;

  /** `changed(run)` is called whenever a frame, the end or an error has arrived. */
  constructor(worker, asked, changed) {
    Object.assign(this, { worker, asked, frames: [], ended: false, error: null, left: [] });
    this.id = ++Run.made;
    this.listener = ({ data }) => {
      if (data.id !== this.id) return;
      this.take(data);
      changed(this);
    };
    worker.addEventListener("message", this.listener);
    worker.postMessage({ type: "run", id: this.id, ...asked });
  }

  take({ frame, end, error, line }) {
    if (end) this.ended = true;
    if (error) this.error = line ? `Line ${line}: ${error}` : error;
    if (!frame) return;
    const index = this.frames.push(frame) - 1;
    frame.layers.forEach((heads, layer) => heads.forEach(({ positions, fates }, g) => {
      const left = ((this.left[layer] ??= [])[g] ??= new Map());
      fates.forEach((fate, j) => { if (fate === GONE) left.set(positions[j], index); });
    }));
  }

  /** Let the worker go on until so many blocks were read. */
  until(count) {
    this.worker.postMessage({ type: "until", id: this.id, count });
  }

  /** Discard the run: what still arrives of it is not listened to. A reader's code may never come back to hear of it. */
  drop() {
    this.worker.removeEventListener("message", this.listener);
    if (carriesCode(this.asked.method) && !this.ended && !this.error) this.worker.stop();
    else this.worker.postMessage({ type: "drop", id: this.id });
  }

  /** Ids that were written after so many blocks. */
  written(blocks = this.frames.length) {
    return this.frames.slice(0, blocks).map(({ next }) => next);
  }
}

/** Index of the first written token in which a run differs from another; -1 if none does so far. */
export function firstDifference(run, other) {
  const ours = run.written(), theirs = other.written();
  const different = ours.findIndex((id, place) => place < theirs.length && id !== theirs[place]);
  if (different >= 0 || !(run.ended && other.ended) || ours.length === theirs.length) return different;
  return Math.min(ours.length, theirs.length) - 1;
}

/**
 * Positions that heads of the full cache looked at when it wrote a token, and that the same heads of
 * a run had lost by then: `{ position, attention }`, the largest attention of any such head first.
 */
export function missed(run, full, block, most = 4) {
  const there = full.frames[block], here = run.frames[block];
  if (!there || !here) return [];
  const held = here.layers.map((heads) => heads.map(({ positions }) => new Set(positions)));
  return strongest(there, LOOKED_AT, most, (layer, g, position) => !held[layer][g].has(position));
}

/** Positions to which heads attend with the last token of a frame, and the largest attention of any; `counts` says which count. */
export function strongest({ layers }, least, most, counts = () => true) {
  const largest = new Map();
  layers.forEach((heads, layer) => heads.forEach(({ positions, attention }, g) => positions.forEach((position, j) => {
    if (counts(layer, g, position)) largest.set(position, Math.max(largest.get(position) ?? 0, attention[j]));
  })));
  return [...largest].map(([position, attention]) => ({ position, attention }))
    .filter(({ attention }) => attention > least)
    .sort((a, b) => b.attention - a.attention).slice(0, most);
}
