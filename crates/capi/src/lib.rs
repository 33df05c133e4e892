//! The library for C: models, and the store of experts alone, for engines of others.
//!
//! Functions check pointers, catch panics and keep the sentence of an error (`border`). `cbindgen` makes
//! sws.h of these comments.
#![expect(non_camel_case_types, reason = "names of C")]

mod border;
mod expert_store;
mod experts;
mod model;

pub use border::sws_error;
pub use experts::{
    sws_expert, sws_part, sws_shape, sws_store, sws_store_close, sws_store_fetch, sws_store_hold,
    sws_store_open, sws_store_release, sws_store_row, sws_store_shape, sws_tensor,
};
pub use model::{
    sws_begin, sws_begin_tokens, sws_cancel, sws_close, sws_model, sws_next, sws_open, sws_piece,
    sws_settings,
};
