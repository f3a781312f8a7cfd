// Training curves: one small plot per metric and stage, with all runs in it.

const COLOURS = ["#3f8fd2", "#d97a1f", "#2f9e6e", "#c4609f", "#8a7fd8", "#a08430"];
const FIRST = ["reward", "exact_match", "eval/reward", "eval/exact_match", "searches", "agent_tokens", "tokens", "kl_reference", "sampled_nll", "surprise", "entropy", "faults", "alarms", "loss", "grad_norm"];
const MEANS = {
  reward: "mean of the sampled episodes",
  exact_match: "share of sampled episodes that are right",
  "eval/reward": "dev questions, greedy",
  "eval/exact_match": "dev questions, greedy; share that is right",
  searches: "per sampled episode",
  agent_tokens: "written per sampled episode",
  tokens: "per sampled episode",
  sampled_nll: "nats per sampled token: how unsure the policy is",
  faults: "episodes that a failure ended",
  alarms: "warnings of the monitor",
  grad_norm: "before clipping",
};
const MOST_PLOTS = 12; // before the reader asks for all
const PLOT = { width: 320, height: 170, left: 46, right: 6, top: 8, bottom: 20 };
const SPANS = [1, 10, 50]; // points averaged into each point of a smoothed line
const MOST_POINTS = 600; // per line; longer lines keep the extremes of equal slices
let curves = null;
let wantedMetric = "";
let allMetrics = false;
let hiddenRuns = new Set();
let span = 1;

async function curvesView() {
  curves ??= await unpack(head.curves);
  const plots = el("div", { class: "stages" });
  const input = el("input", { type: "search", "aria-label": "Search metrics", placeholder: "Search metrics", value: wantedMetric });
  input.addEventListener("input", () => {
    wantedMetric = input.value;
    drawPlots(plots);
  });
  const all = el("button", { type: "button", "aria-pressed": allMetrics });
  const label = () => {
    all.textContent = allMetrics ? "main metrics" : `all ${metricNames(curves).length} metrics`;
    all.setAttribute("aria-pressed", allMetrics);
  };
  label();
  all.addEventListener("click", () => {
    allMetrics = !allMetrics;
    label();
    drawPlots(plots);
  });
  const spans = SPANS.map((one) => [String(one), one === 1 ? "as logged" : `mean of ${one} points`]);
  const smooth = field("Lines", "lines", spans, String(span), (value) => {
    span = Number(value);
    drawPlots(plots);
  });
  drawPlots(plots);
  return [el("h2", {}, "Training curves"), el("div", { class: "bench" }, input, smooth, all), legendOf(plots), plots];
}

const trainedRuns = () => [...new Set(curves.map((one) => one.run))];

/** Checkboxes that show and hide runs, each with its line style; nothing for a single run. */
function legendOf(plots) {
  const names = trainedRuns();
  if (names.length < 2) return "";
  const items = names.map((name, at) => {
    const box = el("input", { type: "checkbox" });
    box.checked = !hiddenRuns.has(name);
    box.addEventListener("change", () => {
      if (box.checked) hiddenRuns.delete(name);
      else hiddenRuns.add(name);
      drawPlots(plots);
    });
    const sample = svg("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" }, svg("path", { d: "M0 4H24", ...strokeOf(at) }));
    return el("label", {}, box, sample, name);
  });
  return el("fieldset", { class: "legend", "aria-label": "Runs shown" }, items);
}

/** Colour and dashes of a run's line: colours repeat with dashes. */
function strokeOf(at) {
  const dashes = ["", "6 3", "2 2"][Math.floor(at / COLOURS.length) % 3];
  return { stroke: COLOURS[at % COLOURS.length], ...(dashes ? { "stroke-dasharray": dashes } : {}) };
}

function metricNames(some) {
  const names = new Set(some.flatMap((one) => Object.keys(one.columns)));
  names.delete("step");
  const main = FIRST.filter((name) => names.has(name));
  return [...main, ...[...names].filter((name) => !main.includes(name)).sort()];
}

function drawPlots(plots) {
  const text = wantedMetric.trim().toLowerCase();
  const stages = [...new Set(curves.map((one) => one.stage))];
  const sections = stages.map((stage) => {
    const own = curves.filter((one) => one.stage === stage);
    const found = metricNames(own).filter((name) => name.toLowerCase().includes(text));
    const some = text || allMetrics ? found : found.slice(0, MOST_PLOTS);
    const nodes = some.map((name) => plotOf(name, own)).filter(Boolean);
    return nodes.length && el("section", { "aria-label": plain(stage || "Run") }, stages.length > 1 && el("h3", {}, stage || "the run itself"), el("div", { class: "plots" }, nodes));
  });
  const nodes = sections.filter(Boolean);
  plots.replaceChildren(...(nodes.length ? nodes : [el("p", {}, "No metric of this name was logged.")]));
}

/** The points [step, value] of a metric of one run. */
function pointsOf(one, name) {
  const steps = one.columns.step;
  return (one.columns[name] ?? []).map((value, at) => [steps?.[at] ?? at + 1, value]).filter(([, value]) => typeof value === "number");
}

/** Running mean over at most `span` points that end at each point. */
function smoothed(points) {
  let sum = 0;
  return points.map(([x, y], at) => {
    sum += y - (at < span ? 0 : points[at - span][1]);
    return [x, sum / Math.min(at + 1, span)];
  });
}

