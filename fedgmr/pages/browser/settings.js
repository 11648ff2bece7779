// A map of the runs: two settings with the metric as colour, or one setting against the metric.

const METRIC = "the metric";
const SPACE = { left: 60, right: 14, top: 10, bottom: 44 };
const LETTER = 6.2; // pixels, about

// Settings that can be an axis, by key, each with its values in order.
function axesOf(entries) {
  const value = (run, key) => (key === "method" ? run.method : key === "seed" ? run.seed : run.settings[key]);
  const keys = [...tellingSettings(entries), "method", "seed"];
  const axes = keys.map((key) => {
    const texts = [...new Set(entries.map((run) => textOf(value(run, key))))];
    texts.sort((one, other) => one.localeCompare(other, undefined, { numeric: true }));
    if (texts.every((text) => isNumber(Number(text)))) texts.sort((one, other) => one - other);
    return { key, texts, of: (run) => texts.indexOf(textOf(value(run, key))) };
  });
  return new Map(axes.filter(({ texts }) => texts.length > 1).map((axis) => [axis.key, axis]));
}

class SettingsMap {
  // `on` is told the keys of both axes when the reader has chosen others.
  constructor(section, on) {
    this.on = on;
    this.section = section;
    this.canvas = make("canvas", { role: "img" });
    this.box = make("div", { className: "hover", hidden: true });
    this.plot = make("div", { className: "plot map" }, this.canvas, this.box);
    this.plot.addEventListener("pointermove", (event) => this.tell(event));
    this.plot.addEventListener("pointerleave", () => (this.box.hidden = true));
    find("map").replaceChildren(this.plot);
  }

  // Draws the shown runs; `chosen` are the keys of both axes, empty where the page is to choose.
  draw(runs, shown, chosen) {
    const axes = axesOf(runs.entries);
    this.section.hidden = axes.size === 0;
    if (this.section.hidden) return;
    const keys = [...axes.keys()];
    const across = axes.has(chosen[0]) ? chosen[0] : keys[0];
    const second = keys.find((key) => key !== across && key !== "seed" && key !== "method") ?? METRIC;
    const up = chosen[1] === METRIC || (axes.has(chosen[1]) && chosen[1] !== across) ? chosen[1] : second;
    this.drawTools(keys, across, up);
    const { metric } = runs;
    const last = (run) => (runs.columns(run)[run.metric.key] ?? []).findLast(isNumber);
    this.points = shown
      .filter((run) => labelOf(run.metric) === labelOf(metric) && isNumber(last(run)))
      .map((run) => ({ run, value: last(run) * metric.factor, x: axes.get(across).of(run), y: axes.get(up)?.of(run) }));
    const height = Math.max(170, Math.min(420, SPACE.top + SPACE.bottom + 46 * (axes.get(up)?.texts.length ?? 5)));
    this.plot.style.height = `${height}px`;
    this.canvas.setAttribute("aria-label", `${metric.name} by ${across} and ${up}`);
    Object.assign(this, { metric, across: axes.get(across), up: axes.get(up) });
    this.paint(new CanvasPen(this.canvas, this.plot.clientWidth, height));
  }

  drawTools(keys, across, up) {
    const signature = JSON.stringify([keys, across, up]);
    if (signature === this.signature) return;
    this.signature = signature;
    const options = keys.map((key) => [key, key]);
    find("map-tools").replaceChildren(
      labelled("across", choice(options, across, (key) => this.on([key, up === key ? "" : up]))),
      labelled(
        "up",
        choice([[METRIC, METRIC], ...options.filter(([key]) => key !== across)], up, (key) => this.on([across, key])),
      ),
      button("PNG", "the map as a PNG image", () => savePng("settings", ...this.size(), (pen) => this.paint(pen))),
      button("SVG", "the map as an SVG drawing", () => saveSvg("settings", ...this.size(), (pen) => this.paint(pen))),
    );
  }

  size() {
    return [this.plot.clientWidth, this.plot.clientHeight];
  }

