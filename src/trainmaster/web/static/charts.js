"use strict";
// Curves as uPlot draws them: a chart per key, a line per name.
const COLORS = matchMedia("(prefers-color-scheme: dark)").matches
  ? ["#7aa5ff", "#f5a742", "#4fd1a0", "#ff8080", "#b794ff", "#5cc8dd", "#ff85bd", "#a3d65c"]
  : ["#2563eb", "#b45309", "#047857", "#dc2626", "#7c3aed", "#0e7490", "#be185d", "#4d7c0f"], KEEP = 4000;
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shown = value => typeof value === "number" ? Number(value.toPrecision(4)).toString() : "–";

const WHOLE = [...Array(12).keys()].flatMap(power => [1, 2, 5].map(by => by * 10 ** power));
const clock = at => new Date(at * 1000).toLocaleTimeString([], {hourCycle: "h23"});

// A single look is in the middle of a minute: uPlot would draw a day.
const around = (plot, least, most) => plot.data[0].length === 1 ? [least - 30, least + 30] : [least, most];

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
      const said = title.appendChild(document.createElement("span"));
      said.className = "dim";
      this.charts.set(key, {holder, said, series: new Map(), plot: null, stale: true});
    }
    return this.charts.get(key);
  }
  add(key, name, x, y) {
    const found = this.chart(key);
    if (!found.series.has(name)) found.series.set(name, [[], []]);
    const [xs, ys] = found.series.get(name);
    if (xs.length && x <= xs[xs.length - 1]) return;
    xs.push(x); ys.push(y); found.stale = true;
    if (xs.length > KEEP) { xs.splice(1, 1); ys.splice(1, 1); }
  }
  // What stands beside the name of a chart, such as its last and its best value.
  say(key, text) { this.chart(key).said.textContent = ` ${text}`; }
  draw() {
    for (const found of this.charts.values()) {
      if (!found.stale) continue;
      found.stale = false;
      const names = [...found.series.keys()].slice(0, COLORS.length);
      const data = uPlot.join(names.map(name => found.series.get(name)));
      if (found.plot && found.names === names.join()) { found.plot.setData(data); continue; }
      found.plot?.destroy();
      found.names = names.join();
      const axis = {stroke: css("--fg"), grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line"), width: 1}};
      found.plot = new uPlot({...this.size(found.holder), scales: {x: {time: this.time, ...(this.time ? {range: around} : {})}}, axes: [{...axis, ...(this.time ? {space: 80, values: (_, all) => all.map(clock)} : {incrs: WHOLE})}, {...axis, size: 64}],
        series: [{label: this.x, ...(this.time ? {value: (_, at) => at === null ? "–" : clock(at)} : {})}, ...names.map((label, i) => ({label, stroke: COLORS[i], width: 2, spanGaps: true, points: {show: data[0].length < 3}}))]}, data, found.holder);
    }
  }
}
