//! What the encoders of transformers' library have in common, and what each calls it.

use laser_model::ModelError;
use laser_model::config::{Activation, RelativePositions};

use crate::json::Json;
use crate::layers::Names;

/// A kind of encoder, by `model_type` of its `config.json`.
pub(super) struct Family {
    /// `model_type`.
    kind: &'static str,
    /// What may stand before the names of all tensors: nothing in a checkpoint of the bare encoder.
    pub prefixes: [&'static str; 2],
    /// Names of the tensors of its layers.
    pub names: &'static Names,
    /// Keys of `config.json`.
    pub keys: &'static Keys,
    /// Whether it has a table of token types.
    pub token_types: bool,
    /// Where positions begin.
    pub positions: Positions,
    /// Biases of attention, and the name of their table.
    pub relative: Option<(RelativePositions, &'static str)>,
    /// Tokens that begin and end a text, and that stand for padding and for what is masked, in a WordPiece
    /// vocabulary.
    pub special: [&'static str; 4],
    /// What a classifier has above the encoder.
    pub head: &'static Head,
}

/// The layers of a classifier, above the state of the first token.
pub(super) struct Head {
    /// Name of the dense layer.
    pub dense: &'static str,
    /// What follows it.
    pub activation: Activation,
    /// Name of the layer that gives the logits.
    pub output: &'static str,
}

/// What `config.json` calls the sizes.
pub(super) struct Keys {
    /// Model width.
    pub hidden_size: &'static str,
    /// Number of layers.
    pub layers: &'static str,
    /// Attention heads.
    pub heads: &'static str,
    /// Width of the feed-forward layers.
    pub intermediate_size: &'static str,
    /// Activation between the feed-forward matrices.
    pub activation: &'static str,
}

/// The row of the position table that belongs to the first token.
pub(super) enum Positions {
    /// The first one.
    FromZero,
    /// The one behind that of the padding id, `pad_token_id`.
    BehindPadding,
    /// Always this one.
    From(usize),
}

impl Positions {
    /// The row of the table that position 0 has.
    pub fn offset(&self, config: &Json) -> Result<usize, ModelError> {
        match self {
            Self::FromZero => Ok(0),
            Self::BehindPadding => Ok(config.number("pad_token_id")? + 1),
            Self::From(row) => Ok(*row),
        }
    }
}

/// As `BertModel` calls them.
const BERT: Names = Names {
    layer: "encoder.layer.",
    attention: [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    ],
    feed_forward: ["intermediate.dense", "output.dense"],
    norms: ["attention.output.LayerNorm", "output.LayerNorm"],
};

const MPNET: Names = Names {
    attention: [
        "attention.attn.q",
        "attention.attn.k",
        "attention.attn.v",
        "attention.attn.o",
    ],
    norms: ["attention.LayerNorm", "output.LayerNorm"],
    ..BERT
};

const DISTILBERT: Names = Names {
    layer: "transformer.layer.",
    attention: [
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
    ],
    feed_forward: ["ffn.lin1", "ffn.lin2"],
    norms: ["sa_layer_norm", "output_layer_norm"],
};

const KEYS: Keys = Keys {
    hidden_size: "hidden_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    intermediate_size: "intermediate_size",
    activation: "hidden_act",
};

const DISTILBERT_KEYS: Keys = Keys {
    hidden_size: "dim",
    layers: "n_layers",
    heads: "n_heads",
    intermediate_size: "hidden_dim",
    activation: "activation",
};

const SPECIAL: [&str; 4] = ["[CLS]", "[SEP]", "[PAD]", "[MASK]"];

const BERT_HEAD: Head = Head {
    dense: "bert.pooler.dense",
    activation: Activation::Tanh,
    output: "classifier",
};

const ROBERTA_HEAD: Head = Head {
    dense: "classifier.dense",
    activation: Activation::Tanh,
    output: "classifier.out_proj",
};

const DISTILBERT_HEAD: Head = Head {
    dense: "pre_classifier",
    activation: Activation::Relu,
    output: "classifier",
};

/// MPNet's code has these sizes for its biases, whatever its configuration says of them.
const MPNET_POSITIONS: RelativePositions = RelativePositions {
    buckets: 32,
    max_distance: 128,
};

const FAMILIES: [Family; 5] = [
    Family {
        kind: "bert",
        prefixes: ["", "bert."],
        names: &BERT,
        keys: &KEYS,
        token_types: true,
        positions: Positions::FromZero,
        relative: None,
        special: SPECIAL,
        head: &BERT_HEAD,
    },
    Family {
        kind: "roberta",
        prefixes: ["", "roberta."],
        names: &BERT,
        keys: &KEYS,
        token_types: true,
        positions: Positions::BehindPadding,
        relative: None,
        special: SPECIAL,
        head: &ROBERTA_HEAD,
    },
    Family {
        kind: "xlm-roberta",
        prefixes: ["", "roberta."],
        names: &BERT,
        keys: &KEYS,
        token_types: true,
        positions: Positions::BehindPadding,
        relative: None,
        special: SPECIAL,
        head: &ROBERTA_HEAD,
    },
    Family {
        kind: "distilbert",
        prefixes: ["", "distilbert."],
        names: &DISTILBERT,
        keys: &DISTILBERT_KEYS,
        token_types: false,
        positions: Positions::FromZero,
        relative: None,
        special: SPECIAL,
        head: &DISTILBERT_HEAD,
    },
    Family {
        kind: "mpnet",
        prefixes: ["", "mpnet."],
        names: &MPNET,
        keys: &KEYS,
        token_types: false,
        positions: Positions::From(2),
        relative: Some((MPNET_POSITIONS, "encoder.relative_attention_bias.weight")),
        special: ["<s>", "</s>", "<pad>", "<mask>"],
        head: &ROBERTA_HEAD,
    },
];

impl Family {
    /// That of a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Import`] for a `model_type` that is not known here.
    pub fn of(config: &Json) -> Result<&'static Self, ModelError> {
        let kind = config.text("model_type")?;
        FAMILIES
            .iter()
            .find(|family| family.kind == kind)
            .ok_or_else(|| {
                let known = FAMILIES.map(|family| family.kind).join(", ");
                config.error(format!(
                    "model_type \"{kind}\" is not supported, of those there are: {known}; as an embedder also \
                     gemma3_text"
                ))
            })
    }
}
