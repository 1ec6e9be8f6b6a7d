//! Learning curves of training runs, drawn as SVG from the CSV files that they write: `train.csv`
//! with the columns `step` and `loss`, `dev.csv` with `step`, `set`, `language` and `accuracy`, in
//! which the language `*` is the mean. Other columns are ignored.

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

/// A CSV file without quoting: the columns asked for, line by line.
fn read_columns(path: &Path, names: &[&str]) -> Result<Vec<Vec<String>>, CurveError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| CurveError::Io(file.clone(), e))?;
    let wrong = |message: String| CurveError::Csv(file.clone(), message);
    let mut lines = text.lines().enumerate();
    let header: Vec<&str> = lines
        .next()
        .map(|(_, line)| line.split(',').map(str::trim).collect())
        .unwrap_or_default();
    let places = names
        .iter()
        .map(|name| {
            let place = header.iter().position(|h| h == name);
            place.ok_or_else(|| wrong(format!("there is no column \"{name}\"")))
        })
        .collect::<Result<Vec<usize>, _>>()?;
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            if cells.len() != header.len() {
                return Err(wrong(format!(
                    "line {} has {} columns instead of {}",
                    number + 1,
                    cells.len(),
                    header.len()
                )));
            }
            Ok(places.iter().map(|p| cells[*p].to_owned()).collect())
        })
        .collect()
}

fn number(path: &Path, cell: &str) -> Result<f64, CurveError> {
    let wrong = || {
        CurveError::Csv(
            path.display().to_string(),
            format!("\"{cell}\" is no number"),
        )
    };
    cell.parse().map_err(|_| wrong())
}

/// Curves of one or several runs: the loss of each, and the mean accuracy of each on every dev
/// set. Runs are told apart by `name` where there are several.
///
/// # Errors
/// [`CurveError::Io`] or [`CurveError::Csv`].
pub fn read_runs(runs: &[(String, &Path)]) -> Result<Vec<Panel>, CurveError> {
    let mut losses = Panel {
        label: "loss".into(),
        series: Vec::new(),
    };
    let mut accuracies = Panel {
        label: "dev accuracy, %".into(),
        series: Vec::new(),
    };
    for (run, folder) in runs {
        let several = runs.len() > 1;
        let path = folder.join("train.csv");
        let mut points = Vec::new();
        for row in read_columns(&path, &["step", "loss"])? {
            points.push((number(&path, &row[0])?, number(&path, &row[1])?));
        }
        losses.push(if several { run.clone() } else { "loss".into() }, points);
        let path = folder.join("dev.csv");
        let mut sets: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for row in read_columns(&path, &["step", "set", "language", "accuracy"])? {
            if row[2] != "*" {
                continue;
            }
            let point = (number(&path, &row[0])?, 100.0 * number(&path, &row[3])?);
            match sets.iter_mut().find(|s| s.0 == row[1]) {
                Some(set) => set.1.push(point),
                None => sets.push((row[1].clone(), vec![point])),
            }
        }
        for (set, points) in sets {
            let name = if several {
                format!("{run}, {set}")
            } else {
                set
            };
            accuracies.push(name, points);
        }
    }
    let mut panels = vec![losses, accuracies];
    panels.retain(|p| !p.series.is_empty());
    if panels.is_empty() {
        let names: Vec<&str> = runs.iter().map(|r| r.0.as_str()).collect();
        return Err(CurveError::Csv(
            names.join(", "),
            "the run has no values yet".into(),
        ));
    }
    Ok(panels)
}

impl Panel {
    fn push(&mut self, name: String, mut points: Vec<(f64, f64)>) {
        points.retain(|p| p.0.is_finite() && p.1.is_finite());
        if !points.is_empty() {
            self.series.push(Series { name, points });
        }
    }
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
        head.draw_text(title, &style, (16, 14))
            .map_err(|e| failed(&e))?;
        // All panels have the same x axis, from 0, so that they can be read together.
        let points = panels
            .iter()
            .flat_map(|p| &p.series)
            .flat_map(|s| &s.points);
        let (_, right) = range(points.map(|p| p.0).chain([0.0]));
        for (area, panel) in body.split_evenly((panels.len(), 1)).iter().zip(panels) {
            draw_panel(area, x_label, right, panel).map_err(|e| failed(&e))?;
        }
        root.present().map_err(|e| failed(&e))?;
    }
    Ok(svg)
}

