// The token strip: every token of a segment, coloured by one of its values; pointing at a token shows all of them.

// A value of a token: its name, its colours as [lower edge, class, words], and its text.
const thousandth = (value) => value / 1000;
const MEASURES = {
  logprob: {
    name: "log-probability",
    of: (part, at, body) => (part.logprobs && body.exact ? thousandth(part.logprobs[at]) : null),
    classes: [[-0.05, "p0", "above −0.05 nats"], [-0.5, "p1", "to −0.5"], [-1.5, "p2", "to −1.5"], [-3, "p3", "to −3"], [-Infinity, "p4", "below −3"]],
    say: (value) => `log p ${value.toFixed(3)}`,
  },
  trained: {
    name: "trained or not",
    of: (part, at, body) => Number(isTrained(part, body)),
    classes: [[1, "p1", "trained"], [0, "off", "not trained"]],
    say: (value) => (value ? "trained" : "not trained"),
  },
  advantage: {
    name: "advantage",
    of: (part, at) => numberAt(part.advantages, at, thousandth),
    classes: [[1, "g2", "1 or more"], [0.001, "p1", "above 0"], [-0.001, "p0", "0"], [-1, "p3", "below 0"], [-Infinity, "p4", "below −1"]],
    say: (value) => `advantage ${value.toFixed(3)}`,
  },
  gap: {
    name: "trainer − sampler",
    of: (part, at) => numberAt(part.gaps, at, (value) => value / 1e5),
    size: true,
    classes: [[0.5, "p4", "0.5 nats or more"], [0.1, "p3", "0.1"], [0.01, "p2", "0.01"], [0.001, "p1", "0.001"], [0, "p0", "less"]],
    say: (value) => `trainer − sampler ${value.toFixed(5)}`,
  },
  entropy: {
    name: "entropy",
    of: (part, at) => numberAt(part.entropies, at, thousandth),
    classes: [[2, "p4", "2 nats or more"], [1, "p3", "1"], [0.5, "p2", "0.5"], [0.05, "p1", "0.05"], [0, "p0", "less"]],
    say: (value) => `entropy ${value.toFixed(3)}`,
  },
};

const numberAt = (values, at, scale) => (typeof values?.[at] === "number" ? scale(values[at]) : null);
/** Whether a segment is in the loss; a run outside training says only which tokens could be. */
const isTrained = (part, body) => Boolean(part.ids) && body.exact && (body.training?.trained ?? true);
const signOf = (measure, value) => (measure.size ? Math.abs(value) : value);
const classOf = (measure, value) => (value === null ? "none" : measure.classes.find(([edge]) => signOf(measure, value) >= edge)[1]);

/** The measures that some token of an episode has. */
const measuresOf = (body) =>
  Object.keys(MEASURES).filter((key) =>
    key === "trained" ? body.training : body.segments.some((part) => part.ids?.some((id, at) => MEASURES[key].of(part, at, body) !== null)),
  );

/** The measure that colours an episode's tokens: the one in the address if the episode has it. */
const colourOf = (body) => {
  const there = measuresOf(body);
  return there.includes(state.colour) ? state.colour : there[0];
};

/** The select for the colouring measure; a change recolours open strips in place. */
function colourChoice(body) {
  const there = measuresOf(body);
  if (there.length < 2) return null;
  const choose = (key) => {
    state.colour = key;
    history.replaceState(null, "", linkTo({}));
    for (const strip of document.querySelectorAll(".strip")) strip.dispatchEvent(new CustomEvent("colour"));
    for (const other of document.querySelectorAll("select[name=colour]")) if ([...other.options].some((option) => option.value === key)) other.value = key;
  };
  return el("div", { class: "bench" }, field("Colour tokens by", "colour", there.map((key) => [key, MEASURES[key].name]), colourOf(body), choose));
}

/** Every token of a segment. Arrow keys go from token to token; a line shows the values of the current token. */
function tokenStrip(part, body) {
  const texts = pieces[body.run] ?? {};
  const ids = part.ids ?? part.read;
  const there = measuresOf(body);
  const describe = (at) => {
    const values = there.map((key) => [MEASURES[key], MEASURES[key].of(part, at, body)]).filter(([, value]) => value !== null);
    const said = values.map(([measure, value]) => measure.say(value)).join(", ") || "log p not known";
    return plain(`token ${ids[at]}: ${said}`);
  };
  const items = ids.map((id, at) => {
    const text = texts[id];
    const piece = text === undefined ? String(id) : text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
    return el("li", { title: describe(at) }, piece);
  });
  const scale = el("p", { class: "soft scale" });
  let current = -1;
  const paint = () => {
    const key = colourOf(body);
    const measure = MEASURES[key];
    items.forEach((item, at) => {
      item.className = measure ? classOf(measure, measure.of(part, at, body)) : "none";
    });
    items[current]?.classList.add("at");
    scale.replaceChildren(...(measure ? scaleOf(measure) : []));
  };
  const unread = Object.keys(texts).length ? "" : "The run's tokenizer was not found, so tokens are shown as ids. ";
  const description = el("p", { class: "soft", role: "status" }, `${unread}Arrow keys or the pointer show each token's values.`);
  const point = (at) => {
    items[current]?.classList.remove("at");
    current = Math.min(items.length - 1, Math.max(0, at));
    items[current].classList.add("at");
    description.replaceChildren(shown(`${items[current].textContent.replaceAll(" ", "␣")} · ${describe(current)}`));
  };
  const strip = el("div", { class: "strip", tabindex: "0", role: "group", "aria-label": "Tokens; arrow keys go from one to the next" }, el("ol", { class: "tokens", "aria-label": "Tokens" }, items));
  strip.addEventListener("colour", paint);
  strip.addEventListener("keydown", (event) => {
    const at = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: items.length - 1 }[event.key];
    if (at === undefined) return;
    event.preventDefault();
    point(at);
  });
  strip.addEventListener("pointerover", (event) => {
    const at = items.indexOf(event.target.closest("li"));
    if (at >= 0) point(at);
  });
  paint();
  return el("div", {}, scale, strip, description);
}

/** The legend of a measure: each colour with its values. */
const scaleOf = (measure) => [
  `Colour: ${measure.name}${measure.size ? ", either way" : ""}: `,
  ...measure.classes.map(([, name, words]) => el("span", { class: "swatch" }, el("i", { class: name }), words)),
];
