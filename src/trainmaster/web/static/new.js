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
    const by = {ArrowRight: 1, ArrowLeft: -1, Home: -i, End: tabs.length - 1 - i}[event.key];
    if (by === undefined) return;
    const next = (i + by + tabs.length) % tabs.length;
    choose(next); tabs[next].focus();
  });
});
document.querySelector("#from a[href^='#']")?.addEventListener("click", event => { event.preventDefault(); choose(tabs.length - 1); document.getElementById("recipe").select(); });
const asked = tabs.findIndex(tab => tab.hash === location.hash);
// Who asked for a recipe that serves or asks a model has come to see it.
const isWritten = /[?&](model|serve)=/.test(location.search);
choose(isWritten || document.querySelector("#checked li") || document.getElementById("recipe").defaultValue.split("\n").length > 6 ? tabs.length - 1 : Math.max(0, asked));

// Fields and recipe are one document: the server writes what was filled in into the recipe, and says what the
// fields are then. What is on its way when something is changed again is asked once more.
const form = document.getElementById("new"), fields = document.getElementById("fields"), recipe = form.elements.recipe;
const said = document.getElementById("said"), url = location.pathname + location.search;
const PLACE = `new ${form.dataset.caller}`, HEADERS = {"HX-Request": "true"};
const filled = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => typeof value === "string"));
const body = () => new URLSearchParams(filled());
function set(name, value) {
  const control = form.elements[name];
  if (control.type === "checkbox") control.checked = value !== "";
  else if (control.value !== value) {
    if (control.options && ![...control.options].some(each => each.value === value)) control.add(new Option(value));
    control.value = value;
  }
}
function show(answer) {
  for (const [name, value] of Object.entries(answer.fields)) set(name, value);
  set("recipe", answer.recipe); set("was", answer.was);
  document.getElementById("checked").innerHTML = answer.checked;
  if (answer.takes !== undefined) {
    const takes = document.getElementById("takes"), isOpen = takes.querySelector("details")?.open;
    takes.innerHTML = answer.takes;
    if (isOpen && takes.querySelector("details")) takes.querySelector("details").open = true;
  }
  for (const note of form.querySelectorAll(".at-field")) note.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) for (const key of ["aria-invalid", "aria-describedby"]) field.removeAttribute(key);
  for (const [name, texts] of Object.entries(answer.wrong)) {
    const field = form.elements[name], id = `wrong-${name}`;
    field.setAttribute("aria-invalid", "true"); field.setAttribute("aria-describedby", id);
    (field.closest("label") ?? field).insertAdjacentElement("afterend", Object.assign(document.createElement("p"), {id, className: "note at-field", textContent: texts.join("\n")}));
  }
  form.dataset.marked = Object.values(answer.wrong).flat().length;
  keep();
}
let due = null, again = null, pending = null, is_sending = false, attempts = 0;
function later() { clearTimeout(due); due = setTimeout(write, 250); }
async function write() {
  clearTimeout(due);
  const asked = body().toString(), before = attempts;
  const answer = await fetch("/new/recipe", {method: "POST", body: body(), headers: HEADERS}).catch(() => null);
  if (before !== attempts) return;  // what was sent meanwhile is answered with more
  if (body().toString() !== asked) return later();
  if (answer?.ok) { show(await answer.json()); estimate(); }
}
// What is known of the job, once nothing was changed for a while: nothing is measured and rented for it.
let guessed = "", guessing = null;
function estimate() {
  clearTimeout(guessing);
  guessing = setTimeout(async () => {
    const about = document.getElementById("about"), asked = body().toString();
    if (asked === guessed || document.hidden) return;
    if (document.querySelector("#checked .mistakes")) { about.textContent = guessed = ""; return; }
    guessed = asked;
    about.setAttribute("aria-busy", "true");
    const answer = await fetch("/new/estimate", {method: "POST", body: body(), headers: HEADERS}).catch(() => null);
    about.removeAttribute("aria-busy");
    if (body().toString() !== asked) return;
    if (answer?.ok) about.innerHTML = answer.status === 204 ? "" : await answer.text();
    else about.textContent = guessed = "";
  }, 600);
}

