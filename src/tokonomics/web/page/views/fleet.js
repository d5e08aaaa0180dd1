// Fleet: which machines to buy, on which terms, hour by hour, for a demand that changes.

import { h } from "../dom.js";
import * as field from "../fields.js";

export default {
  key: "fleet",
  name: "Fleet",
  lede: "Reserved, on demand and spot, hour by hour, for a demand that changes.",
  comparable: true,
  examples: ["fleet"],
  carried: ["terms", "min_replicas"],
  submitLabel: "Find the fleet",
  groups: [
    { name: "Model", fields: [field.model, field.weights, field.engine] },
    {
      name: "Demand",
      fields: [
        {
          name: "demand",
          label: "Requests a second over time",
          kind: "text",
          fallback: "12x20,12x2",
          hint: "Hours × rate: 12x20,12x2. Or weekly:5,peak=2; diurnal:5,peak=3.",
        },
        field.input,
        field.output,
        field.trace,
      ],
    },
    { name: "SLO", fields: [field.slo] },
    {
      name: "What may be bought",
      folded: true,
      fields: [
        { ...field.gpu, fallback: "", label: "Only this GPU", placeholder: "any" },
        field.provider,
        field.region,
        field.sellers,
        { name: "no_spot", label: "No spot machines", kind: "check", fallback: "" },
        { name: "no_reserved", label: "No reservations", kind: "check", fallback: "" },
        { name: "anywhere", label: "Spread over any regions", kind: "check", fallback: "" },
        {
          name: "availability",
          label: "Availability",
          kind: "text",
          numeric: true,
          wide: false,
          fallback: "",
          placeholder: "0.999",
        },
        {
          name: "max_spot_share",
          label: "Spot at most",
          unit: "share",
          kind: "text",
          numeric: true,
          wide: false,
          fallback: "",
        },
      ],
    },
  ],
  fromPreset({ rate, ...inputs }) {
    return { ...inputs, demand: rate ? `diurnal:${rate},peak=3` : "12x20,12x2" };
  },
  request(values) {
    const demand = values.trace ? "" : values.demand;
    const inputs = field.ofLog(field.asked("fleet", { ...values, demand }));
    return { verb: "fleet", inputs, long: true, waits: values.run !== "1" };
  },
  empty: () => [
    h("h2", {}, "Say how demand changes"),
    h(
      "p",
      {},
      "Then press Find the fleet: a program over every offer and hour finds the cheapest mix, and the simulator replays it, failures included. It takes some seconds and can be cancelled.",
    ),
  ],
};
