/** Jump programs: the result of every line says which line runs next; as reference/tasks/jumps.py. */

const END = "\n";
const LABEL = /^[LMN]\d$/;
const VALUE = /^[a-x]\d$/;
const MODULO = "sums modulo 10";
const LINE = /^([LMN]\d)\s+([a-x])\s*=\s*\2\s*\+\s*([a-x])(?:\s*,.*)?$/;
const START = /^start at ([LMN]\d)$/;
const FACT = /^([a-x])\s*=\s*(\d)$/;

export const jumps = {
  title: "Jump programs",
  one: "Program",
  says: "The model runs a program, line by line. “L7 c = c + f, then go to L<c>” adds f to c, modulo 10, and the sum is the number of "
    + "the line that runs next; L0 halts. The model writes every line that runs with its numbers: “L7 c (4) + f (2) = 6 → c=6”.",
  asks: "Change first values, lines, or the line that runs first.",

  /** Whether a word begins a line on the page; null where lines are as long as the page is wide. */
  begins: (word) => LABEL.test(word),

  /** What people read in the place of each token: lines of the program as they are meant, written ones with their numbers. */
  readTokens(words) {
    let place = NaN, label = "", register = ""; // place of a token in its line
    return words.map((word, position) => {
      place = word === END ? NaN : LABEL.test(word) ? 0 : place + 1;
      if (place === 0) label = word;
      if (place === 1) register = word;
      if (place === 0 && words[position - 1] === END) return `start at ${word}`;
      if (VALUE.test(word)) return { 2: `(${word[1]})`, 5: `(${word[1]})` }[place] ?? `${place === 8 ? "→ " : ""}${word[0]}=${word[1]}`;
      if (words[position - place + 2] !== ".") return word;
      return { 2: `= ${register}`, 5: ", then", 6: "go", 7: "to", 8: `${label[0]}<${register}>` }[place] ?? word;
    });
  },

  /** Name the line in which a token stands. */
  placeOf(words, position) {
    const label = words.slice(0, position).findLast((word) => word === END || LABEL.test(word));
    return LABEL.test(label) ? ` in line ${label}` : "";
  },

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
