"use strict";
// Times go on between two looks at them; written as `format_duration` writes them.
const firstSeen = new WeakMap();
const SPANS_OF = [[60, 1, "s", 0, ""], [600, 1, "s", 60, "min"], [3600, 60, "min", 0, ""], [86400, 60, "min", 3600, "h"], [Infinity, 3600, "h", 86400, "d"]];
function duration(seconds) {
  const tenths = Math.max(0, Math.floor(10 * seconds + 0.5));
  if (tenths < 100) return `${tenths / 10} s`;
  const nearest = small => small * Math.floor(seconds / small + 0.5);
  const [, small, unit, large, of] = SPANS_OF.find(([most, small]) => nearest(small) < most);
  const whole = large ? Math.floor(nearest(small) / large) : 0, rest = (nearest(small) - whole * large) / small;
  return [whole && `${whole} ${of}`, rest && `${rest} ${unit}`].filter(Boolean).join(" ");
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
