// The page: one view, two charts, the table of runs and the clients of one; asked anew every second while it is live.

const EVERY = 1000; // milliseconds between two questions to the server

class Page {
  constructor(source) {
    this.source = source;
    this.runs = new Runs(source);
    this.view = viewOf(location.hash);
    this.charts = [0, 1].map(
      (place) =>
        new Chart(`chart ${place + 1}: arrows read rows, + and - zoom, Escape goes back`, {
          zoom: (zoom) => this.change({ zoom }),
          point: (value, leads, pixels) => this.charts.forEach((chart) => chart.point(value, chart === leads, pixels)),
        }),
    );
    find("charts").append(...this.charts.map(({ element }) => element));
    this.table = new RunTable(find("runs"), {
      toggle: (run) =>
        this.change({
          hidden: this.view.hidden.includes(run.name)
            ? this.view.hidden.filter((name) => name !== run.name)
            : [...this.view.hidden, run.name],
        }),
      choose: (run) => this.change({ run: run.name }),
      sort: (sort) => this.change({ sort }),
    });
    this.map = new SettingsMap(find("map-section"), (map) => this.change({ map }));
    this.strips = [new LevelStrip(), new TaskStrip()];
    find("strips").replaceChildren(...this.strips.map(({ element }) => element));
    this.tools();
    this.listen();
  }

  tools() {
    const smoothing = make("input", {
      type: "range",
      min: 0,
      max: 0.99,
      step: 0.01,
      value: this.view.smoothing,
      "aria-label": "smoothing",
    });
    smoothing.addEventListener("input", () => this.change({ smoothing: Number(smoothing.value) }));
    find("tools").addEventListener("submit", (event) => event.preventDefault());
    find("tools").replaceChildren(
      labelled(
        "against",
        choice(Object.entries(AXES), this.view.x, (x) => this.change({ x, zoom: null })),
      ),
      tick("seeds as bands", this.view.bands, (bands) => this.change({ bands })),
      labelled("smoothing", smoothing),
      button("whole range", "back from a zoom (Escape or a double click on a chart)", () =>
        this.change({ zoom: null }),
      ),
      button("copy link", "copy the address of this view", () => this.copyLink()),
      button("CSV", "all rows of the shown runs as a CSV file", () =>
        save("runs.csv", new Blob([csvOf(this.runs, this.shown())], { type: "text/csv" })),
      ),
    );
  }

  listen() {
    find("filter").value = this.view.filter;
    find("filter").addEventListener("input", () => this.change({ filter: find("filter").value }));
    find("show-all").addEventListener("click", () =>
      this.change({ hidden: this.view.hidden.filter((name) => !this.listed().some((run) => run.name === name)) }),
    );
    find("hide-all").addEventListener("click", () =>
      this.change({ hidden: [...new Set([...this.view.hidden, ...this.listed().map(({ name }) => name)])] }),
    );
    find("chosen-run").addEventListener("change", () => this.change({ run: find("chosen-run").value }));
    window.addEventListener("hashchange", () => {
      if (location.hash === fragmentOf(this.view)) return;
      this.view = viewOf(location.hash);
      this.tools();
      find("filter").value = this.view.filter;
      this.draw();
    });
    new ResizeObserver(() => this.soon()).observe(find("charts"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      colours.clear();
      this.table.forget();
      this.signature = undefined;
      this.soon();
    });
  }

  change(part) {
    Object.assign(this.view, part);
    history.replaceState(null, "", fragmentOf(this.view) || location.pathname + location.search);
    this.soon();
  }

  // Draws once before the next picture, however many changes there were.
  soon() {
    this.waiting ??= requestAnimationFrame(() => this.draw());
  }

  listed() {
    return this.runs.entries.filter((run) => passes(run, this.view.filter));
  }

  shown() {
    return this.listed().filter((run) => !this.view.hidden.includes(run.name));
  }

