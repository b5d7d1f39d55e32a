/** Jump programs: the result of every line says which line runs next; as reference/tasks/jumps.py. */

const END = "\n";
const LABEL = /^[LMN]\d$/;
const MODULO = "sums modulo 10";
const LINE = /^([LMN]\d)\s+([a-x])\s*=\s*\2\s*\+\s*([a-x])(?:\s*,.*)?$/;
const START = /^start at ([LMN]\d)$/;
const FACT = /^([a-x])\s*=\s*(\d)$/;

export const jumps = {
  title: "Jump programs",
  says: "The model runs a program, line by line. “L7 c . + f . = . .” is line 7: it adds f to c, modulo 10, and the sum is the number of "
    + "the line that runs next; L0 halts. The model writes every line again with its numbers.",
  asks: "Change first values, lines, or the line that runs first.",

  /** Whether a word begins a line on the page; null where lines are as long as the page is wide. */
  begins: (word) => LABEL.test(word),

  /** Turn a prompt into lines for people. */
  readable(prompt) {
    const [, program, first] = ` ${prompt} `.split(` ${END} `);
    const [stated, ...lines] = program.split(/ (?=[LMN]\d )/);
    const facts = stated.split(" ").map((fact) => `${fact[0]} = ${fact.slice(1)}`);
    const written = lines.map((line) => {
      const [label, x, , , y] = line.split(" ");
      return `${label}  ${x} = ${x} + ${y}, then go to ${label[0]}<${x}>`;
    });
    return [MODULO, facts.join(", "), ...written, `start at ${first.trim()}`].join("\n");
  },

  /** Turn such lines into a prompt; throw if a line has another form. */
  prompt(text) {
    const facts = [], lines = [];
    let first = null;
    for (const line of text.split("\n").map((each) => each.trim())) {
      const found = { line: LINE.exec(line), start: START.exec(line) };
      if (line === "" || line === MODULO) continue;
      if (found.start) first = found.start[1];
      else if (found.line) lines.push(`${found.line[1]} ${found.line[2]} . + ${found.line[3]} . = . .`);
      else facts.push(...line.split(",").map((part) => readFact(part.trim(), line)));
    }
    if (first === null) throw new RangeError("a line must say where to begin, such as “start at L4”");
    return [END, ...facts, ...lines, END, first].join(" ");
  },
};

/** Read a register's first value. */
function readFact(part, line) {
  const found = FACT.exec(part);
  if (!found) {
    throw new RangeError(`${JSON.stringify(line)} must be like “c = 4, f = 7”, “L7 c = c + f” or “start at L4”`);
  }
  return `${found[1]}${found[2]}`;
}
