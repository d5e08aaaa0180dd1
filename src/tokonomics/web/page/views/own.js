// Own or API: from which volume on hosting is cheaper than an API; and what a bought machine's hour costs.

import { h } from "../dom.js";
import * as field from "../fields.js";
import { capital, count, figure, percent, plural, tokens, usd } from "../format.js";
import { badge, section, tiles } from "../pane.js";
import { table } from "../table.js";

const HOSTED = [
  "model",
  "api",
  "input",
  "output",
  "slo",
  "tokens_per_month",
  "cached_share",
  "engineers",
  "engineer_usd_per_month",
  "overhead",
  "provider",
  "terms",
  "min_weights",
  "batch_api",
  "spare",
];
const BOUGHT = [
  "gpu",
  "gpus",
  "purchase_usd",
  "years",
  "usd_per_kwh",
  "host_watts",
  "pue",
  "residual",
  "cost_of_capital",
  "hosting_usd_per_month",
  "staff_usd_per_year",
];
const buys = (values) => values.panel === "buy";
const rents = (values) => !buys(values);
const number = (name, label, unit, fallback, extra = {}) => ({
  name,
  label,
  unit,
  kind: "text",
  numeric: true,
  wide: false,
  fallback,
  ...extra,
});

export default {
  key: "own",
  name: "Own or API",
  lede: "The volume from which hosting it yourself is cheaper than a price per token.",
  comparable: true,
  presets: false,
  submitLabel: "Check by simulation",
  submits: rents,
  groups: [
    {
      name: "Question",
      fields: [
        {
          name: "panel",
          label: "Question",
          kind: "segments",
          fallback: "api",
          options: [
            ["api", "Host or call an API"],
            ["buy", "Buy the machine"],
          ],
        },
      ],
    },
    {
      name: "Scenario",
      fields: [
        { ...field.model, fallback: "llama-3.3-70b", when: rents },
        { name: "api", label: "API to compare with", kind: "api", fallback: "openai:gpt-4o", when: rents },
        { ...field.input, when: rents },
        { ...field.output, when: rents },
        {
          name: "tokens_per_month",
          label: "Volume",
          unit: "tokens/mo",
          kind: "text",
          fallback: "",
          placeholder: "such as 2B",
          wide: false,
          when: rents,
        },
        { ...number("cached_share", "Cached", "share", ""), when: rents },
        { ...field.slo, fallback: "ttft_p99=1000ms,tpot_p99=80ms", when: rents },
        { ...field.gpu, when: buys },
        number("gpus", "GPUs in it", "", "8", { when: buys }),
        number("purchase_usd", "Price", "$, whole", "250000", { when: buys }),
        number("years", "Write-off", "years", "4", { when: buys }),
        number("usd_per_kwh", "Power", "$/kWh", "0.12", { when: buys }),
        number("host_watts", "Host draws", "W", "4600", { when: buys }),
      ],
    },
    {
      name: "People and the rest",
      folded: true,
      fields: [
        number("engineers", "Engineers", "FTE", "", { when: rents }),
        number("engineer_usd_per_month", "Each", "$/month", "", { when: rents }),
        { name: "overhead", label: "Overheads", kind: "text", fallback: "", placeholder: "network=5%", when: rents },
        { ...field.minWeights, when: rents },
        { ...field.provider, when: rents },
        number("pue", "PUE", "", "", { placeholder: "1.58", when: buys }),
        number("residual", "Resale", "share", "", { when: buys }),
        number("cost_of_capital", "Capital", "share/year", "", { placeholder: "0.08", when: buys }),
        number("hosting_usd_per_month", "Hosting", "$/month", "", { when: buys }),
        number("staff_usd_per_year", "People", "$/year", "", { when: buys }),
      ],
    },
  ],
  request(values) {
    if (buys(values)) return { verb: "own-hardware", inputs: field.asked(values, BOUGHT) };
    const inputs = field.asked(values, HOSTED);
    return values.run === "1"
      ? { verb: "breakeven", inputs, long: true }
      : { verb: "breakeven", inputs: { ...inputs, quick: true } };
  },
  figures({ verb, result }) {
    if (verb === "own-hardware") return [{ name: "Dollars per GPU-hour", value: result.usd_per_gpu_hour, show: usd }];
    return [
      { name: "Break-even, tokens a month", value: result.found[0]?.stays_tokens_per_month, show: tokens },
      { name: "API, per million tokens", value: result.found[0]?.api_usd_per_mtok, show: usd },
      { name: "Full machines, per million tokens", value: result.found[0]?.full_usd_per_mtok, show: usd },
    ];
  },
  render: ({ verb, result }, values) => (verb === "own-hardware" ? bought(result) : hosted(result, values)),
};

// What the break-even rests on: the machines bought at that volume.
function standing({ bills }, { stays_tokens_per_month: stays }) {
  const there = bills.find((row) => stays && row.tokens_per_month >= stays);
  return there ? ` There it runs on ${there.machines}.` : "";
}

