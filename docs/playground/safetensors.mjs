/** Reads and writes safetensors: 8 bytes with the length of a JSON header, the header, the numbers. */

/** Turns the bytes of a tensor into an array of numbers. */
const READERS = {
  F64: (buffer) => new Float64Array(buffer),
  F32: (buffer) => new Float32Array(buffer),
  F16: (buffer) => Float32Array.from(new Uint16Array(buffer), halfToNumber),
  BF16: (buffer) => new Float32Array(Uint32Array.from(new Uint16Array(buffer), (half) => half << 16).buffer),
  I64: (buffer) => Array.from(new BigInt64Array(buffer), Number),
  I32: (buffer) => new Int32Array(buffer),
  U8: (buffer) => new Uint8Array(buffer),
  BOOL: (buffer) => Array.from(new Uint8Array(buffer), Boolean),
};

/** Value of the 16 bits of an IEEE half. */
function halfToNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
}

/** Return the tensors `{ shape, data }` by name, and the metadata. */
export function readSafetensors(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const start = 8 + Number(view.getBigUint64(0, true));
  const { __metadata__: metadata = {}, ...entries } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(entries)) {
    if (!Object.hasOwn(READERS, dtype)) throw new RangeError(`tensor ${name} has the unsupported dtype ${dtype}`);
    tensors[name] = { shape, data: READERS[dtype](bytes.slice(start + from, start + to).buffer) };
  }
  return { tensors, metadata };
}

/** Return a file of float64 tensors `{ shape, data }` by name. */
export function writeSafetensors(tensors) {
  const header = {};
  let size = 0;
  for (const [name, { shape, data }] of Object.entries(tensors)) {
    header[name] = { dtype: "F64", shape, data_offsets: [size, size + 8 * data.length] };
    size += 8 * data.length;
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padded = Math.ceil(text.length / 8) * 8, bytes = new Uint8Array(8 + padded + size).fill(32);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(padded), true);
  bytes.set(text, 8);
  let at = 8 + padded;
  for (const { data } of Object.values(tensors)) {
    bytes.set(new Uint8Array(Float64Array.from(data).buffer), at);
    at += 8 * data.length;
  }
  return bytes;
}
