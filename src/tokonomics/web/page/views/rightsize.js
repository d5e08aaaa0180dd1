// Right-size: every GPU for one model (or several) under one traffic, at its cheapest offer; and those that cannot.

import * as field from "../fields.js";

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
    { name: "SLO", fields: [field.slo, field.offline] },
    {
      name: "Where to buy",
      folded: true,
      fields: [field.tokensPerMonth, field.provider, field.region, field.terms, field.minWeights],
    },
  ],
  request(values) {
    const inputs = field.asked("compare", { ...values, model: `${values.model},${values.also}` });
    if (inputs.tokens_per_month) delete inputs.rate;
    delete inputs.offline; // without an SLO everything is batch work here
    return { verb: "compare", inputs };
  },
};
