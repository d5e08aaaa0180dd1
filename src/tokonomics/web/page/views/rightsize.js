// Right-size: every GPU for one model (or several) under one traffic, at its cheapest offer; and those that cannot.

import { h } from "../dom.js";
import * as field from "../fields.js";
import { count, figure, milliseconds, percent, plural, tokens, usd } from "../format.js";
import { origins, section, speedBadge } from "../pane.js";
import { table } from "../table.js";

const TAKEN = [
  "rate",
  "tokens_per_month",
  "input",
  "output",
  "slo",
  "offline",
  "provider",
  "region",
  "terms",
  "weights",
  "min_weights",
  "engine",
];

const perDollar = (row) => 1e6 / row.usd_per_mtok.blended;
const byPrice = (one, other) => one.usd_per_mtok.blended - other.usd_per_mtok.blended;
const picks = ({ cells }) =>
  cells
    .filter((each) => each.pick)
    .map((each) => ({ ...each.pick, model_name: each.model_name }))
    .sort(byPrice);

export default {
  key: "rightsize",
  name: "Right-size",
  lede: "Every GPU for this model and traffic, at its cheapest offer.",
  comparable: true,
  groups: [
    {
      name: "Model",
      fields: [
        { ...field.model, bare: true },
        { name: "also", label: "Beside it", kind: "text", fallback: "", placeholder: "qwen3-8b, gemma-2-9b" },
        field.weights,
        field.engine,
      ],
    },
    { name: "Traffic", fields: [field.rate, field.input, field.output] },
    { name: "SLO", fields: [{ ...field.slo, fallback: "ttft_p99=1000ms,tpot_p99=80ms" }, field.offline] },
    {
      name: "Where to buy",
      folded: true,
      fields: [field.tokensPerMonth, field.provider, field.region, field.terms, field.minWeights],
    },
  ],
  request(values) {
    const inputs = field.asked(values, TAKEN);
    if (inputs.tokens_per_month) delete inputs.rate;
    delete inputs.offline; // without an SLO everything is batch work here
    const models = [values.model, ...values.also.split(",")].map((each) => each.trim()).filter(Boolean);
    return { verb: "compare", inputs: { models, ...inputs } };
  },
  figures({ result }) {
    const rows = picks(result);
    return [
      { name: "Dollars per million tokens", value: rows[0]?.usd_per_mtok.blended, show: usd },
      { name: "GPUs that serve it", value: rows.length, show: count, less: "worse" },
    ];
  },
  render({ result }) {
    const rows = picks(result);
    const left = result.cells.filter((each) => !each.pick);
    const [best] = rows;
    if (!best)
      return {
        headline: {
          label: "No GPU serves this",
          value: "None",
          mood: "bad",
          next: "loosen the SLO or allow lower precisions; the reasons are below.",
        },
        after: [others(left)],
      };
    const dearest = rows.at(-1);
    const several = result.models.length > 1;
    return {
      headline: {
        label: `Best of ${plural(rows.length, several ? "pair" : "GPU")} that meet the SLO in the mean`,
        value: best.gpu,
        unit: `${usd(best.usd_per_mtok.blended)} per million tokens${several ? ` with ${best.model_name}` : ""}`,
        detail:
          dearest !== best &&
          `${dearest.gpu} would cost ${figure(dearest.usd_per_mtok.blended / best.usd_per_mtok.blended, 2)} times as much for the same traffic.`,
        badges: origins(best),
        next: ["take it to ", h("b", {}, "Plan"), " to check the SLO at its percentile, by simulation."],
      },
      before: [section("GPUs", listed(rows, several))],
      charts: (all) => (several ? all : []),
      after: [others(left)],
      rows: rows.map((row) => ({
        model: row.model,
        gpu: row.gpu,
        usd_per_mtok: row.usd_per_mtok.blended,
        tokens_per_usd: perDollar(row),
        replicas: row.replicas,
        gpus_per_replica: row.gpus_per_replica,
        weights: row.weights,
        kv: row.kv,
        batch: row.batch,
        utilization: row.utilization,
        usd_per_month: row.usd_per_month,
        ttft_mean_s: row.ttft_s.mean,
        tpot_mean_s: row.tpot_s.mean,
        provider: row.provider,
        price_date: row.price_date,
      })),
    };
  },
};

function listed(rows, several) {
  const least = rows[0].usd_per_mtok.blended;
  const columns = [
    {
      key: "gpu",
      name: "GPU",
      nowrap: true,
      show: (value, row) => [
        value,
        row.gpus_per_replica > 1 && h("span", { class: "soft" }, ` ×${row.gpus_per_replica}`),
      ],
    },
    several && { key: "model_name", name: "Model", nowrap: true },
    {
      key: "usd",
      name: "Tokens",
      unit: "$/Mtok",
      number: true,
      value: (row) => row.usd_per_mtok.blended,
      show: (value) => usd(value),
    },
    {
      key: "perDollar",
      name: "Per dollar",
      unit: "tokens/$",
      number: true,
      value: perDollar,
      show: (value) => barred(tokens(value), least * value * 1e-6),
    },
    { key: "usd_per_month", name: "Bill", unit: "$/month", number: true, show: (value) => usd(value) },
    { key: "replicas", name: "Replicas", number: true },
    { key: "weights", name: "Weights, KV", value: (row) => `${row.weights}, ${row.kv}` },
    { key: "batch", name: "Batch", unit: "mean", number: true, show: (value) => figure(value, 2) },
    { key: "utilization", name: "Utilised", unit: "%", number: true, show: (value) => figure(value * 100, 2) },
    {
      key: "ttft",
      name: "TTFT",
      unit: "ms",
      number: true,
      value: (row) => row.ttft_s.mean,
      show: (value) => milliseconds(value),
    },
    {
      key: "tpot",
      name: "TPOT",
      unit: "ms",
      number: true,
      value: (row) => row.tpot_s.mean,
      show: (value) => milliseconds(value),
    },
    {
      key: "price_date",
      name: "Price of",
      nowrap: true,
      show: (value, row) => h("span", { class: row.price_stale ? "old" : null }, value),
    },
    { key: "speed", name: "Speed", show: (value) => speedBadge(value) },
    { key: "limited_by", name: "Limited by" },
  ].filter(Boolean);
  return table({
    caption: "GPUs at their cheapest offer, latencies as means; a heading sorts",
    columns,
    rows,
    limit: 40,
    noun: "GPU",
    mark: (row) => (row === rows[0] ? "best" : null),
  });
}

function barred(text, share) {
  const bar = h("span", { class: "tokenbar", "aria-hidden": "true" });
  bar.style.setProperty("--share", percent(share, 1).replace(" ", ""));
  return [text, bar];
}

function others(left) {
  if (!left.length) return null;
  const columns = [
    { key: "gpu", name: "GPU", nowrap: true },
    { key: "model_name", name: "Model" },
    { key: "refused", name: "Why not" },
  ];
  return section(
    "GPUs left out",
    table({ caption: "GPUs that do not serve it, with the reason", columns, rows: left, limit: 12, noun: "GPU" }),
  );
}
