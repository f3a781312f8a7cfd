// The list: filters, the visible rows, and the start of the page (this is the last file).

const ROW = 56; // pixels, as in the style
const SPARE = 6; // rows drawn above and below the visible ones
const MOST_MATCHES = 3; // runs whose EM is shown above the list
let kept = []; // episodes that pass the filters, in the order shown
let current = 0; // place in `kept`
let applied = null; // the filters that made `kept`

const OUTCOMES = [["", "any"], ["right", "right"], ["wrong", "wrong"], ["none", "not scored"]];
const SORTS = { "": "as stored", searches: "most searches", tokens: "most tokens", low: "lowest reward", high: "highest reward" };

function makeFilters() {
  const distinct = (values) => [...new Set(values)].sort((a, b) => a - b || String(a).localeCompare(String(b)));
  const any = ["", "any"];
  const named = (values) => [any, ...values.map((value) => [String(value), String(value)])];
  const runs = [any, ...head.runs.map((name) => [name, shortName(name)])];
  const hops = distinct(questions.map((q) => q[4]).filter((value) => value !== null));
  const parts = distinct(columns.parts.flatMap((known) => Object.keys(known ?? {})));
  const lists = [
    ["outcome", "Outcome", OUTCOMES],
    ["stop", "Ended by", [any, ["fault", "any fault"], ...distinct(columns.stop).map((stop) => [stop, stop.replace("_", " ")])]],
    ["searches", "Searches", named(distinct(columns.searches))],
    ["hops", "Hops", named(hops)],
    ["part", "Reward part", [any, ...parts.flatMap((name) => [[`+${name}`, `${name} above 0`], [`-${name}`, `${name} 0 or less`]])]],
    ["in", "Run", runs],
    ["flip", "Flipped against", [["", "–"], ...runs.slice(1)]],
    ["sort", "Order", Object.entries(SORTS).filter(([key]) => !["low", "high"].includes(key) || columns.reward.some((r) => r !== null))],
  ];
  const useful = { hops: hops.length > 1, part: parts.length > 0, in: head.runs.length > 1, flip: head.runs.length > 1 };
  byId("filters").replaceChildren(
    ...lists.filter(([name]) => useful[name] ?? true).map(([name, label, options]) => field(label, name, options, "", (value) => refine(name, value))),
  );
  byId("text").addEventListener("input", () => refine("text", byId("text").value));
  byId("search").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => {
    const open = byId("more").getAttribute("aria-expanded") !== "true";
    byId("more").setAttribute("aria-expanded", open);
  });
  byId("rows").addEventListener("scroll", () => requestAnimationFrame(drawRows));
  let height = 0;
  new ResizeObserver(() => {
    const appeared = !height; // a hidden list loses its scroll position
    height = byId("rows").clientHeight;
    if (appeared) showRow(current);
    else drawRows();
  }).observe(byId("rows"));
}

/** Change one filter. The address follows without a new entry in the history. */
function refine(name, value) {
  state[name] = value;
  history.replaceState(null, "", linkTo({}));
  applyFilters();
}

/** Compute `kept` and draw the rows; `data-filter-ms` is the time it took, layout included. */
function applyFilters() {
  const wanted = JSON.stringify(FILTERS.map((name) => state[name]));
  if (wanted !== applied) {
    const began = performance.now();
    kept = filtered();
    applied = wanted;
    current = 0;
    byId("rows").scrollTop = 0;
    byId("spacer").style.height = `${kept.length * ROW}px`;
    byId("count").textContent = `${many(kept.length, "episode")} of ${columns.run.length.toLocaleString("en")}${matchesOf(kept)}`;
    for (const name of FILTERS) {
      const input = document.querySelector(`#search [name="${name}"]`) ?? (name === "text" ? byId("text") : null);
      if (input && input.value !== state[name]) input.value = state[name];
    }
    const active = FILTERS.filter((name) => name !== "text" && state[name]).length;
    byId("more").textContent = active ? `Filters: ${active}` : "Filters";
    drawRows();
    byId("rows").offsetHeight; // lay out now, to be measured
    root.dataset.filterMs = (performance.now() - began).toFixed(1);
  }
  const episode = state.q ? addressed() : undefined;
  const place = episode === undefined ? -1 : kept.indexOf(episode);
  if (place >= 0) showRow(place);
}

/** EM per run: a mean over runs before and after training would be meaningless. */
function matchesOf(episodes) {
  const runs = new Map();
  for (const i of episodes) {
    if (columns.right[i] === null) continue;
    const [right, all] = runs.get(columns.run[i]) ?? [0, 0];
    runs.set(columns.run[i], [right + columns.right[i], all + 1]);
  }
  if (runs.size > MOST_MATCHES) return " · EM of each run: see Runs";
  const said = [...runs].map(([run, [right, all]]) => `EM ${(right / all).toFixed(3)}${runs.size > 1 ? ` ${shortName(head.runs[run])}` : ""}`);
  return said.map((text) => ` · ${text}`).join("");
}

