/**
 * Where keys or values live, each vector at its own precision; as reference/stored_vectors.py.
 *
 * A quantised vector is held as attention reads it, Δ·code + z, with the width of its codes beside it:
 * what a browser computes is exact, what it holds in memory is not smaller.
 */

import { FULL_BITS, dequantize, quantize } from "./quantization.mjs";
import { take } from "./selection.mjs";

/** The vectors `[g][j]` of one layer, and the bits per element of each. */
export class StoredVectors {
  constructor(vectors, bits) {
    this.vectors = vectors;
    this.bits = bits;
  }

  /** Return nothing stored yet. */
  static empty(kvHeads) {
    const nothing = () => Array.from({ length: kvHeads }, () => []);
    return new StoredVectors(nothing(), nothing());
  }

  /** Add entries at full precision at the end of every head. */
  append(vectors) {
    return new StoredVectors(
      this.vectors.map((own, g) => [...own, ...vectors[g]]),
      this.bits.map((own, g) => [...own, ...vectors[g].map(() => FULL_BITS)]),
    );
  }

  /** Return the storage of these entries alone. */
  take(keep) {
    return new StoredVectors(take(this.vectors, keep), take(this.bits, keep));
  }

  /** Store the marked entries `[g][j]` in groups of `group` channels of one token. */
  quantizeTokens(entries, bits, group) {
    const read = (vector) => dequantize(quantize(vector, bits, group));
    return this.replaced(entries, bits, (vectors) => vectors.map(read));
  }

  /** Store the marked entries in blocks of `group` consecutive tokens of one channel. */
  quantizeChannels(entries, bits, group) {
    return this.replaced(entries, bits, (vectors) => {
      if (vectors.length % group) {
        throw new RangeError(`entries to quantise per head must be a multiple of group = ${group}`);
      }
      const read = vectors.map((vector) => new Float64Array(vector.length));
      for (let channel = 0; channel < (vectors[0]?.length ?? 0); channel++) {
        const column = dequantize(quantize(vectors.map((vector) => vector[channel]), bits, group));
        column.forEach((element, row) => { read[row][channel] = element; });
      }
      return read;
    });
  }

  /** Return stored vectors in which the marked entries of every head are what `change` makes of them. */
  replaced(entries, width, change) {
    const vectors = this.vectors.map((own) => [...own]), bits = this.bits.map((own) => [...own]);
    entries.forEach((marks, g) => {
      const chosen = [...marks.keys()].filter((j) => marks[j]);
      change(chosen.map((j) => vectors[g][j])).forEach((vector, place) => {
        vectors[g][chosen[place]] = vector;
        bits[g][chosen[place]] = width;
      });
    });
    return new StoredVectors(vectors, bits);
  }
}
