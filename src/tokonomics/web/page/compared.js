// Two answers side by side: what the second changes, figure by figure. The first row are the headlines themselves, so
// that the difference is of what both say; figures of different units or of different questions are not compared.

import { factsIn, headlineIn, textOf } from "./answer.js";
import { h } from "./dom.js";
import { NONE, amount, figure, unitOf } from "./format.js";

const OTHER_UNIT = "another unit";
const SHORT = 40; // characters of a label that stands for its headline; longer ones are sentences

// By name: {text, number, unit, less} of the facts that carry a number, those of the first headline alone.
function figuresOf({ sections }) {
  const found = new Map();
  for (const { name, value, number, less } of factsIn(underFirst(sections))) {
    const text = textOf(value);
    if (number !== null && !found.has(name)) found.set(name, { text, number, unit: unitOf(text), less });
  }
  return found;
}

// Up to the second headline, which speaks of another choice.
function underFirst(sections) {
  const headed = sections.flatMap((section, at) => (headlineIn([section]) ? [at] : []));
  return headed.length > 1 ? sections.slice(0, headed[1]) : sections;
}

// What a headline says, as a figure; "$2 → $1 an hour" says $1. Its exact number is that of the fact which repeats it.
function headOf({ sections }, facts) {
  const head = headlineIn(sections);
  if (!head) return null;
  const last = head.value.split("→").at(-1).trim();
  const size = amount(last);
  if (size === null) return { ...head, text: head.value, number: null, unit: null, repeated: null };
  const unit = unitOf(last);
  const isSame = ([, { text }]) => amount(text) === size && ["$", "%"].every((sign) => text.includes(sign) === last.includes(sign));
  const [repeated, fact] = [...facts].find(isSame) ?? [null, null];
  const number = fact?.number ?? (unit === "%" ? size / 100 : size);
  return { ...head, text: head.value, number, unit, less: fact?.less ?? lessOf(unit), repeated };
}

// Whether less of a unit is better: dollars are paid, tokens a second are got. Of others a headline does not say.
function lessOf(unit) {
  if (unit.startsWith("$")) return "better";
  return /^[\w ]*(tok|tokens|requests)\/s/.test(unit) ? "worse" : "";
}

export function compared(labels, { a, b }) {
  if (!a || !b) return [];
  if (a.verb !== b.verb)
    return framed(h("p", { class: "said note" }, "A and B ask different questions: their figures do not compare."));
  const [one, other] = [figuresOf(a), figuresOf(b)];
  const heads = [headOf(a, one), headOf(b, other)];
  const isRepeated = heads[0]?.repeated && heads[0].repeated === heads[1]?.repeated;
  const names = [...new Set([...one.keys(), ...other.keys()])].filter((name) => !isRepeated || name !== heads[0].repeated);
  const figures = [
    heads.every(Boolean) && { name: nameOf(heads), ends: heads },
    ...names.map((name) => ({ name, ends: [one.get(name), other.get(name)] })),
  ];
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
  const table = h("table", {}, h("caption", {}, "What scenario B changes"), h("thead", {}, head), h("tbody", {}, rows));
  return framed(
    table,
    apart(a, b, heads).map((text) => h("p", { class: "said note" }, labels.nodes(text))),
  );
}

const framed = (...children) => [
  h("div", { class: "compared", tabindex: "0", role: "group", "aria-label": "What scenario B changes" }, children),
];

function nameOf([one, other]) {
  return one.label && one.label === other.label && one.label.length <= SHORT ? one.label : "Headline";
}

// What keeps two answers from being compared figure by figure.
function apart(a, b, heads) {
  const [one, other] = [a, b].map(({ inputs }) => [inputs.model ?? []].flat().join(", "));
  const said = [];
  if (one !== other)
    said.push(
      `A is of ${one || "every model"}, B of ${other || "every model"}: a token of one model holds more text than one of another, so prices per token compare only roughly.`,
    );
  const [first, second] = heads;
  if (first && second && first.label !== second.label)
    said.push(`A says: ${first.label || first.value}. B says: ${second.label || second.value}.`);
  return said;
}

function change(before, after) {
  if (before?.number == null || after?.number == null) return { said: NONE, mood: "" };
  const said = [before.unit, after.unit].filter((unit) => unit !== null); // "none" is of any
  const units = new Set(said.map((unit) => unit.replaceAll(/(?<=\w)s\b/g, ""))); // 1 GPU, 2 GPUs
  if (units.size > 1) return { said: OTHER_UNIT, mood: "" };
  // From 40 % to 50 % is ten points more: "+25 %" would read as a share.
  const isShare = units.has("%");
  const by = after.number - before.number;
  if (by === 0) return { said: "the same", mood: "" };
  // Of a loss, half as much again is less: what changes is measured by the size of what was.
  const share = isShare ? by : by / Math.abs(before.number);
  if (!Number.isFinite(share)) return { said: NONE, mood: "" };
  if (Math.abs(share) < 0.0005) return { said: "the same", mood: "" };
  const size = figure(Number((Math.abs(share) * 100).toFixed(Math.abs(share) < 0.1 ? 1 : 0)));
  return {
    said: `${by > 0 ? "+" : "−"}${size} ${isShare ? "points" : "%"}`,
    mood: before.less ? (by < 0 === (before.less === "better") ? "good" : "bad") : "",
  };
}
