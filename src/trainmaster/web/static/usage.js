"use strict";
// What tasks and the operating system of the machine use, over time; anew every ten seconds while the run goes on.
const box = document.getElementById("usage"), run = encodeURIComponent(box.dataset.run);
const KEYS = {cpu_cores: "CPU, cores", memory_bytes: "Memory", sent_bytes_per_s: "Sent per second", received_bytes_per_s: "Received per second",
  gpus_busy: "GPUs busy", gpu_memory_bytes: "GPU memory", cpu_percent: "CPU, %", memory_available_bytes: "Memory free", disk_free_bytes: "Disk free"};
const BYTES = new Set(Object.keys(KEYS).filter(key => key.includes("bytes")).map(key => KEYS[key]));
const LOOK = {x: "time", time: true, isWhole: true, words: (key, value) => BYTES.has(key) && typeof value === "number" ? bytesOf(value) : shown(value)};
const members = new Charts(box, LOOK), machine = new Charts(document.getElementById("machine"), LOOK);
function add(charts, name, curves) {
  for (const [key, title] of Object.entries(KEYS))
    curves[key]?.forEach((value, i) => { if (value !== null) charts.add(title, name, curves.times[i], value); });
}
async function look() {
  if (!document.hidden) {
    const answer = await fetch(`/api/v1/runs/${run}/usage`).catch(() => null);
    if (answer?.ok) {
      const found = await answer.json();
      for (const each of found.members) add(members, `${each.experiment}/${each.task}#${each.attempt} ${each.member}`, each);
      for (const each of found.nodes) add(machine, each.node, each);
      if (found.machine?.times.length) add(machine, "machine", found.machine);
      members.draw();
      machine.draw();
    }
  }
  if (box.dataset.over === "0") setTimeout(look, 10000);
}
look();
