"use strict";
// What passes through all brushes stays: its lines, dots and rows; where one points, all of one task is marked.
const trials = (box, mark, is) => { for (const each of box.querySelectorAll("[data-trial]")) each.classList.toggle(mark, is(each.dataset.trial)); };
function listen() { for (const box of document.querySelectorAll(".search")) {
  box.addEventListener("mouseover", event => {
    const at = event.target.closest("[data-trial]")?.dataset.trial;
    trials(box, "is-seen", trial => trial === at);
  });
  const svg = box.querySelector(".parallel");
  if (!svg) continue;
  const ranges = new Map(), lines = [...svg.querySelectorAll(".line")].map(line => [line.dataset.trial, line.dataset.ys.split(",")]);
  const passing = () => new Set(lines.filter(([, ys]) => [...ranges].every(([axis, [from, to]]) => ys[axis] !== "" && ys[axis] >= from && ys[axis] <= to)).map(([trial]) => trial));
  const show = () => { const kept = passing(); trials(box, "is-out", trial => ranges.size > 0 && !kept.has(trial)); };
  for (const reach of svg.querySelectorAll("[data-axis]")) {
    const axis = Number(reach.dataset.axis), brush = reach.previousElementSibling;
    const place = event => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).y;
    const draw = (from, to) => { brush.setAttribute("y", from); brush.setAttribute("height", Math.max(0, to - from)); };
    let start = null;
    reach.addEventListener("pointerdown", event => { start = place(event); reach.setPointerCapture(event.pointerId); });
    reach.addEventListener("pointermove", event => { if (start !== null) draw(Math.min(start, place(event)), Math.max(start, place(event))); });
    reach.addEventListener("pointerup", event => {
      const [from, to] = [start, place(event)].sort((a, b) => a - b);
      start = null;
      if (to - from < 4) { ranges.delete(axis); draw(0, 0); } else ranges.set(axis, [from, to]);
      show();
    });
  }
} }
listen();
addEventListener("again", listen);  // there are more tasks: page.js
