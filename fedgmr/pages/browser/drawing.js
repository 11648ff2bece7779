// A drawing of lines with axes: ranges, ticks, grid, bands, lines. Computed from values, drawn with any pen.

const MARGIN = { left: 56, right: 18, top: 8, bottom: 36 };
const DASHES = [[], [7, 3], [2, 2.5], [8, 3, 2, 3], [4, 2]]; // after eight colours the next dashes
const COLOURS = 8;
const CROWD = 16; // more lines are drawn thinner and without dashes, which take long and which nobody could follow

const styleOf = (place) => ({
  stroke: colourOf(`--c${place % COLOURS}`),
  dash: DASHES[Math.floor(place / COLOURS) % DASHES.length],
});

// Where values lie on paper: the ranges of both axes, and the way there and back.
class Frame {
  constructor(width, height, xs, ys, log) {
    Object.assign(this, { width, height, xs, ys, log });
    this.ends = log ? ys.map(Math.log10) : ys;
    this.inner = {
      x: MARGIN.left,
      y: MARGIN.top,
      width: width - MARGIN.left - MARGIN.right,
      height: height - MARGIN.top - MARGIN.bottom,
    };
  }

  x(value) {
    return this.inner.x + ((value - this.xs[0]) / (this.xs[1] - this.xs[0])) * this.inner.width;
  }

  y(value) {
    const height = this.log ? (value > 0 ? Math.log10(value) : NaN) : value;
    return this.inner.y + this.inner.height * (1 - (height - this.ends[0]) / (this.ends[1] - this.ends[0]));
  }

  valueAt(pixels) {
    return this.xs[0] + ((pixels - this.inner.x) / this.inner.width) * (this.xs[1] - this.xs[0]);
  }
}

const spanOf = (lines) => range(lines.map(({ x }) => [x[0], x.at(-1)]).flat(), 0);

function frameOf(lines, width, height, zoom, log) {
  const xs = zoom ?? spanOf(lines);
  let [low, high] = [Infinity, -Infinity];
  for (const line of lines) {
    const from = Math.max(0, lastAt(line.x, xs[0]));
    const to = Math.min(line.x.length - 1, lastAt(line.x, xs[1]) + 1);
    for (let place = from; place <= to; place += 1) {
      const [bottom, top] = [line.low?.[place] ?? line.y[place], line.high?.[place] ?? line.y[place]];
      if ((!log || bottom > 0) && bottom < low) low = bottom;
      if ((!log || top > 0) && top > high) high = top;
    }
  }
  if (low > high) [low, high] = log ? [0.1, 1] : [0, 1];
  const ys = log ? [low / 1.15, high * 1.15] : range([low, high], 0.04);
  return new Frame(width, height, xs, ys, log);
}

function range(values, margin) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (!isNumber(low)) return [0, 1];
  const room = (high - low) * margin || (high === low ? Math.abs(high) * 0.05 || 1 : 0);
  return high === low && margin === 0 ? [low, low + (Math.abs(low) || 1)] : [low - room, high + room];
}

// Round values between two ends, about `count` of them.
function ticks([low, high], count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw * 0.999) * power;
  const first = Math.ceil(low / step - 1e-9);
  const found = Array.from(
    { length: Math.max(0, Math.floor(high / step + 1e-9) - first + 1) },
    (_, place) => (first + place) * step,
  );
  return { values: found, step };
}

function logTicks([low, high], count) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) powers.push(power);
  const every = Math.max(1, Math.ceil(powers.length / count));
  const factors = powers.length > 4 ? [1] : powers.length > 2 ? [1, 3] : [1, 2, 5];
  const inside = (value) => value >= low && value <= high;
  const found = powers
    .filter((_, place) => place % every === 0)
    .flatMap((power) => factors.map((each) => each * 10 ** power))
    .filter(inside);
  return found.length > 1 ? { values: found, step: 0 } : ticks([low, high], count);
}

// The horizontal axis, with its name.
function drawAcross(pen, frame, name, isBytes) {
  const { inner } = frame;
  const [ink, soft] = ["--ink", "--soft"].map(colourOf);
  const { values, step } = ticks(frame.xs, Math.max(2, inner.width / 90));
  const floor = inner.y + inner.height;
  pen.path([inner.x, floor + 0.5, inner.x + inner.width, floor + 0.5], { stroke: soft });
  for (const value of values) {
    const x = Math.round(frame.x(value)) + 0.5;
    pen.path([x, floor, x, floor + 4], { stroke: soft });
    const text = isBytes ? bytes(value) : short(value, step);
    const inside = Math.min(x, frame.width - 3.4 * text.length); // about half its width before the edge
    pen.text(inside, floor + 12, text, { colour: soft, align: "center" });
  }
  pen.text(inner.x + inner.width / 2, floor + 28, name, { colour: ink, align: "center" });
}

// Axes and lines; `names` are those of the axes.
function drawLines(pen, frame, lines, names, isBytes) {
  const { inner } = frame;
  const [ink, soft, faint] = ["--ink", "--soft", "--line"].map(colourOf);
  drawAcross(pen, frame, names.x, isBytes);
  const upward = (frame.log ? logTicks : ticks)(frame.ys, Math.max(2, inner.height / 42));
  for (const value of upward.values) {
    const y = Math.round(frame.y(value)) + 0.5;
    pen.path([inner.x, y, inner.x + inner.width, y], { stroke: faint });
    pen.text(inner.x - 6, y, short(value, upward.step), { colour: soft, align: "right" });
  }
  pen.text(9, inner.y + inner.height / 2, names.y, { colour: ink, align: "center", turned: true });
  pen.inside(inner.x, inner.y - 2, inner.width, inner.height + 4, () => {
    const crowded = lines.length > CROWD;
    for (const line of lines.filter(({ low }) => low)) {
      pen.path([...placed(frame, line.x, line.high, 3), ...reversed(placed(frame, line.x, line.low, 3))], {
        fill: styleOf(line.place).stroke,
        alpha: 0.16,
      });
    }
    for (const line of lines) {
      const style = crowded ? { stroke: styleOf(line.place).stroke, width: 1 } : { ...styleOf(line.place), width: 1.6 };
      pen.path(
        placed(frame, line.x, line.y, crowded ? 2 : 1),
        line.thin ? { ...style, width: 0.9, alpha: 0.55 } : style,
      );
    }
  });
}

// Points on paper; of many in a column so many pixels wide, the first, least, greatest and last say it all.
function placed(frame, x, y, wide) {
  const from = Math.max(0, lastAt(x, frame.xs[0]));
  const to = Math.min(x.length, lastAt(x, frame.xs[1]) + 2);
  const points = [];
  for (let place = from; place < to;) {
    const column = Math.floor(frame.x(x[place]) / wide);
    let [least, greatest, last] = [place, place, place];
    for (; last + 1 < to && Math.floor(frame.x(x[last + 1]) / wide) === column; last += 1) {
      if (y[last + 1] < y[least]) least = last + 1;
      if (y[last + 1] > y[greatest]) greatest = last + 1;
    }
    let before = -1;
    for (const each of [place, Math.min(least, greatest), Math.max(least, greatest), last]) {
      if (each !== before) points.push(frame.x(x[each]), frame.y(y[each]));
      before = each;
    }
    place = last + 1;
  }
  return points;
}

function reversed(points) {
  const back = [];
  for (let place = points.length - 2; place >= 0; place -= 2) back.push(points[place], points[place + 1]);
  return back;
}
