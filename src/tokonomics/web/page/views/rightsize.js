// Right-size: every GPU for one model under one traffic, at its cheapest offer; and those that cannot, with the reason.

import { h } from "../dom.js";
import * as field from "../fields.js";
import { count, figure, milliseconds, percent, plural, tokens, usd } from "../format.js";
import { badge, origins, section } from "../pane.js";
import { table } from "../table.js";

const TAKEN = ["rate", "tokens_per_month", "input", "output", "slo", "offline", "provider", "region", "terms", "weights", "min_weights", "engine"];

// The first row of each GPU: rows come ranked by price.
function leaders({ ranked }) {
  const first = new Map();
  for (const row of ranked ?? []) if (!first.has(row.gpu)) first.set(row.gpu, row);
  return [...first.values()];
}

function refused({ rejected }, there) {
  const reasons = new Map();
  for (const each of rejected ?? []) if (each.gpu && !there.has(each.gpu) && each.kind !== "no price on these terms" && !reasons.has(each.gpu)) reasons.set(each.gpu, each);
  for (const each of rejected ?? []) if (each.gpu && !there.has(each.gpu) && !reasons.has(each.gpu)) reasons.set(each.gpu, each);
  return [...reasons.values()];
}

const perDollar = (row) => 1e6 / row.usd_per_mtok.blended;

export default {
  key: "rightsize",
  name: "Right-size",
  lede: "Every GPU for this model and traffic, at its cheapest offer.",
  comparable: true,
  groups: [
    { name: "Model", fields: [field.model, field.weights, field.engine] },
    { name: "Traffic", fields: [field.rate, field.input, field.output, field.tokensPerMonth] },
    { name: "Promise", fields: [{ ...field.slo, fallback: "ttft_p99=1000ms,tpot_p99=80ms" }, field.offline] },
    { name: "Where to buy", folded: true, fields: [field.provider, field.region, field.terms, field.minWeights] },
  ],
  request(values) {
    const inputs = field.asked(values, TAKEN);
    if (inputs.tokens_per_month) delete inputs.rate;
    return { verb: "plan", inputs: { what: [values.model], ...inputs, quick: true }, slowCharts: true };
  },
  figures({ result }) {
    const [best] = leaders(result);
    return [
      { name: "Dollars per million tokens", value: best?.usd_per_mtok.blended, show: usd },
      { name: "GPUs that serve it", value: leaders(result).length, show: count, less: "worse" },
    ];
  },
  render({ result }) {
    const rows = leaders(result);
    const left = refused(result, new Set(rows.map((row) => row.gpu)));
    const [best] = rows;
    if (!best) return { headline: { label: "No GPU serves this", value: "None", next: "loosen the promise or allow lower precisions; the reasons are below." }, after: [others(left)] };
    const dearest = rows.at(-1);
    return {
      headline: {
        label: `Best of ${plural(rows.length, "GPU")} that keep the promise in the mean`,
        value: best.gpu,
        unit: `${usd(best.usd_per_mtok.blended)} per million tokens`,
        detail: `${dearest.gpu} would cost ${figure(dearest.usd_per_mtok.blended / best.usd_per_mtok.blended, 2)} times as much for the same traffic.`,
        badges: origins(best),
        next: ["take it to ", h("b", {}, "Plan"), " to check the promise by simulation."],
      },
      before: [section("GPUs", listed(rows))],
      charts: (all) => all.slice(0, 1),
      after: [others(left)],
      rows: rows.map((row) => ({ gpu: row.gpu, usd_per_mtok: row.usd_per_mtok.blended, tokens_per_usd: perDollar(row), replicas: row.replicas, gpus_per_replica: row.gpus_per_replica, weights: row.weights, batch: row.batch, utilization: row.utilization, usd_per_month: row.usd_per_month, ttft_mean_s: row.ttft_s.mean, tpot_mean_s: row.tpot_s.mean, provider: row.provider, price_date: row.price_date })),
    };
  },
};

function listed(rows) {
  const least = rows[0].usd_per_mtok.blended;
  const columns = [
    { key: "gpu", name: "GPU", show: (value, row) => [value, row.gpus_per_replica > 1 && h("span", { class: "soft" }, ` ×${row.gpus_per_replica}`)] },
    { key: "usd", name: "Tokens", unit: "$/Mtok", number: true, value: (row) => row.usd_per_mtok.blended, show: (value) => barred(usd(value), least / value) },
    { key: "perDollar", name: "Tokens per dollar", unit: "tokens/$", number: true, value: perDollar, show: (value) => tokens(value) },
    { key: "usd_per_month", name: "Bill", unit: "$/month", number: true, show: (value) => usd(value) },
    { key: "replicas", name: "Replicas", number: true },
    { key: "weights", name: "Weights" },
    { key: "batch", name: "Batch", unit: "mean", number: true, show: (value) => figure(value, 2) },
    { key: "utilization", name: "Utilised", unit: "%", number: true, show: (value) => figure(value * 100, 2) },
    { key: "ttft", name: "TTFT", unit: "ms, mean", number: true, value: (row) => row.ttft_s.mean, show: (value) => milliseconds(value) },
    { key: "tpot", name: "TPOT", unit: "ms, mean", number: true, value: (row) => row.tpot_s.mean, show: (value) => milliseconds(value) },
    { key: "limited_by", name: "Limited by" },
    { key: "speed", name: "Speed", show: (value) => badge(value) },
    { key: "price_date", name: "Quoted", show: (value, row) => h("span", { class: row.price_stale ? "old" : null }, value) },
  ];
  return table({ caption: "GPUs at their cheapest offer; a heading sorts", columns, rows, limit: 40, noun: "GPU", mark: (row) => (row === rows[0] ? "best" : null) });
}

function barred(text, share) {
  const bar = h("span", { class: "tokenbar", "aria-hidden": "true" });
  bar.style.setProperty("--share", percent(share, 1).replace(" ", ""));
  return [text, bar];
}

function others(left) {
  if (!left.length) return null;
  const columns = [
    { key: "gpu", name: "GPU" },
    { key: "layout", name: "Layout" },
    { key: "kind", name: "Left out" },
    { key: "reason", name: "Reason" },
  ];
  return section("GPUs left out", table({ caption: "GPUs that are left out, with the first reason", columns, rows: left, limit: 12, noun: "GPU" }));
}
