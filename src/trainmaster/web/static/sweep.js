"use strict";
// The value of each trial of a search, and the best one so far.
async function load() {
  const boxes = [...document.querySelectorAll("[data-search]")];
  if (!boxes.length) return;
  const answer = await fetch(`/api/v1/runs/${encodeURIComponent(boxes[0].dataset.run)}/searches`).catch(() => null);
  if (!answer?.ok) return;
  for (const search of (await answer.json()).searches) {
    const charts = new Charts(boxes.find(box => box.dataset.search === search.experiment), {x: "task"});
    let best = null;
    for (const trial of search.trials) {
      if (trial.state === "FAILED") continue;
      const isBetter = best === null || (search.goal === "min" ? trial.value < best : trial.value > best);
      if (isBetter && trial.state !== "PRUNED") best = trial.value;
      charts.add(search.metric, "this task", trial.task, trial.value);
      if (best !== null) charts.add(search.metric, "best so far", trial.task, best);
    }
    charts.draw();
  }
}
load();
