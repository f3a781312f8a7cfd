// One episode as turns, two episodes side by side, and the table of runs.

const facts = (pairs) =>
  el("dl", { class: "facts" }, pairs.filter(([, value]) => value !== "" && value !== undefined && value !== null).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

async function episodeView(episode) {
  const place = kept.indexOf(episode);
  const others = head.runs.map((name, run) => [name, partner(episode, run)]).filter(([, other]) => other !== undefined && other !== episode);
  const links = [
    el("a", { href: linkTo({ view: "list" }) }, "← list"),
    ...neighbours(kept, place),
    others.length && el("a", { href: linkTo({ view: "compare", b: others[0][0] }) }, `compare with ${shortName(others[0][0])}${others.length > 1 ? " or another run" : ""}`),
  ];
  return [el("nav", { "aria-label": "Episode" }, links.filter(Boolean)), await article(episode)];
}

/** Links to the previous and next episode in a list. */
function neighbours(episodes, place) {
  const link = (at, text) => el("a", { href: linkTo(addressOf(episodes[at])) }, text);
  return [place > 0 && link(place - 1, "previous"), place >= 0 && place + 1 < episodes.length && link(place + 1, "next")];
}

/** An episode from question to answer; in a comparison the question is shown once above both. */
async function article(episode, compared = false) {
  const body = await bodyOf(episode);
  const [id, text, answers, gold, hops, dataset] = questions[columns.question[episode]];
  const wall = body.timings.wall_s;
  return el(
    "article",
    {},
    compared ? el("h3", {}, shortName(head.runs[columns.run[episode]])) : el("h2", { dir: "auto" }, text.trim()),
    el("p", { class: "outcome" }, verdictOf(episode), " · answer: ", el("b", {}, el("bdi", {}, columns.answer[episode] ?? "none")), ...(compared ? [] : [" · gold: ", el("bdi", {}, answers.join(" | ") || "not known")])),
    facts([
      ["run", compared ? "" : head.runs[columns.run[episode]]],
      ["question", id],
      ["seed", columns.seed[episode]],
      ["data set", dataset],
      ["hops", hops],
      ["protocol", body.protocol],
      ["ended by", columns.stop[episode].replace("_", " ") + (body.stop_detail ? `: ${body.stop_detail}` : "")],
      ["format", body.valid ? "valid" : body.format_error || "not valid"],
      ["reward", columns.reward[episode] === null ? "" : number(columns.reward[episode])],
      ...trainingFacts(body.training),
      ...Object.entries(columns.parts[episode] ?? {}).map(([name, value]) => [`reward part ${name}`, number(value)]),
      ["seconds", wall === undefined ? "" : number(wall)],
    ]),
    tokenBar(body.segments),
    colourChoice(body) ?? "",
    el("h3", {}, "Turns"),
    ...turnsOf(body, new Set(gold)),
    ...gradesOf(body.grades ?? []),
    ...sideOf(body.side ?? []),
    ...branchesOf(body, columns.answer[episode], verdictOf(episode)),
    lazy("Scores", () => facts(Object.entries(body.scores).map(([name, value]) => [name, number(value)]))),
  );
}

/** A rollout's part in its training step. */
const trainingFacts = (training) =>
  training
    ? [
        ["group", training.group],
        ["in the loss", training.trained ? "yes" : "no"],
        ["updates before the trainer's pass", training.updates],
      ]
    : [];

/** The whole context as a bar: what the agent wrote and what it read, each as long as its tokens. */
function tokenBar(segments) {
  const wrote = segments.reduce((sum, part) => sum + (part.ids ? part.tokens : 0), 0);
  const all = segments.reduce((sum, part) => sum + part.tokens, 0);
  if (!all) return el("p", { class: "soft" }, "The log that this run is from holds no token ids.");
  const label = `${wrote.toLocaleString("en")} of ${many(all, "token")} by the agent`;
  const bar = el("div", { class: "bar", role: "img", "aria-label": label });
  for (const part of segments) {
    const piece = el("i", { class: part.ids && "agent", title: plain(`${part.ids ? "agent" : "environment"} · ${part.tag} · ${part.tokens}`) });
    piece.style.flexGrow = part.tokens;
    bar.append(piece);
  }
  return el("div", {}, bar, el("p", { class: "soft" }, label));
}

/** Segments in order; after each turn of the agent, its searches. */
function turnsOf(body, gold) {
  const nodes = [];
  const left = new Set(body.searches.keys());
  let turn = 0;
  const searched = (wanted) => {
    const own = body.searches.map((search, at) => ({ search, at })).filter(({ search }) => search.turn === wanted);
    for (const { search, at } of own) {
      left.delete(at);
      nodes.push(searchNode(search, at, body, gold));
    }
    for (const call of body.calls ?? []) if (call.turn === wanted) nodes.push(callNode(call));
    return own.length > 0;
  };
  let shownFor = false;
  for (const part of body.segments) {
    if (part.ids) {
      if (turn === 0) searched(0);
      turn += 1;
      nodes.push(agentNode(part, turn, body));
      shownFor = searched(turn);
    } else {
      const label = `environment · ${part.tag} · ${many(part.tokens, "token")}${body.training ? ", not trained" : ""}`;
      const make = () => el("p", { class: "said", dir: "auto" }, part.text);
      const strip = part.read?.length ? lazy("its tokens", () => tokenStrip(part, body)) : "";
      nodes.push(el("div", { class: "segment" }, lazy(label, make, part.tag === "prompt" ? part.text.length < 1500 : !shownFor), strip));
    }
  }
  if (turn === 0) searched(0); // an opening search that failed ends the episode before the agent writes
  if (left.size) nodes.push(el("h3", {}, "Searches of a turn that is not recorded"), ...[...left].map((at) => searchNode(body.searches[at], at, body, gold)));
  return nodes;
}

function agentNode(part, turn, body) {
  const mean = part.tokens ? part.logprobs.reduce((total, value) => total + value, 0) / 1000 / part.tokens : 0;
  const trained = body.training && (isTrained(part, body) ? "trained" : "not trained");
  const known = body.exact ? `mean log-probability ${mean.toFixed(3)}` : "log-probabilities not known";
  const label = [many(part.tokens, "token"), trained, known].filter(Boolean).join(", ");
  return el(
    "div",
    { class: "segment agent" },
    el("h4", {}, `Turn ${turn} · agent · ${part.tag || "no action"}`),
    el("p", { class: "said", dir: "auto" }, part.text),
    lazy(label, () => tokenStrip(part, body)),
  );
}

function searchNode(search, at, body, gold) {
  const label = (body.labels ?? []).filter((one) => one.search === at);
  return el(
    "div",
    { class: "found" },
    el("p", { class: "query", dir: "auto" }, el("span", { class: "soft" }, search.turn === 0 ? "first search: " : "query: "), el("b", {}, search.query)),
    search.looked_up && lazy("what the index looked up", () => el("p", { class: "said", dir: "auto" }, search.looked_up)),
    search.fault ? el("p", { class: "fault" }, `the search failed: ${search.fault}`) : hitList(search, at, body, gold),
    label.map(labelNode),
  );
}

/** A rank in another index: 0 if below the depth that was requested, null for a passage that cannot be compared. */
function rankText(rank) {
  if (rank === null) return "cannot tell: the log has no text";
  return rank ? `rank ${rank}` : "lower or not there";
}

/** Ranked passages: score, rank in other indexes, gold, selected, holding an answer; a passage's text opens. */
function hitList(search, at, body, gold) {
  if (!search.hits.length) return el("p", { class: "soft" }, "nothing was found");
  const picked = new Set(search.selected ?? body.selected ?? []);
  const others = Object.entries(body.ranks ?? {});
  const items = search.hits.map((hit, place) => {
    const answer = { 1: "holds a gold answer", 2: "holds the given answer", 3: "holds the answer" }[hit.holds];
    const marks = [gold.has(hit.id) && "gold", answer, picked.has(hit.id) && "selected"];
    const ranks = others.map(([name, found]) => ` · ${name}: ${rankText(found[at][place])}`);
    const line = el(
      "span",
      {},
      el("bdi", {}, (hit.title ?? "").trim() || hit.id),
      " ",
      el("span", { class: "soft" }, hit.title ? `${hit.id} · ${number(hit.score)}` : number(hit.score), ...ranks),
      marks.filter(Boolean).map((mark) => [" ", el("span", { class: "mark" }, mark)]),
    );
    const where = hit.place && el("p", { class: "soft", dir: "auto" }, hit.place);
    const inside = () => el("div", {}, where, el("p", { dir: "auto" }, hit.text ?? ""));
    return el("li", { class: gold.has(hit.id) ? "gold" : undefined }, lazy(line, inside));
  });
  return el("ol", { class: "hits" }, items);
}

/** The label of a search: its candidates with all scores. */
function labelNode(label) {
  if (label.dropped) return el("p", { class: "soft" }, `no label: ${label.dropped}${label.detail ? `, ${label.detail}` : ""}`);
  const names = [...new Set(label.candidates.flatMap((one) => Object.keys(one.scores)))];
  const rows = label.candidates.map((one) => [one.title.trim() || one.id, one.side, one.rank || "added", ...names.map((name) => number(one.scores[name]))]);
  const best = label.candidates.find((one) => one.side === "positive");
  const summary = el("span", { class: "soft" }, `label: positive ${best?.title.trim() || best?.id} of ${many(label.candidates.length, "candidate")}`);
  return lazy(summary, () => tableOf("", ["passage", "chosen as", "rank", ...names], rows));
}

function callNode(call) {
  const outcome = call.fault ? `failed: ${call.fault}` : JSON.stringify(call.result, null, 1);
  return el("div", { class: "found" }, el("p", { class: "query" }, el("span", { class: "soft" }, "tool: "), el("b", {}, call.tool), ` ${JSON.stringify(call.arguments)}`), el("p", { class: "said" }, outcome));
}

/** What generators answered from the passages, and what judges said. */
function gradesOf(grades) {
  if (!grades.length) return [];
  const items = grades.map((grade) => {
    const judged = "right" in grade;
    const outcome = grade.fault ? `failed: ${grade.fault}` : judged ? (grade.right ? "accepted" : "not accepted") : grade.answer ?? "no answer";
    return el("li", {}, judged ? ["judge of ", el("bdi", {}, grade.response), ": "] : "generator: ", el("bdi", {}, outcome), grade.text ? lazy("whole output", () => el("p", { class: "said", dir: "auto" }, grade.text)) : "");
  });
  return [el("h3", {}, "Graders"), el("ul", {}, items)];
}

/** What the agent's model read and wrote outside of this context. */
function sideOf(contexts) {
  if (!contexts.length) return [];
  const said = (part) => el("div", { class: part.ids ? "segment agent" : "segment" }, el("h4", {}, part.ids ? "agent" : "environment"), el("p", { class: "said", dir: "auto" }, part.text));
  return [el("h3", {}, "Side contexts"), ...contexts.map((parts, at) => lazy(`context ${at + 1}, not trained`, () => el("div", {}, parts.map(said))))];
}

/** The run as the trunk of a tree, with the continuations from single passages that labels tried at its searches. */
function branchesOf(body, answer, verdict) {
  const at = new Map((body.labels ?? []).filter((one) => one.branches).map((one) => [one.search, one.branches]));
  if (!at.size) return [];
  const said = (right) => (right === undefined ? el("span", { class: "fault" }, "fault") : el("span", { class: right ? "right" : "wrong" }, right ? "right" : "wrong"));
  const leaf = (search, one) => {
    const hit = search.hits.find((each) => each.id === one.id);
    return el("li", {}, said(one.right), " from ", el("bdi", {}, hit?.title?.trim() || one.id), " alone → ", el("bdi", {}, one.ended));
  };
  let rest = el("li", {}, verdict, " this run → ", el("bdi", {}, answer ?? "no answer"));
  for (const [place, search] of [...body.searches.entries()].reverse()) {
    const branches = (at.get(place) ?? []).map((one) => leaf(search, one));
    rest = el("li", {}, `search ${place + 1}: `, el("b", {}, el("bdi", {}, search.query)), el("ul", {}, branches, rest));
  }
  const note = "Each branch is the agent's answer when its search had found this one passage alone.";
  return [el("h3", {}, "Branches"), el("p", { class: "soft" }, note), el("ul", { class: "tree" }, rest)];
}

function tableOf(caption, names, rows) {
  const line = (tag, cells) => el("tr", {}, cells.map((cell) => el(tag, tag === "th" ? { scope: "col" } : {}, cell instanceof Node ? cell : String(cell))));
  return el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": caption || "table" }, el("table", {}, caption ? el("caption", {}, caption) : [], el("thead", {}, line("th", names)), el("tbody", {}, rows.map((row) => line("td", row)))));
}

/** The two runs of a comparison: the address's, else two that share questions, before a training and after it if any. */
function comparedRuns() {
  const all = head.runs.map((name, run) => ({ name, run }));
  const place = ({ name }) => (/(^|\/)before\./.test(name) ? 0 : /(^|\/)after\./.test(name) ? 1 : 2);
  const byUse = [...all].sort((a, b) => place(a) - place(b));
  const given = all.find(({ name }) => name === state.run);
  const partnerOf = (one) => {
    const others = byUse.filter((other) => other !== one).map((other) => ({ other, count: sharedBy(one.run, other.run) }));
    return others.reduce((best, each) => (each.count > (best?.count ?? -1) ? each : best), undefined);
  };
  const first = given ?? byUse.find((one) => partnerOf(one)?.count) ?? all[0];
  const named = all.find(({ name }) => name === state.b && name !== first.name);
  return [first.name, (named ?? partnerOf(first)?.other)?.name];
}

async function compareView() {
  const [first, second] = comparedRuns();
  const runs = head.runs.map((name) => [name, shortName(name)]);
  if (second === undefined) return [el("p", {}, "Name a second run on the command line to compare with.")];
  const inFirst = kept.find((i) => partner(i, head.runs.indexOf(first)) !== undefined);
  const both = [...ofQuestion[head.runs.indexOf(first)].values()].map(([i]) => i).filter((i) => partner(i, head.runs.indexOf(second)) !== undefined);
  const changed = both.find((i) => columns.right[i] !== columns.right[partner(i, head.runs.indexOf(second))]);
  const start = addressed(first) ?? changed ?? both[0] ?? (inFirst === undefined ? [...ofQuestion[head.runs.indexOf(first)].values()][0]?.[0] : partner(inFirst, head.runs.indexOf(first)));
  if (start === undefined) return [el("p", {}, `${first} has no episodes yet.`)];
  const other = partner(start, head.runs.indexOf(second));
  const own = kept.filter((i) => columns.run[i] === head.runs.indexOf(first)); // the filters apply here, too
  const flips = { view: "list", in: first, flip: second };
  const columnsOf = async (name, episode) => el("section", { "aria-label": plain(name) }, episode === undefined ? el("p", {}, `${shortName(name)} has not run this question.`) : await article(episode, true));
  const [, text, answers] = questions[columns.question[start]];
  const outcome = other === undefined ? [] : [`${shortName(second)}: `, verdictOf(other), " · answer: ", el("b", {}, el("bdi", {}, columns.answer[other] ?? "none"))];
  return [
    el(
      "div",
      { class: "bench" },
      field("Run A", "a", runs, first, (run) => go({ run, b: second === run ? first : second })),
      field("Run B", "b", runs, second, (b) => go({ run: first === b ? second : first, b })),
      ...neighbours(own, own.indexOf(start)),
      el("a", { href: linkTo({ ...flips, outcome: "wrong" }) }, "wrong in A, right in B"),
      el("a", { href: linkTo({ ...flips, outcome: "right" }) }, "right in A, wrong in B"),
    ),
    el("h2", { dir: "auto" }, text.trim()),
    el("p", {}, "gold: ", el("bdi", {}, answers.join(" | ") || "not known")),
    el("p", { class: "stacked" }, outcome), // on narrow screens the other run is far below
    el("div", { class: "pair" }, await columnsOf(first, start), await columnsOf(second, other)),
  ];
}

/** All runs in one table, and the keys. */
function runsView() {
  if (!columns.run.length) return [el("p", {}, "No episodes: these folders hold training curves only.")];
  const mean = (values, digits) =>
    values.length ? (values.reduce((sum, value) => sum + value, 0) / values.length).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : "–";
  const rewarded = columns.reward.some((value) => value !== null);
  const rows = head.runs.map((name, run) => {
    const own = [...ofQuestion[run].values()].flat();
    const known = (column) => own.map((i) => column[i]).filter((value) => value !== null);
    return [
      el("a", { href: linkTo({ view: "list", in: name }) }, shortName(name)),
      own.length.toLocaleString("en"),
      mean(known(columns.right), 3),
      ...(rewarded ? [mean(known(columns.reward), 3)] : []),
      mean(known(columns.searches), 2),
      mean(known(columns.tokens), 0),
      own.filter((i) => columns.fault[i]).length,
    ];
  });
  const keys = [["j", "next"], ["k", "previous"], ["Enter", "open"], ["Esc", "back to the list"], ["/", "search"], ["c", "compare runs"]];
  return [
    el("h2", {}, "Runs"),
    tableOf("Means over episodes; EM over those that were scored.", ["run", "episodes", "EM", ...(rewarded ? ["reward"] : []), "searches", "tokens", "faults"], rows),
    el("p", { class: "soft" }, "Keys: ", keys.flatMap(([key, what], at) => [at ? ", " : "", el("kbd", {}, key), ` ${what}`]), "."),
  ];
}
