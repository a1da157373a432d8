package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"unicode/utf8"
)

// point is one measurement of a line: [x, y].
type point [2]float64

// chart is a picture of several lines.
type chart struct {
	title, x, y string
	logX, logY  bool
	lines       map[string][]point
	order       []string // of the lines; nil is that of the IPAM plugins
}

const (
	chartHeight           = 420.0
	chartLeft             = 70.0
	chartTop, chartBottom = 40.0, 50.0
	chartLetter           = 6.5 // the width of a letter of a line's name, about
	plotWidth             = 460.0
	plotHeight            = chartHeight - chartTop - chartBottom
)

// chartColors differ also for readers who cannot tell red from green.
var chartColors = []string{"#000000", "#d55e00", "#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#e69f00"}

// axis maps values to 0 … 1.
type axis struct {
	from, to float64
	log      bool
}

func newAxis(log bool, values []float64) axis {
	a := axis{from: math.Inf(1), to: math.Inf(-1), log: log}
	for _, v := range values {
		a.from, a.to = math.Min(a.from, v), math.Max(a.to, v)
	}
	if log {
		a.from, a.to = math.Pow(10, math.Floor(math.Log10(a.from))), math.Pow(10, math.Ceil(math.Log10(a.to)))
	} else {
		a.from = 0
		a.to *= 1.05
	}
	return a
}

func (a axis) position(v float64) float64 {
	if a.log {
		return (math.Log(v) - math.Log(a.from)) / (math.Log(a.to) - math.Log(a.from))
	}
	return (v - a.from) / (a.to - a.from)
}

// ticks returns round values: powers of ten, or steps of 1, 2 or 5 times one.
func (a axis) ticks() []float64 {
	var all []float64
	if a.log {
		for v := a.from; v <= a.to*1.01; v *= 10 {
			all = append(all, v)
		}
		return all
	}
	step := math.Pow(10, math.Floor(math.Log10(a.to)))
	for _, finer := range []float64{2, 2.5, 2} {
		if a.to/step < 4 {
			step /= finer
		}
	}
	for v := 0.0; v <= a.to; v += step {
		all = append(all, v)
	}
	return all
}

// width returns the width of the chart. The lines' names stand on the right.
func (c chart) width() float64 {
	maxLen := 27
	for name := range c.lines {
		maxLen = max(maxLen, utf8.RuneCountInString(name))
	}
	return chartLeft + plotWidth + 10 + math.Ceil(chartLetter*float64(maxLen))
}

// svg returns the chart as SVG.
func (c chart) svg() []byte {
	var xs, ys []float64
	for _, line := range c.lines {
		for _, p := range line {
			xs, ys = append(xs, p[0]), append(ys, p[1])
		}
	}
	ax, ay := newAxis(c.logX, xs), newAxis(c.logY, ys)
	px := func(v float64) float64 { return chartLeft + ax.position(v)*plotWidth }
	py := func(v float64) float64 { return chartTop + (1-ay.position(v))*plotHeight }

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n", c.width(), chartHeight)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	fmt.Fprintf(&b, `<text x="%g" y="22" font-size="14">%s</text>`+"\n", chartLeft, html.EscapeString(c.title))
	for _, v := range ax.ticks() {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%g" x2="%.1f" y2="%g" stroke="#ddd"/><text x="%.1f" y="%g" text-anchor="middle">%g</text>`+"\n",
			px(v), chartTop, px(v), chartTop+plotHeight, px(v), chartTop+plotHeight+16, v)
	}
	for _, v := range ay.ticks() {
		fmt.Fprintf(&b, `<line x1="%g" y1="%.1f" x2="%g" y2="%.1f" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%g</text>`+"\n",
			chartLeft, py(v), chartLeft+plotWidth, py(v), chartLeft-6, py(v)+4, v)
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`+"\n", chartLeft+plotWidth/2, chartHeight-12, c.x)
	fmt.Fprintf(&b, `<text transform="translate(16 %g) rotate(-90)" text-anchor="middle">%s</text>`+"\n", chartTop+plotHeight/2, c.y)
	i := 0
	order := c.order
	if order == nil {
		order = clusterPlugins
	}
	for _, name := range order {
		line, ok := c.lines[name]
		if !ok {
			continue
		}
		color := chartColors[i%len(chartColors)]
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, color)
		for _, p := range line {
			fmt.Fprintf(&b, "%.1f,%.1f ", px(p[0]), py(p[1]))
		}
		fmt.Fprintln(&b, `"/>`)
		for _, p := range line {
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px(p[0]), py(p[1]), color)
		}
		fmt.Fprintf(&b, `<text x="%g" y="%g" fill="%s">%s</text>`+"\n", chartLeft+plotWidth+10, chartTop+14+float64(i)*18, color, html.EscapeString(name))
		i++
	}
	fmt.Fprintln(&b, "</svg>")
	return b.Bytes()
}
