// Plan: the cheapest ways to serve a model under an SLO. While the form moves, a closed form answers with means;
// on request every candidate near the top is simulated and the SLO is checked at its percentile.

import { h } from "../dom.js";
import * as field from "../fields.js";
import { count, figure, percent, plural, seconds, usd } from "../format.js";
import { labelled } from "../labels.js";
import { files, origins, section, tiles } from "../pane.js";
import { machines, ranking, runnersUp, whyNot } from "./plan-lists.js";

const TAKEN = [
  "rate",
  "input",
  "output",
  "arrivals",
  "trace",
  "slo",
  "offline",
  "gpu",
  "gpus",
  "max_price",
  "provider",
  "region",
  "terms",
  "discount",
  "weights",
  "min_weights",
  "engine",
  "spare",
  "explain",
  "tokens_per_month",
];

const NAMES = { ttft: "First token", tpot: "Each next token", e2e: "Whole answer" };
const leaderOf = ({ best, ranked }) => best ?? ranked?.[0] ?? null;
const plan = {
  key: "plan",
  name: "Plan",
  lede: "Model, traffic and SLO in; the cheapest machines that meet it out.",
  comparable: true,
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
        { name: "spare", label: "Spare replicas", kind: "text", numeric: true, wide: false, fallback: "" },
        { name: "discount", label: "Discounts", kind: "text", fallback: "", placeholder: "aws=0.2" },
      ],
    },
    { name: "Traffic in detail", folded: true, fields: [field.tokensPerMonth, field.trace, field.arrivals] },
    {
      name: "Deeper",
      folded: true,
      fields: [
        { name: "explain", label: "Also: which traffic would flip the choice (slower)", kind: "check", fallback: "" },
      ],
    },
  ],
  request(values) {
    const inputs = { what: [values.model], ...field.asked(values, TAKEN) };
    if (inputs.tokens_per_month) delete inputs.rate;
    if (inputs.trace) for (const name of ["rate", "input", "output", "arrivals"]) delete inputs[name];
    if (values.run === "1")
      return { verb: "plan", inputs: { ...inputs, deploy: ["vllm", "kubernetes", "skypilot"] }, long: true };
    delete inputs.explain;
    return { verb: "plan", inputs: { ...inputs, quick: true }, slowCharts: true };
  },
  figures({ result }) {
    const best = leaderOf(result);
    return [
      { name: "Dollars per million tokens", value: best?.usd_per_mtok.blended, show: usd },
      { name: "Bill a month", value: best?.usd_per_month, show: usd },
      { name: "GPUs paid", value: best?.gpus_paid, show: count },
      { name: "First token, mean", value: best?.ttft_s.mean, show: seconds },
      { name: "Each next token, mean", value: best?.tpot_s.mean, show: seconds },
      { name: "Utilisation", value: best?.utilization, show: (value) => percent(value), less: "worse", share: true },
    ];
  },
  render({ result }, values) {
    const best = leaderOf(result);
    return best ? shown(result, best, values) : nothing(result);
  },
};
export default plan;

function shown(result, best, values) {
  return {
    headline: {
      label: result.simulations
        ? `Cheapest of ${plural(result.ranked.length, "way")} that meet the SLO`
        : `Cheapest estimate of ${plural(result.ranked.length, "way")}`,
      value: usd(best.usd_per_mtok.blended),
      unit: "per million tokens",
      detail: [
        h("b", {}, machines(best)),
        ` · ${best.weights} weights, ${best.kv} KV · ${best.engine} · ${best.provider} ${best.instance}, ${best.region} at ${usd(best.instance_usd_per_hour)}/h`,
      ],
      badges: origins(best),
      next: result.simulations
        ? nextSimulated(result)
        : [
            "this is a closed form: it knows means, not percentiles. Press ",
            h("b", {}, "Check by simulation"),
            values.trace ? " to check the SLO against your log." : " to check the SLO against made-up traffic.",
          ],
    },
    before: [facts(result, best, faithful(result, best)), runnersUp(result.ranked, best), ranking(result)],
    after: [
      result.deploy?.length &&
        section("Files to start it", h("p", { class: "soft" }, "Written for the pick above."), files(result.deploy)),
      firmness(result),
      whyNot(result),
    ],
    rows: result.ranked.map(flat),
  };
}

function nextSimulated({ deploy, headroom }) {
  const room =
    headroom && headroom.at_most !== null
      ? `It holds up to ${figure(headroom.rate)} requests a second (${percent(headroom.share)} more). `
      : "";
  const start = [
    "Start it with the files below, measure it with ",
    h("code", {}, "tokonomics bench"),
    " and drop the result here.",
  ];
  return [room, deploy?.length ? start : null];
}

