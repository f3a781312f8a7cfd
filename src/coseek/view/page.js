"use strict";
// The data block, the state in the page's address, and text of runs as text nodes.

const head = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const root = document.documentElement;

/** Decode base64 of gzipped JSON. */
async function unpack(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Columns of all episodes, and questions as [id, text, answers, gold ids, hops, data set].
let columns = {};
let questions = [];
let pieces = [];
let order = []; // per episode: its number among those of its run and question
let ofQuestion = []; // per run: question → its episodes
let haystacks = [];

/** Read the index and prepare the look-ups of lists and comparisons. */
async function openIndex() {
  const index = await unpack(head.index);
  ({ columns, questions, pieces } = index);
  ofQuestion = head.runs.map(() => new Map());
  const texts = questions.map((q) => `${q[0]}\n${q[1]}\n${q[2].join("\n")}`);
  for (let i = 0; i < columns.run.length; i++) {
    const known = ofQuestion[columns.run[i]];
    const question = columns.question[i];
    if (!known.has(question)) known.set(question, []);
    order.push(known.get(question).push(i) - 1);
    haystacks.push(`${texts[question]}\n${columns.answer[i] ?? ""}\n${columns.queries[i]}`.toLowerCase());
  }
}

/** The episode of another run with the same question and place among that run's samples; undefined if there is none. */
function partner(episode, run) {
  return ofQuestion[run]?.get(columns.question[episode])?.[order[episode]];
}

const chunks = new Map(); // chunk → promise of its bodies; only the last few
const MOST_CHUNKS = 12;

/** The body of an episode; its hits are {id, score, holds, title, text, place}; `holds` is 1 for a gold answer and 2 for the given one, added. */
async function bodyOf(episode) {
  let chunk = head.starts.length - 1;
  while (head.starts[chunk] > episode) chunk--;
  const opened = chunks.get(chunk) ?? unpack(head.chunks[chunk]).then(expanded);
  chunks.delete(chunk);
  chunks.set(chunk, opened);
  if (chunks.size > MOST_CHUNKS) chunks.delete(chunks.keys().next().value);
  return { run: columns.run[episode], ...(await opened)[episode - head.starts[chunk]] };
}

/** A passage's text is stored where a chunk first names it; two passages may share an id. */
function expanded(bodies) {
  const known = new Map();
  for (const body of bodies)
    for (const search of body.searches)
      search.hits = search.hits.map(([id, score, holds, title, text, place]) => {
        if (text !== undefined) known.set(id, { title, text, place });
        return { id, score, holds, ...known.get(id) };
      });
  return bodies;
}

// Control and direction characters, half surrogates, and invisible characters; not the joiners of scripts.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc\ufffe\uffff]|[\u{e0000}-\u{e0fff}]|\p{Surrogate}/gu;
const escapeOf = (sign) => `U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** A text with invisible characters written out, for attributes. */
const plain = (text) => String(text).replace(HIDDEN, (sign) => `⟨${escapeOf(sign)}⟩`);

/** Text nodes of a text; invisible characters are shown in boxes. */
function shown(value) {
  const text = String(value);
  const nodes = document.createDocumentFragment();
  let done = 0;
  for (const found of text.matchAll(HIDDEN)) {
    nodes.append(text.slice(done, found.index));
    const box = document.createElement("span");
    box.className = "code";
    box.textContent = escapeOf(found[0]);
    nodes.append(box);
    done = found.index + found[0].length;
  }
  nodes.append(text.slice(done));
  return nodes;
}

/** A run's name without the folder that all runs share; `.t0` in a training's table is the decoding temperature. */
const shortName = (name) =>
  name.slice(head.prefix.length).replace(/\.t(\d+(?:\.\d+)?)$/, (_, t) => (Number(t) ? `, temperature ${t}` : ", greedy"));

/** Questions that two runs share, by their numbers. */
const sharedBy = (a, b) => [...ofQuestion[a].keys()].filter((question) => ofQuestion[b].has(question)).length;

/** An element; texts among its children become text nodes, empty ones are left out. */
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {}))
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  for (const child of children.flat(2))
    if (child instanceof Node) node.append(child);
    else if (child !== undefined && child !== null && child !== false && child !== "") node.append(shown(child));
  return node;
}

/** Details whose content is made when they are first opened. */
function lazy(summary, make, open = false) {
  const node = el("details", {}, el("summary", {}, summary));
  const fill = () => node.open && node.children.length === 1 && node.append(make());
  node.addEventListener("toggle", fill);
  node.open = open;
  if (open) fill();
  return node;
}

const number = (value) => (typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 4 }) : "–");
const many = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// The state is the part of the address after #, so that a link shows a colleague the same view.
const VIEWS = { list: "Episodes", runs: "Runs", compare: "Compare", curves: "Curves" };
const FILTERS = ["text", "in", "outcome", "stop", "searches", "hops", "part", "flip", "sort"];
const KEPT = ["run", "q", "seed", "n", "b", "colour", ...FILTERS];
let state = {};

function readState() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const colour = state.colour; // kept if a link does not name a colour
  state = { view: given.view in VIEWS || given.view === "episode" ? given.view : startView() };
  for (const name of KEPT) state[name] = given[name] ?? "";
  state.colour ||= colour ?? "";
}

const startView = () => (columns.run.length ? "list" : "curves");

/** The address of the current state with some changes. */
function linkTo(changes) {
  const wanted = { ...state, ...changes };
  const pairs = ["view", ...KEPT].filter((name) => wanted[name]).map((name) => [name, wanted[name]]);
  return `#${new URLSearchParams(pairs)}`;
}

