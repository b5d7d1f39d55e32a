/**
 * Asymmetric uniform quantisation; as reference/quantization.py.
 *
 * A group of elements shares one scale Δ and one zero point z, both rounded to float16; an element
 * is a code of `bits` bits.
 */

export const WIDTHS = [2, 3, 4, 8];
export const FULL_BITS = 16;
const LARGEST_HALF = 65504;

/** Round to the nearest float16, halves to even. */
export function toHalf(x) {
  if (x === 0 || !Number.isFinite(x)) return x;
  const exponent = Math.max(Math.floor(Math.log2(Math.abs(x))), -14);
  // log2 may be off by one next to a power of two; a finer grid there still holds the power itself.
  const grid = 2 ** ((2 ** exponent > Math.abs(x) && exponent > -14 ? exponent - 1 : exponent) - 10);
  const rounded = roundToEven(x / grid) * grid;
  return Math.abs(rounded) > LARGEST_HALF ? Math.sign(x) * Infinity : rounded;
}

/** Round to a whole number, halves to even. */
export function roundToEven(x) {
  const below = Math.floor(x);
  if (x - below !== 0.5) return Math.round(x);
  return below % 2 === 0 ? below : below + 1;
}

/** Quantise a vector in consecutive groups; a constant group gets scale 0 and codes 0. */
export function quantize(x, bits, group) {
  if (!WIDTHS.includes(bits)) throw new RangeError(`bits = ${bits} must be one of ${WIDTHS.join(", ")}`);
  if (!(group >= 1)) throw new RangeError(`group = ${group} must be at least 1`);
  const codes = new Uint8Array(x.length), scale = [], zero = [], largestCode = 2 ** bits - 1;
  for (let start = 0; start < x.length; start += group) {
    const part = x.slice(start, start + group);
    const low = Math.min(...part), high = Math.max(...part);
    const spread = (high - low) / largestCode; // [KIVI 1]
    if (!(Math.abs(low) <= LARGEST_HALF && Math.abs(high) <= LARGEST_HALF && spread < LARGEST_HALF)) {
      throw new RangeError("x must be finite and within the range of float16 to be quantised");
    }
    const step = toHalf(spread), offset = toHalf(low);
    part.forEach((element, place) => {
      const steps = step > 0 ? (element - offset) / step : 0;
      codes[start + place] = roundToEven(Math.min(Math.max(steps, 0), largestCode)); // [KIVI 2]
    });
    scale.push(step);
    zero.push(offset);
  }
  return { codes, scale, zero, group };
}

/** Return x̂ = Δ·code + z. */
export function dequantize({ codes, scale, zero, group }) {
  return Float64Array.from(codes, (code, place) => {
    const own = Math.floor(place / group);
    return scale[own] * code + zero[own]; // [KIVI 3]
  });
}

/** Write the low `bits` bits of each code one after another into bytes, lowest bit first. */
export function pack(codes, bits) {
  const packed = new Uint8Array(Math.ceil(codes.length * bits / 8));
  for (let place = 0; place < codes.length * bits; place++) {
    const bit = (codes[Math.floor(place / bits)] >> (place % bits)) & 1;
    packed[place >> 3] |= bit << (place & 7);
  }
  return packed;
}
