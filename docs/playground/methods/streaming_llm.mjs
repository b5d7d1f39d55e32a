/** StreamingLLM: attention sinks and a sliding window; as reference/methods/streaming_llm.py. */

import { Method, flag, requireBudget, whole } from "../method.mjs";
import { Edges, Entries, EveryBlock, Full, Policy } from "../policy.mjs";
import { Recency } from "./full.mjs";

/** Keep the first tokens, which soak up attention, and the newest ones. */
export class StreamingLLM extends Method {
  static id = "streaming_llm";
  static title = "StreamingLLM";
  static options = {
    sinks: whole(4, 0, 32, "First tokens of the text that are protected."),
    every: whole(1, 1, 32, "Generated tokens between two evictions."),
    reposition: flag(false, "Rotate keys and queries to their index inside the cache."),
  };

  policy(budget) {
    budget = requireBudget(StreamingLLM.id, budget);
    if (!(this.sinks >= 0 && this.sinks < budget)) {
      throw new RangeError(`sinks = ${this.sinks} must be at least 0 and smaller than budget = ${budget}`);
    }
    return new Policy({
      name: StreamingLLM.id,
      score: new Recency(),
      schedule: new EveryBlock(this.every),
      protect: new Edges({ sinks: this.sinks, recent: budget - this.sinks }), // [StreamingLLM 1]
      budget: new Entries(budget),
      precision: new Full(),
      reposition: this.reposition,
    });
  }
}
