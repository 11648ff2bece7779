// One run in detail: what came of it, what a reader must know about it, and what it was made with.

const FIGURES = ["mean", "p10", "p50", "p90", "worst", "jain"];
const FIGURE_NAMES = ["mean", "10th percentile", "median", "90th percentile", "worst client", "Jain's index"];

function notice(text) {
  return make("p", { className: "notice", role: "note" }, text);
}

// Sentences that hold for runs of the page, each once, and for how many.
function marksOf(entries) {
  const counts = new Map();
  for (const { marks } of entries) for (const text of marks) counts.set(text, (counts.get(text) ?? 0) + 1);
  return [...counts].map(([text, count]) =>
    notice(count === entries.length ? text : `${text} (${count} of ${entries.length} runs)`),
  );
}

// A table with a heading, or nothing where it has no rows; the first column is text.
function smallTable(title, header, rows) {
  if (!rows.length) return [];
  const columns = header.map((name, place) => [name, (row) => row[place], place ? "" : "text"]);
  const table = make("table", {}, ...tableParts(columns, rows));
  return [make("div", { className: "small" }, make("h3", {}, title), make("div", { className: "wide" }, table))];
}

// Names and values of the cards, the leading metric first.
function factsOf(run, runs) {
  const [columns, clients, summary] = [runs.columns(run), runs.clients(run), run.summary ?? {}];
  const last = (name) => (columns[name] ?? []).findLast(isNumber);
  const sum = (name) => clients[name]?.at(-1)?.reduce((total, value) => total + (value ?? 0), 0);
  const best = summary.best_view && summary.best_view !== "merged" ? summary.views?.[summary.best_view] : null;
  const when = run.summary ? "final" : "so far:";
  return [
    [`${when} ${run.metric.name}`, written(run.metric, last(run.metric.key))],
    ["handed out", best ? `${summary.best_view}, ${written(run.metric, best.accuracy)}` : ""],
    ...run.others.map((other) => [`${when} ${other.name}`, written(other, last(other.key))]),
    ["method", run.method],
    ["task", summary.task_title ?? summary.task ?? ""],
    ["fleet", summary.fleet ?? ""],
    ["clients", String(run.clients || "")],
    ["seed", String(run.seed ?? "")],
    [`${run.clock} time`, isNumber(last("seconds")) ? `${short(last("seconds"), 1)} s` : ""],
    ["ticks", short(last("tick"), 1)],
    ["clients received", bytes(sum("bytes_down"))],
    ["clients sent", bytes(sum("bytes_up"))],
    ["server sent", bytes(last("bytes_server"))],
    ["computed in", duration(summary.wall_seconds ?? last("wall"))],
    ["device", summary.device ?? ""],
  ].filter(([, value]) => value && value !== "–");
}

function viewRows(run) {
  const views = Object.entries(run.summary?.views ?? {});
  return (views.length > 1 ? views : []).map(([name, view]) => [
    name === run.summary.best_view ? `${name} (the best)` : name,
    written(run.metric, view.accuracy),
    short(view.loss),
    written(run.metric, view.validation),
  ]);
}

// The figures over clients: of the last evaluation of each, and before and after their fine-tuning.
function figureRows(run, runs) {
  const row = (name, figure, worst) => [
    name,
    ...FIGURES.map((each) =>
      each === "jain"
        ? short(figure(each))
        : written(run.metric, figure(each)) + (each === "worst" && isNumber(worst) ? ` (${worst})` : ""),
    ),
  ];
  const now = (each) => (runs.columns(run)[`clients ${each}`] ?? []).findLast(isNumber);
  const tuned = run.summary?.personal ?? {};
  return [
    ...(isNumber(now("mean")) ? [row("last evaluation", now)] : []),
    ...["before", "after"]
      .filter((name) => tuned[name])
      .map((name) =>
        row(`${name} ${tuned.steps} steps of its own`, (each) => tuned[name][each], tuned[name].worst_client),
      ),
  ];
}

function eventText(event) {
  if (event.event !== "recovered") return `gave client ${event.client} no task before tick ${event.until}`;
  const since = (event.clients ?? []).join(", ");
  return `went back to the model of tick ${event.to} (${event.reason}); since then: ${since}`;
}

function drawFacts(element, run, runs) {
  const cards = factsOf(run, runs).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value)),
  );
  element.replaceChildren(
    ...[...(run.problem ? [run.problem] : []), ...run.notices].map(notice),
    make("dl", { className: "facts" }, ...cards),
  );
}

function drawRun(element, run, runs) {
  const refused = Object.entries(run.summary?.refused ?? {}).map(([reason, count]) => [reason, short(count, 1)]);
  const events = (run.summary?.events ?? []).map((event) => [textOf(event.tick), eventText(event)]);
  const { name } = run.metric;
  element.replaceChildren(
    make(
      "div",
      { className: "tables" },
      ...smallTable("Models of this run", ["model", `final ${name}`, "loss", "validation"], viewRows(run)),
      ...smallTable(`${name} of each client's own model`, ["", ...FIGURE_NAMES], figureRows(run, runs)),
      ...smallTable("Refused and lost tasks", ["reason", "tasks"], refused),
      ...smallTable("Distrusted clients", ["tick", "the server"], events),
    ),
    provenanceOf(run, runs.source),
  );
}

// The recipe and what the run was computed with; asked for when the reader opens it.
function provenanceOf(run, source) {
  const content = make("div");
  const details = make("details", {}, make("summary", {}, "Recipe and provenance"), content);
  details.addEventListener("toggle", async () => {
    if (!details.open || content.childElementCount) return;
    const { recipe, facts } = await source.provenance(run.id);
    const lines = Object.entries(facts).map(([key, value]) => `${key} ${textOf(value)}`);
    content.replaceChildren(...[lines.join("\n"), recipe].filter(Boolean).map((text) => make("pre", {}, text)));
  });
  return details;
}
