//! A table of a paper: a TOML file that says how each of its rows is trained and measured.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::Deserialize;

/// How much is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// Minutes on two cores: shows the order of the contestants.
    #[default]
    Small,
    /// The paper's setting, as far as the data allow.
    Full,
}

/// A table. Arguments may contain `{name}`: a variable of the row, of the scale, or `data`, `out` (the folder of the
/// table), `shared` (that of all tables of one scale), `configs` (that of its file) and `row` (the name of the row as a
/// folder). Names of rows may contain variables of the scale. An argument that is empty once it is filled in is left
/// out: an option that one of the scales has.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperTable {
    /// What is compared.
    pub title: String,
    /// The paper and its table.
    pub source: String,
    /// The figure of the paper.
    pub paper_measure: String,
    /// The figure that is measured here.
    pub measure: String,
    /// The data that are trained on.
    pub data: String,
    /// Whether each of the figures is better when it is higher.
    #[serde(default = "yes")]
    pub paper_higher: bool,
    /// The same of ours.
    #[serde(default = "yes")]
    pub higher: bool,
    /// What is to be known about the comparison.
    #[serde(default)]
    pub notes: String,
    /// Variables of [`Scale::Small`].
    #[serde(default)]
    pub small: BTreeMap<String, String>,
    /// Variables of [`Scale::Full`].
    #[serde(default)]
    pub full: BTreeMap<String, String>,
    /// What is run before the rows.
    #[serde(default)]
    pub prepare: Vec<Preparation>,
    /// Arguments of what trains a row.
    #[serde(default)]
    pub steps: Vec<Vec<String>>,
    /// How a row is measured.
    pub figure: FigureSpec,
    /// The contestants.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

fn yes() -> bool {
    true
}

/// Something that all rows need.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preparation {
    /// The file that it makes; where there is one, nothing is run.
    pub makes: String,
    /// Arguments of the `laser` program; `{name}` is replaced by a variable.
    pub args: Vec<String>,
}

/// A figure in what a run prints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureSpec {
    /// Arguments; they print JSON.
    pub args: Vec<String>,
    /// Places of numbers in the JSON (RFC 6901), whose mean is the figure.
    pub pointers: Vec<String>,
    /// What they are multiplied by, 100 for percent.
    #[serde(default = "one")]
    pub factor: f64,
}

fn one() -> f64 {
    1.0
}

/// A contestant.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Name in the table and in outcomes, where it is unique.
    pub name: String,
    /// The paper's figure, if it has one.
    pub paper: Option<f64>,
    /// Why it is not run here.
    pub not_run: Option<String>,
    /// Its variables.
    #[serde(default)]
    pub vars: BTreeMap<String, String>,
    /// What trains it instead of the table's steps.
    pub steps: Option<Vec<Vec<String>>>,
    /// How it is measured, instead of as the table says.
    pub figure: Option<FigureSpec>,
}

impl Row {
    /// Its name as a folder.
    #[must_use]
    pub fn folder(&self) -> String {
        let keep = |c: char| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        };
        self.name.chars().map(keep).collect()
    }
}

impl PaperTable {
    /// Reads a table.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed.
    pub fn read(path: &Path) -> Result<Self, String> {
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| fail(&e))?;
        toml::from_str(&text).map_err(|e| fail(&e))
    }

    /// Fills the variables of a scale in the names of rows.
    ///
    /// # Errors
    /// If a variable is not known, or two rows have one name.
    pub fn name_rows(&mut self, scale: Scale) -> Result<(), String> {
        let vars = self.of_scale(scale).clone();
        let mut folders = HashSet::new();
        for row in &mut self.rows {
            row.name = fill(&row.name, &vars)?;
            if !folders.insert(row.folder()) {
                return Err(format!("two rows are called \"{}\"", row.name));
            }
        }
        Ok(())
    }

    /// Variables of a scale.
    #[must_use]
    pub fn of_scale(&self, scale: Scale) -> &BTreeMap<String, String> {
        match scale {
            Scale::Small => &self.small,
            Scale::Full => &self.full,
        }
    }

    /// The same, to be changed.
    pub fn of_scale_mut(&mut self, scale: Scale) -> &mut BTreeMap<String, String> {
        match scale {
            Scale::Small => &mut self.small,
            Scale::Full => &mut self.full,
        }
    }
}

/// An argument with its variables filled in; a word in braces that is no variable is an error. Other braces (TOML of
/// `--set`) stay.
///
/// # Errors
/// The name that is not known.
pub fn fill(argument: &str, vars: &BTreeMap<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = argument;
    while let Some(begin) = rest.find('{') {
        let (before, after) = rest.split_at(begin);
        out += before;
        let end = after.find('}').unwrap_or(0);
        let name = after.get(1..end).unwrap_or("");
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(is_name) {
            out.push('{');
            rest = &after[1..];
            continue;
        }
        let value = vars.get(name);
        let value = value.ok_or_else(|| format!("no variable \"{name}\" for \"{argument}\""))?;
        // A variable may consist of others, not of itself.
        let others = vars.iter().filter(|v| v.0 != name);
        let others = others.map(|(name, value)| (name.clone(), value.clone()));
        out += &fill(value, &others.collect())?;
        rest = &after[end + 1..];
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_filled_in_and_other_braces_stay() {
        let vars = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        let filled = fill("x{a}y={ b = {a}, c = \"{}\" }", &vars);
        assert_eq!(filled.as_deref(), Ok("x1y={ b = 1, c = \"{}\" }"));
        assert_eq!(fill("{", &vars).as_deref(), Ok("{"));
        let nested = [("a", "1"), ("b", "{a}2"), ("c", "{c}")];
        let nested = nested.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        assert_eq!(fill("{b}{b}", &nested).as_deref(), Ok("1212"));
        assert!(fill("{c}", &nested).is_err());
        assert!(fill("{other}", &vars).unwrap_err().contains("\"other\""));
    }

    #[test]
    fn every_table_of_the_repository_is_well_formed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/papers");
        let mut tables = 0;
        for paper in std::fs::read_dir(folder).unwrap() {
            for file in std::fs::read_dir(paper.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if !name.ends_with(".toml") || name.starts_with("train-") {
                    continue;
                }
                tables += 1;
                for scale in [Scale::Small, Scale::Full] {
                    let mut table = PaperTable::read(&path).unwrap();
                    table.name_rows(scale).unwrap();
                    for row in table.rows.iter().filter(|r| r.not_run.is_none()) {
                        let mut vars = table.of_scale(scale).clone();
                        vars.extend(row.vars.clone());
                        for name in ["data", "out", "shared", "configs", "row"] {
                            vars.insert(name.into(), name.into());
                        }
                        let steps = row.steps.as_ref().unwrap_or(&table.steps);
                        let prepared = table
                            .prepare
                            .iter()
                            .flat_map(|p| p.args.iter().chain([&p.makes]));
                        let figure = row.figure.as_ref().unwrap_or(&table.figure);
                        let all = steps.iter().chain([&figure.args]).flatten();
                        for argument in prepared.chain(all) {
                            fill(argument, &vars).unwrap_or_else(|e| panic!("{name}: {e}"));
                        }
                    }
                }
            }
        }
        assert!(tables > 0);
    }
}
