// Batching: throughput, time per token and price against the batch, up to the KV limit; a closed form, as sliders move.

import * as field from "../fields.js";

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
          label: "SLO on the time per token",
          unit: "ms",
          kind: "number",
          low: 5,
          high: 200,
          log: true,
          whole: true,
          fallback: "",
          placeholder: "any",
        },
      ],
    },
  ],
  request(values) {
    const slo = values.pace && `tpot=${values.pace}ms`;
    return { verb: "curve", inputs: field.asked("curve", { ...values, slo }) };
  },
};
