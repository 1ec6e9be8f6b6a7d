//! Runs the rows of a table, each step as a process of this program, so that a failure ends one row alone and memory is
//! given back.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::outcome::{Outcome, Outcomes};
use super::table::{FigureSpec, PaperTable, Scale, fill};

/// Where the program and the files of a run are.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'a> {
    /// The `laser` program that the runs call.
    pub program: &'a Path,
    /// `{data}`.
    pub data: &'a Path,
    /// `{configs}`.
    pub configs: &'a Path,
    /// `{shared}`.
    pub shared: &'a Path,
    /// `{out}`; outcomes are kept in it, so that a second call goes on.
    pub out: &'a Path,
}

/// The name of the file with outcomes.
const OUTCOMES: &str = "outcomes.json";

/// Runs what has no outcome yet; `say` is told what is run.
///
/// # Errors
/// What failed, with its arguments and the end of what it said.
pub fn run(
    table: &PaperTable,
    scale: Scale,
    paths: Paths<'_>,
    threads: Option<usize>,
    say: &mut dyn FnMut(&str),
) -> Result<Outcomes, String> {
    let path = paths.out.join(OUTCOMES);
    std::fs::create_dir_all(paths.out).map_err(|e| format!("{}: {e}", paths.out.display()))?;
    let mut outcomes = Outcomes::read(&path)?;
    let mut base = table.of_scale(scale).clone();
    for (name, folder) in [
        ("data", paths.data),
        ("out", paths.out),
        ("shared", paths.shared),
        ("configs", paths.configs),
    ] {
        base.insert(name.into(), folder.to_string_lossy().into_owned());
    }
    let process = |arguments: &[String], vars: &BTreeMap<String, String>| {
        let arguments = arguments.iter().map(|a| fill(a, vars));
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        call(paths.program, &arguments, threads)
    };
    let waiting = |outcomes: &Outcomes| {
        let open =
            |r: &&super::table::Row| r.not_run.is_none() && !outcomes.0.contains_key(&r.name);
        table.rows.iter().filter(open).cloned().collect::<Vec<_>>()
    };
    let rows = waiting(&outcomes);
    if rows.is_empty() {
        return Ok(outcomes);
    }
    say(&format!("{}: preparing", table.title));
    for step in &table.prepare {
        let made = fill(&step.makes, &base)?;
        let made = Path::new(&made);
        if !made.exists() {
            if let Some(folder) = made.parent() {
                std::fs::create_dir_all(folder)
                    .map_err(|e| format!("{}: {e}", folder.display()))?;
            }
            process(&step.args, &base)?;
        }
    }
    for row in rows {
        say(&format!("{}: {}", table.title, row.name));
        let mut vars = base.clone();
        vars.extend(row.vars.clone());
        vars.insert("row".into(), row.folder());
        let begin = Instant::now();
        for step in row.steps.as_ref().unwrap_or(&table.steps) {
            process(step, &vars)?;
        }
        let spec = row.figure.as_ref().unwrap_or(&table.figure);
        let figure = figure(spec, &process(&spec.args, &vars)?)?;
        let seconds = begin.elapsed().as_secs_f64();
        outcomes.0.insert(row.name, Outcome { figure, seconds });
        outcomes.write(&path)?;
    }
    Ok(outcomes)
}

/// What a process of the program prints.
fn call(program: &Path, arguments: &[String], threads: Option<usize>) -> Result<String, String> {
    let named = || format!("laser {}", arguments.join(" "));
    let mut command = Command::new(program);
    if let Some(threads) = threads {
        command.arg("--threads").arg(threads.to_string());
    }
    let output = command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", named()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{} failed: {}", named(), said.trim()));
    }
    let said = String::from_utf8(output.stdout).map_err(|e| format!("{}: {e}", named()))?;
    // A run that was told to stop ends well, with a model that is not yet what is to be measured.
    if arguments.first().is_some_and(|a| a == "train") && said.contains("(interrupted") {
        return Err(format!(
            "{} was interrupted; the next call goes on",
            named()
        ));
    }
    Ok(said)
}

/// The mean of the numbers that are asked for.
fn figure(spec: &FigureSpec, json: &str) -> Result<f64, String> {
    let json: serde_json::Value = serde_json::from_str(json).map_err(|e| e.to_string())?;
    let mut sum = 0.0;
    for pointer in &spec.pointers {
        let value = json.pointer(pointer).and_then(serde_json::Value::as_f64);
        sum += value.ok_or_else(|| format!("no number at \"{pointer}\" of {json}"))?;
    }
    if spec.pointers.is_empty() {
        return Err("figure.pointers names nothing".into());
    }
    Ok(spec.factor * sum / spec.pointers.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_that_was_interrupted_is_not_measured() {
        let echo = |first: &str, said: &str| {
            let arguments = [first.to_owned(), said.to_owned()];
            call(Path::new("echo"), &arguments, None)
        };
        let said = "5 steps, loss 1.0 (interrupted; --resume goes on); models in x";
        assert!(echo("train", said).unwrap_err().contains("was interrupted"));
        assert!(echo("embed", said).unwrap().contains("5 steps"));
        assert!(echo("train", "5 steps").is_ok());
        assert!(call(Path::new("false"), &[], None).is_err());
    }
}
