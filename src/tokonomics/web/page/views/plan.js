// Plan: the cheapest ways to serve a model under a promise. While the form moves, a closed form answers with means;
// on request every candidate near the top is simulated and the promise is checked at its percentile.

import { h, refill } from "../dom.js";
import * as field from "../fields.js";
import { capital, count, figure, milliseconds, percent, plural, seconds, usd } from "../format.js";
import { badge, files, origins, section, tiles } from "../pane.js";
import { table } from "../table.js";

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
export const machines = (row) =>
  `${row.replicas} × ${row.gpus_per_replica > 1 ? `${row.gpus_per_replica}× ` : ""}${row.gpu}`;
const layout = (row) =>
  [row.tp > 1 && `TP${row.tp}`, row.pp > 1 && `PP${row.pp}`, row.ep > 1 && `EP${row.ep}`].filter(Boolean).join(" ");

export default {
  key: "plan",
  name: "Plan",
  lede: "Model, traffic and promise in; the cheapest machines that keep it out.",
  comparable: true,
  submitLabel: "Check by simulation",
  groups: [
    { name: "Model", fields: [{ ...field.model, bare: true }] },
    { name: "Traffic", fields: [field.rate, field.input, field.output] },
    { name: "Promise", fields: [field.slo, field.offline] },
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
      { name: "Utilisation", value: best?.utilization, show: (value) => percent(value), less: "worse" },
    ];
  },
  render({ result }, values) {
    const best = leaderOf(result);
    return best ? shown(result, best, values) : nothing(result);
  },
};

function shown(result, best, values) {
  return {
    headline: {
      label: result.simulations
        ? `Cheapest of ${plural(result.ranked.length, "way")} that keep the promise`
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
            " to hold the promise against made-up traffic.",
          ],
    },
    before: [facts(result, best), runnersUp(result.ranked, best), ranking(result)],
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
  const room = headroom
    ? `It holds up to ${figure(headroom.rate)} requests a second (${percent(headroom.share)} more). `
    : "";
  return `${room}${deploy?.length ? "Start it with the files below, then measure it with `tokonomics bench` and drop the result here." : ""}`;
}

