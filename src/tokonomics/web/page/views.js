// The views in the order of the navigation. A view has a form (groups, request(values), empty(values)) or only reads.
// Its `carried` inputs have no field: they come from the address, or from the view before.

import accuracy from "./views/accuracy.js";
import batching from "./views/batching.js";
import benchmark from "./views/benchmark.js";
import fleet from "./views/fleet.js";
import levers from "./views/levers.js";
import meter from "./views/meter.js";
import own from "./views/own.js";
import plan from "./views/plan.js";
import rightsize from "./views/rightsize.js";
import traffic from "./views/traffic.js";

export const VIEWS = [plan, rightsize, batching, traffic, levers, own, fleet, meter, accuracy, benchmark];