/// Smallest and largest value, a little apart from each other.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
        (l.min(v), h.max(v))
    });
    if high - low > 1e-12 * high.abs().max(1e-12) {
        (low, high)
    } else {
        (low - 0.5, low + 0.5)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_panel(
    area: &Area<'_>,
    x_label: &str,
    right: f64,
    panel: &Panel,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || panel.series.iter().flat_map(|s| s.points.iter());
    let (low, high) = range(points().map(|p| p.1));
    let room = (high - low) * 0.06;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..right, (low - room)..(high + room))?;
    let digits = match high - low {
        span if span < 0.1 => 3,
        span if span < 2.0 => 2,
        span if span < 10.0 => 1,
        _ => 0,
    };
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
            let dots = series
                .points
                .iter()
                .map(|p| Circle::new(*p, 3, colour.filled()));
            chart.draw_series(dots)?;
        }
    }
    if panel.series.len() > 1 {
        let corner = freest_corner(points(), right, (low, high));
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

/// Where the fewest points lie under a legend.
fn freest_corner<'a>(
    points: impl Iterator<Item = &'a (f64, f64)>,
    right: f64,
    (low, high): (f64, f64),
) -> SeriesLabelPosition {
    use SeriesLabelPosition::{LowerLeft, LowerRight, UpperLeft, UpperRight};
    let mut corners = [
        (UpperRight, 0),
        (LowerRight, 0),
        (UpperLeft, 0),
        (LowerLeft, 0),
    ];
    for (x, y) in points {
        // The shares of the panel that a legend of a few series covers.
        let sides = (*x < 0.3 * right, *x > 0.7 * right);
        let ends = (*y < low + 0.4 * (high - low), *y > low + 0.6 * (high - low));
        for (corner, count) in &mut corners {
            *count += usize::from(match corner {
                UpperRight => sides.1 && ends.1,
                LowerRight => sides.1 && ends.0,
                UpperLeft => sides.0 && ends.1,
                _ => sides.0 && ends.0,
            });
        }
    }
    let best = corners.into_iter().min_by_key(|(_, count)| *count);
    best.map_or(UpperRight, |(corner, _)| corner)
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
    if value < 0.0 {
        format!("−{out}")
    } else {
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legends_keep_away_from_points() {
        let corner = |y: fn(f64) -> f64| {
            let points: Vec<(f64, f64)> = (0..=100)
                .map(|i| (f64::from(i), y(f64::from(i) / 100.0)))
                .collect();
            freest_corner(points.iter(), 100.0, (0.0, 1.0))
        };
        use SeriesLabelPosition::{LowerRight, UpperLeft, UpperRight};
        assert!(matches!(corner(|x| (1.0 - x).powi(4)), UpperRight));
        assert!(matches!(corner(|x| 1.0 - (1.0 - x).powi(4)), LowerRight));
        // Low on the left, up and down on the right.
        assert!(matches!(
            corner(|x| if x > 0.5 { (x * 100.0) % 2.0 } else { 0.2 }),
            UpperLeft
        ));
    }

    #[test]
    fn a_run_becomes_two_panels() {
        let folder = tempfile::tempdir().expect("folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("write");
        };
        let runs = [("a <run>".to_owned(), folder.path())];
        write(
            "train.csv",
            "step,lr,loss\n50,0.1,7.5\n100,0.1,NaN\n150,0.1,3.25\n",
        );
        write(
            "dev.csv",
            "step,set,language,accuracy\n100,ntrex,*,0.25\n100,ntrex,de,0.5\n",
        );
        let panels = read_runs(&runs).expect("csv");
        assert_eq!(panels[0].series[0].points, [(50.0, 7.5), (150.0, 3.25)]);
        assert_eq!(panels[1].series.len(), 1);
        assert_eq!(panels[1].series[0].points, [(100.0, 25.0)]);
        let picture = draw(&runs[0].0, "step", &panels).expect("svg");
        assert!(picture.contains("a &lt;run&gt;") && picture.contains("dev accuracy"));
        write("train.csv", "step,loss\n0,x\n");
        let error = read_runs(&runs).expect_err("not a number").to_string();
        assert!(error.contains("\"x\" is no number"), "{error}");
        write("train.csv", "step,lr\n0,1\n");
        assert!(
            read_runs(&runs)
                .expect_err("no loss")
                .to_string()
                .contains("column \"loss\"")
        );
    }
}
