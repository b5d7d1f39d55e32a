/** Block-wise prefill and greedy decoding under a policy; as reference/generate.py. */

import { groupHeads } from "./attention.mjs";
import { Clock } from "./observation.mjs";
import { emptyCache, step } from "./step.mjs";

/** Return an empty session for a prompt of so many tokens; throw if the policy cannot hold what it protects. */
export function start(model, policy, prompt) {
  policy.check(prompt);
  const { layers, kvHeads } = model.config;
  const caches = Array.from({ length: layers }, () => emptyCache(policy, kvHeads));
  return { model, policy, caches, prompt, confidence: [] };
}

/**
 * Feed a block of tokens; return the logits after the last of them and the next session.
 *
 * `session` is left as it is. `watch(layer, result)` is called after the step of every layer.
 */
export function advance(session, tokens, confidence = NaN, watch = () => {}) {
  const { model, policy } = session, caches = [...session.caches], first = session.confidence.length;
  const confidences = [...session.confidence, ...tokens.map(() => confidence)];
  const clock = new Clock(first + tokens.length, tokens.length, session.prompt);
  const logits = model.forward(tokens, first, (layer, queries, keys, values) => {
    const result = step(policy, caches[layer], {
      clock,
      layer,
      queries: groupHeads(queries, keys.length),
      keys,
      values,
      confidence: confidences,
      rotate: (vector, by) => model.rotate(vector, by),
    });
    caches[layer] = result.cache;
    watch(layer, result);
    return result.output.flat();
  });
  return { logits, session: { ...session, caches, confidence: confidences } };
}

/** Return the likeliest token, the first of equally likely ones, and its probability. */
export function choose(logits) {
  const [{ token, probability }] = likeliest(logits, 1);
  return { token, confidence: probability };
}

/** Return the `most` likeliest tokens with their probabilities, the first of equally likely ones first. */
export function likeliest(logits, most) {
  const largest = Math.max(...logits), weights = Array.from(logits, (x) => Math.exp(x - largest));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a] || a - b);
  return order.slice(0, most).map((token) => ({ token, probability: weights[token] / sum }));
}

/**
 * Continue a prompt greedily: after every block that the model reads, yield `{ tokens, next, logits }`, the
 * ids of the block, the id that the model writes after it, and the logits that it was chosen by.
 *
 * Ends when `stop` was written, or `maxNewTokens` tokens were.
 */
export function* generate(model, policy, prompt, maxNewTokens, stop, watch) {
  let session = start(model, policy, prompt.length), tokens = prompt, confidence = NaN;
  for (let written = 1; ; written++) {
    const read = advance(session, tokens, confidence, watch);
    const next = choose(read.logits);
    session = read.session;
    yield { tokens, next: next.token, logits: read.logits };
    if (next.token === stop || written >= maxNewTokens) return;
    tokens = [next.token];
    confidence = next.confidence;
  }
}