function facts({ promises, headroom, bill_range: range }, best) {
  const kept = promises.map(({ latency, statistic, seconds: promised }) => {
    const told = best[`${latency}_s`];
    const value = told[statistic] ?? told.mean;
    const which = told[statistic] === null || told[statistic] === undefined ? "mean" : statistic;
    return {
      name: `${NAMES[latency]}, ${which}`,
      value: seconds(value),
      note: `promised ${seconds(promised)} at ${statistic}`,
      mood: value <= promised ? "good" : "bad",
    };
  });
  const low = range && Math.min(range.fast.usd_per_month ?? Infinity, range.slow.usd_per_month ?? Infinity);
  const high = range && Math.max(range.fast.usd_per_month ?? 0, range.slow.usd_per_month ?? 0);
  return tiles(
    {
      name: "Bill a month",
      value: usd(best.usd_per_month),
      note: range && (low === high ? "also if speeds are off" : `${usd(low)} to ${usd(high)} if speeds are off`),
    },
    ...kept,
    {
      name: "Utilisation",
      value: percent(best.utilization),
      note: `mean batch ${figure(best.batch)}; limit: ${best.limited_by}`,
    },
    headroom && { name: "Headroom", value: `+${percent(headroom.share)}`, note: `then ${headroom.breaks}` },
  );
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

const kindOf = (row) => [row.gpu, row.gpus_per_replica, row.replicas, row.weights, row.kv, row.tp].join("|");

// One row for each kind of hardware, at its cheapest offer; the table of every offer is one press away.
function kinds(ranked) {
  const found = new Map();
  for (const row of ranked) {
    const kind = found.get(kindOf(row));
    if (kind) kind.others += 1;
    else found.set(kindOf(row), { ...row, others: 0 });
  }
  return [...found.values()].map((row, at) => ({ ...row, place: at + 1 }));
}

function runnersUp(ranked, best) {
  const first = new Map();
  for (const row of ranked) if (!first.has(row.gpu)) first.set(row.gpu, row);
  const rest = [...first.values()].filter((row) => row.gpu !== best.gpu).slice(0, 4);
  if (!rest.length) return null;
  return h(
    "ol",
    { class: "cards", "aria-label": "Other hardware, cheapest first" },
    rest.map((row) =>
      h(
        "li",
        {},
        h("p", { class: "label" }, machines(row), " ", badge(row.speed)),
        h("p", { class: "price" }, usd(row.usd_per_mtok.blended), h("span", { class: "unit" }, " /Mtok")),
        h(
          "p",
          { class: "soft" },
          `+${percent(row.usd_per_mtok.blended / best.usd_per_mtok.blended - 1)} · ${usd(row.usd_per_month)} a month · ${row.provider}`,
        ),
        h(
          "p",
          { class: "soft" },
          `TTFT ${seconds(row.ttft_s.p99 ?? row.ttft_s.mean)} · TPOT ${seconds(row.tpot_s.p99 ?? row.tpot_s.mean)}`,
        ),
      ),
    ),
  );
}

function ranking(result) {
  const tail = result.simulations ? "p99" : "mean";
  const columns = [
    { key: "place", name: "#", number: true },
    {
      key: "gpu",
      name: "Machines",
      nowrap: true,
      show: (_, row) => [machines(row), layout(row) && h("span", { class: "soft" }, ` ${layout(row)}`)],
    },
    {
      key: "weights",
      name: "Weights, KV",
      nowrap: true,
      show: (_, row) => [
        `${row.weights}, ${row.kv}`,
        row.below_checkpoint && h("abbr", { title: "below the checkpoint's precision: check quality" }, "*"),
      ],
    },
    {
      key: "usd",
      name: "Tokens",
      unit: "$/Mtok",
      number: true,
      value: (row) => row.usd_per_mtok.blended,
      show: (value) => usd(value),
    },
    { key: "usd_per_month", name: "Bill", unit: "$/month", number: true, show: (value) => usd(value) },
    {
      key: "ttft",
      name: `TTFT ${tail}`,
      unit: "ms",
      number: true,
      value: (row) => row.ttft_s[tail],
      show: (value) => milliseconds(value),
    },
    {
      key: "tpot",
      name: `TPOT ${tail}`,
      unit: "ms",
      number: true,
      value: (row) => row.tpot_s[tail],
      show: (value) => milliseconds(value),
    },
    { key: "utilization", name: "Utilised", unit: "%", number: true, show: (value) => figure(value * 100, 2) },
    {
      key: "provider",
      name: "Cheapest offer",
      value: (row) => `${row.provider} ${row.region}`,
      nowrap: true,
      show: (_, row) => [
        row.provider,
        " ",
        h("span", { class: "soft" }, row.region, row.others ? ` +${count(row.others)}` : ""),
      ],
    },
    {
      key: "price_date",
      name: "Quoted",
      nowrap: true,
      show: (value, row) => h("span", { class: row.price_stale ? "old" : null }, value),
    },
    { key: "speed", name: "Speed", show: (value) => badge(value) },
  ];
  const place = h("div");
  const fill = (every) => {
    const rows = every ? result.ranked.map((row, at) => ({ ...row, place: at + 1 })) : kinds(result.ranked);
    const caption = every
      ? "Every offer, cheapest first"
      : "Kinds of hardware at their cheapest offer; a heading sorts";
    refill(
      place,
      table({
        caption,
        columns,
        rows,
        limit: 10,
        noun: every ? "offer" : "kind",
        mark: (row) => (row.place === 1 ? "best" : null),
      }),
    );
  };
  fill(false);
  const every = h(
    "button",
    {
      type: "button",
      class: "quiet",
      "aria-pressed": "false",
      onclick: () => (
        every.setAttribute("aria-pressed", String(every.getAttribute("aria-pressed") !== "true")),
        fill(every.getAttribute("aria-pressed") === "true")
      ),
    },
    "Every offer",
  );
  return section(
    ["Ranked", every],
    place,
    result.ranked.some((row) => row.below_checkpoint) &&
      h(
        "p",
        { class: "soft" },
        "* below the checkpoint's precision: check the quality of the answers before you switch.",
      ),
  );
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

// Rejections by kind, then by reason: the list of everything that was looked at and left out.
export function whyNot({ rejected }) {
  if (!rejected?.length) return null;
  const kinds = Map.groupBy ? Map.groupBy(rejected, (each) => each.kind) : grouped(rejected);
  const size = (list) => list.reduce((sum, each) => sum + (each.offers ?? 1), 0);
  const sorted = [...kinds].sort(([, one], [, other]) => size(other) - size(one));
  return section(
    "Why not the others",
    sorted.map(([kind, list]) =>
      h(
        "details",
        {
          class: "why",
          ontoggle: (event) =>
            event.target.open && event.target.children.length === 1 && event.target.append(reasons(list)),
        },
        h(
          "summary",
          {},
          h("span", {}, capital(kind)),
          h("span", { class: "number soft" }, plural(size(list), "offer")),
        ),
      ),
    ),
  );
}

function reasons(list) {
  const columns = [
    { key: "gpu", name: "GPU" },
    { key: "layout", name: "Layout" },
    {
      key: "provider",
      name: "Offer",
      value: (row) => [row.provider, row.region, row.instance].filter(Boolean).join(" "),
    },
    { key: "offers", name: "Offers", number: true },
    { key: "reason", name: "Reason" },
  ];
  return table({ caption: "Rejected, with the reason", columns, rows: list, limit: 12, noun: "reason" });
}

function grouped(list) {
  const found = new Map();
  for (const each of list) found.set(each.kind, [...(found.get(each.kind) ?? []), each]);
  return found;
}

function nothing(result) {
  const blames = result.blame ?? [];
  return {
    headline: {
      label: "Nothing keeps this promise at this traffic",
      value: "No machine",
      mood: "bad",
      detail: `${plural(result.rejected?.length ?? 0, "candidate")} looked at, all left out.`,
      next: "loosen the promise, allow more providers or lower precisions; what stands in the way is listed below.",
    },
    before: [
      blames.length > 0 &&
        section(
          "What stands in the way",
          h(
            "ul",
            {},
            blames.map((each) =>
              h(
                "li",
                {},
                Object.values(each)
                  .filter((value) => typeof value === "string")
                  .join(": "),
              ),
            ),
          ),
        ),
    ],
    after: [whyNot(result)],
  };
}
