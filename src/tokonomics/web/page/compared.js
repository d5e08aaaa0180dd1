// Two answers side by side: what the second changes, figure by figure. The figures are the server's.

import { h } from "./dom.js";
import { percent } from "./format.js";

export function compared(view, { a, b }) {
  if (!a || !b || !view.figures) return [];
  const [one, other] = [view.figures(a), view.figures(b)];
  const rows = one.map(({ name, value, show, less = "better" }, at) => {
    const next = other[at]?.value;
    const known = Number.isFinite(value) && Number.isFinite(next) && value !== 0;
    const change = known ? next / value - 1 : null;
    const same = change !== null && Math.abs(change) < 0.0005;
    const mood = change === null || same ? null : change < 0 === (less === "better") ? "good" : "bad";
    const said =
      change === null
        ? "–"
        : same
          ? "the same"
          : `${change > 0 ? "+" : "−"}${percent(Math.abs(change), Math.abs(change) < 0.1 ? 1 : 0)}`;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      h("td", { class: "number" }, show(value)),
      h("td", { class: "number" }, show(next)),
      h("td", { class: `number ${mood ?? ""}` }, said),
    );
  });
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "Figure"),
    ["A", "B", "B against A"].map((each) => h("th", { scope: "col", class: "number" }, each)),
  );
  return [
    h(
      "div",
      { class: "compared" },
      h("table", {}, h("caption", {}, "What scenario B changes"), h("thead", {}, head), h("tbody", {}, rows)),
    ),
  ];
}
