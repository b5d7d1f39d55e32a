// Writes under several methods: node generate_all.mjs DIRECTORY JOBS, where JOBS is a JSON list of
// [method, budget, prompt, most tokens]. Prints the ids that the model writes, one list per job.

import { readFileSync } from "node:fs";
import process from "node:process";

import { generate } from "../../docs/playground/generate.mjs";
import { get } from "../../docs/playground/methods/index.mjs";
import { readSafetensors } from "../../docs/playground/safetensors.mjs";
import { Tokenizer } from "../../docs/playground/tokenizer.mjs";
import { Transformer, readConfig } from "../../docs/playground/transformer.mjs";

const [directory, jobs] = process.argv.slice(2);
const json = (name) => JSON.parse(readFileSync(`${directory}/${name}`, "utf8"));
const tokenizer = new Tokenizer(json("tokenizer.json"));
const { tensors } = readSafetensors(new Uint8Array(readFileSync(`${directory}/model.safetensors`)));
const model = new Transformer(readConfig(json("config.json")), tensors);
const written = JSON.parse(jobs).map(([method, budget, text, most]) => {
  const read = generate(model, get(method, budget), tokenizer.encode(text), most, model.config.end);
  const began = performance.now(), ids = [...read].map(({ next }) => next);
  process.stderr.write(`${method} ${budget}: ${ids.length} tokens, ${(1000 * ids.length / (performance.now() - began)).toFixed(0)} a second\n`);
  return ids;
});
process.stdout.write(JSON.stringify(written));
