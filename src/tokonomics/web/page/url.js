// The address is the whole scenario: ?view=plan&model=…&rate=5, and b.model=… for the one it is compared with.
// A value equal to its default is left out, so that links stay short.

const SECOND = "b.";

export function read(search = location.search) {
  const found = { view: null, a: {}, b: null };
  for (const [name, value] of new URLSearchParams(search)) {
    if (name === "view") found.view = value;
    else if (name === "compare") found.b ??= {};
    else if (name.startsWith(SECOND)) (found.b ??= {})[name.slice(SECOND.length)] = value;
    else found.a[name] = value;
  }
  return found;
}

export function written({ view, a, b }, defaults = {}) {
  const query = new URLSearchParams();
  if (view) query.set("view", view);
  for (const [name, value] of Object.entries(a))
    if (value !== "" && value !== null && value !== undefined && String(value) !== String(defaults[name] ?? ""))
      query.set(name, value);
    else if (value === "" && defaults[name]) query.set(name, "");
  if (b) {
    query.set("compare", "1");
    for (const [name, value] of Object.entries(b))
      if (String(value ?? "") !== String(a[name] ?? "")) query.set(SECOND + name, value ?? "");
  }
  // Commas, colons and equals signs are legal in a query; encoded they make links nobody can read.
  return `?${query.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%3D", "=")}`;
}

// A drag is one step back: its first move makes an entry of the history, the others replace it.
let dragging = false;

function write(state, defaults, last) {
  const next = written(state, defaults);
  if (next !== location.search) history[dragging ? "replaceState" : "pushState"](null, "", next);
  dragging = !last;
}

export const commit = (state, defaults) => write(state, defaults, true);
export const drag = (state, defaults) => write(state, defaults, false);
