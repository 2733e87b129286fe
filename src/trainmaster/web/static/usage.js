"use strict";
// What tasks and the operating system of the machine use, over time; anew every ten seconds while the run goes on.
const box = document.getElementById("usage"), run = encodeURIComponent(box.dataset.run);
const KEYS = {cpu_cores: ["CPU, cores", 1], memory_bytes: ["Memory, GB", 1e9], sent_bytes_per_s: ["Sent, MB/s", 1e6], received_bytes_per_s: ["Received, MB/s", 1e6],
  gpus_busy: ["GPUs busy", 1], gpu_memory_bytes: ["GPU memory, GB", 1e9], cpu_percent: ["CPU, %", 1], memory_available_bytes: ["Memory free, GB", 1e9], disk_free_bytes: ["Disk free, GB", 1e9]};
const members = new Charts(box, {x: "time", time: true}), machine = new Charts(document.getElementById("machine"), {x: "time", time: true});
function add(charts, name, curves) {
  for (const [key, [title, by]] of Object.entries(KEYS))
    curves[key]?.forEach((value, i) => { if (value !== null) charts.add(title, name, curves.times[i], value / by); });
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
