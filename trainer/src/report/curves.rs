//! Learning curves: a CSV file of a run drawn as SVG.
//!
//! The first column of the CSV is the x axis (steps); a column whose name begins with `loss` goes
//! to the upper panel, one that begins with `dev` to the lower, others are ignored. Empty cells
//! are gaps.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points in the order of x; values that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// Curves with common axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Label of the y axis.
    pub label: String,
    /// The curves.
    pub series: Vec<Series>,
}

/// Failures of drawing.
#[derive(Debug, thiserror::Error)]
pub enum CurveError {
    /// A file could not be read or written.
    #[error("could not access \"{0}\": {1}")]
    Io(String, std::io::Error),
    /// The CSV is malformed or has nothing to draw.
    #[error("\"{0}\": {1}")]
    Csv(String, String),
    /// The picture could not be made.
    #[error("could not draw: {0}")]
    Draw(String),
}

/// Colours that differ for the colour-blind as well (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

const WIDTH: u32 = 860;
const PANEL_HEIGHT: u32 = 320;
const TITLE_HEIGHT: u32 = 40;

/// Reads the panels of a CSV file.
///
/// # Errors
/// [`CurveError::Io`] or [`CurveError::Csv`].
pub fn read_csv(path: &Path) -> Result<(String, Vec<Panel>), CurveError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| CurveError::Io(name.clone(), e))?;
    let wrong = |message: String| CurveError::Csv(name.clone(), message);
    let mut lines = text.lines().enumerate();
    let header: Vec<&str> = lines
        .next()
        .map(|(_, line)| line.split(',').map(str::trim).collect())
        .ok_or_else(|| wrong("the file is empty".into()))?;
    let series = |i: &usize| Series { name: header[*i].to_owned(), points: Vec::new() };
    let columns = |start: &str| -> Vec<usize> {
        (1..header.len()).filter(|i| header[*i].starts_with(start)).collect()
    };
    let (losses, devs) = (columns("loss"), columns("dev"));
    let mut panels = vec![
        (Panel { label: "loss".into(), series: losses.iter().map(series).collect() }, losses),
        (Panel { label: "dev accuracy".into(), series: devs.iter().map(series).collect() }, devs),
    ];
    for (number, line) in lines.filter(|(_, l)| !l.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let parse = |cell: &str| {
            cell.parse::<f64>()
                .map_err(|_| wrong(format!("line {}: \"{cell}\" is not a number", number + 1)))
        };
        if cells.len() != header.len() {
            return Err(wrong(format!("line {} has {} columns", number + 1, cells.len())));
        }
        let x = parse(cells[0])?;
        for (panel, columns) in &mut panels {
            for (series, column) in panel.series.iter_mut().zip(columns.iter()) {
                if !cells[*column].is_empty() {
                    let y = parse(cells[*column])?;
                    if y.is_finite() {
                        series.points.push((x, y));
                    }
                }
            }
        }
    }
    let mut panels: Vec<Panel> = panels.into_iter().map(|p| p.0).collect();
    for panel in &mut panels {
        panel.series.retain(|s| !s.points.is_empty());
    }
    panels.retain(|p| !p.series.is_empty());
    if panels.is_empty() {
        return Err(wrong("there is no column loss… or dev… with values".into()));
    }
    Ok((header[0].to_owned(), panels))
}

/// Draws the curves of a CSV file as SVG.
///
/// # Errors
/// As [`read_csv`] and [`draw`].
pub fn csv_to_svg(csv: &Path, svg: &Path, title: &str) -> Result<(), CurveError> {
    let (x_label, panels) = read_csv(csv)?;
    let picture = draw(title, &x_label, &panels)?;
    std::fs::write(svg, picture).map_err(|e| CurveError::Io(svg.display().to_string(), e))
}

