// Looks at the page in #page as a reader would, and says what is wrong: one line each in #found, after a line with what there is.
addEventListener('load', () => {
  const frame = document.getElementById('page');
  const page = frame.contentDocument;
  const view = frame.contentWindow;
  // As high as it is, so that everything is on the screen.
  frame.style.height = page.documentElement.scrollHeight + 'px';
  const width = frame.clientWidth;
  const problems = [];
  const short = text => JSON.stringify(text.trim().slice(0, 40));
  const style = element => view.getComputedStyle(element);
  const shown = element => element.getClientRects().length > 0;
  const box = element => element.getBoundingClientRect();

  if (page.documentElement.scrollWidth > width) {
    problems.push(`the page is ${page.documentElement.scrollWidth} px wide in a window of ${width}`);
  }

  // Colours, as luminance and contrast in the sense of WCAG 2.
  const parse = colour => (colour.match(/[\d.]+/g) || []).map(Number);
  const luminance = rgb => {
    const [r, g, b] = rgb.slice(0, 3).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (x + 0.05) / (y + 0.05);
  };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(style(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };

  let charts = 0;
  for (const svg of page.querySelectorAll('svg')) {
    if (!shown(svg)) continue;
    charts += 1;
    const place = box(svg);
    const card = svg.closest('.card');
    const name = svg.getAttribute('aria-label');
    const problem = text => problems.push(`chart ${short(name)}: ${text}`);
    if (place.width < 100 || place.height < 30) problem(`only ${place.width} × ${place.height} px`);
    if (!svg.querySelector('rect, path')) problem('nothing is drawn');
    if (!card) problem('stands in no card');
    const around = card && box(card);
    if (around && (place.left < around.left - 0.5 || place.right > around.right + 0.5)) problem('reaches out of its card');
    const scale = place.width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll('text')].filter(text => text.textContent.trim());
    const places = texts.map(box);
    texts.forEach((text, index) => {
      const [a, css] = [places[index], style(text)];
      const size = parseFloat(css.fontSize) * scale;
      if (size < 9) problem(`${short(text.textContent)} is ${size.toFixed(1)} px high`);
      if (a.left < place.left - 1 || a.right > place.right + 1 || a.top < place.top - 1 || a.bottom > place.bottom + 1) {
        problem(`${short(text.textContent)} reaches out of the chart`);
      }
      for (let other = index + 1; other < texts.length; other += 1) {
        const b = places[other];
        const [across, down] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
        // A line's box is higher than its letters: boxes may touch a little from above and below.
        if (across > 0.5 && down > size * 0.25) {
          problem(`${short(text.textContent)} and ${short(texts[other].textContent)} overlap by ${across.toFixed(1)} × ${down.toFixed(1)} px`);
        }
      }
      // What is painted under its middle: the last box before it in the drawing that covers it.
      const [x, y] = [(a.left + a.right) / 2, (a.top + a.bottom) / 2];
      let ground = behind(svg);
      for (const shape of svg.querySelectorAll('rect')) {
        if (!(shape.compareDocumentPosition(text) & 4)) break;
        const s = box(shape);
        const fill = parse(style(shape).fill);
        const solid = style(shape).fill !== 'none' && (fill.length === 3 || fill[3] === 1) && Number(style(shape).opacity) === 1;
        if (solid && s.left <= x && x <= s.right && s.top <= y && y <= s.bottom) ground = fill;
      }
      const ratio = contrast(parse(css.fill), ground);
      if (ratio < 4.5) problem(`${short(text.textContent)} has a contrast of ${ratio.toFixed(2)}`);
    });
  }

  for (const card of page.querySelectorAll('.card')) {
    if (!shown(card)) continue;
    if (card.scrollWidth > card.clientWidth + 1) {
      problems.push(`a card that begins with ${short(card.textContent)} is cut off: ${card.scrollWidth} px in ${card.clientWidth}`);
    }
  }

  for (const element of page.body.querySelectorAll('*')) {
    if (element.closest('svg, script') || !shown(element)) continue;
    const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.textContent).join('').trim();
    if (!text) continue;
    const css = style(element);
    const ratio = contrast(parse(css.color), behind(element));
    if (ratio < 4.5) problems.push(`${short(text)} has a contrast of ${ratio.toFixed(2)}`);
    if (parseFloat(css.fontSize) < 11) problems.push(`${short(text)} is ${css.fontSize} high`);
    const place = box(element);
    if (place.left < -0.5 || place.right > width + 0.5) problems.push(`${short(text)} is not within the window`);
  }

  const ground = behind(page.body);
  const facts = `charts=${charts} dark=${luminance(ground) < 0.2} height=${page.documentElement.scrollHeight}`;
  document.getElementById('found').textContent = ['BEGIN', facts, ...problems, 'END'].join('\n');
});
