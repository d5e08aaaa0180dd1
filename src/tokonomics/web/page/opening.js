// From a figure to the plan behind it: links that keep the scenario and add what was chosen.

import { h } from "./dom.js";
import { read, written } from "./url.js";

// A link like any other, so that keys and new tabs work; the page itself goes there without loading anew.
export function planLink(inputs, nodes) {
  const carried = Object.fromEntries(new URLSearchParams(inputs));
  const open = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    dispatchEvent(new CustomEvent("open-plan", { detail: carried }));
  };
  const address = `/${written({ view: "plan", a: { ...read().a, ...carried }, b: null })}`;
  return h("a", { href: address, class: "opens", onclick: open, title: "Open it in Plan" }, nodes);
}