  draw() {
    this.waiting = undefined;
    if (!this.runs.state) return;
    const groups = groupsOf(this.runs.entries, this.view.bands);
    const { run, sort, map, ...drawn } = this.view; // what changes no curve draws none
    const signature = JSON.stringify([
      drawn,
      this.runs.changes,
      innerWidth,
      colourOf("--paper"),
      this.charts.map(({ plot }) => plot.clientWidth),
    ]);
    if (signature !== this.signature) this.drawCharts(groups);
    this.signature = signature;
    this.table.draw(this.runs, this.view, groups);
    this.map.draw(this.runs, this.shown(), this.view.map);
    this.drawOverview();
    this.drawChosen();
  }

  // What is said of all runs together: marks, and the table of those that have ended.
  drawOverview() {
    const { table } = this.runs.state;
    const signature = JSON.stringify([table, this.runs.entries.map(({ marks }) => marks)]);
    if (signature === this.overview) return;
    this.overview = signature;
    find("marks").replaceChildren(...marksOf(this.runs.entries));
    find("table-section").hidden = !table;
    const single = this.runs.entries.length < 2; // then what came of it stands first
    find(single ? "tools" : "run").before(find("facts"));
    find("run-choice").hidden = single;
    if (!table) return;
    find("table-title").textContent = table.title;
    find("table-text").textContent = [table.text, ...table.notes.map((note) => `Note: ${note}`)].join(" ");
    const columns = table.header.map((name, place) => [name, (row) => row[place], place < table.words ? "text" : ""]);
    find("table").replaceChildren(...tableParts(columns, table.rows));
  }

  drawCharts(groups) {
    const shown = new Set(this.shown());
    const known = quantities(this.runs);
    const clock = this.runs.entries[0]?.clock ?? "virtual";
    this.charts.forEach((chart, place) => {
      const wanted = this.view.y[place];
      const column = known.has(wanted) ? wanted : ([...known.keys()][place] ?? "loss");
      const lines = linesOf(this.runs, groups, (run) => shown.has(run), this.view.x, column, this.view.smoothing);
      const x = this.view.x === "seconds" ? `${clock} time (s)` : AXES[this.view.x];
      const labels = new Set(lines.map(({ reading }) => reading.label)); // several where tasks differ
      Object.assign(chart, {
        lines,
        names: { x, y: [...labels].join(", ") || (known.get(column)?.label ?? column) },
        axis: this.view.x,
        zoom: this.view.zoom,
        log: this.view.log[place],
      });
      this.drawBar(chart, place, column, known);
      chart.draw();
    });
  }

  // The controls above a chart; made anew only when the quantities have changed, so that focus stays.
  drawBar(chart, place, column, known) {
    const signature = JSON.stringify([[...known.keys()], column, this.view.log[place]]);
    if (chart.signature === signature) return;
    chart.signature = signature;
    const put = (name, value) =>
      this.change({ [name]: this.view[name].map((old, at) => (at === place ? value : old)) });
    const options = [...known].map(([name, { label }]) => [name, label]);
    const quantity = choice(options, column, (value) => put("y", value));
    quantity.setAttribute("aria-label", `quantity of chart ${place + 1}`);
    const name = column.replace(/\W+/g, "-");
    const files = make(
      "span",
      { className: "save" },
      button("PNG", "this chart as a PNG image", () => chart.saveAs(savePng, name)),
      button("SVG", "this chart as an SVG drawing", () => chart.saveAs(saveSvg, name)),
    );
    const focused = chart.bar.contains(document.activeElement) ? document.activeElement.tagName : "";
    chart.bar.replaceChildren(
      quantity,
      tick("log", this.view.log[place], (value) => put("log", value)),
      files,
    );
    if (focused) chart.bar.querySelector(focused)?.focus();
  }

  chosen() {
    const { entries } = this.runs;
    return (
      entries.find(({ name }) => name === this.view.run) ??
      entries.find((each) => each.status === "running") ??
      entries[0]
    );
  }

