// Levers: what to change first. Each lever simulated alone and together, the way from the naive start, caching, tenancy.

import { h } from "../dom.js";
import * as field from "../fields.js";
import { capital, count, figure, percent, plural, seconds, usd } from "../format.js";
import { badge, section, tiles } from "../pane.js";
import { table } from "../table.js";

const TRAFFIC = ["rate", "input", "output", "arrivals", "trace", "slo", "offline"];
const SETUP = ["model", "gpu", "tp", "weights", "kv", "engine", "usd_per_hour"];
const is =
  (...panels) =>
  (values) =>
    panels.includes(values.panel);

const REQUESTS = {
  levers: (values) => ({
    verb: "levers",
    inputs: priced(field.asked(values, [...SETUP, ...TRAFFIC, "min_weights", "provider", "no_prefix_cache", "spare"])),
  }),
  stack: (values) => ({
    verb: "stack",
    inputs: priced(
      field.asked(values, [
        ...SETUP.filter((name) => name !== "weights" && name !== "kv"),
        ...TRAFFIC,
        "min_weights",
        "provider",
        "spare",
      ]),
    ),
  }),
  cache: (values) => ({
    verb: "cache",
    inputs: field.asked({ ...values, trace: values.trace || "mooncake-conversation" }, [
      ...SETUP,
      "trace",
      "slo",
      "tiers",
      "ttl",
    ]),
  }),
  tenants: (values) => ({ verb: "tenants", inputs: tenancy(values) }),
};

function priced(inputs) {
  if (inputs.trace) for (const name of ["rate", "input", "output", "arrivals"]) delete inputs[name];
  return inputs;
}

function tenancy(values) {
  const inputs = field.asked(values, [...SETUP, "slo"]);
  if (values.trace) return { ...inputs, trace: [values.trace] };
  return {
    ...inputs,
    arrivals: values.arrivals || `poisson:${values.rate}`,
    requests: "20000",
    input: values.input,
    output: values.output,
    tenants: values.tenants,
  };
}

