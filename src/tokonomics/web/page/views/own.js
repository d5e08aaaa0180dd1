// Own or API: from which volume on hosting is cheaper than an API; what a bought machine's hour costs, and what it runs.

import * as field from "../fields.js";

const buys = (values) => values.panel === "buy";
const runs = (values) => values.panel === "run";
const owns = (values) => buys(values) || runs(values);
const rents = (values) => !owns(values);
const number = (name, label, unit, fallback, extra = {}) => ({
  name,
  label,
  unit,
  kind: "text",
  numeric: true,
  wide: false,
  fallback,
  ...extra,
});

export default {
  key: "own",
  name: "Own or API",
  lede: "The volume from which hosting it yourself is cheaper than a price per token; and what a machine of yours can do.",
  comparable: true,
  carried: ["terms", "batch_api", "spare"],
  presets: false,
  submitLabel: "Check by simulation",
  submits: rents,
  groups: [
    {
      name: "Question",
      fields: [
        {
          name: "panel",
          label: "Question",
          kind: "segments",
          fallback: "api",
          options: [
            ["api", "Host or call an API"],
            ["buy", "Buy the machine"],
            ["run", "What it can run"],
          ],
        },
      ],
    },
    {
      name: "Scenario",
      fields: [
        { ...field.model, when: rents },
        {
          name: "api",
          label: "API to compare with",
          kind: "api",
          fallback: "",
          placeholder: "every host of the model",
          when: rents,
        },
        { ...field.input, when: rents },
        { ...field.output, when: rents },
        {
          name: "tokens_per_month",
          label: "Volume",
          unit: "tokens/mo",
          kind: "text",
          fallback: "",
          placeholder: "such as 2B",
          wide: false,
          when: rents,
        },
        { ...number("cached_share", "Cached", "share", ""), when: rents },
        { ...field.slo, when: rents },
        { ...field.gpu, when: owns },
        number("gpus", "GPUs in it", "", "8", { when: owns }),
        number("purchase_usd", "Price", "$, whole", "250000", { when: owns }),
        number("years", "Write-off", "years", "4", { when: owns }),
        number("usd_per_kwh", "Power", "$/kWh", "0.12", { when: owns }),
        number("host_watts", "Host draws", "W", "4600", { when: owns }),
        number("context", "Context", "tokens", "", { placeholder: "4096", when: runs }),
        number("pace", "Next tokens ≤", "ms", "50", { when: runs }),
      ],
    },
    {
      name: "People and the rest",
      folded: true,
      fields: [
        number("engineers", "Engineers", "FTE", "", { when: rents }),
        number("engineer_usd_per_month", "Each", "$/month", "", { when: rents }),
        { name: "overhead", label: "Overheads", kind: "text", fallback: "", placeholder: "network=5%", when: rents },
        { ...field.minWeights, when: rents },
        { ...field.provider, when: rents },
        number("pue", "PUE", "", "", { placeholder: "1.58", when: owns }),
        number("residual", "Resale", "share", "", { when: buys }),
        number("cost_of_capital", "Capital", "share/year", "", { placeholder: "0.08", when: buys }),
        number("hosting_usd_per_month", "Hosting", "$/month", "", { when: buys }),
        number("staff_usd_per_year", "People", "$/year", "", { when: buys }),
      ],
    },
  ],
  request(values) {
    if (buys(values)) return { verb: "own-hardware", inputs: field.asked("own-hardware", values) };
    if (runs(values)) {
      const { model, slo, ...inputs } = field.asked("can-run", values); // every model
      return { verb: "can-run", inputs: values.pace ? { ...inputs, slo: `tpot=${values.pace}ms` } : inputs };
    }
    const inputs = field.asked("breakeven", values);
    return values.run === "1"
      ? { verb: "breakeven", inputs, long: true }
      : { verb: "breakeven", inputs: { ...inputs, quick: true } };
  },
};
