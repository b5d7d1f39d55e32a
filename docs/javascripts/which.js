"use strict";

// The form of "Which method for my model?": it shows one case, and writes the command for it.
(() => {
  const { sizes, planned, commands } = JSON.parse(document.getElementById("kvlab-known").textContent);
  const form = document.getElementById("kvlab-which"), answer = document.getElementById("kvlab-answer");
  const fits = answer.querySelector("p"), code = answer.querySelector("code"), missing = answer.querySelector("ul");
  const cases = [...document.querySelectorAll(".kvlab-case")];
  const LONGEST = 4096; // tokens of a window: a novel has twelve of them
  const USUAL = 50; // percent, where memory decides nothing

  const counted = (number) => Math.round(number).toLocaleString("en-US");
  const mib = (bytes) => bytes < 2 ** 30 ? `${counted(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  const quoted = (word) => /^[\w./@:+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

  /** Say what the full cache takes, and how many percent of it the memory holds. */
  function budgetOf({ each, tokens, texts, memory }) {
    if (!each) return { percent: USUAL, told: `The sizes of your model are not known here, so the command takes ${USUAL} % of the entries.` };
    const full = each * tokens * texts, share = memory * 2 ** 20 / full;
    const told = `The full cache of ${counted(texts)} × ${counted(tokens)} tokens takes ${mib(full)} in 16 bits.`;
    if (share >= 1) return { percent: USUAL, whole: true, told: `${told} It fits: keep it, since nothing is lost. To see what half of the entries would cost:` };
    const percent = Math.max(1, Math.floor(100 * share));
    return { percent, told: `${told} Your memory holds ${percent} % of it: a budget of ${counted(Math.ceil(tokens * percent / 100))} entries of each text.` };
  }

  /** Say what about this wish was not measured. */
  function unknown({ chosen, tokens, model, percent, measured }) {
    const found = [];
    const near = measured.map((x) => `${x} %`).join(", ");
    if (!measured.includes(percent)) found.push(`A budget of ${percent} %: measured were ${near}; below are the figures of the nearest.`);
    if (tokens > 1.5 * Number(chosen.dataset.tokens)) found.push(`Texts of ${counted(tokens)} tokens: those measured had about ${counted(Number(chosen.dataset.tokens))}.`);
    if (tokens > LONGEST) found.push(`The command reads windows of ${counted(LONGEST)} tokens; for longer ones give --text a file of your own.`);
    if (model !== "smollm2") found.push(`Your model: measured was ${chosen.dataset.where.split(",")[0]}.`);
    return found;
  }

  /** Write the command that estimates memory and time. */
  function plan(shape, { tokens, texts, percent }) {
    const prompt = Math.floor(tokens / 4);
    return `kvlab plan --model ${shape} --prompt ${prompt} --length ${tokens - prompt} --batch ${texts} --budget ${percent}%`;
  }

  function write() {
    code.parentElement.hidden = !form.checkValidity();
    if (code.parentElement.hidden) {
      fits.textContent = "A field is empty or out of range: tokens are whole numbers from 16 on, texts and MiB from 1 on.";
      return;
    }
    const given = Object.fromEntries(new FormData(form));
    const model = given.model.trim() || "MODEL", tokens = Number(given.tokens);
    const chosen = cases.find((each) => each.dataset.case === given.case);
    const { percent, told } = budgetOf({ each: sizes[given.sizes], tokens, texts: Number(given.texts), memory: Number(given.memory) });
    const blocks = [...chosen.querySelectorAll("[data-budget]")], measured = blocks.map((block) => Number(block.dataset.budget));
    const nearest = measured.reduce((best, each) => Math.abs(each - percent) < Math.abs(best - percent) ? each : best);
    const window = Math.min(tokens, LONGEST);
    const places = { model: quoted(model), window, prompt: Math.floor(window / 4), budget: `${percent}%` };
    for (const each of cases) {
      each.hidden = each !== chosen;
      each.classList.add("kvlab-chosen");
    }
    for (const block of blocks) block.hidden = Number(block.dataset.budget) !== nearest;
    fits.textContent = told;
    const lines = [commands[given.case].replace(/\{(\w+)\}/g, (_, name) => places[name])];
    if (planned.includes(given.sizes)) lines.push(plan(given.sizes, { tokens, texts: Number(given.texts), percent }));
    code.textContent = lines.join("\n");
    chosen.append(missing);
    missing.replaceChildren(...unknown({ chosen, tokens, model, percent, measured }).map((text) => {
      const item = document.createElement("li");
      item.textContent = `Not known: ${text[0].toLowerCase()}${text.slice(1)}`;
      return item;
    }));
  }

  form.addEventListener("input", write);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = answer.hidden = false;
  write();
})();
