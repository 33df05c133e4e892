//! Figures as SVG, on white, so that they are legible on a page of any colour.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

const FONT: &str = "sans-serif";
const GRID: RGBColor = RGBColor(225, 225, 225);

/// A figure of one panel, or of several in two columns.
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) panels: Vec<Panel>,
}

/// Two axes and what is drawn between them.
pub(super) struct Panel {
    /// Shown above it if the figure has several panels.
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
    /// Place of the legend; none if absent.
    pub(super) legend: Option<SeriesLabelPosition>,
}

/// An axis with its ticks and their labels.
#[derive(Clone)]
pub(super) struct Axis {
    pub(super) label: String,
    pub(super) range: Range<f64>,
    pub(super) is_log: bool,
    pub(super) ticks: Vec<(f64, String)>,
}

/// Points of one contender.
pub(super) struct Series {
    pub(super) label: String,
    pub(super) colour: RGBColor,
    pub(super) mark: Mark,
    pub(super) points: Vec<Point>,
}

/// The shape of a series.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mark {
    /// A line through all points.
    Line,
    /// A thin line without points, for comparison.
    Rule,
    Dots,
    /// Bars of this width from `low` to `y`.
    Bars(f64),
    /// Bars of this height from the left edge to `x`.
    Rows(f64),
    /// A dot with its interval from `low` to `high`.
    Intervals,
}

#[derive(Clone, Copy)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Point {
    pub(super) fn new(x: f64, y: f64) -> Point {
        Point { x, y, low: 0.0, high: y }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let scale = |value: f64| if self.is_log { value.ln() } else { value };
        let [low, high] = [self.range.start, self.range.end].map(scale);
        let value = scale(value.clamp(self.range.start, self.range.end));
        start + (f64::from(end - start) * (value - low) / (high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|tick| tick.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|tick| tick.0 == *value);
        tick.map_or(String::new(), |tick| tick.1.clone())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a figure.
pub(super) fn svg(figure: &Figure) -> Result<String> {
    let mut text = String::new();
    let rows = figure.panels.len().div_ceil(2);
    let several = figure.panels.len() > 1;
    let size = match &figure.panels[..] {
        // A row of text for each of many names.
        [panel] => (760, (100 + 16 * panel.y.ticks.len() as u32).max(440)),
        _ => (860, 60 + 300 * rows as u32),
    };
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let root = root.margin(10, 4, 4, 4).titled(&figure.title, (FONT, 20))?;
        match several {
            true => {
                for (area, panel) in root.split_evenly((rows, 2)).iter().zip(&figure.panels) {
                    draw(area, panel, Some(&panel.title))?;
                }
            }
            false => draw(&root, &figure.panels[0], None)?,
        }
        root.present()?;
    }
    text.push('\n');
    Ok(text)
}

fn draw(area: &Area<'_>, panel: &Panel, title: Option<&String>) -> Result<()> {
    let mut builder = ChartBuilder::on(area);
    let longest = panel.y.ticks.iter().map(|tick| tick.1.len()).max().unwrap_or(0);
    builder.margin(12).x_label_area_size(44).y_label_area_size((36 + 7 * longest as u32).max(64));
    if let Some(title) = title {
        builder.caption(title, (FONT, 16));
    }
    let mut chart = builder.build_cartesian_2d(panel.x.clone(), panel.y.clone())?;
    chart
        .configure_mesh()
        .x_desc(&panel.x.label)
        .y_desc(&panel.y.label)
        .axis_desc_style((FONT, 14))
        .label_style((FONT, 13))
        .bold_line_style(GRID)
        .light_line_style(WHITE)
        .axis_style(RGBColor(90, 90, 90))
        .x_labels(panel.x.ticks.len().max(2))
        .y_labels(panel.y.ticks.len().max(2))
        .draw()?;
    for series in &panel.series {
        let colour = series.colour;
        let at = |point: &Point| (point.x, point.y);
        let line: Vec<(f64, f64)> = series.points.iter().map(at).collect();
        let dots = || line.iter().map(move |at| Circle::new(*at, 4, colour.filled()));
        let drawn = match series.mark {
            Mark::Line => {
                chart.draw_series(dots())?;
                chart.draw_series([PathElement::new(line.clone(), colour.stroke_width(2))])?
            }
            Mark::Rule => chart.draw_series([PathElement::new(line, colour.stroke_width(1))])?,
            Mark::Dots => chart.draw_series(dots())?,
            Mark::Bars(width) => chart.draw_series(series.points.iter().map(|point| {
                let corners =
                    [(point.x - width / 2.0, point.low), (point.x + width / 2.0, point.y)];
                Rectangle::new(corners, colour.filled())
            }))?,
            Mark::Rows(height) => chart.draw_series(series.points.iter().map(|point| {
                let left = panel.x.range.start;
                let corners = [(left, point.y - height / 2.0), (point.x, point.y + height / 2.0)];
                Rectangle::new(corners, colour.filled())
            }))?,
            Mark::Intervals => {
                chart.draw_series(dots())?;
                chart.draw_series(series.points.iter().map(|point| {
                    let ends = vec![(point.x, point.low), (point.x, point.high)];
                    PathElement::new(ends, colour.stroke_width(2))
                }))?
            }
        };
        if !series.label.is_empty() {
            let width = if series.mark == Mark::Rule { 1 } else { 4 };
            drawn.label(&series.label).legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(width))
            });
        }
    }
    if let Some(position) = &panel.legend {
        chart
            .configure_series_labels()
            .position(position.clone())
            .background_style(WHITE)
            .border_style(GRID)
            .label_font((FONT, 13))
            .draw()?;
    }
    Ok(())
}
