"use strict";
// The sections as tabs, and files that are sent in pieces. Without this they are sections one after another.
const bar = document.querySelector(".tabs"), tabs = [...bar.children];
const panels = tabs.map(tab => document.querySelector(tab.hash));
function choose(index) {
  tabs.forEach((tab, i) => {
    tab.setAttribute("aria-selected", i === index);
    tab.tabIndex = i === index ? 0 : -1;
    panels[i].hidden = i !== index;
  });
}
bar.setAttribute("role", "tablist");
tabs.forEach((tab, i) => {
  tab.setAttribute("role", "tab");
  tab.id = `tab-${i}`;
  tab.setAttribute("aria-controls", panels[i].id);
  panels[i].setAttribute("role", "tabpanel");
  panels[i].setAttribute("aria-labelledby", tab.id);
  tab.addEventListener("click", event => { event.preventDefault(); choose(i); });
  tab.addEventListener("keydown", event => {
    const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (by === undefined) return;
    const next = (i + by + tabs.length) % tabs.length;
    choose(next); tabs[next].focus();
  });
});
for (const each of document.querySelectorAll(".no-script")) each.hidden = true;
for (const each of document.querySelectorAll(".needs-script")) each.hidden = false;
const asked = tabs.findIndex(tab => tab.hash === location.hash);
choose(document.querySelector("#checked li") || document.getElementById("recipe").defaultValue.split("\n").length > 6 ? tabs.length - 1 : Math.max(0, asked));

const PIECE = 4 << 20, sent = document.getElementById("sent"), digest = document.getElementById("digest");
const wait = ms => new Promise(done => setTimeout(done, ms));
async function ask(path, options) {
  const answer = await fetch(path, options);
  if (answer.status >= 400) {
    const said = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(`${said.title ?? answer.statusText} ${said.hint ?? ""}`), {status: answer.status});
  }
  return answer;
}
async function send(file) {
  const body = JSON.stringify({name: file.name, size_bytes: file.size, kind: "code"});
  const begun = await (await ask("/api/v1/uploads", {method: "POST", headers: {"Content-Type": "application/json"}, body})).json();
  const place = `/api/v1/uploads/${begun.upload}`;
  for (let offset = 0, failed = 0; offset < file.size;) {
    sent.textContent = `${file.name}: ${Math.floor(100 * offset / file.size)} % sent`;
    try {
      const headers = {"Content-Type": "application/offset+octet-stream", "Upload-Offset": offset};
      await ask(place, {method: "PATCH", headers, body: file.slice(offset, offset + PIECE)});
      offset = Math.min(file.size, offset + PIECE); failed = 0;
    } catch (error) {
      if (error.status && error.status !== 409 || ++failed > 20) throw error;
      sent.textContent = "The connection is lost; trying again.";
      await wait(2000);
      const head = await fetch(place, {method: "HEAD"}).catch(() => null);
      if (head?.ok) offset = Number(head.headers.get("Upload-Offset"));
    }
  }
  let found = null;
  do found = await (await ask(`${place}/finish`, {method: "POST"})).json(); while (found.state !== "DONE");
  if (!found.result.code) throw new Error(`${found.result.title} ${found.result.hint}`);
  digest.value = found.result.code;
  sent.textContent = `${file.name} is sent.`;
}
document.getElementById("file").addEventListener("change", async event => {
  const [file] = event.target.files;
  if (!file) return;
  try { await send(file); digest.dispatchEvent(new Event("change", {bubbles: true})); } catch (error) { sent.textContent = error.message; }
});
