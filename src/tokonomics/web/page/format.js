// Texts and the numbers in them. The page shows what the server wrote; it reads a number only to sort or compare by it.

export const NONE = "–";

// Three significant digits, grouped: for data behind charts and for what the page itself counts.
export function figure(value) {
  if (typeof value !== "number") return value === null || value === undefined || value === "" ? NONE : String(value);
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return value.toLocaleString("en-US", size >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
}

export function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : text;
}

const SCALES = {
  ...{ ns: 1e-9, "µs": 1e-6, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, hours: 3600, day: 86_400, days: 86_400 },
  ...{ K: 1e3, k: 1e3, M: 1e6, B: 1e9, T: 1e12 },
  ...{ KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 },
};
const AMOUNT = /^(?:[→~≤≥<>±×]|from |up to )?\s*([−+-]?)\s*\$?([−-]?)([\d,]*\.?\d+(?:e[+-]?\d+)?|∞)\s*([^\d\s/(]*)/i;

// The number that a text begins with, in its base unit: $1,234.5, −3 %, 12.3 ms, 4.5 M, 80 GB; null where none stands.
export function amount(text, { bytes = false } = {}) {
  const [, sign, minus, digits, unit] = text.trim().match(AMOUNT) ?? [];
  if (digits === undefined) return null;
  const size = digits === "∞" ? Infinity : Number(digits.replaceAll(",", ""));
  const scale = unit === "B" && bytes ? 1 : (SCALES[unit] ?? 1);
  return (/[−-]/.test(sign + minus) ? -1 : 1) * size * scale;
}

const TIMES = new Set(["ns", "µs", "us", "ms", "s", "min", "h", "hours", "day", "days"]);

// What a text counts, whatever its scale: "$ a month" of $1,234 a month, "s" of 12.3 ms, "tokens" of 4.5 M tokens.
// null where no number stands.
export function unitOf(text) {
  const [whole, , , digits, unit] = text.trim().match(AMOUNT) ?? [""];
  if (digits === undefined) return null;
  const own = TIMES.has(unit) ? "s" : /^[KMGT]B$/.test(unit) ? "bytes" : unit in SCALES ? "" : unit;
  const rest = text.trim().slice(whole.length);
  return `${whole.includes("$") ? "$" : ""}${own}${rest}`.trim();
}

const WHOLE = /^[−+~≤≥<>±-]?\s*\$?[\d,.]+(e[+-]?\d+)?( ?[^\d\s]{1,4})?$/i;

// What a column of texts sorts by: numbers where all of them are, else the texts.
export function sortKeys(texts, isNumber) {
  const said = texts.filter((text) => text !== "" && text !== NONE);
  if (!isNumber && !(said.length && said.every((text) => WHOLE.test(text)))) return texts;
  const bytes = said.some((text) => /[KMGT]B\b/.test(text));
  return texts.map((text) => amount(text, { bytes }));
}

// Rows as a table: nested figures become columns of their own, lists of objects are left out.
// As questions/result.py does: ttft_s with p99 becomes ttft_p99_s, so that the unit stays where one looks for it.
export function flattened(rows) {
  const nested = new Set();
  const joined = (outer, inner) => {
    if (!outer) return inner;
    return /(?<!_per)_s$/.test(outer) ? `${outer.slice(0, -2)}_${inner}_s` : `${outer}_${inner}`;
  };
  const flat = (row, within = "") =>
    Object.entries(row).flatMap(([key, value]) => {
      const name = joined(within, key);
      const isObject = value !== null && typeof value === "object";
      if (!isObject || (Array.isArray(value) && !value.some((part) => part !== null && typeof part === "object")))
        return [[name, value]];
      nested.add(name);
      return Array.isArray(value) ? [] : flat(value, name);
    });
  const made = rows.map((row) => Object.fromEntries(flat(row)));
  const isEmpty = (value) => Array.isArray(value) && !value.length;
  const names = [...new Set(made.flatMap(Object.keys))].filter(
    (name) => !nested.has(name) && made.some((row) => !isEmpty(row[name])),
  );
  return { names, rows: made.map((row) => names.map((name) => row[name])) };
}

// Rows of cells under their names, which may repeat.
export function csvOf({ names, rows }) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    // A cell that begins like a formula is written as text: spreadsheets run formulas.
    const plain = /^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return [names, ...rows].map((line) => `${line.map(cell).join(",")}\n`).join("");
}