function filtered() {
  const text = state.text.trim().toLowerCase();
  const run = state.in ? head.runs.indexOf(state.in) : -1;
  const flip = state.flip ? head.runs.indexOf(state.flip) : -1;
  const { right, stop, fault, searches } = columns;
  const outcome = { right: 1, wrong: 0, none: null }[state.outcome];
  const found = [];
  for (let i = 0; i < stop.length; i++) {
    if (run >= 0 && columns.run[i] !== run) continue;
    if (outcome !== undefined && right[i] !== outcome) continue;
    if (state.stop && !(state.stop === "fault" ? fault[i] : stop[i] === state.stop)) continue;
    if (state.searches && String(searches[i]) !== state.searches) continue;
    if (state.hops && String(questions[columns.question[i]][4]) !== state.hops) continue;
    if (state.part && !hasPart(columns.parts[i], state.part)) continue;
    if (flip >= 0 && !isFlipped(i, flip)) continue;
    if (text && !haystacks[i].includes(text)) continue;
    found.push(i);
  }
  const key = { searches, tokens: columns.tokens, low: columns.reward, high: columns.reward }[state.sort];
  const sign = state.sort === "low" ? 1 : -1;
  const last = Number.POSITIVE_INFINITY; // episodes without a reward
  const rank = (i) => (key[i] === null ? last : sign * key[i]);
  return key ? found.sort((a, b) => (rank(a) === rank(b) ? a - b : rank(a) - rank(b))) : found;
}

/** Whether an episode's reward has a part above 0 (`+name`), or at 0 or below (`-name`). */
function hasPart(parts, wanted) {
  const value = parts?.[wanted.slice(1)];
  return value !== undefined && value > 0 === (wanted[0] === "+");
}

/** Whether an episode is right and its counterpart in another run wrong, or the reverse; false if either is not scored. */
function isFlipped(episode, run) {
  const other = columns.run[episode] === run ? undefined : partner(episode, run);
  const [mine, theirs] = [columns.right[episode], columns.right[other]];
  return other !== undefined && mine !== null && theirs !== null && mine !== theirs;
}

/** Draw the visible rows. Focus stays on the current row if it was in the list. */
function drawRows() {
  const box = byId("rows");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
  const last = Math.min(kept.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + SPARE);
  const focused = byId("spacer").contains(document.activeElement);
  const rows = [];
  for (let place = first; place < last; place++) rows.push(rowOf(place));
  byId("spacer").replaceChildren(...rows);
  if (focused) byId("spacer").querySelector(".current a")?.focus({ preventScroll: true });
}

function rowOf(place) {
  const i = kept[place];
  const question = questions[columns.question[i]];
  const under = [
    `→ ${columns.answer[i] ?? "no answer"}`,
    many(columns.searches[i], "search").replace("searchs", "searches"),
    question[4] === null ? "" : many(question[4], "hop"),
    [null, columns.right[i]].includes(columns.reward[i]) ? "" : `reward ${number(columns.reward[i])}`,
    head.runs.length > 1 ? shortName(head.runs[columns.run[i]]) : "",
  ];
  const link = el(
    "a",
    { href: linkTo({ view: "episode", ...addressOf(i) }), "aria-current": place === current && state.view === "episode" && "true" },
    el("span", { class: "line" }, verdictOf(i), " ", question[1].trim()),
    el("span", { class: "line under" }, under.filter(Boolean).join(" · ")),
  );
  const row = el("li", { "aria-posinset": place + 1, "aria-setsize": kept.length, class: place === current && "current" }, link);
  row.style.top = `${place * ROW}px`;
  return row;
}

/** Right, wrong, fault or not scored, as a word: some readers cannot see the colour. */
function verdictOf(i) {
  if (columns.fault[i]) return el("span", { class: "fault" }, "fault");
  if (columns.right[i] === null) return el("span", { class: "soft" }, "not scored");
  return columns.right[i] ? el("span", { class: "right" }, "right") : el("span", { class: "wrong" }, "wrong");
}

/** Make a row current and scroll it into view. */
function showRow(place) {
  current = place;
  const box = byId("rows");
  const top = place * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
  drawRows();
}

/** Move by some episodes: in the list to a row, elsewhere to a page. */
function step(by) {
  if (!kept.length || state.view === "curves" || state.view === "runs") return;
  if (state.view === "list") {
    const fresh = !byId("spacer").contains(document.activeElement) && current === 0 && by > 0;
    showRow(Math.min(kept.length - 1, Math.max(0, current + (fresh ? 0 : by))));
    byId("spacer").querySelector(".current a")?.focus({ preventScroll: true });
    return;
  }
  const place = Math.min(kept.length - 1, Math.max(0, current + by));
  showRow(place);
  location.replace(linkTo(addressOf(kept[place])));
}

async function start() {
  await openIndex();
  makeFilters();
  addEventListener("hashchange", route);
  addEventListener("keydown", onKey);
  await route();
  byId("rows").offsetHeight;
  root.dataset.openMs = performance.now().toFixed(1);
}

start().catch((error) => {
  byId("detail").replaceChildren(el("p", { class: "wrong" }, `The page could not be opened: ${error}`));
  document.body.dataset.view = "runs";
});
