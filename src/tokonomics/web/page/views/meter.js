// Meter: what the live server costs now, how much of it is idle, and how that went; new readings as they come.

import { meter, meterEvents } from "../api.js";
import { h, refill } from "../dom.js";
import { figure, percent, seconds, usd } from "../format.js";
import { showCharts } from "../chart.js";
import { badge, headline, section, tiles } from "../pane.js";
import { table } from "../table.js";

export default {
  key: "meter",
  name: "Meter",
  lede: "What the running server costs per million tokens, now, this hour, today.",
  open(place) {
    const body = h("section", { class: "pane", "aria-label": "Meter" });
    refill(place, body);
    let close = () => {};
    let left = false;
    meter().then(
      (found) => {
        if (left) return;
        show(body, found);
        if (found.state ?? found.now)
          close = meterEvents((next) => show(body, next.state || next.now ? next : { ...found, state: next }));
      },
      (error) =>
        refill(
          body,
          error.status === 404 || error.status === 503
            ? none(error)
            : h(
                "div",
                { class: "trouble", tabindex: "-1" },
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

function none(error) {
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, "No meter is running"),
    h(
      "p",
      {},
      error?.fix ??
        "The meter reads the metrics page of your inference server and keeps a ledger. Start the page with one:",
    ),
    h(
      "pre",
      {},
      "tokonomics meter http://localhost:8000/metrics --gpu H100 --ledger ledger.sqlite\ntokonomics web --ledger ledger.sqlite",
    ),
  );
}

const SPANS = [
  ["now", "Now"],
  ["hour", "This hour"],
  ["today", "Today"],
  ["total", "Since the start"],
];

function show(body, found) {
  const state = found.state ?? found;
  if (!state?.now && !state?.groups) return refill(body, none());
  const [now, total] = [state.now ?? {}, state.total ?? {}];
  const spans = SPANS.filter(([key]) => state[key]).map(([key, name]) => ({ name, ...state[key] }));
  const columns = [
    { key: "name", name: "Over" },
    { key: "usd_per_mtok", name: "Tokens", unit: "$/Mtok", number: true, show: (value) => usd(value) },
    { key: "usd_per_mtok_output", name: "Output", unit: "$/Mtok", number: true, show: (value) => usd(value) },
    { key: "usd_per_mtok_usage", name: "If always busy", unit: "$/Mtok", number: true, show: (value) => usd(value) },
    { key: "usd", name: "Bill", unit: "$", number: true, show: (value) => usd(value) },
    { key: "idle_share", name: "Idle", unit: "%", number: true, show: (value) => percent(value) },
    { key: "tokens_per_s", name: "Tokens", unit: "per second", number: true, show: (value) => figure(value) },
    { key: "batch", name: "Batch", unit: "mean", number: true, show: (value) => figure(value) },
    { key: "cache_share", name: "From cache", unit: "%", number: true, show: (value) => percent(value) },
  ].filter((column) => column.key === "name" || spans.some((span) => span[column.key] !== undefined));
  const shown = state.hour?.usd_per_mtok ?? now.usd_per_mtok ?? total.usd_per_mtok;
  const charts = h("div", { class: "charts" });
  const old = body.querySelector(".charts") ?? charts;
  refill(
    body,
    headline({
      label: "What a million tokens costs, this hour",
      value: usd(shown),
      unit: "per million tokens",
      detail: state.price_from && `Priced ${state.price_from}; read every ${seconds(state.every_s)}.`,
      badges: [
        badge("measured"),
        state.at &&
          badge(
            "quoted",
            `read ${String(typeof state.at === "number" ? new Date(state.at * 1e3).toISOString() : state.at)
              .slice(0, 19)
              .replace("T", " ")} UTC`,
          ),
      ],
      next:
        now.idle_share > 0.5
          ? "more than half of what you pay for idles: fewer replicas, or Fleet for the hours that need them."
          : (state.notes?.[0] ?? "hold it against the plan: Plan gives the figure to expect."),
    }),
    tiles(
      { name: "Idle burn", value: percent(state.hour?.idle_share ?? now.idle_share), note: "of the bill, this hour" },
      { name: "Tokens a second", value: figure(now.tokens_per_s) },
      { name: "Mean batch", value: figure(now.batch) },
      state.against_plan && {
        name: "Against the plan",
        value: state.against_plan.said ?? percent(state.against_plan.share),
      },
    ),
    section("Spans", table({ caption: "Dollars and tokens by span", columns, rows: spans })),
    old,
    state.groups?.length > 0 && section("Servers", servers(state.groups)),
    state.notes?.length > 0 &&
      section(
        "Notes",
        h(
          "ul",
          {},
          state.notes.map((note) => h("li", {}, note)),
        ),
      ),
  );
  showCharts(old, found.charts ?? []);
  return body;
}

function servers(groups) {
  const columns = [
    { key: "target", name: "Server" },
    { key: "model", name: "Model" },
    { key: "engine", name: "Engine" },
    { key: "up", name: "State", show: (value) => badge(value ? "kept" : "broken", value ? "up" : "down") },
    {
      key: "usd",
      name: "This hour",
      unit: "$/Mtok",
      number: true,
      value: (row) => row.hour?.usd_per_mtok,
      show: (value) => usd(value),
    },
    { key: "usd_per_hour", name: "Price", unit: "$/h", number: true, show: (value) => usd(value) },
    { key: "running", name: "Running", number: true },
    { key: "waiting", name: "Waiting", number: true },
    { key: "kv_use", name: "KV in use", unit: "%", number: true, show: (value) => percent(value) },
  ];
  return table({ caption: "Servers that are read", columns, rows: groups });
}
