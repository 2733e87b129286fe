"use strict";
// The first page as it is now, every ten seconds while somebody looks.
const part = document.getElementById("home");
setInterval(async () => {
  if (document.hidden || part.contains(document.activeElement)) return;
  const answer = await fetch("/", {headers: {"HX-Request": "true"}}).catch(() => null);
  if (isAnswered(answer, part)) part.innerHTML = await answer.text();
}, 10000);
