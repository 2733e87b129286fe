"use strict";
// The rows of this page as they are now, every five seconds while somebody looks; marks stay, also on other pages and after a reload.
const rows = document.getElementById("rows"), bar = document.getElementById("bar"), marks = new Set(JSON.parse(sessionStorage.marks ?? "[]")), sent = new WeakMap();
async function look() {
  if (document.hidden) return;
  const answer = await fetch(location.href, {headers: {"HX-Request": "true"}}).catch(() => null);
  if (!isAnswered(answer, rows)) return;
  const table = new DOMParser().parseFromString(`<table><tbody>${await answer.text()}</tbody></table>`, "text/html");
  const known = new Map([...rows.rows].map(row => [row.dataset.run, row])), wanted = [...table.querySelectorAll("tr[data-run]")];
  for (const run of wanted.map(row => row.dataset.run).concat([...known.keys()])) if (!wanted.some(row => row.dataset.run === run)) known.get(run)?.remove();
  wanted.forEach((row, index) => {
    const old = known.get(row.dataset.run), here = rows.rows[index];
    if (!old || old.cells.length !== row.cells.length) { old?.remove(); rows.insertBefore(row, rows.rows[index] ?? null); return; }
    if (old !== here) rows.insertBefore(old, here ?? null);
    // Only what has changed: who reads, or is about to click, is not disturbed. Cells as they came: page.js writes times of its own.
    [...row.cells].forEach((cell, at) => {
      if (at < 2 || cell.innerHTML === (sent.get(old.cells[at]) ?? old.cells[at].innerHTML)) return;
      const copy = cell.cloneNode(true);
      sent.set(copy, cell.innerHTML);
      old.cells[at].replaceWith(copy);
    });
  });
  show();
}
// Marks of other pages of the list are sent with those that are seen.
function show() {
  sessionStorage.marks = JSON.stringify([...marks]);
  for (const box of rows.querySelectorAll("[name=run]")) { box.checked = marks.has(box.value); box.closest("tr").classList.toggle("marked", box.checked); }
  for (const other of bar.querySelectorAll("[name=run]")) other.remove();
  const seen = new Set([...rows.querySelectorAll("[name=run]")].map(box => box.value));
  for (const run of marks) if (!seen.has(run)) bar.append(Object.assign(document.createElement("input"), {type: "checkbox", name: "run", value: run, checked: true, hidden: true}));
  bar.classList.toggle("some", marks.size > 0);
  document.getElementById("unmark").hidden = !marks.size;
  document.getElementById("marked").textContent = marks.size ? `${marks.size} marked` : "Mark runs in the first column, or with x.";
}
function mark(run, on) { if (on) marks.add(run); else marks.delete(run); show(); }
function step(by) {
  const all = [...rows.rows], at = all.indexOf(document.activeElement?.closest?.("#rows tr"));
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))];
  next?.querySelector(".run a").focus();
  next?.scrollIntoView({block: "nearest"});
}
if (rows) {
  rows.addEventListener("change", event => mark(event.target.value, event.target.checked));
  document.getElementById("unmark").addEventListener("click", () => { marks.clear(); show(); });
  document.getElementById("marks").addEventListener("submit", event => { if (event.submitter?.classList.contains("danger")) marks.clear(), delete sessionStorage.marks; });
  addEventListener("keydown", event => {
    if (event.target.matches("input:not([type=checkbox]), select, textarea") || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const row = document.activeElement?.closest?.("#rows tr");
    if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else if (event.key === "x" && row) mark(row.dataset.run, !marks.has(row.dataset.run));
    else if (event.key === "c" && marks.size) document.querySelector("[formaction='/compare']").click();
    else if (event.key === "Escape" && marks.size) { marks.clear(); show(); }
    else return;
    event.preventDefault();
  });
  show();
  setInterval(look, 5000);
}
