// Text keeps its size however narrow a chart is: headings and names of rows break into lines, a legend into as many
// columns as fit, and an axis reaches as far as the labels beside its bars need. What fits already stays as it came.

export const FONT =
  'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const SMALL = 11; // pixels: of labels on axes, in legends and beside marks
const BESIDE = 34; // of a legend's entry: its symbol, and what keeps it apart from the next
const NAMES = 0.4; // the most of a narrow chart that names of its rows may take

const paper = document.createElement("canvas").getContext("2d");

export function widthOf(text, size = SMALL) {
  paper.font = `${size}px ${FONT}`;
  return Math.max(...String(text).split("\n").map((line) => paper.measureText(line).width));
}

export function brokenTo(text, width, size) {
  const lines = [];
  for (const word of String(text).split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : "";
    if (lines.length && widthOf(longer, size) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

// A panel's heading, in lines of that width.
export function headed(title, width) {
  if (typeof title?.text !== "string") return title;
  return { ...title, text: brokenTo(title.text, width, title.fontSize), limit: width };
}

const isShown = (channel) => channel?.scale?.domain && channel.legend && /top|bottom/.test(channel.legend.orient);

// Legends above or below a panel, next to each other within that width.
export function legended(panel, width) {
  const layers = panel.layer ?? [panel];
  const channels = layers.flatMap(({ encoding }) => Object.values(encoding ?? {})).filter(isShown);
  const share = width / new Set(channels.map(({ field }) => field)).size;
  const fit = (channel) => {
    const longest = Math.max(...channel.scale.domain.map((name) => widthOf(name))) + BESIDE;
    const most = channel.legend.columns ?? channel.scale.domain.length;
    const columns = Math.max(1, Math.min(most, Math.floor(share / longest)));
    return { ...channel, legend: { ...channel.legend, columns, labelLimit: share / columns - BESIDE } };
  };
  const encoded = ({ encoding, ...rest }) => {
    const entries = Object.entries(encoding ?? {});
    const fitted = entries.map(([name, channel]) => [name, isShown(channel) ? fit(channel) : channel]);
    return { ...rest, ...(encoding ? { encoding: Object.fromEntries(fitted) } : {}) };
  };
  return panel.layer ? { ...panel, layer: layers.map(encoded) } : encoded(panel);
}

// The axis of a row's names on a narrow screen: two lines for each, the bars keep their room.
export function named(axis, names, room) {
  const width = Math.round(room * NAMES);
  const limited = { ...axis, labelLimit: width };
  if (axis.orient === "top" || !names?.length || typeof names[0] !== "string") return limited;
  const lines = names.map((name) => [name, inTwo(name, width)]);
  const long = lines.filter(([, text]) => Array.isArray(text));
  const isLong = `indexof(${JSON.stringify(long.map(([name]) => name))}, datum.value) >= 0`;
  return {
    ...limited,
    labelExpr: `(${JSON.stringify(Object.fromEntries(lines))})[datum.value]`,
    labelLineHeight: SMALL + 1,
    // The first of two lines ends where a line alone has its middle.
    labelBaseline: { condition: { test: isLong, value: "bottom" }, value: "middle" },
  };
}

function inTwo(name, width) {
  const [first, ...rest] = brokenTo(name, width);
  return rest.length ? [first, rest.join(" ")] : first;
}

// An axis from left to right that reaches as far as its labels: each is so wide, to one side of its value.
export function reaching(panel, width, rowsOf) {
  const layers = panel.layer ?? [];
  const beside = layers.filter(
    ({ mark, encoding }) => mark?.type === "text" && /left|right/.test(mark.align) && encoding?.x?.field && encoding.text?.field,
  );
  const labels = beside.flatMap(({ mark, encoding, data }) =>
    rowsOf(data).map((row) => {
      const long = widthOf(row[encoding.text.field], mark.fontSize) + Math.abs(mark.dx ?? 0) + 2;
      return { value: row[encoding.x.field], left: mark.align === "right" ? long : 0, right: mark.align === "left" ? long : 0 };
    }),
  );
  const given = layers.map(({ encoding }) => encoding?.x?.scale).find((scale) => scale?.domain);
  const domain = given?.domain ?? [0, Math.max(...labels.map(({ value }) => value))];
  if (!labels.length || labels.some(({ value }) => typeof value !== "number")) return panel;
  const wider = reach(domain, labels, width, given);
  const scaled = (layer) => {
    const { x } = layer.encoding ?? {};
    if (!x?.field && !x?.scale) return layer;
    return { ...layer, encoding: { ...layer.encoding, x: { ...x, scale: { ...x.scale, domain: wider, nice: false } } } };
  };
  return wider.every((end, at) => end === domain[at]) ? panel : { ...panel, layer: layers.map(scaled) };
}

function reach(domain, labels, width, scale) {
  const [to, from] = scaling(scale);
  let [low, high] = domain.map(to);
  const kept = [low, high];
  // Each end moves what the other has made narrower: a few turns settle both.
  for (let turn = 0; turn < 8; turn += 1) {
    for (const { value, left, right } of labels) {
      const at = to(value);
      const most = 0.8 * width; // more than that no label may take
      if (right) high = Math.max(high, low + (at - low) / (1 - Math.min(right, most) / width));
      if (left) low = Math.min(low, high - (high - at) / (1 - Math.min(left, most) / width));
    }
  }
  return domain.map((end, which) => ([low, high][which] === kept[which] ? end : from([low, high][which])));
}

// Labels in the middle of their points, where a narrow panel has not room for all: the rightmost are kept.
export function thinned(panel, width, rowsOf) {
  const layers = panel.layer ?? [];
  const isMiddle = ({ mark, encoding }) => mark?.type === "text" && !mark.align && encoding?.x?.scale?.domain;
  const shown = layers.filter(isMiddle).flatMap(({ encoding: { x, text }, data }) => {
    const [to] = scaling(x.scale);
    const [low, high] = x.scale.domain.map(to);
    return rowsOf(data).map((row) => ({ at: ((to(row[x.field]) - low) / (high - low)) * width, text: row[text.field] }));
  });
  const kept = new Set();
  let free = Infinity;
  for (const { at, text } of shown.toSorted((one, other) => other.at - one.at)) {
    const half = widthOf(text, SMALL + 2) / 2;
    if (!text || kept.has(text) || at + half > free) continue;
    kept.add(text);
    free = at - half;
  }
  const thin = (layer) => {
    if (!isMiddle(layer)) return layer;
    const filter = `indexof(${JSON.stringify([...kept])}, datum['${layer.encoding.text.field}']) >= 0`;
    return { ...layer, transform: [...(layer.transform ?? []), { filter }] };
  };
  return shown.length > kept.size ? { ...panel, layer: layers.map(thin) } : panel;
}

const scaling = (scale) => (scale?.type === "log" ? [Math.log, Math.exp] : [Number, Number]);
