"use strict";
// What a page shows is of before as long as the server does not answer: it says so, and since when.
let answeredAt = new Date();
function stale(text, part = null) {
  let said = document.getElementById("stale");
  if (!text) answeredAt = new Date();
  part?.classList.toggle("is-stale", Boolean(text));
  if (!said && !text) return;
  if (!said) {
    said = document.querySelector("main").insertAdjacentElement("afterbegin", document.createElement("p"));
    said.id = "stale"; said.className = "stale note"; said.setAttribute("role", "status");
  }
  said.hidden = !text; said.textContent = text;
}
const asOf = () => answeredAt.toLocaleTimeString([], {hourCycle: "h23"});
const isAnswered = (answer, part) => {
  stale(answer?.ok ? "" : answer?.status === 401 ? `As of ${asOf()}: you are logged out. Load the page again to log in.` : `As of ${asOf()}: the server cannot be reached; trying again.`, part);
  return answer?.ok;
};
// Who is led by keys stays where he was when a part of the page comes again.
let led = "";
const ledTo = each => [each.tagName, each.href ?? each.form?.action, each.id || each.getAttribute("aria-label") || each.textContent.trim()].join();
const leaving = part => { led = part.contains(document.activeElement) ? ledTo(document.activeElement) : ""; };
const arrived = () => { if (led && document.activeElement === document.body) [...document.querySelectorAll("main :is(a, button, summary)")].find(each => ledTo(each) === led)?.focus({preventScroll: true}); };
addEventListener("htmx:beforeSwap", event => leaving(event.detail.target));
addEventListener("htmx:afterSwap", () => {
  arrived();
  // A part that comes and goes is not read out: what it says of itself stands beside it.
  const said = document.getElementById("said"), says = document.querySelector("[data-says]")?.dataset.says;
  if (said && says && said.textContent !== says) said.textContent = says;
});
// What every page has: questions before what cannot be undone, the menu, times in the reader's zone. Names are in a block: pages have scripts of their own.
{
addEventListener("submit", event => {
  const button = event.submitter;
  if (button?.dataset.marks !== undefined && ![...button.form.elements].some(each => each.name === "run" && each.checked)) {
    event.preventDefault();
    event.stopImmediatePropagation();
    document.getElementById("marked").textContent = "Mark runs first, in the first column.";
    return;
  }
  if (!button?.matches("button.danger:not([data-sure])")) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  const question = document.body.appendChild(document.createElement("dialog")), name = button.getAttribute("aria-label") ?? button.textContent;
  question.setAttribute("aria-labelledby", "question");
  const text = question.appendChild(document.createElement("p"));
  text.id = "question"; text.textContent = button.dataset.ask ?? `${name}?`;
  const bar = question.appendChild(document.createElement("p"));
  bar.className = "actions";
  const no = bar.appendChild(document.createElement("button")), yes = bar.appendChild(document.createElement("button"));
  no.textContent = "No, go back"; yes.textContent = `Yes: ${name[0].toLowerCase()}${name.slice(1)}`; yes.className = "danger";
  no.addEventListener("click", () => question.close());
  yes.addEventListener("click", () => {
    question.close();
    button.dataset.sure = "";
    button.form.requestSubmit(button);
    delete button.dataset.sure;
  });
  question.addEventListener("close", () => { question.remove(); if (button.isConnected) button.focus(); });
  question.showModal();
}, true);

const menus = document.querySelectorAll("details.menu");
function leave(event) {
  for (const menu of menus) {
    if (!menu.open || event.type === "keydown" && event.key !== "Escape" || event.type === "click" && menu.contains(event.target)) continue;
    menu.open = false;
    if (event.type === "keydown") menu.querySelector("summary").focus();
  }
}
addEventListener("click", leave);
addEventListener("keydown", leave);

// Keys for who has his hands there: where to look for something, and where to go.
let began = "";
addEventListener("keydown", event => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const place = {h: "/", r: "/runs", n: "/new", m: "/models"}[began === "g" ? event.key : ""], find = document.getElementById("find");
  began = event.key;
  if (place) location.href = place;
  if (event.key === "/") { event.preventDefault(); if (find) find.focus(); else location.href = "/runs"; }
  if (event.key !== "?" || document.querySelector("dialog[open]")) return;
  const keys = document.body.appendChild(document.createElement("dialog"));
  keys.setAttribute("aria-label", "Keys");
  const text = keys.appendChild(document.createElement("p"));
  text.textContent = "/ finds runs; j and k go down and up, Enter opens, x marks, c compares what is marked; g h is Home, g r Runs, g n New run, g m Models; Escape closes.";
  const close = keys.appendChild(document.createElement("button"));
  close.textContent = "Close";
  close.addEventListener("click", () => keys.close());
  keys.addEventListener("close", () => keys.remove());
  keys.showModal();
});

