// The table of runs: status, time left, metric, settings that differ; sorted, filtered, and where runs are hidden.

const STATUS_ORDER = ["running", "unknown", "interrupted", "diverged", "empty", "stopped", "finished"];

// The columns: heading, the value that sorts, the cell's content.
function runColumns(runs) {
  const telling = new Set(tellingSettings(runs.entries)); // a method's own settings need no columns beside its name
  const keys = [...new Set(runs.entries.flatMap((run) => Object.keys(run.settings)))].filter(
    (key) => !ASIDE.has(key) && (telling.has(key) || !key.startsWith("method.")),
  );
  const last = (run) => (runs.columns(run)[run.metric.key] ?? []).findLast(isNumber);
  const best = (run) =>
    runs.remember([run], "best", () => bestOf(runs.columns(run)[run.metric.key] ?? [], run.metric.higher_is_better));
  const now = (run) => runs.columns(run).seconds?.at(-1);
  const label = runs.metric ? labelOf(runs.metric) : "metric";
  const measured = ({ metric }, value) =>
    !isNumber(value) || labelOf(metric) === label
      ? written({ ...metric, unit: "" }, value)
      : `${metric.name} ${written(metric, value)}`; // of another task
  return [
    { name: "run", text: true, value: (run) => run.name },
    { name: "method", text: true, value: (run) => run.method },
    { name: "seed", value: (run) => run.seed },
    {
      name: "status",
      text: true,
      value: (run) => STATUS_ORDER.indexOf(run.status),
      cell: (run) => make("span", { className: run.status, title: run.problem ?? "" }, run.status),
    },
    {
      name: "time (s)",
      value: now,
      cell: (run) => [
        `${short(now(run) ?? 0, 1)} / ${short(run.seconds, 1)}`,
        share(run.seconds ? (now(run) ?? 0) / run.seconds : 0),
      ],
    },
    { name: "time left", value: (run) => run.eta ?? Infinity, cell: (run) => duration(run.eta) },
    { name: "rows", value: (run) => runs.rows(run) },
    { name: label, value: last, cell: (run) => measured(run, last(run)) },
    { name: "best", value: best, cell: (run) => measured(run, best(run)) },
    ...keys.map((key) => ({
      name: key,
      text: true,
      value: (run) => run.settings[key],
      cell: (run) => textOf(run.settings[key] ?? undefined),
    })),
  ];
}

function bestOf(values, higherIsBetter) {
  const better = (one, other) => (higherIsBetter ? other > one : other < one) || one === undefined;
  return values.filter(isNumber).reduce((best, value) => (better(best, value) ? value : best), undefined);
}

function share(part) {
  return make(
    "span",
    { className: "share", "aria-hidden": "true" },
    make("i", { style: { width: `${Math.round(100 * Math.min(1, Math.max(0, part || 0)))}%` } }),
  );
}

// Runs in the order of the view; a sort is a column's name, with - before it downwards.
function sortedRuns(entries, columns, sort) {
  const column = columns.find(({ name }) => name === sort.replace(/^-/, ""));
  if (!column) return entries;
  const sign = sort.startsWith("-") ? -1 : 1;
  const compare = (one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined); // runs without a value last
    if (typeof a === "number" && typeof b === "number") return sign * (a - b || 0);
    return sign * textOf(a).localeCompare(textOf(b), undefined, { numeric: true });
  };
  return [...entries].sort(compare);
}

// Whether a run has every word of the filter: in name, method or status, or key=value among its settings.
function passes(run, filter) {
  const settings = Object.entries({ ...run.settings, method: run.method, seed: run.seed, status: run.status });
  const words = [run.name, run.method, run.status, ...settings.map(([key, value]) => `${key}=${textOf(value)}`)];
  const text = words.join(" ").toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

class RunTable {
  // `on` has `toggle(run)`, `choose(run)` and `sort(name)`.
  constructor(element, on) {
    Object.assign(this, { element, on, signature: "" });
  }

  // Draws anew only what has changed, so that focus and selection stay while a run goes on.
  draw(runs, view, groups) {
    const columns = runColumns(runs);
    const place = new Map(groups.flatMap((group) => group.runs.map((run) => [run.id, group.place])));
    const shown = sortedRuns(
      runs.entries.filter((run) => passes(run, view.filter)),
      columns,
      view.sort,
    );
    const heading = JSON.stringify([columns.map(({ name }) => name), view.sort]);
    if (heading !== this.signature) this.drawHead(columns, view.sort);
    this.signature = heading;
    const old = new Map([...this.element.tBodies[0].rows].map((row) => [row.dataset.key, row]));
    const rows = shown.map((run) => {
      const key = JSON.stringify([
        runs.texts.get(run.id),
        runs.rows(run),
        place.get(run.id),
        view.hidden.includes(run.name),
        view.run === run.name,
      ]);
      if (old.has(key)) return old.get(key);
      const row = this.row(run, columns, place.get(run.id), view);
      row.dataset.key = key;
      return row;
    });
    const focused = document.activeElement?.dataset?.name;
    const same =
      rows.length === this.element.tBodies[0].rows.length &&
      rows.every((row, at) => row === this.element.tBodies[0].rows[at]);
    if (!same) this.element.tBodies[0].replaceChildren(...rows);
    if (!same && focused)
      [...this.element.querySelectorAll("[data-name]")].find((each) => each.dataset.name === focused)?.focus();
  }

  // Lets the next drawing make all rows anew, for another scheme of colours.
  forget() {
    this.element.tBodies[0]?.replaceChildren();
  }

  drawHead(columns, sort) {
    const cells = columns.map(({ name, text }) => {
      const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
      const sorter = button(name, `sort by ${name}`, () =>
        this.on.sort(sort === name ? `-${name}` : sort === `-${name}` ? "" : name),
      );
      sorter.dataset.name = `sort ${name}`;
      return make("th", { scope: "col", "aria-sort": order, className: text ? "text" : "" }, sorter);
    });
    const body = this.element.tBodies[0] ?? make("tbody");
    body.replaceChildren();
    this.element.replaceChildren(
      make("thead", {}, make("tr", {}, make("th", { scope: "col", "aria-label": "shown" }), ...cells)),
      body,
    );
  }

  row(run, columns, place, view) {
    const isHidden = view.hidden.includes(run.name);
    const box = make("input", { type: "checkbox", checked: !isHidden, "aria-label": `show ${run.name}` });
    box.dataset.name = `show ${run.name}`;
    box.addEventListener("change", () => this.on.toggle(run));
    const chooser = button(run.name, `show ${run.name} in detail`, () => this.on.choose(run), "name");
    chooser.dataset.name = `choose ${run.name}`;
    const link = run.page ? [make("a", { href: run.page, title: `the page of ${run.name}` }, "page")] : [];
    const cells = columns.map(({ name, text, value, cell }) => {
      const content = name === "run" ? [chooser, ...link] : cell ? cell(run) : (value(run) ?? "–");
      return make("td", { className: text ? "text" : "" }, ...[content].flat());
    });
    const classes = [isHidden && "hidden", view.run === run.name && "chosen"].filter(Boolean).join(" ");
    return make(
      "tr",
      { className: classes },
      make("td", { className: "text" }, box, " ", swatch(place ?? 0)),
      ...cells,
    );
  }
}
