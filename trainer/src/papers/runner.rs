//! Runs the rows of a table, each step as a process of this program, so that a failure ends one row alone and memory is
//! given back.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::outcome::{Outcome, Outcomes};
use super::table::{FigureSpec, PaperTable, Row, Scale, fill};

/// Where a table is run.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'a> {
    /// The `laser` program, which runs each step.
    pub program: &'a Path,
    /// `{data}` in arguments: the folder of corpora and sets.
    pub data: &'a Path,
    /// `{configs}` in arguments: the folder of training configurations.
    pub configs: &'a Path,
    /// `{shared}`: of one scale and one set of variables, as `out`.
    pub shared: &'a Path,
    /// `{out}`; outcomes are kept in it, so that a second call goes on.
    pub out: &'a Path,
}

/// The name of the file with outcomes.
pub const OUTCOMES: &str = "outcomes.json";

/// Runs what has no outcome yet; `say` is told what is run. What the steps say themselves goes to standard error. A row that
/// fails leaves its reason in the outcomes, and the others are run.
///
/// # Errors
/// If outcomes cannot be read or written.
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
    // What failed is tried again.
    outcomes.failures.clear();
    let open = |r: &&Row| r.not_run.is_none() && !outcomes.rows.contains_key(&r.name);
    let rows: Vec<Row> = table.rows.iter().filter(open).cloned().collect();
    if rows.is_empty() {
        return Ok(outcomes);
    }
    let mut vars = table.of_scale(scale).clone();
    for (name, folder) in [
        ("data", paths.data),
        ("out", paths.out),
        ("shared", paths.shared),
        ("configs", paths.configs),
    ] {
        vars.insert(name.into(), folder.to_string_lossy().into_owned());
    }
    let runner = Runner {
        table,
        program: paths.program,
        threads,
    };
    say(&format!("{}: preparing", table.title));
    let prepared = runner.prepare(&vars, say);
    for row in rows {
        let result = match &prepared {
            Ok(()) => {
                say(&format!("{}: {}", table.title, row.name));
                runner.row(&row, &vars, say)
            }
            Err(error) => Err(error.clone()),
        };
        match result {
            Ok(outcome) => {
                outcomes.rows.insert(row.name, outcome);
            }
            Err(error) => {
                say("failed");
                outcomes.failures.insert(row.name, error);
            }
        }
        outcomes.write(&path)?;
    }
    Ok(outcomes)
}

/// What runs the steps of a table.
struct Runner<'a> {
    table: &'a PaperTable,
    program: &'a Path,
    threads: Option<usize>,
}

impl Runner<'_> {
    fn process(
        &self,
        arguments: &[String],
        vars: &BTreeMap<String, String>,
    ) -> Result<String, String> {
        let arguments = arguments.iter().map(|a| fill(a, vars));
        let mut arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        arguments.retain(|a| !a.is_empty());
        call(self.program, &arguments, self.threads)
    }

    /// Makes what all rows need and is not there.
    fn prepare(
        &self,
        vars: &BTreeMap<String, String>,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        for step in &self.table.prepare {
            let made = fill(&step.makes, vars)?;
            let made = Path::new(&made);
            if !made.exists() {
                if let Some(folder) = made.parent() {
                    std::fs::create_dir_all(folder)
                        .map_err(|e| format!("{}: {e}", folder.display()))?;
                }
                say(self.process(&step.args, vars)?.trim_end());
            }
        }
        Ok(())
    }

    /// Trains and measures a row.
    fn row(
        &self,
        row: &Row,
        vars: &BTreeMap<String, String>,
        say: &mut dyn FnMut(&str),
    ) -> Result<Outcome, String> {
        let mut vars = vars.clone();
        vars.extend(row.vars.clone());
        vars.insert("row".into(), row.folder());
        let begin = Instant::now();
        for step in row.steps.as_ref().unwrap_or(&self.table.steps) {
            say(self.process(step, &vars)?.trim_end());
        }
        let spec = row.figure.as_ref().unwrap_or(&self.table.figure);
        let figure = figure(spec, &self.process(&spec.args, &vars)?)?;
        let seconds = begin.elapsed().as_secs_f64();
        say(&format!("{figure:.1} after {:.1} minutes", seconds / 60.0));
        Ok(Outcome { figure, seconds })
    }
}

/// What a process of the program prints. What it says on standard error, its progress, goes to ours.
fn call(program: &Path, arguments: &[String], threads: Option<usize>) -> Result<String, String> {
    let named = || format!("laser {}", arguments.join(" "));
    let fail = |e: std::io::Error| format!("{}: {e}", named());
    let mut command = Command::new(program);
    command.arg("--parent").arg(std::process::id().to_string());
    if let Some(threads) = threads {
        command.arg("--threads").arg(threads.to_string());
    }
    let mut child = command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(fail)?;
    let errors = child.stderr.take();
    let listener = std::thread::spawn(move || match errors {
        Some(errors) => pass_on(errors, &mut std::io::stderr()),
        None => String::new(),
    });
    let output = child.wait_with_output().map_err(fail)?;
    let said = listener.join().unwrap_or_default();
    if !output.status.success() {
        let why = match last_words(&said) {
            "" => output.status.to_string(),
            said => said.to_owned(),
        };
        return Err(format!("{} failed: {why}", named()));
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

/// The error that a process ended with, behind its progress.
fn last_words(said: &str) -> &str {
    let own = said.rfind("laser: ");
    let line = || said.trim_end().rfind('\n').map_or(0, |at| at + 1);
    said[own.unwrap_or_else(line)..].trim()
}

/// Bytes of what a process said that are kept for an error.
const KEPT: usize = 4096;

/// Copies what a process says while it runs, and returns the end of it.
fn pass_on(mut from: impl Read, to: &mut impl Write) -> String {
    let mut end = Vec::new();
    let mut part = [0; 1024];
    loop {
        match from.read(&mut part) {
            Ok(0) => break,
            Ok(count) => {
                // Nobody may be listening.
                let _ = to.write_all(&part[..count]).and_then(|()| to.flush());
                end.extend_from_slice(&part[..count]);
                end.drain(..end.len().saturating_sub(KEPT));
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&end).into_owned()
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
    #[test]
    fn what_a_process_says_is_passed_on_and_its_end_kept() {
        let mut heard = Vec::new();
        let text = "a".repeat(2 * KEPT) + "end";
        let end = pass_on(text.as_bytes(), &mut heard);
        assert_eq!(heard, text.as_bytes());
        assert_eq!(end.len(), KEPT);
        assert!(end.ends_with("aend"));
        let said = " 1.0 % step 1\nlaser: one\ntwo\n";
        assert_eq!(last_words(said), "laser: one\ntwo");
        assert_eq!(last_words("step 1\nkilled\n"), "killed");
        assert_eq!(last_words(""), "");
    }
}
