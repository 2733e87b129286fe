"use strict";
// A run as it happens. Of curves first those that are seen, then what the stream brings; what is there is not added again.
const $ = id => document.getElementById(id), box = $("charts"), log = $("log"), part = $("part"), link = $("link");
const of = (box ?? log).dataset, run = encodeURIComponent(of.run), KEPT = "charts";
const MOST_LINES = 3000, MOST_POINTS = 8000, COUNTERS = new Set(["step", "epoch", "examples", "time", "at", "seconds", "timestamp", "wall_time"]);
const isGoal = key => /loss|err|perplexity|m[as]e$|acc|score|reward/.test(key), isLess = key => /loss|err|perplexity|m[as]e$/.test(key);
// As `panels` of the server: few are all seen, of many those that say how good it is.
const charts = box ? new Charts(box, {root: $("main"), made: key => {
  let into = box;
  if (!isGoal(key) && box.querySelectorAll(".chart").length >= 8) {
    const group = key.includes("/") ? key.slice(0, key.lastIndexOf("/")).replace(/\d+/g, "*") : "other";
    let fold = [...document.querySelectorAll(".chart-group")].find(each => each.dataset.group === group);
    if (!fold) {
      fold = [...document.querySelectorAll(".chart-group"), box].at(-1).insertAdjacentElement("afterend", document.createElement("details"));
      fold.className = "chart-group"; fold.dataset.group = group;
      fold.appendChild(document.createElement("summary")).textContent = group;
      fold.appendChild(document.createElement("div")).className = "charts";
      fold.addEventListener("toggle", () => charts.draw());
    }
    into = fold.querySelector(".charts");
  }
  $("tools").hidden = false;
  return into.appendChild(document.createElement("section"));
}}) : null;

