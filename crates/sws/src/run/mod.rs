//! A loaded model and one text: the sequence, the loop that generates tokens, conversations, cancellation,
//! and what a text has cost.

pub(crate) mod cancel;
pub(crate) mod chat;
pub(crate) mod generate;
pub(crate) mod generated;
pub(crate) mod loaded;
pub(crate) mod metrics;
pub(crate) mod rank;
pub(crate) mod request;
pub(crate) mod sequence;
pub(crate) mod threads;
pub(crate) mod timing;
mod turn;
pub(crate) mod writer;
