//! The shipped model on text of many languages. Every text is new to the encoder that embeds it, so
//! that the cache of words knows no more of it than what languages repeat: the encoder is loaded again
//! for every pass, and has met the characters alone.

use std::collections::BTreeSet;
use std::path::Path;

use laser_encoder::{DeviceChoice, Encoder, LoadOptions, Precision};
use laser_model::LocalEncoder;
use laser_protocol::Role;

use crate::rate::cpu_of_thread;

/// Characters of a text that rates are given for.
const CHARACTERS: f64 = 95.0;

/// The demo's sentences, or the lines of a file.
///
/// # Errors
/// Of reading it.
pub fn texts(file: Option<&Path>) -> std::io::Result<Vec<String>> {
    let demo = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../demo/sentences.tsv"
    ));
    let text = std::fs::read_to_string(file.unwrap_or(demo))?;
    let last = |line: &str| match file {
        Some(_) => line.to_owned(),
        None => line.rsplit('\t').next().unwrap_or(line).to_owned(),
    };
    let mut seen = BTreeSet::new();
    let lines = text.lines().map(last).filter(|line| !line.is_empty());
    Ok(lines.filter(|line| seen.insert(line.clone())).collect())
}

/// Measures the model in `folder` for about `seconds` of processor time each.
///
/// # Errors
/// Of loading and encoding.
pub fn run(
    folder: &Path,
    texts: &[String],
    seconds: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let characters: usize = texts.iter().map(|text| text.chars().count()).sum();
    let alphabet: BTreeSet<char> = texts.iter().flat_map(|text| text.chars()).collect();
    let alphabet: String = alphabet.iter().flat_map(|c| [*c, ' ']).collect();
    // Texts are cut at a number of tokens.
    let alphabet: Vec<&str> = alphabet.split_inclusive(' ').collect();
    let alphabet: Vec<String> = alphabet.chunks(100).map(<[&str]>::concat).collect();
    println!(
        "\nText of many languages: {} texts of {:.0} characters, {} characters in all alphabets, each \
         text once; texts of {CHARACTERS} characters per CPU-second",
        texts.len(),
        characters as f64 / texts.len() as f64,
        alphabet
            .iter()
            .map(|part| part.chars().count() / 2)
            .sum::<usize>(),
    );
    let options = LoadOptions {
        device: DeviceChoice::Cpu,
        precision: Precision::F32,
        threads: 1,
    };
    let (mut whole, mut part, mut passes) = (0.0, 0.0, 0);
    while whole < seconds || passes < 5 {
        let local = LocalEncoder::load(folder)?.ok_or("the model is not for sessions")?;
        let mut out = vec![0f32; local.config().dimensions];
        for text in &alphabet {
            local.encode(text, Role::Plain, &mut out)?;
        }
        let start = cpu_of_thread();
        for text in texts {
            local.encode(text, Role::Plain, &mut out)?;
        }
        whole += cpu_of_thread() - start;
        let encoder = Encoder::load(folder, &options)?;
        for text in &alphabet {
            encoder.tokenize_here(&[text])?;
        }
        let start = cpu_of_thread();
        for text in texts {
            std::hint::black_box(encoder.tokenize_here(&[text])?);
        }
        part += cpu_of_thread() - start;
        passes += 1;
    }
    let rate = |time: f64| (passes * characters) as f64 / CHARACTERS / time;
    println!("from text to embedding {:>12.0}", rate(whole));
    println!("tokenisation alone     {:>12.0}", rate(part));
    Ok(())
}