function hosted(result, values) {
  const [found] = result.found;
  const first = found.first_tokens_per_month;
  const stays = found.stays_tokens_per_month;
  const own = result.bills.find((row) => row.tokens_per_month === result.own_tokens_per_month);
  const hosts = own?.cheapest === "self-hosted";
  const columns = [
    { key: "tokens_per_month", name: "Volume", unit: "tokens/month", number: true, show: (value) => tokens(value) },
    { key: "machines", name: "Machines" },
    { key: "gpus", name: "GPUs", number: true },
    { key: "hosted_usd", name: "Hosted", unit: "$/month", number: true, show: (value) => usd(value) },
    ...Object.keys(result.bills[0]?.api_usd ?? {}).map((api) => ({
      key: api,
      name: api,
      unit: "$/month",
      number: true,
      value: (row) => row.api_usd[api],
      show: (value) => usd(value),
    })),
    { key: "cheapest", name: "Cheaper" },
  ];
  const swings = (result.swings?.[0] ?? []).map((each) => ({
    what: each.what,
    stays: each.found.stays_tokens_per_month,
    never: each.found.never,
  }));
  return {
    headline: {
      label: `Hosting ${result.model} beats ${found.api} from`,
      value: stays ? tokens(stays) : "never",
      unit: stays ? "tokens a month on" : "",
      detail:
        found.never ??
        `${found.api} costs ${usd(found.api_usd_per_mtok)} per million tokens; full machines of your own ${usd(found.full_usd_per_mtok)}.${standing(result, found)}`,
      badges: [
        badge(values.run === "1" ? "simulated" : "estimate", values.run === "1" ? "simulated" : "closed form"),
        result.apis[0] && badge("quoted", `API price ${result.apis[0].date}`),
      ],
      next: stays
        ? "hold your own volume against it, with engineers counted: a part-time engineer often weighs more than the machines."
        : "a smaller model, a cheaper GPU or a dearer API moves it.",
    },
    before: [
      tiles(
        { name: "API", value: usd(found.api_usd_per_mtok), note: "per million tokens, this mix" },
        { name: "Own machines, full", value: usd(found.full_usd_per_mtok), note: "per million tokens" },
        own && {
          name: "Your volume",
          value: tokens(own.tokens_per_month),
          note: hosts ? "cheaper to host" : `cheaper to call ${own.cheapest}`,
          mood: hosts ? "good" : null,
        },
        first &&
          first !== stays && {
            name: "First cheaper at",
            value: tokens(first),
            note: "until the break-even whole machines tip it back at times",
          },
      ),
    ],
    after: [
      section(
        "Bills by volume",
        table({
          caption: "What each volume costs, hosted and called",
          columns,
          rows: result.bills,
          mark: (row) => (row.tokens_per_month === result.own_tokens_per_month ? "best" : null),
        }),
      ),
      swings.length > 0 &&
        section(
          "What moves it",
          table({
            caption: "The break-even if one thing were different",
            columns: [
              { key: "what", name: "If" },
              {
                key: "stays",
                name: "Break-even",
                unit: "tokens/month",
                number: true,
                show: (value, row) => (value ? tokens(value) : (row.never ?? "never")),
              },
            ],
            rows: swings,
          }),
        ),
    ],
    rows: result.bills.map(({ hosted: tree, api_usd, ...rest }) => ({ ...rest, ...api_usd })),
  };
}

function bought(result) {
  const rows = result.hour.lines.map((line) => ({
    name: capital(line.name),
    usd: line.quantity * line.usd_per_unit,
    share: (line.quantity * line.usd_per_unit) / result.usd_per_hour,
  }));
  const columns = [
    { key: "name", name: "Line" },
    { key: "usd", name: "Cost", unit: "$/hour", number: true, show: (value) => usd(value) },
    { key: "share", name: "Share", unit: "%", number: true, show: (value) => figure(value * 100, 2) },
  ];
  const [rented] = result.rented ?? [];
  return {
    headline: {
      label: `An hour of one ${result.gpu}, owned`,
      value: usd(result.usd_per_gpu_hour),
      unit: "per GPU-hour",
      detail: `${usd(result.usd_per_hour)} an hour for the machine, ${usd(result.usd_per_month)} a month, used or not.`,
      badges: [badge("assumed", "your figures"), rented && badge("quoted", `rent quoted ${rented.date}`)],
      next:
        rented &&
        (result.hours_share === null || result.hours_share >= 1
          ? `renting (${rented.provider}, ${usd(rented.usd_per_hour / rented.gpus)} per GPU-hour) costs less even if you need it in every hour.`
          : `renting the cheapest with as much memory in the host (${rented.provider}, ${usd(rented.usd_per_hour / rented.gpus)} per GPU-hour) is cheaper if you need it less than ${percent(result.hours_share)} of the hours.`),
    },
    after: [section("What an hour is made of", table({ caption: "Cost of an hour of the machine", columns, rows }))],
    rows,
  };
}
