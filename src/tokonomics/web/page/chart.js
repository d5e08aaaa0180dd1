// Charts: Vega-Lite specifications from the server, drawn by the library that the server carries, to the room there is.

import { columnsOf, configFor, drawable, headingOf, rowsOf, unwrapped } from "./chart-theme.js";
import { download, h, refill } from "./dom.js";
import { csvOf, figure as shortly } from "./format.js";
import { table } from "./table.js";

let library = null;
const vega = () => (library ??= load());

async function load() {
  const address = document.querySelector('meta[name="vega"]')?.content || "/vega.js";
  const found = await import(address);
  return found.vegaEmbed ?? found.default ?? window.vegaEmbed;
}

const GUTTERS = new Map(); // what axes and legends take, by chart: known after the first drawing
const LIVE = new Set(); // figures on the page: a chart that has left it is ended, or its view would stay for good
export const drawnNow = () => LIVE.size;

export const themeNow = () =>
  document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

export function redrawAll() {
  for (const chart of LIVE) chart.redraw();
}

export function warm() {
  vega().catch(() => {});
}

const fileName = (text) =>
  text
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, "-")
    .replaceAll(/^-|-$/g, "") || "chart";

// A figure that can be given another specification later (`show`), so that a moving slider redraws in place.
export function chart({ name, spec }) {
  const drawing = h("div", { class: "drawing", role: "img" });
  const caption = h("figcaption");
  const data = h("details", { class: "data", ontoggle: showData }, h("summary", {}, "Data as a table"));
  const figure = h("figure", { class: "chart" }, caption, drawing, data);
  const state = { name, spec: unwrapped(spec), made: null, turn: 0, width: 0 };

  async function redraw() {
    const turn = ++state.turn;
    const room = drawing.clientWidth;
    if (!room) return;
    const embed = await vega();
    if (turn !== state.turn) return;
    const theme = themeNow();
    const columns = columnsOf(state.spec, room);
    const key = `${state.name}|${columns}|${Math.round(room / 40)}`;
    const guess = GUTTERS.get(key) ?? 72;
    // One picture with one name; its data are a table below, not hundreds of marks to be read out.
    const place = h("div", { "aria-hidden": "true" });
    // Drawn aside first, so that the old picture stays until the new one is whole.
    place.className = "aside";
    drawing.append(place);
    let made = await drawn(embed, place, theme, room, guess);
    const wide = () => place.querySelector("svg")?.getAttribute("width") ?? room;
    const over = Number(wide()) - room;
    if (turn === state.turn && (over > 0.5 || over < -24) && !GUTTERS.has(key)) {
      GUTTERS.set(key, Math.max(20, guess + over / columns + 2));
      made.finalize();
      made = await drawn(embed, place, theme, room, GUTTERS.get(key));
    }
    if (turn !== state.turn) {
      made.finalize();
      place.remove();
      return;
    }
    state.made?.finalize();
    state.made = made;
    state.width = room;
    place.className = "";
    drawing.replaceChildren(place);
    // What is wider than its box is scrolled by keys too.
    if (drawing.scrollWidth > drawing.clientWidth) drawing.tabIndex = 0;
    else drawing.removeAttribute("tabindex");
    figure.dataset.drawn = String(turn);
    figure.dispatchEvent(new CustomEvent("drawn", { detail: made.view }));
  }

  function drawn(embed, place, theme, room, gutter) {
    return embed(place, drawable(state.spec, theme, room, gutter), {
      mode: "vega-lite",
      actions: false,
      ast: true, // expressions are interpreted: the page's policy forbids making code from text
      config: configFor(theme, room),
      defaultStyle: false,
      tooltip: { disableDefaultStyle: true, theme: "page" },
      renderer: "svg",
      hover: false,
    });
  }

  function label() {
    const { title, subtitle } = headingOf(state.spec);
    drawing.setAttribute("aria-label", `Chart: ${state.name}. ${title}. ${subtitle}`);
    refill(
      caption,
      h("div", {}, h("h2", {}, title || state.name), subtitle && h("p", {}, subtitle)),
      h(
        "div",
        { class: "tools" },
        h("button", { type: "button", class: "quiet", onclick: savePng }, "PNG"),
        h("button", { type: "button", class: "quiet", onclick: saveSvg }, "SVG"),
        h("button", { type: "button", class: "quiet", onclick: saveCsv }, "CSV"),
      ),
    );
  }

  async function savePng() {
    const canvas = await state.made.view.toCanvas(2);
    canvas.toBlob((blob) => download(`${fileName(state.name)}.png`, blob));
  }
  const saveSvg = async () => download(`${fileName(state.name)}.svg`, await state.made.view.toSVG(), "image/svg+xml");
  const columns = () => [...new Set(rowsOf(state.spec).flatMap(Object.keys))].filter((key) => typeof key === "string");
  function saveCsv() {
    const names = columns();
    const rows = rowsOf(state.spec).map((row) => names.map((name) => row[name]));
    download(`${fileName(state.name)}.csv`, csvOf({ names, rows }), "text/csv");
  }

  function showData() {
    if (!data.open) return;
    data.querySelector(".tabled")?.remove();
    const rows = rowsOf(state.spec);
    const shown = columns().map((name) => ({ name, number: typeof rows[0]?.[name] === "number" }));
    const cells = rows.map((row) => shown.map(({ name }) => ({ text: shortly(row[name]) })));
    data.append(table({ caption: `Data behind: ${state.name}`, columns: shown, rows: cells }));
  }

  let shown = JSON.stringify({ name, spec });
  figure.show = (next) => {
    const before = shown;
    if ((shown = JSON.stringify(next)) === before) return undefined; // a ledger that grew leaves most charts as they were
    Object.assign(state, { name: next.name, spec: unwrapped(next.spec) });
    label();
    return redraw();
  };
  figure.redraw = redraw;
  figure.rows = () => rowsOf(state.spec);
  label();
  LIVE.add(figure);
  // Told of the figure's removal too: it then has no size.
  const sized = new ResizeObserver(() => {
    if (!figure.isConnected) end();
    else if (Math.abs(drawing.clientWidth - state.width) > 12) redraw();
  });
  function end() {
    state.turn += 1;
    state.made?.finalize();
    state.made = null;
    sized.disconnect();
    LIVE.delete(figure);
  }
  sized.observe(drawing);
  return figure;
}

// Draws the charts of an answer into a place, reusing the figures already there.
export function showCharts(place, charts) {
  const there = [...place.children];
  charts.forEach((each, at) => (there[at]?.show ? there[at].show(each) : place.append(chart(each))));
  there.slice(charts.length).forEach((each) => each.remove());
}
