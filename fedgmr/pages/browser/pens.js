// Two pens with the same strokes, so that the screen, a PNG and an SVG file show the same drawing.
// A path is a flat list x0, y0, x1, y1, ...; NaN lifts the pen.

class CanvasPen {
  constructor(canvas, width, height, scale = window.devicePixelRatio || 1) {
    Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    this.context = canvas.getContext("2d");
    this.context.scale(scale, scale);
    Object.assign(this, { width, height });
  }

  path(points, { stroke, fill, width = 1, dash = [], alpha = 1 }) {
    const { context } = this;
    context.beginPath();
    let down = false;
    for (let place = 0; place < points.length; place += 2) {
      const lifted = Number.isNaN(points[place + 1]);
      if (lifted) down = false;
      else if (down) context.lineTo(points[place], points[place + 1]);
      else context.moveTo(points[place], points[place + 1]);
      down = !lifted;
    }
    Object.assign(context, { globalAlpha: alpha, lineWidth: width, lineJoin: "bevel" });
    context.setLineDash(dash);
    if (fill) (([context.fillStyle] = [fill]), context.fill());
    if (stroke) (([context.strokeStyle] = [stroke]), context.stroke());
    context.globalAlpha = 1;
  }

  // Boxes as a flat list x, y, width, height, ...; a path of 20,000 of them took 170 ms longer.
  boxes(places, fill) {
    this.context.fillStyle = fill;
    for (let at = 0; at < places.length; at += 4)
      this.context.fillRect(places[at], places[at + 1], places[at + 2], places[at + 3]);
  }

  text(x, y, text, { colour, align = "left", size = 11, turned = false }) {
    const { context } = this;
    context.save();
    context.translate(x, y);
    if (turned) context.rotate(-Math.PI / 2);
    Object.assign(context, {
      font: `${size}px system-ui, sans-serif`,
      fillStyle: colour,
      textAlign: align,
      textBaseline: "middle",
    });
    context.fillText(text, 0, 0);
    context.restore();
  }

  inside(x, y, width, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }
}

class SvgPen {
  constructor(width, height) {
    Object.assign(this, { width, height, parts: [], clips: 0 });
  }

  path(points, { stroke = "none", fill = "none", width = 1, dash = [], alpha = 1 }) {
    let [way, down] = ["", false];
    for (let place = 0; place < points.length; place += 2) {
      const lifted = Number.isNaN(points[place + 1]);
      if (!lifted) way += `${down ? "L" : "M"}${points[place].toFixed(2)} ${points[place + 1].toFixed(2)}`;
      down = !lifted;
    }
    const dashes = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    const look = `stroke="${stroke}" fill="${fill}" stroke-width="${width}" stroke-linejoin="bevel" opacity="${alpha}"`;
    this.parts.push(`<path d="${way}" ${look}${dashes}/>`);
  }

  text(x, y, text, { colour, align = "left", size = 11, turned = false }) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const turn = turned ? ` transform="rotate(-90 ${x} ${y})"` : "";
    const look = `fill="${colour}" font-size="${size}" text-anchor="${anchor}" dominant-baseline="central"`;
    this.parts.push(`<text x="${x}" y="${y}" ${look}${turn}>${escaped(text)}</text>`);
  }

  inside(x, y, width, height, draw) {
    this.clips += 1;
    const area = `<rect x="${x}" y="${y}" width="${width}" height="${height}"/>`;
    this.parts.push(`<clipPath id="clip${this.clips}">${area}</clipPath><g clip-path="url(#clip${this.clips})">`);
    draw();
    this.parts.push("</g>");
  }

  file() {
    const size = `width="${this.width}" height="${this.height}"`;
    const head = `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="system-ui, sans-serif">`;
    return `${head}${this.parts.join("\n")}</svg>\n`;
  }
}

function escaped(text) {
  return String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

// A drawing as a file of so many pixels; `draw` is given the pen.
function saveSvg(name, width, height, draw) {
  const pen = new SvgPen(width, height);
  draw(pen);
  save(`${name}.svg`, new Blob([pen.file()], { type: "image/svg+xml" }));
}

function savePng(name, width, height, draw) {
  const canvas = make("canvas");
  draw(new CanvasPen(canvas, width, height, 2));
  canvas.toBlob((image) => save(`${name}.png`, image), "image/png");
}
