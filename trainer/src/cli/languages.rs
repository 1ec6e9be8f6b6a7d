//! `laser languages`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use laser_model::folder::{CONFIG, DICTIONARY, TOKENIZER, WEIGHTS, read_config};
use laser_model::{Languages, languages};

use super::args::OutputArgs;

/// Arguments of `laser languages`.
#[derive(Debug, Args)]
pub struct LanguagesArgs {
    /// The encoder of each language: `de=models/de-in-en en=models/en`.
    #[arg(value_name = "LANG=FOLDER", required = true)]
    encoders: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
    /// Name of the model; the name of the output folder if not given.
    #[arg(long)]
    name: Option<String>,
}

/// Copies the files of a model folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let config = read_config(from)?;
    if let Some(base) = config.base {
        bail!(
            "\"{}\" builds on model \"{}\": write it whole first, with `laser export`",
            from.display(),
            base.model
        );
    }
    std::fs::create_dir_all(to).with_context(|| format!("could not make \"{}\"", to.display()))?;
    for file in [CONFIG, TOKENIZER, WEIGHTS, DICTIONARY] {
        let (source, target) = (from.join(file), to.join(file));
        if file != DICTIONARY || source.exists() {
            std::fs::copy(&source, &target).with_context(|| {
                format!(
                    "could not copy \"{}\" to \"{}\"",
                    source.display(),
                    target.display()
                )
            })?;
        }
    }
    Ok(())
}

/// Runs `laser languages`.
pub fn run(args: &LanguagesArgs) -> Result<()> {
    args.output.check()?;
    let output = &args.output.output;
    let encoders = args.encoders.iter().map(|encoder| {
        encoder
            .split_once('=')
            .map(|(code, folder)| (code.to_owned(), PathBuf::from(folder)))
            .with_context(|| format!("\"{encoder}\" is not LANG=FOLDER"))
    });
    let encoders: Vec<(String, PathBuf)> = encoders.collect::<Result<_>>()?;
    let codes: Vec<String> = encoders.iter().map(|(code, _)| code.clone()).collect();
    languages::check_codes(codes.iter().map(String::as_str)).map_err(|e| anyhow!(e))?;
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    // What is read may be what is replaced.
    let beside = |end: &str| output.with_file_name(format!("{name}.{end}"));
    let (new, old) = (beside("new"), beside("old"));
    for left in [&new, &old] {
        if left.exists() {
            std::fs::remove_dir_all(left)?;
        }
    }
    for (code, folder) in &encoders {
        copy(folder, &new.join(code))?;
    }
    let name = args.name.as_deref().unwrap_or(&name);
    let list = Languages::of_folders(name, &new, &codes)?;
    list.write(&new)?;
    if output.exists() {
        std::fs::rename(output, &old)?;
    }
    std::fs::rename(&new, output)
        .with_context(|| format!("could not make \"{}\"", output.display()))?;
    if old.exists() {
        std::fs::remove_dir_all(&old)?;
    }
    let shown: Vec<String> = codes.iter().map(|code| format!("{name}@{code}")).collect();
    println!("{} in {}", shown.join(", "), output.display());
    Ok(())
}