/// Draws panels one below the other; returns the SVG.
///
/// # Errors
/// [`CurveError::Draw`].
pub fn draw(title: &str, x_label: &str, panels: &[Panel]) -> Result<String, CurveError> {
    let mut svg = String::new();
    let height = TITLE_HEIGHT + PANEL_HEIGHT * panels.len() as u32;
    let failed = |e: &dyn std::fmt::Display| CurveError::Draw(e.to_string());
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| failed(&e))?;
        let (head, body) = root.split_vertically(TITLE_HEIGHT);
        let style = ("sans-serif", 18).into_font().color(&BLACK);
        head.draw_text(title, &style, (16, 14)).map_err(|e| failed(&e))?;
        for (area, panel) in body.split_evenly((panels.len(), 1)).iter().zip(panels) {
            draw_panel(area, x_label, panel).map_err(|e| failed(&e))?;
        }
        root.present().map_err(|e| failed(&e))?;
    }
    Ok(svg)
}

/// Smallest and largest value, a little apart from each other.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if high - low > 1e-12 * high.abs().max(1e-12) {
        (low, high)
    } else {
        (low - 0.5, low + 0.5)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_panel(area: &Area<'_>, x_label: &str, panel: &Panel) -> Result<(), Box<dyn std::error::Error>> {
    let points = || panel.series.iter().flat_map(|s| s.points.iter());
    let (left, right) = range(points().map(|p| p.0));
    let (low, high) = range(points().map(|p| p.1));
    let room = (high - low) * 0.06;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(66)
        .build_cartesian_2d(left..right, (low - room)..(high + room))?;
    let digits = if high - low < 0.1 { 3 } else { 2 };
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .axis_style(RGBColor(90, 90, 90))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .x_desc(x_label)
        .y_desc(&panel.label)
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|x| grouped(*x))
        .y_label_formatter(&|y| format!("{y:.digits$}"))
        .draw()?;
    for (i, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let line = LineSeries::new(series.points.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(line)?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        if series.points.len() <= 40 {
            let dots = series.points.iter().map(|p| Circle::new(*p, 3, colour.filled()));
            chart.draw_series(dots)?;
        }
    }
    if panel.series.len() > 1 {
        // Losses fall to the lower right and accuracies rise to the upper right, so that the
        // opposite corner is free.
        let falls = panel.series[0].points.first().map(|p| p.1)
            > panel.series[0].points.last().map(|p| p.1);
        let corner =
            if falls { SeriesLabelPosition::UpperRight } else { SeriesLabelPosition::LowerRight };
        chart
            .configure_series_labels()
            .position(corner)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .label_font(("sans-serif", 13))
            .draw()?;
    }
    Ok(())
}

/// `12 000` for 12000; fractions of small axes are kept.
fn grouped(value: f64) -> String {
    if value.fract() != 0.0 {
        return format!("{value}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    if value < 0.0 { format!("−{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_becomes_two_panels() {
        let folder = tempfile::tempdir().expect("folder");
        let (csv, svg) = (folder.path().join("run.csv"), folder.path().join("run.svg"));
        std::fs::write(&csv, "step,loss,lr,dev_ntrex,dev_tanaka\n0,7.5,0.1,,\n100,3.25,0.1,0.25,0.5\n").expect("write");
        let (x, panels) = read_csv(&csv).expect("csv");
        assert_eq!((x.as_str(), panels.len()), ("step", 2));
        assert_eq!(panels[0].series[0].points, [(0.0, 7.5), (100.0, 3.25)]);
        assert_eq!(panels[1].series[1].points, [(100.0, 0.5)]);
        csv_to_svg(&csv, &svg, "a <run>").expect("svg");
        let picture = std::fs::read_to_string(&svg).expect("read");
        assert!(picture.contains("a &lt;run&gt;") && picture.contains("dev_tanaka"));
        std::fs::write(&csv, "step,loss\n0,x\n").expect("write");
        let error = read_csv(&csv).expect_err("not a number").to_string();
        assert!(error.contains("line 2"), "{error}");
        std::fs::write(&csv, "step,lr\n0,1\n").expect("write");
        assert!(read_csv(&csv).is_err());
    }
}