let later = null, axis = "step";
const label = at => `${at.experiment}/${at.task}`, metrics = new Map(), counts = new Map();
// Of each key what the stream has brought while its past was asked for; null once that is there.
const early = new Map();
// The last value and the best one; the least and the greatest where no value is known to be better.
function tell(key, name, last, least, greatest, at = null) {
  const known = metrics.get(key);
  if (last !== null) Object.assign(known, {last});
  if (least === null) return;
  for (const [side, value, isMore] of [["min", least, known.min === null || least < known.min], ["max", greatest, known.max === null || greatest > known.max]])
    if (isMore) { known[side] = value; known.at[side] = [name, at?.[side]]; }
  const best = known.has_goal ? known[known.goal] : null, mine = known.goal === "min" ? least : greatest;
  let where = "";
  if (known.has_goal) {
    const own = known.tasks.get(name);
    if (own === undefined || (known.goal === "min" ? mine < own : mine > own)) known.tasks.set(name, mine);
    charts.prefer(key, [...known.tasks].sort((a, b) => known.goal === "min" ? a[1] - b[1] : b[1] - a[1]).slice(0, 5).map(([each]) => each));
    const [task, step] = known.at[known.goal];
    where = [known.tasks.size > 1 ? task : "", typeof step === "number" ? `@ ${charts.x === "step" ? counted(step) : charts.placeOf(step)}` : ""].filter(Boolean).join(" ");
  }
  charts.say(key, `${Number(of.tasks) > 1 ? "" : `${shown(known.last)} · `}${best === null ? `${shown(known.min)} to ${shown(known.max)}` : `best ${shown(best)} ${where}`}`);
}
function know(key, goal, has_goal) {
  if (!metrics.has(key)) metrics.set(key, {goal, has_goal, last: null, min: null, max: null, at: {}, tasks: new Map()});
}
function put(key, id, x, value) {
  know(key, isLess(key) ? "min" : "max", isGoal(key));
  charts.add(key, id, x, value);
  tell(key, id, value, value, value, {min: x, max: x});
}
function take(at) {
  if (axis !== "step") { askLater(); return; }
  const unknown = [];
  for (const row of at.points) {
    const id = label(at), x = row.step ?? row.epoch ?? (counts.get(id) ?? 0) + 1;
    counts.set(id, x);
    for (const [key, value] of Object.entries(row)) {
      if (typeof value !== "number" && value !== null || COUNTERS.has(key)) continue;
      if (early.get(key) === null) put(key, id, x, value);
      else if (early.has(key)) early.get(key).push([id, x, value]);
      // The page has no place for it yet: what was reported before is asked for with it.
      else if (!charts.root.querySelector(`.chart[data-key="${CSS.escape(key)}"]`)) { early.set(key, [[id, x, value]]); unknown.push(key); }
    }
  }
  if (unknown.length) load(unknown);
  // What is too long is asked for again, as thin as it may be without an untrue picture.
  if (Object.keys(at.points.at(-1) ?? {}).some(key => early.get(key) === null && charts.length(key) > MOST_POINTS)) askLater();
}
// The past of some curves: as fine as their pictures are wide, and coarser where there are many lines in one.
let turn = 0;  // what was asked for before the axis was changed does not count
async function load(keys) {
  const mine = turn;
  keys.forEach(key => early.set(key, []));
  const points = Math.max(60, Math.min(2 * charts.columns() + 3, Math.ceil(MOST_POINTS / (Number(of.tasks) || 1))));
  const answer = await fetch(`/api/v1/runs/${run}/metrics?points=${points}&digits=6&axis=${axis === "step" ? "" : axis}&keys=${keys.map(encodeURIComponent).join()}`).catch(() => null);
  const curves = answer?.ok ? (await answer.json()).metrics : [];
  if (mine !== turn) return;
  const known = curves.filter(each => axis === "step" || each.axis === axis);
  if (known.length < curves.length) $("axis").textContent = known.length ? `${axis} is known of ${known.length} of ${curves.length}` : `no ${axis} is known: over steps`;
  if (answer?.ok) {
    charts.x = known.length ? axis : "step";
    for (const key of keys) { charts.clear(key); metrics.delete(key); }
  }
  for (const curve of known.length ? known : curves) {
    const {key, values, steps} = curve, id = label(curve);
    know(key, curve.goal, curve.has_goal);
    if (axis === "step") counts.set(id, Math.max(steps.at(-1), counts.get(id) ?? 0));
    steps.forEach((x, i) => charts.add(key, id, x, values[i]));
    const place = wanted => steps[values.reduce((best, value, i) => value !== null && (best < 0 || Math.abs(value - wanted) < Math.abs(values[best] - wanted)) ? i : best, -1)];
    tell(key, id, curve.last, curve.least, curve.greatest, {min: place(curve.least), max: place(curve.greatest)});
  }
  if (!answer?.ok) {
    // What has no curve yet says why, and is asked for again.
    for (const key of keys) { early.delete(key); charts.say(key, answer?.status === 401 ? "you are logged out: load the page again" : "the server does not answer; trying again"); }
    setTimeout(see, 3000);
    return;
  }
  for (const key of keys) {
    const missed = early.get(key);
    early.set(key, null);
    missed.forEach(([id, x, value]) => put(key, id, x, value));
  }
  charts.draw();
}
// What is to be seen, or nearly, is asked for together.
let soon = null;
function see() {
  soon ??= setTimeout(() => {
    soon = null;
    const wanted = [...document.querySelectorAll(".chart[data-key]")].filter(each => {
      const {top, width} = each.getBoundingClientRect();
      return width && top < innerHeight + 400 && !early.has(each.dataset.key);
    }).map(each => each.dataset.key);
    if (wanted.length) load(wanted);
    charts.draw();
  }, 50);
}
// All that is seen is asked for again, over another axis or because there is more of it.
function over(x) {
  axis = x;
  turn++;
  early.clear();
  $("axis").textContent = "";
  see();
}
// Where each report is on another axis only the server knows.
function askLater() { later ??= setTimeout(() => { later = null; over(axis); }, 5000); }
function tools() {
  const bar = $("tools"), [find, x, smooth, isLog, isRows] = ["find", "x", "smooth", "log", "rows"].map(name => bar.querySelector(`[name=${name}]`));
  const kept = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
  x.value = kept.x ?? "step"; smooth.value = kept.smooth ?? 0; isLog.checked = kept.log ?? false; isRows.checked = kept.rows ?? false;
  const show = () => {
    for (const each of document.querySelectorAll(".charts")) each.classList.toggle("one", isRows.checked);
    localStorage.setItem(KEPT, JSON.stringify({x: x.value, smooth: Number(smooth.value), log: isLog.checked, rows: isRows.checked}));
    if (x.value !== axis) over(x.value);
    charts.set({smooth: Number(smooth.value), log: isLog.checked});
  };
  for (const each of [x, smooth, isLog, isRows]) each.addEventListener("input", show);
  find.addEventListener("input", () => {
    const words = find.value.toLowerCase().split("|").map(word => word.trim()).filter(Boolean);
    for (const each of document.querySelectorAll(".chart[data-key]")) each.hidden = words.length > 0 && !words.some(word => each.dataset.key.toLowerCase().includes(word));
    for (const fold of document.querySelectorAll(".chart-group")) {
      fold.hidden = !fold.querySelector(".chart:not([hidden])");
      if (words.length && !fold.hidden) fold.open = true;
    }
    see();
  });
  show();
}
// The log: what is new of it comes as rows. Its end is followed until somebody pauses, or scrolls up to read.
// What is written faster than it can be read is not shown line by line: after two pieces that were not all, its end is.
let asking = false, isNew = false, follows = true, behind = 0;
const isAtEnd = () => log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
async function write() {
  isNew = true;
  if (asking || !follows) return;
  asking = true; isNew = false;
  const {src, shown = "", offset = 0, number = 1} = log.dataset;
  const jumps = behind > 1, from = jumps ? "" : `${encodeURIComponent(shown)}&offset=${offset}&number=${number}`;
  const answer = await fetch(`${src}&shown=${from}`, {headers: {"HX-Request": "true"}}).catch(() => null);
  if (answer?.ok) {
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("log");
    if (jumps || fresh.dataset.shown && fresh.dataset.shown !== shown) log.replaceChildren();
    behind = fresh.dataset.more === "1" ? behind + 1 : 0;
    // The last line may have been half of one.
    for (const row of fresh.querySelectorAll("p")) { const old = document.getElementById(row.id); if (old) old.replaceWith(row); else log.append(row); }
    while (log.childElementCount > MOST_LINES) log.firstElementChild.remove();
    Object.assign(log.dataset, fresh.dataset);
    if ($("shown") && fresh.dataset.shown) $("shown").textContent = fresh.dataset.shown;
    if (follows) log.scrollTop = log.scrollHeight;
    isNew ||= fresh.dataset.more === "1";
  } else isNew = !answer;
  setTimeout(() => { asking = false; if (isNew) write(); }, answer ? 400 : 3000);
}
function follow(on) {
  follows = on;
  if ($("follow")) { $("follow").textContent = on ? "Pause" : "Follow"; $("following").textContent = on ? "following" : "paused"; }
  if (on) { log.scrollTop = log.scrollHeight; if (isNew) write(); }
  settle();
}
// A run that is over says nothing more: who has read all of it follows nothing; who paused can still go on.
function settle() { if (of.over === "1" && follows) for (const id of ["following", "follow"]) $(id)?.remove(); }
// Many may look at one run: each asks for what changes now and then, not all at the same moment. Only pieces that are
// other than before are put in, and none in which somebody writes: who reads or is about to click is not disturbed.
let due = null, loadedAt = performance.now();
const sent = new Map();
function refresh() {
  due ??= setTimeout(async () => {
    due = null;
    const answer = await fetch(location.href, {headers: {"HX-Request": "true"}}).catch(() => null);
    if (!answer?.ok) { if (!isGone(answer)) refresh(); return; }
    loadedAt = performance.now();
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    // Somebody went on with it after its end.
    if (of.over === "1" && !source && fresh.getElementById("part")?.dataset.over === "0") { location.reload(); return; }
    for (const piece of fresh.querySelectorAll("[data-live]")) {
      const name = piece.dataset.live, old = document.querySelector(`[data-live="${name}"]`), html = piece.innerHTML;
      if (!old || sent.get(name) === html || old.innerHTML === html || old.querySelector("details[open], input:focus")) continue;
      if (document.querySelector("dialog")) { refresh(); continue; }  // it asks about a button that must stay
      sent.set(name, html);
      leaving(old);
      old.replaceChildren(...piece.childNodes);
      arrived();
    }
  }, 500 + 1500 * Math.random());
}
// Phases take longer without an event that says so.
setInterval(() => { if (part?.querySelector(".phase-bar") && !document.hidden && of.over !== "1" && performance.now() - loadedAt > 8000) refresh(); }, 4000);
// How the curves go on of tasks that train for a target, now and then: it is worth some work.
async function foretell() {
  const said = $("targets");
  if (!said || of.over === "1") return;
  if (!document.hidden) {
    const answer = await fetch(`/api/v1/runs/${run}/targets`).catch(() => null);
    if (answer?.ok) {
      const {targets} = await answer.json();
      for (const each of targets) if (each.fan.length) charts.foretell(each.metric, label(each), each.fan);
      said.textContent = targets.map(each => each.words).join("; ");
      charts.draw();
    }
  }
  setTimeout(foretell, 15000);
}
// What was deleted is not asked for again; who was logged out goes on once he is logged in, in another tab as well.
let isOut = false, source = null;
function isGone(answer) {
  if (![401, 404].includes(answer?.status)) return false;
  isOut = answer.status === 404;
  link.textContent = isOut ? "This run is not there any more: it was deleted." : "You are logged out: load this page again, or log in in another tab.";
  part?.classList.add("is-stale");
  if (isOut) close();
  return true;
}
function open() {
  if (source || document.hidden || isOut) return;
  source = new EventSource(`/api/v1/runs/${run}/stream?tail=16384${open.last ? "&after=" + open.last : ""}`);
  const on = (kind, act) => source.addEventListener(kind, event => { open.last = event.lastEventId; link.textContent = ""; part?.classList.remove("is-stale"); stale(""); act(JSON.parse(event.data)); });
  on("point", at => { if (charts) { take(at); charts.draw(); if (part) progress(at); } });
  on("log", write);
  on("state", said => {
    if (said.events.length && part) refresh();
    if (said.run.state === "DONE" && $("none")) $("none").textContent = "It has reported no metrics.";
    if (said.run.state === "DONE") { of.over = "1"; settle(); setTimeout(close, 3000); }
  });
  source.onerror = () => {
    const isRefused = source.readyState === EventSource.CLOSED;  // a browser asks no more then
    if (!isRefused || !link.textContent) link.textContent = `The connection is lost; this is as of ${asOf()}, trying again.`;
    part?.classList.add("is-stale");
    if (isRefused) { close(); refresh(); setTimeout(open, 3000); }
  };
}
function close() { source?.close(); source = null; }
// How far one task is of its steps, between two looks at the whole.
function progress(at) {
  const head = $("part"), steps = Number(head.querySelector("[data-steps]")?.dataset.steps), step = at.points.at(-1)?.step;
  if (!steps || typeof step !== "number") return;
  const share = Math.min(1, step / steps), [words, percent, left, ticks] = ["[data-steps]", "[data-percent]", "[data-left]", "[data-ticks]"].map(each => head.querySelector(each));
  words.textContent = `step ${step.toLocaleString("en-US")} of ${steps.toLocaleString("en-US")}`;
  if (percent) percent.textContent = `${Math.floor(100 * share)} %`;
  const work = Number(ticks?.dataset.ticks) + (performance.now() - loadedAt) / 1000;
  if (left && share > 0.02 && work > 2) left.textContent = `about ${duration(work * (1 - share) / share)} left`;
}
// A browser has six connections to a host: a page that is not seen needs none.
document.addEventListener("visibilitychange", () => document.hidden ? close() : of.over === "1" ? refresh() : open());
open();
$("follow")?.addEventListener("click", () => follow(!follows));
log.addEventListener("scroll", () => { if (isAtEnd() !== follows && !asking) follow(!follows); }, {passive: true});
if (log.dataset.shown) log.scrollTop = log.scrollHeight; else write();
log.closest("details")?.addEventListener("toggle", () => { log.scrollTop = log.scrollHeight; });
if (charts) {
  tools();
  foretell();
  for (const fold of document.querySelectorAll(".chart-group")) fold.addEventListener("toggle", see);
  addEventListener("scroll", see, {passive: true});
  see();
}
