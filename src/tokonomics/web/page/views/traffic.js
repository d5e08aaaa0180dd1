// Traffic: what a request log is like, and what a deployment makes of it, request by request.

import { h } from "../dom.js";
import { openFile } from "../drop.js";
import * as field from "../fields.js";
import { capital, count, figure, percent, plural, seconds, tokens, usd, words } from "../format.js";
import { badge, section, tiles } from "../pane.js";
import { table } from "../table.js";

const MADE = ["arrivals", "requests", "duration", "input", "output", "sessions"];
const isMade = (values) => values.from === "made";

export default {
  key: "traffic",
  name: "Traffic",
  lede: "Rate, lengths and bursts of a request log; and how a deployment carries it.",
  comparable: true,
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
        {
          ...field.arrivals,
          fallback: "gamma:5,cv=2",
          hint: "poisson:5, gamma:5,cv=3 for bursts, diurnal:5,peak=3 for days and nights.",
          when: isMade,
        },
        { name: "duration", label: "For", kind: "text", fallback: "1h", wide: false, when: isMade },
        { ...field.input, when: isMade },
        { ...field.output, when: isMade },
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
    const inputs = field.asked(values, ["speed", ...(isMade(values) ? MADE : ["trace"])]);
    if (Number(inputs.speed) === 1 || isMade(values)) delete inputs.speed;
    if (!isMade(values) && !inputs.trace) return null;
    if (values.run === "1") {
      const served = field.asked(values, [
        "model",
        "gpu",
        "tp",
        "weights",
        "replicas",
        "slo",
        "router",
        "autoscale",
        "no_prefix_cache",
        "usd_per_hour",
      ]);
      if (values.outage) served.outage = [values.outage];
      return { verb: "simulate", inputs: { ...served, ...inputs }, long: true };
    }
    const { trace, ...rest } = inputs;
    return { verb: "trace", inputs: trace ? { file: trace, ...rest } : rest };
  },
  empty: () => [
    h("h2", {}, "Bring your traffic"),
    h(
      "p",
      {},
      "Drop a request log anywhere on the page (CSV, JSONL, Parquet: arrival time, prompt tokens, answer tokens), choose a shipped sample, or make requests up.",
    ),
    h("button", { type: "button", onclick: openFile }, "Open a log"),
  ],
  figures({ result }) {
    if (!("ttft_s" in result))
      return [
        { name: "Requests a second", value: result.rate, show: figure, less: "worse" },
        { name: "Tokens a second", value: result.tokens_per_second, show: figure, less: "worse" },
      ];
    return [
      { name: "Dollars per million tokens", value: result.usd_per_mtok, show: usd },
      { name: "First token, p99", value: result.ttft_s.p99, show: seconds },
      { name: "Each next token, p99", value: result.tpot_s.p99, show: seconds },
      { name: "Mean batch", value: result.batch, show: figure, less: "worse" },
      { name: "Load", value: result.load_share, show: (value) => percent(value), less: "worse", share: true },
    ];
  },
  render: ({ result }) => ("ttft_s" in result ? simulated(result) : looked(result)),
};

function looked(result) {
  const peak = result.peaks?.at(-1);
  const lengths = ["input", "output"].map((key) => ({ what: key === "input" ? "Prompt" : "Answer", ...result[key] }));
  const columns = [
    { key: "what", name: "Tokens of the" },
    ...["mean", "p50", "p90", "p95", "p99", "max"].map((key) => ({
      key,
      name: key,
      unit: "tokens",
      number: true,
      show: (value) => count(value),
    })),
    { key: "total", name: "Total", unit: "tokens", number: true, show: (value) => tokens(value) },
  ];
  const reuse = result.reuse?.at(-1);
  return {
    headline: {
      label: `${result.source}: ${plural(result.requests, "request")} over ${seconds(result.duration_s)}`,
      value: figure(result.rate),
      unit: "requests per second",
      detail: `${figure(result.tokens_per_second)} tokens a second; ${figure(result.input_per_output)} prompt tokens for each answer token.`,
      badges: [badge(result.format === "made up" ? "modelled" : "measured", result.format)],
      next: "choose a deployment on the form and press Simulate serving it; Plan sizes a fleet for this log.",
    },
    before: [
      tiles(
        {
          name: "Burstiness",
          value: figure(result.local_cv ?? result.gap_cv),
          note: "variation of the gaps; 1 is Poisson",
        },
        peak && {
          name: `Busiest ${seconds(peak.window_s)}`,
          value: `${figure(peak.over_mean)} ×`,
          note: `the mean: ${figure(peak.rate)} a second`,
        },
        { name: "Mean prompt", value: count(result.input.mean), note: `tokens; p99 ${count(result.input.p99)}` },
        { name: "Mean answer", value: count(result.output.mean), note: `tokens; p99 ${count(result.output.p99)}` },
        reuse && {
          name: "Shared beginnings",
          value: percent(reuse.share ?? reuse.hit_share),
          note: "of prompt tokens seen before",
        },
        result.bad_rows > 0 && {
          name: "Rows left out",
          value: count(result.bad_rows),
          note: "could not be used",
          mood: "bad",
        },
      ),
    ],
    after: [section("Lengths", table({ caption: "Lengths of prompts and answers", columns, rows: lengths }))],
    rows: lengths.map(({ histogram, ...rest }) => rest),
  };
}

