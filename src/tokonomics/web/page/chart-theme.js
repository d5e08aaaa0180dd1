// How a chart made for white paper is drawn on the page: fonts and greys of the page, dark twins of its colours, and
// panels that fit the room there is. The data and the encodings stay as the command line saves them.

import { FONT, headed, legended, named, reaching, thinned } from "./chart-room.js";

const INK = {
  light: { ink: "#1b2430", soft: "#565f6c", line: "#d8d4cb", grid: "#ece9e2", paper: "#ffffff", series: "#3b6fb6" },
  dark: { ink: "#e4e9ef", soft: "#9eaab8", line: "#3a4652", grid: "#26303a", paper: "#161d25", series: "#6d9fe6" },
};

// Colours of report/charts and their twins on dark ground: the same hue, lightness turned so that they stand out alike.
const DARK = {
  "#222222": "#d5dbe3",
  "#333": "#d5dbe3",
  "#1d1d1f": "#e4e9ef",
  "#444": "#b6c0cc",
  "#4d4d4d": "#c3cad3",
  "#999": "#7f8a97",
  black: "#e4e9ef",
  white: "#161d25",
  "#b33": "#f08078",
  "#857c6d": "#a79d8c",
  "#e4efe9": "#1c3530",
  "#c9c3b8": "#5d584f",
  "#d9d3c7": "#57534b",
  "#b9b2a6": "#6e685d",
  "#cfc9be": "#5d584f",
  "#d3dfef": "#27405f",
  "#d2e8e5": "#214a4b",
  "#9cb9de": "#47699a",
  "#3b6fb6": "#6d9fe6",
  "#1f3f70": "#a8c8f5",
  "#b9c9e0": "#3d5578",
  "#b9bec6": "#59636e",
};

export function configFor(theme, room) {
  const { ink, soft, line, grid, paper, series } = INK[theme];
  return {
    background: paper,
    font: FONT,
    padding: { left: 1, right: 4, top: 4, bottom: 4 },
    view: { stroke: null },
    mark: { color: series },
    numberFormat: ",.4~r",
    title: { color: ink, subtitleColor: soft, fontSize: 12, fontWeight: 600, anchor: "start" },
    axis: {
      labelColor: soft,
      titleColor: soft,
      domainColor: line,
      tickColor: line,
      gridColor: grid,
      labelFontSize: 11,
      titleFontSize: 11,
      titleFontWeight: "normal",
      titlePadding: 8,
      labelPadding: 5,
      labelSeparation: 4,
      tickSize: 4,
    },
    legend: {
      labelColor: soft,
      titleColor: soft,
      labelFontSize: 11,
      titleFontSize: 11,
      titleFontWeight: "normal",
      ...(room < NARROW ? BELOW : {}),
    },
    header: { labelColor: soft, titleColor: soft, labelFontSize: 11 },
    text: { color: ink, font: FONT },
    rule: { color: soft },
  };
}

const turned = (value) => DARK[value.toLowerCase()] ?? value;
const STYLED = new Set(
  "color fill fillColor stroke labelColor titleColor subtitleColor value range".split(" "), // what holds a colour
);

function darkened(node, name = "") {
  if (typeof node === "string") return STYLED.has(name) ? turned(node) : node;
  if (Array.isArray(node)) return node.map((each) => darkened(each, name));
  if (node === null || typeof node !== "object") return node;
  if (node.condition?.test === "datum.dark") return node; // chosen for the cell it stands on, whatever the ground
  return Object.fromEntries(
    Object.entries(node).map(([key, value]) => [
      key,
      key === "data" || key === "datasets" ? value : darkened(value, key),
    ]),
  );
}

const NARROW = 480;
const BELOW = { orient: "bottom", direction: "horizontal", columns: 2, labelLimit: 200 };
const LEAST_PANEL = 250; // pixels for a panel with its axis
const LEAST_CELL = 84; // a price with its marks
const LEFT = 72; // before a legend begins: the axis of dollars or of names' last letters

// How many panels stand side by side: all, or even rows of as many as stay readable.
export function columnsOf(spec, room) {
  if (spec.vconcat) return Math.max(...spec.vconcat.map((each) => columnsOf(each, room)));
  const panels =
    spec.hconcat?.length ?? spec.concat?.length ?? (spec.facet?.column ? Math.floor(room / LEAST_PANEL) : 1);
  const most = Math.max(1, Math.floor(room / LEAST_PANEL));
  return Math.max(1, Math.ceil(panels / Math.ceil(panels / most)));
}

