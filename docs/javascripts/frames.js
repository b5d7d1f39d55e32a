"use strict";

// A generation that is played inside a page is light or dark as the page is.
function dressFrames() {
  const kvlabTheme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  for (const frame of document.querySelectorAll("iframe.kvlab-frame")) {
    frame.contentWindow.postMessage({ kvlabTheme }, "*");
  }
}

for (const frame of document.querySelectorAll("iframe.kvlab-frame")) {
  frame.addEventListener("load", dressFrames);
}
new MutationObserver(dressFrames).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
dressFrames();
