"use strict";
// Times go on between two looks at them; written as `duration` of the pages writes them.
const firstSeen = new WeakMap();
const two = number => String(number).padStart(2, "0");
function duration(seconds) {
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  if (whole < 60) return `${whole} s`;
  return minutes < 60 ? `${minutes}m${two(whole % 60)}s` : `${Math.floor(minutes / 60)}h${two(minutes % 60)}m`;
}
setInterval(() => {
  const now = performance.now();
  for (const element of document.querySelectorAll("[data-ticks]")) {
    if (!firstSeen.has(element)) firstSeen.set(element, now);
    element.textContent = duration(Number(element.dataset.ticks) + (now - firstSeen.get(element)) / 1000);
  }
  // The bar of a quote's time fills up: `data-grows` percent a second.
  for (const bar of document.querySelectorAll("[data-grows]")) {
    if (!firstSeen.has(bar)) firstSeen.set(bar, now);
    const at = Number(bar.dataset.at) + Number(bar.dataset.grows) * (now - firstSeen.get(bar)) / 1000;
    bar.setAttribute("width", Math.min(100, at).toFixed(2));
  }
}, 1000);
