// The description of an answer, as the server makes it for every door: sections of lines, facts, tables, bars and files.
// Nothing is added here but the shape; names of inputs become the labels of the form.

import { copyButton, download, h } from "./dom.js";
import { planLink } from "./opening.js";
import { table } from "./table.js";

const STRONG = new Set(["strong", "best", "worst", "alert"]);
const VERDICTS = { best: "good", good: "good", worst: "bad", bad: "bad", alert: "warn", warn: "warn" };
// Where a speed comes from, and whether an SLO holds, in the words of report/wording.py: one look tells them apart.
const BADGES = { timed: "good", scaled: "accent", assumed: "warn" };

export const textOf = (spans) => spans.map((span) => span.text).join("");
const isHeadline = (block) => block.type === "line" && (block.kind === "headline" || block.kind === "worst");

// The parts of a headline: what comes before the strong piece, that piece, and the rest. "From" and "on" around a volume
// stay beside it: the sentence then goes on below.
function headlineOf({ kind, spans }) {
  const at = spans.findIndex((span) => STRONG.has(span.mood));
  if (at < 0) return { label: "", value: textOf(spans), detail: "", mood: kind === "worst" ? "bad" : "" };
  const before = textOf(spans.slice(0, at));
  const after = textOf(spans.slice(at + 1));
  const lead = before.trim() === "From" ? "From" : "";
  const trail = lead ? (after.match(/^ on,?/)?.[0] ?? "") : "";
  return {
    lead,
    trail: trail.trim(),
    label: lead ? "" : before.replace(/[:\s]+$/, ""),
    value: spans[at].text.trim(),
    detail: after.slice(trail.length).replace(/^[\s:;,.]+/, ""),
    mood: spans[at].mood === "best" || spans[at].mood === "strong" ? "" : VERDICTS[spans[at].mood],
  };
}

// A value and its unit: $0.139 | per million tokens.
export function split(value) {
  const [, number, unit] = value.match(/^(\S*\d\S*(?: [KMBT%×](?!\w))?(?: → \S+)?)(?:\s+(.+))?$/) ?? [null, value];
  return { number, unit };
}

// What is said aloud, and what two answers are compared by.
export function headlineIn(sections) {
  const line = sections.flatMap((section) => section.blocks).find(isHeadline);
  return line ? { ...headlineOf(line), text: textOf(line.spans) } : null;
}

export function factsIn(sections) {
  return sections.flatMap(({ blocks }) => blocks.filter(({ type }) => type === "facts").flatMap(({ rows }) => rows));
}

// The longest table, as texts: what a spreadsheet gets where the result has no rows of its own.
export function tableIn(sections) {
  const tables = sections.flatMap(({ blocks }) => blocks.filter(({ type }) => type === "table"));
  const longest = tables.reduce((best, table) => (table.rows.length > (best?.rows.length ?? 0) ? table : best), null);
  if (!longest) return null;
  const names = longest.columns.map(({ name }, at) => name || (at ? `column ${at + 1}` : "#"));
  return { names, rows: longest.rows.map((row) => row.map(textOf)) };
}

// Elements before the charts (the headline and its figures) and after them; where a chart is the view's hero, only what
// is said up to the headline stands before it, and `beneath` has the figures.
export function described(sections, labels, { hero = false } = {}) {
  const headlined = sections.findIndex(({ blocks }) => blocks.some(isHeadline));
  let end = headlined + 1;
  while (end > 0 && end < sections.length && sections[end].blocks.every(({ type }) => type === "facts")) end += 1;
  const state = { labels, isFirst: true };
  const elements = sections.map((section) => drawn(section, state));
  const [before, after] = [elements.slice(0, end).flat(Infinity), elements.slice(end)];
  const split = hero ? before.findIndex((element) => element.classList.contains("headline")) + 1 || before.length : before.length;
  return { before: before.slice(0, split), beneath: before.slice(split), after };
}

function drawn({ title, folded, blocks }, state) {
  if (folded) return unfolding(h("h2", {}, state.labels.nodes(title)), () => elementsOf(blocks, title, state));
  if (title) {
    const heading = h("h2", {}, state.labels.nodes(title));
    return h("section", { class: "part" }, heading, elementsOf(blocks, title, state));
  }
  // Headlines, figures and advice stand for themselves; a card holds what lies between them.
  const parts = [];
  let card = [];
  const close = () => {
    const isSmall = card.every(({ type, kind }) => type === "line" && kind === "note");
    const elements = elementsOf(card, "", state);
    if (card.length) parts.push(isSmall ? elements : h("section", { class: "part" }, elements));
    card = [];
  };
  for (const block of blocks.filter(({ kind }) => kind !== "next")) {
    if (!isHeadline(block) && !ALONE.has(block.kind ?? block.type)) card.push(block);
    else {
      close();
      parts.push(elementsOf([block], "", state));
    }
  }
  close();
  return parts;
}

