"use strict";
const form = document.getElementById("send"), bar = document.getElementById("progress"), said = document.getElementById("said");
const span = s => s < 90 ? `${Math.ceil(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
form.addEventListener("submit", async event => {
  event.preventDefault();
  const files = [...form.elements.file.files], total = files.reduce((sum, file) => sum + file.size, 0);
  const button = form.querySelector("button");
  button.disabled = true; bar.hidden = false;
  const leaving = event => event.preventDefault();
  addEventListener("beforeunload", leaving);
  try {
    const sent = [];
    let before = 0;
    for (const file of files) {
      sent.push(await sendFile(file, "volume", (trouble, offset, left) => {
        if (trouble) { said.textContent = trouble; return; }
        bar.value = total ? (before + offset) / total : 1;
        said.textContent = `${file.name}: ${bytesOf(offset)} of ${bytesOf(file.size)}` + (left ? `, about ${span(left)} left` : "");
      }));
      before += file.size;
    }
    said.textContent = "Everything is sent; a version is made of it.";
    const volume = form.elements.volume.value.trim();
    await finishUpload(sent[0].id, {volume, uploads: sent.slice(1).map(each => each.id)}, trouble => { said.textContent = trouble; });
    sent.forEach(each => each.forget());
    removeEventListener("beforeunload", leaving);
    location.href = `/volumes/${volume.split("/").map(encodeURIComponent).join("/")}`;
  } catch (error) {
    said.textContent = error.message;
  } finally {
    removeEventListener("beforeunload", leaving);
    button.disabled = false;
  }
});
