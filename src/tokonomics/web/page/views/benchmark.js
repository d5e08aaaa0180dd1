// A benchmark you already ran, in dollars: dropped anywhere on the page; and how far our prediction was off.

import { h } from "../dom.js";
import { openFile } from "../drop.js";
import * as field from "../fields.js";

export default {
  key: "benchmark",
  name: "Benchmark",
  lede: "Drop the results of a load test: what each load costs per million tokens.",
  presets: false,
  carried: ["verify"], // the certificate of `tokonomics tune`
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
    if (values.verify) return { verb: "verify", inputs: field.asked("verify", values) };
    return values.files ? { verb: "import", inputs: field.asked("import", values) } : null;
  },
  empty: () => [
    h("h2", {}, "Drop a results file, or choose one"),
    h(
      "p",
      {},
      "Results of vLLM bench serve, SGLang bench_serving, guidellm, aiperf, genai-perf, InferenceX, llm-d or tokonomics bench become dollars per million tokens at every load, the load to run at, and how far our prediction was off.",
    ),
    h("button", { type: "button", onclick: openFile }, "Choose a file"),
    h("p", {}, "No results yet? This measures a server of yours, and its file can be dropped here:"),
    h("pre", { tabindex: "0" }, "tokonomics bench http://localhost:8000 --save run.json"),
  ],
};
