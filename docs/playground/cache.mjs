/** The cache of one layer: keys, values, positions and state, which are evicted together; as reference/cache.py. */

import { take } from "./selection.mjs";
import { StoredVectors } from "./stored_vectors.mjs";

/** What a score remembers in one layer: `entries[name][g]` per cached entry, `stream` of the tokens. */
export class State {
  constructor(entries = {}, stream = {}) {
    this.entries = entries;
    this.stream = stream;
  }

  /** Return a state in which some arrays of the entries are replaced. */
  withEntries(arrays) {
    return new State({ ...this.entries, ...arrays }, this.stream);
  }

  /** Return a state in which some values of the stream are replaced. */
  withStream(values) {
    return new State(this.entries, { ...this.stream, ...values });
  }
}

/** Entries of one layer in ascending position, per KV head. Nothing is changed in place. */
export class LayerCache {
  constructor(keys, values, positions, state) {
    Object.assign(this, { keys, values, positions, state });
  }

  /** Return a cache without entries; `columns` names what a score remembers of each. */
  static empty(kvHeads, columns) {
    const nothing = () => Array.from({ length: kvHeads }, () => []);
    const entries = Object.fromEntries(columns.map((name) => [name, nothing()]));
    return new LayerCache(StoredVectors.empty(kvHeads), StoredVectors.empty(kvHeads), nothing(), new State(entries));
  }

  /** Entries per KV head. */
  get length() {
    return this.positions[0].length;
  }

  /** Return a cache with the same entries and another part. */
  with(parts) {
    const { keys, values, positions, state } = { ...this, ...parts };
    return new LayerCache(keys, values, positions, state);
  }

  /** Add a block of entries; all that is remembered of a new entry starts at 0. */
  append(keys, values, positions) {
    const zeros = positions.map(() => 0);
    const entries = mapValues(this.state.entries, (column) => column.map((own) => [...own, ...zeros]));
    return new LayerCache(
      this.keys.append(keys),
      this.values.append(values),
      this.positions.map((own) => [...own, ...positions]),
      new State(entries, this.state.stream),
    );
  }

  /** Return the cache of these entries alone: the only way by which an entry is evicted. */
  compact(keep) {
    const entries = mapValues(this.state.entries, (column) => take(column, keep));
    return new LayerCache(
      this.keys.take(keep),
      this.values.take(keep),
      take(this.positions, keep),
      new State(entries, this.state.stream),
    );
  }
}

/** Apply a function to every value of an object. */
function mapValues(object, change) {
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value)]));
}
