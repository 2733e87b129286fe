"use strict";
// A run as it happens. Curves: thinned ones first, then what the stream brings; what is there is not added again.
const $ = id => document.getElementById(id), box = $("charts"), log = $("log"), part = $("part"), link = $("link");
const of = (box ?? log).dataset, run = encodeURIComponent(of.run), charts = box ? new Charts(box) : null;
const COUNTERS = new Set(["step", "epoch", "examples", "time", "at"]), LOG = 200000;

const label = at => `${at.experiment}/${at.task}`, waiting = [], told = new Map();
let counts = new Map(), loaded = false;
function tell(key, name, value, best, goal) {
  if (typeof value !== "number") return;
  const known = told.get(key) ?? {goal, best: null, at: ""};
  const candidate = best ?? value;
  if (known.best === null || (known.goal === "min" ? candidate < known.best : candidate > known.best)) { known.best = candidate; known.at = name; }
  told.set(key, known);
  charts.say(key, `last ${shown(value)} · best ${shown(known.best)} (${known.at})`);
}
function take(at) {
  for (const row of at.points) {
    const id = label(at), x = row.step ?? row.epoch ?? (counts.get(id) ?? 0) + 1;
    counts.set(id, x);
    for (const [key, value] of Object.entries(row))
      if (typeof value === "number" && !COUNTERS.has(key)) {
        charts.add(key, id, x, value);
        tell(key, id, value, null, /loss|err|perplexity|m[as]e$/.test(key) ? "min" : "max");
      }
  }
}
async function load() {
  const answer = await fetch(`/api/v1/runs/${run}/metrics?points=300`).catch(() => null);
  if (answer?.ok) for (const curve of (await answer.json()).metrics) {
    curve.steps.forEach((x, i) => { counts.set(label(curve), x); if (curve.values[i] !== null) charts.add(curve.key, label(curve), x, curve.values[i]); });
    tell(curve.key, label(curve), curve.last, curve.best, curve.goal);
  }
  loaded = true;
  waiting.splice(0).forEach(take);
  charts.draw();
}
const isWanted = said => ["experiment", "task", "attempt", "member"].every(key => !log.dataset[key] || log.dataset[key] === String(said[key]));
let writer = "";
function write(said) {
  if (!isWanted(said)) return;
  const from = `${label(said)}, attempt ${said.attempt}, ${said.member}`;
  if (from !== writer) log.textContent += `${log.textContent.endsWith("\n") || !log.textContent ? "" : "\n"}── ${from} ──\n`;
  writer = from;
  const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
  log.textContent = (log.textContent + said.text).slice(-LOG);
  if (follows) log.scrollTop = log.scrollHeight;
}
// Many may look at one run: each asks for the page's upper part now and then, not all at the same moment.
let due = null;
function refresh() {
  due ??= setTimeout(async () => {
    due = null;
    const answer = await fetch(location.href, {headers: {"HX-Request": "true"}}).catch(() => null);
    if (answer?.ok) part.innerHTML = await answer.text(); else refresh();
  }, 500 + 1500 * Math.random());
}
let source = null;
function open() {
  if (source || document.hidden) return;
  source = new EventSource(`/api/v1/runs/${run}/stream?tail=${box ? 16384 : 65536}${open.last ? "&after=" + open.last : ""}`);
  const on = (kind, act) => source.addEventListener(kind, event => { open.last = event.lastEventId; link.textContent = ""; act(JSON.parse(event.data)); });
  on("point", at => { if (!charts) return; if (loaded) { take(at); charts.draw(); } else waiting.push(at); });
  on("log", write);
  on("state", said => {
    if (said.events.length && part) refresh();
    if (said.run.state === "DONE") { of.over = "1"; setTimeout(close, 3000); }
  });
  source.onerror = () => { link.textContent = "The connection is lost; trying again."; };
}
function close() { source?.close(); source = null; }
// A browser has six connections to a host: a page that is not seen needs none.
document.addEventListener("visibilitychange", () => document.hidden ? close() : of.over === "1" || open());
open();
if (charts) load();