  paint(pen) {
    const values = this.points.map(({ value }) => value);
    const ends = range(values.length ? values : [0, 1], 0);
    this.part = (value) => (ends[1] > ends[0] ? (value - ends[0]) / (ends[1] - ends[0]) : 1);
    const longest = Math.max(0, ...(this.up?.texts ?? []).map((text) => text.length));
    const left = this.up ? Math.min(pen.width * 0.4, Math.max(SPACE.left, longest * LETTER + 28)) : SPACE.left;
    const [width, height] = [pen.width - left - SPACE.right, pen.height - SPACE.top - SPACE.bottom];
    const step = { x: width / this.across.texts.length, y: height / (this.up?.texts.length ?? 1) };
    this.area = { left, width, height, step };
    const [ink, soft] = ["--ink", "--soft"].map(colourOf);
    const floor = SPACE.top + height;
    pen.path([0, 0, pen.width, 0, pen.width, pen.height, 0, pen.height], { fill: colourOf("--paper") });
    this.across.texts.forEach((text, place) => {
      const room = Math.max(3, Math.floor(step.x / LETTER));
      const words = text.length > room ? `${text.slice(0, room - 1)}…` : text;
      pen.text(left + step.x * (place + 0.5), floor + 14, words, { colour: soft, align: "center" });
    });
    pen.text(left + width / 2, pen.height - 10, this.across.key, { colour: ink, align: "center" });
    const name = this.up?.key ?? labelOf(this.metric);
    pen.text(9, SPACE.top + height / 2, name, { colour: ink, align: "center", turned: true });
    if (this.up) this.paintCells(pen);
    else this.paintPoints(pen, ends);
  }

  // Runs by place of both axes; rows of cells go upwards.
  cells() {
    return Map.groupBy(this.points, ({ x, y }) => `${x} ${y}`);
  }

  cellArea(x, y) {
    const { left, height, step } = this.area;
    return [left + step.x * x, SPACE.top + height - step.y * (y + 1)];
  }

  paintCells(pen) {
    const { left, step } = this.area;
    this.up.texts.forEach((text, place) => {
      const [, top] = this.cellArea(0, place);
      pen.text(left - 6, top + step.y / 2, text, { colour: colourOf("--soft"), align: "right" });
    });
    for (const points of this.cells().values()) {
      const [{ x, y }] = points;
      const [from, top] = this.cellArea(x, y);
      const [right, bottom] = [from + step.x - 2, top + step.y - 2];
      const mean = meanOf(points);
      pen.path([from, top, right, top, right, bottom, from, bottom], { fill: shade(this.part(mean)) });
      const colour = colourOf(this.part(mean) > 0.55 ? "--paper" : "--ink");
      const text = mean.toFixed(this.metric.digits);
      pen.text((from + right) / 2, (top + bottom) / 2, text, { colour, align: "center", size: 12 });
    }
  }

  paintPoints(pen, ends) {
    const { left, width, height, step } = this.area;
    const ys = range(ends, 0.06);
    const at = (value) => SPACE.top + height * (1 - (value - ys[0]) / (ys[1] - ys[0]));
    const { values, step: apart } = ticks(ys, Math.max(2, height / 42));
    for (const value of values) {
      pen.path([left, at(value), left + width, at(value)], { stroke: colourOf("--line") });
      pen.text(left - 6, at(value), short(value, apart), { colour: colourOf("--soft"), align: "right" });
    }
    for (const [x, points] of Map.groupBy(this.points, (point) => point.x)) {
      const middle = left + step.x * (x + 0.5);
      const mean = at(meanOf(points));
      pen.path([middle - 14, mean, middle + 14, mean], { stroke: colourOf("--soft"), width: 1.5 });
      for (const point of points) {
        Object.assign(point, { across: middle, height: at(point.value) });
        pen.path(diamond(middle, point.height, 5), { fill: shade(this.part(point.value)), stroke: colourOf("--soft") });
      }
    }
  }

  tell(event) {
    const area = this.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    const { left, step, height } = this.area ?? { step: {} };
    const column = Math.floor((x - left) / step.x);
    const row = Math.floor((SPACE.top + height - y) / step.y);
    const near = this.up
      ? this.cells().get(`${column} ${row}`)
      : this.points?.filter((point) => point.x === column && Math.abs(point.height - y) < 12);
    this.box.hidden = !near?.length;
    if (this.box.hidden) return;
    const { unit, digits } = this.metric;
    const text = (value) => `${value.toFixed(digits)}${unit ? ` ${unit}` : ""}`;
    const lines = near.slice(0, MOST_READ).map(({ run, value }) => make("div", {}, `${run.name}: ${text(value)}`));
    if (near.length > 1)
      lines.unshift(make("div", { className: "near" }, `mean of ${near.length}: ${text(meanOf(near))}`));
    this.box.replaceChildren(...lines);
    placeBeside(this.box, x, y + 14, area.width);
  }
}

const meanOf = (points) => points.reduce((sum, { value }) => sum + value, 0) / points.length;
const diamond = (x, y, size) => [x - size, y, x, y - size, x + size, y, x, y + size, x - size, y];
