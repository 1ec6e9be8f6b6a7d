//! Curves, drawn as SVG: recall against speed, which is what a wider search of each contender buys and what it
//! costs, and other figures against what they grow with.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use plotters::prelude::*;

/// The figures of one contender.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// To the right, and upwards; in the order in which a line joins them. Recall and queries a second, in the order of widths, where it is
    /// [`draw`] that draws it.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// The value where the curve first passes `x`, between two points of it as if its logarithm grew evenly; of the
    /// first point where it begins beyond, `None` where it never gets there.
    pub fn at(&self, x: f64) -> Option<f64> {
        let after = self.points.iter().position(|point| point.0 >= x)?;
        let (x2, y2) = self.points[after];
        let Some((x1, y1)) = after.checked_sub(1).map(|before| self.points[before]) else {
            return Some(y2);
        };
        let share = (x - x1) / (x2 - x1);
        Some((y1.ln() * (1.0 - share) + y2.ln() * share).exp())
    }
}

/// What the axes of a picture say, and from where to where they go; the vertical one is logarithmic.
struct Axes<'a> {
    x: (&'a str, Range<f64>),
    y: (&'a str, Range<f64>),
    /// How values to the right are written.
    label: fn(&f64) -> String,
    legend: SeriesLabelPosition,
    /// The radius of a point.
    point: u32,
}

/// Colours that differ for the colour-blind as well (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];
const SIZE: (u32, u32) = (860, 460);
/// How much of the width and of the height the legend takes.
const LEGEND: f64 = 0.35;

/// Draws curves into a file: recall to the right, queries a second upwards, logarithmically.
///
/// # Errors
/// When there is nothing to draw, or the file cannot be written.
pub fn draw(path: &Path, title: &str, curves: &[Curve]) -> Result<()> {
    let bounds = Bounds::of(curves)?;
    let mut left = (bounds.x.start * 50.0).floor() / 50.0;
    let Range { start, end } = bounds.y;
    // The legend's corner, which a contender that is slow and finds little would be hidden in.
    let is_low = |speed: f64| (speed / start).ln() < LEGEND * (end / start).ln();
    let is_left = |recall: f64| recall < left + LEGEND * (1.0 - left);
    let mut points = curves.iter().flat_map(|curve| &curve.points);
    if points.any(|(recall, speed)| is_left(*recall) && is_low(*speed)) {
        left -= LEGEND * (1.0 - left);
    }
    let axes = Axes {
        x: ("recall@10", left..1.0),
        y: ("queries a second", start * 0.8..end * 1.3),
        label: |recall| format!("{recall:.3}"),
        // Whoever wants more recall gets fewer answers: this corner is free, or made so.
        legend: SeriesLabelPosition::LowerLeft,
        point: 3,
    };
    save(path, title, &axes, curves)
}

/// Draws curves into a file: `right` from zero on, `up` logarithmically.
///
/// # Errors
/// When there is nothing to draw, or the file cannot be written.
pub fn draw_growth(
    path: &Path,
    title: &str,
    right: &str,
    up: &str,
    curves: &[Curve],
) -> Result<()> {
    let bounds = Bounds::of(curves)?;
    let many = curves.iter().any(|curve| curve.points.len() > 50);
    let axes = Axes {
        x: (right, 0.0..bounds.x.end * 1.02),
        y: (up, bounds.y.start * 0.8..bounds.y.end * 3.0),
        label: |value| format!("{value:.0}"),
        legend: SeriesLabelPosition::UpperLeft,
        point: if many { 1 } else { 3 },
    };
    save(path, title, &axes, curves)
}

/// From where to where points go.
struct Bounds {
    x: Range<f64>,
    y: Range<f64>,
}

impl Bounds {
    fn of(curves: &[Curve]) -> Result<Self> {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        ensure!(points().count() > 0, "there is nothing to draw");
        let range = |of: fn(&(f64, f64)) -> f64| {
            let least = points().map(of).fold(f64::INFINITY, f64::min);
            least..points().map(of).fold(least, f64::max)
        };
        Ok(Self {
            x: range(|point| point.0),
            y: range(|point| point.1),
        })
    }
}

fn save(path: &Path, title: &str, axes: &Axes<'_>, curves: &[Curve]) -> Result<()> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        picture(&root, title, axes, curves).map_err(|e| anyhow!("{e}"))?;
    }
    std::fs::write(path, svg).with_context(|| format!("writing {}", path.display()))
}

fn picture(
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    axes: &Axes<'_>,
    curves: &[Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(axes.x.1.clone(), axes.y.1.clone().log_scale())?;
    // Less than ten of what there is has decimals.
    let decimals = usize::from(axes.y.1.start < 10.0) + usize::from(axes.y.1.start < 1.0);
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .axis_style(RGBColor(90, 90, 90))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .x_desc(axes.x.0)
        .y_desc(axes.y.0)
        .x_label_formatter(&axes.label)
        .y_label_formatter(&|value| format!("{value:.decimals$}"))
        .draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let points = || curve.points.iter().copied();
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        let point = axes.point;
        chart.draw_series(points().map(|at| Circle::new(at, point, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(axes.legend.clone())
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 13))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_have_names_and_points() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("curve.svg");
        assert!(draw(&path, "nothing", &[]).is_err());
        let curve = |name: &str, points: &[(f64, f64)]| Curve {
            name: name.into(),
            points: points.to_vec(),
        };
        let curves = [
            curve("laser", &[(0.9, 2000.0), (0.99, 500.0)]),
            curve("another", &[(0.95, 100.0)]),
        ];
        draw(&path, "a title", &curves).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["a title", "laser", "another", "recall@10"] {
            assert!(svg.contains(text), "{text}");
        }
        // Points, each of them a circle.
        assert_eq!(svg.matches("<circle").count(), 3);
    }

    #[test]
    fn growth_has_names_and_points() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("growth.svg");
        assert!(draw_growth(&path, "nothing", "rows", "seconds", &[]).is_err());
        let curve = Curve {
            name: "laser".into(),
            points: vec![(1e5, 0.5), (1e6, 7.0)],
        };
        draw_growth(&path, "a title", "rows", "seconds", &[curve]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["a title", "laser", "rows", "seconds", "1000000", "1.00"] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn values_lie_between_the_points() {
        let curve = Curve {
            name: String::new(),
            points: vec![(0.9, 1000.0), (0.95, 100.0), (0.94, 50.0), (0.99, 10.0)],
        };
        assert_eq!(curve.at(0.8), Some(1000.0));
        assert!((curve.at(0.95).unwrap() - 100.0).abs() < 1e-6);
        assert!((curve.at(0.925).unwrap() - 316.2).abs() < 0.1);
        assert!((curve.at(0.965).unwrap() - 22.36).abs() < 0.01);
        assert_eq!(curve.at(0.995), None);
    }
}
