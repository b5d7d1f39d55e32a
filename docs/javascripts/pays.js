"use strict";

// The form of "When does eviction pay?": what bytes alone allow, and the command that plans more.
(() => {
  const { shapes, devices, memoryShare } = JSON.parse(document.getElementById("kvlab-sizes").textContent);
  const form = document.getElementById("kvlab-pays"), answer = document.getElementById("kvlab-paid");
  const [memory, speed] = answer.querySelectorAll("p"), code = answer.querySelector("code");

  const counted = (number) => Math.round(number).toLocaleString("en-US");
  const gigabytes = (bytes) => `${bytes < 1e11 ? (bytes / 1e9).toPrecision(bytes < 1e9 ? 2 : 3) : counted(bytes / 1e9)} GB`;
  const times = (gain) => `${gain.toFixed(2)} ×`;
  const texts = (number) => `${counted(number)} ${number === 1 ? "text" : "texts"}`;

  /** Say a gain: the number first. */
  function say(paragraph, gain, told = "") {
    const strong = document.createElement("strong");
    strong.textContent = gain;
    paragraph.replaceChildren(strong, ` ${told}`);
  }

  /** How many texts fit, whole and evicted, and what that gains at most. */
  function sayMemory({ shape, name, room, each, kept, whole, evicted, share }) {
    if (room <= 0) return say(memory, `The weights, ${gigabytes(shape.weights)}, do not fit.`);
    if (!whole) return say(memory, "Not one full cache fits.", evicted ? `With ${share} of the entries ${texts(evicted)} fit.` : `Nor does one text with ${share} of the entries.`);
    const gain = evicted / whole * (shape.read + whole * each) / (shape.read + evicted * each * kept);
    say(memory, `Same memory: at most ${times(gain)} the tokens per second.`,
      `${name} holds ${texts(whole)} with full caches, ${texts(evicted)} with ${share} of the entries (whole texts).`);
  }

  /** What a step gains at most with as many texts, where all fit with full caches. */
  function saySpeed({ shape, each, batch, kept, whole }) {
    const full = each * batch, gain = (shape.read + full) / (shape.read + kept * full);
    if (!whole) return speed.replaceChildren();
    if (batch > whole) return say(speed, "As many texts: nothing to compare.", `Full caches of ${texts(batch)} do not fit.`);
    say(speed, `As many texts: at most ${times(gain)}.`,
      `At its last token a step reads ${gigabytes(shape.read)} of weights and ${gigabytes(full)} of cache, after eviction ${gigabytes(kept * full)}.`);
  }

  function write() {
    code.parentElement.hidden = !form.checkValidity();
    if (code.parentElement.hidden) {
      speed.replaceChildren();
      return say(memory, "A field is empty or out of range.", "Texts are whole numbers from 1 on, tokens from 16 on, percent from 1 to 100.");
    }
    const given = Object.fromEntries(new FormData(form));
    const tokens = Number(given.tokens), batch = Number(given.batch), kept = Number(given.percent) / 100;
    const shape = shapes[given.model], each = shape.token * tokens;
    const { name, memory: bytes } = devices[given.gpu], room = memoryShare * bytes - shape.weights;
    const fit = (size) => Math.max(0, Math.floor(room / size));
    const wish = { shape, name, room, each, batch, kept, whole: fit(each), evicted: fit(each * kept), share: `${given.percent}\u00a0%` };
    sayMemory(wish);
    saySpeed(wish);
    const prompt = Math.floor(tokens / 8);
    code.textContent = `kvlab plan --model ${given.model} --gpu ${given.gpu} --prompt ${prompt} --length ${tokens - prompt} --batch ${batch} --budget ${given.percent}%`;
  }

  form.addEventListener("input", write);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = answer.hidden = false;
  write();
})();
