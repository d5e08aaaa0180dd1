// Accuracy: how sure is this. Predictions against measurements, as the benchmark wrote them; no row dropped silently.

import { accuracy } from "../api.js";
import { h, refill } from "../dom.js";
import { capital, count, figure, percent, plural, words } from "../format.js";
import { badge, headline, section, tiles } from "../pane.js";
import { table } from "../table.js";

// Errors are kept as logarithms of predicted over measured; people read them as a share.
const share = (log) => (log === null || log === undefined ? null : Math.expm1(log));
const signed = (value) =>
  value === null ? "–" : `${value > 0 ? "+" : value < 0 ? "−" : ""}${figure(Math.abs(value) * 100, 2)}`;
const shown = (value) => (value === null ? "–" : figure(value * 100, 2));

export default {
  key: "accuracy",
  name: "Accuracy",
  lede: "How sure is this: predictions held against measurements.",
  open(place) {
    const body = h("section", { class: "pane", "aria-label": "Accuracy" }, h("p", { class: "soft" }, "Reading …"));
    refill(place, body);
    accuracy().then(
      (found) => show(body, found),
      (error) =>
        refill(
          body,
          h("div", { class: "trouble" }, h("h2", {}, error.what ?? error.message), h("p", {}, error.fix ?? "")),
        ),
    );
  },
};

const COLUMNS = [
  { key: "n", name: "Rows", number: true, show: (value) => count(value) },
  {
    key: "median",
    name: "Median error",
    unit: "%",
    number: true,
    value: (row) => share(row.median_abs_log_error),
    show: shown,
  },
  {
    key: "p90",
    name: "Nine of ten within",
    unit: "%",
    number: true,
    value: (row) => share(row.p90_abs_log_error),
    show: shown,
  },
  { key: "bias", name: "Bias", unit: "%", number: true, value: (row) => share(row.bias), show: signed },
  {
    key: "inside_interval",
    name: "Inside our interval",
    unit: "%",
    number: true,
    show: (value) => shown(value ?? null),
  },
];

function show(body, { date, machine, command, rows, by, spearman, spearman_groups: groups, not_predicted: left }) {
  const sets = Object.entries(rows).map(([name, found]) => ({ name, ...found }));
  // The public measurements of whole engines: the nearest to what a reader will run.
  const main = sets.find((each) => /throughput and TPOT/.test(each.name)) ?? sets[0];
  const total = Object.values(left ?? {}).reduce((sum, each) => sum + each, 0);
  refill(
    body,
    headline({
      label: `Median error: ${main.name}, ${plural(main.n, "measurement")}`,
      value: percent(share(main.median_abs_log_error), 1),
      unit: "of the measured value",
      detail: `Nine of ten are within ${percent(share(main.p90_abs_log_error))}; the bias is ${signed(share(main.bias))} %. Rank correlation of deployments: ${figure(spearman)} over ${plural(groups, "group")}. Some kinds are far worse, such as time to first token and a drained burst: see below.`,
      badges: [badge("measured"), badge("quoted", `checked ${date}`)],
      next: "hold it against your own: drop the results of a load test anywhere on this page.",
    }),
    tiles(
      ...sets
        .filter((each) => /other models, decode|all metrics|TTFT|burst/.test(each.name))
        .map((each) => ({
          name: each.name,
          value: percent(share(each.median_abs_log_error), 1),
          note: `median of ${plural(each.n, "row")}`,
        })),
    ),
    section(
      "What was checked",
      table({
        caption: "Predictions against measurements, by source; a target says what we hold ourselves to",
        columns: [{ key: "name", name: "Measurements" }, ...COLUMNS, { key: "target", name: "Target" }],
        rows: sets,
      }),
    ),
    section("By kind", byKind(by ?? {})),
    total > 0 &&
      section(
        "Not predicted",
        h(
          "p",
          { class: "soft" },
          `${plural(total, "row")} that the closed form does not cover; none is dropped silently.`,
        ),
        h(
          "ul",
          {},
          Object.entries(left).map(([reason, number]) => h("li", {}, `${capital(reason)}: ${count(number)}`)),
        ),
      ),
    h("p", { class: "made" }, `Made ${date} on ${machine} with `, h("code", {}, command), "."),
  );
}

function byKind(by) {
  const rows = Object.entries(by).flatMap(([kind, found]) =>
    Object.entries(found).map(([name, each]) => ({ kind: words(kind), name: words(name), ...each })),
  );
  const columns = [{ key: "name", name: "Group" }, { key: "kind", name: "By" }, ...COLUMNS];
  return table({
    caption: "The same errors by metric, GPU, engine, model and source",
    columns,
    rows,
    limit: 24,
    noun: "group",
  });
}