export default {
  key: "levers",
  name: "Levers",
  lede: "What to change first: every lever on your traffic, its saving simulated.",
  comparable: true,
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
          ],
        },
      ],
    },
    {
      name: "What runs today",
      fields: [
        field.model,
        { ...field.gpu, fallback: "A100-80GB" },
        field.tp,
        { ...field.weights, when: is("levers", "cache", "tenants") },
        field.usdPerHour,
      ],
    },
    {
      name: "Traffic",
      fields: [
        { ...field.rate, fallback: "20", when: is("levers", "stack", "tenants") },
        { ...field.input, when: is("levers", "stack", "tenants") },
        { ...field.output, when: is("levers", "stack", "tenants") },
        { name: "tenants", label: "Tenants", kind: "text", fallback: "10,skew=1", when: is("tenants") },
        field.trace,
      ],
    },
    { name: "SLO", fields: [{ ...field.slo, fallback: "ttft_p99=1000ms,tpot_p99=60ms" }] },
    {
      name: "More",
      folded: true,
      fields: [
        { ...field.minWeights, when: is("levers", "stack") },
        { ...field.provider, when: is("levers", "stack") },
        {
          name: "tiers",
          label: "Memory for KV behind the GPU",
          kind: "text",
          fallback: "",
          placeholder: "dram=200,ssd=2000",
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
    const made = (REQUESTS[values.panel] ?? REQUESTS.levers)(values);
    return { ...made, long: true, waits: values.run !== "1" };
  },
  empty(values) {
    const what = {
      levers: "ranks every lever by what it saves on your traffic, alone and together",
      stack: "walks from one request at a time to the best deployment found, step by step",
      cache: "replays your log with caches of several sizes, routers and tiers",
      tenants: "compares one fleet for all tenants with a fleet for each",
    }[values.panel];
    return [
      h("h2", {}, "Say what runs today"),
      h("p", {}, `Then press Simulate: it ${what}. This takes some seconds and can be cancelled.`),
    ];
  },
  figures({ verb, result }) {
    if (verb === "levers")
      return [
        { name: "Bill today", value: result.now.usd_per_month, show: usd },
        { name: "Bill with the levers", value: result.together?.usd_per_month, show: usd },
        { name: "Saved", value: result.saved_share, show: (value) => percent(value), less: "worse", share: true },
      ];
    if (verb === "stack")
      return [
        { name: "Bill of the naive start", value: result.naive.usd_per_month, show: usd },
        { name: "Bill at the end", value: result.end.usd_per_month, show: usd },
      ];
    return [];
  },
  render: (answer) =>
    ({ levers: ofLevers, stack: ofStack, cache: ofCache, tenants: ofTenants })[answer.verb](answer.result),
};

function ofLevers({ now, levers, together, taken, saved_share, sum_of_shares }) {
  const [first] = levers.filter((each) => each.bill).sort((one, other) => other.saved_share - one.saved_share);
  return {
    headline: {
      label: taken?.length ? `Saved by ${taken.join(", ")}, together` : "No lever saves anything here",
      value: percent(saved_share),
      unit: together
        ? `${usd(now.usd_per_month)} → ${usd(together.usd_per_month)} a month`
        : `of ${usd(now.usd_per_month)} a month`,
      detail:
        together &&
        `${together.deployment}, ${plural(together.replicas, "replica")}: ${usd(together.usd_per_mtok)} per million tokens, now ${usd(now.usd_per_mtok)}. Added up, the savings alone would read ${percent(sum_of_shares)}.`,
      badges: [badge("simulated"), badge(now.price_stale ? "stale" : "quoted", `price quoted ${now.price_date}`)],
      next: first?.saved_usd_per_month > 0 && `start with ${first.name}: it saves ${usd(first.saved_usd_per_month)} a month. ${capital(first.effort)}.`,
    },
    before: [],
    after: [section("Levers", leverTable(levers))],
    rows: levers.map((each) => ({
      name: each.name,
      saved_share: each.saved_share,
      saved_usd_per_month: each.saved_usd_per_month,
      usd_per_mtok: each.bill?.usd_per_mtok,
      effort: each.effort,
      risk: each.risk,
      quality: each.quality,
      reason: each.reason,
    })),
  };
}

function leverTable(levers) {
  const columns = [
    { key: "name", name: "Lever" },
    {
      key: "saved_share",
      name: "Saves",
      unit: "%",
      number: true,
      show: (value) => (value === null || value === undefined ? "–" : figure(value * 100, 2)),
    },
    { key: "saved_usd_per_month", name: "Saves", unit: "$/month", number: true, show: (value) => usd(value) },
    {
      key: "usd",
      name: "Then",
      unit: "$/Mtok",
      number: true,
      value: (row) => row.bill?.usd_per_mtok,
      show: (value) => usd(value),
    },
    { key: "then", name: "Runs as", value: (row) => row.bill?.deployment ?? row.reason },
    { key: "effort", name: "Effort" },
    { key: "risk", name: "Risk" },
    { key: "quality", name: "Quality of answers" },
  ];
  return table({
    caption: "Each lever alone, simulated on the same traffic",
    columns,
    rows: levers,
    noun: "lever",
    sort: null,
    mark: (row) => (row.bill ? null : "out"),
  });
}

function ofStack({ naive, steps, end, left_out, quality, saved_share, saved_share_of_batched }) {
  const rows = [{ name: "one request at a time", bill: naive }, ...steps];
  const columns = [
    { key: "name", name: "Step" },
    {
      key: "usd_per_month",
      name: "Bill",
      unit: "$/month",
      number: true,
      value: (row) => row.bill.usd_per_month,
      show: (value) => usd(value),
    },
    {
      key: "usd",
      name: "Tokens",
      unit: "$/Mtok",
      number: true,
      value: (row) => row.bill.usd_per_mtok,
      show: (value) => usd(value),
    },
    {
      key: "saved_share",
      name: "Saves",
      unit: "%",
      number: true,
      show: (value) => (value === undefined ? "–" : figure(value * 100, 3)),
    },
    { key: "then", name: "Runs as", value: (row) => `${row.bill.replicas} × ${row.bill.deployment}` },
  ];
  return {
    headline: {
      label: "From one request at a time to the best found",
      value: `−${percent(saved_share, 1)}`,
      unit: `${usd(naive.usd_per_month)} → ${usd(end.usd_per_month)} a month`,
      detail: `${plural(end.replicas, "replica")} of ${end.deployment}. Against a batched start: −${percent(saved_share_of_batched)}.`,
      badges: [badge("simulated")],
      next: quality?.[0] && `check the quality of what changed. ${quality[0]}`,
    },
    after: [
      section("Steps", table({ caption: "Each step's saving, simulated", columns, rows })),
      left_out?.length > 0 &&
        section(
          "Left out",
          h(
            "ul",
            {},
            left_out.map((each) => h("li", {}, `${capital(each.name)}: ${each.reason}`)),
          ),
        ),
    ],
    rows: rows.map((row) => ({
      step: row.name,
      usd_per_month: row.bill.usd_per_month,
      usd_per_mtok: row.bill.usd_per_mtok,
      saved_share: row.saved_share,
    })),
  };
}

function afterCache(prefix, best, none) {
  if (!prefix.best) return `${none.breaks ?? "an SLO is missed"}: loosen the SLO, or take a faster GPU.`;
  if (best.needs < none.needs) return `${count(none.needs)} replicas become ${count(best.needs)}.`;
  if (prefix.slower) {
    const saved = usd(prefix.slower.saved_usd_per_hour);
    return `${prefix.slower.name.trim()} would save ${saved} an hour, but answers come later: set an SLO for what may not get worse.`;
  }
  return "the bill stays, since as many replicas are needed. More traffic may turn the work saved into dollars.";
}

function ofCache({ prefix_cache: prefix, price_from }) {
  if (!prefix)
    return {
      headline: {
        label: "No prefix to share in this log",
        value: "0 %",
        next: "a log with hashes of prompt blocks says which prompts begin alike: docs/caching.md.",
      },
    };
  const best = prefix.rows.find((row) => row.setting.name === prefix.best) ?? prefix.rows.at(-1);
  const [none] = prefix.rows;
  const columns = [
    { key: "name", name: "Cache", value: (row) => row.setting.name },
    {
      key: "cached_share",
      name: "From cache",
      unit: "% of prompt",
      number: true,
      show: (value) => figure(value * 100, 3),
    },
    { key: "needs", name: "Replicas", number: true },
    { key: "ttft", name: "TTFT p50", number: true, value: (row) => row.ttft_s.p50, show: (value) => seconds(value) },
    { key: "ttft99", name: "TTFT p99", number: true, value: (row) => row.ttft_s.p99, show: (value) => seconds(value) },
    { key: "usd_per_mtok", name: "Tokens", unit: "$/Mtok", number: true, show: (value) => usd(value) },
  ];
  return {
    headline: {
      label: prefix.best
        ? `${prefix.best}: prompt tokens that need not be computed`
        : "No setting meets the SLO on any number of replicas",
      value: percent(best.cached_share),
      unit: prefix.best
        ? `${usd(none.usd_per_mtok)} → ${usd(best.usd_per_mtok)} per million tokens`
        : `of the prompt tokens found by ${best.setting.name}`,
      detail: `${prefix.deployment} under ${prefix.source}; ${price_from ?? ""}`,
      badges: [badge("simulated")],
      next: afterCache(prefix, best, none),
    },
    after: [
      section(
        "Settings",
        table({
          caption: "Caches compared on the same log",
          columns,
          rows: prefix.rows,
          mark: (row) => (row === best ? "best" : null),
        }),
      ),
    ],
    rows: prefix.rows.map((row) => ({
      cache: row.setting.name,
      cached_share: row.cached_share,
      replicas: row.needs,
      ttft_p50_s: row.ttft_s.p50,
      ttft_p99_s: row.ttft_s.p99,
      usd_per_mtok: row.usd_per_mtok,
    })),
  };
}

function ofTenants({ apart, together, tenants, saved_share, noisy_neighbour: noisy, price_from }) {
  const columns = [
    { key: "tenant", name: "Tenant" },
    { key: "requests", name: "Requests", number: true, show: (value) => count(value) },
    { key: "alone_usd_per_hour", name: "Alone", unit: "$/h", number: true, show: (value) => usd(value) },
    { key: "pays_usd_per_hour", name: "Pays", unit: "$/h", number: true, show: (value) => usd(value) },
    { key: "shapley_usd_per_hour", name: "Fair share", unit: "$/h", number: true, show: (value) => usd(value) },
    { key: "usd_per_mtok", name: "Tokens", unit: "$/Mtok", number: true, show: (value) => usd(value) },
    {
      key: "ttft",
      name: "TTFT p99 shared",
      number: true,
      value: (row) => row.shared.ttft_p99_s,
      show: (value) => seconds(value),
    },
  ];
  return {
    headline: {
      label: saved_share < 0 ? "Dearer as one fleet for all tenants: keep them apart" : "Saved by one fleet for all tenants",
      value: percent(Math.abs(saved_share)),
      unit: `${plural(apart.replicas, "replica")} → ${count(together.replicas)}`,
      detail: `${usd(apart.usd_per_hour)} → ${usd(together.usd_per_hour)} an hour; ${price_from ?? ""}`,
      badges: [badge("simulated")],
      next:
        noisy &&
        `if ${noisy.tenant} sends ${figure(noisy.times)} times as much, the shared fleet needs ${plural(noisy.needs, "replica")}.`,
    },
    before: [
      tiles(
        { name: "Load apart", value: percent(apart.load_share) },
        { name: "Load together", value: percent(together.load_share) },
      ),
    ],
    after: [
      section(
        "Who pays what",
        table({ caption: "Tenants and their shares", columns, rows: tenants, limit: 15, noun: "tenant" }),
      ),
    ],
    rows: tenants.map(({ alone, shared, ...rest }) => rest),
  };
}
