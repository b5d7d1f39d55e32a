/** Reads a Hugging Face tokenizer.json whose tokens are words between blanks. */

export class Tokenizer {
  /** Read the parsed file; throw if its tokens are not words. */
  constructor(file) {
    const split = file.pre_tokenizer;
    const words = split?.type === "Split" && split.pattern.String === " " && split.behavior === "Removed";
    if (file.model.type !== "WordLevel" || !words || file.normalizer !== null) {
      throw new RangeError("the tokenizer must split at blanks and look words up");
    }
    this.ids = new Map(Object.entries(file.model.vocab));
    this.words = [];
    for (const [word, id] of this.ids) this.words[id] = word;
  }

  /** Return the ids of a text; throw if it is empty or a word is unknown. */
  encode(text) {
    const words = text.split(" ").filter((word) => word !== "");
    const unknown = words.find((word) => !this.ids.has(word));
    if (unknown !== undefined) throw new RangeError(`${JSON.stringify(unknown)} is no word of the model's vocabulary`);
    if (!words.length) throw new RangeError("the text must hold at least one word");
    return words.map((word) => this.ids.get(word));
  }

  /** Return the text of some ids. */
  decode(ids) {
    return ids.map((id) => this.words[id]).join(" ");
  }
}
