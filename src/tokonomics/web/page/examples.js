// What a view shows before anything is asked: the answer to its own defaults, computed beforehand (docs/page_examples.py).

import { h } from "./dom.js";

const READ = new Map();

async function read(verb) {
  const reply = await fetch(`/static/examples/${verb}.json`, { credentials: "same-origin" });
  return reply.ok ? reply.json() : null;
}

const sorted = (inputs) => JSON.stringify(Object.entries(inputs).sort());

// The example that answers exactly this request; null where the scenario is another, or there is none.
export async function exampleOf(view, { verb, inputs }) {
  if (!view.examples?.includes(verb)) return null;
  const answer = READ.get(verb) ?? (await read(verb).catch(() => null));
  if (answer) READ.set(verb, answer); // one that could not be had is asked for again
  return answer && sorted(answer.inputs) === sorted(inputs) ? { ...answer, example: view.submitLabel } : null;
}

// Says what it is, of when, and how to get one's own.
export function exampleNote({ title, made, version, prices, example }) {
  const what = title[0].toLowerCase() + title.slice(1);
  const priced = [...new Set(prices)].join(" to ");
  return h(
    "p",
    { class: "said example" },
    h("strong", {}, "An example: "),
    `${what}, computed on ${made} by tokonomics ${version} with prices of ${priced}. Press ${example} for yours.`,
  );
}
