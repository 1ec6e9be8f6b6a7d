//! `laser eval`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use laser_mining::{Margin, Retrieval};
use laser_model::Languages;

use super::args::spinner;
use super::classify::ClassifyArgs;
use super::meaning::{MixedArgs, OrderArgs, StsArgs};
use super::measured::{
    self, Measures, ModelArgs, SetArgs, measure, measure_languages, report, write_out,
};
use super::senteval::SentEvalArgs;
use super::words::WordsArgs;
use crate::data::readers::Problems;
use crate::eval::Metric;
use crate::eval::bucc::{self, BuccOptions, Side};
use crate::eval::tables::{Form, TableOptions, render};
use crate::report::table::{Align, Table};

/// Measures of `laser eval`.
#[derive(Debug, Subcommand)]
pub enum EvalCommand {
    /// Translation retrieval: error or accuracy per language and direction, means per set.
    Similarity(SimilarityArgs),
    /// Retrieval among the sentences of all other languages at once: accuracy per language.
    Mixed(MixedArgs),
    /// Sentences that differ in word order, names, a number or a negation alone: accuracy of telling
    /// the translation from them.
    Order(OrderArgs),
    /// Similarity of meaning: correlation of cosines with scores.
    Sts(StsArgs),
    /// Classifiers on frozen embeddings, trained in one language and tested in all: accuracy.
    Classify(ClassifyArgs),
    /// The tasks of SentEval: sentiment, questions, paraphrases, inference, similarity.
    Senteval(SentEvalArgs),
    /// Dictionary induction: precision of the nearest words of another language.
    Words(WordsArgs),
    /// Bitext mining: precision, recall and F1 at the best or a given threshold.
    Bucc(BuccArgs),
}

/// Arguments of `laser eval similarity`.
#[derive(Debug, Args)]
pub struct SimilarityArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sets: SetArgs,
    /// Keyed files, or folders of them, whose sentences in the pivot language are candidates in
    /// every set that has the language, besides its own.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    distractors: Vec<PathBuf>,
    /// Another model of the same space embeds the sentences of the pivot language: for encoders of one
    /// language each. A sentence that another language has word for word is embedded by it as well.
    #[arg(long, value_name = "FOLDER")]
    pivot_model: Option<PathBuf>,
    /// Measure the first keys of each set, this many at a time: retrieval as a function of the corpus' size. Sizes beyond
    /// a set's keys are left out.
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "distractors",
          value_parser = clap::value_parser!(u32).range(1..))]
    sizes: Vec<u32>,
    /// How candidates are ranked; `margin` is xsim.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values_t = [Metric::Cosine, Metric::Margin]
    )]
    metric: Vec<Metric>,
    /// Form of the tables.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
    /// Show accuracies instead of error rates.
    #[arg(long)]
    accuracy: bool,
    /// Show only the means of each set.
    #[arg(long)]
    summary: bool,
    /// Languages with fewer queries do not count in means.
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_queries: usize,
    /// Write here instead of to standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs `laser eval similarity`.
pub fn similarity(args: &SimilarityArgs, threads: Option<usize>) -> Result<()> {
    let languages = Languages::read(&args.model.model)?;
    if languages.is_some() && args.pivot_model.is_some() {
        bail!(
            "--pivot-model is for a model of one encoder; this one has an encoder for each language"
        );
    }
    let mut sets = args.sets.read()?;
    let distractors = args.sets.pivot_sentences(&args.distractors)?;
    let pivot = &args.sets.pivot;
    for set in sets
        .iter_mut()
        .filter(|s| s.languages().contains_key(pivot))
    {
        set.distract(pivot, &distractors)?;
    }
    let model = &args.model;
    let measures = Measures {
        pivot,
        metrics: &args.metric,
        sizes: &args.sizes,
    };
    let results = match &languages {
        Some(list) => measure_languages(model, list, threads, &sets, measures)?,
        None => {
            let encoder = model.load(threads)?;
            let other = args.pivot_model.as_ref();
            let other = other
                .map(|folder| model.load_other(folder, threads))
                .transpose()?;
            let encoders = (&encoder, other.as_ref());
            measure(model, encoders, &sets, measures)?
        }
    };
    let options = TableOptions {
        metrics: args.metric.clone(),
        min_queries: args.min_queries,
        errors: !args.accuracy,
        summary: args.summary,
    };
    write_out(
        args.output.as_ref(),
        &render(&results, args.format, &options),
    )
}

