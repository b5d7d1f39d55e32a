/**
 * The registry: method names, and the syntax in which compositions are written; as
 * reference/methods/__init__.py.
 *
 * `name`, `wrapper:name`, `name@option=value,option=value`: "lazy_eviction", "caote:h2o@recent=8";
 * "random:caote:h2o" is the matched control of "caote:h2o".
 */

import { NotImplemented, WithSafe } from "../method.mjs";
import { Unlimited } from "../policy.mjs";
import { AhaKV } from "./ahakv.mjs";
import { Caote, FastCaote } from "./caote.mjs";
import { DesireKV } from "./desirekv.mjs";
import { FullCache } from "./full.mjs";
import { H2O } from "./h2o.mjs";
import { KIVI } from "./kivi.mjs";
import { Knorm } from "./knorm.mjs";
import { LazyEviction } from "./lazy_eviction.mjs";
import { RaaS } from "./raas.mjs";
import { MatchedControl, Random } from "./random.mjs";
import { RKV } from "./rkv.mjs";
import { SnapKV } from "./snapkv.mjs";
import { StreamingLLM } from "./streaming_llm.mjs";
import { TOVA } from "./tova.mjs";
import { Yours } from "./yours.mjs";

const named = (classes) => Object.fromEntries(classes.map((method) => [method.id, method]));

/** Methods that stand alone, in the order in which the page shows them. */
export const METHODS = named([
  FullCache, StreamingLLM, H2O, TOVA, SnapKV, Knorm, RaaS, RKV, KIVI, LazyEviction, DesireKV, AhaKV, Random, Yours,
]);

const BEFORE_ANOTHER = named([Caote, FastCaote, MatchedControl]);

/** What may stand before a method: what wraps its score, and what evicts at random under its protection. */
export const WRAPPERS = {
  caote: "CAOTE applied to it",
  fast_caote: "FastCAOTE applied to it",
  random: "its control: at random",
  "random:caote": "control of CAOTE applied to it",
  "random:fast_caote": "control of FastCAOTE applied to it",
};

/** The classes that a wrapper names, the outermost first. */
const around = (wrapper) => (wrapper === null ? [] : wrapper.split(":").map((name) => BEFORE_ANOTHER[name]));

const MOST = 1000; // entries: more than the page's methods protect

/** Return the matched control of a method: random eviction under its protection, schedule and budget; null if there is none. */
export function controlOf(spec) {
  const { wrapper, name } = read(spec);
  const random = wrapper === null ? name === Random.id : around(wrapper)[0] === MatchedControl;
  return !random && evicts(spec) ? `${MatchedControl.id}:${spec}` : null;
}

/** Whether a method runs a reader's code; its control does not. */
export function carriesCode(spec) {
  return /^(?:(?:fast_)?caote:)?yours(?:@|$)/.test(spec);
}

/** Whether a method evicts anything; throws if it cannot be built. */
export function evicts(spec) {
  return !(get(spec, takesBudget(spec) ? MOST : null).budget instanceof Unlimited);
}

/** Build the policy that `spec` names. */
export function get(spec, budget = null) {
  return parse(spec).policy(budget);
}

/** Return the method, with its hyper-parameters, that `spec` names. */
export function parse(spec) {
  const { wrapper, name, options } = read(spec), rest = { ...options };
  const take = ({ options: own }) => {
    const taken = Object.entries(rest).filter(([option]) => option in own);
    taken.forEach(([option]) => delete rest[option]);
    return Object.fromEntries(taken);
  };
  const outer = around(wrapper), given = outer.map(take); // an option belongs to the outermost that has it
  const base = new METHODS[name](take(METHODS[name]));
  const method = outer.reduceRight((inner, wrapping, place) => new wrapping(given[place], inner), base);
  return Object.keys(rest).length ? new WithSafe(rest, method) : method;
}

/** Split `spec` into wrapper (or null), name and options; throw if one is unknown. */
export function read(spec) {
  const [composition, ...written] = spec.split("@");
  const parts = composition.split(":"), name = parts.pop(), wrapper = parts.join(":") || null;
  if (wrapper !== null && !Object.hasOwn(WRAPPERS, wrapper)) {
    throw new RangeError(`method ${wrapper} wraps nothing; wrappers are ${Object.keys(WRAPPERS).join(", ")}`);
  }
  if (!Object.hasOwn(METHODS, name)) {
    throw new NotImplemented(`unknown method ${name}; known here are ${Object.keys(METHODS).join(", ")}`);
  }
  const options = readOptions(written.join("@"));
  const allowed = optionsOf(wrapper, name);
  for (const option of Object.keys(options)) {
    if (!Object.hasOwn(allowed, option)) {
      throw new RangeError(`unknown option ${option} of ${composition}; allowed are ${Object.keys(allowed).join(", ") || "none"}`);
    }
  }
  return { wrapper, name, options };
}

/** Write what `read` reads. */
export function write({ wrapper, name, options }) {
  const pairs = Object.entries(options).map(([option, value]) => `${option}=${value ?? "none"}`);
  return (wrapper === null ? name : `${wrapper}:${name}`) + (pairs.length ? `@${pairs.join(",")}` : "");
}

/** Return the options of a composition; those of a wrapper hide those of what it wraps. */
export function optionsOf(wrapper, name) {
  const wrapping = around(wrapper).map(({ options }) => options).reverse();
  return Object.assign({ ...METHODS[name].options }, ...wrapping, safeOptions(name));
}

/** The options of every method that a method does not have itself. */
function safeOptions(name) {
  const further = Object.entries(WithSafe.options).filter(([option]) => !(option in METHODS[name].options));
  return Object.fromEntries(METHODS[name].budgeted ? further : []);
}

/** Whether a method is given a budget. */
export function takesBudget(spec) {
  return METHODS[read(spec).name].budgeted;
}

/** Read `option=value` pairs that commas separate. */
function readOptions(written) {
  const pairs = written.split(",").filter(Boolean);
  const malformed = pairs.find((pair) => !pair.includes("="));
  if (malformed !== undefined) throw new RangeError(`${malformed} must have the form option=value`);
  return Object.fromEntries(pairs.map((pair) => {
    const at = pair.indexOf("=");
    return [pair.slice(0, at), readValue(pair.slice(at + 1))];
  }));
}

/** Read a value: true, false, a number, or a word. */
export function readValue(text) {
  const words = { true: true, false: false, inf: Infinity };
  if (Object.hasOwn(words, text.toLowerCase())) return words[text.toLowerCase()];
  return text.trim() !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}
