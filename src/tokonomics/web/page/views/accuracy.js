// Accuracy: how sure is this. Predictions against measurements, shipped with the page; no row is dropped silently.

import { accuracy } from "../api.js";
import { h, refill } from "../dom.js";
import { capital, count, figure, percent, plural, words } from "../format.js";
import { showCharts } from "../chart.js";
import { badge, headline, section } from "../pane.js";
import { table } from "../table.js";

// Errors are kept as logarithms of a ratio; people read them as a share.
const share = (log) => (log === null || log === undefined ? null : Math.expm1(log));

export default {
  key: "accuracy",
  name: "Accuracy",
  lede: "How sure is this: predictions held against measurements.",
  open(place) {
    const body = h("section", { class: "pane", "aria-label": "Accuracy" });
    refill(place, body);
    accuracy().then(
      (found) => show(body, found),
      (error) =>
        refill(
          body,
          h(
            "div",
            { class: "trouble" },
            h("h2", {}, error.what ?? error.message),
            h("p", {}, error.fix ?? "docs/accuracy.md holds the tables."),
          ),
        ),
    );
  },
};

function show(body, found) {
  const sets = found.sets ?? found.tables ?? (found.overall ? [found] : []);
  const rows = sets.reduce((sum, each) => sum + (each.predicted ?? each.overall?.n ?? 0), 0);
  const largest = sets.reduce((best, each) => ((each.predicted ?? 0) > (best?.predicted ?? -1) ? each : best), null);
  const charts = h("div", { class: "charts" });
  refill(
    body,
    largest?.overall &&
      headline({
        label: `Median error over ${plural(largest.predicted, "measurement")}${largest.name ? `: ${largest.name}` : ""}`,
        value: percent(share(largest.overall.median_abs_log_error), 1),
        unit: "of the measured value",
        detail: `${plural(rows, "measurement")} in ${plural(sets.length, "set")}; nine of ten are within ${percent(share(largest.overall.p90_abs_log_error))}.`,
        badges: [badge("measured")],
        next: "hold it against your own: drop a benchmark file, or `tokonomics validate results.csv`.",
      }),
    charts,
    sets.map(tables),
  );
  showCharts(charts, found.charts ?? sets.flatMap((each) => each.charts ?? []));
}

function tables(set) {
  const groups = Object.entries(set.groups ?? {}).flatMap(([by, found]) =>
    Object.entries(found).map(([name, each]) => ({ by: words(by), name: words(name), ...each })),
  );
  const rows = [{ by: "all", name: "all", ...set.overall }, ...groups];
  const columns = [
    { key: "name", name: "Group" },
    { key: "by", name: "By" },
    { key: "n", name: "Rows", number: true, show: (value) => count(value) },
    {
      key: "median",
      name: "Median error",
      unit: "%",
      number: true,
      value: (row) => share(row.median_abs_log_error),
      show: (value) => (value === null ? "–" : figure(value * 100, 2)),
    },
    {
      key: "p90",
      name: "Nine of ten within",
      unit: "%",
      number: true,
      value: (row) => share(row.p90_abs_log_error),
      show: (value) => (value === null ? "–" : figure(value * 100, 2)),
    },
    {
      key: "bias",
      name: "Bias",
      unit: "%",
      number: true,
      value: (row) => share(row.bias),
      show: (value) => (value === null ? "–" : figure(value * 100, 2)),
    },
    {
      key: "inside_interval",
      name: "Inside our interval",
      unit: "%",
      number: true,
      show: (value) => (value === null || value === undefined ? "–" : figure(value * 100, 3)),
    },
  ];
  const left = Object.entries(set.not_predicted ?? {});
  return section(
    capital(set.name ?? set.title ?? "Measurements"),
    set.what && h("p", { class: "soft" }, set.what),
    table({ caption: `Errors by group: ${set.name ?? ""}`, columns, rows, limit: 24, noun: "group" }),
    left.length > 0 &&
      h(
        "details",
        { class: "why" },
        h(
          "summary",
          {},
          h("span", {}, "Rows not predicted"),
          h("span", { class: "soft number" }, count(left.reduce((sum, [, number]) => sum + number, 0))),
        ),
        h(
          "ul",
          {},
          left.map(([reason, number]) => h("li", {}, `${reason}: ${count(number)}`)),
        ),
      ),
  );
}
