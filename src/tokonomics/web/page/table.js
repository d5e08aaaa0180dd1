// Tables that sort: click or press a heading; numbers stand right under their unit; long ones open on request.

import { h, refill } from "./dom.js";
import { NONE, count, figure } from "./format.js";

const MISSING = (value) => value === null || value === undefined || value === "";

function compared(one, other) {
  if (MISSING(one)) return MISSING(other) ? 0 : 1;
  if (MISSING(other)) return -1;
  return typeof one === "number" && typeof other === "number"
    ? one - other
    : String(one).localeCompare(String(other), "en", { numeric: true });
}

// columns: {key, name, unit, number, show(value, row), value(row), hint}; `mark(row)` names a class for a row.
export function table({ caption, columns, rows, limit = Infinity, sort = null, mark = null, noun = "row" }) {
  const state = { sort, open: rows.length <= limit };
  const body = h("tbody");
  const more = h("button", { type: "button", class: "quiet more", onclick: () => ((state.open = true), fill()) });
  const heads = columns.map((column) => {
    const button = h("button", { type: "button", onclick: () => turn(column) }, column.name);
    const unit = column.unit && h("span", { class: "unit" }, column.unit);
    return h("th", { scope: "col", class: column.number ? "number" : null, title: column.hint }, button, unit);
  });
  const valueOf = (column, row) => (column.value ? column.value(row) : row[column.key]);

  function turn(column) {
    const again = state.sort?.key === column.key;
    state.sort = { key: column.key, down: again ? !state.sort.down : false };
    fill();
  }

  function fill() {
    const column = columns.find((each) => each.key === state.sort?.key);
    const sorted = column
      ? [...rows].sort((one, other) => {
          const [a, b] = [valueOf(column, one), valueOf(column, other)];
          const order = compared(a, b);
          return state.sort.down && !MISSING(a) && !MISSING(b) ? -order : order;
        })
      : rows;
    heads.forEach((head, at) => {
      const here = columns[at] === column;
      if (here) head.setAttribute("aria-sort", state.sort.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    refill(body, (state.open ? sorted : sorted.slice(0, limit)).map(line));
    more.hidden = state.open;
    more.textContent = `Show all ${count(rows.length)} ${noun}s`;
  }

  function line(row) {
    return h(
      "tr",
      { class: mark?.(row) ?? null },
      columns.map((column, at) => {
        const value = valueOf(column, row);
        const plain = MISSING(value) ? NONE : typeof value === "number" ? figure(value) : String(value);
        const shown = column.show ? column.show(value, row) : plain;
        const kind = { class: column.number ? "number" : column.nowrap ? "nowrap" : null };
        return at === 0 ? h("th", { scope: "row", ...kind }, shown) : h("td", kind, shown);
      }),
    );
  }

  const whole = h(
    "div",
    {
      class:
        columns.length <= 6 && columns.every((each) => each.number || each.nowrap || each.short !== false)
          ? "tabled few"
          : "tabled",
    },
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body),
    ),
    more,
  );
  fill();
  return whole;
}
