// Numbers as people read them. The page formats what the server computed; of its own it only forms ratios,
// differences and sums of those figures, such as tokens per dollar.

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const NONE = "–";
const missing = (value) => value === null || value === undefined || Number.isNaN(value);

export function count(value) {
  return missing(value) ? NONE : GROUPED.format(value);
}

// Three significant digits, without an exponent between a thousandth and a million.
export function figure(value, digits = 3) {
  if (missing(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return GROUPED.format(value);
  if (size >= 0.001) return String(Number(value.toPrecision(digits)));
  return value.toExponential(1);
}

export function usd(value) {
  if (missing(value)) return NONE;
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size === 0) return "$0";
  if (size >= 1000) return `${sign}$${GROUPED.format(size)}`;
  if (size >= 100) return `${sign}$${size.toFixed(0)}`;
  if (size >= 1) return `${sign}$${size.toFixed(2)}`;
  const places = Math.min(Math.max(2, 2 - Math.floor(Math.log10(size))), 6);
  return `${sign}$${size.toFixed(places)}`;
}

export function seconds(value) {
  if (missing(value)) return NONE;
  if (value < 0.0995) return `${Number((value * 1e3).toPrecision(3))} ms`;
  if (value < 1) return `${Math.round(value * 1e3)} ms`;
  if (value < 120) return `${Number(value.toPrecision(3))} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172_800) return `${Number((value / 3600).toPrecision(3))} h`;
  return `${Number((value / 86_400).toPrecision(3))} days`;
}

export function milliseconds(value) {
  return missing(value) ? NONE : figure(value * 1e3);
}

export function percent(value, digits = 0) {
  if (missing(value)) return NONE;
  const share = value * 100;
  if (digits === 0 && share > 0 && share < 1) return `${share.toFixed(1)} %`;
  return `${share.toFixed(digits)} %`;
}

export const points = (value) => `${figure(value * 100, 2)} points`;

export function tokens(value) {
  if (missing(value)) return NONE;
  for (const [size, letter] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ])
    if (value >= size) return `${Number((value / size).toPrecision(3))}${letter}`;
  return figure(value);
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : text;
}

export function words(name) {
  return String(name).replaceAll("_", " ");
}

export function csvOf(rows, columns) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    // A cell that begins like a formula is written as text: spreadsheets run formulas.
    const plain = /^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return (
    [columns, ...rows.map((row) => columns.map((name) => row[name]))]
      .map((line) => line.map(cell).join(","))
      .join("\n") + "\n"
  );
}
