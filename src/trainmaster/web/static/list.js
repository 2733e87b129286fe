"use strict";
// The rows of the first page, as they are now, every five seconds while somebody looks; marks stay.
const rows = document.getElementById("rows"), sent = new WeakMap();  // cells as they came: page.js writes times of its own
async function look() {
  if (document.hidden) return;
  const answer = await fetch(location.href, {headers: {"HX-Request": "true"}}).catch(() => null);
  if (!answer?.ok) return;
  const table = new DOMParser().parseFromString(`<table><tbody>${await answer.text()}</tbody></table>`, "text/html");
  const here = [...table.querySelectorAll("tr[data-run]")].map(row => row.dataset.run);
  const known = new Map([...rows.querySelectorAll("tr[data-run]")].map(row => [row.dataset.run, row]));
  // What has left the answer has ended, or was removed; what lies below its last row is asked for by itself.
  const isWhole = !table.querySelector("#more"), below = [...known.keys()].indexOf(here.at(-1));
  for (const [index, [run, row]] of [...known].entries()) {
    if (here.includes(run)) continue;
    if (isWhole || index < below) { row.remove(); known.delete(run); } else if (row.querySelector("[data-ticks]")) single(run, row);
  }
  let place = rows.firstElementChild;
  for (const row of table.querySelectorAll("tr[data-run]")) {
    const old = known.get(row.dataset.run);
    if (!old) { rows.insertBefore(row, place); continue; }
    place = old.nextElementSibling;
    // Only what has changed: who reads, or is about to click, is not disturbed.
    [...row.cells].forEach((cell, index) => {
      if (!index || cell.innerHTML === (sent.get(old.cells[index]) ?? old.cells[index].innerHTML)) return;
      const copy = cell.cloneNode(true);
      sent.set(copy, cell.innerHTML);
      old.cells[index].replaceWith(copy);
    });
  }
}
async function single(run, row) {
  const answer = await fetch(`/runs?name=${encodeURIComponent(run)}`, {headers: {"HX-Request": "true"}}).catch(() => null);
  if (!answer?.ok) return;
  const table = new DOMParser().parseFromString(`<table><tbody>${await answer.text()}</tbody></table>`, "text/html");
  const found = table.querySelector(`tr[data-run="${run}"]`);
  if (found) [...found.cells].forEach((cell, index) => { if (index) row.cells[index].replaceWith(cell); }); else row.remove();
}
if (rows && !new URLSearchParams(location.search).has("cursor")) setInterval(look, 5000);
