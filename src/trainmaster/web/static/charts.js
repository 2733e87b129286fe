"use strict";
// Curves as uPlot draws them: a chart per key, a line per name; one cursor over all of them.
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLORS = [1, 2, 3, 4, 5, 6, 7, 8].map(number => css(`--data-${number}`)), MOST = 200, IN_COLOR = 5, PADDING = 16, AXIS = 56;
const shown = value => typeof value === "number" ? Number(value.toPrecision(4)).toString() : "–";
const counted = value => Number.isInteger(value) ? value.toLocaleString("en-US") : shown(value);

const WHOLE = [...Array(12).keys()].flatMap(power => [1, 2, 5].map(by => by * 10 ** power));
const SPANS = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map(minutes => 60 * minutes), ...[1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 672].map(hours => 3600 * hours)];
const clock = at => new Date(at * 1000).toLocaleTimeString([], {hourCycle: "h23"});

// A single look is in the middle of a minute: uPlot would draw a day.
const around = (plot, least, most) => plot.data[0].length === 1 ? [least - 30, least + 30] : [least, most];

// A running mean: each value counts by its distance, and the first ones are not drawn to zero.
function smoothed(ys, weight) {
  let mean = 0, count = 0;
  return ys.map(y => {
    if (y === null) return null;
    mean = weight * mean + (1 - weight) * y;
    count = weight * count + (1 - weight);
    return mean / count;
  });
}

