"use strict";
// Curves as uPlot draws them: a chart per key, a line per name.
const COLORS = matchMedia("(prefers-color-scheme: dark)").matches
  ? ["#56b4e9", "#e69f00", "#34c79a", "#ff8fc7", "#b39ddb", "#d4d44a", "#5ad1e0", "#c9c9c9"]
  : ["#0072b2", "#b35900", "#00755e", "#a8327e", "#6a51a3", "#6b6b00", "#007a8a", "#4d4d4d"], KEEP = 4000, MOST = 200, IN_COLOR = 5;
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shown = value => typeof value === "number" ? Number(value.toPrecision(4)).toString() : "–";

const WHOLE = [...Array(12).keys()].flatMap(power => [1, 2, 5].map(by => by * 10 ** power));
const clock = at => new Date(at * 1000).toLocaleTimeString([], {hourCycle: "h23"});

// A single look is in the middle of a minute: uPlot would draw a day.
const around = (plot, least, most) => plot.data[0].length === 1 ? [least - 30, least + 30] : [least, most];

// Of each stretch the least, the greatest and the first that is no number stay, between a place and the last point.
function thin(series, first, size) {
  const {ys} = series, last = ys.length - 1, kept = [];
  for (let from = first; from < last; from += size) {
    let least = -1, most = -1, bad = -1;
    for (let i = from; i < Math.min(from + size, last); i++) {
      if (ys[i] === null) { if (bad < 0) bad = i; continue; }
      if (least < 0 || ys[i] < ys[least]) least = i;
      if (most < 0 || ys[i] > ys[most]) most = i;
    }
    kept.push(...[...new Set([least, most, bad])].filter(i => i >= 0).sort((a, b) => a - b));
  }
  for (const key of ["xs", "ys"]) series[key] = [...series[key].slice(0, first), ...kept.map(i => series[key][i]), series[key][last]];
  series.thinned = first + kept.length;
}

class Charts {
  constructor(box, {x = "step", time = false} = {}) {
    Object.assign(this, {box, x, time, charts: new Map()});
    new ResizeObserver(() => { for (const {plot, holder} of this.charts.values()) plot?.setSize(this.size(holder)); }).observe(box);
  }
  size(holder) { return {width: holder.clientWidth || 300, height: 220}; }
  chart(key) {
    if (!this.charts.has(key)) {
      this.box.querySelector(":scope > p")?.remove();
      const holder = this.box.appendChild(document.createElement("div"));
      holder.className = "chart";
      const title = holder.appendChild(document.createElement("h3"));
      title.textContent = key;
      const said = title.appendChild(document.createElement("span")), bad = title.appendChild(document.createElement("span"));
      said.className = "dim"; bad.className = "note";
      this.charts.set(key, {holder, said, bad, many: null, series: new Map(), first: [], since: new Map(), plot: null, stale: true});
    }
    return this.charts.get(key);
  }
  add(key, name, x, y) {
    const found = this.chart(key);
    // As `Curve` of the server: what is old is as fine as what is new.
    if (!found.series.has(name)) found.series.set(name, {xs: [], ys: [], group: 0, thinned: 1});
    const series = found.series.get(name), last = series.xs.length;
    if (last && x <= series.xs[last - 1]) return;
    series.xs.push(x); series.ys.push(y); found.stale = true;
    if (y !== null) found.since.delete(name); else if (!found.since.has(name)) found.since.set(name, x);
    if (series.group && last - series.thinned >= series.group) thin(series, series.thinned, series.group);
    else if (last >= KEEP) { series.group = Math.max(4, 2 * series.group); thin(series, 1, 4); }
  }
  // What stands beside the name of a chart, such as its last and its best value.
  say(key, text) { this.chart(key).said.textContent = ` ${text}`; }
  // Those that are drawn in colour where there are many: the best ones.
  prefer(key, names) {
    const found = this.chart(key);
    if (found.first.join() !== names.join()) Object.assign(found, {first: names, stale: true});
  }
  // Since when what is drawn is no number: said, and red at the foot of the picture.
  mark(plot, since) {
    if (!since.size) return;
    const from = Math.max(plot.bbox.left, plot.valToPos(Math.min(...since.values()), "x", true)), height = 4 * devicePixelRatio;
    plot.ctx.fillStyle = css("--bad");
    plot.ctx.fillRect(from, plot.bbox.top + plot.bbox.height - height, Math.max(height, plot.bbox.left + plot.bbox.width - from), height);
  }
  draw() {
    for (const found of this.charts.values()) {
      if (!found.stale) continue;
      found.stale = false;
      const all = [...found.series.keys()], isMany = all.length > COLORS.length;
      const first = isMany ? (found.first.length ? found.first : all).slice(0, IN_COLOR) : all;
      // What is drawn last lies above the others.
      const names = [...all.filter(name => !first.includes(name)).slice(0, MOST - first.length), ...first];
      const [[bad, since] = []] = [...found.since].sort((a, b) => a[1] - b[1]);
      found.bad.textContent = bad === undefined ? "" : ` NaN since ${this.x} ${shown(since)}${all.length > 1 ? ` (${bad}${found.since.size > 1 ? ` and ${found.since.size - 1} more` : ""})` : ""}`;
      const data = uPlot.join(names.map(name => { const {xs, ys} = found.series.get(name); return [xs, ys]; }));
      if (found.plot && found.names === names.join()) { found.plot.setData(data); continue; }
      found.plot?.destroy();
      found.names = names.join();
      const axis = {stroke: css("--fg"), grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line"), width: 1}};
      found.plot = new uPlot({...this.size(found.holder), scales: {x: {time: this.time, ...(this.time ? {range: around} : {})}}, axes: [{...axis, ...(this.time ? {space: 80, values: (_, all) => all.map(clock)} : {incrs: WHOLE})}, {...axis, size: 64}],
        series: [{label: this.x, ...(this.time ? {value: (_, at) => at === null ? "–" : clock(at)} : {})}, ...names.map(label => { const at = first.indexOf(label); return {label, stroke: at < 0 ? `${css("--dim")}55` : COLORS[at], width: at < 0 ? 1 : 2, spanGaps: true, points: {show: data[0].length < 3}}; })],
        legend: {show: !isMany}, hooks: {draw: [plot => this.mark(plot, found.since)]}}, data, found.holder);
      if (!isMany) continue;
      found.many?.remove();
      found.many = found.holder.appendChild(document.createElement("p"));
      found.many.className = "dim";
      found.many.append(`${names.length} of ${all.length} are drawn, ${found.first.length ? "the best" : "some"} in colour:`);
      for (const [at, label] of first.entries()) {
        const word = found.many.appendChild(document.createElement("span"));
        word.textContent = ` ■ ${label}`; word.style.color = COLORS[at];
      }
    }
  }
}
