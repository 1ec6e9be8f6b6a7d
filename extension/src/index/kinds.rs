//! Support functions of the operator classes: each names the type and the metric of its class.
//!
//! They are called where an index is built, which for ON COMMIT DELETE ROWS is while a transaction
//! commits: without a snapshot, so that a function in SQL or a procedural language cannot run.
#![allow(unsafe_code)]

use laser_index::metric::Metric;
use pgrx::pg_sys::{self, Datum};

use super::element::Element;

static FUNCTION_INFO: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };

macro_rules! kind {
    ($name:literal, $element:ident, $metric:ident) => {
        const _: () = {
            #[unsafe(export_name = concat!("pg_finfo_", $name))]
            extern "C" fn info() -> &'static pg_sys::Pg_finfo_record {
                &FUNCTION_INFO
            }
            #[unsafe(export_name = $name)]
            unsafe extern "C-unwind" fn call(_fcinfo: pg_sys::FunctionCallInfo) -> Datum {
                Datum::from(16 * Element::$element as i32 + Metric::$metric as i32)
            }
        };
    };
}

kind!("laser_embedding_cosine_kind", Embedding, Cosine);
kind!("laser_embedding_l2_kind", Embedding, L2);
kind!("laser_embedding_ip_kind", Embedding, InnerProduct);
kind!("laser_halfembedding_cosine_kind", HalfEmbedding, Cosine);
kind!("laser_halfembedding_l2_kind", HalfEmbedding, L2);
kind!("laser_halfembedding_ip_kind", HalfEmbedding, InnerProduct);
kind!("laser_text_cosine_kind", Text, Cosine);
kind!("laser_vector_cosine_kind", Vector, Cosine);
kind!("laser_vector_l2_kind", Vector, L2);
kind!("laser_vector_ip_kind", Vector, InnerProduct);
kind!("laser_halfvec_cosine_kind", HalfVec, Cosine);
kind!("laser_halfvec_l2_kind", HalfVec, L2);
kind!("laser_halfvec_ip_kind", HalfVec, InnerProduct);