class Charts {
  // `made` is asked for the holder of a key that has none yet, `words` how a value of a key is written; what `isWhole` begins at zero.
  constructor(box, {x = "step", time = false, root = box, made = null, words = (_, value) => shown(value), isWhole = false, options = {}} = {}) {
    Object.assign(this, {box, x, time, root, words, isWhole, options: {smooth: 0, log: false, ...options}, charts: new Map()});
    this.made = made ?? (() => this.box.appendChild(document.createElement("section")));
    new ResizeObserver(() => { for (const {plot, holder} of this.charts.values()) if (holder.clientWidth) plot?.setSize(this.size(holder)); }).observe(box);
  }
  // Where something is on the axis, for people.
  placeOf(x) { return this.time ? clock(x) : this.x === "time" ? duration(x) : this.x === "epoch" ? `epoch ${shown(x)}` : `${this.x} ${counted(x)}`; }
  // All lines of a chart are of no more use; what is drawn stays until there are others.
  clear(key) {
    const found = this.chart(key);
    found.series.clear(); found.since.clear();
    found.stale = true;
  }
  size(holder) { return {width: holder.clientWidth || 300, height: innerWidth < 641 ? 180 : 220}; }
  chart(key) {
    if (!this.charts.has(key)) {
      this.box.querySelector(":scope > p")?.remove();
      let holder = [...this.root.querySelectorAll(".chart[data-key]")].find(each => each.dataset.key === key);
      if (!holder) {
        holder = this.made(key);
        holder.className = "chart"; holder.dataset.key = key;
        holder.appendChild(document.createElement("h3")).textContent = key;
      }
      const title = holder.querySelector("h3"), part = name => Object.assign(title.appendChild(document.createElement("span")), {className: name});
      this.charts.set(key, {holder, said: part("dim"), bad: part("note"), at: part("at"), legend: null, series: new Map(), first: [], hidden: new Set(), since: new Map(), fans: new Map(), plot: null, stale: true});
    }
    return this.charts.get(key);
  }
  add(key, name, x, y) {
    const found = this.chart(key);
    if (!found.series.has(name)) found.series.set(name, {xs: [], ys: []});
    const {xs, ys} = found.series.get(name);
    if (xs.length && x <= xs.at(-1)) return;
    xs.push(x); ys.push(y); found.stale = true;
    if (y !== null) found.since.delete(name); else if (!found.since.has(name)) found.since.set(name, x);
  }
  // How many points the longest line of a chart has, and how many columns of pixels there are for them.
  length(key) { return Math.max(0, ...[...this.chart(key).series.values()].map(({xs}) => xs.length)); }
  columns() { return Math.max(60, this.size(this.root.querySelector(".chart[data-key]") ?? this.box).width - PADDING - AXIS); }
  // What stands beside the name of a chart, such as its last and its best value.
  say(key, text) { this.chart(key).said.textContent = text; }
  // Those that are drawn in colour where there are many: the best ones.
  prefer(key, names) {
    const found = this.chart(key);
    if (found.first.join() !== names.join()) Object.assign(found, {first: names, stale: true});
  }
  // How a line goes on: step, p5, p50 and p95 each. A key has at most a few.
  foretell(key, name, fan) {
    const found = this.chart(key);
    if (JSON.stringify(found.fans.get(name)) !== JSON.stringify(fan)) { found.fans.set(name, fan); Object.assign(found, {stale: true, names: null}); }
  }
  // How all are drawn from now on: `smooth` (a weight below 1), `log`.
  set(options) {
    Object.assign(this.options, options);
    for (const found of this.charts.values()) Object.assign(found, {stale: true, names: null});
    this.draw();
  }
  // From when to when what is drawn is no number: said, and red at the foot of the picture.
  mark(plot, {since, series}) {
    if (!since.size) return;
    const last = Math.max(...[...since.keys()].map(name => series.get(name).xs.at(-1)));
    const right = Math.min(plot.bbox.left + plot.bbox.width, plot.valToPos(last, "x", true));
    const from = Math.max(plot.bbox.left, plot.valToPos(Math.min(...since.values()), "x", true)), height = 4 * devicePixelRatio;
    plot.ctx.fillStyle = css("--bad");
    plot.ctx.fillRect(from, plot.bbox.top + plot.bbox.height - height, Math.max(height, right - from), height);
  }
  // The values where the cursor is, beside the names of the lines.
  point(found, plot) {
    const at = plot.cursor.idx;
    const value = index => {
      let i = at;
      while (i > 0 && typeof plot.data[index][i] !== "number") i--;
      return plot.data[index][i];
    };
    if (at === null || at === undefined) found.at.textContent = "";
    else found.at.textContent = `${this.placeOf(plot.data[0][at])}${found.raw.length === 1 ? `: ${this.words(found.holder.dataset.key, value(found.raw[0][1]))}` : ""}`;
    for (const word of found.legend?.querySelectorAll("b") ?? []) {
      const mine = found.raw.find(([label]) => label === word.dataset.of);
      word.textContent = at === null || at === undefined || !mine ? "" : ` ${this.words(found.holder.dataset.key, value(mine[1]))}`;
    }
  }
  tell(found, all, drawn, first) {
    found.legend?.remove();
    found.legend = null;
    if (all.length < 2) return;
    found.legend = found.holder.appendChild(document.createElement("p"));
    found.legend.className = "legend dim";
    if (all.length > COLORS.length) found.legend.append(`${drawn} of ${all.length} are drawn, ${found.first.length ? "the best" : "some"} in colour: `);
    for (const [at, label] of first.entries()) {
      const button = found.legend.appendChild(document.createElement("button"));
      button.type = "button"; button.className = `key c${at}`; button.append(label);
      button.setAttribute("aria-pressed", String(!found.hidden.has(label)));
      button.appendChild(document.createElement("b")).dataset.of = label;
      button.addEventListener("click", () => {
        if (!found.hidden.delete(label)) found.hidden.add(label);
        Object.assign(found, {stale: true, names: null});
        this.draw();
      });
    }
  }
  draw() {
    for (const [key, found] of this.charts) {
      if (!found.stale || !found.holder.clientWidth) continue;
      found.stale = false;
      const all = [...found.series.keys()], isMany = all.length > COLORS.length, {smooth, log} = this.options;
      const first = isMany ? (found.first.length ? found.first : all).slice(0, IN_COLOR) : all;
      // What is drawn last lies above the others.
      const names = [...all.filter(name => !first.includes(name)).slice(0, MOST - first.length), ...first].filter(name => !found.hidden.has(name));
      const [[bad, since] = []] = [...found.since].sort((a, b) => a[1] - b[1]);
      found.bad.textContent = bad === undefined ? "" : `NaN since ${this.placeOf(since)}${all.length > 1 ? ` (${bad}${found.since.size > 1 ? ` and ${found.since.size - 1} more` : ""})` : ""}`;
      const tables = [], series = [];
      const isLog = log && [...found.series.values()].some(({ys}) => ys.some(y => y > 0));
      const fit = ys => isLog ? ys.map(y => y > 0 ? y : null) : ys;
      found.raw = [];
      for (const label of names) {
        const {xs, ys} = found.series.get(label), at = first.indexOf(label), stroke = at < 0 ? `${css("--dim")}55` : COLORS[at];
        const look = {label, stroke, ...(at > 3 ? {dash: [6, 3]} : {}), points: {show: xs.length < 3, size: 6}};
        found.raw.push([label, tables.length + 1]);
        tables.push([xs, fit(ys)]);
        series.push({...look, width: at < 0 ? 1 : smooth ? 1 : 2, alpha: smooth && at >= 0 ? 0.35 : 1});
        if (smooth && at >= 0) { tables.push([xs, fit(smoothed(ys, smooth))]); series.push({...look, width: 2}); }
      }
      const bands = [];
      for (const [name, fan] of this.x === "step" ? found.fans : []) {
        const at = first.indexOf(name), stroke = COLORS[Math.max(at, 0)];
        if (!names.includes(name)) continue;
        bands.push({series: [tables.length + 3, tables.length + 1], fill: `${stroke}33`});
        for (const place of [1, 2, 3]) {
          tables.push([fan.map(each => each[0]), fit(fan.map(each => each[place]))]);
          series.push({label: `${name} p${[5, 50, 95][place - 1]}`, stroke, width: place === 2 ? 1 : 0, dash: [3, 4], spanGaps: true, points: {show: false}});
        }
      }
      const data = tables.length ? uPlot.join(tables) : [[]], wanted = JSON.stringify([this.x, names, first, smooth, isLog]);
      if (found.plot && found.names === wanted) { found.plot.setData(data); continue; }
      found.plot?.destroy();
      found.names = wanted;
      const axis = {stroke: css("--dim"), font: "12px system-ui, sans-serif", grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line"), width: 1, size: 4}};
      found.plot = new uPlot({...this.size(found.holder), padding: [8, PADDING, 0, 0], scales: {x: {time: this.time, ...(this.time ? {range: around} : {})}, y: isLog ? {distr: 3} : this.isWhole ? {range: (_, least, most) => [0, 1.05 * Math.max(most, this.words(key, 0) === "0" ? 0.01 : 1000)]} : {}},
        axes: [{...axis, size: 28, ...(this.time ? {space: 80, values: (_, all) => all.map(clock)} : this.x === "time" ? {space: 80, incrs: SPANS, values: (_, all) => all.map(duration)} : this.x === "epoch" ? {} : {incrs: WHOLE})}, {...axis, size: AXIS, values: (_, all) => all.map(value => value === null ? "" : this.words(found.holder.dataset.key, value))}],
        series: [{label: this.x}, ...series], bands, legend: {show: false}, cursor: {y: false, drag: {x: true, y: false}, sync: {key: this.time ? "time" : "all", scales: ["x", null]}},
        hooks: {draw: [plot => this.mark(plot, found)], setCursor: [plot => this.point(found, plot)]}}, data, found.holder);
      this.tell(found, all, Math.min(all.length, MOST), first);
    }
  }
}
