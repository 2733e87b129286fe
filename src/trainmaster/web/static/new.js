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
const asked = tabs.findIndex(tab => tab.hash === location.hash);
choose(document.querySelector("#checked li") || document.getElementById("recipe").defaultValue.split("\n").length > 6 ? tabs.length - 1 : Math.max(0, asked));

// What is filled in is written into the recipe a moment later: who sends it sooner waits for that.
const form = document.getElementById("new"), filled = form.querySelector("[hx-trigger^=change]");
let changes = 0, asked_at = 0, written = 0, waits = null;
filled.addEventListener("change", () => { changes++; });
filled.addEventListener("htmx:beforeRequest", event => { if (event.target === filled) asked_at = changes; });
filled.addEventListener("htmx:afterRequest", event => {
  if (event.target !== filled) return;
  const by = waits;
  if (event.detail.successful) written = asked_at;
  if (event.detail.successful && written < changes) return;
  waits = null;
  if (by && event.detail.successful) form.requestSubmit(by);
});
form.addEventListener("submit", event => {
  if (written === changes || !window.htmx || !event.submitter) return;
  event.preventDefault();
  if (asked_at === changes && waits === null) filled.dispatchEvent(new Event("change"));  // it was asked in vain
  waits = event.submitter;
});

const sent = document.getElementById("sent"), digest = document.getElementById("digest");
async function send(file) {
  const tell = (trouble, offset) => { sent.textContent = trouble ?? `${file.name}: ${Math.floor(100 * offset / (file.size || 1))} % sent`; };
  const {id, forget} = await sendFile(file, "code", tell);
  digest.value = (await finishUpload(id, {}, tell)).code;
  forget();
  sent.textContent = `${file.name} is sent.`;
}
document.getElementById("file").addEventListener("change", async event => {
  const [file] = event.target.files;
  if (!file) return;
  try { await send(file); digest.dispatchEvent(new Event("change", {bubbles: true})); } catch (error) { sent.textContent = error.message; }
});
