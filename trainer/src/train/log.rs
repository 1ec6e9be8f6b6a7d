//! Progress for people (a bar on a terminal, plain lines elsewhere) and for curves (CSV).

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::TrainError;

/// One line of the training log.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Updates made.
    pub step: u64,
    /// Pairs seen.
    pub pairs: u64,
    /// Tokens seen, both sides.
    pub tokens: u64,
    /// Seconds of training, without evaluations.
    pub seconds: f64,
    /// Learning rate.
    pub rate: f64,
    /// Mean loss since the last line.
    pub loss: f64,
    /// Mean gradient norm since the last line.
    pub norm: f64,
    /// Pairs a second since the last line.
    pub pairs_per_second: f64,
    /// Tokens a second since the last line.
    pub tokens_per_second: f64,
    /// Share of the run that is over.
    pub progress: f64,
}

/// Names of the columns of `train.csv`.
const TRAIN_COLUMNS: &str = "step,pairs,tokens,seconds,learning_rate,loss,gradient_norm,\
                             pairs_per_second,tokens_per_second";
/// Names of the columns of `dev.csv`.
const DEV_COLUMNS: &str = "step,pairs,seconds,set,language,accuracy";

/// Writes the logs of a run.
pub struct Log {
    bar: Option<ProgressBar>,
    quiet: bool,
    train: (PathBuf, File),
    dev: (PathBuf, File),
}

/// Opens a log to go on after `step`: later lines, of a run that was cut off, are removed.
fn open(path: PathBuf, columns: &str, step: u64) -> Result<(PathBuf, File), TrainError> {
    let fail = |e| TrainError::io(&path, e);
    let mut text = format!("{columns}\n");
    if step > 0 && path.exists() {
        for line in std::fs::read_to_string(&path)
            .map_err(fail)?
            .lines()
            .skip(1)
        {
            let at = line.split(',').next().and_then(|s| s.parse::<u64>().ok());
            if at.is_some_and(|at| at <= step) {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    let mut file = File::create(&path).map_err(fail)?;
    file.write_all(text.as_bytes()).map_err(fail)?;
    Ok((path, file))
}

/// A line on standard error. A run does not end because nobody is listening any more.
fn tell(message: &str) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

impl Log {
    /// Opens `train.csv` and `dev.csv` in `folder`, to go on after `step`.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn open(folder: &Path, step: u64, quiet: bool) -> Result<Self, TrainError> {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(1000);
            if let Ok(style) = ProgressStyle::with_template("{bar:24} {percent:>3} %  {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Ok(Self {
            bar,
            quiet,
            train: open(folder.join("train.csv"), TRAIN_COLUMNS, step)?,
            dev: open(folder.join("dev.csv"), DEV_COLUMNS, step)?,
        })
    }

    /// Says something.
    pub fn say(&self, message: &str) {
        match &self.bar {
            _ if self.quiet => {}
            Some(bar) => bar.suspend(|| tell(message)),
            None => tell(message),
        }
    }

    /// Reports progress.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn line(&mut self, line: &Line) -> Result<(), TrainError> {
        let left = if line.progress > 0.0 {
            line.seconds * (1.0 - line.progress) / line.progress
        } else {
            0.0
        };
        let message = format!(
            "step {} loss {:.4} lr {:.2e} {:.0} tok/s {:.0} pairs/s {} left",
            line.step,
            line.loss,
            line.rate,
            line.tokens_per_second,
            line.pairs_per_second,
            clock(left)
        );
        match &self.bar {
            _ if self.quiet => {}
            Some(bar) => {
                bar.set_position((line.progress * 1000.0) as u64);
                bar.set_message(message);
            }
            None => tell(&format!("{:5.1} % {message}", line.progress * 100.0)),
        }
        writeln!(
            self.train.1,
            "{},{},{},{:.1},{:.4e},{:.5},{:.5},{:.0},{:.0}",
            line.step,
            line.pairs,
            line.tokens,
            line.seconds,
            line.rate,
            line.loss,
            line.norm,
            line.pairs_per_second,
            line.tokens_per_second
        )
        .map_err(|e| TrainError::io(&self.train.0, e))
    }

    /// Reports the accuracy on a dev set; the mean stands under the language `*`.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    pub fn dev(
        &mut self,
        (step, pairs, seconds): (u64, u64, f64),
        set: &str,
        accuracy: &super::dev::Accuracy,
    ) -> Result<(), TrainError> {
        self.say(&format!(
            "step {step} dev {set} {:.2} %",
            accuracy.mean * 100.0
        ));
        let rows = std::iter::once(("*", accuracy.mean))
            .chain(accuracy.languages.iter().map(|(l, a)| (l.as_str(), *a)));
        let mut text = String::new();
        for (language, value) in rows {
            text.push_str(&format!(
                "{step},{pairs},{seconds:.1},{set},{language},{value:.5}\n"
            ));
        }
        self.dev
            .1
            .write_all(text.as_bytes())
            .map_err(|e| TrainError::io(&self.dev.0, e))
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `1:02:03` or `2:03`.
fn clock(seconds: f64) -> String {
    let s = Duration::from_secs_f64(seconds.clamp(0.0, 1e9)).as_secs();
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}
