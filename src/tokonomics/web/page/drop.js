// Drop a file anywhere: a benchmark's results become dollars, a request log becomes traffic, a config.json a model, the
// certificate of a search for flags its trials.

import { Refusal, upload } from "./api.js";
import { chooseColumns } from "./columns.js";
import { announce, h, refill } from "./dom.js";
import { trace } from "./fields.js";
import { labelled } from "./labels.js";
import { keep } from "./uploads.js";

const WITH_A_LOG = ["plan", "levers", "fleet"]; // views that stay when a log is dropped; others show it as traffic
const { text: labels } = labelled([{ fields: [trace] }]);

export function dropping({ goTo, now }) {
  const veil = document.getElementById("veil");
  let depth = 0;
  const files = (event) => event.dataTransfer?.types?.includes("Files");
  addEventListener("dragenter", (event) => files(event) && ((veil.hidden = false), (depth += 1)));
  addEventListener("dragleave", (event) => files(event) && --depth <= 0 && (veil.hidden = true));
  addEventListener("dragover", (event) => files(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!files(event)) return;
    event.preventDefault();
    depth = 0;
    veil.hidden = true;
    take([...event.dataTransfer.files]);
  });
  const picker = h("input", {
    type: "file",
    multiple: true,
    hidden: true,
    onchange: () => (take([...picker.files]), (picker.value = "")),
  });
  document.body.append(picker);
  for (const button of document.querySelectorAll("[data-open-file]"))
    button.addEventListener("click", () => picker.click());
  addEventListener("open-file", () => picker.click());

  async function take(list) {
    if (!list.length) return;
    say(`Reading ${list.map((each) => each.name).join(", ")} …`);
    try {
      const taken = [];
      for (const file of list) taken.push(await upload(file));
      taken.forEach(keep);
      const names = taken.map((each) => `upload:${each.id}`).join(",");
      const kinds = new Set(taken.map((each) => each.kind));
      if (kinds.size > 1)
        throw new Refusal({
          what: "These files are of different kinds",
          fix: "Drop the results of one benchmark, or one request log.",
        });
      say(null);
      await route(taken[0], names);
    } catch (error) {
      say(error.what ?? error.message, error.fix);
    }
  }

  async function route(first, names) {
    const log = `upload:${first.id}`;
    const columns = first.kind === "unknown" && first.table ? await chooseColumns(log, "", first.table) : null;
    if (first.kind === "benchmark" && now().view === "plan") goTo("plan", { carried: { measured: names } });
    else if (first.kind === "benchmark")
      goTo(now().view === "accuracy" ? "accuracy" : "benchmark", { carried: { files: names } });
    else if (first.kind === "certificate") goTo("benchmark", { carried: { verify: log } });
    else if (first.kind === "trace" || columns)
      goTo(WITH_A_LOG.includes(now().view) ? now().view : "traffic", {
        carried: { trace: log, columns: columns ?? "" },
      });
    else if (first.kind === "config")
      goTo(now().view === "batching" ? "batching" : "plan", { carried: { model: `upload:${first.id}` } });
    else
      throw new Refusal({
        what: `${first.name} is no file we know${first.why ? `: ${labels(first.why)}` : ""}`,
        fix:
          labels(first.fix) ??
          "Drop results of vLLM bench serve, SGLang, guidellm, aiperf, genai-perf, InferenceX or llm-d; a request log; or a config.json.",
      });
    announce(`${first.name}: ${columns ? "trace" : first.kind}`);
  }

  function say(what, fix) {
    const place = document.getElementById("notice");
    place.hidden = !what;
    refill(
      place,
      what && h("p", {}, h("b", {}, what), fix && ` ${fix}`),
      what && h("button", { type: "button", class: "quiet", onclick: () => (place.hidden = true) }, "Close"),
    );
  }
}

export const openFile = () => dispatchEvent(new Event("open-file"));
