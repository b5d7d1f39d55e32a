/** A tour of six steps, from a run to the one lost token that has to be protected, and to a score of one's own. */

import { element } from "./elements.mjs";

const LINE = 9; // tokens of a written line

/** Each step: what it says of the page, and the block that it shows; the first one plays the run. */
const STEPS = [
  [() => "A language model reads the program below and writes out every line that runs. Its cache keeps an entry of each token: green is kept, "
    + "paler is evicted by some heads, struck out by all."],
  [(page) => `The budget of ${page.budget} entries is used up. From here on H2O evicts an entry for every token that is read: the one with the least `
    + "attention so far. The newest half of the budget is protected.",
  (page) => Math.min(...page.left.run.left.flat().flatMap((left) => [...left.values()]))],
  [() => "Green lines lead from the token that was just read to those that it attends to, thicker for more attention. It finds the line of the "
    + "program that runs now, and so the model knows what to write.", (page) => Math.max(0, page.wrong - LINE)],
  [(page) => `One line later the model needs ${page.nameOf(page.lost)}, which some heads have evicted: the dashed red line leads to it. Compare the `
    + "five likeliest next tokens: without it another token is the likeliest, and the answer turns wrong.", (page) => page.wrong],
  [(page) => page.wrong >= 0 ? `Was the loss of ${page.nameOf(page.lost)} the cause? Protect it and run again.` : "The answer is right now: the loss of "
    + "this one token was the cause.", (page) => page.wrong],
  [() => "H2O did not know what this token is worth. Can you write a score that does? The lab runs yours on twenty programs.", (page) => page.wrong],
];
const MEND = 4; // the step at which the lost token can be protected

export class Tour {
  /** `state` is what the page shows on the tour. */
  constructor(page, state) {
    Object.assign(this, { page, state, index: -1 });
    this.text = element("p", { "aria-live": "polite" });
    const button = (text, act) => element("button", { type: "button", onclick: act }, text);
    this.back = button("Back", () => this.show(this.index - 1));
    this.next = button("Next", () => this.show(this.index + 1));
    this.mend = button("Protect the lost token and run again", () => this.protect());
    this.write = button("Write your own score", () => { this.root.hidden = true; page.lab.root.scrollIntoView(); page.lab.field.focus({ preventScroll: true }); });
    const end = button("End the tour", () => { this.root.hidden = true; });
    this.root = element("section", { class: "pg-tour", "aria-label": "Tour", hidden: true }, this.text,
      element("div", { class: "pg-row" }, this.back, this.next, this.mend, this.write, end));
  }

  /** Show a step; the run that it speaks of is computed first. */
  async show(index) {
    const { page } = this, [says, block] = STEPS[index];
    this.index = index;
    this.root.hidden = false;
    this.tell("The model is at work.");
    await page.take({ ...this.state, protect: index > MEND ? page.state.protect : "" });
    if (block) await page.compute();
    if (this.index !== index) return;
    this.tell(says(page));
    if (!block) return page.demonstrate(page.budget - page.prompt.length);
    page.go(block(page));
    page.reveal();
    if (index >= MEND - 1 && page.narrow) page.left.text.follow(page.lost); // a phone shows few lines
  }

  tell(text) {
    this.text.replaceChildren(element("strong", {}, `${this.index + 1} of ${STEPS.length} `), text);
    this.back.disabled = this.index === 0;
    this.write.hidden = this.index < STEPS.length - 1;
    this.next.hidden = !this.write.hidden;
    this.mend.hidden = this.index !== MEND || this.page.lost < 0;
  }

  async protect() {
    this.page.protect(this.page.lost);
    this.tell("The model runs again.");
    await this.page.compute();
    if (this.index === MEND) this.tell(STEPS[MEND][0](this.page));
  }
}