// Panels next to each other break into rows when they would get too narrow; widths share out what the axes leave.
// A legend of panels side by side is that of all: it has the whole width.
function fitted(spec, room, gutter, rows, whole = room) {
  if (spec.vconcat) return { ...spec, vconcat: spec.vconcat.map((each) => fitted(each, room, gutter, rows)) };
  const side = spec.hconcat ?? (spec.concat ? spec.concat : null);
  if (side) {
    const columns = columnsOf(spec, room);
    const { hconcat, concat, ...rest } = spec;
    const share = room / columns;
    const panels = side.map((each) => fitted(each, share - (columns > 1 ? (spec.spacing ?? 20) : 0), gutter, rows, room));
    return { ...rest, concat: panels, columns };
  }
  const width = Math.max(120, Math.round(room - gutter));
  if (spec.facet?.column) {
    const { column } = spec.facet;
    const columns = columnsOf(spec, room);
    const each = Math.max(120, Math.round(room / columns - gutter));
    return { ...spec, facet: column, columns, spec: { ...spec.spec, width: each } };
  }
  // A heat map says how wide a cell is; that stays while all its columns fit.
  if (typeof spec.width === "object") return { ...spec, width: { step: celled(spec, width) } };
  const roomy = reaching(legended(spec, whole - LEFT), width, rows);
  const { title, ...panel } = width < NARROW ? thinned(roomy, width, rows) : roomy;
  return { ...panel, width, ...(title ? { title: headed(title, width) } : {}) };
}

function celled({ width: { step }, layer: [{ encoding }] = [{}] }, width) {
  const columns = encoding?.x?.sort?.length ?? 1;
  return Math.min(step, Math.max(LEAST_CELL, Math.floor(width / columns)));
}

// On a narrow screen legends stand below, and long names leave room for the bars.
function narrowed(node, room) {
  if (Array.isArray(node)) return node.map((each) => narrowed(each, room));
  if (node === null || typeof node !== "object") return node;
  const made = {};
  for (const [key, value] of Object.entries(node)) {
    if (key === "data" || key === "datasets") made[key] = value;
    else if (key === "legend" && value)
      made[key] = {
        ...value,
        ...(/top|bottom/.test(value.orient) ? {} : { ...BELOW, columns: Math.max(1, Math.floor(room / 130)) }),
      };
    else if (key === "axis" && value?.labelLimit) made[key] = named(value, node.sort, room);
    else made[key] = narrowed(value, room);
  }
  return made;
}

// A chart of one panel is that panel.
export function unwrapped({ vconcat, ...rest }) {
  if (!vconcat) return rest;
  return vconcat.length === 1 && !rest.title ? { ...rest, ...vconcat[0] } : { vconcat, ...rest };
}

// A line that ends with a space goes on in the next; others stand for themselves.
const lines = (text) => (Array.isArray(text) ? text.join(" · ").replaceAll("  · ", " ") : (text ?? ""));

// The heading leaves the drawing: as text of the page it wraps, and screen readers meet it.
export function headingOf(spec) {
  if (typeof spec.title === "string") return { title: spec.title, subtitle: "" };
  return { title: lines(spec.title?.text), subtitle: lines(spec.title?.subtitle) };
}

export function drawable(spec, theme, room, gutter) {
  const { title, ...rest } = spec;
  const rows = (data) => data?.values ?? spec.datasets?.[data?.name] ?? [];
  const sized = fitted(room < NARROW ? narrowed(rest, room) : rest, room, gutter, rows);
  const coloured = theme === "dark" ? darkened(sized) : sized;
  const { config = {}, ...bare } = coloured;
  const { view, ...own } = config;
  return { ...bare, config: own };
}

// The rows behind a chart: the longest list of plain data in it.
export function rowsOf(spec) {
  const lists = Object.values(spec.datasets ?? {});
  (function walk(node) {
    if (Array.isArray(node)) node.forEach(walk);
    else if (node && typeof node === "object") {
      if (Array.isArray(node.data?.values)) lists.push(node.data.values);
      Object.values(node).forEach(walk);
    }
  })({ ...spec, datasets: null });
  const longest = lists.reduce((best, each) => (each.length > best.length ? each : best), []);
  return longest.filter((row) => row && typeof row === "object");
}
