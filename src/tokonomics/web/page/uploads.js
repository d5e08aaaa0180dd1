// Files that were dropped on the page: in the address and for the server they are ids, for a reader their own names.

const KEY = "uploads";
const names = new Map(read());

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
  } catch {
    return []; // no storage: names hold until the page is left
  }
}

export function keep({ id, name }) {
  const taken = [...names].some(([other, known]) => known === name && other !== `upload:${id}`);
  names.set(`upload:${id}`, taken ? `${name} (${names.size + 1})` : name);
  try {
    sessionStorage.setItem(KEY, JSON.stringify([...names]));
  } catch {
    /* as above */
  }
}

const each = (text, change) =>
  text
    .split(",")
    .map((part) => change(part.trim()))
    .join(",");

// A link from elsewhere names a file that was not dropped here: it is called one all the same.
function nameOf(part) {
  if (part.startsWith("upload:") && !names.has(part)) keep({ id: part.slice("upload:".length), name: "uploaded file" });
  return names.get(part) ?? part;
}

export const shown = (value) => (value.includes("upload:") ? each(value, nameOf) : value);
export function meant(text) {
  const ids = new Map([...names].map(([id, name]) => [name, id]));
  return ids.has(text) || text.split(",").some((part) => ids.has(part.trim()))
    ? (ids.get(text) ?? each(text, (name) => ids.get(name) ?? name))
    : text;
}
