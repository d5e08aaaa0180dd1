// Batching: throughput, time per token and price against the batch, up to the KV limit; a closed form, as sliders move.

import { h } from "../dom.js";
import * as field from "../fields.js";
import { count, figure, milliseconds, percent, usd } from "../format.js";
import { badge, section, tiles } from "../pane.js";
import { table } from "../table.js";

const TAKEN = ["model", "gpu", "context", "tp", "weights", "kv", "engine", "usd_per_hour"];

export default {
  key: "batching",
  name: "Batching",
  lede: "What a larger batch buys, and where memory ends it.",
  comparable: true,
  presets: false,
  groups: [
    { name: "Model", fields: [field.model, field.weights, field.kv] },
    { name: "Hardware", fields: [field.gpu, field.tp, field.engine, field.usdPerHour] },
    {
      name: "Load",
      fields: [
        {
          name: "context",
          label: "Context of a sequence",
          unit: "tokens",
          kind: "number",
          low: 128,
          high: 131_072,
          log: true,
          whole: true,
          fallback: "1024",
        },
        {
          name: "pace",
          label: "Slowest pace you accept",
          unit: "ms per token",
          kind: "number",
          low: 5,
          high: 200,
          log: true,
          whole: true,
          fallback: "40",
        },
      ],
    },
  ],
  request(values) {
    return { verb: "curve", inputs: field.asked(values, TAKEN) };
  },
  figures({ result }) {
    const last = result.points.at(-1);
    return [
      { name: "Output tokens a second at the limit", value: last.tokens_per_s, show: figure, less: "worse" },
      { name: "Dollars per million output tokens at the limit", value: last.usd_per_mtok, show: usd },
      { name: "Time per token at the limit", value: last.tpot_s * 1e3, show: (value) => `${figure(value)} ms` },
      { name: "Sequences that fit", value: result.max_sequences, show: count, less: "worse" },
    ];
  },
  render({ result }, values) {
    const { points } = result;
    const [alone, last] = [points[0], points.at(-1)];
    const pace = Number(values.pace) / 1e3;
    const chosen = points.filter((each) => !(each.tpot_s > pace)).at(-1) ?? null;
    const priced = last.usd_per_mtok !== null;
    const at = chosen ?? alone;
    return {
      headline: {
        label: chosen
          ? `At batch ${count(at.batch)}, the largest shown that keeps ${values.pace} ms per token`
          : `Even one sequence takes ${figure(alone.tpot_s * 1e3)} ms per token`,
        value: priced ? usd(at.usd_per_mtok) : figure(at.tokens_per_s),
        unit: priced ? "per million output tokens" : "output tokens per second",
        detail: [
          h("b", {}, result.deployment),
          result.price_from
            ? ` · ${usd(result.usd_per_hour)} an hour: ${result.price_from}`
            : " · no price known: give yours",
        ],
        badges: [
          badge("modelled", "speed modelled"),
          result.price_from && badge(/older/.test(result.price_from) ? "stale" : "quoted", "price quoted"),
        ],
        next:
          chosen && priced
            ? `alone in the batch the same tokens cost ${figure(alone.usd_per_mtok / at.usd_per_mtok, 2)} times as much: keep the batch full, or see Traffic for the batch your requests reach.`
            : "allow a slower pace, or choose a faster GPU or lower precision.",
      },
      before: [
        tiles(
          {
            name: "KV limit",
            value: count(result.max_sequences),
            note: `sequences of ${count(result.context)} tokens`,
          },
          { name: "Throughput there", value: figure(last.tokens_per_s), note: "output tokens per second" },
          {
            name: "Time per token there",
            value: `${milliseconds(last.tpot_s)} ms`,
            note: `${figure(last.tpot_s / alone.tpot_s, 2)} × that of one sequence`,
          },
          priced && { name: "Price there", value: usd(last.usd_per_mtok), note: "per million output tokens" },
          {
            name: "Share of linear",
            value: percent(last.share_of_linear),
            note: "of what the batch would give if steps stayed as short",
          },
        ),
      ],
      after: [section("Points", listed(points, at, priced))],
      rows: points,
    };
  },
};

function listed(points, chosen, priced) {
  const columns = [
    { key: "batch", name: "Batch", unit: "sequences", number: true, show: (value) => count(value) },
    { key: "tokens_per_s", name: "Throughput", unit: "tokens/s", number: true },
    { key: "tpot_s", name: "Time per token", unit: "ms", number: true, show: (value) => milliseconds(value) },
    priced && { key: "usd_per_mtok", name: "Output tokens", unit: "$/Mtok", number: true, show: (value) => usd(value) },
    { key: "share_of_linear", name: "Of linear", unit: "%", number: true, show: (value) => figure(value * 100, 3) },
  ].filter(Boolean);
  return table({
    caption: "Throughput and price by batch",
    columns,
    rows: points,
    mark: (row) => (row === chosen ? "best" : null),
  });
}
