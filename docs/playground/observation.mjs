/** What a block of queries saw, and where in the stream it stands; as reference/observation.py. */

import { logits } from "./attention.mjs";

/** Where in the token stream a block stands; all counts are tokens of the sequence. */
export class Clock {
  constructor(seen, block, prompt) {
    Object.assign(this, { seen, block, prompt });
  }

  /** Absolute positions of the block's tokens. */
  get positions() {
    return Array.from({ length: this.block }, (_, i) => this.seen - this.block + i);
  }

  /** Whether the block belongs to the prompt. */
  get prefilling() {
    return this.seen <= this.prompt;
  }

  /** Whether this is the last block of the prompt. */
  get prefillEnds() {
    return this.seen === this.prompt;
  }

  /** Tokens seen after the prompt. */
  get generated() {
    return Math.max(0, this.seen - this.prompt);
  }

  /** Tokens seen after the prompt when the block began. */
  get generatedBefore() {
    return Math.max(0, this.seen - this.block - this.prompt);
  }
}

/** What one block of queries saw in one layer, all present entries included. */
export class Observation {
  constructor(parts) {
    Object.assign(this, parts);
  }

  /** Logits of one query over the present entries of KV head g, as the model computes them. */
  logits(query, g) {
    return logits(query, this.keys[g], this.softcap);
  }

  /** Absolute positions of the block's queries. */
  get queryPositions() {
    return this.clock.positions;
  }
}
