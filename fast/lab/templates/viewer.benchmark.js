// What the benchmark of the viewer does in its page; loaded before the page's own script.

window.viewerBenchmark = (() => {
  const frame = () => new Promise(requestAnimationFrame);

  async function settle() {
    for (let settled = 0; settled < 5; settled++) await frame();
  }

  // The page's script has built the texts when the document is loaded; the next frame draws them,
  // and a frame starts only when the one before it has been handed on.
  let textsDrawn;
  addEventListener("DOMContentLoaded", async () => {
    await frame();
    await frame();
    textsDrawn = performance.now();
  });

  // First paint of anything, and of the texts: milliseconds from the start of the navigation.
  async function paints() {
    const painted = () => performance.getEntriesByName("first-contentful-paint")[0];
    while (!textsDrawn || !painted()) await new Promise((done) => setTimeout(done, 20));
    return [painted().startTime, textsDrawn];
  }

  // Milliseconds from one frame's start to the next: the slider moves in a frame, whose drawing
  // delays the next one.
  async function move(movement, milliseconds, speed) {
    const slider = document.getElementById("step"), steps = Number(slider.max);
    const play = document.getElementById("play");
    const put = (step) => { slider.value = step; slider.dispatchEvent(new Event("input")); };
    put(movement === "play" ? steps >> 1 : 0);
    if (movement === "play") {
      const select = document.getElementById("speed");
      select.value = speed;
      select.dispatchEvent(new Event("change"));
    }
    await settle();
    if (movement === "play") play.click();
    const times = [await frame()];
    while (times.at(-1) - times[0] < milliseconds) {
      const share = (times.at(-1) - times[0]) / milliseconds;
      if (movement === "drag") put(Math.round(share * steps));
      if (movement === "jump") put(times.length * 1789 % (steps + 1));
      times.push(await frame());
    }
    if (play.getAttribute("aria-pressed") === "true") play.click();
    return times.slice(1).map((time, index) => time - times[index]);
  }

  // Milliseconds from the change of a selector to the frame that shows it.
  async function change(selector, value) {
    const select = document.querySelector(selector);
    await settle();
    const before = performance.now();
    select.value = value;
    select.dispatchEvent(new Event("change"));
    await frame();
    await frame();
    return performance.now() - before;
  }

  return { paints, move, change };
})();
