/** KIVI: keys per channel, values per token; as reference/methods/kivi.py. */

import { checkAtLeast, checkChoice } from "../checks.mjs";
import { Method, refuseBudget, whole } from "../method.mjs";
import { EveryBlock, Nobody, Policy, Unlimited } from "../policy.mjs";
import { FULL_BITS, WIDTHS } from "../quantization.mjs";
import { Recency } from "./full.mjs";

/** Quantise everything that is older than the residual window. */
export class KeysPerChannelValuesPerToken {
  constructor(keyBits, valueBits, group, residual) {
    Object.assign(this, { keyBits, valueBits, group, residual });
    this.says = `What is older than the newest ${residual} tokens is kept at ${keyBits} bits (keys) and ${valueBits} bits (values).`;
  }

  store(cache, seen, candidates, keep) {
    const d = seen.keys[0][0].length, n = cache.length;
    if (d % this.group) throw new RangeError(`group = ${this.group} must divide the head dimension ${d}`);
    const complete = Math.floor(n / this.residual) * this.residual; // [KIVI 4]
    const marked = (bits, end) => bits.map((own) => own.map((width, j) => j < end && width === FULL_BITS));
    const keys = cache.keys.quantizeChannels(marked(cache.keys.bits, complete), this.keyBits, this.group);
    const values = cache.values.quantizeTokens(
      marked(cache.values.bits, n - this.residual), this.valueBits, this.group); // [KIVI 5]
    return { cache: cache.with({ keys, values }), keep };
  }
}

/** Evict nothing; store keys and values in fewer bits. */
export class KIVI extends Method {
  static id = "kivi";
  static title = "KIVI";
  static budgeted = false;
  static options = {
    key_bits: whole(4, 2, 8, "Bits of a key's codes: 2, 3, 4 or 8."),
    value_bits: whole(4, 2, 8, "Bits of a value's codes: 2, 3, 4 or 8."),
    group: whole(32, 4, 32, "Elements that share a scale: tokens of a channel for keys, channels of a token for values."),
    residual: whole(128, 4, 128, "Newest tokens at full precision: fewer than this for keys, exactly this for values."),
  };

  constructor(given) {
    super(given);
    checkAtLeast(1, { group: this.group, residual: this.residual });
    checkChoice(WIDTHS, { key_bits: this.key_bits, value_bits: this.value_bits });
    if (this.residual % this.group) {
      throw new RangeError(`residual = ${this.residual} must be a multiple of group = ${this.group}`);
    }
  }

  policy(budget = null) {
    refuseBudget(KIVI.id, budget);
    return new Policy({
      name: KIVI.id,
      score: new Recency(),
      schedule: new EveryBlock(),
      protect: new Nobody(),
      budget: new Unlimited(),
      precision: new KeysPerChannelValuesPerToken(this.key_bits, this.value_bits, this.group, this.residual),
    });
  }
}
