// The server, as functions. Every failure becomes a Refusal with what, where and what to do.

export class Refusal extends Error {
  constructor({ what, where = null, fix = null }, status = 0) {
    super(what);
    Object.assign(this, { what, where, fix, status });
  }
}

// A kept connection may close just as it is used again: what is asked changes nothing, so it is asked once more.
async function reached(path, options) {
  const request = { credentials: "same-origin", ...options };
  try {
    return await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return fetch(path, request);
  }
}

async function asked(path, options = {}) {
  let reply;
  try {
    reply = await reached(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal({
      what: "The server does not answer",
      where: location.host,
      fix: "Start it again with `tokonomics web`, then reload.",
    });
  }
  if (reply.ok) return reply;
  let said = null;
  try {
    said = (await reply.json()).error;
  } catch {
    /* not JSON: the status says what there is to say */
  }
  throw new Refusal(
    said ?? { what: `The server answered ${reply.status} ${reply.statusText}`, where: path },
    reply.status,
  );
}

const post = (path, body, signal) =>
  asked(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });

export const catalog = async () => (await asked("/api/v1/catalog")).json();
export const apis = async () => (await asked("/api/v1/catalog/apis")).json();
export const verbs = async () => (await asked("/api/v1/verbs")).json();
export const accuracy = async (chosen) => (await asked(`/api/v1/accuracy?${new URLSearchParams(chosen)}`)).json();
export const meter = async () => (await asked("/api/v1/meter")).json();

// Those parts of an answer: result, sections, text, markdown, charts. The server solves it once for all of them.
export async function answer(verb, inputs, { parts, signal }) {
  const wanted = new URLSearchParams(parts.map((part) => ["part", part]));
  return (await post(`/api/v1/answers/${encodeURIComponent(verb)}?${wanted}`, inputs, signal)).json();
}

// An answer with those parts as well, which are asked for where it came without.
export async function withParts(given, ...parts) {
  const missing = parts.filter((part) => given[part] === undefined);
  if (!missing.length) return given;
  const more = await answer(given.verb, given.inputs, { parts: missing });
  return Object.assign(given, Object.fromEntries(missing.map((part) => [part, more[part]])));
}

export async function report(body) {
  return (await post("/api/v1/report", body)).blob();
}

export async function upload(file) {
  const path = `/api/v1/uploads?name=${encodeURIComponent(file.name)}`;
  return (
    await asked(path, { method: "POST", headers: { "content-type": "application/octet-stream" }, body: file })
  ).json();
}

// The columns of a file that was uploaded, its first rows, and a guess at which is what.
export const table = async (id) => (await asked(`/api/v1/uploads/${encodeURIComponent(id)}/table`)).json();

// Runs a job; `tell` hears what is being simulated. Aborting the signal cancels it on the server too.
export async function job(verb, inputs, { tell, signal }) {
  const { id } = await (await post("/api/v1/jobs", { verb, inputs }, signal)).json();
  const path = `/api/v1/jobs/${encodeURIComponent(id)}`;
  return new Promise((resolve, reject) => {
    const events = new EventSource(`${path}/events`);
    const stop = () => {
      events.close();
      fetch(path, { method: "DELETE", credentials: "same-origin", keepalive: true }).catch(() => {});
      reject(new DOMException("cancelled", "AbortError"));
    };
    const over = (settle) => (event) => {
      events.close();
      signal?.removeEventListener("abort", stop);
      settle(event);
    };
    if (signal?.aborted) return stop();
    signal?.addEventListener("abort", stop, { once: true });
    events.addEventListener("progress", (event) => tell(JSON.parse(event.data)));
    events.addEventListener(
      "answer",
      over((event) => resolve({ ...JSON.parse(event.data), job: id })),
    );
    events.addEventListener(
      "failed",
      over((event) => reject(new Refusal(JSON.parse(event.data).error))),
    );
    events.addEventListener(
      "cancelled",
      over(() => reject(new DOMException("cancelled", "AbortError"))),
    );
    events.addEventListener("error", () => {
      // While it reconnects by itself there is nothing to say.
      if (events.readyState === EventSource.CLOSED)
        over(() =>
          reject(
            new Refusal({
              what: "The connection to the server was lost",
              fix: "Start it again with `tokonomics web`, then reload.",
            }),
          ),
        )();
    });
  });
}

export function meterEvents(hear) {
  const events = new EventSource("/api/v1/meter/events");
  const listen = (event) => hear(JSON.parse(event.data));
  events.addEventListener("message", listen);
  events.addEventListener("state", listen);
  return () => events.close();
}
