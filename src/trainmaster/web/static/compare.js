"use strict";
// Curves of several runs over each other.
const box = document.getElementById("charts"), charts = new Charts(box);
async function load() {
  for (const run of box.dataset.runs.split(" ")) {
    const answer = await fetch(`/api/v1/runs/${encodeURIComponent(run)}/metrics?points=300`).catch(() => null);
    if (!answer?.ok) continue;
    // Of a run with many tasks its best one of each metric: more lines hide each other.
    const best = new Map();
    for (const curve of (await answer.json()).metrics) {
      const known = best.get(curve.key);
      if (!known || (curve.goal === "min" ? curve.best < known.best : curve.best > known.best)) best.set(curve.key, curve);
    }
    for (const [key, curve] of best)
      curve.steps.forEach((x, i) => { charts.add(key, `${run} ${curve.experiment}/${curve.task}`, x, curve.values[i]); });
    charts.draw();
  }
}
load();
