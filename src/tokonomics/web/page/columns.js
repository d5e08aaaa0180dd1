// Which column of somebody's own table is what: a dialogue with its first rows and a list for each field of a request.
// What is chosen is the text that the command line takes: arrival=when,input=in,output=out.

import { table as tableOf } from "./api.js";
import { freshId, h } from "./dom.js";
import { capital } from "./format.js";
import { shown } from "./uploads.js";

const USUAL = ["prefix", "tenant", "session"]; // optional fields that most logs have; the others are folded
const BLOCK = "block"; // tokens of a block of the prefix: a number, not a column

export const isOwn = (trace) => Boolean(trace?.startsWith("upload:"));

function read(columns) {
  const parts = (columns ?? "").split(",").filter((part) => part.includes("="));
  return Object.fromEntries(
    parts.map((part) => [part.slice(0, part.indexOf("=")).trim(), part.slice(part.indexOf("=") + 1).trim()]),
  );
}

const written = (chosen) =>
  Object.entries(chosen)
    .filter(([, column]) => column)
    .map(([field, column]) => `${field}=${column.trim()}`)
    .join(",");

// The columns that the reader chooses for a log, as text; null where they leave it as it is.
export async function chooseColumns(trace, columns, known = null) {
  let table = known;
  try {
    table ??= await tableOf(trace.slice("upload:".length));
  } catch (error) {
    return asked((close) => [
      h("p", {}, capital(error.what ?? error.message), error.fix && ` ${error.fix}`),
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close(null) }, "Close")),
    ]);
  }
  return asked((close) => choice(shown(trace), table, read(columns), close));
}

// A dialogue that says one thing in the end; Escape says null. The browser keeps the focus within, and gives it back.
function asked(contents) {
  return new Promise((resolve) => {
    const id = freshId("columns");
    const dialog = h("dialog", { class: "columns", "aria-labelledby": id });
    const close = (said) => (dialog.close(), dialog.remove(), resolve(said));
    dialog.addEventListener("cancel", (event) => (event.preventDefault(), close(null)));
    dialog.append(h("h2", { id }, "Which column is what?"));
    for (const part of contents(close)) dialog.append(part);
    document.body.append(dialog);
    dialog.showModal();
  });
}

function choice(name, { columns, rows, fields }, given, close) {
  const told = Object.keys(given).length > 0;
  // Chosen before, by the name without the spaces around it; else as guessed.
  const first = (field) => {
    const wanted = told ? given[field.name] : field.guess;
    return columns.find((column) => column === wanted || column.trim() === wanted) ?? "";
  };
  const chosen = Object.fromEntries(fields.map((field) => [field.name, first(field)]));
  const required = fields.filter((field) => field.required);
  const begin = required.find((field) => !chosen[field.name]) ?? required[0]; // what is left to say
  const marks = columns.map(() => h("span", { class: "mark" }));
  const mark = () =>
    columns.forEach((column, place) => {
      const uses = fields.filter((field) => chosen[field.name] === column);
      marks[place].textContent = uses.map((field) => capital(field.what)).join(", ");
    });
  const select = (field) => {
    const id = freshId(field.name);
    const list = h(
      "select",
      {
        id,
        required: field.required,
        autofocus: field === begin,
        "data-field": field.name,
        onchange: () => ((chosen[field.name] = list.value), mark()),
      },
      h("option", { value: "" }, field.required ? "choose" : "none"),
      columns.map((column) => h("option", { value: column }, column.trim())),
    );
    list.value = chosen[field.name];
    return h("div", { class: "field half" }, h("label", { for: id }, capital(field.what)), list);
  };
  const blockId = freshId(BLOCK);
  const block = h("input", {
    id: blockId,
    type: "text",
    class: "number",
    inputmode: "numeric",
    pattern: "[0-9]*",
    placeholder: "as its lists show",
    value: given[BLOCK] ?? "",
  });
  const rest = fields.filter((field) => !field.required && !USUAL.includes(field.name));
  const more = h(
    "details",
    { class: "group" },
    h("summary", {}, "Further columns"),
    h(
      "div",
      { class: "fields" },
      rest.map(select),
      h("div", { class: "field half" }, h("label", { for: blockId }, "Tokens in a block of a beginning"), block),
    ),
  );
  more.open = rest.some((field) => chosen[field.name]) || Boolean(given[BLOCK]);
  mark();
  const form = h(
    "form",
    { method: "dialog", onsubmit: submit },
    h(
      "div",
      { class: "fields" },
      required.map(select),
      USUAL.map((name) => select(fields.find((field) => field.name === name))),
    ),
    more,
    h(
      "div",
      { class: "actions" },
      h("button", { type: "submit" }, "Use these columns"),
      h("button", { type: "button", class: "quiet", onclick: () => close(null) }, "Cancel"),
    ),
  );
  function submit(event) {
    event.preventDefault();
    close(written({ ...chosen, [BLOCK]: block.value.trim() }));
  }
  return [h("p", { class: "soft" }, `${name}, its first rows:`), firstRows(columns, rows, marks), form];
}

function firstRows(columns, rows, marks) {
  return h(
    "div",
    { class: "rows", tabindex: "0", role: "region", "aria-label": "The first rows" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, columns.map((column, place) => h("th", { scope: "col" }, column.trim(), marks[place])))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))))),
    ),
  );
}

// Beside the box of a log: the way back to the dialogue.
export function columnsButton() {
  const button = h(
    "button",
    {
      type: "button",
      class: "quiet columns",
      hidden: true,
      title: "Which column of this log is what",
      onclick: () => dispatchEvent(new Event("choose-columns")),
    },
    "Columns",
  );
  return { button, told: (trace) => (button.hidden = !isOwn(trace)) };
}
