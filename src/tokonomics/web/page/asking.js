// When to ask the server. A slider asks far more often than anyone can answer: one quick request is in flight at a
// time, and when it is back the latest scenario follows, so that the answer keeps moving and nothing piles up.
// A long one is a job: a newer one, or the reader, cancels it. Answers are remembered for back and forward.

import * as api from "./api.js";
import { announce } from "./dom.js";
import { exampleOf } from "./examples.js";

const SETTLED_MS = 250; // without a change, before charts that take long are asked for
const KEPT = 24;
const remembered = new Map();

function remember(key, answer) {
  remembered.delete(key);
  remembered.set(key, answer);
  if (remembered.size > KEPT) remembered.delete(remembered.keys().next().value);
}

export function asker({ view, labels, place, values, catalog, answered, refused }) {
  let timer = null;
  let flight = null; // {abort, long}: what is being asked
  let again = null; // the scenario changed meanwhile
  let shown = false;
  let turn = 0; // of what was asked or waited for: a later one is the one that counts

  function ask({ final = null, wait = 0 }) {
    clearTimeout(timer);
    timer = setTimeout(() => start(final), wait);
  }

  function stop() {
    clearTimeout(timer);
    turn += 1;
    again = null;
    flight?.abort.abort();
    flight = null;
  }

  async function start(final) {
    if (flight?.draws || flight?.long) stop();
    if (flight) {
      again = { final };
      return;
    }
    const given = values();
    const request = view.request(given, catalog);
    turn += 1;
    if (!request) return place.empty(view.empty?.(given) ?? "Fill in the form.");
    const key = JSON.stringify([request.verb, request.inputs]);
    if (request.waits && !remembered.has(key)) return wait(request, given);
    const mine = (flight = { abort: new AbortController(), long: request.long });
    try {
      await fly(request, key, mine);
    } catch (error) {
      if (flight === mine && !again) fail(error, final);
      else if (mine.cancelled) fail(error, final);
    }
    if (flight !== mine) return;
    flight = null;
    if (again) {
      const { final: next } = again;
      again = null;
      start(next);
    }
  }

  // Until the reader asks: the example, where the scenario is the view's own; else how to ask.
  async function wait(request, given) {
    if (shown) return place.changedSince(true);
    const mine = turn;
    const example = await exampleOf(view, request);
    if (turn !== mine) return;
    if (example) place.show(example, { isQuiet: true });
    else place.empty(view.empty(given));
  }

  async function fly({ verb, inputs, long, slowCharts }, key, mine) {
    const { signal } = mine.abort;
    const kept = remembered.get(key);
    const cancel = () => ((mine.cancelled = true), mine.abort.abort());
    const { tell } = kept ? {} : place.working(long ? cancel : null);
    const asked = () =>
      long ? api.job(verb, inputs, { tell, signal }) : api.answer(verb, inputs, { parts: ["sections"], signal });
    const answer = kept ?? (await asked());
    if (flight !== mine) return;
    shown = true;
    place.show(answer, { chartsFollow: !long && !kept });
    answered(answer);
    if (kept || long) return remember(key, answer);
    // Numbers come first. Charts that take long follow once the reader has stopped dragging, and give way to the next
    // question.
    if (slowCharts) {
      mine.draws = true;
      await new Promise((resolve) => setTimeout(resolve, again ? 0 : SETTLED_MS));
      if (flight !== mine || again) return;
    }
    let whole;
    try {
      const { charts } = await api.answer(verb, inputs, { parts: ["charts"], signal });
      whole = Object.assign(answer, { charts });
    } catch (error) {
      // The numbers stand without their charts.
      if (flight === mine && error.name !== "AbortError") place.undrawn(labels.refusal(error));
      return;
    }
    if (flight !== mine) return;
    place.draw(whole);
    remember(key, whole);
  }

  function fail(error, final) {
    if (error.name === "AbortError") {
      announce("Cancelled");
      place.idle("Cancelled. Change the scenario or run it again.");
      return;
    }
    const known = error instanceof api.Refusal;
    if (!known) console.error(error);
    shown = false;
    const said = known
      ? labels.refusal(error)
      : { what: "The page could not show the answer", where: error.message };
    place.refused(said, { focus: final === "asked" });
    refused(said);
  }

  return { ask, stop };
}
