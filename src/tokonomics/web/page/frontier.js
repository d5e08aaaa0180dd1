// The frontier, the hero of Plan: right below the headline. A click on a point, or a choice from the list, pins its
// deployment; what is pinned stands side by side below the chart, in the words of the server's rows, and can become
// the scenario, or the one it is compared with.

import { chart } from "./chart.js";
import { announce, freshId, h, refill } from "./dom.js";

const MOST = 4; // pinned at a time: more do not stand side by side
const PINNED = "pinned"; // the chart's own parameter: the rows with a ring around them
const FACTS = [
  ["price", "Price"],
  ["speed", "Per user"],
  ["first", "First token"],
  ["slo", "SLO"],
  ["distance", "Distance"],
];

// The chart that can mark what is pinned: several models or demands are answered with others.
export const isFrontier = (drawn) => Boolean(drawn?.spec.params?.some(({ name }) => name === PINNED));

// However many replicas: the pick is called otherwise than the fleet that it is.
const wayOf = (row) => row.way ?? row.deployment.replace(/^[\d,]+ × /, "");

function kept(pinned, rows) {
  const left = new Map(rows.map((row) => [row.deployment, wayOf(row)]));
  const exact = pinned.map((pin) => (left.delete(pin.name) ? pin : null));
  return pinned
    .map((pin, at) => {
      const name = exact[at]?.name ?? [...left.keys()].find((other) => left.get(other) === pin.way);
      left.delete(name);
      return name && { name, way: pin.way };
    })
    .filter(Boolean);
}

export function heroOf() {
  const cards = h("div", { class: "pins", role: "group", "aria-label": "Pinned deployments" });
  const list = h("select", { id: freshId("pin") });
  const pin = h("button", { type: "button", class: "quiet", onclick: () => list.value && toggle(list.value) }, "Pin");
  const hint = h("p", {}, "Click a point to pin it, a name to show it alone. Shift and the wheel zoom, dragging moves.");
  const label = h("label", { for: list.id }, "A deployment to pin");
  const tools = h("div", { class: "pinning" }, label, list, pin, hint);
  const element = h("div", { class: "hero", hidden: true });
  let figure = null;
  let view = null;
  let pinned = []; // {name, way} of deployments, the first pinned first
  const isPinned = (name) => pinned.some((pin) => pin.name === name);

  const rows = () => figure?.rows().filter((row) => row.deployment) ?? [];

  function drawn({ detail }) {
    view = detail;
    view.addEventListener("click", (_, item) => item?.datum?.deployment && toggle(item.datum.deployment));
    mark();
  }

  function toggle(name) {
    const is = isPinned(name);
    const way = () => wayOf(rows().find((row) => row.deployment === name));
    pinned = is ? pinned.filter((pin) => pin.name !== name) : [...pinned, { name, way: way() }].slice(-MOST);
    announce(is ? `No longer pinned: ${name}` : `Pinned: ${name}`);
    mark();
    fill();
  }

  function mark() {
    view?.signal(PINNED, pinned.map((pin) => pin.name)).runAsync();
  }

  function fill() {
    const known = rows();
    const option = (row) =>
      h("option", { value: row.deployment }, `${row.deployment}${isPinned(row.deployment) ? " (pinned)" : ""}`);
    const chosen = list.value;
    refill(list, h("option", { value: "" }, "choose …"), known.map(option));
    list.value = known.some((row) => row.deployment === chosen) ? chosen : "";
    refill(
      cards,
      pinned.map(({ name }) => card(known.find((row) => row.deployment === name))),
    );
    cards.hidden = !pinned.length;
  }

  function card(row) {
    const button = (text, act) => h("button", { type: "button", class: "quiet", onclick: act }, text);
    // What it is made of; how many of it, and its layout, the plan finds anew.
    const set = { gpu: row.gpu, ...(row.provider && { provider: row.provider, min_weights: row.weights }) };
    const ask = (compare) => () =>
      element.dispatchEvent(new CustomEvent("scenario", { bubbles: true, detail: { set, compare } }));
    return h(
      "section",
      { "aria-label": row.deployment },
      h("h3", {}, row.deployment),
      h(
        "dl",
        {},
        FACTS.filter(([name]) => row[name]).map(([name, title]) =>
          h("div", {}, h("dt", {}, title), h("dd", {}, row[name])),
        ),
      ),
      h(
        "div",
        { class: "tools" },
        row.gpu && button("Plan with it", ask(false)),
        row.gpu && button("Compare", ask(true)),
        button("Unpin", () => toggle(row.deployment)),
      ),
    );
  }

  return {
    element,
    // What is pinned stays so with the figures of the new answer; where that needs another number of replicas, with
    // the cheapest such fleet; it goes where the new answer has none of it.
    show(answered) {
      element.hidden = !answered;
      if (!answered) {
        figure = view = null;
        refill(element);
        return;
      }
      if (figure) figure.show(answered);
      else {
        figure = chart(answered);
        figure.addEventListener("drawn", drawn);
        refill(element, figure, tools, cards);
      }
      pinned = kept(pinned, rows());
      fill();
    },
  };
}
