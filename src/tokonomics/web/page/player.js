// A simulated run to scrub and play: who waits, runs and is done at each moment, what it has cost, where the SLO was
// missed and by whom. Every text and figure is the server's; nothing plays before the reader asks.

import { announce, freshId, h, refill } from "./dom.js";

const WIDE = 1000; // of a drawing, in its own units: it is stretched to the room there is
const HIGH = 48; // of a lane
const LOW = 12; // of the lane of misses
const STEP_MS = 500; // between two pictures for readers who want less motion
const SPEEDS = [
  ["10", "run in 10 s"],
  ["30", "run in 30 s"],
  ["120", "run in 2 min"],
];

function drawn(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function player(run) {
  const last = run.at_s.length - 1;
  const across = (seconds) => (run.end_s > 0 ? (seconds / run.end_s) * WIDE : 0);
  const state = { moment: last, place: last, frame: 0, then: 0, drawn: 0 };

  // ---- what is seen

  const lanes = run.lanes.map((lane) => band(lane));
  const misses = run.marks.length ? missLane() : null;
  const counters = run.counters.map(({ name, texts }) => ({ texts, value: h("dd", {}), name }));
  const time = h("output", { class: "time" });
  const slider = h("input", {
    type: "range",
    min: "0",
    max: String(last),
    step: "1",
    value: String(last),
    "aria-label": "Moment of the run",
    oninput: () => (pause(), goTo(Number(slider.value))),
  });
  const toggle = () => (state.frame ? pause() : play());
  const button = h("button", { type: "button", class: "play", onclick: toggle }, "Play");
  const speed = h(
    "select",
    { "aria-label": "Whole run", onchange: () => (state.place = state.moment) },
    SPEEDS.map(([value, label]) => h("option", { value, selected: value === "30" }, label)),
  );
  const who = h("div", { class: "who" });
  const id = freshId("player");
  const figure = h(
    "figure",
    { class: "part player", "aria-labelledby": id, onkeydown: keyed },
    h("figcaption", {}, h("h2", { id }, "Play the run"), h("p", {}, run.about)),
    h("div", { class: "controls" }, button, h("label", { class: "speed" }, speed), slider, time),
    h(
      "dl",
      { class: "tiles" },
      counters.map(({ name, value }) => h("div", {}, h("dt", {}, name), value)),
    ),
    h(
      "div",
      { class: "lanes", onpointerdown: grab, onpointermove: drag },
      lanes.map(({ element }) => element),
      misses?.element,
    ),
    h("div", { class: "misses" }, h("p", { class: "said" }, run.missed), misses && steps(), who),
  );

  function band({ name, values, top, most, texts }) {
    const up = (value) => (HIGH * (1 - value / top)).toFixed(1);
    const line = values.map((value, at) => `${across(run.at_s[at]).toFixed(1)},${up(value)}`).join(" ");
    const cursor = drawn("line", { class: "cursor", y1: 0, y2: HIGH });
    const picture = drawn(
      "svg",
      {
        viewBox: `0 0 ${WIDE} ${HIGH}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${name} over time: ${most}`,
      },
      drawn("polygon", { class: "area", points: `0,${HIGH} ${line} ${WIDE},${HIGH}` }),
      drawn("polyline", { class: "edge", points: line }),
      cursor,
    );
    const value = h("strong", {});
    const element = h("div", { class: "lane" }, h("p", {}, `${name} `, value, h("span", {}, most)), picture);
    return { element, cursor, show: (moment) => (value.textContent = texts[moment]) };
  }

  function missLane() {
    const cursor = drawn("line", { class: "cursor", y1: 0, y2: LOW });
    const most = Math.max(...run.marks.map(({ missed }) => missed));
    const marks = run.marks.map(({ from_s, to_s, missed }) => {
      const [x, height] = [across(from_s), Math.max((LOW * missed) / most, LOW / 4)];
      return drawn("rect", { class: "mark", x, y: LOW - height, width: Math.max(across(to_s) - x, 3), height });
    });
    const picture = drawn(
      "svg",
      {
        class: "marks",
        viewBox: `0 0 ${WIDE} ${LOW}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": run.missed,
      },
      ...marks,
      cursor,
    );
    const element = h("div", { class: "lane missed" }, h("p", {}, "Missed"), picture);
    return { element, picture, cursor, marks };
  }

  // The marks one after the other, for keys and thumbs.
  function steps() {
    const step = (way) => () => {
      const at = reached();
      const here = at >= 0 && run.marks[at].moment === state.moment;
      choose(way > 0 ? Math.min(at + 1, run.marks.length - 1) : Math.max(here ? at - 1 : at, 0));
    };
    return h(
      "div",
      { class: "steps" },
      h("button", { type: "button", class: "quiet", onclick: step(-1) }, "Previous miss"),
      h("button", { type: "button", class: "quiet", onclick: step(1) }, "Next miss"),
    );
  }

  const reached = () => run.marks.findLastIndex(({ moment }) => moment <= state.moment);

  // ---- moving

  function goTo(moment) {
    state.moment = Math.max(0, Math.min(last, moment));
    const at = state.moment;
    slider.value = String(at);
    time.textContent = `${run.times[at]} of ${run.times[last]}`;
    slider.setAttribute("aria-valuetext", run.times[at]);
    for (const { texts, value } of counters) value.textContent = texts[at];
    for (const { cursor, show } of [...lanes, ...(misses ? [{ cursor: misses.cursor }] : [])]) {
      cursor.setAttribute("x1", across(run.at_s[at]));
      cursor.setAttribute("x2", across(run.at_s[at]));
      show?.(at);
    }
    tell(reached());
  }

  function tell(mark) {
    if (who.dataset.mark === String(mark)) return;
    who.dataset.mark = String(mark);
    misses?.marks.forEach((each, at) => each.classList.toggle("chosen", at === mark));
    const found = run.marks[mark];
    refill(
      who,
      found && h("h3", {}, found.title),
      found && h("ul", {}, [...found.who, found.others].filter(Boolean).map((text) => h("li", {}, text))),
    );
  }

  function choose(mark) {
    pause();
    goTo(run.marks[mark].moment);
    announce(`${run.marks[mark].title}. ${run.marks[mark].who.join(". ")}`);
  }

  function play() {
    if (state.moment === last) goTo(0);
    Object.assign(state, { place: state.moment, then: performance.now(), drawn: 0 });
    button.textContent = "Pause";
    state.frame = requestAnimationFrame(advance);
  }

  function pause() {
    cancelAnimationFrame(state.frame);
    state.frame = 0;
    button.textContent = "Play";
  }

  function advance(now) {
    if (!figure.isConnected) return pause();
    state.place += (Math.max(0, now - state.then) / (1000 * Number(speed.value))) * last;
    state.then = now;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!calm || now - state.drawn >= STEP_MS || state.place >= last) {
      state.drawn = now;
      goTo(Math.floor(state.place));
    }
    if (state.place >= last) return pause();
    state.frame = requestAnimationFrame(advance);
  }

  // ---- hands

  function keyed(event) {
    if (event.key !== " " || event.target.closest("button, select")) return;
    event.preventDefault();
    toggle();
  }

  const shareOf = (event, picture) => {
    const { left, width } = picture.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - left) / width));
  };

  function scrub(event) {
    const seconds = shareOf(event, lanes[0].element.lastChild) * run.end_s;
    const next = run.at_s.findIndex((at_s) => at_s >= seconds);
    goTo(next < 0 ? last : next);
  }

  function grab(event) {
    if (event.button) return;
    pause();
    if (!misses?.element.contains(event.target)) return scrub(event);
    const seconds = shareOf(event, misses.picture) * run.end_s;
    const far = ({ from_s, to_s }) => Math.max(from_s - seconds, seconds - to_s, 0);
    choose(run.marks.reduce((best, mark, at) => (far(mark) < far(run.marks[best]) ? at : best), 0));
  }

  function drag(event) {
    if (event.buttons & 1 && !misses?.element.contains(event.target)) scrub(event);
  }

  goTo(last);
  return figure;
}
