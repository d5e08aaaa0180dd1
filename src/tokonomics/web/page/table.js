// Tables that sort: click or press a heading; numbers stand right; long ones open on request.

import { h, refill } from "./dom.js";
import { NONE, figure, sortKeys } from "./format.js";

const ROWS = 50; // of a table that says nothing itself

const isMissing = (key) => key === null || key === undefined || key === "" || key === NONE;

function compared(one, other, down) {
  if (isMissing(one) || isMissing(other)) return isMissing(one) - isMissing(other);
  const order =
    typeof one === "number" && typeof other === "number"
      ? one - other
      : String(one).localeCompare(String(other), "en", { numeric: true });
  return down ? -order : order;
}

// columns: {name, number, whole}; rows of cells: {text, nodes}; `best` is the place of the row to mark.
export function table({ caption, isCaptionSeen = true, columns, rows, limit = ROWS, best = null }) {
  const state = { sort: null, down: false, open: rows.length <= limit };
  const keys = columns.map(({ number }, at) =>
    sortKeys(
      rows.map((row) => row[at].text),
      number,
    ),
  );
  // A column without a name that counts the rows is what puts them back in order.
  const counts = columns.map(({ name }, at) => !name && keys[at].every((key) => typeof key === "number"));
  const first = counts[0] ? 1 : 0;
  const body = h("tbody");
  const more = h("button", { type: "button", class: "quiet more", onclick: () => ((state.open = true), fill()) });
  const heads = columns.map(({ name, number }, at) => {
    if (!name && !counts[at]) return h("td");
    const button = h("button", { type: "button", onclick: () => turn(at) }, name || "#");
    const kinds = [(number || counts[at]) && "number", at === first && "lead"];
    return h("th", { scope: "col", class: kinds.filter(Boolean).join(" ") || null }, button);
  });

  function turn(at) {
    state.down = state.sort === at && !state.down;
    state.sort = at;
    fill();
  }

  function fill() {
    const order = rows.map((_, place) => place);
    const by = keys[state.sort];
    if (by) order.sort((one, other) => compared(by[one], by[other], state.down));
    heads.forEach((head, at) => {
      if (at === state.sort) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    refill(body, (state.open ? order : order.slice(0, limit)).map(line));
    more.hidden = state.open;
    more.textContent = `Show all ${figure(rows.length)} rows`;
  }

  function line(place) {
    const cells = rows[place].map(({ text, nodes = text }, at) => {
      const kind = { class: columns[at].number || counts[at] ? "number" : columns[at].whole ? "whole" : null };
      return at === first ? h("th", { scope: "row", ...kind }, nodes) : h("td", kind, nodes);
    });
    return place === best ? h("tr", { class: "best", "aria-current": "true" }, cells) : h("tr", {}, cells);
  }

  fill();
  return h(
    "div",
    { class: columns.length <= 6 ? "tabled few" : "tabled" },
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
      h(
        "table",
        {},
        h("caption", { class: isCaptionSeen ? null : "unseen" }, caption),
        h("thead", {}, h("tr", {}, heads)),
        body,
      ),
    ),
    more,
  );
}
