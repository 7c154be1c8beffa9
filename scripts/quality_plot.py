"""Draws mean KLD against bytes per token as an SVG image that needs nothing else."""

import html
import math

WIDTH, HEIGHT = 960, 560
LEFT, RIGHT, TOP, BOTTOM = 80, 190, 40, 60
LINE = 13  # pixels between two names
COLOURS = (("ggml-", "#b3541e", "as llama.cpp stores it"), ("tq", "#2563a8", "tq, tcq"), ("", "#555555", "others"))


def colour_of(name):
    return next(colour for prefix, colour, _ in COLOURS
                if name.startswith(prefix) or prefix == "tq" and name.startswith("tcq"))


def ticks(low, high):
    return [10.0 ** e for e in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def spread(wanted):
    """Heights of names as near to those wanted as lets each have its line."""
    placed = []
    for y in sorted(wanted):
        placed.append(max(y, placed[-1] + LINE) if placed else y)
    shift = max(0, placed[-1] - (HEIGHT - BOTTOM)) if placed else 0
    return [y - shift for y in placed]


def plot(title, rows):
    """rows: (name, bytes per token, mean KLD above 0). Returns the image's text."""
    rows = [row for row in rows if row[2] > 0]
    low, high = min(r[2] for r in rows) / 1.5, max(r[2] for r in rows) * 1.5
    most = max(r[1] for r in rows) * 1.04

    def x_of(size):
        return LEFT + size / most * (WIDTH - LEFT - RIGHT)

    def y_of(kld):
        return TOP + math.log(high / kld) / math.log(high / low) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="22" font-size="14">{html.escape(title)}</text>']
    for kld in ticks(low, high):
        out.append(f'<path d="M{LEFT} {y_of(kld):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 8}" y="{y_of(kld) + 4:.1f}" text-anchor="end">{kld:g}</text>')
    step = 10 ** math.floor(math.log10(most))
    step = step / 2 if most / step < 3 else step
    for i in range(int(most / step) + 1):
        out.append(f'<text x="{x_of(i * step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{i * step:g}</text>')
    out.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="black"/>'
               f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 18}" text-anchor="middle">bytes per token</text>'
               f'<text transform="translate(20 {HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">mean KLD, nats</text>')
    for i, (_, colour, meaning) in enumerate(COLOURS):
        x = WIDTH - RIGHT + 10
        out.append(f'<circle cx="{x}" cy="{TOP + 16 * i}" r="4" fill="{colour}"/>'
                   f'<text x="{x + 9}" y="{TOP + 16 * i + 4}">{meaning}</text>')
    columns = {}
    for row in rows:  # names beside points of about the same size share a column
        columns.setdefault(round(x_of(row[1]) / 60), []).append(row)
    for column in columns.values():
        column.sort(key=lambda row: y_of(row[2]))
        left = column[0][1] < 0.45 * most  # where there is more room
        x_text = min(x_of(row[1]) for row in column) - 14 if left else max(x_of(row[1]) for row in column) + 14
        for (name, size, kld), y in zip(column, spread([y_of(row[2]) for row in column])):
            colour = colour_of(name)
            out.append(f'<circle cx="{x_of(size):.1f}" cy="{y_of(kld):.1f}" r="4" fill="{colour}"/>'
                       f'<path d="M{x_of(size):.1f} {y_of(kld):.1f}L{x_text:.1f} {y:.1f}" stroke="{colour}" '
                       'stroke-width="0.5"/>'
                       f'<text x="{x_text + (-2 if left else 2):.1f}" y="{y + 4:.1f}" font-size="11" '
                       f'text-anchor="{"end" if left else "start"}">{html.escape(name)}</text>')
    return "\n".join(out + ["</svg>", ""])
