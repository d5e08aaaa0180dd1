// Elements written as calls: h("p", {class: "soft"}, "text", child). Text is always text, never markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  put(element, children);
  return element;
}

export function put(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child);
  }
  return element;
}

export function refill(element, ...children) {
  element.replaceChildren();
  return put(element, children);
}

let made = 0;
export const freshId = (what = "id") => `${what}-${++made}`;

export function download(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = h("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// A button that copies a text and says so for a moment, to eyes and to screen readers.
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "quiet", onclick: copy }, label);
  async function copy() {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? await text() : text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it and press Ctrl+C";
    }
    announce(button.textContent);
    setTimeout(() => (button.textContent = label), 1600);
  }
  return button;
}

export function announce(text) {
  const place = document.getElementById("said");
  if (place) place.textContent = text;
}
