//! Operations of a decoder besides products with weights: norms, gates, softmax, rotary embedding,
//! attention, recurrences, selection.
//!
//! Every function gives the same bits in every [`Tier`](crate::Tier), for a row alone or among
//! others. Each is written once on arrays of 32 lanes, with operations in a fixed order, and
//! compiled per tier. [`Tier::SCALAR`](crate::Tier::SCALAR) runs an independent plain version
//! (`reference.rs`) that the others are tested against. Only the reference allocates.
//!
//! Sums follow the canonical reduction: 32 partial sums, lane = index mod 32, folded by a fixed
//! tree (lane i with i + 16, then + 8, + 4, + 2, + 1). `exp`, `tanh` and `erf` are polynomials
//! evaluated with fused multiply-adds ([`elementary`]). The sines of the rotary tables come from
//! the `libm` crate, never from the platform. Subnormals count: the caller leaves flush-to-zero
//! off, as Rust does.
//!
//! The caller must pass slices of matching lengths: a slice of the wrong length is a bug and
//! panics.

mod activation;
mod attention;
pub mod elementary;
mod gate;
mod lanes;
mod norm;
mod pool;
mod recurrent;
mod reference;
mod rope;
mod row;
mod select;
mod shapes;
mod states;
mod streams;
mod vector;

pub use activation::Activation;
pub use attention::{
    Attention, AttentionScratch, CacheLayout, CacheMut, Distances, IndexQuery, KvCache, KvData,
    LEAST_PAGE, Page, Queries, Selected, Zero, attention, index_scores, key_products, q8, store,
    zeroed,
};
pub use gate::{gate, gate_interleaved};
pub use norm::{layer_norm, rms_norm};
pub use pool::pool;
pub use recurrent::{decays, l2_norm, recur, short_conv, steps};
pub use rope::{rope, rope_tables};
pub use row::{add, axpy, dots, root_softplus, sigmoid, soft_cap, softmax};
pub use select::{argmax, top_k};
pub use shapes::{
    ConvInput, MAX_STREAMS, MAX_TAPS, NormWeight, Rates, Recurrence, RecurrenceInputs, RopePairs,
    RopeShape, ShortConv, StateWeights, StreamBias, StreamHead, StreamWriting, Streams,
};
pub use states::{MAX_STATES, mix_states};
pub use streams::{gated_mean, head_of_streams, read_streams, stream_weights, write_streams};

/// Defines a function that runs `lanes`, compiled for the tier it is given, or `reference` in
/// `Tier::SCALAR`. `lanes` and everything it calls must be `#[inline(always)]`, or they would be
/// compiled for the baseline CPU. The same holds for closures that are passed on, since `map` and
/// the like may not be inlined. A function given as `simd` also receives the token that proves the
/// tier.
macro_rules! tiered {
    (
        $name:ident($($arg:ident: $ty:ty),* $(,)?)
        lanes: $lanes:path, reference: $reference:path
    ) => {
        $crate::functional::tiered! {
            $name($($arg: $ty),*)
            simd: lanes, reference: $reference, where
            #[inline(always)]
            fn lanes<S>(_: S, $($arg: $ty),*) {
                $lanes($($arg),*);
            }
        }
    };
    (
        $name:ident($($arg:ident: $ty:ty),* $(,)?)
        simd: $simd:path, reference: $reference:path $(, where $adapter:item)?
    ) => {
        fn $name(tier: $crate::Tier, $($arg: $ty),*) {
            $($adapter)?
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2(token: $crate::Avx2, $($arg: $ty),*) {
                $simd(token, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512(token: $crate::Avx512, $($arg: $ty),*) {
                $simd(token, $($arg),*)
            }
            match tier.isa() {
                $crate::isa::Isa::Scalar => $reference($($arg),*),
                $crate::isa::Isa::Portable => $simd($crate::simd::Portable, $($arg),*),
                // SAFETY: the token exists only on a CPU that has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2(token) => unsafe { avx2(token, $($arg),*) },
                // SAFETY: the token exists only on a CPU that has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512(token) => unsafe { avx512(token, $($arg),*) },
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Isa::Neon(token) => $simd(token, $($arg),*),
            }
        }
    };
}
pub(crate) use tiered;
