"use strict";
// A run as it happens. Curves: thinned ones first, then what the stream brings; what is there is not added again.
const $ = id => document.getElementById(id), box = $("charts"), log = $("log"), part = $("part"), link = $("link");
const of = (box ?? log).dataset, run = encodeURIComponent(of.run), charts = box ? new Charts(box) : null;
const COUNTERS = new Set(["step", "epoch", "examples", "time", "at"]), LOG = 200000;

const label = at => `${at.experiment}/${at.task}`, waiting = [], told = new Map();
let counts = new Map(), loaded = false;
// The last value and the best one; the least and the greatest where no value is known to be better.
function tell(key, name, last, least, greatest) {
  const known = told.get(key);
  if (last !== null) Object.assign(known, {last});
  if (least === null) return;
  for (const [side, value, isMore] of [["min", least, known.min === null || least < known.min], ["max", greatest, known.max === null || greatest > known.max]])
    if (isMore) { known[side] = value; known.at[side] = name; }
  const best = known.has_goal ? known[known.goal] : null, mine = known.goal === "min" ? least : greatest;
  if (known.has_goal) {
    const own = known.tasks.get(name);
    if (own === undefined || (known.goal === "min" ? mine < own : mine > own)) known.tasks.set(name, mine);
    charts.prefer(key, [...known.tasks].sort((a, b) => known.goal === "min" ? a[1] - b[1] : b[1] - a[1]).slice(0, 5).map(([each]) => each));
  }
  charts.say(key, `last ${shown(known.last)} · ${best === null ? `${shown(known.min)} to ${shown(known.max)}` : `best ${shown(best)} (${known.at[known.goal]})`}`);
}
function know(key, goal, has_goal) {
  if (!told.has(key)) told.set(key, {goal, has_goal, last: null, min: null, max: null, at: {}, tasks: new Map()});
}
function take(at) {
  for (const row of at.points) {
    const id = label(at), x = row.step ?? row.epoch ?? (counts.get(id) ?? 0) + 1;
    counts.set(id, x);
    for (const [key, value] of Object.entries(row))
      if ((typeof value === "number" || value === null) && !COUNTERS.has(key)) {
        know(key, /loss|err|perplexity|m[as]e$/.test(key) ? "min" : "max", /loss|err|perplexity|m[as]e$|acc|score|reward/.test(key));
        charts.add(key, id, x, value);
        tell(key, id, value, value, value);
      }
  }
}
async function load() {
  const answer = await fetch(`/api/v1/runs/${run}/metrics?points=300`).catch(() => null);
  if (answer?.ok) for (const curve of (await answer.json()).metrics) {
    const {key, values} = curve, id = label(curve);
    know(key, curve.goal, curve.has_goal);
    curve.steps.forEach((x, i) => { counts.set(id, x); charts.add(key, id, x, values[i]); });
    tell(key, id, curve.last, curve.least, curve.greatest);
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
