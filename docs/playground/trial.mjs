/** One problem under many policies: each writes until its first wrong token, and the prompt is read once for all. */

import { generate } from "./generate.mjs";

/** A model that remembers what its layers handed over for a prompt: no method evicts before the prompt was read. */
export class PromptOnce {
  constructor(model) {
    Object.assign(this, { model, config: model.config, handed: null });
  }

  forward(tokens, first, attend) {
    if (first > 0) return this.model.forward(tokens, first, attend);
    if (this.handed === null) {
      this.handed = [];
      this.logits = this.model.forward(tokens, first, (layer, ...given) => {
        this.handed[layer] = given;
        return attend(layer, ...given);
      });
    } else this.handed.forEach((given, layer) => attend(layer, ...given));
    return this.logits;
  }

  rotate(vector, position) {
    return this.model.rotate(vector, position);
  }
}

/** Return the place of the first token that is not the solution's, −1 if all are right; `told` is called at every token. */
export function firstWrong(model, policy, prompt, solution, told = () => {}) {
  let place = 0;
  for (const { next } of generate(model, policy, prompt, solution.length, model.config.end)) {
    told();
    if (next !== solution[place]) return place;
    place++;
  }
  return place === solution.length ? -1 : place;
}