function simulated(result) {
  const kept = result.slo_kept;
  const parts = Object.entries(result.shares).map(([what, share]) => ({
    what: capital(words(what)),
    share,
    usd: result.cost?.tree.lines.find((line) => line.name === what)?.usd,
  }));
  return {
    headline: {
      label: `${result.deployment}${result.peak_replicas > 1 ? `, ${figure(result.mean_replicas)} replicas` : ""}: ${plural(result.requests, "request")}`,
      value: result.usd_per_mtok === null ? figure(result.total_tokens_per_s) : usd(result.usd_per_mtok),
      unit: result.usd_per_mtok === null ? "tokens per second" : "per million tokens",
      detail:
        result.cost &&
        `${usd(result.cost.usd)} for ${figure(result.replica_hours)} replica-hours at ${usd(result.cost.usd_per_replica_hour)}: ${result.cost.price_from}. Were it always busy: ${usd(result.cost.usd_per_mtok_usage)}.`,
      badges: [
        badge("simulated"),
        kept !== null && badge(kept ? "kept" : "broken", kept ? "SLO met" : "SLO missed"),
      ],
      next:
        kept === false
          ? "add replicas, loosen the SLO, or ask Plan for machines that meet it."
          : `it runs at ${percent(result.load_share)} of its load: ${result.load_share < 0.5 ? "speed the log up or take a smaller GPU until the SLO is just met." : "Levers says what to change first."}`,
    },
    before: [
      tiles(
        ...(result.slo ?? []).map((each) => ({
          name: each.promise.replace("_", " "),
          value: seconds(each.delivered_s),
          note: `SLO ${seconds(each.promised_s)}`,
          mood: each.kept ? "good" : "bad",
        })),
        {
          name: "Mean batch",
          value: figure(result.batch),
          note: `KV memory peaks at ${percent(result.kv_peak_share)}`,
        },
        { name: "Load", value: percent(result.load_share), note: `busy ${percent(result.utilization)} of the time` },
        {
          name: "Answered",
          value: percent(result.completed / result.requests, result.completed === result.requests ? 0 : 2),
          note:
            result.completed === result.requests
              ? "every request"
              : `${count(result.requests - result.completed)} were not`,
          mood: result.completed < result.requests ? "bad" : null,
        },
        {
          name: "Preemptions",
          value: count(result.preemptions),
          note: `${count(result.cached_tokens)} prompt tokens from cache`,
        },
      ),
    ],
    after: [section("Latency", latencies(result)), section("Where the time goes", shares(parts))],
    rows: result.timeline,
  };
}

function latencies(result) {
  const rows = [
    ["First token", "ttft_s"],
    ["Each next token", "tpot_s"],
    ["Whole answer", "e2e_s"],
    ["In the queue", "queue_s"],
  ].map(([what, key]) => ({ what, ...result[key] }));
  const columns = [
    { key: "what", name: "Time to" },
    ...["mean", "p50", "p90", "p95", "p99"].map((key) => ({
      key,
      name: key,
      number: true,
      show: (value) => seconds(value),
    })),
  ];
  return table({ caption: "Latency of answered requests", columns, rows });
}

function shares(rows) {
  const columns = [
    { key: "what", name: "Part" },
    { key: "share", name: "Share of time", unit: "%", number: true, show: (value) => figure(value * 100) },
  ];
  return table({ caption: "Share of the replicas' time", columns, rows: rows.filter((row) => row.share > 0) });
}