const ALONE = new Set(["asked", "hint", "facts"]);

// A table without a title is called by the heading above it.
function elementsOf(blocks, title, state) {
  let heading = title;
  return blocks.flatMap((block) => {
    if (block.kind === "heading") heading = textOf(block.spans);
    return BLOCKS[block.type](block, state, heading, title ? "h3" : "h2");
  });
}

// A long table is made when it is looked at.
function unfolding(heading, draw) {
  const details = h("details", { class: "part folded", ontoggle: fill }, h("summary", {}, heading));
  function fill() {
    if (details.open && details.children.length === 1) details.append(...draw());
  }
  return details;
}

const BLOCKS = {
  line(block, state, _, level) {
    if (isHeadline(block)) return headline(block, state);
    const { kind, spans } = block;
    if (kind === "next") return []; // a command to type: here the views are beside each other
    const text = textOf(spans);
    if (kind === "heading") return h(level, { class: "inside" }, inline(spans, state));
    const inner = /^\s{2,}/.test(text) ? "inner" : "";
    return h("p", { class: `said ${kind} ${inner}`.trim() }, inline(spans.map(unbroken), state));
  },
  facts({ rows }, state) {
    const { nodes } = state.labels;
    return h(
      "dl",
      { class: "tiles" },
      rows.map(({ name, value, note }) =>
        h(
          "div",
          {},
          h("dt", {}, nodes(name)),
          h("dd", {}, badged(value, state)),
          note && h("dd", { class: "note" }, nodes(note)),
        ),
      ),
    );
  },
  table({ title, columns, rows, best, shown }, state, heading) {
    const named = columns.map((column) => ({ ...column, name: state.labels.text(column.name) }));
    const caption = state.labels.text(title || heading || named.map(({ name }) => name).filter(Boolean).join(", "));
    const cells = rows.map((row) => row.map((spans) => ({ text: textOf(spans), nodes: badged(spans, state) })));
    return table({
      caption,
      isCaptionSeen: Boolean(title),
      columns: named,
      rows: cells,
      limit: shown ?? undefined,
      best,
    });
  },
  bar({ parts }) {
    const strip = h("div", { class: "strip", "aria-hidden": "true" });
    for (const { size, colour } of parts) {
      const piece = h("span", { class: colour });
      piece.style.setProperty("flex-grow", String(size));
      strip.append(piece);
    }
    const legend = parts.map(({ name, colour, label }) =>
      h("li", {}, h("span", { class: `swatch ${colour}`, "aria-hidden": "true" }), `${name} ${label}`),
    );
    return [strip, h("ul", { class: "legend" }, legend)];
  },
  file({ name, text }) {
    return h(
      "details",
      { class: "file" },
      h("summary", {}, h("code", {}, name)),
      h(
        "div",
        { class: "tools" },
        copyButton(text),
        h("button", { type: "button", class: "quiet", onclick: () => download(name, text, "text/plain") }, "Save"),
      ),
      h("pre", { tabindex: "0" }, text),
    );
  },
};

// The first headline is large: its number, and beside it the unit.
function headline(line, state) {
  const { lead, trail = "", label, value, detail, mood } = headlineOf(line);
  const { number, unit = "" } = split(value);
  const isTail = detail.length < 8; // a word such as "on." belongs to the unit
  const size = state.isFirst && number.length <= 24 ? "" : "second";
  state.isFirst = false;
  const { nodes } = state.labels;
  return h(
    "div",
    { class: `headline ${mood} ${size}`.trim() },
    label && h("p", { class: "label" }, nodes(label)),
    h(
      "p",
      { class: "value" },
      lead && h("span", { class: "unit" }, `${lead} `),
      h("strong", {}, nodes(number)),
      " ",
      h("span", { class: "unit" }, nodes([unit, trail, isTail && detail].filter(Boolean).join(" "))),
    ),
    !isTail && h("p", { class: "detail" }, nodes(detail)),
  );
}

function inline(spans, { labels }) {
  return spans.map(({ text, mood, opens }) => {
    const nodes = labels.nodes(text);
    if (opens) return planLink(opens, nodes);
    return mood ? h("span", { class: mood }, nodes) : nodes;
  });
}

function badged(spans, state) {
  const badge = spans.length === 1 && BADGES[spans[0].text];
  return badge ? h("span", { class: `badge ${badge}` }, spans[0].text) : inline(spans, state);
}

// Small print is broken into lines for a terminal; here only ends of sentences are.
function unbroken({ text, mood }) {
  return { text: text.replaceAll(/([^.:;?!])\n/g, "$1 "), mood };
}
