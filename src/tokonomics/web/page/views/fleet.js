// Fleet: which machines to buy, on which terms, hour by hour, for a demand that changes.

import { h } from "../dom.js";
import * as field from "../fields.js";
import { count, figure, percent, plural, seconds, usd, words } from "../format.js";
import { badge, section, tiles } from "../pane.js";
import { table } from "../table.js";

const TAKEN = [
  "model",
  "demand",
  "trace",
  "input",
  "output",
  "slo",
  "gpu",
  "provider",
  "region",
  "terms",
  "no_spot",
  "no_reserved",
  "max_spot_share",
  "min_replicas",
  "availability",
  "weights",
  "engine",
  "anywhere",
];

export default {
  key: "fleet",
  name: "Fleet",
  lede: "Reserved, on demand and spot, hour by hour, for a demand that changes.",
  comparable: true,
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
    { name: "SLO", fields: [{ ...field.slo, fallback: "ttft_p99=1000ms,tpot_p99=50ms" }] },
    {
      name: "What may be bought",
      folded: true,
      fields: [
        { ...field.gpu, fallback: "", label: "Only this GPU", placeholder: "any" },
        field.provider,
        field.region,
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
    const inputs = field.asked(values, TAKEN);
    if (inputs.gpu) inputs.gpu = [inputs.gpu];
    if (inputs.terms) inputs.terms = [inputs.terms];
    if (inputs.trace) for (const name of ["demand", "input", "output"]) delete inputs[name];
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
  figures({ result }) {
    return [
      { name: "Bill a month", value: result.plan?.usd_per_month, show: usd },
      { name: "Bad month (p99)", value: result.plan?.p99_usd_per_month, show: usd },
      { name: "Answered", value: result.availability?.share, show: (value) => percent(value, 3), less: "worse", share: true },
    ];
  },
  render({ result }) {
    const { plan, availability } = result;
    if (!plan)
      return {
        headline: {
          label: "No fleet holds this demand",
          value: "None",
          mood: "bad",
          detail: result.verdict && String(result.verdict),
          next: "loosen the SLO or allow more offers; the reasons are below.",
        },
        after: [refusals(result)],
      };
    const simple = plan.comparisons?.find((each) => each.saved_share > 0);
    return {
      headline: {
        label: `Cheapest fleet for ${result.model}, ${figure(result.mean_requests_per_s)} requests a second on average, ${figure(result.peak_requests_per_s)} at the peak`,
        value: usd(plan.usd_per_month),
        unit: "a month",
        detail: `${plan.purchases.map((each) => `${words(each.terms)} ${each.offer}`).join("; ")}.`,
        badges: [
          badge("simulated", "replayed"),
          result.machines?.some((each) => each.price_stale) && badge("stale", "some prices old"),
        ],
        next: simple
          ? `${simple.name} would cost ${usd(simple.usd_per_month)}: this saves ${percent(simple.saved_share)}.`
          : `${result.spot_share_by ?? "buying on demand as each hour needs is already the cheapest"}.`,
      },
      before: [
        tiles(
          { name: "A bad month", value: usd(plan.p99_usd_per_month), note: "p99, reclaimed spot bought again" },
          availability && {
            name: "Expected to answer",
            value: nines(availability.share),
            note: availability.target
              ? `asked: ${nines(availability.target)}`
              : plural(availability.spare_machines, "spare machine"),
          },
          {
            name: "Most machines at once",
            value: count(
              Math.max(
                ...plan.purchases[0].by_hour.map((_, hour) =>
                  plan.purchases.reduce((sum, each) => sum + each.by_hour[hour], 0),
                ),
              ),
            ),
          },
          {
            name: "Proved optimal within",
            value: percent(plan.gap, 1),
            note: `${count(plan.variables)} variables in ${seconds(plan.solve_s)}`,
          },
        ),
      ],
      after: [
        section("What to buy", bought(plan)),
        section("Against simpler fleets", others(plan)),
        result.replays?.length > 0 && section("Replayed", replays(result.replays)),
        refusals(result),
      ],
      rows: plan.demand.map((demand, hour) => ({
        hour,
        demand,
        firm_capacity: plan.firm_capacity[hour],
        spot_capacity: plan.spot_capacity[hour],
      })),
    };
  },
};

// A share that rounds to all of it is not all of it.
const nines = (share) => (share < 1 && share > 0.99999 ? "> 99.999 %" : percent(share, 3));

function bought({ purchases, hours }) {
  const columns = [
    { key: "offer", name: "Offer" },
    { key: "terms", name: "Terms", value: (row) => words(row.terms) },
    { key: "most", name: "At most", unit: "machines", number: true, value: (row) => Math.max(...row.by_hour) },
    {
      key: "mean",
      name: "On average",
      unit: "machines",
      number: true,
      value: (row) => row.by_hour.reduce((sum, each) => sum + each, 0) / hours,
    },
    { key: "requests_per_s", name: "Holds each", unit: "req/s", number: true },
    { key: "usd_per_hour", name: "Price", unit: "$/h", number: true, show: (value) => usd(value) },
    { key: "usd_per_month", name: "Bill", unit: "$/month", number: true, show: (value) => usd(value) },
  ];
  return table({ caption: "Machines, terms and their share of the bill", columns, rows: purchases });
}

function others({ comparisons }) {
  const columns = [
    { key: "name", name: "Fleet" },
    { key: "usd_per_month", name: "Bill", unit: "$/month", number: true, show: (value) => usd(value) },
    {
      key: "saved_share",
      name: "This one saves",
      unit: "%",
      number: true,
      show: (value, row) => (row.usd_per_month === null ? "–" : figure(value * 100, 2)),
    },
    { key: "note", name: "Note" },
  ];
  return table({ caption: "The same demand, bought more simply", columns, rows: comparisons ?? [] });
}

function replays(list) {
  const columns = [
    { key: "name", name: "Replay" },
    { key: "what", name: "What happens" },
    { key: "requests", name: "Requests", number: true, show: (value) => count(value) },
    { key: "answered_share", name: "Answered", unit: "%", number: true, show: (value) => figure(value * 100, 4) },
    {
      key: "slo",
      name: "SLOs",
      value: (row) =>
        row.slo
          .map(
            (each) => `${each.promise.replace("_", " ")} ${seconds(each.delivered_s)} of ${seconds(each.promised_s)}`,
          )
          .join("; "),
      show: (value, row) => [badge(row.slo.every((each) => each.kept) ? "kept" : "broken"), " ", value],
    },
  ];
  return table({ caption: "The fleet under the simulator, as bought and as things fail", columns, rows: list });
}

function refusals({ refused }) {
  const rows = Object.entries(refused ?? {}).map(([what, reason]) => ({ what, reason }));
  if (!rows.length) return null;
  return section(
    "Why not the others",
    h(
      "details",
      { class: "why" },
      h("summary", {}, h("span", {}, "Layouts left out"), h("span", { class: "soft number" }, count(rows.length))),
      table({
        caption: "Layouts left out, with the reason",
        columns: [
          { key: "what", name: "Layout" },
          { key: "reason", name: "Reason" },
        ],
        rows,
      }),
    ),
  );
}
