"use strict";
// Files in pieces that grow and shrink with the connection. A file that was begun goes on where the server is,
// also after the page was closed: what it is called there is remembered under its name, size and date.
const LEAST = 1 << 18, MOST = 16 << 20;
const pause = ms => new Promise(done => setTimeout(done, ms));

async function ask(path, options) {
  const answer = await fetch(path, options);
  if (answer.status >= 400) {
    const said = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(`${said.title ?? answer.statusText} ${said.hint ?? ""}`), {status: answer.status});
  }
  return answer;
}
const asJson = body => ({method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)});

// Tries as long as the server does not answer; what the server refuses is an error.
async function patient(work, tell) {
  for (let wait = 1000;; wait = Math.min(2 * wait, 30000)) {
    try { return await work(); } catch (error) {
      if (error.status && error.status < 500 || error.status === 507) throw error;
      tell("The connection is lost; trying again.");
      await pause(wait);
    }
  }
}
async function sendFile(file, kind, tell) {
  const key = `upload ${kind} ${file.name} ${file.size} ${file.lastModified}`;
  const where = id => `/api/v1/uploads/${id}`;
  let id = localStorage.getItem(key), offset = -1;
  const look = async () => {
    const answer = await fetch(where(id), {method: "HEAD"});
    if (answer.status >= 500) throw new Error();
    return answer.ok ? Number(answer.headers.get("Upload-Offset")) : -1;
  };
  if (id) offset = await patient(look, tell);
  if (offset < 0) {
    const begun = await patient(() => ask("/api/v1/uploads", asJson({name: file.name, size_bytes: file.size, kind})), tell);
    id = (await begun.json()).upload; offset = 0;
    localStorage.setItem(key, id);
  }
  const first = offset, began = Date.now();
  for (let size = 1 << 20; offset < file.size;) {
    tell(null, offset, offset > first ? (file.size - offset) * (Date.now() - began) / (offset - first) / 1000 : null);
    const at = Date.now(), headers = {"Content-Type": "application/offset+octet-stream", "Upload-Offset": offset};
    try {
      const answer = await ask(where(id), {method: "PATCH", headers, body: file.slice(offset, offset + size)});
      offset = Number(answer.headers.get("Upload-Offset"));
      const took = Date.now() - at;
      size = took < 2000 ? Math.min(MOST, 2 * size) : took > 10000 ? Math.max(LEAST, size / 2) : size;
    } catch (error) {
      if (error.status && error.status < 500 && error.status !== 409 || error.status === 507) throw error;
      tell("The connection is lost; trying again.");
      size = LEAST;
      await pause(1000);
      offset = await patient(look, tell);
      if (offset < 0) { localStorage.removeItem(key); throw new Error("The server has removed this upload; send it again."); }
    }
  }
  tell(null, file.size, 0);
  return {id, forget: () => localStorage.removeItem(key)};
}
// What the server makes of uploads; it says 202 as long as it is at it.
async function finishUpload(id, wish, tell) {
  for (;;) {
    const found = await (await patient(() => ask(`/api/v1/uploads/${id}/finish`, asJson(wish)), tell)).json();
    if (found.state === "DONE") return found.result;
    await pause(1000);
  }
}