// What was typed outlives Back, a reload, the log-in and a closed connection, in this tab alone.
let is_left = false;
function keep(leaves = false) {
  is_left ||= leaves;  // an answer that comes now changes nothing
  sessionStorage.setItem(PLACE, JSON.stringify({url, pending, is_sent: is_left, values: filled()}));
}
function restore() {
  const kept = JSON.parse(sessionStorage.getItem(PLACE) ?? "null");
  const came = performance.getEntriesByType("navigation")[0]?.type;
  if (!kept || (came === "navigate" ? kept.is_sent || url !== "/new" : url !== kept.url)) return;
  if (kept.is_sent) delete kept.values.key;  // it would be the same run
  for (const each of form.querySelectorAll("input[type=checkbox]")) each.checked = false;
  for (const [name, value] of Object.entries(kept.values)) if (form.elements[name]) set(name, value);
  document.getElementById("kept").hidden = false;
  if (kept.pending) attempt(kept.pending); else write();
}
document.getElementById("start-over").addEventListener("click", () => keep(true));
form.addEventListener("input", () => { keep(); if (!pending) said.textContent = ""; });
form.addEventListener("change", event => { if (fields.contains(event.target) || ["budget", "keep"].includes(event.target.name)) later(); });
form.elements.budget.addEventListener("input", () => { set("max_usd", ""); document.getElementById("cap")?.remove(); });
recipe.addEventListener("input", later);
document.getElementById("takes").addEventListener("click", event => {
  const give = event.target.dataset.give, field = form.elements.arguments;
  if (!give) return;
  field.value = `${field.value} ${give}`.trim();
  keep(); later();
  field.focus();
});

// A press is answered at once. What could not be sent is kept and sent when the server can be reached, or after the log-in.
form.addEventListener("submit", event => {
  const path = new URL(event.submitter?.formAction ?? form.action).pathname;
  if (path !== "/new" && path !== "/new/quote") return;
  event.preventDefault();
  attempt(path);
});
function say(text, busy = false) {
  said.innerHTML = text;
  for (const each of form.querySelectorAll(".send button")) each.setAttribute("aria-busy", busy);
}
const UNSEND = '<button type="button" class="plain" id="unsend">Do not send it</button>';
said.addEventListener("click", event => { if (event.target.id === "unsend") { pending = null; keep(); say(""); later(); } });
const retry = () => { if (pending && !document.hidden) attempt(pending); };
addEventListener("online", retry);
addEventListener("visibilitychange", retry);
addEventListener("pageshow", event => { if (event.persisted) { is_left = false; say(""); } });
async function attempt(path) {
  clearTimeout(due); attempts++;  // all fields are sent, and what only a start finds wrong stays shown
  pending = path; keep();
  say(path === "/new" ? "Sending it…" : "Asking for a quote…", true);
  if (is_sending) return;
  is_sending = true;
  const answer = await fetch(path, {method: "POST", body: body(), headers: HEADERS}).catch(() => null);
  is_sending = false;
  if (!answer) {
    if (!pending) return say("");
    clearTimeout(again); again = setTimeout(retry, 3000);
    return say(`Not sent: the server cannot be reached. It is kept here, and sent when the connection is back. ${UNSEND}`);
  }
  if (answer.status === 401) return say(`Not sent: you are logged out. <a href="/login?next=/new">Log in</a>; it is kept here, and sent then. ${UNSEND}`);
  pending = null;
  const to = answer.headers.get("hx-redirect");
  if (to) { keep(true); return location.assign(to); }
  if (answer.headers.get("content-type").startsWith("application/json")) {
    show(await answer.json());
    // What no field is for is told in the recipe alone, with all else that is wrong.
    const marked = form.querySelectorAll("[aria-invalid]"), told = document.querySelectorAll("#checked li").length;
    const field = form.dataset.marked < told ? null : marked[0], at = panels.findIndex(panel => field && panel.contains(field));
    if (!field || at >= 0) choose(field ? at : tabs.length - 1);
    field?.focus();
    return say(field ? "Not sent: what is marked is wrong." : "Not sent: the recipe says what is wrong.");
  }
  const html = await answer.text(), shown = new DOMParser().parseFromString(html, "text/html").querySelector("main");
  if (answer.ok) { sessionStorage.removeItem(PLACE); document.open(); document.write(html); return document.close(); }
  keep(); say("");
  said.textContent = `Not sent: ${[...shown.querySelectorAll("h1, h1 + p:not(:has(a))")].map(each => each.textContent).join(". ")}`;
}

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
  try { await send(file); keep(); later(); } catch (error) { sent.textContent = error.message; }
});
if (recipe.value.split("\n").length > 6 || digest.value) estimate();
restore();
