// Traffic: what a request log is like, and what a deployment makes of it, request by request.

import { h } from "../dom.js";
import { openFile } from "../drop.js";
import * as field from "../fields.js";

const isMade = (values) => values.from === "made";

export default {
  key: "traffic",
  name: "Traffic",
  lede: "Rate, lengths and bursts of a request log; and how a deployment carries it.",
  comparable: true,
  carried: ["requests", "sessions"],
  presets: false,
  submitLabel: "Simulate serving it",
  groups: [
    {
      name: "Requests",
      fields: [
        {
          name: "from",
          label: "Where requests come from",
          kind: "segments",
          fallback: "log",
          options: [
            ["log", "A log"],
            ["made", "Made up"],
          ],
        },
        { ...field.trace, fallback: "azure-conv", when: (values) => !isMade(values) },
        { ...field.rate, unless: (values) => (values.arrivals ? "as arrivals say" : ""), when: isMade },
        { ...field.arrivals, unless: null, when: isMade },
        { name: "duration", label: "For", kind: "text", fallback: "1h", wide: false, when: isMade },
        { ...field.input, unless: null, when: isMade },
        { ...field.output, unless: null, when: isMade },
        {
          name: "speed",
          label: "Speed up",
          unit: "times",
          kind: "number",
          low: 0.1,
          high: 50,
          log: true,
          fallback: "1",
        },
      ],
    },
    {
      name: "Deployment",
      fields: [
        field.model,
        field.gpu,
        field.tp,
        field.weights,
        {
          name: "replicas",
          label: "Replicas",
          kind: "number",
          low: 1,
          high: 64,
          log: true,
          whole: true,
          fallback: "1",
        },
      ],
    },
    { name: "SLO", fields: [field.slo] },
    {
      name: "Fleet behaviour",
      folded: true,
      fields: [
        {
          name: "router",
          label: "Router",
          kind: "choice",
          fallback: "",
          options: [["", "least outstanding"], "round-robin", "least-outstanding", "prefix-aware"],
        },
        { name: "autoscale", label: "Autoscaling", kind: "text", fallback: "", placeholder: "max=6,target=9,cold=90" },
        { name: "outage", label: "Outage", kind: "text", fallback: "", placeholder: "replica=0,at=600" },
        { name: "no_prefix_cache", label: "Without the prefix cache", kind: "check", fallback: "" },
        field.usdPerHour,
      ],
    },
  ],
  request(values) {
    const { outage, speed, ...rest } = values;
    if (!isMade(values) && !values.trace) return null;
    const given = isMade(values) || Number(speed) === 1 ? rest : { ...rest, speed };
    if (given.arrivals) delete given.rate;
    if (values.run !== "1") return { verb: "trace", inputs: field.asked("trace", given) };
    const inputs = { ...field.asked("simulate", given), playback: true };
    return { verb: "simulate", inputs: outage ? { ...inputs, outage: [outage] } : inputs, long: true };
  },
  // Traffic that another view was told of is this one's too.
  entered: (kept) =>
    kept.trace || !["rate", "input", "output", "arrivals"].some((name) => name in kept)
      ? kept
      : { ...kept, from: "made" },
  empty: () => [
    h("h2", {}, "Bring your traffic"),
    h(
      "p",
      {},
      "Drop a request log anywhere on the page (CSV, JSONL, Parquet: arrival time, prompt tokens, answer tokens), choose a shipped sample, or make requests up.",
    ),
    h("button", { type: "button", onclick: openFile }, "Open a log"),
  ],
};