// Today's times are a clock, others have their day; where one points the whole, with its zone.
function localize() {
  for (const each of document.querySelectorAll("time[datetime]:not([title])")) {
    const at = new Date(each.dateTime), isToday = at.toDateString() === new Date().toDateString(), hasSeconds = /:\d\d:\d\d/.test(each.textContent);
    each.title = at.toLocaleString([], {dateStyle: "full", timeStyle: "long", hourCycle: "h23"});
    const clock = {hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(hasSeconds ? {second: "2-digit"} : {})};
    const day = {weekday: "short", day: "numeric", month: "short", ...(at.getFullYear() === new Date().getFullYear() ? {} : {year: "numeric"})};
    each.textContent = at.toLocaleString([], isToday ? clock : {...day, ...clock});
  }
}
// What is seen of a tab that is not looked at: how it stands, in its title and its icon.
function told() {
  const said = document.querySelector("[data-tab]"), here = document.querySelector(".here"), icon = document.querySelector("link[rel=icon]");
  if (!said) return;
  if (document.title !== said.dataset.tab) document.title = said.dataset.tab;
  if (here.textContent !== said.dataset.here) here.textContent = said.dataset.here;
  icon.dataset.plain ??= icon.href;
  const wanted = icon.dataset[said.dataset.icon] ?? icon.dataset.plain;
  if (icon.getAttribute("href") !== wanted) icon.href = wanted;
}
// A press is answered at once: what was pressed is busy until the answer is there; offline it says so, and nothing is lost.
const busy = (button, is) => { if (is) button?.setAttribute("aria-busy", "true"); else button?.removeAttribute("aria-busy"); };
addEventListener("submit", event => {
  if (event.defaultPrevented) return;
  if (!navigator.onLine) { event.preventDefault(); stale("Not sent: you are offline. What you have written stays here."); return; }
  busy(event.submitter, true);
});
// Runs that are deleted, or run again, are marked no more.
addEventListener("submit", event => {
  if (event.defaultPrevented || event.target.method !== "post" || !["/remove", "/again"].includes(new URL(event.target.action).pathname)) return;
  const gone = new FormData(event.target).getAll("run");
  sessionStorage.marks = JSON.stringify(JSON.parse(sessionStorage.marks ?? "[]").filter(run => !gone.includes(run)));
});
// What was written outlives a log-in that comes between, and nothing else; New run keeps all of its own.
const texts = () => [...document.querySelectorAll("main form:not(#new) textarea")];
addEventListener("submit", event => { if (!event.defaultPrevented && texts().length) sessionStorage.written = JSON.stringify([location.pathname, texts().map(each => each.value)]); });
if (!location.pathname.startsWith("/login")) {
  const [path, written = []] = JSON.parse(sessionStorage.written ?? "[]");
  sessionStorage.removeItem("written");
  if (path === location.pathname && /\/login\b/.test(document.referrer)) for (const [at, text] of written.entries()) if (texts()[at]) texts()[at].value = text;
}
addEventListener("click", event => {
  const link = event.target.closest?.("a.button");
  if (link && !event.defaultPrevented && !link.download && !link.target && !/\.zip$|^\/api\//.test(link.pathname) && !(event.ctrlKey || event.metaKey || event.shiftKey)) busy(link, true);
});
addEventListener("pageshow", () => { for (const each of document.querySelectorAll(".button[aria-busy], button[aria-busy]")) busy(each, false); });
// What goes on is looked at again while somebody sees it: but not what somebody has opened, picked, or is about to press.
const HELD = "details[open], .is-out, a:focus, button:focus, input:focus";
async function again() {
  const old = document.querySelector("[data-again]"), began = performance.now();
  if (!old) return;
  if (!document.hidden && !document.querySelector("dialog") && !old.querySelector(HELD) && getSelection().isCollapsed) {
    const answer = await fetch(location.href).catch(() => null);
    if (isAnswered(answer, old)) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(old.id);
      if (fresh && !old.querySelector(HELD)) { old.replaceWith(fresh); dispatchEvent(new Event("again")); }
    }
  }
  setTimeout(again, Math.max(4000, 10 * (performance.now() - began)));  // what is much work is done less often
}
setTimeout(again, 4000);
// Printed is what is folded, and when it was exactly.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("main details:not(.menu):not([open])")];
  for (const each of folded) each.open = true;
  for (const each of document.querySelectorAll("time[title]")) { each.dataset.short = each.textContent; each.textContent = each.title; }
});
addEventListener("afterprint", () => {
  for (const each of folded) each.open = false;
  for (const each of document.querySelectorAll("time[data-short]")) each.textContent = each.dataset.short;
});
function seen() { localize(); told(); }
seen();
new MutationObserver(seen).observe(document.body, {childList: true, subtree: true});
}
// Bytes, as `format_bytes` writes them.
function bytesOf(count) {
  if (count < 0) return `-${bytesOf(-count)}`;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; count >= 999.5 && at < 4; at++) count /= 1000;
  return `${at && count < 9.95 ? (Math.round(10 * count) / 10).toFixed(1) : Math.round(count)} ${units[at]}`;
}