/// Arguments of `laser eval bucc`.
#[derive(Debug, Args)]
pub struct BuccArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Source text, `id<TAB>sentence`.
    #[arg(long, value_name = "FILE")]
    source: PathBuf,
    /// Target text, `id<TAB>sentence`.
    #[arg(long, value_name = "FILE")]
    target: PathBuf,
    /// Gold pairs, `source id<TAB>target id`.
    #[arg(long, value_name = "FILE")]
    gold: PathBuf,
    /// The language of the source: for a model with an encoder for each language.
    #[arg(long, value_name = "LANG")]
    source_language: Option<String>,
    /// The language of the target.
    #[arg(long, value_name = "LANG")]
    target_language: Option<String>,
    /// Extract pairs with at least this score (found on training data, say) instead of searching
    /// the threshold with the best F1.
    #[arg(long, value_name = "SCORE")]
    threshold: Option<f64>,
    /// Score of a pair: absolute (cosine), distance or ratio.
    #[arg(long, default_value_t = Margin::Ratio)]
    margin: Margin,
    /// Pairs that are kept: forward, backward, max or intersect.
    #[arg(long, default_value_t = Retrieval::Max)]
    retrieval: Retrieval,
    /// Neighbours that the margin looks at.
    #[arg(long, short = 'k', value_name = "K", default_value_t = 4)]
    neighbours: usize,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
    /// Write the extracted pairs here: score, source id, target id.
    #[arg(long, value_name = "FILE")]
    pairs: Option<PathBuf>,
    /// Stop at the first malformed line instead of skipping it.
    #[arg(long)]
    strict: bool,
}

/// Runs `laser eval bucc`.
pub fn bucc(args: &BuccArgs, threads: Option<usize>) -> Result<()> {
    let sides = [
        measured::Side {
            language: args.source_language.as_deref(),
            option: "--source-language",
        },
        measured::Side {
            language: args.target_language.as_deref(),
            option: "--target-language",
        },
    ];
    let (encoder, other) = args.model.load_pair(sides, threads)?;
    let other = other.as_ref().unwrap_or(&encoder);
    let mut problems = Problems::new(args.strict);
    let source = Side::read(&args.source, &mut problems)?;
    let target = Side::read(&args.target, &mut problems)?;
    let gold = bucc::read_gold(&args.gold, &mut problems)?;
    report(&problems);
    let options = BuccOptions {
        margin: args.margin,
        retrieval: args.retrieval,
        neighbours: args.neighbours,
        threshold: args.threshold,
        threads: threads.unwrap_or_else(rayon::current_num_threads),
    };
    let bar = spinner("sentences embedded");
    let progress = &mut |n| bar.set_position(n);
    let x = args.model.embed(&encoder, &source.texts, progress)?;
    let done = source.texts.len() as u64;
    let progress = &mut |n| bar.set_position(done + n);
    let y = args.model.embed(other, &target.texts, progress)?;
    bar.finish_and_clear();
    let result = bucc::evaluate(
        &source,
        &target,
        (&x, &y),
        encoder.dimensions(),
        &gold,
        &options,
    )?;
    let score = &result.score;
    if let Some(path) = &args.pairs {
        let lines: String = result
            .pairs
            .iter()
            .filter(|p| p.0 >= score.threshold)
            .map(|(score, a, b)| format!("{score:.6}\t{a}\t{b}\n"))
            .collect();
        write_out(Some(path), &lines)?;
    }
    let text = match args.format {
        Form::Json => serde_json::to_string_pretty(&result)? + "\n",
        Form::Tsv => format!(
            "precision\trecall\tf1\tthreshold\textracted\tcorrect\tgold\n\
             {:.6}\t{:.6}\t{:.6}\t{:.6}\t{}\t{}\t{}\n",
            score.precision,
            score.recall,
            score.f1,
            score.threshold,
            score.extracted,
            score.correct,
            score.gold
        ),
        Form::Text | Form::Markdown => {
            let mut table = Table::new();
            for name in [
                "precision",
                "recall",
                "F1",
                "threshold",
                "extracted",
                "correct",
                "gold",
            ] {
                table.column(name, Align::Right);
            }
            table.row(vec![
                format!("{:.2}", 100.0 * score.precision),
                format!("{:.2}", 100.0 * score.recall),
                format!("{:.2}", 100.0 * score.f1),
                format!("{:.4}", score.threshold),
                score.extracted.to_string(),
                score.correct.to_string(),
                score.gold.to_string(),
            ]);
            if args.format == Form::Text {
                table.text()
            } else {
                table.markdown()
            }
        }
    };
    write_out(None, &text)
}
