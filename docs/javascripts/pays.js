"use strict";

// The form of "When does eviction pay?": what bytes alone allow, and the command that plans more.
(() => {
  const { shapes, devices, memoryShare } = JSON.parse(document.getElementById("kvlab-sizes").textContent);
  const form = document.getElementById("kvlab-pays"), answer = document.getElementById("kvlab-paid");
  const [memory, speed] = answer.querySelectorAll("p"), code = answer.querySelector("code");

  const counted = (number) => Math.round(number).toLocaleString("en-US");
  const gigabytes = (bytes) => `${(bytes / 1e9).toPrecision(bytes < 1e9 ? 2 : 3)} GB`;
  const times = (gain) => `${gain.toFixed(2)} ×`;
  const texts = (number) => `${counted(number)} ${number === 1 ? "text" : "texts"}`;

  /** Say a gain: the number first. */
  function say(paragraph, gain, told) {
    const strong = document.createElement("strong");
    strong.textContent = gain;
    paragraph.replaceChildren(strong, ` ${told}`);
  }

  /** How many texts fit, whole and evicted, and what that gains at most. */
  function sayMemory({ shape, device, each, kept, percent }) {
    const room = memoryShare * device.memory - shape.weights;
    const whole = Math.floor(room / each), evicted = Math.floor(room / (each * kept));
    if (room <= 0) return say(memory, "Same memory:", `the weights (${gigabytes(shape.weights)}) do not fit in an ${device.name}.`);
    if (!whole) return say(memory, "Same memory:", `one full cache does not fit; with ${percent}\u00a0% of the entries ${texts(evicted)} do.`);
    const gain = evicted / whole * (shape.read + whole * each) / (shape.read + evicted * each * kept);
    say(memory, `Same memory: at most ${times(gain)} the tokens per second.`,
      `${device.name} holds ${texts(whole)} with full caches, ${texts(evicted)} with ${percent}\u00a0% of the entries.`);
  }

  /** What a step gains at most with as many texts. */
  function saySpeed({ shape, each, batch, kept }) {
    const full = each * batch, gain = (shape.read + full) / (shape.read + kept * full);
    say(speed, `As many texts: at most ${times(gain)}.`,
      `A step reads ${gigabytes(shape.read)} of weights and ${gigabytes(full)} of cache, after eviction ${gigabytes(kept * full)}.`);
  }

  function write() {
    if (!form.checkValidity()) return;
    const given = Object.fromEntries(new FormData(form));
    const tokens = Number(given.tokens), batch = Number(given.batch), percent = Number(given.percent);
    const shape = shapes[given.model], wish = { shape, device: devices[given.gpu], each: shape.token * tokens, batch, kept: percent / 100, percent };
    sayMemory(wish);
    saySpeed(wish);
    const prompt = Math.max(1, Math.floor(tokens / 8));
    code.textContent = `kvlab plan --model ${given.model} --gpu ${given.gpu} --prompt ${prompt} --length ${tokens - prompt} --batch ${batch} --budget ${percent}%`;
  }

  form.addEventListener("input", write);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = answer.hidden = false;
  write();
})();
