// Strips over time, one row per client: which level it held; what it did, and how fast its link was.

const HEIGHT = 260; // of a strip, where rows would not become too flat or too high
const MOST_DRAWN = 40; // clients of a strip; of more, the first ones from fast to slow
const PHASES = {
  receiving: "--c0",
  training: "--c2",
  sending: "--c4",
  "at work": "--c5", // a deployed task, of which the server knows no more
  lost: "--c1",
  away: "--line",
};

// Clients from fast to slow: by the level they began with, which follows the link, then by number.
function clientsBySpeed(clients) {
  const first = clients.level?.[0] ?? [];
  return first.map((_, client) => client).sort((one, other) => (first[other] ?? 0) - (first[one] ?? 0) || one - other);
}

// Stretches of rows in which a client's level stays the same: [first row, end row, level].
function stretches(levels) {
  const found = [];
  levels.forEach((level, row) => {
    if (found.length && found.at(-1)[2] === level) found.at(-1)[1] = row + 1;
    else found.push([row, row + 1, level]);
  });
  return found;
}

// Part 0 to 1 of the way from the palest to the darkest colour.
function shade(part) {
  const parts = (name) => colourOf(name).match(/[\da-f]{2}/g).map((pair) => parseInt(pair, 16));
  const [low, high] = [parts("--low"), parts("--high")];
  return `rgb(${low.map((value, place) => Math.round(value + part * (high[place] - value)))})`; // SVG has no color-mix
}

const levelColour = (level, count) => shade(count > 1 ? level / (count - 1) : 1);

// What each client did until `now`: its pieces of time as [from, until, phase, task] in their order and by phase, the
// rates of its link as two lists, of times and of MiB/s, and of a deployed run when it joined.
function activityOf(events, count, now) {
  const clients = Array.from({ length: count }, () => ({
    pieces: [],
    phases: new Map(),
    down: { x: [], y: [] },
    up: { x: [], y: [] },
    joined: null,
  }));
  for (const [client, from, until] of events.away) clients[client]?.pieces.push([from, Math.min(until, now), "away"]);
  for (const task of events.tasks) {
    const [client, , left, took, received, trained, lost] = task;
    const end = Math.min(now, took === null ? now : left + took);
    const put = (from, until, phase) =>
      (from < Math.min(until, end) || took === null) &&
      clients[client]?.pieces.push([from, Math.min(until, end), phase, task]);
    if (lost !== null || received === null) put(left, end, lost === null ? "at work" : "lost");
    else {
      put(left, left + received, "receiving");
      put(left + received, left + received + trained, "training");
      put(left + received + trained, end, "sending");
    }
  }
  for (const [client, seconds] of events.joined) if (clients[client]) clients[client].joined = seconds;
  for (const client of clients) {
    client.pieces.sort(([one], [other]) => one - other);
    client.phases = Map.groupBy(client.pieces, ([, , phase]) => phase);
  }
  return { now, clients, fastest: putRates(events.rates, clients) };
}

// Puts rates to their clients, each at the beginning and the end of its time; returns the greatest.
function putRates(rates, clients) {
  let fastest = 0;
  for (const [from, until, ofClients] of rates) {
    ofClients.forEach(([down, up], client) => {
      for (const [name, values] of Object.entries({ down, up })) {
        const step = (until - from) / values.length;
        values.forEach((rate, part) => {
          clients[client]?.[name].x.push(from + part * step, from + (part + 1) * step);
          clients[client]?.[name].y.push(rate, rate);
          fastest = Math.max(fastest, rate);
        });
      }
    });
  }
  return fastest;
}

// The share of the time since it joined in which a client was there without a task.
function waitedShare({ pieces, joined }, now) {
  const start = joined ?? 0;
  let [covered, end] = [0, start];
  for (const [from, until] of pieces) {
    covered += Math.max(0, until - Math.max(from, end));
    end = Math.max(end, until);
  }
  return now > start ? Math.max(0, 1 - covered / (now - start)) : 0;
}

class Strip {
  constructor(name) {
    this.canvas = make("canvas", { role: "img" });
    this.box = make("div", { className: "hover", hidden: true });
    this.plot = make("div", { className: "plot" }, this.canvas, this.box);
    this.legend = make("div", { className: "key" });
    this.element = make("div", { className: "strip" }, this.legend, this.plot);
    this.name = name;
    this.plot.addEventListener("pointermove", (event) => this.tell(event));
    this.plot.addEventListener("pointerleave", () => (this.box.hidden = true));
  }

  draw(run, runs, zoom) {
    const clients = runs.clients(run);
    Object.assign(this, { run, clients, seconds: runs.columns(run).seconds ?? [] });
    this.order = clientsBySpeed(clients).slice(0, MOST_DRAWN);
    this.step = Math.round(Math.min(26, Math.max(13, HEIGHT / Math.max(1, this.order.length))));
    const height = MARGIN.top + MARGIN.bottom + this.step * Math.max(1, this.order.length);
    this.plot.style.height = `${height}px`;
    this.canvas.setAttribute("aria-label", `${this.name} of each client of ${run.name} over time`);
    const end = run.status === "running" ? this.seconds.at(-1) : Math.max(run.seconds, this.seconds.at(-1) ?? 0);
    const width = this.plot.clientWidth;
    this.frame = new Frame(width, height, zoom ?? [0, end || 1], [0, 1], false);
    const pen = new CanvasPen(this.canvas, width, height);
    const { inner } = this.frame;
    drawAcross(pen, this.frame, `${run.clock} time (s)`, false);
    pen.text(9, MARGIN.top + inner.height / 2, inner.height > 130 ? "client, fast at the top" : "client", {
      colour: colourOf("--ink"),
      align: "center",
      turned: true,
    });
    this.legend.replaceChildren(...this.key());
    this.order.forEach((client, place) => {
      const top = MARGIN.top + this.step * place;
      pen.text(inner.x - 6, top + this.step / 2, String(client), { colour: colourOf("--soft"), align: "right" });
      pen.inside(inner.x, top, inner.width, this.step, () => this.drawClient(pen, client, top, top + this.step - 2));
    });
  }

