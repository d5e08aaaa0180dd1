// Levers: what to change first. Each lever simulated alone and together, the way from the naive start, caching, tenancy, a small
// model first.

import { h } from "../dom.js";
import * as field from "../fields.js";

const is =
  (...panels) =>
  (values) =>
    panels.includes(values.panel);

const CACHED = "mooncake-conversation"; // what caching is shown on, where no log is given: it has shared beginnings

const REQUESTS = {
  levers: (values) => field.ofLog(field.asked("levers", values)),
  stack: (values) => field.ofLog(field.asked("stack", values)),
  cache: (values) => field.ofLog(field.asked("cache", { ...values, trace: values.trace || CACHED })),
  tenants(values) {
    if (values.trace) return field.ofLog(field.asked("tenants", { ...values, tenants: "" }));
    const arrivals = values.arrivals || `poisson:${values.rate}`;
    return field.asked("tenants", { ...values, rate: "", arrivals, requests: "20000" });
  },
  route(values) {
    const model = values.large ? `${values.model},${values.large}` : values.model;
    return field.ofLog(field.asked("route", { ...values, model, gpu: "" }));
  },
};

export default {
  key: "levers",
  name: "Levers",
  lede: "What to change first: every lever on your traffic, its saving simulated.",
  comparable: true,
  examples: ["levers", "stack"],
  carried: ["kv", "engine", "arrivals", "offline", "spare", "ttl"],
  submitLabel: "Simulate",
  groups: [
    {
      name: "Question",
      fields: [
        {
          name: "panel",
          label: "Question",
          kind: "segments",
          fallback: "levers",
          options: [
            ["levers", "Levers"],
            ["stack", "Waterfall"],
            ["cache", "Caching"],
            ["tenants", "Tenancy"],
            ["route", "Routing"],
          ],
        },
      ],
    },
    {
      name: "What runs today",
      fields: [
        field.model,
        { name: "large", label: "Behind it", kind: "text", fallback: "llama-3.3-70b", when: is("route") },
        { name: "api", label: "And an API", kind: "text", fallback: "", placeholder: "openai:gpt-4o", when: is("route") },
        { ...field.gpu, when: is("levers", "stack", "cache", "tenants") },
        { ...field.tp, when: is("levers", "stack", "cache", "tenants") },
        { ...field.weights, when: is("levers", "cache", "tenants") },
        { ...field.usdPerHour, when: is("levers", "stack", "cache", "tenants") },
      ],
    },
    {
      name: "Traffic",
      fields: [
        { ...field.rate, when: is("levers", "stack", "tenants", "route") },
        { ...field.input, when: is("levers", "stack", "tenants", "route") },
        { ...field.output, when: is("levers", "stack", "tenants", "route") },
        { name: "tenants", label: "Tenants", kind: "text", fallback: "10,skew=1", when: is("tenants") },
        { name: "share", label: "Share of the first", kind: "text", fallback: "", placeholder: "70%", when: is("route") },
        { name: "score", label: "Score in the log", kind: "text", fallback: "", placeholder: "confidence", when: is("route") },
        {
          name: "quality",
          label: "Your scores",
          kind: "text",
          fallback: "",
          placeholder: "llama-3.1-8b=0.66,llama-3.3-70b=0.86",
          when: is("route"),
        },
        { name: "min_quality", label: "At least", kind: "text", fallback: "", placeholder: "0.8", when: is("route") },
        {
          ...field.trace,
          placeholder: (values) => (values.panel === "cache" ? CACHED : field.trace.placeholder),
        },
      ],
    },
    { name: "SLO", fields: [field.slo] },
    {
      name: "More",
      folded: true,
      fields: [
        { ...field.minWeights, when: is("levers", "stack", "route") },
        { ...field.provider, when: is("levers", "stack", "route") },
        {
          name: "tiers",
          label: "Memory for KV behind the GPU",
          kind: "text",
          fallback: "",
          placeholder: "auto, or dram=200,ssd=2000",
          when: is("cache"),
        },
        {
          name: "no_prefix_cache",
          label: "It runs without a prefix cache",
          kind: "check",
          fallback: "",
          when: is("levers"),
        },
      ],
    },
  ],
  request(values) {
    const verb = values.panel in REQUESTS ? values.panel : "levers";
    return { verb, inputs: REQUESTS[verb](values), long: true, waits: values.run !== "1" };
  },
  empty(values) {
    const told = {
      levers: "ranks every lever by what it saves on your traffic, alone and together",
      stack: "walks from one request at a time to the best deployment found, step by step",
      cache: "replays your log with caches of several sizes, routers and tiers",
      tenants: "compares one fleet for all tenants with a fleet for each",
      route: "sends requests to the first model, and to the one or the API behind it, at every share",
    };
    const what = told[values.panel] ?? told.levers;
    return [
      h("h2", {}, "Say what runs today"),
      h("p", {}, `Then press Simulate: it ${what}. This takes some seconds and can be cancelled.`),
    ];
  },
};
