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
