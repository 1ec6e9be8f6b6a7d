//! Tokenises corpora and packs them: above [`data`](crate::data) and [`tokenizer`](crate::tokenizer), which is trained on
//! the former.

use rayon::prelude::*;

use crate::data::pack_writer::{PackWriter, PackedSentence};
use crate::data::pipeline::Pipeline;
use crate::data::report::Report;
use crate::data::{Group, Result, perturb};
use crate::tokenizer::Loaded;

/// Groups that are tokenised together.
const BATCH_ROWS: usize = 16_384;

/// Reads a corpus, tokenises it and writes it packed, with perturbed sentences of the English ones
/// if `perturbed`. Repeats are removed if `pipeline` has found them. `progress` is told the number of sentences so far.
///
/// # Errors
/// Of the readers, the tokenizer and the writer.
pub fn pack(
    pipeline: &Pipeline,
    tokenizer: &Loaded,
    writer: &mut PackWriter,
    perturbed: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Report> {
    let mut waiting: Vec<(String, Group)> = Vec::new();
    let mut rows = 0;
    let mut done = 0;
    let mut flush = |waiting: &mut Vec<(String, Group)>| -> Result<()> {
        let texts: Vec<&str> = waiting
            .iter()
            .flat_map(|(_, g)| g.rows.iter().map(|r| r.text.as_str()))
            .collect();
        let mut ids = tokenizer.encode(&texts)?.into_iter();
        let others: Vec<Vec<String>> = waiting
            .par_iter()
            .flat_map_iter(|(_, g)| &g.rows)
            .map(|row| {
                if perturbed && row.language == perturb::LANGUAGE {
                    perturb::perturb(&row.text, 0)
                        .into_iter()
                        .map(|p| p.1)
                        .collect()
                } else {
                    Vec::new()
                }
            })
            .collect();
        let texts: Vec<&str> = others.iter().flatten().map(String::as_str).collect();
        let mut other_ids = tokenizer.encode(&texts)?.into_iter();
        let mut others = others.into_iter().map(|texts| {
            let with_ids = |text| (text, other_ids.next().unwrap_or_default());
            texts.into_iter().map(with_ids).collect::<Vec<_>>()
        });
        for (source, group) in waiting.iter() {
            let ids: Vec<Vec<u32>> = ids.by_ref().take(group.rows.len()).collect();
            let others: Vec<_> = others.by_ref().take(group.rows.len()).collect();
            let sentences: Vec<PackedSentence<'_>> = group
                .rows
                .iter()
                .zip(ids.iter().zip(&others))
                .map(|(r, (ids, perturbed))| PackedSentence {
                    language: &r.language,
                    text: &r.text,
                    ids,
                    perturbed,
                })
                .collect();
            writer.push(source, &group.key, &sentences)?;
            done += sentences.len() as u64;
        }
        waiting.clear();
        progress(done);
        Ok(())
    };
    let report = pipeline.run(&mut |source, group| {
        rows += group.rows.len();
        waiting.push((source.to_owned(), group));
        if rows >= BATCH_ROWS {
            rows = 0;
            flush(&mut waiting)?;
        }
        Ok(())
    })?;
    flush(&mut waiting)?;
    Ok(report)
}
