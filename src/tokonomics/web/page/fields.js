// Fields that several views ask for, and what of them a verb takes, as the server describes it.

const byLog = (values) => (values.trace ? "as in the log" : "");

export const model = { name: "model", label: "Model", kind: "model", fallback: "llama-3.1-8b" };
export const gpu = { name: "gpu", label: "GPU", kind: "gpu", fallback: "H100-SXM" };
export const rate = {
  name: "rate",
  label: "Requests",
  unit: "per second",
  kind: "number",
  low: 0.1,
  high: 500,
  log: true,
  fallback: "5",
  unless: byLog,
};
export const tokensPerMonth = {
  name: "tokens_per_month",
  label: "Or by volume",
  unit: "tokens a month",
  kind: "text",
  fallback: "",
  placeholder: "such as 2B",
  unless: byLog,
};
export const input = {
  name: "input",
  label: "Prompt",
  unit: "tokens, mean",
  kind: "number",
  low: 16,
  high: 32_000,
  log: true,
  whole: true,
  fallback: "1000",
  unless: byLog,
};
export const output = {
  name: "output",
  label: "Answer",
  unit: "tokens, mean",
  kind: "number",
  low: 1,
  high: 8_000,
  log: true,
  whole: true,
  fallback: "300",
  unless: byLog,
};
export const slo = {
  name: "slo",
  label: "SLO",
  kind: "slo",
  when: (values) => values.offline !== "1",
  fallback: "ttft_p99=1000ms,tpot_p99=50ms",
};
export const trace = {
  name: "trace",
  label: "Request log",
  kind: "sample",
  fallback: "",
  placeholder: "none: made-up requests",
  hint: "A shipped sample; or drop your own log anywhere on the page.",
};
export const arrivals = {
  name: "arrivals",
  label: "Arrivals",
  kind: "text",
  fallback: "",
  placeholder: "Poisson",
  hint: "gamma:5,cv=3 for bursts; diurnal:5,peak=3 for days and nights.",
  unless: byLog,
};
export const weights = {
  name: "weights",
  label: "Weights",
  kind: "choice",
  wide: false,
  fallback: "",
  options: (catalog) => [
    ["", "its own"],
    ...names(catalog.precisions.weights),
  ],
};
export const kv = {
  name: "kv",
  label: "KV cache",
  kind: "choice",
  wide: false,
  fallback: "bf16",
  options: (catalog) => names(catalog.precisions.kv),
};
export const tp = {
  name: "tp",
  label: "GPUs each",
  unit: "TP",
  kind: "choice",
  wide: false,
  fallback: "1",
  options: ["1", "2", "4", "8"],
};
export const engine = {
  name: "engine",
  label: "Engine",
  kind: "choice",
  wide: false,
  fallback: "vllm",
  options: (catalog) => names(catalog.engines),
};
export const usdPerHour = {
  name: "usd_per_hour",
  label: "Your price",
  unit: "$/GPU-h",
  kind: "text",
  numeric: true,
  wide: false,
  fallback: "",
  placeholder: "cheapest",
};
export const provider = {
  name: "provider",
  label: "Providers",
  kind: "text",
  fallback: "",
  placeholder: "all",
  hint: "Names with commas: aws, lambda, runpod.",
};
export const region = {
  name: "region",
  label: "Regions",
  kind: "text",
  fallback: "",
  placeholder: "all",
  hint: "A region, country or continent: us-east-1, DE, EU.",
};
export const sellers = {
  name: "sellers",
  label: "Sellers",
  kind: "choice",
  wide: false,
  fallback: "",
  options: [
    ["", "with a price list"],
    ["hyperscaler", "hyperscalers"],
    ["cloud", "clouds"],
    ["all", "marketplaces too"],
  ],
};
export const terms = {
  name: "terms",
  label: "Terms",
  kind: "choice",
  wide: false,
  fallback: "",
  options: [
    ["", "on demand"],
    ["spot", "spot"],
    ["reserved", "reserved"],
    ["all", "all"],
  ],
};
export const minWeights = {
  name: "min_weights",
  label: "No precision below",
  kind: "choice",
  wide: false,
  fallback: "",
  options: (catalog) => [["", "fp8, or as published"], ...names(catalog.precisions.weights)],
};
export const offline = { name: "offline", label: "Batch work: no SLO", kind: "check", fallback: "" };

export const named = (list) => list.map((each) => (typeof each === "string" ? { key: each, name: each } : each));
const names = (list) => named(list).map(({ key, name }) => [key, name ?? key]);

const TYPES = {}; // of the inputs of each verb, by name

export function learn(verbs) {
  for (const { name, parameters } of verbs) TYPES[name] = parameters.map((input) => [input.name, input.type]);
}

const READ = {
  boolean: (value) => value === "1",
  // Lists are typed with commas.
  "list of text": (value) =>
    value
      .split(",")
      .map((part) => part.trim())
      .filter(Boolean),
};

// The inputs of a verb among the values of a form.
export function asked(verb, values) {
  const given = TYPES[verb].filter(([name]) => values[name]);
  const inputs = Object.fromEntries(given.map(([name, type]) => [name, READ[type]?.(values[name]) ?? values[name]]));
  if (values.engine === engine.fallback) delete inputs.engine; // what every verb takes unasked
  return inputs;
}

// A log brings its own requests.
export function ofLog(inputs) {
  const { rate, input, output, arrivals, ...rest } = inputs;
  return inputs.trace ? rest : inputs;
}
