// Prints the scores with which the lab begins, as JSON: their code by name, as specifications hold it.

import process from "node:process";

import { encode } from "../../docs/playground/methods/yours.mjs";
import { STARTING_POINTS } from "../../docs/playground/page/starting_points.mjs";

const codes = Object.entries(STARTING_POINTS).map(([name, code]) => [name, encode(code)]);
process.stdout.write(JSON.stringify(Object.fromEntries(codes)));
