//! The layers of transformers, as checkpoints of several libraries name them.

use laser_model::ModelError;
use laser_model::config::TransformerConfig;

/// What a layer's parts are called.
pub(super) struct Names {
    /// What stands before the layer's number.
    pub layer: &'static str,
    /// Query, key, value and output.
    pub attention: [&'static str; 4],
    /// Up and down.
    pub feed_forward: [&'static str; 2],
    /// Behind attention and behind the feed-forward part.
    pub norms: [&'static str; 2],
}

/// Calls `take(from, to, shape)` for weight and bias of all parts of all layers, with their names in
/// the checkpoint and in a model folder.
///
/// # Errors
/// The first of `take`.
pub(super) fn each_tensor(
    names: &Names,
    encoder: &TransformerConfig,
    take: &mut impl FnMut(String, String, &[usize]) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let (d, f) = (encoder.hidden_size, encoder.intermediate_size);
    let [query, key, value, output] = names.attention;
    let [up, down] = names.feed_forward;
    for l in 0..encoder.layers {
        let (from, to) = (format!("{}{l}", names.layer), format!("layers.{l}"));
        for (part, name, rows, columns) in [
            (query, "attention.query", d, d),
            (key, "attention.key", d, d),
            (value, "attention.value", d, d),
            (output, "attention.output", d, d),
            (up, "feed_forward.up", f, d),
            (down, "feed_forward.down", d, f),
        ] {
            let (from, to) = (format!("{from}.{part}"), format!("{to}.{name}"));
            take(
                format!("{from}.weight"),
                format!("{to}.weight"),
                &[rows, columns],
            )?;
            take(format!("{from}.bias"), format!("{to}.bias"), &[rows])?;
        }
        for (part, name) in names
            .norms
            .into_iter()
            .zip(["attention_norm", "feed_forward_norm"])
        {
            norm(&format!("{from}.{part}"), &format!("{to}.{name}"), d, take)?;
        }
    }
    Ok(())
}

/// Calls `take` for weight and bias of a layer normalisation.
///
/// # Errors
/// The first of `take`.
pub(super) fn norm(
    from: &str,
    to: &str,
    width: usize,
    take: &mut impl FnMut(String, String, &[usize]) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    for part in ["weight", "bias"] {
        take(format!("{from}.{part}"), format!("{to}.{part}"), &[width])?;
    }
    Ok(())
}
