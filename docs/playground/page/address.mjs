/** The state that an address holds: what is shared by copying it. */

/** Names of the entries, and what stands for a missing one. */
export const STANDARD = {
  method: "streaming_llm", with: "", budget: "70%", problem: "", text: "", protect: "", layer: "0", head: "0", token: "", step: "",
  score: "", share: "50",
};

/** Entries of a state that a part of an address names. */
function entries(part) {
  return Object.fromEntries([...new URLSearchParams(part.slice(1))].filter(([name]) => Object.hasOwn(STANDARD, name)));
}

/** Read the state of an address; the part behind # wins over the part behind ?. */
export function readAddress({ search, hash }) {
  return { ...STANDARD, ...entries(search), ...entries(hash) };
}

/** Return the part behind # that makes an address hold a state. */
export function writeAddress(state, { search }) {
  const otherwise = { ...STANDARD, ...entries(search) };
  const changed = Object.entries(state).filter(([name, value]) => value !== otherwise[name]);
  return new URLSearchParams(changed.length ? changed : { method: state.method }).toString();
}

/** Positions that a list such as "12,31" names. */
export function readPositions(text) {
  const numbers = text.split(",").filter((part) => /^\d{1,5}$/.test(part)).map(Number);
  return [...new Set(numbers)].sort((a, b) => a - b);
}
