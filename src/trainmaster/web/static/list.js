"use strict";
// The rows of the first page, as they are now, every five seconds while somebody looks; marks stay.
const rows = document.getElementById("rows");
async function look() {
  if (document.hidden) return;
  const answer = await fetch(location.href, {headers: {"HX-Request": "true"}}).catch(() => null);
  if (!answer?.ok) return;
  const table = new DOMParser().parseFromString(`<table><tbody>${await answer.text()}</tbody></table>`, "text/html");
  const known = new Map([...rows.querySelectorAll("tr[data-run]")].map(row => [row.dataset.run, row]));
  let place = rows.firstElementChild;
  for (const row of table.querySelectorAll("tr[data-run]")) {
    const old = known.get(row.dataset.run);
    if (!old) { rows.insertBefore(row, place); continue; }
    place = old.nextElementSibling;
    // Only what has changed: who reads, or is about to click, is not disturbed.
    [...row.cells].forEach((cell, index) => {
      if (index && cell.innerHTML !== old.cells[index].innerHTML) old.cells[index].replaceWith(cell.cloneNode(true));
    });
  }
}
if (rows && !new URLSearchParams(location.search).has("cursor")) setInterval(look, 5000);
