// Two answers side by side: what the second changes, figure by figure. The figures are the server's.

import { h } from "./dom.js";
import { percent, points } from "./format.js";

export function compared(view, { a, b }) {
  if (!a || !b || !view.figures) return [];
  const [one, other] = [view.figures(a), view.figures(b)];
  const rows = one.map(({ name, value, show, less = "better", share = false }, at) => {
    const next = other[at]?.value;
    const known = Number.isFinite(value) && Number.isFinite(next) && (share || value !== 0);
    // From 40 % to 50 % is ten points more: "+25 %" would read as a share.
    const change = known ? (share ? next - value : next / value - 1) : null;
    const same = change !== null && Math.abs(change) < 0.0005;
    const mood = change === null || same ? null : change < 0 === (less === "better") ? "good" : "bad";
    const said =
      change === null
        ? "–"
        : same
          ? "the same"
          : `${change > 0 ? "+" : "−"}${share ? points(Math.abs(change)) : percent(Math.abs(change), Math.abs(change) < 0.1 ? 1 : 0)}`;
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