// The cheapest row at the precision the model was published in, where the pick is below it.
function faithful({ ranked }, best) {
  return best.below_checkpoint ? ranked.find((row) => !row.below_checkpoint) : null;
}

function facts({ promises: slos, headroom, bill_range: range }, best, whole) {
  const kept = slos.map(({ latency, statistic, seconds: target }) => {
    const told = best[`${latency}_s`];
    const value = told[statistic] ?? told.mean;
    const which = told[statistic] === null || told[statistic] === undefined ? "mean" : statistic;
    return {
      name: `${NAMES[latency]}, ${which}`,
      value: seconds(value),
      note: `SLO ${seconds(target)} at ${statistic}`,
      // A mean below an SLO at p99 has not met it: only the simulated percentile is coloured.
      mood: which !== statistic ? null : value <= target ? "good" : "bad",
    };
  });
  return tiles(
    {
      name: "Bill a month",
      value: usd(best.usd_per_month),
      note: range && ifSpeedsAreOff(range),
    },
    whole && {
      name: "At full precision",
      value: usd(whole.usd_per_month),
      note: `${machines(whole)}, ${whole.weights}: the pick has fewer bits, check its answers`,
    },
    ...kept,
    {
      name: "Utilisation",
      value: percent(best.utilization),
      note: `mean batch ${figure(best.batch)}; limit: ${best.limited_by}`,
    },
    headroom &&
      (headroom.at_most === null
        ? { name: "Headroom", value: "any", note: "nothing breaks however much the traffic grows" }
        : { name: "Headroom", value: `+${percent(headroom.share)}`, note: `then ${headroom.breaks}` }),
  );
}

// The bill over the 80 % interval of the speed; a slower machine may meet the SLO on no number of replicas.
function ifSpeedsAreOff({ fast, mid, slow }) {
  const bills = [fast, mid, slow].map((each) => each.usd_per_month).filter((each) => each !== null);
  const [low, high] = [Math.min(...bills), Math.max(...bills)];
  if (slow.usd_per_month === null)
    return `from ${usd(low)}; ${percent(1 - slow.speed)} slower, no number of replicas meets the SLO`;
  return low === high ? "also if speeds are off" : `${usd(low)} to ${usd(high)} if speeds are off`;
}

function flat(row) {
  return {
    gpu: row.gpu,
    replicas: row.replicas,
    gpus_per_replica: row.gpus_per_replica,
    tp: row.tp,
    weights: row.weights,
    kv: row.kv,
    engine: row.engine,
    provider: row.provider,
    region: row.region,
    instance: row.instance,
    terms: row.terms,
    usd_per_hour: row.instance_usd_per_hour * row.instances,
    usd_per_month: row.usd_per_month,
    usd_per_mtok: row.usd_per_mtok.blended,
    ttft_mean_s: row.ttft_s.mean,
    ttft_p99_s: row.ttft_s.p99,
    tpot_mean_s: row.tpot_s.mean,
    tpot_p99_s: row.tpot_s.p99,
    utilization: row.utilization,
    batch: row.batch,
    speed: row.speed,
    price_date: row.price_date,
  };
}

function firmness({ flips, sensitivity }) {
  if (!flips) return null;
  const say = (flip, what) =>
    flip &&
    h(
      "li",
      {},
      `${what}: ${flip.gpu} at ${flip.provider} (${flip.region}), ${usd(flip.usd_per_month)} a month; ${flip.pick_may_rise < 0.001 ? "the same price" : `it wins once the pick costs ${percent(flip.pick_may_rise)} more`}.`,
    );
  return section(
    "How firm the choice is",
    h(
      "ul",
      {},
      say(flips.other_offer, "Next offer"),
      say(flips.other_gpu, "Next GPU"),
      sensitivity && h("li", {}, "What moves the bill is in the chart above."),
    ),
  );
}

function nothing(result) {
  const blames = result.blame ?? [];
  return {
    headline: {
      label: "Nothing meets this SLO at this traffic",
      value: "No machine",
      mood: "bad",
      detail: `${plural(result.rejected?.length ?? 0, "candidate")} looked at, all left out.`,
      next: "loosen the SLO, allow more providers or lower precisions; what stands in the way is listed below.",
    },
    before: [
      blames.length > 0 &&
        section(
          "What stands in the way",
          h(
            "ul",
            {},
            blames.map(({ constraint, why, nearest }) =>
              h("li", {}, labelled(plan.groups).flags([constraint, why, nearest].join(": "))),
            ),
          ),
        ),
    ],
    after: [whyNot(result)],
  };
}