  // The run that is shown in detail, and its clients.
  drawChosen() {
    const run = this.chosen();
    const select = find("chosen-run");
    const names = this.runs.entries.map(({ name }) => name);
    if (JSON.stringify(names) !== select.dataset.names) {
      select.dataset.names = JSON.stringify(names);
      select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    }
    if (!run || (run.rows && !this.runs.rows(run))) return; // its rows are on their way
    select.value = run.name;
    this.followEvents(run);
    const activity = this.runs.activity(run);
    const zoom = this.view.x === "seconds" ? this.view.zoom : null;
    const version = [run.id, this.runs.data.get(run.id)?.version, this.runs.events.get(run.id)?.version];
    this.drawStrips(run, activity, zoom, JSON.stringify([version, run.status, zoom, innerWidth, colourOf("--paper")]));
    const signature = JSON.stringify([version, this.runs.texts.get(run.id), colourOf("--paper")]);
    if (signature === this.detail) return;
    const isOther = this.detailed !== run.id || this.detailedStatus !== run.status;
    Object.assign(this, { detail: signature, detailed: run.id, detailedStatus: run.status });
    find("clients-of").textContent = `of ${run.name}`;
    drawClientTable(find("clients"), run, this.runs);
    drawFacts(find("facts"), run, this.runs);
    drawTheory(find("theory"), this.runs.data.get(run.id));
    if (isOther) drawRun(find("run"), run, this.runs);
  }

  drawStrips(run, activity, zoom, signature) {
    if (signature === this.stripped) return;
    this.stripped = signature;
    const [levels, tasks] = this.strips;
    tasks.element.hidden = !activity; // before the other is drawn, which then has more room
    levels.draw(run, this.runs, zoom);
    if (activity) tasks.draw(run, this.runs, zoom);
  }

  async followEvents(run) {
    try {
      if (await this.runs.refreshEvents(run)) this.soon();
    } catch {
      // The next answer about the runs says whether the server is gone.
    }
  }

  async copyLink() {
    try {
      await navigator.clipboard.writeText(location.href);
      this.tell("link copied");
    } catch {
      this.tell("the address above is the link");
    }
  }

  tell(text, look = "") {
    Object.assign(find("pulse"), { className: look });
    if (find("pulse").textContent !== text) find("pulse").textContent = text;
  }

  async follow() {
    try {
      if (await this.runs.refresh(() => this.showProgress())) this.soon();
      this.tellState();
    } catch (error) {
      this.tell("no answer from fedgmr watch; asking again", "lost");
      if (!this.source.live) throw error;
    }
    if (this.source.live) setTimeout(() => this.follow(), EVERY);
  }

  // While many runs are read for the first time: what is there already, now and then.
  showProgress() {
    if (performance.now() - (this.shownAt ?? 0) < 500) return;
    this.tell(`reading ${this.runs.data.size} of ${this.runs.entries.length} runs`);
    if (this.shownAt === undefined) this.soon();
    this.shownAt = performance.now();
  }

  tellState() {
    const { state, entries } = this.runs;
    if (find("title").textContent !== state.title) find("title").textContent = document.title = state.title;
    find("made").textContent = `fedgmr ${state.made}. Rows count from 0, as in history[0].`;
    const running = entries.filter(({ status }) => status === "running").length;
    const count = `${entries.length} ${entries.length === 1 ? "run" : "runs"}${running ? `, ${running} running` : ""}`;
    this.tell(entries.length ? count : "no runs here yet", this.source.live ? "live" : "");
  }
}

// All rows of some runs as CSV: exact values, as they were recorded.
function csvOf(runs, entries) {
  const found = new Set(entries.flatMap((run) => Object.keys(runs.columns(run))));
  const names = [
    ...Object.keys(AXES).filter((name) => found.has(name)),
    ...[...found].filter((name) => !(name in AXES)),
  ];
  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  // A spreadsheet takes a text that begins so for a formula; names come from files, which may be anybody's.
  const safe = (text) => quoted(/^[=+\-@\t]/.test(text) ? `'${text}` : text);
  const lines = [["run", "method", "seed", "row", ...names].map(safe).join(",")];
  for (const run of entries) {
    const columns = runs.columns(run);
    for (let row = 0; row < runs.rows(run); row += 1) {
      lines.push(
        [safe(run.name), safe(run.method), run.seed, row, ...names.map((name) => columns[name]?.[row] ?? "")].join(","),
      );
    }
  }
  return `${lines.join("\n")}\n`;
}

const page = new Page(chosenSource());
globalThis.fedgmr = { page, averaged, smoothed, ticks, csvOf, viewOf, fragmentOf }; // for the console and for tests
page.follow();
