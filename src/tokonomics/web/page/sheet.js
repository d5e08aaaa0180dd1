// On a narrow screen the answer comes first: the form is a sheet at the foot of the screen, opened when it is wanted,
// views are in a menu, and the headline stays in sight at the top once the answer itself has been scrolled away.

import { headlineIn } from "./answer.js";
import { freshId, h, refill } from "./dom.js";

// A button that shows and hides what it names; Escape hides it too and brings the focus back.
function discloses(button, place) {
  const set = (isOpen) => {
    button.setAttribute("aria-expanded", String(isOpen));
    place.classList.toggle("open", isOpen);
  };
  button.addEventListener("click", () => set(!place.classList.contains("open")));
  place.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !place.classList.contains("open")) return;
    set(false);
    button.focus();
  });
  set(false);
  return () => set(false);
}

// The form with a handle above it, which only a narrow screen shows.
export function sheet(...contents) {
  const id = freshId("scenario");
  const handle = h("button", { type: "button", class: "quiet handle", "aria-controls": id }, "Scenario");
  const element = h("aside", { class: "side", "aria-label": "Scenario" }, handle, h("div", { id }, contents));
  return { element, close: discloses(handle, element) };
}

// The navigation as a menu, called by the view that is open; it ends when a view is chosen or something else is touched.
export function menu() {
  const button = document.getElementById("menu");
  const top = document.querySelector(".top");
  const close = discloses(button, top);
  addEventListener("click", (event) => !top.contains(event.target) && close());
  return (name) => {
    refill(button, h("span", { class: "unseen" }, "Views, now "), name);
    close();
  };
}

// The figures of the answers in one line below the header; it repeats what stands on the page, so it is for eyes only.
const glance = () => document.getElementById("glance");
const watching = new IntersectionObserver(
  ([seen]) => glance().classList.toggle("needed", !seen.isIntersecting),
  { rootMargin: "-96px 0px 0px 0px" }, // the header covers the first of these pixels
);

export function glanceAt(answers) {
  const heads = Object.entries(answers)
    .map(([which, answer]) => [which, answer && headlineIn(answer.sections)])
    .filter(([, head]) => head);
  const texts = heads.map(([which, { value, label }]) =>
    h("span", {}, heads.length > 1 && `${which.toUpperCase()} `, h("strong", {}, value), heads.length < 2 && ` ${label}`),
  );
  refill(glance(), texts);
  watching.disconnect();
  const headline = document.querySelector(".pane .headline");
  if (headline) watching.observe(headline);
}
