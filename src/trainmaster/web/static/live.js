"use strict";
// Curves: thinned ones first, then what the stream brings; points that are there already are not added again.
const box = document.getElementById("charts"), link = document.getElementById("link"), log = document.getElementById("log");
const part = document.getElementById("part"), run = encodeURIComponent(box.dataset.run), charts = new Map();
const COLORS = ["#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d"];
const COUNTERS = new Set(["step", "epoch", "examples", "time", "at"]), KEEP = 4000, LOG = 200000;
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const size = () => ({width: box.clientWidth || 300, height: 240});

function chart(key) {
  if (!charts.has(key)) {
    document.getElementById("none")?.remove();
    const holder = box.appendChild(document.createElement("div"));
    holder.className = "chart";
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", `curve of ${key}`);
    charts.set(key, {holder, series: new Map(), plot: null, stale: true});
  }
  return charts.get(key);
}
function add(key, name, x, y) {
  const found = chart(key);
  if (!found.series.has(name)) found.series.set(name, [[], []]);
  const [xs, ys] = found.series.get(name);
  if (xs.length && x <= xs[xs.length - 1]) return;
  xs.push(x); ys.push(y); found.stale = true;
  if (xs.length > KEEP) { xs.splice(1, 1); ys.splice(1, 1); }
}
function draw() {
  for (const [key, found] of charts) {
    if (!found.stale) continue;
    found.stale = false;
    const names = [...found.series.keys()].slice(0, COLORS.length);
    const data = uPlot.join(names.map(name => found.series.get(name)));
    if (found.plot && found.names === names.join()) { found.plot.setData(data); continue; }
    found.plot?.destroy();
    found.names = names.join();
    const axis = {stroke: css("--fg"), grid: {stroke: css("--line")}};
    found.plot = new uPlot({...size(), title: key, scales: {x: {time: false}}, axes: [axis, axis],
      series: [{label: "step"}, ...names.map((label, i) => ({label, stroke: COLORS[i], width: 2, spanGaps: true}))]}, data, found.holder);
  }
}
new ResizeObserver(() => { for (const {plot} of charts.values()) plot?.setSize(size()); }).observe(box);

const label = at => `${at.experiment}/${at.task}`, waiting = [];
let counts = new Map(), loaded = false;
function take(at) {
  for (const row of at.points) {
    const id = label(at), x = row.step ?? row.epoch ?? (counts.get(id) ?? 0) + 1;
    counts.set(id, x);
    for (const [key, value] of Object.entries(row))
      if (typeof value === "number" && !COUNTERS.has(key)) add(key, id, x, value);
  }
}
async function load() {
  const answer = await fetch(`/api/v1/runs/${run}/metrics?points=300`);
  if (answer.ok) for (const curve of (await answer.json()).metrics)
    curve.steps.forEach((x, i) => { counts.set(label(curve), x); if (curve.values[i] !== null) add(curve.key, label(curve), x, curve.values[i]); });
  loaded = true;
  waiting.splice(0).forEach(take);
  draw();
}
let source = null;
function open() {
  if (source || document.hidden) return;
  source = new EventSource(`/api/v1/runs/${run}/stream?tail=16384${open.last ? "&after=" + open.last : ""}`);
  const on = (kind, act) => source.addEventListener(kind, event => { open.last = event.lastEventId; link.textContent = ""; act(JSON.parse(event.data)); });
  on("point", at => { if (loaded) { take(at); draw(); } else waiting.push(at); });
  on("log", said => {
    const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
    log.textContent = (log.textContent + said.text).slice(-LOG);
    if (follows) log.scrollTop = log.scrollHeight;
  });
  on("state", said => {
    if (said.events.length) part.dispatchEvent(new Event("changed"));
    if (said.run.state === "DONE") { box.dataset.over = "1"; setTimeout(close, 3000); }
  });
  source.onerror = () => { link.textContent = "The connection is lost; trying again."; };
}
function close() { source?.close(); source = null; }
// A browser has six connections to a host: a page that is not seen needs none.
document.addEventListener("visibilitychange", () => document.hidden ? close() : box.dataset.over === "1" || open());
open();
load();
