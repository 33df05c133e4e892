//! A loaded model and a text: the sequence, the generation loop, conversations, cancellation, and
//! metrics.

pub(crate) mod cancel;
pub(crate) mod chat;
pub(crate) mod generate;
pub(crate) mod generated;
pub(crate) mod loaded;
pub(crate) mod metrics;
pub(crate) mod rank;
mod repeats;
pub(crate) mod request;
pub(crate) mod sequence;
pub(crate) mod threads;
pub(crate) mod timing;
mod turn;
pub(crate) mod writer;
