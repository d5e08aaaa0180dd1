// A benchmark you already ran, in dollars: dropped anywhere on the page; and how far our prediction was off.

import { h } from "../dom.js";
import { openFile } from "../drop.js";
import * as field from "../fields.js";
import { count, figure, percent, plural, seconds, usd } from "../format.js";
import { badge, section, tiles } from "../pane.js";
import { table } from "../table.js";

export default {
  key: "benchmark",
  name: "Benchmark",
  hidden: true,
  lede: "Drop the results of a load test: what each load costs per million tokens.",
  presets: false,
  groups: [
    {
      name: "The machine it ran on",
      fields: [
        {
          name: "files",
          label: "Files",
          kind: "text",
          fallback: "",
          hint: "Drop results of vLLM, SGLang, guidellm, aiperf, genai-perf, InferenceX or llm-d anywhere on the page.",
        },
        { ...field.gpu, fallback: "H100-SXM" },
        {
          name: "gpus",
          label: "GPUs",
          kind: "text",
          numeric: true,
          wide: false,
          fallback: "",
          placeholder: "as the file says",
        },
        field.usdPerHour,
        { ...field.model, fallback: "", label: "Model", placeholder: "as the file says" },
        { ...field.weights },
      ],
    },
    { name: "SLO", fields: [{ ...field.slo, fallback: "" }] },
  ],
  request(values) {
    if (!values.files) return null;
    const inputs = field.asked(values, ["gpu", "gpus", "usd_per_hour", "model", "weights", "slo"]);
    return { verb: "import", inputs: { files: values.files.split(","), ...inputs } };
  },
  empty: () => [
    h("h2", {}, "Drop a benchmark file"),
    h(
      "p",
      {},
      "Results of vLLM bench serve, SGLang bench_serving, guidellm, aiperf, genai-perf, InferenceX, llm-d or tokonomics bench become dollars per million tokens.",
    ),
    h("button", { type: "button", onclick: openFile }, "Open a file"),
  ],
  render({ result }) {
    const { run, machine, price, points, verdict } = result;
    const rows = points.map((each, at) => ({ ...each, ...run.points[at], usd: each.usd_per_mtok }));
    const best = rows[verdict?.best ?? 0] ?? rows[0];
    const error = Object.entries(result.median_abs_error ?? {});
    const unknown = points.find((each) => each.not_predicted)?.not_predicted;
    return {
      headline: {
        label: `${run.tool}: ${run.model ?? "an unnamed model"} on ${machine.gpus} × ${machine.gpu}, at ${best.load}`,
        value: best.usd ? usd(best.usd.blended) : figure(best.output_tokens_per_s),
        unit: best.usd ? "per million tokens" : "output tokens per second",
        detail: price
          ? `${usd(price.usd_per_hour)} an hour each: ${price.price_from}`
          : "No price is known for this GPU: give yours.",
        badges: [
          badge("measured", "speed measured"),
          price && badge(/older/.test(price.price_from) ? "stale" : "quoted", "price quoted"),
        ],
        next: unknown
          ? `choose the model on the form to hold our prediction against this run (${unknown}).`
          : verdict?.knee
            ? `beyond ${rows[verdict.knee]?.load ?? "the knee"} latency grows and throughput does not.`
            : "run it at more loads to see where it bends.",
      },
      before: [
        tiles(
          { name: "Output only", value: best.usd ? usd(best.usd.output_only) : "–", note: "per million output tokens" },
          { name: "Throughput", value: figure(best.output_tokens_per_s), note: "output tokens per second" },
          { name: "First token, p99", value: seconds(best.ttft_s?.p99) },
          { name: "Each next token, p99", value: seconds(best.tpot_s?.p99) },
          ...error.map(([what, value]) => ({ name: `Prediction off: ${what}`, value: percent(value), note: "median" })),
        ),
      ],
      after: [
        section("Loads", loads(rows)),
        run.notes?.length > 0 &&
          section(
            "Notes",
            h(
              "ul",
              {},
              run.notes.map((note) => h("li", {}, note)),
            ),
          ),
      ],
      rows: rows.map((row) => ({
        load: row.load,
        usd_per_mtok: row.usd?.blended,
        usd_per_mtok_output: row.usd?.output_only,
        output_tokens_per_s: row.output_tokens_per_s,
        ttft_p99_s: row.ttft_s?.p99,
        tpot_p99_s: row.tpot_s?.p99,
        completed: row.completed,
        failed: row.failed,
      })),
    };
  },
};

function loads(rows) {
  const columns = [
    { key: "load", name: "Load" },
    {
      key: "usd",
      name: "Tokens",
      unit: "$/Mtok",
      number: true,
      value: (row) => row.usd?.blended,
      show: (value) => usd(value),
    },
    {
      key: "out",
      name: "Output",
      unit: "$/Mtok",
      number: true,
      value: (row) => row.usd?.output_only,
      show: (value) => usd(value),
    },
    { key: "output_tokens_per_s", name: "Throughput", unit: "tokens/s", number: true },
    { key: "ttft50", name: "TTFT p50", number: true, value: (row) => row.ttft_s?.p50, show: (value) => seconds(value) },
    { key: "ttft", name: "TTFT p99", number: true, value: (row) => row.ttft_s?.p99, show: (value) => seconds(value) },
    { key: "tpot", name: "TPOT p50", number: true, value: (row) => row.tpot_s?.p50, show: (value) => seconds(value) },
    { key: "completed", name: "Requests", number: true, show: (value) => count(value) },
    { key: "failed", name: "Failed", number: true, show: (value) => count(value) },
  ];
  return table({ caption: `${plural(rows.length, "load")}, as measured`, columns, rows });
}
