// Answers many requests of the conformance kit in one process: node answer_all.mjs PROGRAM FOLDER,
// where FOLDER holds requests.json, a list of [target, input, output], and gets codes.json.

import { readFileSync, writeFileSync } from "node:fs";
import process from "node:process";
import { pathToFileURL } from "node:url";

const [program, folder] = process.argv.slice(2);
const requests = JSON.parse(readFileSync(`${folder}/requests.json`, "utf8"));
const said = [];
process.stderr.write = (text) => said.push(text.trim());
const codes = [];
for (const [number, request] of requests.entries()) {
  process.argv.splice(2, Infinity, ...request);
  process.exitCode = 0;
  await import(`${pathToFileURL(program)}?${number}`); // a module runs once for every address
  codes.push([process.exitCode, said.at(-1) ?? ""]);
}
process.exitCode = 0;
writeFileSync(`${folder}/codes.json`, JSON.stringify(codes));
