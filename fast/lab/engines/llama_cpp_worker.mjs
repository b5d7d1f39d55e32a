// Runs llama.cpp through node-llama-cpp of the folder that is named; settings: type of keys and values, as in "Q8_0",
// and whether llama.cpp may rotate them, as it does unless it is told not to; and of a context of so many tokens that
// is full, how many tokens are evicted (shift) after how many that are kept (keep).
import fs from "fs";
import {createRequire} from "module";
import {pathToFileURL} from "url";

const {weights, prompts, settings, tokens, out, timed} = JSON.parse(fs.readFileSync(0));
if (settings.rotation === false) process.env.LLAMA_ATTN_ROT_DISABLE = "1";
const require = createRequire(pathToFileURL(process.argv[2] + "/"));
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")));

let bytes = 0;
const logger = (level, text) => {
  const size = /KV buffer size = +([\d.]+) MiB/.exec(text);
  if (size) bytes = size[1] * 2 ** 20;
  else if (level === "error" || level === "fatal") console.error(text);
};
const llama = await getLlama({gpu: false, build: "never", logLevel: "info", logger});
const model = await llama.loadModel({modelPath: weights});
const longest = Math.max(...prompts.map((prompt) => prompt.length));
const options = {contextSize: settings.context ?? longest + tokens + 16, threads: 1};
if (settings.type)
  Object.assign(options, {
    experimentalKvCacheKeyType: settings.type, experimentalKvCacheValueType: settings.type, flashAttention: true,
  });
const context = await model.createContext(options);
const strategy = ({size}) => [{start: settings.keep, end: settings.keep + size}];
const sequence = context.getSequence(settings.shift ? {contextShift: {size: settings.shift, strategy}} : {});
const written = {tokens: [], log_probs: []};
const times = [];
const clock = () => {
  const {user, system} = process.cpuUsage();
  times.push([(user + system) / 1e6, performance.now() / 1e3]);
};
for (const prompt of prompts) {
  await sequence.clearHistory();
  const found = [], logProbs = [];
  const greedily = {temperature: 0, yieldEogToken: true};
  clock();
  for await (const {token, confidence} of sequence.evaluateWithMetadata(prompt, {confidence: !timed}, greedily)) {
    clock();
    found.push(token);
    logProbs.push(Math.log(confidence));
    if (found.length >= tokens) break;
  }
  written.tokens.push(found);
  written.log_probs.push(logProbs);
}
Object.assign(written, {bytes, times: [times[0], times[1], times.at(-1)]});
fs.writeFileSync(out, JSON.stringify(written));
process.exit(0);
