/** Scores to begin with: each does what a method of the list does, as code that a reader can change. */

export const STARTING_POINTS = {
  "Recency": `// The newer an entry, the more it is worth.
function score(entry) {
  return entry.position;
}`,
  "H2O": `// All attention that an entry has received since it was written.
function score(entry) {
  return entry.received;
}`,
  "TOVA": `// The attention that the newest token pays to an entry.
function score(entry) {
  return entry.newest;
}`,
  "Key norm": `// The shorter its key, the more an entry is worth.
function score(entry) {
  return -norm(entry.key);
}`,
  "CAOTE": `// How far would the attention output move without the entry?
function prepare(entries) { // once for all entries of a head
  const total = sum(entries.map((entry) => entry.received));
  const weights = entries.map((entry) => entry.received / total);
  return { total, output: average(entries.map((entry) => entry.value), weights) };
}
function score(entry, { total, output }) {
  const weight = entry.received / total;
  return weight / (1 - weight) * distance(output, entry.value);
}`,
};
