// One chart of the page: a drawing, and over it a cursor that reads values and a drag that zooms.
// By keyboard: arrows move the cursor by a row, + and - zoom around it, Escape goes back.

const MOST_READ = 10; // lines that the box of values names
const MOST_NAMED = 24; // and the legend

class Chart {
  // `on` has `zoom(range or null)` and `point(value or null)`, which let all charts of the page move together.
  constructor(title, on) {
    Object.assign(this, { on, lines: [] }); // the page gives it these, and what else it draws
    this.bar = make("div", { className: "bar" });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.over = make("canvas", { "aria-hidden": "true" });
    this.box = make("div", { className: "hover", hidden: true, "aria-live": "polite" });
    this.plot = make(
      "div",
      { className: "plot", tabIndex: 0, role: "application", "aria-label": title },
      this.canvas,
      this.over,
      this.box,
    );
    this.legend = make("div", { className: "legend" });
    this.element = make("figure", { className: "chart", style: { margin: 0 } }, this.bar, this.plot, this.legend);
    this.listen();
  }

  listen() {
    const at = (event) => event.clientX - this.plot.getBoundingClientRect().left;
    this.plot.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.start = at(event);
      if (event.pointerType === "mouse") this.plot.setPointerCapture(event.pointerId);
    });
    this.plot.addEventListener("pointermove", (event) => {
      this.height = event.clientY - this.plot.getBoundingClientRect().top;
      if (this.frame) this.on.point(this.frame.valueAt(at(event)), this, at(event));
    });
    this.plot.addEventListener("pointerup", (event) => {
      const [start, end] = [this.start, at(event)];
      this.start = undefined;
      if (start !== undefined && Math.abs(end - start) > 8)
        this.zoomTo(...[start, end].sort((a, b) => a - b).map((pixels) => this.frame.valueAt(pixels)));
    });
    this.plot.addEventListener("pointerleave", () => this.on.point(null, this));
    this.plot.addEventListener("pointercancel", () => (this.start = undefined));
    this.plot.addEventListener("dblclick", () => this.on.zoom(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.on.point(null, this));
  }

  // The lines that have a name; the others go on from them.
  get named() {
    return this.lines.filter(({ thin }) => !thin);
  }

  zoomTo(low, high) {
    const [least, most] = this.frame.xs;
    this.on.zoom([Math.max(low, least), Math.min(high, most)]);
  }

  key(event) {
    const [line] = this.named;
    if (!line || !this.frame) return;
    const { xs } = this.frame;
    const middle = this.cursor ?? (xs[0] + xs[1]) / 2;
    const place = nearest(line.x, middle);
    const half = (xs[1] - xs[0]) / 4;
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      const step = this.cursor === null && Math.abs(steps[event.key]) === 1 ? 0 : steps[event.key]; // first the middle
      const next = Math.min(line.x.length - 1, Math.max(0, place + step));
      this.height = this.frame.y(line.y[next]);
      this.on.point(line.x[next], this);
    } else if (event.key === "+") this.zoomTo(middle - half, middle + half);
    else if (event.key === "-") {
      const [least, most] = spanOf(this.lines);
      const width = 8 * half;
      const low = Math.max(least, Math.min(middle - width / 2, most - width)); // there is nothing beyond the ends
      this.on.zoom(width < most - least ? [low, low + width] : null);
    }
    else if (event.key === "Escape") this.on.zoom(null);
    else return;
    event.preventDefault();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    this.frame = frameOf(this.lines, width, height, this.zoom, this.log);
    drawLines(new CanvasPen(this.canvas, width, height), this.frame, this.lines, this.names, this.axis === "bytes");
    const { named } = this;
    this.legend.replaceChildren(
      ...named.slice(0, MOST_NAMED).map((line) => make("span", {}, swatch(line.place), line.name)),
    );
    if (named.length > MOST_NAMED) this.legend.append(make("span", {}, `and ${named.length - MOST_NAMED} more`));
    if (!named.length) this.legend.append(make("span", { className: "soft" }, "No rows to draw yet."));
    this.point(this.cursor ?? null, this.leads);
  }

  // Shows the cursor at a value of the horizontal axis, and what the lines are there; the chart under it `leads`.
  point(value, leads, pixels) {
    Object.assign(this, { cursor: value, leads });
    const pen = new CanvasPen(this.over, this.plot.clientWidth, this.plot.clientHeight);
    const read = value === null || !this.frame ? [] : this.read(value);
    this.box.hidden = !read.length || !leads;
    if (!read.length) return;
    const { inner } = this.frame;
    const x = this.frame.x(value);
    if (leads && this.start !== undefined && Math.abs(pixels - this.start) > 8) {
      pen.path(
        [this.start, inner.y, pixels, inner.y, pixels, inner.y + inner.height, this.start, inner.y + inner.height],
        { fill: colourOf("--accent"), alpha: 0.14 },
      );
    }
    pen.path([x, inner.y, x, inner.y + inner.height], { stroke: colourOf("--soft"), dash: [3, 3] });
    for (const { line, place } of read) {
      const [across, up] = [this.frame.x(line.x[place]), this.frame.y(line.y[place])];
      pen.path([across - 2.5, up, across, up - 2.5, across + 2.5, up, across, up + 2.5], {
        fill: styleOf(line.place).stroke,
      });
    }
    if (leads) this.tell(read, x);
  }

  read(value) {
    const [low, high] = this.frame.xs;
    if (value < low || value > high) return [];
    const found = this.named.map((line) => ({ line, place: nearest(line.x, value) }));
    return found.filter(
      ({ line, place }) => line.x[place] >= low && line.x[place] <= high && isNumber(this.frame.y(line.y[place])),
    );
  }

  tell(read, x) {
    const distance = ({ line, place }) => Math.abs(this.frame.y(line.y[place]) - (this.height ?? 0));
    const near = read.reduce((one, other) => (distance(other) < distance(one) ? other : one));
    const told = [...read].sort((one, other) => distance(one) - distance(other)).slice(0, MOST_READ);
    told.sort((one, other) => other.line.y[other.place] - one.line.y[one.place]);
    const rows = told.map(({ line, place }) => {
      const { digits, unit } = line.reading;
      const spread = isNumber(line.spread?.[place]) ? ` ± ${line.spread[place].toFixed(digits)}` : "";
      const value = `${line.exact[place].toFixed(digits)}${spread}${unit ? ` ${unit}` : ""}`;
      const number = line.rows ? `row ${line.rows[place]}` : `${line.count} runs`;
      const where = this.axis === "bytes" ? bytes(line.x[place]) : short(line.x[place]);
      const cells = [swatch(line.place), line.name, value, number, `${where}${this.axis === "seconds" ? " s" : ""}`];
      return make("tr", { className: line === near.line ? "near" : "" }, ...cells.map((cell) => make("td", {}, cell)));
    });
    this.box.replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
    if (read.length > told.length)
      this.box.append(make("div", { className: "soft" }, `and ${read.length - told.length} more`));
    placeBeside(this.box, x, MARGIN.top, this.frame.width);
  }

  // The drawing for a file: as it stands, with the names of its lines below.
  onPaper(pen, width, height) {
    const frame = frameOf(this.lines, width, height, this.zoom, this.log);
    pen.path([0, 0, pen.width, 0, pen.width, pen.height, 0, pen.height], { fill: colourOf("--paper") });
    drawLines(pen, frame, this.lines, this.names, this.axis === "bytes");
    this.named.forEach((line, place) => {
      const y = height + 12 + 18 * place;
      pen.path([MARGIN.left, y, MARGIN.left + 22, y], { ...styleOf(line.place), width: 2 });
      pen.text(MARGIN.left + 30, y, line.name, { colour: colourOf("--ink"), size: 12 });
    });
  }

  saveAs(save, name) {
    const { clientWidth: width, clientHeight: height } = this.plot;
    save(name, width, height + 18 * this.named.length + 8, (pen) => this.onPaper(pen, width, height));
  }
}

function swatch(place) {
  const { stroke, dash } = styleOf(place);
  return make("i", {
    className: "swatch",
    style: { borderTopColor: stroke, borderTopStyle: dash.length ? (dash[0] < 3 ? "dotted" : "dashed") : "solid" },
  });
}
