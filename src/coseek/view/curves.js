// Training curves: one small plot a metric, all stages laid over each other.

const COLOURS = ["#3f8fd2", "#d97a1f", "#2f9e6e", "#c4609f", "#8a7fd8", "#a08430"];
const FIRST = ["reward", "exact_match", "eval/reward", "eval/exact_match", "searches", "agent_tokens", "tokens", "kl_reference", "sampled_nll", "surprise", "entropy", "faults", "alarms", "loss", "grad_norm"];
const MOST_PLOTS = 12; // before "all" is asked for
const PLOT = { width: 320, height: 170, left: 44, right: 6, top: 8, bottom: 20 };
const MOST_POINTS = 600; // of one line; more are joined to the extremes of their share
let curves = null;
let wantedMetric = "";
let allMetrics = false;
let hiddenStages = new Set();

async function curvesView() {
  curves ??= await unpack(head.curves);
  const plots = el("div", { class: "plots" });
  const input = el("input", { type: "search", "aria-label": "Search metrics", placeholder: "Search metrics", value: wantedMetric });
  input.addEventListener("input", () => {
    wantedMetric = input.value;
    drawPlots(plots);
  });
  const all = el("button", { type: "button", "aria-pressed": allMetrics });
  const label = () => {
    all.textContent = allMetrics ? "main metrics" : `all ${metricNames().length} metrics`;
    all.setAttribute("aria-pressed", allMetrics);
  };
  label();
  all.addEventListener("click", () => {
    allMetrics = !allMetrics;
    label();
    drawPlots(plots);
  });
  drawPlots(plots);
  return [el("h2", {}, "Training curves"), el("div", { class: "bench" }, input, all), legendOf(plots), plots];
}

/** Checkboxes that show and hide stages, with the line of each. */
function legendOf(plots) {
  const items = curves.map((one, at) => {
    const box = el("input", { type: "checkbox" });
    box.checked = !hiddenStages.has(at);
    box.addEventListener("change", () => {
      if (box.checked) hiddenStages.delete(at);
      else hiddenStages.add(at);
      drawPlots(plots);
    });
    const sample = svg("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" }, svg("path", { d: "M0 4H24", ...strokeOf(at) }));
    return el("label", {}, box, sample, one.name);
  });
  return el("fieldset", { class: "legend", "aria-label": "Stages shown" }, items);
}

/** Colour and dashes of a stage's line: colours come again with dashes. */
function strokeOf(at) {
  const dashes = ["", "6 3", "2 2"][Math.floor(at / COLOURS.length) % 3];
  return { stroke: COLOURS[at % COLOURS.length], ...(dashes ? { "stroke-dasharray": dashes } : {}) };
}

function metricNames() {
  const names = new Set(curves.flatMap((one) => Object.keys(one.columns)));
  names.delete("step");
  const main = FIRST.filter((name) => names.has(name));
  return [...main, ...[...names].filter((name) => !main.includes(name)).sort()];
}

function drawPlots(plots) {
  const text = wantedMetric.trim().toLowerCase();
  const found = metricNames().filter((name) => name.toLowerCase().includes(text));
  const some = text || allMetrics ? found : found.slice(0, MOST_PLOTS);
  const nodes = some.map(plotOf).filter(Boolean);
  plots.replaceChildren(...(nodes.length ? nodes : [el("p", {}, "No metric of this name was logged.")]));
}

/** The points [step, value] of a metric in one stage. */
function pointsOf(one, name) {
  const steps = one.columns.step;
  return (one.columns[name] ?? []).map((value, at) => [steps?.[at] ?? at + 1, value]).filter(([, value]) => typeof value === "number");
}

/** At most MOST_POINTS points: the lowest and highest of each share, in their order. */
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

function plotOf(name) {
  const lines = curves.map((one, at) => ({ at, name: one.name, points: hiddenStages.has(at) ? [] : pointsOf(one, name) })).filter((line) => line.points.length);
  if (!lines.length) return null;
  const every = lines.flatMap((line) => line.points);
  const [x0, x1] = extent(every.map(([x]) => x));
  const [y0, y1] = extent(every.map(([, y]) => y));
  const { width, height, left, right, top, bottom } = PLOT;
  const px = (x) => left + ((x - x0) / (x1 - x0 || 1)) * (width - left - right);
  const py = (y) => (y1 === y0 ? (top + height - bottom) / 2 : height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom));
  const summary = lines.map((line) => `${line.name} from ${number(line.points[0][1])} to ${number(line.points.at(-1)[1])}`).join("; ");
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": plain(`${name}, steps ${x0} to ${x1}: ${summary}`) });
  for (const y of y1 === y0 ? [y0] : [y0, (y0 + y1) / 2, y1])
    plot.append(svg("path", { class: "grid", d: `M${left} ${py(y)}H${width - right}` }), svg("text", { x: left - 4, y: py(y) + 3, "text-anchor": "end" }, tick(y)));
  plot.append(svg("text", { x: left, y: height - 5 }, number(x0)), svg("text", { x: width - right, y: height - 5, "text-anchor": "end" }, `step ${number(x1)}`));
  for (const { at, points } of lines) {
    const thin = thinned(points);
    const d = thin.map(([x, y], place) => `${place ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    plot.append(svg("path", { d: thin.length === 1 ? `${d}h.01` : d, "stroke-linecap": "round", ...strokeOf(at) }));
  }
  return withReadout(plot, name, lines, px);
}

/** A figure with a line of the values at the step under the pointer, else the last ones. */
function withReadout(plot, name, lines, px) {
  const said = el("p", { class: "soft" });
  const mark = svg("path", { class: "at", d: "" });
  plot.append(mark);
  const say = (step) => {
    const nearest = (points) => points.reduce((a, b) => (Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a));
    const values = lines.map((line) => (step === null ? line.points.at(-1) : nearest(line.points)));
    const text = values.map(([x, y], at) => `${lines.length > 1 ? `${lines[at].name}: ` : ""}${number(y)} at ${number(x)}`).join(" · ");
    said.replaceChildren(shown(text));
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
  return el("figure", {}, el("figcaption", {}, name), plot, said);
}

const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** A number of a scale, short enough for its margin. */
const tick = (value) => (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3) ? value.toExponential(1) : value.toLocaleString("en", { maximumSignificantDigits: 3 }));

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
