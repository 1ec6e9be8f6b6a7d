//! Recall against speed, drawn as SVG: what a wider search of each contender buys, and what it costs.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use plotters::prelude::*;

/// The searches of one contender, a width each.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Recall and queries a second, in the order of widths.
    pub points: Vec<(f64, f64)>,
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
    let points = || curves.iter().flat_map(|curve| &curve.points);
    ensure!(points().count() > 0, "there is nothing to draw");
    let least = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
    let slowest = least(|point| point.1);
    let fastest = -least(|point| -point.1);
    let mut left = (least(|point| point.0) * 50.0).floor() / 50.0;
    // The legend's corner, which a contender that is slow and finds little would be hidden in.
    let is_low = |speed: f64| (speed / slowest).ln() < LEGEND * (fastest / slowest).ln();
    if points().any(|(recall, speed)| *recall < left + LEGEND * (1.0 - left) && is_low(*speed)) {
        left -= LEGEND * (1.0 - left);
    }
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        picture(&root, title, curves, (left, slowest, fastest)).map_err(|e| anyhow!("{e}"))?;
    }
    std::fs::write(path, svg).with_context(|| format!("writing {}", path.display()))
}

fn picture(
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    curves: &[Curve],
    (left, slowest, fastest): (f64, f64, f64),
) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(left..1.0, (slowest * 0.8..fastest * 1.3).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .axis_style(RGBColor(90, 90, 90))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .x_desc("recall@10")
        .y_desc("queries a second")
        .x_label_formatter(&|recall| format!("{recall:.3}"))
        .y_label_formatter(&|speed| format!("{speed:.0}"))
        .draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let points = || curve.points.iter().copied();
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    // Whoever wants more recall gets fewer answers: this corner is free, or made so.
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
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
}