  tell(event) {
    const area = this.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    const client = this.order?.[Math.floor((y - MARGIN.top) / this.step)];
    const text = this.frame && client !== undefined ? this.words(client, this.frame.valueAt(x)) : "";
    this.box.hidden = !text;
    this.box.textContent = text;
    if (text) placeBeside(this.box, x, y + 14, area.width);
  }
}

const boxOf = (colour, text) =>
  make("span", {}, make("i", { className: "box", style: { background: colour } }), ` ${text}`);

class LevelStrip extends Strip {
  constructor() {
    super("level");
  }

  key() {
    const { ladder } = this.run;
    return ["density", ...ladder.map((density, level) => boxOf(levelColour(level, ladder.length), density))];
  }

  drawClient(pen, client, top, bottom) {
    for (const [from, end, level] of stretches((this.clients.level ?? []).map((row) => row?.[client]))) {
      if (level === null || level === undefined) continue;
      const last = Math.min(end, this.seconds.length - 1);
      const [left, right] = [this.frame.x(this.seconds[from]), this.frame.x(this.seconds[last])];
      pen.path([left, top, right, top, right, bottom, left, bottom], {
        fill: levelColour(level, this.run.ladder.length),
      });
    }
  }

  words(client, seconds) {
    const row = lastAt(this.seconds, seconds);
    const level = this.clients.level?.[row]?.[client];
    if (!isNumber(level)) return "";
    const left = this.clients.checks_left?.[row]?.[client];
    const outlook = isNumber(left) ? `, moves up in ${left} checks without improvement` : "";
    const density = this.run.ladder[level] ?? "–";
    return `client ${client}: level ${level}, density ${density}${outlook}, row ${row}, ${short(this.seconds[row])} s`;
  }
}

class TaskStrip extends Strip {
  constructor() {
    super("tasks");
  }

  draw(run, runs, zoom) {
    this.activity = runs.activity(run);
    super.draw(run, runs, zoom);
  }

  key() {
    const { clients, fastest } = this.activity;
    const boxes = Object.keys(PHASES).filter((phase) => clients.some(({ phases }) => phases.has(phase)));
    const lines = fastest ? [`lines: rate down, dotted up, full height ${short(fastest)} MiB/s (root)`] : [];
    return ["tasks", ...boxes.map((phase) => boxOf(colourOf(PHASES[phase]), phase)), ...lines];
  }

  drawClient(pen, client, top, bottom) {
    const { phases, down, up } = this.activity.clients[client];
    for (const [phase, colour] of Object.entries(PHASES).reverse()) {
      const boxes = [];
      let end = -Infinity; // in pixels: of pieces that share one, the first stands for all
      for (const [from, until] of phases.get(phase) ?? []) {
        if (until < this.frame.xs[0] || from > this.frame.xs[1]) continue;
        const [left, right] = [this.frame.x(from), Math.max(this.frame.x(until), this.frame.x(from) + 0.5)];
        if (right < end + 0.5) continue;
        boxes.push(left, top, right - left, bottom - top);
        end = right;
      }
      pen.boxes(boxes, colourOf(colour));
    }
    const y = (rate) => bottom - (bottom - top) * Math.sqrt(rate / this.activity.fastest);
    const row = { xs: this.frame.xs, x: (value) => this.frame.x(value), y };
    for (const [line, dash] of [
      [down, []],
      [up, [1.5, 2]],
    ]) {
      const points = placed(row, line.x, line.y, 1);
      // A line that goes up and down in every pixel would hide what is below it, and take long to dash.
      const crowded = points.length > this.frame.inner.width;
      pen.path(points, { stroke: colourOf("--ink"), dash: crowded ? [] : dash, alpha: crowded ? 0.35 : 1 });
    }
  }

  words(client, seconds) {
    const { pieces, down, up } = this.activity.clients[client];
    const [, , phase, task] =
      pieces.findLast(([from, until]) => from <= seconds && seconds < until) ??
      [0, 0, seconds <= this.activity.now ? "waiting" : ""];
    if (!phase) return "";
    const [, level, left, took, , , lost] = task ?? [];
    const words = task ? ` a task of level ${level} from ${short(left)} s` : "";
    const end = task && took !== null ? ` to ${short(left + took)} s` : "";
    const rates = [down, up].map(({ x, y }) => short(y[lastAt(x, seconds)]));
    const link = down.x.length ? `; link ${rates.join(" down, ")} up (MiB/s)` : "";
    return `client ${client}: ${phase}${lost ? ` (${lost})` : ""}${words}${end}${link}`;
  }
}
