// Meter: what the running servers cost now, how much of it is idle, and how that went; new sums as the ledger grows.

import { meter, meterEvents } from "../api.js";
import { showCharts } from "../chart.js";
import { h, refill } from "../dom.js";
import { NONE, figure, percent, plural, seconds, tokens, usd } from "../format.js";
import { badge, headline, section, tiles } from "../pane.js";
import { table } from "../table.js";

export default {
  key: "meter",
  name: "Meter",
  lede: "What the running servers cost per million tokens: now, this hour, today.",
  open(place) {
    const charts = h("div", { class: "charts" });
    const [above, below] = [h("div", { class: "before" }), h("div", { class: "after" })];
    const body = h(
      "section",
      { class: "pane", "aria-label": "Meter" },
      h("div", { class: "content" }, above, charts, below),
    );
    refill(place, body);
    refill(above, h("p", { class: "soft" }, "Reading …"));
    let close = () => {};
    let left = false;
    const show = (state) => {
      refill(above, head(state), table5(state));
      showCharts(charts, history(state));
      refill(below, servers(state));
    };
    meter().then(
      (state) => {
        if (left) return;
        show(state);
        close = meterEvents(show);
      },
      (error) =>
        refill(
          above,
          error.status === 404
            ? none(error)
            : h(
                "div",
                { class: "trouble" },
                h("h2", {}, error.what ?? error.message),
                error.fix && h("p", {}, error.fix),
              ),
        ),
    );
    return () => {
      left = true;
      close();
    };
  },
};

function none({ what }) {
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, "Nothing is metered yet"),
    h(
      "p",
      {},
      `${what}. The meter reads the metrics page of your inference servers, prices what they do, and writes it into a ledger; this page shows it as it grows. In two terminals:`,
    ),
    h("pre", {}, "tokonomics meter http://localhost:8000 --gpu H100\ntokonomics web --ledger FILE"),
  );
}

function head({ now, burning, hour, today, total, read, at, ledger }) {
  const [best, span] = [
    [hour, "this hour"],
    [today, "today"],
    [total, "since the start"],
  ].find(([sums]) => sums.usd_per_mtok !== null) ?? [now, "now"];
  const late = read === null ? null : at - read;
  return [
    headline({
      label: `What a million tokens costs, ${span}`,
      value: usd(best.usd_per_mtok),
      unit: "per million tokens",
      detail: `${usd(best.usd)} for ${tokens(best.billed_tokens)} tokens; were the machines never idle, ${usd(best.usd_per_mtok_usage)}.`,
      badges: [
        badge("measured"),
        late !== null && badge(late > 120 ? "stale" : "quoted", `read ${seconds(late)} ago from ${ledger}`),
      ],
      next:
        best.idle_share > 0.5
          ? `${percent(best.idle_share)} of the time nothing runs: Fleet finds machines for the hours that need them.`
          : "hold it against what Plan expects for this traffic; Levers says what to change first.",
    }),
    tiles(
      {
        name: "Idle burn today",
        value: usd(today.idle_usd),
        note: today.idle_share === null ? "nothing was read today" : `${percent(today.idle_share)} of the time`,
        mood: today.idle_share > 0.5 ? "bad" : null,
      },
      {
        name: "Burning now",
        value: burning ? `${usd(burning.usd_per_hour)}/h` : NONE,
        note: burning
          ? `${figure(burning.tokens_per_s)} tokens a second, all servers`
          : "nothing was read in the last five minutes",
      },
      { name: "Mean batch", value: figure(hour.batch ?? today.batch), note: "while busy" },
      { name: "From cache", value: percent(today.cache_share), note: "of prompt tokens, today" },
      today.failed > 0 && {
        name: "Failed requests",
        value: figure(today.failed),
        note: `${usd(today.failed_usd)} of work`,
        mood: "bad",
      },
    ),
  ];
}

function table5({ now, hour, today, total }) {
  const spans = [
    ["Last 5 minutes", now],
    ["This hour", hour],
    ["Today", today],
    ["All", total],
  ].map(([name, sums]) => ({ name, ...sums }));
  return section(
    "Sums",
    table({
      caption: "Dollars and tokens by span (UTC)",
      columns: [{ key: "name", name: "Over", nowrap: true }, ...SUMS],
      rows: spans,
    }),
  );
}

const SUMS = [
  { key: "usd_per_mtok", name: "Tokens", unit: "$/Mtok", number: true, show: (value) => usd(value) },
  { key: "usd_per_mtok_output", name: "Output", unit: "$/Mtok", number: true, show: (value) => usd(value) },
  { key: "usd_per_mtok_usage", name: "If never idle", unit: "$/Mtok", number: true, show: (value) => usd(value) },
  { key: "usd", name: "Bill", unit: "$", number: true, show: (value) => usd(value) },
  { key: "idle_usd", name: "Idle", unit: "$", number: true, show: (value) => usd(value) },
  { key: "idle_share", name: "Idle", unit: "% of time", number: true, show: (value) => percent(value) },
  { key: "billed_tokens", name: "Tokens", number: true, show: (value) => tokens(value) },
  { key: "tokens_per_s", name: "Rate", unit: "tokens/s", number: true, show: (value) => figure(value) },
  { key: "batch", name: "Batch", unit: "mean", number: true, show: (value) => figure(value) },
];

function servers({ groups }) {
  if (!groups.length) return null;
  const rows = groups.map(({ group: [target, model, engine], sums }) => ({ target, model, engine, ...sums }));
  const columns = [
    { key: "target", name: "Server", nowrap: true },
    { key: "model", name: "Model" },
    { key: "engine", name: "Engine" },
    ...SUMS,
  ];
  return section(
    "Servers today",
    table({
      caption: `${plural(rows.length, "server and model", "servers and models")}, today`,
      columns,
      rows,
      limit: 20,
      noun: "row",
    }),
  );
}

// The only chart the page makes itself: it changes with every reading, and holds nothing but the ledger's own sums.
function history({ hours, days }) {
  const lines = hours.length > 1 ? hours : days;
  if (lines.length < 2) return [];
  const values = lines.flatMap(({ group: [at], sums }) => [
    { at, part: "busy", usd: sums.usd - sums.idle_usd, price: sums.usd_per_mtok },
    { at, part: "idle", usd: sums.idle_usd, price: sums.usd_per_mtok },
  ]);
  const x = {
    field: "at",
    type: "ordinal",
    title: null,
    axis: { labelAngle: 0, labelOverlap: true, labelExpr: "slice(datum.label, 5)" },
  };
  const colour = {
    field: "part",
    type: "nominal",
    title: "paid for",
    scale: { domain: ["busy", "idle"], range: ["#5aa9a4", "#d9d3c7"] },
    legend: { orient: "top" },
  };
  const bars = {
    title: { text: "Dollars, busy and idle" },
    mark: "bar",
    height: 150,
    encoding: { x, y: { field: "usd", type: "quantitative", title: "dollars", aggregate: "sum" }, color: colour },
  };
  const line = {
    title: { text: "Dollars per million tokens" },
    mark: { type: "line", point: true },
    height: 150,
    encoding: { x, y: { field: "price", type: "quantitative", title: "$/Mtok", aggregate: "mean" } },
  };
  return [
    {
      name: "The meter's history",
      spec: {
        title: {
          text: `${plural(lines.length, hours.length > 1 ? "hour" : "day")} with readings, up to ${lines.at(-1).group[0]}`,
          subtitle: "UTC; reservation basis: every paid hour counts",
        },
        data: { values },
        vconcat: [line, bars],
      },
    },
  ];
}