/** At most MOST_POINTS points: the lowest and highest of each slice, in order. */
function thinned(points) {
  if (points.length <= MOST_POINTS) return points;
  const share = Math.ceil((2 * points.length) / MOST_POINTS);
  const found = [];
  for (let at = 0; at < points.length; at += share) {
    const part = points.slice(at, at + share);
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    found.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  }
  return found;
}

/** The plot of a metric in one stage of several runs; null if no visible run has it. */
function plotOf(name, own) {
  const there = own.filter((one) => !hiddenRuns.has(one.run));
  const lines = there.map((one) => ({ at: trainedRuns().indexOf(one.run), name: one.run, points: pointsOf(one, name) })).filter((line) => line.points.length);
  if (!lines.length) return null;
  const every = lines.flatMap((line) => line.points);
  const [x0, x1] = extent(every.map(([x]) => x));
  const ticks = ticksOf(...scaleFor(extent(every.map(([, y]) => y))));
  const [y0, y1] = [ticks[0], ticks.at(-1)];
  const { width, height, left, right, top, bottom } = PLOT;
  const px = (x) => left + ((x - x0) / (x1 - x0 || 1)) * (width - left - right);
  const py = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const summary = lines.map((line) => `${line.name} from ${number(line.points[0][1])} to ${number(line.points.at(-1)[1])}`).join("; ");
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": plain(`${name}, steps ${x0} to ${x1}: ${summary}`) });
  for (const y of ticks)
    plot.append(svg("path", { class: "grid", d: `M${left} ${py(y)}H${width - right}` }), svg("text", { x: left - 4, y: py(y) + 3, "text-anchor": "end" }, tick(y, ticks)));
  plot.append(svg("text", { x: left, y: height - 5 }, number(x0)), svg("text", { x: width - right, y: height - 5, "text-anchor": "end" }, `step ${number(x1)}`));
  const draw = (points, at, more) => {
    const thin = thinned(points);
    const d = thin.map(([x, y], place) => `${place ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    plot.append(svg("path", { d: thin.length === 1 ? `${d}h.01` : d, "stroke-linecap": "round", ...strokeOf(at), ...more }));
  };
  if (span > 1) for (const { at, points } of lines) draw(points, at, { "stroke-opacity": 0.25 });
  for (const { at, points } of lines) draw(smoothed(points), at, {});
  return withReadout(plot, name, lines, px);
}

/** A figure with a line of values below it: at the step under the pointer, otherwise the last. */
function withReadout(plot, name, lines, px) {
  const said = el("p", { class: "soft" });
  const mark = svg("path", { class: "at", d: "" });
  plot.append(mark);
  const say = (step) => {
    const nearest = (points) => points.reduce((a, b) => (Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a));
    const values = lines.map((line) => (step === null ? line.points.at(-1) : nearest(line.points)));
    const at = new Set(values.map(([x]) => x)); // name the step once if all runs share it
    const text = values.map(([x, y], place) => `${lines.length > 1 ? `${lines[place].name} ` : ""}${number(y)}${at.size > 1 ? ` at ${number(x)}` : ""}`);
    said.replaceChildren(shown([...text, at.size > 1 ? "" : `step ${number(values[0][0])}`].filter(Boolean).join(" · ")));
    mark.setAttribute("d", step === null ? "" : `M${px(values[0][0])} ${PLOT.top}V${PLOT.height - PLOT.bottom}`);
  };
  const xs = lines.flatMap((line) => line.points.map(([x]) => x));
  const [x0, x1] = extent(xs);
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * PLOT.width;
    say(x0 + ((at - PLOT.left) / (PLOT.width - PLOT.left - PLOT.right)) * (x1 - x0));
  });
  plot.addEventListener("pointerleave", () => say(null));
  say(null);
  return el("figure", {}, el("figcaption", {}, name), MEANS[name] && el("p", { class: "soft" }, MEANS[name]), plot, said);
}

const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** Range of a scale: 0 to 1 for a fraction; a constant line includes 0. */
function scaleFor([low, high]) {
  if (low >= 0 && high <= 1 && high >= 0.2) return [0, 1];
  if (low !== high) return [low, high];
  return low === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, high)];
}

/** Three to six round tick values that cover a range. */
function ticksOf(low, high) {
  if (low === 0 && high === 1) return [0, 0.2, 0.4, 0.6, 0.8, 1];
  const least = (high - low) / 4;
  const unit = 10 ** Math.floor(Math.log10(least));
  const gap = [1, 2, 5, 10].map((times) => times * unit).find((one) => one >= least * 0.999) ?? 10 * unit;
  const first = Math.floor(low / gap + 1e-9);
  return Array.from({ length: Math.ceil(high / gap - 1e-9) - first + 1 }, (_, at) => (first + at) * gap);
}

/** A tick label with enough digits to differ from its neighbours, short enough for the margin. */
function tick(value, ticks) {
  const most = Math.max(...ticks.map(Math.abs));
  if (most >= 1e5) return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 });
  if (most > 0 && most < 1e-3) return value.toExponential(1);
  return value.toLocaleString("en", { maximumFractionDigits: Math.max(0, Math.ceil(-Math.log10(ticks[1] - ticks[0]) - 1e-9)) });
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
