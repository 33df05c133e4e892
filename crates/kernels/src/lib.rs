//! Arithmetic on encoded weights.
//!
//! A [`Matrix`](crate::Encoding) ... (K1 writes this page)

mod encoding;
pub mod functional;
mod isa;

pub use encoding::{Encoding, UnknownEncoding};
#[cfg(target_arch = "x86_64")]
pub use isa::{Avx2, Avx512};
pub use isa::{TIER_VARIABLE, Tier, UnknownTier};
