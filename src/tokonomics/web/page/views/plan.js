// Plan: the cheapest ways to serve a model under an SLO. While the form moves, a closed form answers with means;
// on request every candidate near the top is simulated and the SLO is checked at its percentile.

import * as field from "../fields.js";

export default {
  key: "plan",
  name: "Plan",
  lede: "Model, traffic and SLO in; the cheapest machines that meet it out.",
  comparable: true,
  hero: true,
  carried: ["weights", "engine"],
  submitLabel: "Check by simulation",
  groups: [
    { name: "Model", fields: [{ ...field.model, bare: true }] },
    { name: "Traffic", fields: [field.rate, field.input, field.output] },
    { name: "SLO", fields: [field.slo, field.offline] },
    {
      name: "Where and what to buy",
      folded: true,
      fields: [
        { ...field.gpu, fallback: "", label: "Only this GPU", placeholder: "any" },
        field.provider,
        field.region,
        field.sellers,
        field.terms,
        {
          name: "max_price",
          label: "At most",
          unit: "$/GPU-h",
          kind: "text",
          numeric: true,
          wide: false,
          fallback: "",
        },
        { name: "gpus", label: "At most", unit: "GPUs", kind: "text", numeric: true, wide: false, fallback: "" },
        field.minWeights,
        { name: "spare", label: "May fail", unit: "machines", kind: "text", wide: false, fallback: "", placeholder: "0" },
        { name: "discount", label: "Discounts", kind: "text", fallback: "", placeholder: "aws=0.2" },
      ],
    },
    {
      name: "A price to sell at",
      folded: true,
      fields: [
        { name: "sell", label: "In/out/cached", unit: "$/Mtok", kind: "text", fallback: "", placeholder: "0.20/0.80/0.05" },
        { name: "margin", label: "Or a margin of", kind: "text", fallback: "", placeholder: "40%" },
      ],
    },
    { name: "Traffic in detail", folded: true, fields: [field.tokensPerMonth, field.trace, field.arrivals] },
    {
      name: "Your measurements",
      folded: true,
      fields: [
        {
          name: "measured",
          label: "Results of load tests",
          kind: "text",
          fallback: "",
          hint: "Drop a file of results here: its points stand over the predicted ones.",
        },
      ],
    },
    {
      name: "Deeper",
      folded: true,
      fields: [
        { name: "explain", label: "Also: which traffic would flip the choice (slower)", kind: "check", fallback: "" },
      ],
    },
  ],
  request(values) {
    const inputs = field.ofLog(field.asked("plan", values));
    if (inputs.tokens_per_month) delete inputs.rate;
    if (values.run === "1")
      return { verb: "plan", inputs: { ...inputs, deploy: ["vllm,kubernetes,skypilot"] }, long: true };
    delete inputs.explain;
    return { verb: "plan", inputs: { ...inputs, quick: true }, slowCharts: true };
  },
};
