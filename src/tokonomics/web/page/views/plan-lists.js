// The parts of a plan that are lists: other hardware as cards, the ranking, and why the rest was left out.

import { h, refill } from "../dom.js";
import { capital, count, figure, milliseconds, percent, plural, seconds, usd } from "../format.js";
import { section, speedBadge } from "../pane.js";
import { table } from "../table.js";

export const machines = (row) =>
  `${row.replicas} × ${row.gpus_per_replica > 1 ? `${row.gpus_per_replica}× ` : ""}${row.gpu}`;
const layout = (row) =>
  [row.tp > 1 && `TP${row.tp}`, row.pp > 1 && `PP${row.pp}`, row.ep > 1 && `EP${row.ep}`].filter(Boolean).join(" ");

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

export function runnersUp(ranked, best) {
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
        h("p", { class: "label" }, machines(row), " ", speedBadge(row.speed)),
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

export function ranking(result) {
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
      name: "TTFT",
      unit: `${tail}, ms`,
      number: true,
      value: (row) => row.ttft_s[tail],
      show: (value) => milliseconds(value),
    },
    {
      key: "tpot",
      name: "TPOT",
      unit: `${tail}, ms`,
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
        h("span", { class: "soft", title: row.region }, row.others ? `+${count(row.others)} more` : row.region),
      ],
    },
    {
      key: "price_date",
      name: "Quoted",
      nowrap: true,
      show: (value, row) => h("span", { class: row.price_stale ? "old" : null }, value),
    },
    { key: "speed", name: "Speed", show: (value) => speedBadge(value) },
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
