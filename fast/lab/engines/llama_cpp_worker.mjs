// Runs llama.cpp through node-llama-cpp of the folder that is named; settings: keys and values, as in "Q8_0".
import fs from "fs";
import {createRequire} from "module";
import {pathToFileURL} from "url";

const require = createRequire(pathToFileURL(process.argv[2] + "/"));
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")));
const {weights, prompts, settings, tokens, out} = JSON.parse(fs.readFileSync(0));

const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: weights});
const length = Math.max(...prompts.map((prompt) => prompt.length)) + tokens;
const options = {contextSize: length + 16, threads: 1};
if (settings.keys)
  Object.assign(options, {
    experimentalKvCacheKeyType: settings.keys, experimentalKvCacheValueType: settings.values, flashAttention: true,
  });
const context = await model.createContext(options);
const sequence = context.getSequence();
const written = [];
for (const prompt of prompts) {
  await sequence.clearHistory();
  const found = [];
  for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    found.push(token);
    if (found.length >= tokens) break;
  }
  written.push({tokens: found});
}
fs.writeFileSync(out, JSON.stringify(written));
process.exit(0);
