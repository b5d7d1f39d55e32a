/** Chained arithmetic: every line defines a number by earlier ones; as reference/tasks/reasoning.py. */

const END = "\n";
const SHOWN = "↵";

export const reasoning = {
  title: "Chained arithmetic",
  one: "Arithmetic",
  says: "The model solves chained arithmetic, modulo 10. “l + f = . o” makes o the sum of l and f; “? q” asks for q. The model writes "
    + "every line that it needs again, with its numbers.",
  asks: `Edit the text: words of the model’s vocabulary between blanks, ${SHOWN} for a new line.`,

  begins: null,

  readable(prompt) {
    return prompt.replaceAll(END, SHOWN);
  },

  prompt(text) {
    const words = text.replaceAll(SHOWN, END).replaceAll(END, ` ${END} `).split(/[^\S\n]+/);
    return words.filter((word) => word !== "").join(" ");
  },
};