/** How an address names an episode: run, question, seed, and its number where seeds repeat. */
function addressOf(episode) {
  return {
    run: head.runs[columns.run[episode]],
    q: questions[columns.question[episode]][0],
    seed: columns.seed[episode],
    n: order[episode] || "",
  };
}

/** The episode that the address names; undefined if there is none. */
function addressed(runName = state.run) {
  const run = head.runs.indexOf(runName);
  if (run < 0 || !state.q) return undefined;
  const own = [...ofQuestion[run]].filter(([question]) => questions[question][0] === state.q).flatMap(([, all]) => all);
  const nth = own.find((i) => order[i] === Number(state.n));
  const exact = own.filter((i) => columns.seed[i] === state.seed);
  return exact.find((i) => i === nth) ?? exact[0] ?? nth ?? own[0];
}

/** A labelled select; `options` are [value, text]. */
function field(label, name, options, value, change) {
  const select = el("select", { name, "aria-label": label }, options.map(([key, text]) => el("option", { value: key }, plain(text))));
  select.value = value;
  select.addEventListener("change", () => change(select.value));
  return el("label", { class: "field" }, label, select);
}

function showViews() {
  document.body.dataset.view = state.view;
  const there = Object.keys(VIEWS).filter((view) =>
    view === "curves" ? head.stages : columns.run.length && (view !== "compare" || head.runs.length > 1),
  );
  byId("views").replaceChildren(
    ...there.map((view) => {
      const current = view === state.view || (view === "list" && state.view === "episode");
      return el("a", { href: linkTo({ view }), "aria-current": current && "page" }, VIEWS[view]);
    }),
  );
}

let shownNow = 0; // a slow body must not replace a newer one

/** Show the view that the address names. */
async function route() {
  readState();
  const turn = ++shownNow;
  showViews();
  applyFilters();
  const nodes = await detailOf();
  if (turn !== shownNow) return;
  byId("detail").replaceChildren(...nodes);
  byId("detail").scrollTop = 0;
  root.dataset.shown = state.view;
}

async function detailOf() {
  if (state.view === "curves") return curvesView();
  if (state.view === "compare") return compareView();
  const episode = addressed();
  if (state.view === "episode" && episode !== undefined) return episodeView(episode);
  return runsView();
}

const go = (changes) => {
  location.hash = linkTo(changes);
};

function onKey(event) {
  const typing = event.target.matches("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (state.view !== "list") go({ view: "list" });
  } else if (typing) return;
  else if (event.key === "/") {
    if (state.view !== "list" && state.view !== "episode") go({ view: "list" });
    event.preventDefault();
    setTimeout(() => byId("text").focus());
  } else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else if (event.key === "Enter" && event.target === document.body && kept[current] !== undefined)
    go({ view: "episode", ...addressOf(kept[current]) });
  else if (event.key === "c" && head.runs.length > 1 && kept[current] !== undefined)
    go({ view: "compare", ...addressOf(kept[current]) });
}
