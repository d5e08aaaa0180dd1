// Two answers side by side: what the second changes, figure by figure. The figures are the server's.

import { factsIn, headlineIn, split, textOf } from "./answer.js";
import { h } from "./dom.js";
import { NONE, amount, figure } from "./format.js";

// By name: {text, number, less} of the facts that carry a number.
function figuresOf({ sections }) {
  const found = new Map();
  for (const { name, value, number, less } of factsIn(sections))
    if (number !== null && !found.has(name)) found.set(name, { text: textOf(value), number, less });
  return found;
}

// The headlines as a figure of its own, where both are of one kind and no fact says the same.
function headlines(a, b, facts) {
  const [one, other] = [a, b].map(({ sections }) => {
    const head = headlineIn(sections);
    return head && { ...head, ...split(head.value), text: head.value, size: amount(head.value) };
  });
  if (one?.size == null || other?.size == null || one.unit !== other.unit) return null;
  if ([...facts.values()].some(({ text }) => amount(text) === one.size)) return null;
  const name = one.label && one.label === other.label ? one.label : one.unit || one.label;
  return { name, ends: [one, other].map(({ text, size }) => ({ text, number: size, less: "" })) };
}

export function compared(labels, { a, b }) {
  if (!a || !b) return [];
  const [one, other] = [figuresOf(a), figuresOf(b)];
  const names = [...new Set([...one.keys(), ...other.keys()])];
  const figures = [headlines(a, b, one), ...names.map((name) => ({ name, ends: [one.get(name), other.get(name)] }))];
  const rows = figures.filter(Boolean).map(({ name, ends }) => {
    const { said, mood } = change(...ends);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, labels.nodes(name)),
      ends.map((end) => h("td", { class: "number" }, end?.text ?? NONE)),
      h("td", { class: `number ${mood}`.trim() }, said),
    );
  });
  if (!rows.length) return [];
  const head = h(
    "tr",
    {},
    h("th", { scope: "col", class: "lead" }, "Figure"),
    ["A", "B", "B against A"].map((name) => h("th", { scope: "col", class: "number" }, name)),
  );
  return [
    h(
      "div",
      { class: "compared", tabindex: "0", role: "group", "aria-label": "What scenario B changes" },
      h("table", {}, h("caption", {}, "What scenario B changes"), h("thead", {}, head), h("tbody", {}, rows)),
    ),
  ];
}

function change(before, after) {
  // From 40 % to 50 % is ten points more: "+25 %" would read as a share.
  const isShare = [before, after].every((found) => found?.text.endsWith("%"));
  if (!before || !after || (before.number === 0 && !isShare)) return { said: NONE, mood: "" };
  const by = isShare ? after.number - before.number : after.number / before.number - 1;
  if (!Number.isFinite(by)) return { said: NONE, mood: "" };
  if (Math.abs(by) < 0.0005) return { said: "the same", mood: "" };
  const size = figure(Number((Math.abs(by) * 100).toFixed(Math.abs(by) < 0.1 ? 1 : 0)));
  return {
    said: `${by > 0 ? "+" : "−"}${size} ${isShare ? "points" : "%"}`,
    mood: before.less ? (by < 0 === (before.less === "better") ? "good" : "bad") : "",
  };
}
